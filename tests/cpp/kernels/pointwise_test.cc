#include "thresher/kernels/pointwise.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/tensor_testing.h"

namespace thresher::kernels {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool};
constexpr DType kStoredTypes[] = {DType::kF32, DType::kI64, DType::kI32, DType::kBool, DType::kBF16, DType::kF16};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  Dims shape;
  Layout a;
  Layout b;
};

// Contiguous of every remainder, misaligned, scalars on either side, rows and columns broadcast, transposed, strided.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int64_t n = 0; n <= 67; ++n) cases.push_back({{n}, {}, {}});
  for (const int64_t n : {1, 5, 17, 1000}) {
    cases.push_back({{n}, {.offset = 1}, {}});
    cases.push_back({{n}, {}, {.broadcast = 1}});
    cases.push_back({{n}, {.broadcast = 1}, {.offset = 1}});
    cases.push_back({{n}, {.broadcast = 1}, {.broadcast = 1}});
    cases.push_back({{n}, {.step = 3}, {}});
  }
  cases.push_back({{}, {}, {}});
  cases.push_back({{7, 130}, {}, {.broadcast = 1}});                // a row for all
  cases.push_back({{7, 130}, {.broadcast = 2}, {}});                // a column for all
  cases.push_back({{7, 130}, {.broadcast = 2}, {.broadcast = 1}});  // outer product
  cases.push_back({{33, 50}, {.order = {1, 0}}, {}});               // transposed
  cases.push_back({{3, 4, 5, 6}, {.order = {2, 0, 3, 1}}, {.broadcast = 0b0101}});
  cases.push_back({{300, 3}, {}, {.broadcast = 1}});  // short rows
  cases.push_back({{2, 1, 40, 3}, {.order = {0, 2, 1, 3}}, {.broadcast = 0b1001}});
  cases.push_back({{2, 3, 70}, {.step = 2}, {.broadcast = 0b010, .offset = 1}});
  cases.push_back({{4, 0, 3}, {}, {}});
  cases.push_back({{2, 1, 3, 1, 2, 2, 3, 2}, {.order = {7, 1, 2, 3, 4, 5, 6, 0}}, {.broadcast = 0b10100}});
  return cases;
}

struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

Tolerance ToleranceOf(UnaryOp op) {
  switch (op) {
    case UnaryOp::kRsqrt:
      return {2e-7, 0};
    case UnaryOp::kExp:
    case UnaryOp::kLog:
    case UnaryOp::kSin:
    case UnaryOp::kCos:
      return {4e-7, 1e-40};
    case UnaryOp::kErf:
    case UnaryOp::kTanh:
    case UnaryOp::kSigmoid:
    case UnaryOp::kSilu:
      return {1e-6, 1e-37};
    case UnaryOp::kGelu:
    case UnaryOp::kGeluTanh:
      return {1e-6, 2e-6};
    default:
      return {};
  }
}

TEST(Pointwise, UnaryMatchesReference) {
  std::mt19937 random(1);
  ForEachIsa([&] {
    for (const UnaryOp op : AllUnaryOps()) {
      for (const DType dtype : kTypes) {
        if (!Supports(op, dtype)) continue;
        SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(dtype)));
        for (const Case& c : Cases()) {
          Tensor x(dtype, c.shape, c.a);
          FillRandom(x, random);
          Tensor want(ResultType(op, dtype), c.shape);
          UnaryReference(op, x.view, want.view);
          Tensor got(ResultType(op, dtype), c.shape, {.offset = c.b.offset});
          for (const int parts : kPartCounts) {
            got.Clear();
            for (int part = parts - 1; part >= 0; --part) Unary(op, x.view, got.view, part, parts);
            const Tolerance tolerance = ToleranceOf(op);
            ASSERT_TRUE(Same(got, want, tolerance.relative, tolerance.absolute))
                << ToString(c.shape) << " in " << parts;
          }
        }
      }
    }
  });
}

