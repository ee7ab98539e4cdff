#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/base/thread_pool.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/compile.h"
#include "thresher/run/pauses.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

constexpr int64_t kWidth = 48, kLayers = 6;
constexpr int64_t kLongNs = int64_t{1} << 50;

// Rows that are taken from a table and pass through several layers alike.
Graph MakeLayers(int64_t rows) {
  Graph g;
  const ValueId ids = g.AddInput("ids", DType::kI64, {rows});
  const ValueId table = AddF32(g, "table", {100, kWidth}, RandomFloats(100 * kWidth, 1));
  ValueId x = Must(g.Add1("embedding", {table, ids}));
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string number = std::to_string(layer);
    const ValueId w = AddF32(g, "w" + number, {kWidth, kWidth}, RandomFloats(kWidth * kWidth, 2 + layer, 0.1f));
    const ValueId b = AddF32(g, "b" + number, {kWidth}, RandomFloats(kWidth, 20 + layer));
    x = Must(g.Add1("layer_norm", {Must(g.Add1("linear", {x, w, b}, {{"activation", std::string("gelu")}})), b, b}));
  }
  g.SetOutputs({x});
  return g;
}

struct Call {
  std::vector<int64_t> ids;
  std::vector<float> out;
  std::vector<View> inputs, outputs;

  explicit Call(int64_t rows, int64_t seed = 0) : out(static_cast<size_t>(rows * kWidth)) {
    for (int64_t i = 0; i < rows; ++i) ids.push_back((i * 7 + seed * 13) % 100);
    inputs = {MakeView(ids.data(), DType::kI64, {rows})};
    outputs = {MakeView(out.data(), DType::kF32, {rows, kWidth})};
  }
};

std::unique_ptr<Session> MakeSession(int64_t rows, int num_threads) {
  ThreadPool::SetGlobalSize(num_threads);
  WeightStore store;
  CompileOptions options;
  options.plan.name = "layers";
  options.plan.num_threads = num_threads;
  return Compile(MakeLayers(rows), store, options).value();
}

// Pieces, each of so many nanoseconds, until all is done.
int Pieces(PausableRun& run, int64_t budget_ns) {
  for (int pieces = 1;; ++pieces) {
    const Result<bool> done = run.Continue(budget_ns);
    EXPECT_TRUE(done.ok()) << done.status().message();
    if (!done.ok() || done.value()) return pieces;
  }
}

TEST(PausableRun, PiecesGiveTheBitsOfAWholeRun) {
  for (const int threads : {1, 2, 5}) {
    for (const int64_t rows : {1, 7, 64}) {
      const auto session = MakeSession(rows, threads);
      Call whole(rows), pieces(rows), once(rows);
      ASSERT_TRUE(session->Run(whole.inputs, whole.outputs).ok());
      const auto run = session->Begin(pieces.inputs, pieces.outputs).value();
      EXPECT_EQ(Pieces(*run, 0), static_cast<int>(session->plan().steps.size()));  // a step each
      EXPECT_EQ(pieces.out, whole.out);
      EXPECT_GT(run->longest_ns(), 0);
      const auto unhurried = session->Begin(once.inputs, once.outputs).value();
      EXPECT_EQ(Pieces(*unhurried, kLongNs), 1);
      EXPECT_EQ(once.out, whole.out);
    }
  }
  ThreadPool::SetGlobalSize(2);
}

TEST(PausableRun, OthersRunBetweenPieces) {
  constexpr int64_t kRows = 33;
  const auto session = MakeSession(kRows, 2);
  Call first(kRows, 1), second(kRows, 2), beside(kRows, 3);
  std::vector<Call> expected;
  for (const int64_t seed : {1, 2, 3}) {
    const Call& whole = expected.emplace_back(kRows, seed);
    ASSERT_TRUE(session->Run(whole.inputs, whole.outputs).ok());
  }
  const auto one = session->Begin(first.inputs, first.outputs).value();
  const auto two = session->Begin(second.inputs, second.outputs).value();
  bool ended = false;
  while (!ended) {
    ended = one->Continue(0).value();
    ASSERT_TRUE(session->Run(beside.inputs, beside.outputs).ok());
    EXPECT_EQ(two->Continue(0).value(), ended);
  }
  EXPECT_EQ(first.out, expected[0].out);
  EXPECT_EQ(second.out, expected[1].out);
  EXPECT_EQ(beside.out, expected[2].out);
}

