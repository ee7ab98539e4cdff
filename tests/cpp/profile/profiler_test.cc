#include "thresher/profile/profiler.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "thresher/base/clock.h"
#include "thresher/profile/memory.h"

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

  static uint32_t Place(const char* name, double flops = -1, double bytes = -1) {
    Site site;
    site.name = name;
    site.flops = flops;
    site.bytes = bytes;
    return NumberOf(std::move(site));
  }

  static Record Op(const char* name, int64_t start, int64_t end, Section section = Section::kForward) {
    Record record;
    record.site = Place(name);
    record.start_ns = start;
    record.end_ns = end;
    record.section = section;
    return record;
  }

  static Record Wall(Kind kind, int64_t start, int64_t end) {
    Record record = Op("model", start, end, Section::kCall);
    record.kind = kind;
    record.event = kind == Kind::kCall ? kCallEvent : kGraphExecutionEvent;
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
  record.site = Place("linear", 100, 7);
  Add(record);
  record = Op("linear", 2000, 2030);
  record.site = Place("linear", 200, 5);
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
  record.site = Place("linear", 5);
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

TEST_F(ProfilerTest, RowsThatOverlapMakeTheGapNegative) {
  // Two threads computed at once: rows and gap add up to the wall clock all the same.
  Add(Op("linear", 100, 180));
  Add(Op("softmax", 110, 170));
  Add(Wall(Kind::kCall, 90, 190));
  const PhaseTotals totals = Summarize().phases.at(0);
  EXPECT_EQ(totals.rows_ns, 140);
  EXPECT_EQ(totals.gap_ns, -40);
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
    record.execution = 5;
    Add(record);
  }
  const std::vector<PlacedRecord> records = Records();
  ASSERT_EQ(records.size(), 100u);
  for (int64_t i = 0; i < 100; ++i) {
    const PlacedRecord& placed = records[static_cast<size_t>(i)];
    EXPECT_EQ(placed.record.start_ns, i);
    EXPECT_EQ(placed.site.name, "softmax");
    EXPECT_EQ(placed.record.execution, 5u);
    EXPECT_EQ(placed.record.thread, static_cast<uint32_t>(gettid()));
    EXPECT_EQ(placed.record.lane, records[0].record.lane);
  }
}

TEST_F(ProfilerTest, ThreadsRecordWhileOthersRead) {
  constexpr int kThreads = 3;
  constexpr int kEach = 100'000;
  const uint32_t place = Place("add");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([place] {
      Record record;
      record.site = place;
      record.end_ns = 2;
      for (int i = 0; i < kEach; ++i) Add(record);
    });
  }
  uint64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    const uint64_t now = Summarize().records;
    EXPECT_GE(now, last);
    last = now;
    for (const PlacedRecord& placed : Records()) ASSERT_EQ(placed.site.name, "add");
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

TEST_F(ProfilerTest, ReceiversGetEveryRecordOnceAndInOrder) {
  Add(Op("before", 0, 1));
  std::vector<Record> got;
  std::atomic<int> inside{0};
  Attach(Outlet::kTrace, [&](std::span<const Record> batch) {
    EXPECT_EQ(inside.fetch_add(1), 0) << "never twice at the same time";
    got.insert(got.end(), batch.begin(), batch.end());
    inside.fetch_sub(1);
  });
  constexpr int kThreads = 3;
  constexpr int64_t kEach = 100'000;  // more than a ring holds
  const uint32_t place = Place("add");
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < kEach; ++i) {
        Record record;
        record.site = place;
        record.value = t;
        record.start_ns = record.end_ns = i;
        Add(record);
        if (i % 10'000 == 0) Deliver();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Detach(Outlet::kTrace);
  Add(Op("after", 0, 1));
  Deliver();
  EXPECT_EQ(Lost(Outlet::kTrace), 0u);
  ASSERT_EQ(got.size(), static_cast<size_t>(kThreads * kEach));
  std::vector<int64_t> next(kThreads, 0);
  for (const Record& record : got) {
    ASSERT_EQ(record.site, place);
    ASSERT_EQ(record.start_ns, next[static_cast<size_t>(record.value)]++);
  }
  EXPECT_EQ(Summarize().records, 2u + static_cast<uint64_t>(kThreads * kEach)) << "the sums get them, too";
}

TEST_F(ProfilerTest, ReceiversAloneKeepNoSums) {
  Stop();
  size_t got = 0;
  Attach(Outlet::kTool, [&](std::span<const Record> batch) { got += batch.size(); });
  EXPECT_TRUE(Enabled());
  EXPECT_FALSE(Started());
  Add(Op("linear", 0, 10));
  Detach(Outlet::kTool);
  EXPECT_FALSE(Enabled());
  EXPECT_EQ(got, 1u);
  EXPECT_EQ(Summarize().records, 0u);
}

TEST_F(ProfilerTest, ExternalIdentifiersAreThoseOnTopOfTheThreadsStacks) {
  PushExternalId(IdKind::kOperator, 7);
  PushExternalId(IdKind::kUser, 3);
  PushExternalId(IdKind::kOperator, 8);
  Add(Op("a", 0, 1));
  PopExternalId(IdKind::kOperator);
  Add(Op("b", 1, 2));
  std::thread([] { Add(Op("elsewhere", 0, 1)); }).join();
  ClearExternalIds();
  Add(Op("c", 2, 3));
  PopExternalId(IdKind::kOperator);  // of an empty stack
  Add(Op("d", 3, 4));
  std::map<std::string, std::pair<uint32_t, uint32_t>> ids;
  for (const PlacedRecord& placed : Records()) {
    ids[placed.site.name] = {placed.record.external, placed.record.user};
  }
  EXPECT_EQ(ids["a"], std::pair(8u, 3u));
  EXPECT_EQ(ids["b"], std::pair(7u, 3u));
  EXPECT_EQ(ids["elsewhere"], std::pair(0u, 0u));
  EXPECT_EQ(ids["c"], std::pair(0u, 0u));
  EXPECT_EQ(ids["d"], std::pair(0u, 0u));
}

TEST_F(ProfilerTest, MemoryIsCountedAlwaysAndRecordedWhileOn) {
  const int64_t before = AllocatedBytes();
  int block = 0;
  std::vector<int64_t> seen;
  SetMemoryObserver(
      [](const Record& record, void* data) { static_cast<std::vector<int64_t>*>(data)->push_back(record.value); },
      &seen);
  NoteAllocation(&block, 100);
  EXPECT_EQ(AllocatedBytes(), before + 100);
  Stop();
  NoteRelease(&block, 40);
  SetMemoryObserver(nullptr, nullptr);
  NoteRelease(&block, 60);
  EXPECT_EQ(AllocatedBytes(), before);
  EXPECT_EQ(seen, (std::vector<int64_t>{100, -40}));
  const std::vector<PlacedRecord> records = Records();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].record.kind, Kind::kMemory);
  EXPECT_EQ(records[0].record.event, kAllocationEvent);
  EXPECT_EQ(records[0].record.value, 100);
  EXPECT_EQ(records[0].record.execution, reinterpret_cast<uintptr_t>(&block));
  EXPECT_EQ(records[0].record.correlation, static_cast<uint64_t>(before + 100));
  EXPECT_TRUE(Summarize().phases.empty()) << "memory events are no work";
}