TEST(Pointwise, BinaryMatchesReference) {
  std::mt19937 random(2);
  ForEachIsa([&] {
    for (const BinaryOp op : AllBinaryOps()) {
      for (const DType dtype : kTypes) {
        if (!Supports(op, dtype)) continue;
        SCOPED_TRACE(std::string(Name(op)) + " " + std::string(Name(dtype)));
        for (const Case& c : Cases()) {
          Tensor a(dtype, c.shape, c.a);
          Tensor b(dtype, c.shape, c.b);
          FillRandom(a, random);
          FillRandom(b, random);
          // An exponent that is one value takes the short cuts of a test of their own.
          if (op == BinaryOp::kPow && dtype == DType::kF32) {
            for (size_t i = 0; i < b.elements(); ++i) b.memory<float>()[i] += 0.125f;
          }
          Tensor want(ResultType(op, dtype), c.shape);
          BinaryReference(op, a.view, b.view, want.view);
          Tensor got(ResultType(op, dtype), c.shape);
          for (const int parts : kPartCounts) {
            got.Clear();
            for (int part = 0; part < parts; ++part) Binary(op, a.view, b.view, got.view, part, parts);
            const double relative = op == BinaryOp::kPow || op == BinaryOp::kFloorDivide ? 1e-6 : 0;
            ASSERT_TRUE(Same(got, want, relative, relative * 1e-30)) << ToString(c.shape) << " in " << parts;
          }
        }
      }
    }
  });
}

TEST(Pointwise, WhereMatchesReference) {
  std::mt19937 random(3);
  ForEachIsa([&] {
    for (const DType dtype : kStoredTypes) {
      SCOPED_TRACE(std::string(Name(dtype)));
      for (const Case& c : Cases()) {
        for (const bool swap : {false, true}) {
          Tensor cond(DType::kBool, c.shape, swap ? c.b : c.a);
          Tensor a(dtype, c.shape, c.a);
          Tensor b(dtype, c.shape, c.b);
          for (Tensor* tensor : {&cond, &a, &b}) FillRandom(*tensor, random);
          Tensor want(dtype, c.shape);
          WhereReference(cond.view, a.view, b.view, want.view);
          Tensor got(dtype, c.shape);
          for (int part = 0; part < 3; ++part) Where(cond.view, a.view, b.view, got.view, part, 3);
          ASSERT_TRUE(Same(got, want)) << ToString(c.shape);
        }
      }
    }
  });
}

TEST(Pointwise, CastMatchesReference) {
  std::mt19937 random(4);
  ForEachIsa([&] {
    for (const DType from : kStoredTypes) {
      for (const DType to : kStoredTypes) {
        SCOPED_TRACE(std::string(Name(from)) + " to " + std::string(Name(to)));
        for (const Case& c : Cases()) {
          Tensor x(from, c.shape, c.a);
          FillRandom(x, random);
          Tensor want(to, c.shape);
          CastReference(x.view, want.view);
          Tensor got(to, c.shape);
          for (int part = 0; part < 3; ++part) Cast(x.view, got.view, part, 3);
          ASSERT_TRUE(Same(got, want)) << ToString(c.shape);
        }
      }
    }
  });
}

// Every float of 16 bits, what lies half way to its neighbours, and the least change of that, by vectors as one by one.
TEST(Pointwise, HalvesRoundAsOneByOne) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    for (const float value : {ToFloat(BF16{static_cast<uint16_t>(bits)}), ToFloat(F16{static_cast<uint16_t>(bits)})}) {
      const uint32_t word = std::bit_cast<uint32_t>(value);
      for (const uint32_t more : {0u, 0xfffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u}) {
        x.push_back(std::bit_cast<float>(word + more));
      }
    }
  }
  const int64_t n = static_cast<int64_t>(x.size());
  const View view = MakeView(x.data(), DType::kF32, {n});
  std::vector<uint16_t> stored(x.size());
  std::vector<float> rounded(x.size());
  ForEachIsa([&] {
    for (const DType to : {DType::kBF16, DType::kF16}) {
      Cast(view, MakeView(stored.data(), to, {n}));
      Unary(to == DType::kBF16 ? UnaryOp::kRoundBF16 : UnaryOp::kRoundF16, view,
            MakeView(rounded.data(), DType::kF32, {n}));
      for (size_t i = 0; i < x.size(); ++i) {
        const uint16_t want = to == DType::kBF16 ? ToBF16(x[i]).bits : ToF16(x[i]).bits;
        const float back = Rounded(x[i], to);
        if (std::isnan(x[i])) {
          ASSERT_TRUE(std::isnan(rounded[i]) && std::isnan(back)) << x[i];
          continue;
        }
        ASSERT_EQ(stored[i], want) << x[i] << " to " << Name(to);
        ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), std::bit_cast<uint32_t>(back)) << x[i] << " to " << Name(to);
      }
    }
  });
}

