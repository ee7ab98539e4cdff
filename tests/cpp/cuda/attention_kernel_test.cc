// The device's attention, on the emulator, against the CPU's reference in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "cuda/stored_floats.h"
#include "kernels/float_testing.h"
#include "thresher/cuda/attention.h"
#include "thresher/kernels/attention.h"

namespace thresher::cuda::testing {
namespace {

using kernels::SdpaArgs;
using kernels::SdpaParams;
using kernels::testing::ExpectClose;
using kernels::testing::RandomFloats;

constexpr float kInf = std::numeric_limits<float>::infinity();

enum class Layout { kHeadsOutside, kHeadsInside, kPacked };

struct Case {
  int64_t batch = 1, heads = 1, kv_heads = 1, queries = 1, keys = 1, depth = 1, out_depth = 0;
  bool causal = false;
  Layout layout = Layout::kHeadsInside;
  size_t offset = 0;
  float scale = 0;  // 0: the usual one
};

std::string Text(const Case& c, DType dtype) {
  return std::string(Name(dtype)) + " B " + std::to_string(c.batch) + " H " + std::to_string(c.heads) + "/" +
         std::to_string(c.kv_heads) + " Sq " + std::to_string(c.queries) + " Skv " + std::to_string(c.keys) + " D " +
         std::to_string(c.depth) + " Dv " + std::to_string(c.out_depth) + " causal " + std::to_string(c.causal) +
         " layout " + std::to_string(static_cast<int>(c.layout)) + " offset " + std::to_string(c.offset);
}

// [batch, heads, rows, width] in memory of one layout. kPacked: tensor `part` of 3 in rows of [3, heads, width].
View Tensor(void* data, DType dtype, const Dims& shape, Layout layout, int part) {
  const int64_t b = shape[0], h = shape[1], s = shape[2], d = shape[3];
  View view = MakeView(data, dtype, shape);
  if (layout == Layout::kHeadsOutside) return view;
  const int64_t row = layout == Layout::kPacked ? 3 * h * d : h * d;
  const int64_t strides[] = {s * row, d, row, 1};
  std::copy_n(strides, 4, view.strides);
  if (layout == Layout::kPacked)
    view.data = static_cast<char*>(data) + part * h * d * static_cast<int64_t>(SizeOf(dtype));
  EXPECT_GT(b, 0);
  return view;
}

// launch(call, launcher) gives the emulator's verdict.
template <class Launch>
void CheckWith(Case c, DType dtype, const View& mask, Launch launch, float tolerance_factor = 1) {
  if (c.out_depth == 0) c.out_depth = c.depth;
  SCOPED_TRACE(Text(c, dtype));
  const auto count = [&](int64_t heads, int64_t rows, int64_t width) {
    return static_cast<size_t>(c.batch * heads * rows * width * (c.layout == Layout::kPacked ? 3 : 1));
  };
  // Packed tensors share their memory; these have their own and leave the rest unused.
  StoredFloats q(RandomFloats(count(c.heads, c.queries, c.depth), 1, -2, 2), dtype, c.offset);
  StoredFloats k(RandomFloats(count(c.kv_heads, c.keys, c.depth), 2, -2, 2), dtype, c.offset);
  StoredFloats v(RandomFloats(count(c.kv_heads, c.keys, c.out_depth), 3), dtype, c.offset);
  const Layout out_layout = c.layout == Layout::kHeadsOutside ? c.layout : Layout::kHeadsInside;
  const Dims out_shape{c.batch, c.heads, c.queries, c.out_depth};
  View views[5] = {Tensor(q.data(), dtype, {c.batch, c.heads, c.queries, c.depth}, c.layout, 0),
                   Tensor(k.data(), dtype, {c.batch, c.kv_heads, c.keys, c.depth}, c.layout, 1),
                   Tensor(v.data(), dtype, {c.batch, c.kv_heads, c.keys, c.out_depth}, c.layout, 2), mask};
  SdpaParams params{};
  params.scale = c.scale != 0 ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.depth));
  params.causal = c.causal;
  params.masked = mask.data != nullptr;

