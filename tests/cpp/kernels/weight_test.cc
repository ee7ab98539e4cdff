// Weights that are stored in other encodings than f32.
#include "thresher/kernels/weight.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/encoded_numbers.h"
#include "kernels/float_testing.h"
#include "thresher/kernels/gemm.h"

namespace thresher::kernels {
namespace {

using testing::AlignedFloats;
using testing::EncodedNumbers;
using testing::ForEachIsa;
using testing::RandomFloats;

constexpr Precision kAll[] = {Precision::kFp32, Precision::kBf16,       Precision::kFp16,
                              Precision::kInt8, Precision::kInt8Weight, Precision::kInt4Weight};
constexpr Encoding kNarrow[] = {Encoding::kBf16, Encoding::kF16};

std::vector<uint16_t> AllBits() {
  std::vector<uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), uint16_t{0});
  return bits;
}

std::vector<uint8_t> Packed(Precision precision, const Weight& weight, int num_parts = 1) {
  const auto bytes = static_cast<size_t>(PackedBytes(precision, weight.k, weight.n));
  AlignedFloats packed(bytes / sizeof(float) + 16);
  std::memset(packed.data(), 0xab, bytes);
  for (int part = 0; part < num_parts; ++part) PackWeight(precision, weight, packed.data(), part, num_parts);
  const auto* const begin = reinterpret_cast<const uint8_t*>(packed.data());
  return {begin, begin + bytes};
}

TEST(Weight, EveryNumberIsWidenedExactly) {
  for (const Encoding encoding : kNarrow) {
    const EncodedNumbers all(AllBits(), encoding);
    for (const bool transposed : {false, true}) {
      for (const auto& [k, n] : {std::pair<int64_t, int64_t>{256, 256}, {255, 257}}) {
        ForEachIsa([&] {
          SCOPED_TRACE(std::string(Name(encoding)) + " " + std::to_string(k) + (transposed ? " nk" : " kn"));
          const Weight weight = DenseWeight(all.data(), k, n, transposed, encoding);
          const Precision own = encoding == Encoding::kBf16 ? Precision::kBf16 : Precision::kFp16;
          for (const Precision precision : {Precision::kFp32, own}) {
            // fp16 weights that are not finite are never assigned a precision below fp32.
            const bool finite_only = precision == Precision::kFp16;
            const std::vector<uint8_t> packed = Packed(precision, weight);
            AlignedFloats aligned(packed.size() / sizeof(float) + 16);
            std::memcpy(aligned.data(), packed.data(), packed.size());
            std::vector<float> restored(static_cast<size_t>(k * n));
            UnpackWeight(precision, aligned.data(), k, n, restored.data());
            for (int64_t i = 0; i < k; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                const float expected = all.numbers()[static_cast<size_t>(transposed ? j * k + i : i * n + j)];
                const float found = restored[static_cast<size_t>(i * n + j)];
                if (finite_only && !std::isfinite(expected)) continue;
                if (std::isnan(expected)) {
                  ASSERT_TRUE(std::isnan(found)) << Name(precision) << " " << i << ", " << j;
                } else {
                  ASSERT_EQ(std::bit_cast<uint32_t>(found), std::bit_cast<uint32_t>(expected))
                      << Name(precision) << " " << i << ", " << j << ": " << found << ", expected " << expected;
                }
              }
            }
          }
        });
      }
    }
  }
}

// Not even a signalling NaN becomes another one.
TEST(Weight, Bf16IsPackedBitByBit) {
  const std::vector<uint16_t> all = AllBits();
  for (const bool transposed : {false, true}) {
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{256, 255}, {255, 256}}) {
      ForEachIsa([&] {
        const std::vector<uint8_t> packed =
            Packed(Precision::kBf16, DenseWeight(all.data(), k, n, transposed, Encoding::kBf16));
        const int64_t width = PackedColumns();
        const int64_t panel_halves = (k + 1) / 2 * width * 2;
        std::vector<uint16_t> halves(packed.size() / 2);
        std::memcpy(halves.data(), packed.data(), packed.size());
        for (int64_t j = 0; j < (n + width - 1) / width * width; ++j) {
          for (int64_t i = 0; i < (k + 1) / 2 * 2; ++i) {
            const int64_t at = j / width * panel_halves + (i / 2 * width + j % width) * 2 + i % 2;
            const bool inside = i < k && j < n;
            const uint16_t expected = inside ? all[static_cast<size_t>(transposed ? j * k + i : i * n + j)] : 0;
            ASSERT_EQ(halves[static_cast<size_t>(at)], expected) << i << ", " << j << " of " << k << " x " << n;
          }
        }
      });
    }
  }
}

TEST(Weight, PanelsAreThoseOfTheSameNumbersInFloats) {
  for (const Encoding encoding : kNarrow) {
    const EncodedNumbers w(RandomFloats(9000, 3), encoding);
    for (const auto& [k, n] : {std::pair<int64_t, int64_t>{1, 1}, {64, 64}, {67, 45}, {32, 7}, {5, 100}}) {
      for (const int64_t extra : {0, 1, 4}) {
        for (const bool transposed : {false, true}) {
          for (const size_t skipped : {size_t{0}, size_t{1}}) {
            const int64_t ld = (transposed ? k : n) + extra;
            Weight narrow{w.bits().data() + skipped, encoding, k, n, transposed ? 1 : ld, transposed ? ld : 1};
            Weight wide = narrow;
            wide.data = w.numbers().data() + skipped;
            wide.encoding = Encoding::kF32;
            ForEachIsa([&] {
              for (const Precision precision : kAll) {
                ASSERT_EQ(Packed(precision, narrow, 3), Packed(precision, wide))
                    << Name(encoding) << " as " << Name(precision) << ", " << k << " x " << n << " + " << extra;
              }
            });
          }
        }
      }
    }
    Weight narrow{w.bits().data() + 8999, encoding, 30, 41, -110, -2};
    Weight wide{w.numbers().data() + 8999, Encoding::kF32, 30, 41, -110, -2};
    ForEachIsa([&] {
      for (const Precision precision : kAll) ASSERT_EQ(Packed(precision, narrow), Packed(precision, wide));
    });
  }
}

TEST(Weight, EncodingsHaveTheNamesOfElementTypes) {
  EXPECT_EQ(EncodingOf(DType::kF32), Encoding::kF32);
  EXPECT_EQ(EncodingOf(DType::kI64), std::nullopt);
  EXPECT_EQ(EncodingOf(DType::kBool), std::nullopt);
}

}  // namespace
}  // namespace thresher::kernels