TEST(Pointwise, OutputMayBeAnOperand) {
  std::mt19937 random(5);
  ForEachIsa([&] {
    for (const int64_t n : {1, 7, 64, 1001}) {
      Tensor x(DType::kF32, {n});
      Tensor row(DType::kF32, {n}, {.broadcast = 1});
      FillRandom(x, random, /*corners=*/false);
      FillRandom(row, random, /*corners=*/false);
      Tensor want(DType::kF32, {n});
      BinaryReference(BinaryOp::kSub, row.view, x.view, want.view);
      Binary(BinaryOp::kSub, row.view, x.view, x.view);
      EXPECT_TRUE(Same(x, want));
      UnaryReference(UnaryOp::kNeg, x.view, want.view);
      Unary(UnaryOp::kNeg, x.view, x.view);
      EXPECT_TRUE(Same(x, want));
    }
  });
}

// Results of torch 2.13, which the reference shall not be trusted to share.
TEST(Pointwise, CornersAreTorchs) {
  const std::vector<float> x = {kNan, kInf, -kInf, 0.0f, -0.0f, 2.5f, -2.5f, 3e9f, -1e19f};
  const int64_t n = static_cast<int64_t>(x.size());
  std::vector<float> input = x;
  const View view = MakeView(input.data(), DType::kF32, {n});
  constexpr int32_t kMin32 = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
  ForEachIsa([&] {
    const auto unary = [&](UnaryOp op) {
      std::vector<float> out(x.size());
      Unary(op, view, MakeView(out.data(), DType::kF32, {n}));
      return out;
    };
    const auto expect = [](const std::vector<float>& got, const std::vector<float>& want) {
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(Close(got[i], want[i], 0, 0)) << i << ": " << got[i];
    };
    expect(unary(UnaryOp::kSign), {0, 1, -1, 0, 0, 1, -1, 1, -1});
    expect(unary(UnaryOp::kRound), {kNan, kInf, -kInf, 0, -0.0f, 2, -2, 3e9f, -1e19f});
    expect(unary(UnaryOp::kRelu), {kNan, kInf, 0, 0, 0, 2.5f, 0, 3e9f, 0});
    const std::vector<float> silu = unary(UnaryOp::kSilu);
    EXPECT_TRUE(std::isnan(silu[0]) && std::isnan(silu[2]) && silu[1] == kInf);
    const std::vector<float> gelu = unary(UnaryOp::kGelu);
    EXPECT_TRUE(std::isnan(gelu[0]) && std::isnan(gelu[2]) && gelu[1] == kInf);

    std::vector<int32_t> i32(x.size());
    Cast(view, MakeView(i32.data(), DType::kI32, {n}));
    EXPECT_EQ(i32, (std::vector<int32_t>{kMin32, kMin32, kMin32, 0, 0, 2, -2, kMin32, kMin32}));
    std::vector<int64_t> i64(x.size());
    Cast(view, MakeView(i64.data(), DType::kI64, {n}));
    EXPECT_EQ(i64, (std::vector<int64_t>{kMin64, kMin64, kMin64, 0, 0, 2, -2, 3000000000, kMin64}));
    std::vector<uint8_t> truth(x.size());
    Cast(view, MakeView(truth.data(), DType::kBool, {n}));
    EXPECT_EQ(truth, (std::vector<uint8_t>{1, 1, 1, 0, 0, 1, 1, 1, 1}));
    Unary(UnaryOp::kLogicalNot, view, MakeView(truth.data(), DType::kBool, {n}));
    EXPECT_EQ(truth, (std::vector<uint8_t>{0, 0, 0, 1, 1, 0, 0, 0, 0}));

    float half = 0.5f;
    View exponent = MakeView(&half, DType::kF32, {n});
    exponent.strides[0] = 0;
    std::vector<float> root(x.size());
    Binary(BinaryOp::kPow, view, exponent, MakeView(root.data(), DType::kF32, {n}));
    EXPECT_TRUE(std::isnan(root[2]));  // a square root, not pow(-inf, 0.5)

    std::vector<int64_t> base = {0, 1, -1, 2, -2, 3};
    std::vector<int64_t> power = {-1, -3, -3, -2, 63, 41};
    std::vector<int64_t> result(6);
    Binary(BinaryOp::kPow, MakeView(base.data(), DType::kI64, {6}), MakeView(power.data(), DType::kI64, {6}),
           MakeView(result.data(), DType::kI64, {6}));
    EXPECT_EQ(result, (std::vector<int64_t>{0, 1, -1, 0, kMin64, -420491770248316829}));

    std::vector<float> left = {kNan, 1, kNan, -0.0f};
    std::vector<float> right = {1, kNan, kNan, 0.0f};
    std::vector<uint8_t> test(4);
    const auto binary = [&](BinaryOp op) {
      Binary(op, MakeView(left.data(), DType::kF32, {4}), MakeView(right.data(), DType::kF32, {4}),
             MakeView(test.data(), DType::kBool, {4}));
      return test;
    };
    EXPECT_EQ(binary(BinaryOp::kEq), (std::vector<uint8_t>{0, 0, 0, 1}));
    EXPECT_EQ(binary(BinaryOp::kNe), (std::vector<uint8_t>{1, 1, 1, 0}));
    EXPECT_EQ(binary(BinaryOp::kGe), (std::vector<uint8_t>{0, 0, 0, 1}));
    EXPECT_EQ(binary(BinaryOp::kLogicalAnd), (std::vector<uint8_t>{1, 1, 1, 0}));
    for (const BinaryOp op : {BinaryOp::kMaximum, BinaryOp::kMinimum}) {
      std::vector<float> most(4);
      Binary(op, MakeView(left.data(), DType::kF32, {4}), MakeView(right.data(), DType::kF32, {4}),
             MakeView(most.data(), DType::kF32, {4}));
      EXPECT_TRUE(std::isnan(most[0]) && std::isnan(most[1]) && std::isnan(most[2]));
    }
  });
}

