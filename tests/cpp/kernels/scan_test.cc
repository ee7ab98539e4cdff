#include "thresher/kernels/scan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/tensor_testing.h"

namespace thresher::kernels {
namespace {

template <class T>
void Check(DType dtype, const Dims& shape, const Layout& layout) {
  Tensor x(dtype, shape, layout);
  for (size_t i = 0; i < x.elements(); ++i) x.memory<T>()[i] = static_cast<T>(static_cast<int>(i * 7 % 23) - 11);
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    Tensor want(dtype, shape);
    std::vector<int64_t> at(shape.size(), 0);
    for (int64_t i = 0; i < x.view.size(); ++i) {
      int64_t from = 0, to = 0, rest = i;
      for (int d = x.view.rank - 1; d >= 0; --d) {
        from += rest % shape[static_cast<size_t>(d)] * x.view.strides[d];
        at[static_cast<size_t>(d)] = rest % shape[static_cast<size_t>(d)];
        to += at[static_cast<size_t>(d)] * want.view.strides[d];
        rest /= shape[static_cast<size_t>(d)];
      }
      const T before = at[static_cast<size_t>(dim)] == 0 ? T{0} : want.memory<T>()[to - want.view.strides[dim]];
      want.memory<T>()[to] = static_cast<T>(before + x.memory<T>()[from]);
    }
    for (const int parts : kPartCounts) {
      Tensor out(dtype, shape);
      out.Clear();
      for (int part = 0; part < parts; ++part) CumSum(x.view, dim, out.view, part, parts);
      for (size_t i = 0; i < out.elements(); ++i) {
        ASSERT_EQ(out.memory<T>()[i], want.memory<T>()[i]) << "dim " << dim << " element " << i << " parts " << parts;
      }
      EXPECT_TRUE(out.GuardIntact());
    }
  }
}

TEST(CumSum, EveryDimensionLayoutAndType) {
  const std::vector<Layout> layouts = {{}, {{2, 0, 1}}, {{}, 3}, {{}, 1, 0b010}, {{}, 1, 0, 1}};
  for (const Layout& layout : layouts) {
    Check<float>(DType::kF32, {3, 5, 4}, layout);
    Check<int64_t>(DType::kI64, {3, 5, 4}, layout);
    Check<int32_t>(DType::kI32, {3, 5, 4}, layout);
  }
  Check<float>(DType::kF32, {1}, {});
  Check<int64_t>(DType::kI64, {0, 3}, {});
}

TEST(CumSum, ScalarIsItself) {
  Tensor x(DType::kF32, {}), out(DType::kF32, {});
  *x.memory<float>() = 2.5F;
  CumSum(x.view, 0, out.view);
  EXPECT_EQ(*out.memory<float>(), 2.5F);
}

TEST(CumSum, FloatsAreSummedInDouble) {
  constexpr int64_t kCount = 1 << 16;
  Tensor x(DType::kF32, {kCount}), out(DType::kF32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) x.memory<float>()[i] = 0.1F;
  CumSum(x.view, 0, out.view);
  EXPECT_EQ(out.memory<float>()[kCount - 1], static_cast<float>(static_cast<double>(0.1F) * kCount));
}

TEST(CumSum, IntegersWrapAround) {
  Tensor x(DType::kI32, {2}), out(DType::kI32, {2});
  x.memory<int32_t>()[0] = std::numeric_limits<int32_t>::max();
  x.memory<int32_t>()[1] = 1;
  CumSum(x.view, 0, out.view);
  EXPECT_EQ(out.memory<int32_t>()[1], std::numeric_limits<int32_t>::min());
  EXPECT_TRUE(SupportsCumSum(DType::kI64));
  EXPECT_FALSE(SupportsCumSum(DType::kBool));
}

}  // namespace
}  // namespace thresher::kernels