TEST(PausableRun, OneThatIsLeftHalfwayHarmsNothing) {
  constexpr int64_t kRows = 16;
  const auto session = MakeSession(kRows, 2);
  Call expected(kRows), left(kRows, 5), again(kRows);
  ASSERT_TRUE(session->Run(expected.inputs, expected.outputs).ok());
  {
    const auto run = session->Begin(left.inputs, left.outputs).value();
    for (int i = 0; i < 5; ++i) ASSERT_FALSE(run->Continue(0).value());
  }
  ASSERT_TRUE(session->Run(again.inputs, again.outputs).ok());
  EXPECT_EQ(again.out, expected.out);
}

TEST(PausableRun, SaysWhatIsWrong) {
  constexpr int64_t kRows = 8;
  const auto session = MakeSession(kRows, 2);
  Call small(kRows - 1), call(kRows), again(kRows), expected(kRows);
  const auto wrong = session->Begin(small.inputs, small.outputs);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("input 0 (ids): expected i64[8]"), std::string::npos)
      << wrong.status().message();
  const auto run = session->Begin(call.inputs, call.outputs).value();
  Pieces(*run, kLongNs);
  EXPECT_NE(run->Continue(0).status().message().find("expected a run that is not over"), std::string::npos);
  call.ids[3] = 100;  // beyond the table
  const auto fails = session->Begin(call.inputs, call.outputs).value();
  Result<bool> done = false;
  while (done.ok() && !done.value()) done = fails->Continue(0);
  EXPECT_EQ(done.status().code(), Code::kOutOfRange);
  EXPECT_FALSE(fails->Continue(0).ok());
  ASSERT_TRUE(session->Run(expected.inputs, expected.outputs).ok());
  ASSERT_TRUE(session->Run(again.inputs, again.outputs).ok());
  EXPECT_EQ(again.out, expected.out);
}

TEST(PausableRun, RecordsCoverEveryStepOnce) {
  constexpr int64_t kRows = 8;
  const auto session = MakeSession(kRows, 2);
  Call call(kRows);
  profile::Reset();
  profile::Start();
  const auto run = session->Begin(call.inputs, call.outputs).value();
  const int pieces = Pieces(*run, 0);
  profile::Stop();
  const profile::Summary summary = profile::Summarize();
  uint64_t steps = 0;
  for (const profile::SummaryRow& row : summary.rows) {
    if (row.section != profile::Section::kAlloc) steps += row.count;
  }
  EXPECT_EQ(steps, session->plan().steps.size());
  ASSERT_EQ(summary.phases.size(), 1u);
  EXPECT_EQ(summary.phases[0].executions, static_cast<uint64_t>(pieces));
  profile::Reset();
}

// What a step is thought to take is what the one like it took, in the layer before or the run before.
TEST(Pauses, AStepThatWouldEndTooLateWaits) {
  const auto session = MakeSession(8, 1);
  const size_t steps = session->plan().steps.size();
  Pauses pauses(session->plan());
  pauses.Restart();
  pauses.Begin(kLongNs);
  for (size_t s = 0; s < steps; ++s) {
    EXPECT_FALSE(pauses.Before(s));
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < until) {
    }
    pauses.Ended(s);
  }
  EXPECT_GE(pauses.longest_ns(), 2'000'000);
  pauses.Restart();
  EXPECT_EQ(pauses.longest_ns(), 0);
  pauses.Begin(1'000'000);
  EXPECT_FALSE(pauses.Before(0));  // the first one never waits, or nothing would be done
  pauses.Ended(0);
  EXPECT_TRUE(pauses.Before(1));
  pauses.Begin(60'000'000'000);
  EXPECT_FALSE(pauses.Before(1));
  pauses.Ended(1);
  EXPECT_FALSE(pauses.Before(2));
}

}  // namespace
}  // namespace thresher