  // The reference reads the rounded operands.
  std::vector<float> wide[3] = {q.values(), k.values(), v.values()};
  std::vector<float> expected(static_cast<size_t>(NumElements(out_shape)));
  SdpaArgs args;
  View* const wanted[] = {&args.q, &args.k, &args.v};
  for (int i = 0; i < 3; ++i) {
    *wanted[i] = Tensor(wide[i].data(), DType::kF32, Dims(views[i].shape, views[i].shape + 4), c.layout, i);
  }
  args.out = Tensor(expected.data(), DType::kF32, out_shape, out_layout, 0);
  std::vector<float> wide_mask;
  args.mask = mask;
  if (mask.data != nullptr && IsHalf(mask.dtype)) {
    wide_mask.resize(static_cast<size_t>(c.queries * c.keys));  // half masks of these tests have this shape
    for (size_t i = 0; i < wide_mask.size(); ++i) {
      wide_mask[i] = LoadElement(mask.data, mask.dtype, static_cast<int64_t>(i));
    }
    args.mask.data = wide_mask.data();
    args.mask.dtype = DType::kF32;
  }
  args.scale = params.scale;
  args.causal = c.causal;
  kernels::SdpaReference(args);

  std::vector<float> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    StoredFloats out(std::vector<float>(expected.size(), 9.0f), dtype, c.offset);
    views[4] = Tensor(out.data(), dtype, out_shape, out_layout, 0);
    Call call{static_cast<uint32_t>(KernelId::kSdpa), &params, sizeof params, views, 5};
    ASSERT_EQ(SdpaFamily::Check(call).problem, "");
    std::vector<float> scratch(SdpaFamily::ScratchBytes(call) / sizeof(float), std::nanf(""));
    call.scratch = scratch.data();
    ASSERT_EQ(launch(call, Launcher{order}), "");
    ExpectClose(out.values(), expected, Tolerance(dtype) * tolerance_factor);
    if (order == Order::kForward) first = out.values();
    ExpectClose(out.values(), first, 0);
  }
}

void Check(const Case& c, const View& mask = {}) {
  for (const DType dtype : kTypes) {
    CheckWith(c, dtype, mask,
              [](const Call& call, const Launcher& launcher) { return SdpaFamily::Launch(launcher, call); });
  }
}

template <class Tiles>
void CheckTiling(const Case& c) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    CheckWith(c, dtype, {}, [&](const Call& call, const Launcher& launcher) {
      SdpaSource source = SdpaFamily::SourceOf(call);
      source.partials.splits = 1;
      return dtype == DType::kBF16 ? LaunchHalves<Bf16, Tiles>(launcher, source)
                                   : LaunchHalves<Fp16, Tiles>(launcher, source);
    });
  }
}

TEST(AttentionKernel, LengthsAroundATile) {
  for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 129}) {
    Check({1, 2, 2, length, length, 32});
    Check({1, 1, 1, 3, length, 64});
    Check({1, 1, 1, length, 5, 64});
  }
}

TEST(AttentionKernel, HeadsOfEveryWidth) {
  for (const int64_t depth : {1, 3, 8, 24, 31, 32, 33, 40, 64, 72, 80, 96, 100, 128, 160, 192, 256}) {
    Check({1, 2, 2, 18, 70, depth});
  }
  Check({1, 2, 2, 18, 20, 16, 72});
  Check({1, 2, 2, 18, 20, 72, 8});
}

TEST(AttentionKernel, EveryTiling) {
  for (const int64_t depth : {32, 40, 64, 128, 256}) {
    for (const bool causal : {false, true}) {
      const Case c{1, 2, 1, 70, 134, depth, 0, causal};
      CheckTiling<NarrowTiling>(c);
      CheckTiling<WideTiling>(c);
      CheckTiling<TallTiling>(c);
    }
  }
}

