// The device's products of runs of rows, on the emulator, against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/emulator.h"
#include "cuda/stored_floats.h"
#include "kernels/float_testing.h"
#include "thresher/cuda/grouped.h"
#include "thresher/kernels/block_format.h"

namespace thresher::cuda::testing {
namespace {

using kernels::StoredGroupsParams;
using kernels::testing::RandomFloats;

struct Case {
  int64_t rows, n, k;
  std::vector<int64_t> ends;
  DType type = DType::kF32;
  Encoding blocks = Encoding::kF32;  // of the weights; kF32: they have the type
  bool narrow = false;               // the result has the type, else it is f32
  int64_t extra = 0;                 // elements between rows of x
  size_t offset = 0;                 // elements before the first of x and of the weights
  DType ends_type = DType::kI64;
};

// The operands of one call, with what they point at.
class Groups {
 public:
  explicit Groups(const Case& c)
      : c_(c), x_(RandomFloats(static_cast<size_t>(c.rows * (c.k + c.extra)), 1), c.type, c.offset) {
    const bool blocked = IsBlocked(c.blocks);
    p_ = {
        c.rows, c.n, c.k, c.k + c.extra, static_cast<int32_t>(c.ends.size()), blocked ? c.blocks : *EncodingOf(c.type)};
    for (size_t g = 0; g < c.ends.size(); ++g) {
      std::vector<float> numbers = RandomFloats(static_cast<size_t>(c.n * c.k), static_cast<unsigned>(7 + g));
      if (blocked) {
        blocks_.emplace_back(static_cast<size_t>(EncodedBytes(c.blocks, c.n * c.k)));
        EXPECT_TRUE(kernels::EncodeNumbers(c.blocks, numbers.data(), c.n * c.k, 32, blocks_.back().data()).ok());
        kernels::DecodeNumbers(c.blocks, blocks_.back().data(), c.n * c.k, numbers.data());
        // Halves multiply by halves.
        for (float& x : numbers) x = Rounded(x, c.type);
      } else {
        floats_.push_back(std::make_unique<StoredFloats>(numbers, c.type, c.offset));
        numbers = floats_.back()->values();
      }
      weights_.push_back(std::move(numbers));
    }
    for (const int64_t end : c.ends) narrow_ends_.push_back(static_cast<int32_t>(end));
  }

  // In an order; what is found wrong is in `fault`.
  std::vector<float> Run(Order order, Fault& fault) {
    const DType type = c_.narrow ? c_.type : DType::kF32;
    const auto count = static_cast<int64_t>(c_.ends.size());
    StoredFloats out(std::vector<float>(static_cast<size_t>(c_.rows * c_.n), std::nanf("")), type);
    std::vector<View> views = {MakeView(x_.data(), c_.type, {c_.rows, c_.k})};
    views[0].strides[0] = p_.lda;
    views.push_back(c_.ends_type == DType::kI64 ? MakeView(c_.ends.data(), DType::kI64, {count})
                                                : MakeView(narrow_ends_.data(), DType::kI32, {count}));
    for (size_t g = 0; g < c_.ends.size(); ++g) {
      views.push_back(IsBlocked(c_.blocks) ? MakeView(blocks_[g].data(), DType::kF32, {c_.n, c_.k})
                                           : MakeView(floats_[g]->data(), c_.type, {c_.n, c_.k}));
    }
    views.push_back(MakeView(out.data(), type, {c_.rows, c_.n}));
    fault = {};
    const Call call{static_cast<uint32_t>(KernelId::kGroupedProduct),
                    &p_,
                    sizeof p_,
                    views.data(),
                    static_cast<int32_t>(views.size()),
                    nullptr,
                    &fault};
    EXPECT_EQ(GroupedFamily::Check(call).problem, "");
    EXPECT_EQ(GroupedFamily::Launch(Launcher{order}, call), "");
    return out.values();
  }

