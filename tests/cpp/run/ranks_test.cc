// Plans of several ranks, which are threads here: the operators that exchange, and what they say when that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/base/communicator.h"
#include "thresher/run/compile.h"
#include "thresher/run/cpu_device.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 48;

// Where the ranks meet: everybody shows its numbers, all read, and nobody goes before all have read.
class MeetingPlace {
 public:
  explicit MeetingPlace(int ranks) : shown_(static_cast<size_t>(ranks)) {}

  template <class Read>
  void Exchange(int rank, const float* numbers, Read&& read) {
    shown_[static_cast<size_t>(rank)] = numbers;
    Wait();
    for (size_t r = 0; r < shown_.size(); ++r) read(r, shown_[r]);
    Wait();
  }

 private:
  void Wait() {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (++here_ == static_cast<int>(shown_.size())) {
      here_ = 0;
      ++round_;
      all_.notify_all();
    }
    all_.wait(lock, [&] { return round_ != round; });
  }

  std::mutex mutex_;
  std::condition_variable all_;
  std::vector<const float*> shown_;
  int here_ = 0;
  int round_ = 0;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(int rank, int size, MeetingPlace& place) : Communicator(rank, size), place_(place) {}

  Status AllReduce(const float* in, float* out, int64_t count) override {
    std::fill_n(out, count, 0.0f);
    place_.Exchange(rank(), in, [&](size_t, const float* numbers) {
      for (int64_t i = 0; i < count; ++i) out[i] += numbers[i];
    });
    return Status::Ok();
  }

  Status AllGather(const float* in, float* out, int64_t count) override {
    place_.Exchange(rank(), in, [&](size_t r, const float* numbers) {
      std::copy_n(numbers, count, out + static_cast<int64_t>(r) * count);
    });
    return Status::Ok();
  }

 private:
  MeetingPlace& place_;
};

class LostRank final : public Communicator {
 public:
  LostRank() : Communicator(0, 2) {}
  Status AllReduce(const float*, float*, int64_t) override { return InvalidArgument("rank 1 has left"); }
  Status AllGather(const float*, float*, int64_t) override { return InvalidArgument("rank 1 has left"); }
};

std::unique_ptr<Session> MakeSession(const Graph& graph, std::shared_ptr<Device> device) {
  WeightStore weights;
  CompileOptions options;
  options.device = std::move(device);
  options.plan.num_threads = 1;  // the ranks are threads of one process, which has one pool
  return Must(Compile(graph, weights, options));
}

// The numbers [from, to) of each of the rows of a matrix.
std::vector<float> Columns(const std::vector<float>& matrix, int64_t width, int64_t from, int64_t to) {
  std::vector<float> part;
  for (size_t row = 0; row < matrix.size(); row += static_cast<size_t>(width)) {
    part.insert(part.end(), matrix.begin() + static_cast<int64_t>(row) + from,
                matrix.begin() + static_cast<int64_t>(row) + to);
  }
  return part;
}

// relu(x up^T) down^T + x, in which a rank has `hidden` features between the two products.
Graph MakeFeedForward(const std::vector<float>& up, const std::vector<float>& down, int64_t hidden, bool exchange) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {kRows, kWidth});
  const ValueId a = AddF32(g, "up", {hidden, kWidth}, up);
  const ValueId b = AddF32(g, "down", {kWidth, hidden}, down);
  const ValueId h = Must(g.Add1("linear", {x, a}, {{"activation", std::string("relu")}}));
  ValueId y = Must(g.Add1("linear", {h, b}));
  if (exchange) y = Must(g.Add1("all_reduce", {y}));
  g.SetOutputs({Must(g.Add1("add", {y, x}))});
  return g;
}