TEST(AttentionKernel, Layouts) {
  for (const Layout layout : {Layout::kHeadsOutside, Layout::kHeadsInside, Layout::kPacked}) {
    for (const size_t offset : {0, 1, 8}) {
      for (const int64_t depth : {32, 20}) {
        Case c{2, 3, 3, 17, 17, depth};
        c.layout = layout;
        c.offset = offset;
        Check(c);
      }
    }
  }
}

TEST(AttentionKernel, Causal) {
  for (const int64_t length : {1, 16, 33, 70, 130}) Check({1, 2, 2, length, length, 32, 0, true});
  Check({1, 2, 2, 9, 100, 64, 0, true});
  Check({1, 2, 2, 100, 9, 64, 0, true});
}

TEST(AttentionKernel, SharedKeys) {
  Check({2, 6, 2, 11, 40, 32, 0, true});
  Check({1, 8, 1, 5, 70, 64});
  Check({1, 7, 7, 3, 4, 16});
}

TEST(AttentionKernel, NegativeAndNoScale) {
  for (const float scale : {-0.3f, 1e-30f, 5.0f}) {
    Case c{1, 2, 2, 18, 70, 32};
    c.scale = scale;
    for (const DType dtype : kTypes) {
      CheckWith(
          c, dtype, {}, [](const Call& call, const Launcher& launcher) { return SdpaFamily::Launch(launcher, call); },
          4);
    }
  }
}

TEST(AttentionKernel, NoKeysGiveZeros) { Check({1, 2, 2, 18, 0, 32}); }

TEST(AttentionKernel, KeysSplitAmongBlocks) {
  Check({1, 2, 2, 1, 1100, 32});
  Check({1, 4, 2, 3, 2000, 64});
  Check({2, 2, 1, 17, 1029, 32, 0, false});
  Check({2, 4, 2, 3, 2049, 32});
}

// A mask [1 or B, 1 or H, 1 or Sq, 1 or Skv], expanded.
View MaskView(void* data, DType dtype, const Dims& shape, const Case& c) {
  View view = MakeView(data, dtype, shape);
  const int64_t full[] = {c.batch, c.heads, c.queries, c.keys};
  for (int d = 0; d < 4; ++d) {
    if (view.shape[d] == 1) view.strides[d] = 0;
    view.shape[d] = full[d];
  }
  return view;
}

TEST(AttentionKernel, MasksOfEveryBroadcast) {
  const Case c{2, 4, 2, 19, 70, 32};
  for (int bits = 0; bits < 16; ++bits) {
    const Dims shape{bits & 1 ? c.batch : 1, bits & 2 ? c.heads : 1, bits & 4 ? c.queries : 1, bits & 8 ? c.keys : 1};
    std::vector<float> floats = RandomFloats(static_cast<size_t>(NumElements(shape)), 7, -3, 3);
    Check(c, MaskView(floats.data(), DType::kF32, shape, c));
    std::vector<uint8_t> bools(floats.size());
    for (size_t i = 0; i < floats.size(); ++i) bools[i] = floats[i] > -1;
    Check(c, MaskView(bools.data(), DType::kBool, shape, c));
  }
}

TEST(AttentionKernel, MasksOfHalves) {
  const Case c{1, 2, 2, 19, 70, 32, 0, true};
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    StoredFloats mask(RandomFloats(19 * 70, 7, -3, 3), dtype);
    Check(c, MaskView(mask.data(), dtype, {1, 1, 19, 70}, c));
  }
}

