#include "thresher/kernels/sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/tensor_testing.h"

namespace thresher::kernels {
namespace {

// Few different elements, so that ties are many; NaN and both zeros among floats.
template <class T>
void FillWithTies(Tensor& x, std::mt19937& random) {
  for (size_t i = 0; i < x.elements(); ++i) {
    const unsigned choice = static_cast<unsigned>(random() % 7);
    T value = static_cast<T>(static_cast<int>(choice) - 3);
    if constexpr (std::is_same_v<T, float>) {
      if (choice == 0) value = std::numeric_limits<float>::quiet_NaN();
      if (choice == 1) value = -0.0f;
    }
    if constexpr (std::is_same_v<T, uint8_t>) value = choice % 2;
    x.memory<T>()[i] = value;
  }
}

template <class T>
bool Below(T a, T b) {
  if constexpr (std::is_same_v<T, float>) {
    if (std::isnan(a) || std::isnan(b)) return !std::isnan(a) && std::isnan(b);
  }
  return a < b;
}

// Where a line along one dimension begins: in x, in an output of x's rank, and in one without the dimension.
struct Line {
  int64_t from, to, to_arg;
};

std::vector<Line> LinesOf(const View& x, int dim, const View& out) {
  std::vector<Line> lines;
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t rest = i, from = 0, to = 0, to_arg = 0, scale = 1;
    bool first = true;
    for (int d = x.rank - 1; d >= 0; --d) {
      const int64_t at = rest % x.shape[d];
      rest /= x.shape[d];
      if (d == dim) {
        first = at == 0;
        continue;
      }
      from += at * x.strides[d];
      to += at * out.strides[d];
      to_arg += at * scale;
      scale *= x.shape[d];
    }
    if (first) lines.push_back({from, to, to_arg});
  }
  return lines;
}

template <class T>
void Check(DType dtype, const Dims& shape, const Layout& layout, std::mt19937& random) {
  Tensor x(dtype, shape, layout);
  FillWithTies<T>(x, random);
  for (int dim = 0; dim < static_cast<int>(shape.size()); ++dim) {
    const int64_t size = shape[static_cast<size_t>(dim)], stride = x.view.strides[dim];
    for (const int64_t kept : {size, size / 2, int64_t{1}}) {
      Dims out_shape = shape;
      out_shape[static_cast<size_t>(dim)] = kept;
      for (const bool descending : {false, true}) {
        for (const int parts : kPartCounts) {
          Tensor values(dtype, out_shape), indices(DType::kI64, out_shape);
          std::vector<std::byte> scratch(SortScratchBytes(dtype, size));
          for (int part = 0; part < parts; ++part) {
            Sort(x.view, dim, descending, values.view, indices.view, scratch.data(), part, parts);
          }
          for (const Line& line : LinesOf(x.view, dim, values.view)) {
            const T* const elements = x.memory<T>() + line.from;
            std::vector<int64_t> order(static_cast<size_t>(size));
            for (int64_t i = 0; i < size; ++i) order[static_cast<size_t>(i)] = i;
            std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
              const T left = elements[a * stride], right = elements[b * stride];
              return descending ? Below(right, left) : Below(left, right);
            });
            for (int64_t i = 0; i < kept; ++i) {
              const int64_t at = line.to + i * values.view.strides[dim];
              ASSERT_EQ(indices.memory<int64_t>()[at], order[static_cast<size_t>(i)])
                  << "dim " << dim << " kept " << kept << " place " << i;
              const T got = values.memory<T>()[at], want = elements[order[static_cast<size_t>(i)] * stride];
              ASSERT_EQ(std::memcmp(&got, &want, sizeof(T)), 0);
            }
          }
          ASSERT_TRUE(values.GuardIntact() && indices.GuardIntact());
        }
      }
    }
    if (!SupportsArgExtreme(dtype)) continue;
    for (const bool greatest : {false, true}) {
      for (const int parts : kPartCounts) {
        Dims out_shape = shape;
        out_shape.erase(out_shape.begin() + dim);
        Tensor out(DType::kI64, out_shape);
        for (int part = 0; part < parts; ++part) ArgExtreme(greatest, x.view, dim, out.view, part, parts);
        for (const Line& line : LinesOf(x.view, dim, x.view)) {
          const T* const elements = x.memory<T>() + line.from;
          int64_t want = 0;
          for (int64_t i = 1; i < size; ++i) {
            const T value = elements[i * stride], best = elements[want * stride];
            const bool nan = value != value && best == best;
            if (best == best && (nan || (greatest ? value > best : value < best))) want = i;
          }
          ASSERT_EQ(out.memory<int64_t>()[line.to_arg], want) << "dim " << dim << " greatest " << greatest;
        }
        ASSERT_TRUE(out.GuardIntact());
      }
    }
  }
}

TEST(Sort, EveryDimensionLayoutAndType) {
  std::mt19937 random(5);
  const std::vector<Layout> layouts = {{}, {{2, 0, 1}}, {{}, 3}, {{}, 1, 0b010}, {{}, 1, 0, 1}};
  for (const Layout& layout : layouts) {
    Check<float>(DType::kF32, {3, 5, 12}, layout, random);
    Check<int64_t>(DType::kI64, {3, 5, 12}, layout, random);
    Check<int32_t>(DType::kI32, {3, 5, 12}, layout, random);
    Check<uint8_t>(DType::kBool, {3, 5, 12}, layout, random);
  }
  Check<float>(DType::kF32, {1000}, {}, random);
}

TEST(Sort, ScalarAndEmpty) {
  Tensor x(DType::kF32, {}), values(DType::kF32, {}), indices(DType::kI64, {});
  *x.memory<float>() = 2.5f;
  std::vector<std::byte> scratch(SortScratchBytes(DType::kF32, 1));
  Sort(x.view, 0, true, values.view, indices.view, scratch.data());
  EXPECT_EQ(*values.memory<float>(), 2.5f);
  EXPECT_EQ(*indices.memory<int64_t>(), 0);
  *indices.memory<int64_t>() = 7;
  ArgExtreme(true, x.view, 0, indices.view);
  EXPECT_EQ(*indices.memory<int64_t>(), 0);
  Tensor none(DType::kF32, {0, 3}), none_values(DType::kF32, {0, 3}), none_indices(DType::kI64, {0, 3});
  Sort(none.view, 1, false, none_values.view, none_indices.view, scratch.data());
  EXPECT_TRUE(none_values.GuardIntact());
}

}  // namespace
}  // namespace thresher::kernels
