// What the kernel tests share: tensors in awkward layouts, random elements with corner cases, and comparison.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/for_each_isa.h"
#include "thresher/base/dtype.h"
#include "thresher/base/half.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

// Numbers of parts that divide nothing evenly.
inline constexpr int kPartCounts[] = {1, 3, 7};

struct Layout {
  std::vector<int> order = {};  // dimensions from outermost to innermost in memory; empty: as they are
  int64_t step = 1;             // distance of neighbours in the innermost one
  uint32_t broadcast = 0;       // dimensions with stride 0
  int64_t offset = 0;           // elements before the first one: 1 misaligns
};

// A view with its memory. Bytes behind the last element are guarded.
class Tensor {
 public:
  Tensor(DType dtype, const Dims& shape, const Layout& layout = {}) {
    view.dtype = dtype;
    view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), view.shape);
    int64_t stride = layout.step;
    for (int i = view.rank - 1; i >= 0; --i) {
      const int d = layout.order.empty() ? i : layout.order[static_cast<size_t>(i)];
      if ((layout.broadcast >> d) & 1u) continue;  // stays 0
      view.strides[d] = stride;
      stride *= view.shape[d];
    }
    elements_ = static_cast<size_t>(std::max<int64_t>(stride, 1));
    begin_ = static_cast<size_t>(layout.offset) * SizeOf(dtype);
    bytes_.assign(begin_ + elements_ * SizeOf(dtype) + kGuard + kAlign, kUnwritten);
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    begin_ += (kAlign - address % kAlign) % kAlign;
    view.data = bytes_.data() + begin_;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  // Every element in memory, including those between the strides.
  template <class T>
  T* memory() {
    return view.as<T>();
  }
  size_t elements() const { return elements_; }
  size_t num_bytes() const { return elements_ * SizeOf(view.dtype); }
  void Clear() { std::memset(view.data, kUnwritten, num_bytes()); }

  bool GuardIntact() const {
    return std::all_of(bytes_.begin() + static_cast<std::ptrdiff_t>(begin_ + num_bytes()), bytes_.end(),
                       [](uint8_t byte) { return byte == kUnwritten; });
  }

  View view;

 private:
  static constexpr size_t kGuard = 64;
  static constexpr size_t kAlign = 64;
  static constexpr uint8_t kUnwritten = 0xCD;
  std::vector<uint8_t> bytes_;
  size_t begin_ = 0;
  size_t elements_ = 0;
};

// Values at the corners of f32 arithmetic.
inline const std::vector<float>& CornerFloats() {
  using Limits = std::numeric_limits<float>;
  static const std::vector<float> corners = {Limits::quiet_NaN(),
                                             Limits::infinity(),
                                             -Limits::infinity(),
                                             0.0f,
                                             -0.0f,
                                             1.0f,
                                             -1.0f,
                                             0.5f,
                                             -0.5f,
                                             1.5f,
                                             2.5f,
                                             -2.5f,
                                             2.0f,
                                             3.0f,
                                             88.8f,
                                             -90.0f,
                                             1e-30f,
                                             -1e-30f,
                                             1e30f,
                                             -1e30f,
                                             3e9f,
                                             -3e9f,
                                             2147483648.0f,
                                             -2147483648.0f,
                                             1e19f,
                                             -1e19f,
                                             Limits::max(),
                                             Limits::min(),
                                             Limits::denorm_min()};
  return corners;
}

template <class T>
void FillIntegers(T* to, size_t n, std::mt19937& random) {
  const T corners[] = {0, 1, -1, 2, -2, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};
  for (size_t i = 0; i < n; ++i) {
    to[i] = random() % 4 == 0 ? corners[random() % 7] : static_cast<T>(static_cast<int>(random() % 41) - 20);
  }
}

// Normal values, with `corners` one in four a corner case; integers with their limits; bools half true.
inline void FillRandom(Tensor& tensor, std::mt19937& random, bool corners = true) {
  std::normal_distribution<float> normal(0.0f, 2.0f);
  const size_t n = tensor.elements();
  switch (tensor.view.dtype) {
    case DType::kF32:
      for (size_t i = 0; i < n; ++i) {
        const bool corner = corners && random() % 4 == 0;
        tensor.memory<float>()[i] = corner ? CornerFloats()[random() % CornerFloats().size()] : normal(random);
      }
      return;
    case DType::kI64:
      return FillIntegers(tensor.memory<int64_t>(), n, random);
    case DType::kI32:
      return FillIntegers(tensor.memory<int32_t>(), n, random);
    case DType::kBool:
      for (size_t i = 0; i < n; ++i) tensor.memory<uint8_t>()[i] = random() & 1;
      return;
    case DType::kBF16:
    case DType::kF16:  // any bits
      for (size_t i = 0; i < n; ++i) tensor.memory<uint16_t>()[i] = static_cast<uint16_t>(random());
      return;
  }
}

inline bool Close(float got, float want, double relative, double absolute) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got);
  if (got == want) return true;
  if (std::isinf(want) || std::isinf(got)) return false;
  return std::fabs(static_cast<double>(got) - want) <= absolute + relative * std::fabs(want);
}

inline float FloatAt(const View& view, int64_t i) {
  if (view.dtype == DType::kBF16) return ToFloat(view.as<BF16>()[i]);
  return view.dtype == DType::kF16 ? ToFloat(view.as<F16>()[i]) : view.as<float>()[i];
}

// Both contiguous. Types other than floats are compared exactly.
inline ::testing::AssertionResult Same(const Tensor& got, const Tensor& want, double relative = 0,
                                       double absolute = 0) {
  if (!got.GuardIntact()) return ::testing::AssertionFailure() << "bytes behind the output were written";
  for (int64_t i = 0; i < want.view.size(); ++i) {
    if (IsFloat(want.view.dtype)) {
      const float g = FloatAt(got.view, i);
      const float w = FloatAt(want.view, i);
      if (Close(g, w, relative, absolute)) continue;
      return ::testing::AssertionFailure() << "element " << i << " is " << g << ", expected " << w;
    }
    const size_t size = SizeOf(want.view.dtype);
    const size_t at = static_cast<size_t>(i) * size;
    if (std::memcmp(got.view.as<uint8_t>() + at, want.view.as<uint8_t>() + at, size) == 0) continue;
    return ::testing::AssertionFailure() << "element " << i << " differs (" << Name(want.view.dtype) << ")";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace thresher::kernels
