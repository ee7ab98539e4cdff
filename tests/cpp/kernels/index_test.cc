#include "thresher/kernels/index.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/tensor_testing.h"
#include "thresher/kernels/iterate.h"

namespace thresher::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool, DType::kBF16, DType::kF16};

// Integers in [least, size).
void FillIndices(Tensor& tensor, std::mt19937& random, int64_t least, int64_t size) {
  for (size_t i = 0; i < tensor.elements(); ++i) {
    const int64_t index = least + static_cast<int64_t>(random() % static_cast<uint64_t>(size - least));
    if (tensor.view.dtype == DType::kI64) {
      tensor.memory<int64_t>()[i] = index;
    } else {
      tensor.memory<int32_t>()[i] = static_cast<int32_t>(index);
    }
  }
}

// Of the dimensions of a tensor [4, 5, 6]: a column, a row (or a full tensor) and a full one, which broadcast against
// each other as those do that masks are made of.
struct Indices {
  Indices(std::mt19937& random, bool row) : second(DType::kI32, {7, 9}, {.broadcast = row ? 1u : 0u}) {
    FillIndices(first, random, -4, 4);
    FillIndices(second, random, -5, 5);
    FillIndices(third, random, -6, 6);
  }

  // Of what the first n of them take from `x`.
  static Dims ResultShape(const View& x, int n) {
    Dims shape = {7, 9};
    for (int d = n; d < 3; ++d) shape.push_back(x.shape[d]);
    return shape;
  }

  Tensor first{DType::kI64, {7, 9}, {.broadcast = 2}};
  Tensor second;
  Tensor third{DType::kI64, {7, 9}};
  const View views[3] = {first.view, second.view, third.view};
};

TEST(Embedding, MatchesReference) {
  std::mt19937 random(1);
  for (const DType dtype : kTypes) {
    for (const DType index_type : {DType::kI64, DType::kI32}) {
      for (const int64_t width : {0, 1, 2, 5, 64}) {
        for (const Layout& layout : {Layout{}, Layout{.order = {1, 0}}, Layout{.step = 2}}) {
          for (const Layout& index_layout : {Layout{}, Layout{.order = {1, 0}}, Layout{.broadcast = 1}}) {
            Tensor table(dtype, {11, width}, layout);
            FillRandom(table, random);
            Tensor indices(index_type, {3, 7}, index_layout);
            FillIndices(indices, random, 0, 11);
            Tensor want(dtype, {3, 7, width});
            ASSERT_TRUE(EmbeddingReference(table.view, indices.view, want.view).ok());
            for (const int parts : kPartCounts) {
              Tensor got(dtype, {3, 7, width});
              for (int part = 0; part < parts; ++part) {
                ASSERT_TRUE(Embedding(table.view, indices.view, got.view, part, parts).ok());
              }
              ASSERT_TRUE(Same(got, want));
            }
          }
        }
      }
    }
  }
}

TEST(Embedding, NamesTheBadIndex) {
  std::vector<float> table(30522);
  std::vector<int64_t> indices = {0, 1, 2, 3, 4, 5, 6, 30600, -1};
  std::vector<float> out(indices.size());
  const View t = MakeView(table.data(), DType::kF32, {30522, 1});
  const View o = MakeView(out.data(), DType::kF32, {9, 1});
  const Status status = Embedding(t, MakeView(indices.data(), DType::kI64, {9}), o);
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_EQ(status.message(), "embedding: index 30600 at position 7 is outside [0, 30522)");
  const Status last = Embedding(t, MakeView(indices.data(), DType::kI64, {9}), o, 8, 9);
  EXPECT_EQ(last.message(), "embedding: index -1 at position 8 is outside [0, 30522)");
  EXPECT_TRUE(Embedding(t, MakeView(indices.data(), DType::kI64, {9}), o, 0, 9).ok());
}

TEST(Gather, MatchesReference) {
  std::mt19937 random(2);
  for (const DType dtype : kTypes) {
    for (int dim = 0; dim < 3; ++dim) {
      for (const Layout& layout : {Layout{}, Layout{.order = {2, 0, 1}}, Layout{.broadcast = 2}}) {
        for (const Layout& index_layout : {Layout{}, Layout{.order = {2, 1, 0}}, Layout{.broadcast = 4}}) {
          const Dims x_shape = {6, 7, 8};
          Dims shape = {5, 7, 6};
          shape[static_cast<size_t>(dim)] = 19;
          Tensor x(dtype, x_shape, layout);
          FillRandom(x, random);
          Tensor indices(DType::kI64, shape, index_layout);
          FillIndices(indices, random, 0, x_shape[static_cast<size_t>(dim)]);
          Tensor want(dtype, shape);
          ASSERT_TRUE(GatherReference(x.view, dim, indices.view, want.view).ok());
          for (const int parts : kPartCounts) {
            Tensor got(dtype, shape);
            for (int part = 0; part < parts; ++part) {
              ASSERT_TRUE(Gather(x.view, dim, indices.view, got.view, part, parts).ok());
            }
            ASSERT_TRUE(Same(got, want)) << dim;
          }
        }
      }
    }
  }
}

TEST(Gather, ScalarsAndErrors) {
  float x = 3;
  int64_t index = 0;
  float out = 0;
  EXPECT_TRUE(
      Gather(MakeView(&x, DType::kF32, {}), 0, MakeView(&index, DType::kI64, {}), MakeView(&out, DType::kF32, {}))
          .ok());
  EXPECT_EQ(out, 3);
  std::vector<float> row = {1, 2, 3};
  std::vector<int32_t> indices = {2, -1};
  std::vector<float> result(2);
  const Status status =
      Gather(MakeView(row.data(), DType::kF32, {1, 3}), 1, MakeView(indices.data(), DType::kI32, {1, 2}),
             MakeView(result.data(), DType::kF32, {1, 2}));
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_EQ(status.message(), "gather: index -1 at position 1 is outside [0, 3)");
}

