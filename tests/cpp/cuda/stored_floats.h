// Floats as a device holds them, for tests of kernels that take several types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thresher/base/dtype.h"
#include "thresher/cuda/attention_source.h"

namespace thresher::cuda::testing {

inline constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// What is lost besides fp32's own rounding: the weights of keys and the results are rounded, both at most 1.
inline float Tolerance(DType dtype) {
  return dtype == DType::kF32 ? 4e-6f : dtype == DType::kBF16 ? 0x1p-8f : 0x1p-11f;
}

// Floats of any float type, at an address that is a multiple of 16 where `offset` is 0.
class StoredFloats {
 public:
  StoredFloats(size_t count, DType dtype, size_t offset = 0)
      : dtype_(dtype), count_(count), words_((count + offset) * SizeOf(dtype) / 16 + 1), offset_(offset) {}
  StoredFloats(const std::vector<float>& values, DType dtype, size_t offset = 0)
      : StoredFloats(values.size(), dtype, offset) {
    for (size_t i = 0; i < values.size(); ++i) StoreElement(data(), dtype, static_cast<int64_t>(i), values[i]);
  }

  void* data() { return reinterpret_cast<char*>(words_.data()) + offset_ * SizeOf(dtype_); }
  std::vector<float> values() {
    std::vector<float> values(count_);
    for (size_t i = 0; i < count_; ++i) values[i] = LoadElement(data(), dtype_, static_cast<int64_t>(i));
    return values;
  }

 private:
  struct alignas(16) Word {
    char bytes[16];
  };
  DType dtype_;
  size_t count_;
  std::vector<Word> words_;
  size_t offset_;
};

}  // namespace thresher::cuda::testing
