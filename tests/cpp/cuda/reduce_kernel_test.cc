// The device's reductions, positions of extremes and running sums, on the emulator, against the CPU's.
#include "thresher/cuda/reduce_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/tensor_testing.h"
#include "thresher/kernels/pointwise.h"
#include "thresher/kernels/reduce.h"
#include "thresher/kernels/scan.h"
#include "thresher/kernels/sort.h"

namespace thresher::cuda::testing {
namespace {

using kernels::FillRandom;
using kernels::Layout;
using kernels::Tensor;

// A step with scratch memory as large as it asked for, in both orders, which must give the same bits.
template <class Params>
void RunStep(KernelId kernel, const Params& params, const View& x, Tensor& out) {
  std::vector<std::byte> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    const View views[] = {x, out.view};
    Call call{static_cast<uint32_t>(kernel), &params, sizeof params, views, 2};
    ASSERT_EQ(ReduceFamily::Check(call).problem, "");
    std::vector<int64_t> scratch(ReduceFamily::ScratchBytes(call) / sizeof(int64_t));
    call.scratch = scratch.data();
    ASSERT_EQ(ReduceFamily::Launch(Launcher{order}, call), "");
    ASSERT_TRUE(out.GuardIntact());
    std::vector<std::byte> bits(out.memory<std::byte>(), out.memory<std::byte>() + out.num_bytes());
    if (order == Order::kForward) first = bits;
    ASSERT_EQ(bits, first);
  }
}

struct Case {
  Dims shape;
  uint32_t mask;
  Layout layout = {};
};

const Case kCases[] = {{{}, 0},
                       {{7}, 1},
                       {{1000}, 1},
                       {{64, 48}, 2},
                       {{64, 48}, 1},
                       {{64, 48}, 3},
                       {{5, 300}, 2},
                       {{5, 301}, 2},
                       {{3, 2048}, 2},
                       {{5, 40, 33}, 2},
                       {{5, 40, 36}, 5},
                       {{4, 6, 5, 7}, 10},
                       {{4, 6, 5, 7}, 5, {.order = {2, 0, 3, 1}}},
                       {{9, 128}, 2, {.offset = 1}},
                       {{9, 128}, 2, {.step = 2}},
                       {{9, 128}, 2, {.broadcast = 1}},
                       {{40, 9}, 1, {.order = {1, 0}}}};

Dims KeptOf(const Case& c) {
  Dims kept;
  for (size_t d = 0; d < c.shape.size(); ++d) {
    if ((c.mask >> d & 1u) == 0) kept.push_back(c.shape[d]);
  }
  return kept;
}

void ExpectClose(const Tensor& out, const Tensor& want, double absolute) {
  for (int64_t i = 0; i < want.view.size(); ++i) {
    ASSERT_TRUE(kernels::Close(out.view.as<float>()[i], want.view.as<float>()[i], 1e-6, absolute))
        << i << ": " << out.view.as<float>()[i] << ", expected " << want.view.as<float>()[i];
  }
}

TEST(ReduceKernel, EveryOperatorAndTypeAgreesWithTheReference) {
  std::mt19937 random(1);
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::kF32, DType::kI64, DType::kI32, DType::kBool}) {
      for (const ReduceOp op : kernels::AllReduceOps()) {
        if (!Supports(op, dtype)) continue;
        SCOPED_TRACE(std::string(Name(op)) + " of " + std::string(Name(dtype)) + ToString(c.shape) + ", mask " +
                     std::to_string(c.mask));
        Tensor x(dtype, c.shape, c.layout), out(dtype, KeptOf(c)), want(dtype, KeptOf(c));
        const bool sums = op == ReduceOp::kSum || op == ReduceOp::kMean;
        if (dtype == DType::kF32 && sums) {
          std::uniform_real_distribution<float> numbers(-1, 1);
          for (size_t i = 0; i < x.elements(); ++i) x.memory<float>()[i] = numbers(random);
        } else {
          FillRandom(x, random);
        }
        RunStep(KernelId::kReduce, kernels::ReduceParams{op, c.mask}, x.view, out);
        kernels::ReduceReference(op, x.view, c.mask, want.view);
        if (dtype == DType::kF32) {
          ExpectClose(out, want, sums ? 3e-5 : 0);
        } else {
          EXPECT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0);
        }
      }
    }
  }
}

// So many elements that they are cut into parts, whose results are reduced again.
TEST(ReduceKernel, FewOutputsOfManyElements) {
  std::mt19937 random(2);
  for (const Case& c : {Case{{100003}, 1}, {{3, 40000}, 2}, {{200, 3, 300}, 5}, {{65536}, 1, {.step = 2}}}) {
    for (const DType dtype : {DType::kF32, DType::kI64}) {
      for (const ReduceOp op : kernels::AllReduceOps()) {
        if (!Supports(op, dtype)) continue;
        SCOPED_TRACE(std::string(Name(op)) + " of " + std::string(Name(dtype)) + ToString(c.shape));
        Tensor x(dtype, c.shape, c.layout), out(dtype, KeptOf(c)), want(dtype, KeptOf(c));
        if (dtype == DType::kF32) {
          std::uniform_real_distribution<float> numbers(-1, 1);
          for (size_t i = 0; i < x.elements(); ++i) x.memory<float>()[i] = numbers(random);
        } else {
          FillRandom(x, random);
        }
        RunStep(KernelId::kReduce, kernels::ReduceParams{op, c.mask}, x.view, out);
        kernels::ReduceReference(op, x.view, c.mask, want.view);
        if (dtype == DType::kF32) {
          ExpectClose(out, want, op == ReduceOp::kSum ? 1e-3 : 1e-6);
        } else {
          EXPECT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0);
        }
      }
    }
  }
}