TEST_F(ProfilerTest, AForkedChildHasNoReceiverAndCanAttachItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  std::atomic<size_t> got{0};
  Attach(Outlet::kTool, [&](std::span<const Record> batch) { got += batch.size(); });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    Add(Op("child", 0, 1));
    Deliver();
    if (got != 0) _exit(1);
    size_t own = 0;
    Attach(Outlet::kTool, [&](std::span<const Record> batch) { own += batch.size(); });
    Add(Op("child", 0, 1));
    Detach(Outlet::kTool);
    _exit(own == 1 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  Add(Op("parent", 0, 1));
  Detach(Outlet::kTool);
  EXPECT_EQ(got.load(), 1u);
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

TEST(Histogram, CountsAreOfStepsInOrder) {
  Histogram histogram;
  EXPECT_TRUE(histogram.Counts().empty());
  for (const int64_t ns : {1000000, 5, 1000001, 7, 5}) histogram.Add(ns);
  const std::vector<DurationCount> counts = histogram.Counts();
  ASSERT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts[0].ns, 5);
  EXPECT_EQ(counts[0].count, 2u);
  EXPECT_EQ(counts[1].ns, 7);
  EXPECT_NEAR(static_cast<double>(counts[2].ns), 1e6, 1e4);
  EXPECT_EQ(counts[2].count, 2u);
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
  EXPECT_EQ(EventName(kCompileGraphEvent), "thresherCompileGraph");
  EXPECT_EQ(EventName(kInitGraphEvent), "thresherInitGraph");
  EXPECT_EQ(EventName(kMallocEvent), "thresherMalloc");
  EXPECT_EQ(EventName(kFreeEvent), "thresherFree");
  EXPECT_EQ(EventName(kLaunchSubgraphEvent), "thresherLaunchSubgraph");
  EXPECT_EQ(EventName(kSubgraphExecutionEvent), "thresherSubgraphExecution");
  EXPECT_EQ(EventName(kLaunchKernelsEvent), "thresherLaunchKernels");
  EXPECT_EQ(EventName(kDataConvertEvent), "thresherDataConvert");
  EXPECT_EQ(EventName(kClearCacheEvent), "thresherClearCache");
  EXPECT_EQ(EventName(kKernelEvent), "Kernel");
  EXPECT_EQ(EventName(kMemcpyEvent), "Memcpy");
  EXPECT_EQ(EventName(kMemsetEvent), "Memset");
  EXPECT_EQ(EventName(kAllocationEvent), "Memory (Allocation)");
  EXPECT_EQ(EventName(kReleaseEvent), "Memory (Release)");
  EXPECT_EQ(EventName(kRangeEvent), "thresherRange");
  EXPECT_EQ(EventName(kStepEvent), "thresherStep");
  EXPECT_EQ(EventName(kFallbackEvent), "thresherFallback");
  for (const Event& event : kEvents) EXPECT_FALSE(event.name.empty() || event.doc.empty());
}

}  // namespace
}  // namespace thresher::profile
