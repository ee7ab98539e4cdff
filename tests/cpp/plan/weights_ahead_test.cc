#include "thresher/plan/weights_ahead.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "thresher/base/cpu.h"

namespace thresher {
namespace {

TensorRef OperandIn(int buffer) {
  TensorRef ref;
  ref.buffer = buffer;
  return ref;
}

// Steps without weights, and those with some of these sizes.
Plan PlanOf(const std::vector<size_t>& weights, std::vector<std::byte>& memory) {
  Plan plan;
  plan.buffers.emplace_back();
  for (const size_t bytes : weights) {
    Step step;
    step.operands.push_back(OperandIn(0));
    step.operands.push_back(OperandIn(-1));  // an operand that is left out
    if (bytes > 0) {
      Buffer buffer;
      buffer.kind = Buffer::Kind::kConstant;
      buffer.origin = Buffer::Origin::kPacked;
      buffer.data = memory.data() + plan.buffers.size();
      buffer.bytes = static_cast<int64_t>(bytes);
      step.operands.push_back(OperandIn(static_cast<int>(plan.buffers.size())));
      plan.buffers.push_back(buffer);
    }
    plan.steps.push_back(step);
  }
  return plan;
}

TEST(WeightsAhead, ThreadsBeginWithTheirSharesOfTheNextProduct) {
  std::vector<std::byte> memory(16);
  Plan plan = PlanOf({0, 4096, 0, 0, 1000, 0}, memory);
  plan.num_threads = 4;
  const WeightsAhead ahead(plan);
  for (const size_t step : {0, 1, 2, 3, 4, 5}) {
    for (const int thread : {0, 1, 2, 3, 4}) {
      const std::span<const std::byte> bytes = ahead.Behind(step, thread);
      if (step >= 4 || thread == 4) {
        EXPECT_TRUE(bytes.empty());
        continue;
      }
      const size_t whole = step == 0 ? 4096 : 1000;
      const size_t first = whole / 4 * static_cast<size_t>(thread) / 64 * 64;
      EXPECT_EQ(bytes.data(), memory.data() + (step == 0 ? 1 : 2) + first);
      EXPECT_EQ(bytes.size(), whole - first);
    }
  }
}

TEST(WeightsAhead, MostOfTheCacheIsLeft) {
  std::vector<std::byte> memory(16);
  const auto cache = static_cast<size_t>(Caches().l2);
  const Plan plan = PlanOf({0, 8 * cache}, memory);
  EXPECT_LE(WeightsAhead(plan).Behind(0, 0).size(), cache / 2);
  EXPECT_GE(WeightsAhead(plan).Behind(0, 0).size(), cache / 8);
}

TEST(WeightsAhead, WeightsThatDataChoosesAreNone) {
  std::vector<std::byte> memory(16);
  Plan plan = PlanOf({0, 4096, 0, 512}, memory);
  plan.steps[1].data_decides = true;
  EXPECT_EQ(WeightsAhead(plan).Behind(0, 0).size(), 512U);
}

// A plan of two steps, the second one a product of m rows and n columns in `parts` parts.
Plan PlanOfProduct(int64_t m, int64_t n, int parts, int threads, std::vector<std::byte>& memory) {
  Plan plan = PlanOf({0, memory.size() - 2}, memory);
  plan.num_threads = threads;
  plan.products.emplace_back();
  plan.products[0].key.m = m;
  plan.products[0].key.n = n;
  plan.steps[1].product = 0;
  plan.steps[1].parts = parts;
  return plan;
}

TEST(WeightsAhead, ThreadsThatShareRowsBeginWithTheSameWeights) {
  std::vector<std::byte> memory(64 * 1024 + 2);
  const auto first = [&](int64_t m, int64_t n, int parts, int thread) {
    const Plan plan = PlanOfProduct(m, n, parts, 2, memory);
    const std::span<const std::byte> bytes = WeightsAhead(plan).Behind(0, thread);
    return bytes.empty() ? int64_t{-1} : bytes.data() - memory.data() - 1;
  };
  EXPECT_EQ(first(4096, 512, 2, 0), 0);  // by rows
  EXPECT_EQ(first(4096, 512, 2, 1), 0);
  EXPECT_EQ(first(64, 512, 2, 0), 0);  // by panels
  EXPECT_EQ(first(64, 512, 2, 1), 32 * 1024);
  EXPECT_EQ(first(64, 512, 1, 0), 0);
  EXPECT_EQ(first(64, 512, 1, 1), -1);  // the other thread has none
  EXPECT_EQ(first(64, 512, 8, 1), 32 * 1024);
}

TEST(WeightsAhead, PartsOfAThreadShareWhatItFetches) {
  std::vector<std::byte> memory(64 * 1024 + 2);
  const Plan plan = PlanOfProduct(64, 512, 2, 2, memory);
  const WeightsAhead ahead(plan);
  for (const int parts : {1, 2, 3, 8}) {
    for (const int thread : {0, 1}) {
      const std::span<const std::byte> all = ahead.Behind(0, thread);
      size_t fetched = 0;
      for (int part = 0; part < parts; ++part) {
        const std::span<const std::byte> own = ahead.During(0, part, parts, thread);
        if (own.empty()) continue;
        EXPECT_EQ(own.data(), all.data() + fetched);
        fetched += own.size();
      }
      EXPECT_EQ(fetched, thread < parts ? all.size() : 0U) << parts << " parts, thread " << thread;
    }
  }
  EXPECT_TRUE(ahead.During(0, 0, 8, 1).empty());  // of another thread's parts
  EXPECT_TRUE(ahead.During(1, 0, 1, 0).empty());  // behind the last product
}

}  // namespace
}  // namespace thresher
