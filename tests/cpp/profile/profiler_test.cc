#include "thresher/profile/profiler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "thresher/base/clock.h"

namespace thresher::profile {
namespace {

class ProfilerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Reset();
    Start();
  }
  void TearDown() override {
    Stop();
    Reset();
  }

  static Record Op(const char* name, int64_t start, int64_t end, Section section = Section::kForward) {
    Record record;
    record.name = InternName(name);
    record.start_ns = start;
    record.end_ns = end;
    record.section = section;
    return record;
  }

  static Record Wall(Kind kind, int64_t start, int64_t end) {
    Record record = Op("model", start, end, Section::kCall);
    record.kind = kind;
    return record;
  }

  static const SummaryRow* Find(const Summary& summary, const std::string& name) {
    for (const SummaryRow& row : summary.rows) {
      if (row.name == name) return &row;
    }
    return nullptr;
  }
};

TEST_F(ProfilerTest, OffRecordsNothingAndStopKeepsWhatThereIs) {
  Add(Op("linear", 0, 10));
  Stop();
  EXPECT_FALSE(Enabled());
  Add(Op("linear", 10, 20));
  EXPECT_EQ(Summarize().records, 1u);
  Start();
  Add(Op("linear", 20, 30));
  EXPECT_EQ(Summarize().records, 2u);
}

TEST_F(ProfilerTest, SumsByNameAndSection) {
  Record record = Op("linear", 1000, 1010);
  record.flops = 100;
  record.bytes = 7;
  Add(record);
  record = Op("linear", 2000, 2030);
  record.flops = 200;
  record.bytes = 5;
  Add(record);
  Add(Op("cat", 3000, 3005, Section::kReshape));
  const Summary summary = Summarize();
  ASSERT_EQ(summary.rows.size(), 2u);
  const SummaryRow* linear = Find(summary, "linear");
  ASSERT_NE(linear, nullptr);
  EXPECT_EQ(linear->count, 2u);
  EXPECT_EQ(linear->min_ns, 10);
  EXPECT_EQ(linear->max_ns, 30);
  EXPECT_EQ(linear->total_ns, 40);
  EXPECT_EQ(linear->median_ns, 10);
  EXPECT_EQ(linear->flops, 300);
  EXPECT_EQ(linear->bytes, 12);
  EXPECT_EQ(linear->section, Section::kForward);
  const SummaryRow* cat = Find(summary, "cat");
  ASSERT_NE(cat, nullptr);
  EXPECT_EQ(cat->section, Section::kReshape);
  EXPECT_LT(cat->flops, 0) << "not modelled";
}

TEST_F(ProfilerTest, OneUnmodelledRecordMakesTheSumUnmodelled) {
  Record record = Op("linear", 0, 1);
  record.flops = 5;
  Add(record);
  Add(Op("linear", 1, 2));
  Add(record);
  EXPECT_LT(Find(Summarize(), "linear")->flops, 0);
}

TEST_F(ProfilerTest, ReadingDoesNotEraseAndResetDoes) {
  Add(Op("linear", 0, 10));
  EXPECT_EQ(Summarize().records, 1u);
  EXPECT_EQ(Records().size(), 1u);
  EXPECT_EQ(Summarize().records, 1u);
  EXPECT_EQ(Records().size(), 1u);
  Reset();
  EXPECT_EQ(Summarize().records, 0u);
  EXPECT_TRUE(Summarize().rows.empty());
  EXPECT_TRUE(Records().empty());
}

TEST_F(ProfilerTest, GapClosesTheSumToTheWallClock) {
  Add(Op("linear", 100, 130));
  Add(Op("alloc output", 140, 145, Section::kAlloc));
  Add(Wall(Kind::kExecution, 100, 150));
  Add(Wall(Kind::kCall, 90, 190));
  const Summary summary = Summarize();
  ASSERT_EQ(summary.phases.size(), 1u);
  const PhaseTotals& totals = summary.phases[0];
  EXPECT_EQ(totals.calls, 1u);
  EXPECT_EQ(totals.executions, 1u);
  EXPECT_EQ(totals.wall_ns, 100) << "the execution lies inside the call";
  EXPECT_EQ(totals.rows_ns, 35);
  EXPECT_EQ(totals.gap_ns, 65);
}

TEST_F(ProfilerTest, WallClockTakesTheOutermostIntervals) {
  // Two calls, the second with another call and two executions inside; then an execution that no call surrounds.
  Add(Wall(Kind::kExecution, 0, 10));
  Add(Wall(Kind::kCall, 0, 20));
  Add(Wall(Kind::kExecution, 32, 35));
  Add(Wall(Kind::kExecution, 36, 39));
  Add(Wall(Kind::kCall, 31, 40));
  Add(Wall(Kind::kCall, 30, 50));
  Add(Wall(Kind::kExecution, 60, 67));
  EXPECT_EQ(Summarize().phases[0].wall_ns, 20 + 20 + 7);
}

TEST_F(ProfilerTest, WallClockOfManyCallsStaysExact) {
  for (int64_t i = 0; i < 1000; ++i) {
    Add(Wall(Kind::kExecution, i * 100 + 10, i * 100 + 50));
    if (i % 2 == 0) Add(Wall(Kind::kCall, i * 100, i * 100 + 60));
  }
  EXPECT_EQ(Summarize().phases[0].wall_ns, 500 * 60 + 500 * 40);
}

