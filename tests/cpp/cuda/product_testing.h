// Products of kernels of our own against float64.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "kernels/float_testing.h"
#include "thresher/base/half.h"
#include "thresher/cuda/gemm_layout.h"

namespace thresher::cuda::testing {

using kernels::Activation;
using kernels::testing::RandomFloats;

inline constexpr float kGuard = 777;

// Numbers of a float type.
class Numbers {
 public:
  Numbers(DType dtype, const std::vector<float>& from) : dtype_(dtype), bytes_(from.size() * SizeOf(dtype) + 16) {
    for (size_t i = 0; i < from.size(); ++i) Set(i, from[i]);
  }
  void* data() { return Start(); }
  float operator[](size_t i) const {
    const auto* const halves = reinterpret_cast<const uint16_t*>(Start());
    if (dtype_ == DType::kBF16) return ToFloat(BF16{halves[i]});
    return dtype_ == DType::kF16 ? ToFloat(F16{halves[i]}) : reinterpret_cast<const float*>(Start())[i];
  }

 private:
  void Set(size_t i, float x) {
    auto* const halves = reinterpret_cast<uint16_t*>(Start());
    if (dtype_ == DType::kF32) reinterpret_cast<float*>(Start())[i] = x;
    if (dtype_ == DType::kBF16) halves[i] = ToBF16(x).bits;
    if (dtype_ == DType::kF16) halves[i] = ToF16(x).bits;
  }
  std::byte* Start() const {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return const_cast<std::byte*>(bytes_.data()) + (16 - address % 16) % 16;
  }

  DType dtype_;
  std::vector<std::byte> bytes_;
};

inline double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
    default:
      return x;
  }
}

inline double Unit(DType dtype) {
  if (dtype == DType::kF32) return 1.2e-7;
  return dtype == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
}

struct Case {
  int64_t m, n, k;
  DType type = DType::kF32;
  DType c_type = DType::kF32;
  int64_t extra = 0;  // elements between rows
  bool bias = true;
  bool residual = true;
  Activation activation = Activation::kNone;
  bool residual_first = false;
  bool dense = false;  // no elements between rows of the result
};

// launch(launcher, gemm) gives what a launcher does.
template <class Launch>
void CheckProduct(const Case& c, Launch launch) {
  SCOPED_TRACE(std::to_string(c.m) + " x " + std::to_string(c.n) + " x " + std::to_string(c.k) + " " +
               std::string(Name(c.type)) + " to " + std::string(Name(c.c_type)));
  const int64_t lda = c.k + c.extra, ldc = c.n + (c.dense ? 0 : c.extra);
  const auto count = [](int64_t size) { return static_cast<size_t>(size); };
  Numbers a(c.type, RandomFloats(count(c.m * lda), 1)), b(c.type, RandomFloats(count(c.n * lda), 2));
  Numbers bias(c.c_type, RandomFloats(count(c.n), 3)), residual(c.c_type, RandomFloats(count(c.m * ldc), 4));
  std::vector<float> first;
  for (const Order order : {Order::kForward, Order::kBackward}) {
    Numbers out(c.c_type, std::vector<float>(count(c.m * ldc), kGuard));
    Gemm g{};
    g.m = c.m, g.n = c.n, g.k = c.k, g.batch = 1;
    g.lda = g.ldb = lda, g.ldc = g.ldr = ldc;
    g.transpose_b = true;
    g.activation = c.activation;
    g.residual_first = c.residual_first;
    g.encoding = *EncodingOf(c.type);
    g.type = c.type, g.c_type = c.c_type;
    g.a = a.data(), g.b = b.data(), g.c = out.data();
    if (c.bias) g.bias = bias.data();
    if (c.residual) g.residual = residual.data();
    ASSERT_EQ(CheckGemm(g), "");
    ASSERT_EQ(launch(Launcher{order}, g), "");
    std::vector<float> found;
    for (int64_t i = 0; i < c.m * ldc; ++i) found.push_back(out[count(i)]);
    for (int64_t row = 0; row < c.m; ++row) {
      for (int64_t col = 0; col < ldc; ++col) {
        const float x = found[count(row * ldc + col)];
        if (col >= c.n) {
          ASSERT_EQ(x, Rounded(kGuard, c.c_type));
          continue;
        }
        double sum = c.bias ? bias[count(col)] : 0, absolute = std::abs(sum);
        for (int64_t i = 0; i < c.k; ++i) {
          const double product = static_cast<double>(a[count(row * lda + i)]) * b[count(col * lda + i)];
          sum += product;
          absolute += std::abs(product);
        }
        const double added = c.residual ? residual[count(row * ldc + col)] : 0;
        const double want =
            c.residual_first ? Activated(c.activation, sum + added) : Activated(c.activation, sum) + added;
        const double allowed =
            2e-7 * std::sqrt(static_cast<double>(c.k)) * absolute + 1e-6 + Unit(c.c_type) * (std::abs(want) + 1e-3);
        ASSERT_NEAR(x, want, allowed) << row << ", " << col;
      }
    }
    if (order == Order::kForward) first = found;
    ASSERT_EQ(found, first);
  }
}

// A product of factors in bf16 without gaps, which kernels of our own take, to be changed into what they do not.
class HalfProduct {
 public:
  HalfProduct(int64_t m, Activation activation) {
    g_.m = m, g_.n = 4, g_.k = 64, g_.batch = 1, g_.lda = g_.ldb = 64, g_.ldc = 4;
    g_.transpose_b = true;
    g_.activation = activation;
    g_.encoding = Encoding::kBf16;
    g_.type = g_.c_type = DType::kBF16;
    g_.a = a_.data(), g_.b = b_.data();
  }
  HalfProduct(const HalfProduct&) = delete;
  HalfProduct& operator=(const HalfProduct&) = delete;

  const Gemm& gemm() const { return g_; }
  template <class Change>
  Gemm With(Change change) const {
    Gemm changed = g_;
    change(changed);
    return changed;
  }

  // Other layouts, rows that cannot be loaded 16 bytes at a time, batches, weights in blocks.
  void ExpectOthersRefused(bool (*takes)(const Gemm&)) const {
    EXPECT_TRUE(takes(g_));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.k = 60; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.lda = 68; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.ldb = 65; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.transpose_b = false; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.transpose_a = true; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.batch = 2; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.a = static_cast<const uint16_t*>(c.a) + 4; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.b = static_cast<const uint16_t*>(c.b) + 4; })));
    EXPECT_FALSE(takes(With([](Gemm& c) { c.encoding = Encoding::kQ4_0; })));
  }

 private:
  Numbers a_{DType::kBF16, std::vector<float>(4096)}, b_{DType::kBF16, std::vector<float>(4096)};
  Gemm g_{};
};

}  // namespace thresher::cuda::testing
