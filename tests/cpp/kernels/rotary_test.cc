#include "thresher/kernels/rotary.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"

namespace thresher::kernels {
namespace {

using testing::ExpectClose;
using testing::ForEachIsa;
using testing::RandomFloats;

void Check(int64_t tokens, int64_t heads, int64_t depth, int64_t pairs, bool interleaved) {
  SCOPED_TRACE(std::to_string(depth) + " " + std::to_string(pairs) + (interleaved ? " interleaved" : ""));
  const int64_t wide = heads * depth + 5;  // rows of a wider matrix
  std::vector<float> x = RandomFloats(static_cast<size_t>(tokens * wide), 1, -2, 2);
  std::vector<float> cos(static_cast<size_t>(tokens * pairs)), sin(cos.size());
  const std::vector<float> angles = RandomFloats(cos.size(), 2, -4, 4);
  for (size_t i = 0; i < angles.size(); ++i) {
    cos[i] = std::cos(angles[i]);
    sin[i] = std::sin(angles[i]);
  }
  std::vector<float> expected(static_cast<size_t>(tokens * heads * depth));
  RotaryArgs args;
  args.x = MakeView(x.data(), DType::kF32, {tokens, heads, depth});
  args.x.strides[0] = wide;
  args.cos = MakeView(cos.data(), DType::kF32, {tokens, pairs});
  args.sin = MakeView(sin.data(), DType::kF32, {tokens, pairs});
  args.out = MakeView(expected.data(), DType::kF32, {tokens, heads, depth});
  args.interleaved = interleaved;
  RotaryReference(args);
  ForEachIsa([&] {
    for (const int parts : {1, 3}) {
      std::vector<float> actual(expected.size(), -9);
      RotaryArgs own = args;
      own.out.data = actual.data();
      for (int part = 0; part < parts; ++part) Rotary(own, part, parts);
      ExpectClose(actual, expected, 1e-6f, 1e-6f);
    }
    std::vector<float> in_place = x;
    RotaryArgs own = args;
    own.x.data = in_place.data();
    own.out = own.x;
    Rotary(own);
    std::vector<float> rows;
    for (int64_t t = 0; t < tokens; ++t) {
      rows.insert(rows.end(), in_place.begin() + t * wide, in_place.begin() + t * wide + heads * depth);
    }
    ExpectClose(rows, expected, 1e-6f, 1e-6f);
  });
}

TEST(Rotary, EveryRemainder) {
  for (int64_t pairs = 1; pairs <= 40; ++pairs) {
    for (const bool interleaved : {false, true}) Check(3, 2, 2 * pairs + pairs % 3, pairs, interleaved);
  }
}

TEST(Rotary, HeadSizes) {
  for (const int64_t depth : {64, 96, 128, 256}) Check(5, 3, depth, depth / 2, false);
}

}  // namespace
}  // namespace thresher::kernels
