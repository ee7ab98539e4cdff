// What the tests of dense f32 kernels share: random data, aligned memory, and comparison that knows NaN and infinity.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/for_each_isa.h"
#include "thresher/kernels/blocking.h"

namespace thresher::kernels::testing {

using kernels::ForEachIsa;
using kernels::ForEachIsaAndPlainTiles;

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float low = -1.0f, float high = 1.0f) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values(count);
  for (float& v : values) v = distribution(generator);
  return values;
}

// The numbers as bf16, which they are cut to.
inline std::vector<uint16_t> CutToBf16(std::vector<float>& numbers) {
  std::vector<uint16_t> bits;
  for (float& number : numbers) {
    bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16));
    number = std::bit_cast<float>(static_cast<uint32_t>(bits.back()) << 16);
  }
  return bits;
}

inline std::string ToString(const Blocking& blocking) {
  return "panel " + std::to_string(blocking.panel_kib) + " KiB, rows " + std::to_string(blocking.most_rows) +
         ", split " + std::string(Name(blocking.split)) + ", " + std::string(Name(blocking.variant));
}

// The bounds of every choice and sizes that fit nothing.
inline std::vector<Blocking> OddBlockings() {
  return {{kLeastPanelKib, 1, Split::kRows, Variant::kDirect},
          {kLeastPanelKib, 0, Split::kPanels, Variant::kWidened},
          {3, 13, Split::kPanels, Variant::kAuto},
          {7, 29, Split::kRows, Variant::kWidened},
          {0, 15, Split::kAuto, Variant::kDirect},
          {kMostPanelKib, kMostBlockRows, Split::kRows, Variant::kWidened},
          {kMostPanelKib, 5, Split::kPanels, Variant::kDirect}};
}

// Floats at a 64-byte boundary.
class AlignedFloats {
 public:
  explicit AlignedFloats(size_t count)
      : data_(static_cast<float*>(::operator new(count * 4 + 64, std::align_val_t{64}))) {}
  ~AlignedFloats() { ::operator delete(data_, std::align_val_t{64}); }
  AlignedFloats(const AlignedFloats&) = delete;
  AlignedFloats& operator=(const AlignedFloats&) = delete;
  float* data() { return data_; }

 private:
  float* data_;
};

// |actual - expected| <= absolute + relative * |expected|; NaN equals NaN and an infinity equals itself.
inline void ExpectClose(const std::vector<float>& actual, const std::vector<float>& expected, float absolute,
                        float relative = 0.0f) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const float a = actual[i];
    const float e = expected[i];
    if (std::isnan(e) || std::isinf(e)) {
      ASSERT_TRUE(std::isnan(e) ? std::isnan(a) : a == e) << "element " << i << ": expected " << e << ", got " << a;
    } else {
      ASSERT_LE(std::abs(a - e), absolute + relative * std::abs(e))
          << "element " << i << ": expected " << e << ", got " << a;
      ASSERT_FALSE(std::isnan(a)) << "element " << i << ": expected " << e << ", got NaN";
    }
  }
}

}  // namespace thresher::kernels::testing
