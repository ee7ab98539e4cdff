// Elements of 16 bits that are put into another order before they become floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/base/half.h"

namespace thresher {
namespace {

constexpr int64_t kBatch = 2, kChannels = 40, kLength = 37, kOutputs = 24;

struct Made {
  std::vector<float> out;
  std::vector<std::string> steps;  // names, of a copy with the type that it moves
};

// A convolution of x in planes, [N, C, L]. `kept`: what x is as floats is a result as well, and so is moved as such.
Made Convolve(DType dtype, bool kept) {
  Graph g;
  const Dims shape = {kBatch, kChannels, kLength};
  const ValueId x = g.AddInput("x", dtype, shape);
  const ValueId wide = dtype == DType::kF32 ? x : Must(g.Add1("cast", {x}, {{"dtype", std::string("f32")}}));
  const ValueId lines = Must(g.Add1("permute", {wide}, {{"dims", std::vector<int64_t>{0, 2, 1}}}));
  const ValueId weight = AddF32(g, "w", {kOutputs, kChannels, 3}, RandomFloats(kOutputs * kChannels * 3, 3, 0.1f));
  const Attrs attrs = {{"padding", std::vector<int64_t>{1}}, {"precision", std::string("bf16")}};
  const ValueId y = Must(g.Add1("convolution", {lines, weight}, attrs));
  std::vector<ValueId> results = {y};
  if (kept) results.push_back(Must(g.Add1("neg", {wide})));
  g.SetOutputs(results);
  PlanOptions options;
  options.num_threads = 2;
  WeightStore weights;
  Session session(Must(BuildPlan(g, weights, options)));
  Made made;
  for (const Step& step : session.plan().steps) {
    const std::string type = step.kernel == KernelId::kCopy ? " " + std::string(Name(step.operands[0].view.dtype)) : "";
    made.steps.push_back(step.name + type);
  }
  // The same numbers in both types.
  std::vector<float> numbers = RandomFloats(kBatch * kChannels * kLength, 1), others(numbers.size());
  std::vector<BF16> narrow;
  for (float& number : numbers) {
    narrow.push_back(ToBF16(number));
    number = ToFloat(narrow.back());
  }
  void* const data = dtype == DType::kF32 ? static_cast<void*>(numbers.data()) : static_cast<void*>(narrow.data());
  made.out.resize(kBatch * kLength * kOutputs);
  std::vector<View> outputs = {MakeView(made.out.data(), DType::kF32, {kBatch, kLength, kOutputs})};
  if (kept) outputs.push_back(MakeView(others.data(), DType::kF32, shape));
  const Status status = session.Run(std::vector<View>{MakeView(data, dtype, shape)}, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  return made;
}

TEST(NarrowCopies, AreMadeBeforeElementsAreWidened) {
  const Made floats = Convolve(DType::kF32, false), narrow = Convolve(DType::kBF16, false),
             kept = Convolve(DType::kBF16, true);
  const auto count = [](const Made& made, const char* name) {
    return std::count(made.steps.begin(), made.steps.end(), name);
  };
  EXPECT_EQ(count(floats, "copy f32"), 1);
  EXPECT_EQ(count(narrow, "copy bf16"), 1);
  EXPECT_EQ(count(narrow, "copy f32"), 0);
  EXPECT_EQ(count(kept, "copy f32"), 1);
  EXPECT_EQ(narrow.out, floats.out);
  EXPECT_EQ(kept.out, floats.out);
}

}  // namespace
}  // namespace thresher