TEST(ReduceKernel, NanWinsAndNothingHasASum) {
  Tensor x(DType::kF32, {2, 600}), out(DType::kF32, {2});
  std::fill_n(x.memory<float>(), 1200, 1.0f);
  x.memory<float>()[599] = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum}) {
    RunStep(KernelId::kReduce, kernels::ReduceParams{op, 2}, x.view, out);
    EXPECT_TRUE(std::isnan(out.memory<float>()[0]));
    EXPECT_EQ(out.memory<float>()[1], op == ReduceOp::kSum ? 600.0f : 1.0f);
  }
  const Tensor nothing(DType::kF32, {2, 0});
  RunStep(KernelId::kReduce, kernels::ReduceParams{ReduceOp::kSum, 2}, nothing.view, out);
  EXPECT_EQ(out.memory<float>()[0], 0.0f);
  RunStep(KernelId::kReduce, kernels::ReduceParams{ReduceOp::kMean, 2}, nothing.view, out);
  EXPECT_TRUE(std::isnan(out.memory<float>()[1]));
}

TEST(ReduceKernel, FloatsOfSixteenBits) {
  std::mt19937 random(3);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const Case& c : kCases) {
      Tensor numbers(DType::kF32, c.shape, c.layout), x(dtype, c.shape), wide(DType::kF32, c.shape);
      std::uniform_real_distribution<float> uniform(0, 1);
      for (size_t i = 0; i < numbers.elements(); ++i) numbers.memory<float>()[i] = uniform(random);
      kernels::Cast(numbers.view, x.view);
      kernels::Cast(x.view, wide.view);
      Tensor out(dtype, KeptOf(c)), back(DType::kF32, KeptOf(c)), want(DType::kF32, KeptOf(c));
      RunStep(KernelId::kReduce, kernels::ReduceParams{ReduceOp::kMean, c.mask}, x.view, out);
      kernels::ReduceReference(ReduceOp::kMean, wide.view, c.mask, want.view);
      kernels::Cast(out.view, back.view);
      for (int64_t i = 0; i < want.view.size(); ++i) {
        ASSERT_NEAR(back.memory<float>()[i], want.memory<float>()[i], want.memory<float>()[i] / 128);
      }
    }
  }
}

TEST(ArgExtremeKernel, FindsTheFirst) {
  std::mt19937 random(4);
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kI32}) {
    for (const bool greatest : {false, true}) {
      for (int dim = 0; dim < 3; ++dim) {
        // A block finds each result: few of them, and lines of more elements than a block has threads.
        Dims one{3, 2, 4}, many = one;
        one[static_cast<size_t>(dim)] = 1;
        many[static_cast<size_t>(dim)] = 700;
        for (const Dims& shape : {Dims{5, 40, 7}, one, many}) {
          Tensor x(dtype, shape, {.order = {1, 2, 0}});
          FillRandom(x, random);
          Dims kept = shape;
          kept.erase(kept.begin() + dim);
          Tensor out(DType::kI64, kept), want(DType::kI64, kept);
          RunStep(KernelId::kArgExtreme, kernels::ArgExtremeParams{dim, greatest}, x.view, out);
          kernels::ArgExtreme(greatest, x.view, dim, want.view);
          ASSERT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0);
        }
      }
    }
  }
}

TEST(CumSumKernel, AddsAlongEveryDimension) {
  std::mt19937 random(5);
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kI32}) {
    for (int dim = 0; dim < 3; ++dim) {
      for (const Dims& shape : {Dims{5, 40, 7}, Dims{3, 200, 2}, Dims{100, 1, 3}}) {
        Tensor x(dtype, shape, {.order = {2, 0, 1}}), out(dtype, shape), want(dtype, shape);
        if (dtype == DType::kF32) {
          std::uniform_real_distribution<float> numbers(-1, 1);
          for (size_t i = 0; i < x.elements(); ++i) x.memory<float>()[i] = numbers(random);
        } else {
          FillRandom(x, random);
        }
        RunStep(KernelId::kCumSum, kernels::CumSumParams{dim}, x.view, out);
        kernels::CumSum(x.view, dim, want.view);
        if (dtype == DType::kF32) {
          ExpectClose(out, want, 1e-7);
        } else {
          ASSERT_EQ(std::memcmp(out.view.data, want.view.data, want.num_bytes()), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace thresher::cuda::testing