TEST(Ranks, ShareAFeedForwardLayer) {
  constexpr int64_t kHidden = 96;
  const std::vector<float> up = RandomFloats(kHidden * kWidth, 1, 0.1f);
  const std::vector<float> down = RandomFloats(kWidth * kHidden, 2, 0.1f);
  std::vector<float> x = RandomFloats(kRows * kWidth, 3);
  const View in = MakeView(x.data(), DType::kF32, {kRows, kWidth});

  std::vector<float> wanted(x.size());
  const View whole = MakeView(wanted.data(), DType::kF32, {kRows, kWidth});
  ASSERT_TRUE(MakeSession(MakeFeedForward(up, down, kHidden, false), CpuDevice())
                  ->Run(std::span(&in, 1), std::span(&whole, 1))
                  .ok());

  for (const std::vector<int64_t>& ends : {std::vector<int64_t>{0, 96}, {0, 32, 96}, {0, 17, 18, 96}}) {
    const int ranks = static_cast<int>(ends.size()) - 1;
    MeetingPlace place(ranks);
    std::vector<std::vector<float>> found(static_cast<size_t>(ranks), std::vector<float>(x.size()));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        const int64_t from = ends[static_cast<size_t>(rank)], to = ends[static_cast<size_t>(rank) + 1];
        const std::vector<float> mine(up.begin() + from * kWidth, up.begin() + to * kWidth);
        const Graph graph = MakeFeedForward(mine, Columns(down, kHidden, from, to), to - from, true);
        const auto session = MakeSession(graph, CpuDeviceOfRank(std::make_shared<ThreadRank>(rank, ranks, place)));
        const View out = MakeView(found[static_cast<size_t>(rank)].data(), DType::kF32, {kRows, kWidth});
        for (int round = 0; round < 3; ++round) {
          EXPECT_TRUE(session->Run(std::span(&in, 1), std::span(&out, 1)).ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<float>& each : found) {
      ExpectNear(each, wanted, 1e-4);
      EXPECT_EQ(each, found[0]) << "ranks that go on from different numbers would part";
    }
  }
}

Graph MakeGather(int64_t ranks) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {kRows, kWidth});
  // Of a view, whose rows lie apart.
  const ValueId part = Must(
      g.Add1("slice", {x}, {{"dim", int64_t{1}}, {"start", int64_t{8}}, {"end", int64_t{24}}, {"step", int64_t{1}}}));
  g.SetOutputs({Must(g.Add1("all_gather", {part}, {{"ranks", ranks}}))});
  return g;
}

TEST(Ranks, GatherWhatEachHas) {
  constexpr int kRanks = 3;
  MeetingPlace place(kRanks);
  std::vector<std::vector<float>> numbers, found(kRanks, std::vector<float>(kRanks * kRows * 16));
  std::vector<float> wanted;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    numbers.push_back(RandomFloats(kRows * kWidth, rank));
    const std::vector<float> part = Columns(numbers.back(), kWidth, 8, 24);
    wanted.insert(wanted.end(), part.begin(), part.end());
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto r = static_cast<size_t>(rank);
      const auto session =
          MakeSession(MakeGather(kRanks), CpuDeviceOfRank(std::make_shared<ThreadRank>(rank, kRanks, place)));
      const View in = MakeView(numbers[r].data(), DType::kF32, {kRows, kWidth});
      const View out = MakeView(found[r].data(), DType::kF32, {kRanks, kRows, 16});
      EXPECT_TRUE(session->Run(std::span(&in, 1), std::span(&out, 1)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& each : found) EXPECT_EQ(each, wanted);
}

TEST(Ranks, SayWhatIsWrong) {
  std::vector<float> x(kRows * kWidth, 1.0f), y(4 * x.size());
  const View in = MakeView(x.data(), DType::kF32, {kRows, kWidth});
  const auto message = [&](int64_t ranks, std::shared_ptr<Device> device) {
    const View out = MakeView(y.data(), DType::kF32, {ranks, kRows, 16});
    return MakeSession(MakeGather(ranks), std::move(device))->Run(std::span(&in, 1), std::span(&out, 1)).message();
  };
  EXPECT_THAT(message(2, CpuDevice()), HasSubstr("expected a device of one rank among several"));
  const auto lost = CpuDeviceOfRank(std::make_shared<LostRank>());
  EXPECT_THAT(message(2, lost), HasSubstr("rank 1 has left"));
  EXPECT_THAT(message(3, lost), HasSubstr("expected a graph of 2 ranks, got one of 3"));

  Graph g;
  const ValueId ids = g.AddInput("ids", DType::kI64, {3});
  EXPECT_THAT(g.Add1("all_reduce", {ids}).status().message(), HasSubstr("x"));
  const ValueId f = g.AddInput("f", DType::kF32, {3});
  EXPECT_THAT(g.Add1("all_gather", {f}, {{"ranks", int64_t{0}}}).status().message(), HasSubstr("ranks: expected 1"));
}

}  // namespace
}  // namespace thresher
