#include "thresher/kernels/peaks.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "kernels/for_each_isa.h"
#include "thresher/base/cpu.h"
#include "thresher/base/topology.h"

namespace thresher::kernels {
namespace {

PeaksOptions Quick() {
  PeaksOptions options;
  options.rounds = 3;
  options.sample_ns = 200'000;
  options.most_dram_bytes = 16 << 20;
  return options;
}

void ExpectSound(const Rate& rate) {
  EXPECT_GT(rate.min, 0);
  EXPECT_GE(rate.median, rate.min);
  EXPECT_GE(rate.max, rate.median);
  EXPECT_LT(rate.max, 1e7);  // a loop that the compiler has removed runs faster than any machine
}

TEST(Peaks, EveryInstructionSetHasRoofs) {
  ForEachIsa([] {
    Result<Peaks> measured = MeasurePeaks(Quick(), [](int, int) {});
    ASSERT_TRUE(measured.ok()) << measured.status().message();
    const Peaks& peaks = measured.value();
    EXPECT_FALSE(peaks.target.empty());
    EXPECT_FALSE(peaks.int8_by.empty());
    ASSERT_EQ(peaks.by_threads.size(), 1u);
    const ThreadPeaks& one = peaks.by_threads[0];
    EXPECT_EQ(one.num_threads, 1);
    EXPECT_EQ(one.rounds, 3);
    for (const Rate& rate :
         {one.fp32, one.int8, one.l1_read, one.l2_read, one.l3_read, one.dram_read, one.dram_write, one.dram_copy}) {
      ExpectSound(rate);
    }
    if (one.bf16) ExpectSound(*one.bf16);
    EXPECT_GT(one.l1_read.max, 0.8 * one.dram_read.median);
    EXPECT_LT(one.l1_buffer, Caches().l1);
    EXPECT_LT(one.l2_buffer, Caches().l2);
    EXPECT_GT(one.l3_buffer, Caches().l2);
  });
}

TEST(Peaks, SeveralThreadsAndProgress) {
  PeaksOptions options = Quick();
  options.num_threads = {1, 2};
  int last = -1;
  int end = 0;
  Result<Peaks> measured = MeasurePeaks(options, [&](int done, int total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    end = total;
  });
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_EQ(last, end);
  ASSERT_EQ(measured.value().by_threads.size(), 2u);
  EXPECT_EQ(measured.value().by_threads[1].num_threads, 2);
  ExpectSound(measured.value().by_threads[1].fp32);
  EXPECT_GT(measured.value().by_threads[1].dram_buffer, 0);
}

TEST(Peaks, NodesAreMeasuredByThemselves) {
  PeaksOptions options = Quick();
  const std::vector<int> cpus = AffinityCpus();
  ASSERT_FALSE(cpus.empty());
  options.nodes = {{3, {cpus.front()}}, {5, {cpus.front(), cpus.back()}}};
  Result<Peaks> measured = MeasurePeaks(options, [](int done, int total) { EXPECT_LE(done, total); });
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  ASSERT_EQ(measured.value().by_threads.size(), 1u);
  ASSERT_EQ(measured.value().by_node.size(), 2u);
  for (const NodePeaks& node : measured.value().by_node) {
    EXPECT_EQ(node.num_threads, node.node == 3 ? 1 : 2);
    ExpectSound(node.dram_read);
  }
  EXPECT_EQ(AffinityCpus(), cpus);
  options.nodes = {{0, {}}};
  EXPECT_EQ(MeasurePeaks(options, [](int, int) {}).status().code(), Code::kInvalidArgument);
}

TEST(Peaks, OneCpuOfEachFastCoreOfEachNode) {
  Topology topology;
  topology.cores = {{{0, 4}, 0, 0, 0, false}, {{1, 5}, 0, 0, 0, false}, {{2, 6}, 1, 1, 1, false}, {{3}, 1, 1, 1, true}};
  const std::vector<NodeCpus> nodes = NodesToMeasure(topology);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(nodes[1].node, 1);
  EXPECT_EQ(nodes[1].cpus, std::vector<int>{2});
  topology.cores.resize(2);
  EXPECT_TRUE(NodesToMeasure(topology).empty());
}

TEST(Peaks, TheCallersThreadMayRunWhereItCouldBefore) {
  const auto cores = [] {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;
  };
  const int before = cores();
  PeaksOptions options = Quick();
  options.num_threads = {std::clamp(before, 1, 8)};
  ASSERT_TRUE(MeasurePeaks(options, [](int, int) {}).ok());
  EXPECT_EQ(cores(), before);
  EXPECT_THROW((void)MeasurePeaks(options,
                                  [](int done, int) {
                                    if (done > 2) throw std::runtime_error("enough");
                                  }),
               std::runtime_error);
  EXPECT_EQ(cores(), before);
}

TEST(Peaks, StopsAtItsBudgetButNotBeforeTheThirdRound) {
  PeaksOptions options = Quick();
  options.rounds = 1000;
  options.budget_ns = 1;
  Result<Peaks> measured = MeasurePeaks(options, [](int, int) {});
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_EQ(measured.value().by_threads[0].rounds, 3);
}

TEST(Peaks, ProgressMayEndIt) {
  const auto stop = [](int done, int) {
    if (done > 2) throw std::runtime_error("enough");
  };
  EXPECT_THROW((void)MeasurePeaks(Quick(), stop), std::runtime_error);
}

TEST(Peaks, WrongOptionsAreErrors) {
  for (const std::vector<int>& threads : {std::vector<int>{}, std::vector<int>{0}, std::vector<int>{2000}}) {
    PeaksOptions options = Quick();
    options.num_threads = threads;
    EXPECT_EQ(MeasurePeaks(options, [](int, int) {}).status().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace thresher::kernels
