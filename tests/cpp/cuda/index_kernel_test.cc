// The device's embedding, gather, index, index_put, fill and arange, on the emulator, against the CPU's.
#include "thresher/cuda/index_kernel.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/tensor_testing.h"
#include "thresher/cuda/create_kernel.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/copy.h"
#include "thresher/kernels/index.h"
#include "thresher/kernels/pointwise.h"

namespace thresher::cuda::testing {
namespace {

using kernels::FillRandom;
using kernels::Layout;
using kernels::Tensor;

constexpr DType kAllTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool, DType::kBF16, DType::kF16};

// A step in either order; what it finds wrong is in `fault`.
template <class Family, class Params>
void RunStep(KernelId kernel, const Params& params, const std::vector<View>& views, Order order, Fault& fault) {
  fault = {};
  const Call call{static_cast<uint32_t>(kernel),      &params, sizeof params, views.data(),
                  static_cast<int32_t>(views.size()), nullptr, &fault};
  ASSERT_EQ(Family::Check(call).problem, "");
  ASSERT_EQ(Family::Launch(Launcher{order}, call), "");
}

void FillIndices(Tensor& tensor, int64_t least, int64_t size, std::mt19937& random) {
  std::uniform_int_distribution<int64_t> numbers(least, size - 1);
  for (size_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.view.dtype == DType::kI64) {
      tensor.memory<int64_t>()[i] = numbers(random);
    } else {
      tensor.memory<int32_t>()[i] = static_cast<int32_t>(numbers(random));
    }
  }
}

// Runs the step in both orders; the CPU has written `want`.
template <class Params>
void ExpectStep(KernelId kernel, const Params& params, const std::vector<View>& inputs, const Tensor& want,
                const Tensor* before = nullptr) {
  for (const Order order : {Order::kForward, Order::kBackward}) {
    Tensor out(want.view.dtype, Dims(want.view.shape, want.view.shape + want.view.rank));
    if (before != nullptr) kernels::Copy(before->view, out.view);
    std::vector<View> views = inputs;
    views.push_back(out.view);
    Fault fault;
    RunStep<IndexFamily>(kernel, params, views, order, fault);
    EXPECT_EQ(fault.raised, 0u);
    EXPECT_TRUE(out.GuardIntact());
    ASSERT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0);
  }
}

TEST(IndexKernel, Embedding) {
  std::mt19937 random(1);
  for (const DType dtype : kAllTypes) {
    for (const DType index_type : {DType::kI64, DType::kI32}) {
      for (const int64_t width : {1, 3, 8, 16, 33, 384}) {
        for (const Layout& layout : {Layout{}, Layout{.offset = 1}, Layout{.order = {1, 0}}, Layout{.step = 2}}) {
          SCOPED_TRACE(std::string(Name(dtype)) + " of " + std::to_string(width));
          Tensor table(dtype, {11, width}, layout), indices(index_type, {3, 5}, {.order = {1, 0}});
          FillRandom(table, random);
          FillIndices(indices, 0, 11, random);
          Tensor want(dtype, {3, 5, width});
          ASSERT_TRUE(kernels::Embedding(table.view, indices.view, want.view).ok());
          ExpectStep(KernelId::kEmbedding, kernels::EmbeddingParams{Encoding::kF32}, {table.view, indices.view}, want);
        }
      }
    }
  }
}

TEST(IndexKernel, EmbeddingOfBlocks) {
  std::mt19937 random(3);
  for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0, Encoding::kQ4_1}) {
    for (const int64_t width : {32, 96}) {
      SCOPED_TRACE(std::string(Name(blocks)) + " of " + std::to_string(width));
      const int64_t rows = 11;
      std::vector<float> numbers(static_cast<size_t>(rows * width));
      for (float& x : numbers) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 300;
      std::vector<uint8_t> table(static_cast<size_t>(EncodedBytes(blocks, rows * width)));
      ASSERT_TRUE(kernels::EncodeNumbers(blocks, numbers.data(), rows * width, 32, table.data()).ok());
      const View view = MakeView(table.data(), DType::kF32, {rows, width});
      for (const DType index_type : {DType::kI64, DType::kI32}) {
        Tensor indices(index_type, {3, 5}, {.order = {1, 0}});
        FillIndices(indices, 0, rows, random);
        Tensor want(DType::kF32, {3, 5, width});
        ASSERT_TRUE(kernels::EmbeddingOfBlocks(blocks, view, indices.view, want.view).ok());
        ExpectStep(KernelId::kEmbedding, kernels::EmbeddingParams{blocks}, {view, indices.view}, want);
      }
      Tensor wrong(DType::kI64, {1}), out(DType::kF32, {1, width});
      wrong.memory<int64_t>()[0] = rows;
      Fault fault;
      RunStep<IndexFamily>(KernelId::kEmbedding, kernels::EmbeddingParams{blocks}, {view, wrong.view, out.view},
                           Order::kForward, fault);
      EXPECT_EQ(Describe(fault), "embedding: index 11 at position 0 is outside [0, 11)");
      EXPECT_EQ(out.memory<float>()[width - 1], 0.0f);
    }
  }
  const View views[] = {MakeView(nullptr, DType::kF32, {8, 256}), MakeView(nullptr, DType::kI64, {2}),
                        MakeView(nullptr, DType::kF32, {2, 256})};
  const kernels::EmbeddingParams params{Encoding::kQ6K};
  EXPECT_NE(IndexFamily::Check({static_cast<uint32_t>(KernelId::kEmbedding), &params, sizeof params, views, 3})
                .problem.find("got q6_k and f32"),
            std::string::npos);
}

