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

void Check(int64_t channels, bool greatest, int num_parts, float special = 0.0f) {
  SCOPED_TRACE("channels " + std::to_string(channels) + (greatest ? " greatest" : " sum") + ", special " +
               std::to_string(special));
  const int64_t in[] = {3, 5, 4}, out[] = {2, 4, 7};
  const Axis axes[] = {{in[0], out[0], 1}, {in[1], out[1], 2}, {in[2], out[2], 3}};
  ResampleArgs args;
  args.greatest = greatest;
  args.batch = 2;
  args.channels = channels;
  int64_t distance = channels + 3;
  for (int d = 2; d >= 0; --d) {
    args.x_strides[d] = distance;
    args.out[d] = out[d];
    args.axes[d] = axes[d].axis();
    distance *= in[d];
  }
  args.x_batch = distance;
  std::vector<float> x = RandomFloats(static_cast<size_t>(2 * distance), 4);
  if (special != 0.0f) {
    for (size_t i = 0; i < x.size(); i += 7) x[i] = special;
  }
  args.x = x.data();
  const auto size = static_cast<size_t>(args.batch * out[0] * out[1] * out[2] * channels);
  std::vector<float> expected(size);
  args.y = expected.data();
  ResampleReference(args);
  ForEachIsa([&] {
    std::vector<float> actual(size, 12345.0f);
    ResampleArgs own = args;
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
  const int64_t in[] = {3, 5, 4}, out[] = {2, 4, 7};
  const Axis axes[] = {{in[0], out[0], 1}, {in[1], out[1], 2}, {in[2], out[2], 3}};
  for (const int64_t channels : {32, 64, 96}) {
    SCOPED_TRACE(channels);
    ResampleArgs args;
    args.greatest = true;
    args.batch = 2;
    args.channels = channels;
    int64_t distance = channels + 32;
    for (int d = 2; d >= 0; --d) {
      args.x_strides[d] = distance;
      args.out[d] = out[d];
      args.axes[d] = axes[d].axis();
      distance *= in[d];
    }
    args.x_batch = distance;
    std::vector<float> x = RandomFloats(static_cast<size_t>(2 * distance), 4);
    for (size_t i = 0; i < x.size(); i += 41) x[i] = i % 4 < 2 ? NAN : -INFINITY;  // in even and odd channels
    std::vector<uint16_t> bits;
    for (float& number : x) {
      bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16));
      number = std::bit_cast<float>(static_cast<uint32_t>(bits.back()) << 16);
    }
    const int64_t positions = args.batch * out[0] * out[1] * out[2];
    std::vector<float> expected(static_cast<size_t>(positions * channels));
    args.x = x.data(), args.y = expected.data();
    ResampleReference(args);
    ForEachIsa([&] {
      ResampleArgs own = args;
      own.x = reinterpret_cast<const float*>(bits.data());
      own.x_bf16 = true;
      std::vector<float> floats(expected.size());
      own.y = floats.data();
      for (int part = 0; part < 3; ++part) Resample(own, part, 3);
      ExpectClose(floats, expected, 0.0f);
      own.y_bf16 = true;
      own.y_position = channels + 16;
      std::vector<uint16_t> halves(static_cast<size_t>(positions * own.y_position), uint16_t{7});
      own.y = reinterpret_cast<float*>(halves.data());
      for (int part = 0; part < 3; ++part) Resample(own, part, 3);
      for (int64_t i = 0; i < positions; ++i) {
        for (int64_t c = 0; c < own.y_position; ++c) {
          const uint16_t found = halves[static_cast<size_t>(i * own.y_position + c)];
          const float number = std::bit_cast<float>(static_cast<uint32_t>(found) << 16);
          if (c >= channels) {
            ASSERT_EQ(found, 7);
          } else if (const float wanted = expected[static_cast<size_t>(i * channels + c)]; std::isnan(wanted)) {
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
