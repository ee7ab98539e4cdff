// The device's copies and casts, on the emulator, against the CPU's.
#include "thresher/cuda/copy_kernel.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/tensor_testing.h"
#include "thresher/base/half.h"
#include "thresher/kernels/copy.h"

namespace thresher::cuda::testing {
namespace {

using kernels::FillRandom;
using kernels::Layout;
using kernels::Tensor;

struct Case {
  Dims shape;
  Layout from, to;
};

TEST(CopyKernel, CopiesEveryTypeBetweenAnyStrides) {
  const Case cases[] = {
      {{1}, {}, {}},
      {{}, {}, {}},
      {{1025}, {}, {}},
      {{3000}, {.step = 2}, {}},
      {{40, 33}, {.order = {1, 0}}, {}},
      {{40, 33}, {}, {.order = {1, 0}}},
      {{7, 130}, {.broadcast = 1}, {}},
      {{7, 130}, {.broadcast = 3}, {.step = 2}},
      {{3, 4, 5, 30}, {.order = {2, 0, 3, 1}}, {.order = {1, 0, 2, 3}}},
  };
  std::mt19937 random(1);
  for (const Case& c : cases) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kI32, DType::kBool}) {
      SCOPED_TRACE(ToString(c.shape) + " " + std::string(Name(dtype)));
      Tensor from(dtype, c.shape, c.from);
      FillRandom(from, random);
      Tensor want(dtype, c.shape, c.to);
      kernels::Copy(from.view, want.view);
      for (const Order order : {Order::kForward, Order::kBackward}) {
        Tensor got(dtype, c.shape, c.to);
        ASSERT_EQ(LaunchCopy(Launcher{order}, from.view, got.view), "");
        EXPECT_TRUE(got.GuardIntact());
        EXPECT_EQ(std::memcmp(got.memory<std::byte>(), want.memory<std::byte>(), got.num_bytes()), 0);
      }
    }
  }
}

TEST(CopyKernel, RoundsToBf16AsTheCpuDoes) {
  std::vector<float> x;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 0x6789)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (uint32_t upper = 0; upper < 0x10000u; upper += 37) {  // ties, and their neighbours
    for (const uint32_t lower : {0x7fffu, 0x8000u, 0x8001u}) x.push_back(std::bit_cast<float>(upper << 16 | lower));
  }
  const Dims shape = {static_cast<int64_t>(x.size())};
  std::vector<BF16> rounded(x.size());
  std::vector<float> wide(x.size());
  const View from = MakeView(x.data(), DType::kF32, shape);
  const View to = MakeView(rounded.data(), DType::kBF16, shape);
  ASSERT_TRUE(CanCast(from.dtype, to.dtype) && CanCast(to.dtype, from.dtype));
  ASSERT_EQ(LaunchCast(Launcher{}, from, to), "");
  ASSERT_EQ(LaunchCast(Launcher{}, to, MakeView(wide.data(), DType::kF32, shape)), "");
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(rounded[i].bits, ToBF16(x[i]).bits) << x[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(rounded[i].bits) << 16);
  }
}

TEST(CopyKernel, OtherCastsAreRefused) {
  EXPECT_FALSE(CanCast(DType::kF32, DType::kF16));
  EXPECT_FALSE(CanCast(DType::kI64, DType::kF32));
}

}  // namespace
}  // namespace thresher::cuda::testing