TEST_F(ProfilerTest, AFullRingLosesNothingOfTheSums) {
  Record record = Op("linear", 0, 3);
  PrepareThread();
  constexpr uint64_t kRecords = 300'000;  // several times the default capacity
  for (uint64_t i = 0; i < kRecords; ++i) Add(record);
  const Summary summary = Summarize();
  EXPECT_EQ(summary.records, kRecords);
  EXPECT_EQ(summary.dropped, 0u);
  EXPECT_EQ(Dropped(), 0u);
  EXPECT_EQ(Find(summary, "linear")->count, kRecords);
  EXPECT_EQ(Find(summary, "linear")->total_ns, static_cast<int64_t>(kRecords) * 3);
  EXPECT_EQ(summary.overwritten + Records().size(), kRecords);
  EXPECT_GT(summary.overwritten, 0u);
}

TEST_F(ProfilerTest, RecordsKeepOrderNamesAndThread) {
  for (int64_t i = 0; i < 100; ++i) {
    Record record = Op("softmax", i, i + 1);
    record.detail = InternName("[2, 3]");
    record.execution = 5;
    Add(record);
  }
  const std::vector<NamedRecord> records = Records();
  ASSERT_EQ(records.size(), 100u);
  for (int64_t i = 0; i < 100; ++i) {
    const NamedRecord& named = records[static_cast<size_t>(i)];
    EXPECT_EQ(named.record.start_ns, i);
    EXPECT_EQ(named.name, "softmax");
    EXPECT_EQ(named.detail, "[2, 3]");
    EXPECT_EQ(named.record.execution, 5u);
    EXPECT_EQ(named.record.thread, static_cast<uint32_t>(gettid()));
  }
}

TEST_F(ProfilerTest, ThreadsRecordWhileOthersRead) {
  constexpr int kThreads = 3;
  constexpr int kEach = 100'000;
  const uint32_t name = InternName("add");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([name] {
      Record record;
      record.name = name;
      record.end_ns = 2;
      for (int i = 0; i < kEach; ++i) Add(record);
    });
  }
  uint64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    const uint64_t now = Summarize().records;
    EXPECT_GE(now, last);
    last = now;
    for (const NamedRecord& named : Records()) ASSERT_EQ(named.name, "add");
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Find(Summarize(), "add")->count, static_cast<uint64_t>(kThreads) * kEach);
}

TEST_F(ProfilerTest, ManyShortThreadsShareFewRings) {
  for (int i = 0; i < 600; ++i) std::thread([] { Add(Op("add", 0, 1)); }).join();
  EXPECT_EQ(Summarize().records, 600u);
  EXPECT_EQ(Dropped(), 0u);
}

TEST_F(ProfilerTest, IntervalsFromOutside) {
  ASSERT_TRUE(AddInterval("alloc", "output", 10, 20).ok());
  ASSERT_TRUE(AddInterval("call", "model", 0, 100).ok());
  const Summary summary = Summarize();
  EXPECT_EQ(Find(summary, "output")->section, Section::kAlloc);
  EXPECT_EQ(summary.phases[0].wall_ns, 100);
  EXPECT_EQ(AddInterval("forwards", "x", 0, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(AddInterval("forward", "x", 2, 1).code(), Code::kInvalidArgument);
}

TEST_F(ProfilerTest, AForkedChildStartsEmptyAndCanRecord) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  Add(Op("linear", 0, 10));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool empty = Summarize().records == 0;
    Add(Op("linear", 0, 10));
    const bool recorded = Summarize().records == 1 && Records()[0].record.thread == static_cast<uint32_t>(gettid());
    _exit(empty && recorded ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(Summarize().records, 1u);
}

TEST_F(ProfilerTest, StartsFromTheEnvironment) {
  Stop();
  setenv("THRESHER_PROFILE", "ON", 1);
  EXPECT_TRUE(StartFromEnvironment().ok());
  EXPECT_TRUE(Enabled());
  setenv("THRESHER_PROFILE", "perhaps", 1);
  EXPECT_EQ(StartFromEnvironment().code(), Code::kInvalidArgument);
  unsetenv("THRESHER_PROFILE");
}

TEST(Histogram, MedianIsWithinOnePercent) {
  for (const int64_t centre : {int64_t{0}, int64_t{1}, int64_t{127}, int64_t{128}, int64_t{1000}, int64_t{123'456},
                               int64_t{7'000'000}, int64_t{60'000'000'000}}) {
    Histogram histogram;
    for (int i = 0; i < 10; ++i) histogram.Add(0);
    histogram.Add(centre);
    for (int i = 0; i < 10; ++i) histogram.Add(int64_t{1} << 60);  // beyond the last step
    EXPECT_NEAR(static_cast<double>(histogram.Median()), static_cast<double>(centre),
                0.01 * static_cast<double>(centre));
  }
  EXPECT_EQ(Histogram().Median(), 0);
}

TEST(Events, NamesAndUnknownNumbers) {
  EXPECT_EQ(EventName(0), "thresherCompileGraph");
  EXPECT_EQ(EventName(kGraphExecutionEvent), "thresherGraphExecution");
  EXPECT_EQ(EventName(kNodeComputeEvent), "thresherNodeCompute");
  EXPECT_EQ(EventName(kCallEvent), "thresherCall");
  EXPECT_EQ(EventName(4711), "Unknown event 4711");
  for (const Event& event : kEvents) EXPECT_FALSE(event.name.empty() || event.doc.empty());
}

}  // namespace
}  // namespace thresher::profile
