// Numbers in a stored encoding beside the floats that they stand for, by arithmetic of the tests' own.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "thresher/kernels/weight.h"

namespace thresher::kernels::testing {

// What 16 bits stand for.
inline float Decode(Encoding encoding, uint16_t bits) {
  const int digits = encoding == Encoding::kBf16 ? 7 : 10;
  const int bias = encoding == Encoding::kBf16 ? 127 : 15;
  const int exponent = (bits & 0x7fff) >> digits;
  const int fraction = bits & ((1 << digits) - 1);
  double magnitude;
  if (exponent == 2 * bias + 1) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, 1 - bias - digits);
  } else {
    magnitude = std::ldexp(fraction + (1 << digits), exponent - bias - digits);
  }
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

class EncodedNumbers {
 public:
  // 16-bit encodings alone.
  EncodedNumbers(std::vector<uint16_t> bits, Encoding encoding) : bits_(std::move(bits)) {
    for (const uint16_t x : bits_) numbers_.push_back(Decode(encoding, x));
  }

  // The nearest number of a smaller magnitude to each of `values`, which are within the encoding's range.
  EncodedNumbers(const std::vector<float>& values, Encoding encoding) {
    for (const float x : values) {
      uint16_t bits = 0;
      for (uint16_t bit = 0x4000; bit != 0; bit = static_cast<uint16_t>(bit >> 1)) {
        const auto next = static_cast<uint16_t>(bits | bit);
        if (Decode(encoding, next) <= std::abs(x)) bits = next;
      }
      bits_.push_back(static_cast<uint16_t>(bits | (std::signbit(x) ? 0x8000 : 0)));
      numbers_.push_back(Decode(encoding, bits_.back()));
    }
  }

  const void* data() const { return bits_.data(); }
  const std::vector<uint16_t>& bits() const { return bits_; }
  const std::vector<float>& numbers() const { return numbers_; }

 private:
  std::vector<uint16_t> bits_;
  std::vector<float> numbers_;
};

}  // namespace thresher::kernels::testing
