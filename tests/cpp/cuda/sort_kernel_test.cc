// The device's sort, on the emulator, against the CPU's.
#include "thresher/cuda/sort_kernel.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "thresher/kernels/sort.h"

namespace thresher::cuda::testing {
namespace {

// Lines along `dim` of [outer, size, inner], turned if `strided`; of the results the first `wanted` elements.
template <class T>
void Check(DType dtype, int64_t outer, int64_t size, int64_t inner, int64_t wanted, bool descending, bool strided) {
  SCOPED_TRACE(std::string(Name(dtype)) + " [" + std::to_string(outer) + ", " + std::to_string(size) + ", " +
               std::to_string(inner) + "]" + (descending ? ", descending" : "") + (strided ? ", strided" : ""));
  std::mt19937 generator(static_cast<uint32_t>(size));
  std::vector<T> numbers(static_cast<size_t>(outer * size * inner));
  for (T& number : numbers) {
    number = static_cast<T>(static_cast<int>(generator() % 23) - 11);  // many are equal
    if constexpr (std::is_same_v<T, float>) {
      if (number == 7) number = std::numeric_limits<float>::quiet_NaN();
      if (number == 8) number = -std::numeric_limits<float>::infinity();
      if (number == 9) number = -0.0f;
    }
    if constexpr (std::is_same_v<T, int64_t>) number *= int64_t{1} << 40;
    if constexpr (std::is_same_v<T, uint8_t>) number &= 1;
  }
  View x = MakeView(numbers.data(), dtype, {outer, size, inner});
  if (strided) {
    x.strides[0] = 1;
    x.strides[1] = outer * inner;
    x.strides[2] = outer;
  }
  const Dims shape{outer, wanted, inner};
  const auto count = static_cast<size_t>(outer * wanted * inner);
  std::vector<T> expected(count);
  std::vector<int64_t> expected_at(count);
  std::vector<std::byte> scratch(kernels::SortScratchBytes(dtype, size));
  kernels::Sort(x, 1, descending, MakeView(expected.data(), dtype, shape),
                MakeView(expected_at.data(), DType::kI64, shape), scratch.data());
  for (const Order order : {Order::kForward, Order::kBackward}) {
    std::vector<T> values(count);
    std::vector<int64_t> at(count);
    View views[] = {x, MakeView(values.data(), dtype, shape), MakeView(at.data(), DType::kI64, shape)};
    const kernels::SortParams params{1, descending};
    Call call{static_cast<uint32_t>(KernelId::kSort), &params, sizeof params, views, 3};
    ASSERT_EQ(SortFamily::Check(call).problem, "");
    // Exactly as much, so that AddressSanitizer sees what lies beyond.
    std::vector<uint64_t> memory((SortFamily::ScratchBytes(call) + 7) / 8, ~uint64_t{0});
    call.scratch = memory.data();
    ASSERT_EQ(SortFamily::Launch(Launcher{order}, call), "");
    ASSERT_EQ(at, expected_at);
    ASSERT_EQ(std::memcmp(values.data(), expected.data(), count * sizeof(T)), 0);
  }
}

TEST(SortKernel, TypesLengthsAndStrides) {
  for (const int64_t size : {1, 2, 3, 31, 64, 65, 300}) {
    for (const bool descending : {false, true}) {
      Check<float>(DType::kF32, 3, size, 2, size, descending, false);
      Check<int64_t>(DType::kI64, 2, size, 1, (size + 1) / 2, descending, false);
      Check<int32_t>(DType::kI32, 2, size, 3, size, descending, true);
      Check<uint8_t>(DType::kBool, 1, size, 2, size, descending, false);
      Check<float>(DType::kF32, 2, size, 2, 1, descending, true);
    }
  }
  Check<float>(DType::kF32, 1, 2049, 1, 5, true, false);
}

TEST(SortKernel, LinesBeyondOneRun) {
  for (const int64_t size : {4096, 4097, 8192, 8193, 12300}) {
    Check<float>(DType::kF32, 1, size, 1, size, size % 2 == 0, false);
  }
  Check<int64_t>(DType::kI64, 2, 4100, 1, 4100, false, false);
  Check<int32_t>(DType::kI32, 2, 4111, 1, 7, true, true);
  Check<uint8_t>(DType::kBool, 1, 8200, 1, 8200, true, false);
}

TEST(SortKernel, SaysWhichLinesAreTooLong) {
  const int64_t size = int64_t{1} << 31;
  View views[] = {MakeView(nullptr, DType::kF32, {2, size}), MakeView(nullptr, DType::kF32, {2, size}),
                  MakeView(nullptr, DType::kI64, {2, size})};
  const kernels::SortParams params{1, false};
  const Call call{static_cast<uint32_t>(KernelId::kSort), &params, sizeof params, views, 3};
  EXPECT_EQ(SortFamily::Check(call).problem,
            "sort: expected lines of fewer than 2^31 elements on this device, got 2147483648");
}

}  // namespace
}  // namespace thresher::cuda::testing