TEST(IndexNd, MatchesReference) {
  std::mt19937 random(3);
  for (const DType dtype : kTypes) {
    for (int n = 1; n <= 3; ++n) {
      for (const Layout& layout : {Layout{}, Layout{.order = {2, 0, 1}}, Layout{.broadcast = 2}}) {
        Tensor x(dtype, {4, 5, 6}, layout);
        FillRandom(x, random);
        const Indices indices(random, /*row=*/true);
        const Dims shape = indices.ResultShape(x.view, n);
        Tensor want(dtype, shape);
        ASSERT_TRUE(IndexNdReference(x.view, indices.views, n, want.view).ok());
        for (const int parts : kPartCounts) {
          Tensor got(dtype, shape);
          for (int part = 0; part < parts; ++part)
            ASSERT_TRUE(IndexNd(x.view, indices.views, n, got.view, part, parts).ok());
          ASSERT_TRUE(Same(got, want)) << n;
        }
      }
    }
  }
}

TEST(IndexNd, NamesTheBadIndex) {
  std::vector<int64_t> x = {10, 11, 12, 13, 14, 15};
  std::vector<int64_t> rows = {0, -2, 1};
  std::vector<int64_t> columns = {0, -1, 3};
  std::vector<int64_t> out(3);
  const View view = MakeView(x.data(), DType::kI64, {2, 3});
  View indices[] = {MakeView(rows.data(), DType::kI64, {3}), MakeView(columns.data(), DType::kI64, {3})};
  const View result = MakeView(out.data(), DType::kI64, {3});
  const Status status = IndexNd(view, indices, 2, result);
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_EQ(status.message(), "index: index 3 at position 2 of index tensor 1 is outside [-3, 3)");
  rows[1] = -3;
  EXPECT_EQ(IndexNd(view, indices, 2, result).message(),
            "index: index -3 at position 1 of index tensor 0 is outside [-2, 2)");
  rows[1] = -2;
  columns[2] = 2;
  ASSERT_TRUE(IndexNd(view, indices, 2, result).ok());
  EXPECT_EQ(out, (std::vector<int64_t>{10, 12, 15}));
}

// Written one element after the other; every part leaves the rows of others alone.
TEST(IndexPut, MatchesWritingOneElementAfterTheOther) {
  std::mt19937 random(4);
  for (const DType dtype : kTypes) {
    for (int n = 1; n <= 3; ++n) {
      for (const bool accumulate : {false, true}) {
        if (accumulate && dtype == DType::kBool) continue;
        for (const Layout& layout : {Layout{}, Layout{.order = {1, 0}}, Layout{.broadcast = 1}}) {
          Tensor x(dtype, {4, 5, 6});
          FillRandom(x, random);
          const Indices indices(random, /*row=*/false);
          const Dims shape = indices.ResultShape(x.view, n);
          Layout value_layout = layout;
          if (!layout.order.empty()) {
            for (size_t d = 2; d < shape.size(); ++d) value_layout.order.push_back(static_cast<int>(d));
          }
          Tensor values(dtype, shape, value_layout);
          FillRandom(values, random);
          Tensor want(dtype, {4, 5, 6});
          std::memcpy(want.view.data, x.view.data, x.num_bytes());
          const int64_t width = values.view.size() / 63;
          for (int64_t i = 0; i < values.view.size(); ++i) {
            int64_t to = 0;
            for (int t = 0; t < n; ++t) {
              const View& by = indices.views[t];
              const int64_t offset = OffsetOf(by, i / width);
              const int64_t index = by.dtype == DType::kI64 ? by.as<int64_t>()[offset] : by.as<int32_t>()[offset];
              to = to * x.view.shape[t] + (index + x.view.shape[t]) % x.view.shape[t];
            }
            to = to * width + i % width;
            WithType(dtype, [&](auto zero) {
              using T = decltype(zero);
              T& element = want.memory<T>()[to];
              const T value = values.view.as<T>()[OffsetOf(values.view, i)];
              if constexpr (std::is_same_v<T, bool>) {
                element = value;
              } else if constexpr (std::is_integral_v<T>) {
                using U = std::make_unsigned_t<T>;
                element = accumulate ? static_cast<T>(static_cast<U>(element) + static_cast<U>(value)) : value;
              } else {
                element = accumulate ? element + value : value;
              }
            });
          }
          for (const int parts : kPartCounts) {
            Tensor got(dtype, {4, 5, 6});
            std::memcpy(got.view.data, x.view.data, x.num_bytes());
            for (int part = 0; part < parts; ++part) {
              ASSERT_TRUE(IndexPut(indices.views, n, values.view, accumulate, got.view, part, parts).ok());
            }
            ASSERT_TRUE(Same(got, want)) << n << " " << accumulate << " in " << parts;
          }
        }
      }
    }
  }
}

TEST(IndexPut, NamesTheBadIndex) {
  std::vector<float> x(6), values(3);
  std::vector<int64_t> rows = {0, -2, 2};
  const View indices[] = {MakeView(rows.data(), DType::kI64, {3})};
  const Status status =
      IndexPut(indices, 1, MakeView(values.data(), DType::kF32, {3}), false, MakeView(x.data(), DType::kF32, {2}));
  EXPECT_EQ(status.code(), Code::kOutOfRange);
  EXPECT_EQ(status.message(), "index_put: index 2 at position 2 of index tensor 0 is outside [-2, 2)");
}

}  // namespace
}  // namespace thresher::kernels
