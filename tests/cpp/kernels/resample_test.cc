#include "thresher/kernels/resample.h"

#include <bit>
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

// Taps of `out` coordinates in `in` positions: 0 to 3 of them each, anywhere.
struct Axis {
  Axis(int64_t in, int64_t out, uint32_t seed) {
    const std::vector<float> random = RandomFloats(static_cast<size_t>(out * 4), seed, 0.0f, 1.0f);
    for (int64_t i = 0; i < out; ++i) {
      starts.push_back(static_cast<int32_t>(index.size()));
      for (int64_t k = 0; k <= (i + seed) % 3; ++k) {
        index.push_back(static_cast<int32_t>(random[static_cast<size_t>(i * 4 + k)] * static_cast<float>(in) * 0.999f));
        weight.push_back(random[static_cast<size_t>(i * 4 + 3)] - 0.5f);
      }
    }
    starts.push_back(static_cast<int32_t>(index.size()));
  }
  ResampleAxis axis() const { return {starts.data(), index.data(), weight.data()}; }

  std::vector<int32_t> starts, index;
  std::vector<float> weight;
};

// Two images of 3 x 5 x 4 positions, whose channels have `extra` more behind them, become two of 2 x 4 x 7.
struct Case {
  static constexpr int64_t kIn[] = {3, 5, 4}, kOut[] = {2, 4, 7}, kBatch = 2;
  static constexpr int64_t kPositions = kBatch * kOut[0] * kOut[1] * kOut[2];

  Case(int64_t channels, int64_t extra, bool greatest) {
    args.greatest = greatest;
    args.batch = kBatch;
    args.channels = channels;
    int64_t distance = channels + extra;
    for (int d = 2; d >= 0; --d) {
      args.x_strides[d] = distance;
      args.out[d] = kOut[d];
      args.axes[d] = axes[d].axis();
      distance *= kIn[d];
    }
    args.x_batch = distance;
    x = RandomFloats(static_cast<size_t>(kBatch * distance), 4);
  }

  // Of x as it is now.
  std::vector<float> Expected() {
    std::vector<float> expected(static_cast<size_t>(kPositions * args.channels));
    args.x = x.data(), args.y = expected.data();
    ResampleReference(args);
    return expected;
  }

  Axis axes[3] = {{kIn[0], kOut[0], 1}, {kIn[1], kOut[1], 2}, {kIn[2], kOut[2], 3}};
  ResampleArgs args;
  std::vector<float> x;
};

void Check(int64_t channels, bool greatest, int num_parts, float special = 0.0f) {
  SCOPED_TRACE("channels " + std::to_string(channels) + (greatest ? " greatest" : " sum") + ", special " +
               std::to_string(special));
  Case c(channels, 3, greatest);
  if (special != 0.0f) {
    for (size_t i = 0; i < c.x.size(); i += 7) c.x[i] = special;
  }
  const std::vector<float> expected = c.Expected();
  ForEachIsa([&] {
    std::vector<float> actual(expected.size(), 12345.0f);
    ResampleArgs own = c.args;
    own.y = actual.data();
    for (int part = 0; part < num_parts; ++part) Resample(own, part, num_parts);
    ExpectClose(actual, expected, greatest ? 0.0f : 1e-6f);
  });
}

TEST(ResampleTest, EveryNumberOfChannels) {
  for (const int64_t channels : {1, 3, 8, 15, 16, 33, 64, 70, 131}) {
    for (const bool greatest : {false, true}) Check(channels, greatest, 1);
  }
}

// The greatest of bf16 are those of the floats that they stand for, NaN included.
TEST(ResampleTest, GreatestOfBf16) {
  for (const int64_t channels : {32, 64, 96}) {
    SCOPED_TRACE(channels);
    Case c(channels, 32, true);
    for (size_t i = 0; i < c.x.size(); i += 41) c.x[i] = i % 4 < 2 ? NAN : -INFINITY;  // in even and odd channels
    const std::vector<uint16_t> bits = testing::CutToBf16(c.x);
    const std::vector<float> expected = c.Expected();
    ForEachIsa([&] {
      ResampleArgs own = c.args;
      own.x = reinterpret_cast<const float*>(bits.data());
      own.x_bf16 = true;
      std::vector<float> floats(expected.size());
      own.y = floats.data();
      for (int part = 0; part < 3; ++part) Resample(own, part, 3);
      ExpectClose(floats, expected, 0.0f);
      own.y_bf16 = true;
      own.y_position = channels + 16;
      std::vector<uint16_t> halves(static_cast<size_t>(Case::kPositions * own.y_position), uint16_t{7});
      own.y = reinterpret_cast<float*>(halves.data());
      for (int part = 0; part < 3; ++part) Resample(own, part, 3);
      for (int64_t i = 0; i < Case::kPositions; ++i) {
        for (int64_t j = 0; j < own.y_position; ++j) {
          const uint16_t found = halves[static_cast<size_t>(i * own.y_position + j)];
          const float number = std::bit_cast<float>(static_cast<uint32_t>(found) << 16);
          if (j >= channels) {
            ASSERT_EQ(found, 7);
          } else if (const float wanted = expected[static_cast<size_t>(i * channels + j)]; std::isnan(wanted)) {
            ASSERT_TRUE(std::isnan(number));
          } else {
            ASSERT_EQ(number, wanted);
          }
        }
      }
    });
  }
}

TEST(ResampleTest, Parts) {
  for (const int parts : {2, 3, 20}) Check(24, true, parts);
}

TEST(ResampleTest, NanAndInfinity) {
  for (const float special : {NAN, INFINITY, -INFINITY}) Check(40, true, 1, special);
}

}  // namespace
}  // namespace thresher::kernels
