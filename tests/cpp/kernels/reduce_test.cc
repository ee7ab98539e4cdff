#include "thresher/kernels/reduce.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/tensor_testing.h"

namespace thresher::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool};

Dims KeptShape(const Dims& shape, uint32_t dims_mask) {
  Dims kept;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (((dims_mask >> d) & 1u) == 0) kept.push_back(shape[d]);
  }
  return kept;
}

void Check(ReduceOp op, Tensor& x, const Dims& shape, uint32_t dims_mask, double relative, double absolute) {
  Tensor want(x.view.dtype, KeptShape(shape, dims_mask));
  ReduceReference(op, x.view, dims_mask, want.view);
  Tensor got(x.view.dtype, KeptShape(shape, dims_mask));
  for (const int parts : kPartCounts) {
    got.Clear();
    for (int part = 0; part < parts; ++part) Reduce(op, x.view, dims_mask, got.view, part, parts);
    ASSERT_TRUE(Same(got, want, relative, absolute)) << Name(op) << " " << Name(x.view.dtype) << " of "
                                                     << ToString(shape) << " over " << dims_mask << " in " << parts;
  }
}

TEST(Reduce, MatchesReferenceOverEverySetOfDimensions) {
  struct Case {
    Dims shape;
    Layout layout;
  };
  const std::vector<Case> cases = {
      {{}, {}},
      {{3, 5, 67}, {}},
      {{3, 5, 67}, {.offset = 1}},
      {{3, 5, 67}, {.order = {2, 0, 1}}},
      {{3, 5, 67}, {.order = {0, 2, 1}}},
      {{3, 5, 67}, {.step = 2}},
      {{3, 5, 67}, {.broadcast = 0b010}},
      {{3, 5, 67}, {.broadcast = 0b100}},
      {{2, 70, 1, 300}, {}},
      {{4, 3, 2, 5}, {.order = {3, 1, 2, 0}}},
      {{1, 9, 1}, {}},
  };
  std::mt19937 random(1);
  ForEachIsa([&] {
    for (const Case& c : cases) {
      for (const DType dtype : kTypes) {
        Tensor x(dtype, c.shape, c.layout);
        FillRandom(x, random, /*corners=*/false);
        for (const ReduceOp op : AllReduceOps()) {
          if (!Supports(op, dtype)) continue;
          for (uint32_t mask = 0; mask < (1u << c.shape.size()); ++mask) {
            const bool exact = op == ReduceOp::kMax || op == ReduceOp::kMin;
            Check(op, x, c.shape, mask, exact ? 0 : 1e-6, exact ? 0 : 1e-4);
          }
        }
      }
    }
  });
}

TEST(Reduce, EveryRemainder) {
  std::mt19937 random(2);
  ForEachIsa([&] {
    for (int64_t n = 1; n <= 70; ++n) {
      Tensor x(DType::kF32, {3, n});
      FillRandom(x, random, /*corners=*/false);
      for (const ReduceOp op : AllReduceOps()) {
        for (const uint32_t mask : {1u, 2u, 3u}) Check(op, x, {3, n}, mask, 1e-6, 1e-5);
      }
    }
  });
}

TEST(Reduce, NanAndInfinityAnywhere) {
  using Limits = std::numeric_limits<float>;
  ForEachIsa([&] {
    for (const float special : {Limits::quiet_NaN(), Limits::infinity(), -Limits::infinity()}) {
      for (int64_t at = 0; at < 67; ++at) {
        Tensor x(DType::kF32, {67, 6});
        for (int64_t i = 0; i < 67 * 6; ++i) x.memory<float>()[i] = static_cast<float>(i % 13);
        for (int64_t column : {0, 4}) x.memory<float>()[at * 6 + column] = special;
        Tensor flat(DType::kF32, {1, 67});
        for (int64_t i = 0; i < 67; ++i) flat.memory<float>()[i] = i == at ? special : static_cast<float>(i);
        for (const ReduceOp op : AllReduceOps()) {
          Check(op, x, {67, 6}, 1, 1e-6, 0);
          Check(op, x, {67, 6}, 2, 1e-6, 0);
          Check(op, flat, {1, 67}, 2, 1e-6, 0);
        }
      }
    }
  });
}

// f32 accumulation in one chain would be off in the third digit; the blocks' chains lose less than a millionth.
TEST(Reduce, LongSumsKeepTheirDigits) {
  constexpr int64_t kRows = 1 << 18;
  ForEachIsa([&] {
    for (const bool columns : {false, true}) {
      Tensor x(DType::kF32, {kRows, 4}, columns ? Layout{} : Layout{.order = {1, 0}});
      std::fill_n(x.memory<float>(), x.elements(), 0.1f);
      Check(ReduceOp::kSum, x, {kRows, 4}, 1, 1e-6, 0);
      Check(ReduceOp::kMean, x, {kRows, 4}, 1, 1e-6, 0);
      Check(ReduceOp::kSum, x, {kRows, 4}, 3, 1e-6, 0);
    }
  });
}

TEST(Reduce, OverNothing) {
  Tensor x(DType::kF32, {2, 0, 3});
  Tensor out(DType::kF32, {2, 3});
  const auto result = [&](ReduceOp op) {
    Reduce(op, x.view, 2, out.view);
    return out.memory<float>()[5];
  };
  EXPECT_EQ(result(ReduceOp::kSum), 0.0f);
  EXPECT_TRUE(std::isnan(result(ReduceOp::kMean)));
  EXPECT_EQ(result(ReduceOp::kMax), -std::numeric_limits<float>::infinity());
  Tensor none(DType::kF32, {0, 3});
  Reduce(ReduceOp::kSum, x.view, 1, none.view);  // no outputs
  EXPECT_TRUE(none.GuardIntact());
}

TEST(Reduce, NamesParse) {
  for (const ReduceOp op : AllReduceOps()) EXPECT_EQ(ParseReduce(Name(op)), op);
  EXPECT_EQ(ParseReduce("max"), std::nullopt);
}

}  // namespace
}  // namespace thresher::kernels