  void Check() {
    SCOPED_TRACE(std::to_string(c_.rows) + " x " + std::to_string(c_.n) + " x " + std::to_string(c_.k) + " " +
                 std::string(Name(c_.type)) + " " + std::string(Name(p_.encoding)) + " groups " +
                 std::to_string(c_.ends.size()));
    Fault fault;
    const std::vector<float> found = Run(Order::kForward, fault);
    EXPECT_EQ(fault.raised, 0u);
    const std::vector<float> x = x_.values();
    const double unit = c_.narrow ? Tolerance(c_.type) : 0;
    for (int64_t row = 0; row < c_.rows; ++row) {
      size_t group = 0;
      while (group < c_.ends.size() && c_.ends[group] <= row) ++group;
      for (int64_t col = 0; col < c_.n; ++col) {
        double sum = 0, absolute = 0;
        for (int64_t i = 0; i < c_.k && group < c_.ends.size(); ++i) {
          const double product = static_cast<double>(x[static_cast<size_t>(row * p_.lda + i)]) *
                                 weights_[group][static_cast<size_t>(col * c_.k + i)];
          sum += product;
          absolute += std::abs(product);
        }
        const double allowed = 2e-7 * std::sqrt(static_cast<double>(c_.k)) * absolute + unit * std::abs(sum) + 1e-7;
        ASSERT_NEAR(found[static_cast<size_t>(row * c_.n + col)], sum, allowed) << row << ", " << col;
      }
    }
    const std::vector<float> again = Run(Order::kBackward, fault);
    EXPECT_EQ(again, found);
  }

 private:
  Case c_;
  StoredFloats x_;
  StoredGroupsParams p_;
  std::vector<std::vector<float>> weights_;  // as the kernel has them
  std::vector<std::vector<uint8_t>> blocks_;
  std::vector<std::unique_ptr<StoredFloats>> floats_;
  std::vector<int32_t> narrow_ends_;
};

TEST(GroupedKernel, RunsOfAllLengths) {
  for (const DType type : kTypes) {
    for (const bool narrow : {false, true}) {
      Groups({5, 70, 64, {1, 1, 4, 5}, type, Encoding::kF32, narrow}).Check();
      Groups({40, 33, 96, {0, 17, 33, 39}, type, Encoding::kF32, narrow}).Check();  // a row of no run
      Groups({150, 130, 40, {65, 149}, type, Encoding::kF32, narrow}).Check();      // tiles of many rows
      Groups({130, 20, 200, {0, 128, 128}, type, Encoding::kF32, narrow}).Check();
      Groups({16, 8, 32, {0, 0, 0}, type, Encoding::kF32, narrow}).Check();
    }
  }
}

TEST(GroupedKernel, RowsThatLieAnywhere) {
  for (const DType type : kTypes) {
    Groups({20, 24, 64, {7, 20}, type, Encoding::kF32, true, 8, 0, DType::kI32}).Check();
    Groups({20, 24, 37, {7, 20}, type, Encoding::kF32, true, 3}).Check();
    Groups({60, 17, 32, {60}, type, Encoding::kF32, true, 0, 1}).Check();
  }
}

TEST(GroupedKernel, WeightsInBlocks) {
  for (const DType type : kTypes) {
    for (const Encoding blocks : {Encoding::kQ8_0, Encoding::kQ4_0, Encoding::kQ4_1}) {
      Groups({9, 70, 96, {4, 4, 9}, type, blocks, true}).Check();
      Groups({70, 131, 64, {66}, type, blocks, false}).Check();
    }
  }
}

TEST(GroupedKernel, EndsThatFallAreTold) {
  Fault fault;
  const auto told = [&](const std::vector<int64_t>& ends) {
    Groups({8, 4, 32, ends, DType::kBF16}).Run(Order::kForward, fault);
    EXPECT_EQ(fault.raised, 1u);
    return Describe(fault);
  };
  const std::string text = "grouped_linear: expected ends that do not fall, from 0 to 8, got ";
  EXPECT_EQ(told({3, 2, 8}), text + "2 for group 1 after 3");
  EXPECT_EQ(told({3, 9}), text + "9 for group 1 after 3");
  EXPECT_EQ(told({-1, 8}), text + "-1 for group 0 after 0");
}

TEST(GroupedKernel, SaysWhatItDoesNotTake) {
  StoredGroupsParams p{4, 8, 32, 32, 1, Encoding::kF32};
  View views[] = {MakeView(nullptr, DType::kBF16, {4, 32}), MakeView(nullptr, DType::kI64, {1}),
                  MakeView(nullptr, DType::kF32, {8, 32}), MakeView(nullptr, DType::kF32, {4, 8})};
  const Call call{static_cast<uint32_t>(KernelId::kGroupedProduct), &p, sizeof p, views, 4};
  EXPECT_NE(GroupedFamily::Check(call).problem.find("got bf16 and f32"), std::string::npos);
  p.encoding = Encoding::kQ6K;
  EXPECT_NE(GroupedFamily::Check(call).problem.find("got bf16 and q6_k"), std::string::npos);
  p.groups = 2;
  EXPECT_NE(GroupedFamily::Check(call).problem.find("expected 40 bytes of parameters and 5 operands"),
            std::string::npos);
}

}  // namespace
}  // namespace thresher::cuda::testing
