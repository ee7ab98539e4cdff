#include "thresher/kernels/softmax.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float_testing.h"

namespace thresher::kernels {
namespace {

using testing::ExpectClose;
using testing::ForEachIsa;
using testing::RandomFloats;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void Check(int64_t outer, int64_t dim, int64_t inner, int parts, std::vector<float> x = {}) {
  SCOPED_TRACE(std::to_string(outer) + " x " + std::to_string(dim) + " x " + std::to_string(inner) + " parts " +
               std::to_string(parts));
  const size_t size = static_cast<size_t>(outer * dim * inner);
  if (x.empty()) x = RandomFloats(size + 1, 1, -20.0f, 20.0f);
  for (const bool log : {false, true}) {
    std::vector<float> expected(size + 1, 5.0f);
    SoftmaxReference(x.data() + 1, expected.data() + 1, outer, dim, inner, log);
    ForEachIsa([&] {
      std::vector<float> actual(size + 1, 5.0f);
      for (int p = 0; p < parts; ++p) Softmax(x.data() + 1, actual.data() + 1, outer, dim, inner, log, p, parts);
      ExpectClose(actual, expected, log ? 4e-6f : 3e-7f, log ? 3e-7f : 4e-6f);
      std::vector<float> in_place = x;
      for (int p = 0; p < parts; ++p)
        Softmax(in_place.data() + 1, in_place.data() + 1, outer, dim, inner, log, p, parts);
      in_place[0] = 5.0f;
      ExpectClose(in_place, actual, 0.0f);
    });
  }
}

TEST(SoftmaxTest, EveryRemainderOfContiguousRows) {
  for (int64_t dim = 1; dim <= 70; ++dim) Check(3, dim, 1, 1);
}

TEST(SoftmaxTest, StridedDimension) {
  for (int64_t inner = 2; inner <= 40; ++inner) Check(2, 9, inner, 1);
}

TEST(SoftmaxTest, ScoresFarBelowZero) {
  // Their exponentials are 0: the maximum has to be one of them.
  for (const int64_t dim : {1, 5, 16, 37, 64}) {
    Check(3, dim, 1, 1, RandomFloats(static_cast<size_t>(3 * dim) + 1, 2, -210.0f, -190.0f));
    Check(2, dim, 21, 1, RandomFloats(static_cast<size_t>(2 * dim * 21) + 1, 3, -210.0f, -190.0f));
  }
}

TEST(SoftmaxTest, Parts) {
  for (const int parts : {2, 3, 7}) {
    Check(5, 33, 1, parts);
    Check(2, 6, 50, parts);
  }
}

TEST(SoftmaxTest, SpecialValues) {
  // Slices of 5: a masked entry, a NaN, +infinity, -infinity only, values whose exponentials overflow, all equal.
  const std::vector<float> slices = {1.0f,  -kInf, 2.0f,   -kInf, 0.0f, 1.0f,  kNan,  2.0f,  3.0f,  4.0f,
                                     kInf,  1.0f,  2.0f,   3.0f,  4.0f, -kInf, -kInf, -kInf, -kInf, -kInf,
                                     1e30f, 1e30f, -1e30f, 0.0f,  1.0f, 8.0f,  8.0f,  8.0f,  8.0f,  8.0f};
  std::vector<float> rows = {0.0f};
  rows.insert(rows.end(), slices.begin(), slices.end());
  Check(6, 5, 1, 1, rows);
  std::vector<float> columns = {0.0f};
  for (size_t i = 0; i < 5; ++i) {
    for (size_t s = 0; s < 6; ++s) columns.push_back(slices[s * 5 + i]);
  }
  Check(1, 5, 6, 1, columns);
}

}  // namespace
}  // namespace thresher::kernels