TEST(Pointwise, PowerShortCuts) {
  std::mt19937 random(6);
  ForEachIsa([&] {
    for (const float exponent : {2.0f, 3.0f, -1.0f, 0.5f, -0.5f, 4.0f}) {
      Tensor x(DType::kF32, {37, 2});
      FillRandom(x, random, /*corners=*/false);
      Tensor power(DType::kF32, {37, 2}, {.broadcast = 3});
      *power.memory<float>() = exponent;
      Tensor want(DType::kF32, {37, 2});
      BinaryReference(BinaryOp::kPow, x.view, power.view, want.view);
      Tensor got(DType::kF32, {37, 2});
      Binary(BinaryOp::kPow, x.view, power.view, got.view);
      EXPECT_TRUE(Same(got, want, 3e-7)) << exponent;
    }
  });
}

// Angles in every quadrant, at multiples of pi/2, where the reduction has the most to lose, and beyond its limit.
TEST(Pointwise, SineAndCosineKeepTheirDigits) {
  std::vector<float> angles;
  for (int64_t turn = 1; turn < 700000; turn = turn * 5 / 4 + 1) {
    const float angle = static_cast<float>(static_cast<double>(turn) * 1.5707963267948966);
    for (const float sign : {1.0f, -1.0f}) {
      angles.push_back(sign * angle);
      angles.push_back(sign * std::nextafter(angle, 0.0f));
      angles.push_back(sign * (angle + 0.7f));
    }
  }
  for (const float x : {999999.9f, 1e6f, 1e9f, 1e30f}) angles.push_back(x);
  const int64_t n = static_cast<int64_t>(angles.size());
  const View x = MakeView(angles.data(), DType::kF32, {n});
  ForEachIsa([&] {
    for (const UnaryOp op : {UnaryOp::kSin, UnaryOp::kCos}) {
      std::vector<float> want(angles.size());
      std::vector<float> got(angles.size());
      UnaryReference(op, x, MakeView(want.data(), DType::kF32, {n}));
      Unary(op, x, MakeView(got.data(), DType::kF32, {n}));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(Close(got[i], want[i], 2e-7, 0))
            << Name(op) << "(" << angles[i] << ") is " << got[i] << ", expected " << want[i];
      }
    }
  });
}

TEST(Pointwise, NamesParse) {
  std::set<std::string_view> names;
  for (const UnaryOp op : AllUnaryOps()) {
    EXPECT_EQ(ParseUnary(Name(op)), op);
    EXPECT_FALSE(Doc(op).empty());
    names.insert(Name(op));
  }
  for (const BinaryOp op : AllBinaryOps()) {
    EXPECT_EQ(ParseBinary(Name(op)), op);
    EXPECT_FALSE(Doc(op).empty());
    names.insert(Name(op));
  }
  EXPECT_EQ(names.size(), AllUnaryOps().size() + AllBinaryOps().size());
  EXPECT_EQ(ParseUnary("add"), std::nullopt);
  EXPECT_EQ(ParseBinary("neg"), std::nullopt);
}

}  // namespace
}  // namespace thresher::kernels