// Sums follow their base in each tile, in some, in none; rows of a warp do so apart from each other.
TEST(AttentionKernel, ScoresThatRiseFromTileToTile) {
  const Case c{1, 2, 2, 20, 330, 32};
  for (const float slope : {0.3f, 0.02f, -0.3f}) {
    std::vector<float> rows(20 * 330), one(330);
    for (size_t j = 0; j < 330; ++j) {
      one[j] = slope * static_cast<float>(j);
      for (size_t i = 0; i < 20; ++i) rows[i * 330 + j] = i % 3 == 0 ? one[j] : 0.0f;
    }
    Check(c, MaskView(rows.data(), DType::kF32, {1, 1, 20, 330}, c));
    Check(c, MaskView(one.data(), DType::kF32, {1, 1, 1, 330}, c));
  }
}

TEST(AttentionKernel, RowsThatAreMaskedWhole) {
  const Case c{1, 2, 2, 20, 70, 32};
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  std::vector<float> floats(20 * 70);
  std::vector<uint8_t> bools(20 * 70, 1);
  for (size_t j = 0; j < 70; ++j) {
    floats[3 * 70 + j] = -kInf;                    // zeros
    floats[4 * 70 + j] = kLowest;                  // the mean
    floats[5 * 70 + j] = j < 60 ? kLowest : 0.0f;  // only the last keys
    floats[6 * 70 + j] = j == 69 ? 0.0f : -kInf;
    floats[7 * 70 + j] = j == 9 ? std::nanf("") : 0.0f;
    bools[8 * 70 + j] = 0;
    bools[9 * 70 + j] = j == 64;
  }
  Check(c, MaskView(floats.data(), DType::kF32, {1, 1, 20, 70}, c));
  Check(c, MaskView(bools.data(), DType::kBool, {1, 1, 20, 70}, c));
}

// Keys beyond those that a mask shows, but for the rest of their tiles, are not read: what lies there is of no account.
TEST(AttentionKernel, KeysThatAMaskHidesAreNotRead) {
  constexpr int64_t kKeys = 272, kQueries = 20, kDepth = 32, kFirst = 140, kLast = 180;
  for (const DType dtype : kTypes) {
    for (const DType mask_type : {DType::kBool, DType::kF32, DType::kBF16}) {
      for (const bool one_row : {true, false}) {
        SCOPED_TRACE(std::string(Name(dtype)) + ", mask " + std::string(Name(mask_type)) +
                     (one_row ? ", one row" : ""));
        const int64_t mask_rows = one_row ? 1 : kQueries;
        std::vector<float> numbers(static_cast<size_t>(mask_rows * kKeys), -kInf);
        std::vector<uint8_t> truths(numbers.size(), 0);
        for (int64_t row = 0; row < mask_rows; ++row) {
          // Rows see different keys; all of them together the first and the last.
          for (int64_t key = kFirst + row; key < kLast - mask_rows + row + 1; ++key) {
            numbers[static_cast<size_t>(row * kKeys + key)] = 0.25f;
            truths[static_cast<size_t>(row * kKeys + key)] = 1;
          }
        }
        StoredFloats floats(numbers, mask_type == DType::kBool ? DType::kF32 : mask_type);
        alignas(16) uint8_t stored[kQueries * kKeys];
        std::copy(truths.begin(), truths.end(), stored);
        View mask = MakeView(mask_type == DType::kBool ? static_cast<void*>(stored) : floats.data(), mask_type,
                             {1, 1, mask_rows, kKeys});
        mask.shape[2] = kQueries;
        if (one_row) mask.strides[2] = 0;
        mask.strides[0] = mask.strides[1] = 0;
        std::vector<float> results[2];
        for (const bool broken : {false, true}) {
          std::vector<float> k = RandomFloats(kKeys * kDepth, 2), v = RandomFloats(kKeys * kDepth, 3);
          for (int64_t key = 0; key < kKeys; ++key) {
            if (!broken || (key >= kFirst / 64 * 64 && key < kLast)) continue;
            std::fill_n(k.begin() + key * kDepth, kDepth, std::nanf(""));
            std::fill_n(v.begin() + key * kDepth, kDepth, std::nanf(""));
          }
          StoredFloats q(RandomFloats(2 * kQueries * kDepth, 1), dtype), keys(k, dtype), values(v, dtype);
          StoredFloats out(std::vector<float>(2 * kQueries * kDepth, 9.0f), dtype);
          View views[] = {MakeView(q.data(), dtype, {1, 2, kQueries, kDepth}),
                          MakeView(keys.data(), dtype, {1, 1, kKeys, kDepth}),
                          MakeView(values.data(), dtype, {1, 1, kKeys, kDepth}), mask,
                          MakeView(out.data(), dtype, {1, 2, kQueries, kDepth})};
          const SdpaParams params{0.2f, false, true, Precision::kFp32};
          Call call{static_cast<uint32_t>(KernelId::kSdpa), &params, sizeof params, views, 5};
          std::vector<float> scratch(SdpaFamily::ScratchBytes(call) / sizeof(float), std::nanf(""));
          call.scratch = scratch.data();
          ASSERT_EQ(SdpaFamily::Launch(Launcher{broken ? Order::kBackward : Order::kForward}, call), "");
          results[broken ? 1 : 0] = out.values();
        }
        ExpectClose(results[1], results[0], 0);
      }
    }
  }
}