TEST(IndexKernel, Gather) {
  std::mt19937 random(2);
  for (const DType dtype : kAllTypes) {
    for (int dim = 0; dim < 3; ++dim) {
      Tensor x(dtype, {4, 9, 7}, {.order = {1, 2, 0}}),
          indices(DType::kI64, {3, 8, 5}, {.broadcast = dim == 1 ? 1u : 0u});
      FillRandom(x, random);
      FillIndices(indices, 0, x.view.shape[dim], random);
      Tensor want(dtype, {3, 8, 5});
      ASSERT_TRUE(kernels::Gather(x.view, dim, indices.view, want.view).ok());
      ExpectStep(KernelId::kGather, kernels::GatherParams{dim}, {x.view, indices.view}, want);
    }
  }
  Tensor x(DType::kF32, {}), indices(DType::kI32, {}), want(DType::kF32, {});
  *x.memory<float>() = 3;
  *indices.memory<int32_t>() = 0;
  *want.memory<float>() = 3;
  ExpectStep(KernelId::kGather, kernels::GatherParams{0}, {x.view, indices.view}, want);
}

TEST(IndexKernel, Index) {
  std::mt19937 random(3);
  for (const DType dtype : kAllTypes) {
    for (int n = 1; n <= 3; ++n) {
      Tensor x(dtype, {5, 6, 16}, n == 2 ? Layout{.order = {1, 0, 2}} : Layout{});
      FillRandom(x, random);
      Tensor first(DType::kI64, {4, 3}), second(DType::kI32, {4, 3}, {.broadcast = 1}), third(DType::kI64, {4, 3});
      FillIndices(first, -5, 5, random);
      FillIndices(second, -6, 6, random);
      FillIndices(third, -16, 16, random);
      const View all[] = {first.view, second.view, third.view};
      Dims shape = {4, 3, 6, 16};
      shape.erase(shape.begin() + 2, shape.begin() + 1 + n);
      Tensor want(dtype, shape);
      ASSERT_TRUE(kernels::IndexNd(x.view, all, n, want.view).ok());
      std::vector<View> inputs = {x.view};
      inputs.insert(inputs.end(), all, all + n);
      ExpectStep(KernelId::kIndex, NoParams{}, inputs, want);
    }
  }
}

TEST(IndexKernel, IndexPutWritesInOrder) {
  std::mt19937 random(4);
  for (const DType dtype : kAllTypes) {
    for (const bool accumulate : {false, true}) {
      SCOPED_TRACE(std::string(Name(dtype)) + (accumulate ? ", added" : ""));
      if (accumulate && (dtype == DType::kBool || IsHalf(dtype))) continue;
      for (int n = 1; n <= 2; ++n) {
        // 40 indices name 5 or 15 rows: most of them several times.
        Tensor x(dtype, {5, 3, 70}), first(DType::kI64, {10, 4}), second(DType::kI64, {10, 4});
        FillIndices(first, -5, 5, random);
        FillIndices(second, -3, 3, random);
        const auto fill = [&](Tensor& tensor) {
          FillRandom(tensor, random);
          if (!IsHalf(dtype)) return;
          // Numbers, which come back from f32 as they were.
          for (size_t i = 0; i < tensor.elements(); ++i) tensor.memory<uint16_t>()[i] = random() % 0x7000;
        };
        fill(x);
        const Dims shape = n == 1 ? Dims{10, 4, 3, 70} : Dims{10, 4, 70};
        Tensor values(dtype, shape, {.broadcast = 2});
        fill(values);
        const View all[] = {first.view, second.view};
        Tensor want(dtype, {5, 3, 70});
        kernels::Copy(x.view, want.view);
        if (IsHalf(dtype)) {  // which the CPU has no kernel for
          Tensor wide(DType::kF32, {5, 3, 70}), wide_values(DType::kF32, shape);
          kernels::Cast(x.view, wide.view);
          kernels::Cast(values.view, wide_values.view);
          ASSERT_TRUE(kernels::IndexPut(all, n, wide_values.view, false, wide.view).ok());
          kernels::Cast(wide.view, want.view);
        } else {
          ASSERT_TRUE(kernels::IndexPut(all, n, values.view, accumulate, want.view).ok());
        }
        std::vector<View> inputs = {values.view};
        inputs.insert(inputs.end(), all, all + n);
        ExpectStep(KernelId::kIndexPut, kernels::IndexPutParams{accumulate}, inputs, want, &x);
      }
    }
  }
}

