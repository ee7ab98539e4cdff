// Where the engine's own constants lie. A load of a vector that crosses a line costs two, and a tile of bias is sixteen
// of them.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/base/arena.h"
#include "thresher/plan/builder.h"
#include "thresher/run/compile.h"

namespace thresher {
namespace {

// Constants of a plan that neither belong to the caller nor are packed; expects each to begin a line.
int CountAligned(const Plan& plan) {
  int count = 0;
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.kind != Buffer::Kind::kConstant || buffer.data == nullptr) continue;
    if (buffer.origin != Buffer::Origin::kEngine) continue;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % kAlignment, 0u) << buffer.bytes << " bytes";
    ++count;
  }
  return count;
}

TEST(Constants, OfTheEngineBeginLines) {
  constexpr int64_t kWidth = 40;
  const std::vector<float> w = RandomFloats(kWidth * kWidth, 1), b = RandomFloats(kWidth, 2);
  Graph g;
  ValueId x = g.AddInput("x", DType::kF32, {5, kWidth});
  const ValueId weight = AddF32(g, "w", {kWidth, kWidth}, w);
  // More than a few, since by chance one may be where it should be.
  constexpr int kLayers = 12;
  for (int i = 0; i < kLayers; ++i) {
    // One bias as it came, one that folding computes.
    ValueId bias = AddF32(g, "b", {kWidth}, b);
    if (i % 2 == 0) bias = Must(g.Add1("neg", {bias}));
    x = Must(g.Add1("linear", {x, weight, bias}));
  }
  g.SetOutputs({x});
  WeightStore weights;
  const CompiledPlan compiled = Must(CompilePlan(g, weights, CompileOptions{}));
  EXPECT_GE(CountAligned(*compiled.plan), kLayers);
}

// Weights of a depthwise convolution, which its lowering turns.
TEST(Constants, OfLoweringBeginLines) {
  constexpr int kLayers = 8;
  Graph g;
  const std::vector<float> w = RandomFloats(24 * 9, 1);
  ValueId x = g.AddInput("x", DType::kF32, {1, 9, 9, 24});
  const ValueId weight = AddF32(g, "w", {24, 1, 3, 3}, w);
  for (int i = 0; i < kLayers; ++i) {
    x = Must(g.Add1("convolution", {x, weight}, {{"padding", Dims{1, 1, 1, 1}}, {"groups", int64_t{24}}}));
  }
  g.SetOutputs({x});
  WeightStore weights;
  const auto plan = Must(BuildPlan(g, weights, {}));
  EXPECT_GE(CountAligned(*plan), kLayers);
}

}  // namespace
}  // namespace thresher