// Of a batch with half of its keys hidden, at the end of sequences, at their beginning, or from half of the queries,
// tiles are multiplied half as often.
TEST(AttentionKernel, WorkIsThatOfTheKeysThatAreSeen) {
  constexpr int64_t kTile = NarrowTiling::kKeys, kRows = NarrowTiling::kRows;
  const Case c{4, 2, 2, 2 * kRows, 2 * kTile, 32};
  const auto work = [&c](const View& mask) {
    const int64_t before = MatrixOperations();
    Check(c, mask);
    return MatrixOperations() - before;
  };
  const int64_t all = work({});
  ASSERT_GT(all, 0);
  const auto keys = static_cast<size_t>(c.keys);
  std::vector<uint8_t> padded(4 * keys, 1);
  EXPECT_EQ(work(MaskView(padded.data(), DType::kBool, {4, 1, 1, c.keys}, c)), all);
  const int64_t lengths[] = {2 * kTile, kTile, kTile, 0};
  for (const bool behind : {true, false}) {
    for (size_t i = 0; i < padded.size(); ++i) {
      const auto key = static_cast<int64_t>(i % keys);
      padded[i] = (behind ? key : c.keys - 1 - key) < lengths[i / keys];
    }
    EXPECT_EQ(work(MaskView(padded.data(), DType::kBool, {4, 1, 1, c.keys}, c)), all / 2) << behind;
  }
  std::vector<float> rows(static_cast<size_t>(c.queries) * keys, -kInf);
  std::fill_n(rows.begin(), rows.size() / 2, 0.5f);
  EXPECT_EQ(work(MaskView(rows.data(), DType::kF32, {1, 1, c.queries, c.keys}, c)), all / 2);
}

TEST(AttentionKernel, SaysWhatItDoesNotTake) {
  float some = 0;
  View views[5];
  for (View& view : views) view = MakeView(&some, DType::kF32, {1, 1, 1, 1});
  SdpaParams params{};
  Call call{static_cast<uint32_t>(KernelId::kSdpa), &params, sizeof params, views, 5};
  EXPECT_EQ(SdpaFamily::Check(call).problem, "");
  views[1].dtype = DType::kBF16;
  EXPECT_NE(SdpaFamily::Check(call).problem.find("one type"), std::string::npos);
  views[1] = MakeView(&some, DType::kF32, {1, 1, 1, 1});
  views[2].shape[3] = 257;
  EXPECT_NE(SdpaFamily::Check(call).problem.find("at most 256"), std::string::npos);
  views[2].shape[3] = 1;
  views[0].shape[2] = int64_t{1} << 32;
  EXPECT_NE(SdpaFamily::Check(call).problem.find("2^30"), std::string::npos);
}

}  // namespace
}  // namespace thresher::cuda::testing