TEST(IndexKernel, WrongIndicesAreTold) {
  Tensor x(DType::kF32, {4, 8}), values(DType::kF32, {3, 8});
  std::fill_n(x.memory<float>(), 32, 1.0f);
  std::fill_n(values.memory<float>(), 24, 2.0f);
  Tensor indices(DType::kI64, {3});
  const auto told = [&](KernelId kernel, auto params, std::vector<View> views, const View& indexed, int64_t wrong,
                        auto family) {
    const int64_t all[] = {1, wrong, 2};
    std::copy(all, all + 3, indices.memory<int64_t>());
    Tensor out(DType::kF32, Dims(indexed.shape, indexed.shape + indexed.rank));
    std::fill_n(out.memory<float>(), out.view.size(), 7.0f);
    views.push_back(out.view);
    Fault fault;
    RunStep<decltype(family)>(kernel, params, views, Order::kForward, fault);
    EXPECT_EQ(fault.raised, 1u);
    // Nothing but what was asked for is read or written.
    EXPECT_EQ(out.memory<float>()[8], kernel == KernelId::kIndexPut ? 2.0f : 0.0f);
    return Describe(fault);
  };
  const View rows = MakeView(nullptr, DType::kF32, {3, 8});
  EXPECT_EQ(told(KernelId::kEmbedding, kernels::EmbeddingParams{Encoding::kF32}, {x.view, indices.view}, rows, 4,
                 IndexFamily{}),
            "embedding: index 4 at position 1 is outside [0, 4)");
  EXPECT_EQ(told(KernelId::kEmbedding, kernels::EmbeddingParams{Encoding::kF32}, {x.view, indices.view}, rows, -1,
                 IndexFamily{}),
            "embedding: index -1 at position 1 is outside [0, 4)");
  EXPECT_EQ(told(KernelId::kIndex, NoParams{}, {x.view, indices.view}, rows, -5, IndexFamily{}),
            "index: index -5 at position 1 of index tensor 0 is outside [-4, 4)");
  EXPECT_EQ(told(KernelId::kIndexPut, kernels::IndexPutParams{false}, {values.view, indices.view}, x.view,
                 int64_t{1} << 40, IndexFamily{}),
            "index_put: index 1099511627776 at position 1 of index tensor 0 is outside [-4, 4)");
}

TEST(CreateKernel, FillsWithOneValue) {
  for (const DType dtype : kAllTypes) {
    for (const Dims& shape : {Dims{}, Dims{1}, Dims{3}, Dims{17}, Dims{5, 33}, Dims{4096}}) {
      for (const int64_t offset : {0, 1, 3}) {
        const kernels::FillParams params{dtype == DType::kBool ? 1 : 0x1122334455667788};
        Tensor want(dtype, shape, {.offset = offset});
        kernels::Fill(want.view, params.bits);
        for (const Order order : {Order::kForward, Order::kBackward}) {
          Tensor out(dtype, shape, {.offset = offset});
          Fault fault;
          RunStep<CreateFamily>(KernelId::kFill, params, {out.view}, order, fault);
          EXPECT_TRUE(out.GuardIntact());
          EXPECT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0);
        }
      }
    }
  }
}

TEST(CreateKernel, CountsAsTheCpuDoes) {
  for (const DType dtype : kAllTypes) {
    if (dtype == DType::kBool) continue;
    for (const kernels::ArangeParams& params :
         {kernels::ArangeParams{0, 1}, {-3, 0.5}, {5, -2}, {1e18, 4096}, {-3e9, 7}, {0.25, 1e8}}) {
      Tensor want(dtype, {1000}), out(dtype, {1000});
      kernels::Arange(want.view, params.start, params.step);
      Fault fault;
      RunStep<CreateFamily>(KernelId::kArange, params, {out.view}, Order::kBackward, fault);
      EXPECT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0) << Name(dtype) << params.start;
    }
  }
  View turned = MakeView(nullptr, DType::kF32, {4, 5});
  std::swap(turned.strides[0], turned.strides[1]);
  const kernels::FillParams params{};
  EXPECT_EQ(CreateFamily::Check({static_cast<uint32_t>(KernelId::kFill), &params, sizeof params, &turned, 1}).problem,
            "fill: expected a row-major result on this device, got another");
}

}  // namespace
}  // namespace thresher::cuda::testing
