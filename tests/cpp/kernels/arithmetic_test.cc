#include "thresher/kernels/arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "kernels/for_each_isa.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/peaks.h"

namespace thresher::kernels {
namespace {

using ::testing::HasSubstr;

class ArithmeticTest : public ::testing::Test {
 protected:
  static void Choose(const char* value) { setenv("THRESHER_SMALL_PRODUCTS", value, 1); }
  void SetUp() override { unsetenv("THRESHER_SMALL_PRODUCTS"); }
  void TearDown() override { unsetenv("THRESHER_SMALL_PRODUCTS"); }
};

// Beside products of bf16, int8 has to earn what quantising and scaling take, of a matrix unit more.
TEST_F(ArithmeticTest, Int8PaysWhereProductsAreLarge) {
  ForEachIsa([] {
    const bool bf16 = StoresRows(RowForm::kBF16) && MultipliesBf16(), unit = HasBf16Tiles();
    EXPECT_EQ(unit, bf16 && isa::CurrentTiles() != isa::Tiles::kNone);
    EXPECT_TRUE(Int8Pays(1152, 384));
    EXPECT_TRUE(Int8Pays(256, 512));
    EXPECT_EQ(Int8Pays(64, 256), !unit);
    EXPECT_EQ(Int8Pays(256, 64), !unit);
    EXPECT_EQ(Int8Pays(24, 576), !bf16);
    EXPECT_EQ(Int8Pays(576, 16), !bf16);
    EXPECT_EQ(Int8Pays(0, 0), !bf16);
    Choose("always");
    EXPECT_TRUE(Int8Pays(1, 1));
    unsetenv("THRESHER_SMALL_PRODUCTS");
  });
}

// Beside floats alone it has to earn them, too, and more where those take fewer multiplications.
TEST_F(ArithmeticTest, Int8BeatsFloatsWhereProductsAreLarge) {
  ForEachIsa([] {
    const bool bf16 = MultipliesBf16();
    const float rate = MeasureRelativeRates().int8;
    EXPECT_EQ(Int8BeatsFloats(0, 0, 1), bf16);
    EXPECT_EQ(Int8BeatsFloats(24, 24, 1), bf16);
    EXPECT_EQ(Int8BeatsFloats(1024, 1024, 0.05), bf16);
    // Rates that are near what is asked for may be measured either way.
    if (rate > 1.5F) {
      EXPECT_TRUE(Int8BeatsFloats(1024, 1024, 1));
    }
    if (rate < 3.5F) {
      EXPECT_EQ(Int8BeatsFloats(1024, 1024, 0.25), bf16);
    }
    Choose("always");
    EXPECT_TRUE(Int8BeatsFloats(1, 1, 0.1));
    unsetenv("THRESHER_SMALL_PRODUCTS");
  });
}

// Zeros cost tiles nothing; vectors multiply half as many pairs of three channels in four as floats, of two as many.
TEST_F(ArithmeticTest, FewChannelsAreFilledWhereBf16SavesMore) {
  ForEachIsaAndPlainTiles([] {
    const bool bf16 = MultipliesBf16(), unit = HasBf16Tiles();
    for (const int64_t channels : {1, 2}) EXPECT_EQ(FillsChannels(channels), unit);
    for (const int64_t channels : {3, 4}) EXPECT_EQ(FillsChannels(channels), bf16);
    EXPECT_FALSE(FillsChannels(5));
  });
}

TEST_F(ArithmeticTest, TheFasterWayIsTaken) {
  ForEachIsa([] {
    const RelativeRates rates = MeasureRelativeRates();
    EXPECT_GT(rates.int8, 0.05F);
    EXPECT_LT(rates.int8, 50);
    EXPECT_EQ(rates.bf16 > 0, Bf16Dots());
    // Rates next to each other may be measured either way.
    if (std::abs(rates.int8 - 1) > 0.2F) {
      EXPECT_EQ(MultipliesInt8(), rates.int8 > 1);
    }
    if (std::abs(rates.bf16 - 1) > 0.2F) {
      EXPECT_EQ(MultipliesBf16(), rates.bf16 > 1);
    }
    EXPECT_EQ(RowsFor(Precision::kBf16, 100) == RowForm::kBF16, MultipliesBf16());
  });
}

TEST_F(ArithmeticTest, TheEnvironmentDecides) {
  ForEachIsa([] {
    Choose("always");
    EXPECT_EQ(MultipliesBf16(), Bf16Dots());
    EXPECT_EQ(RowsFor(Precision::kBf16, 100), Bf16Dots() ? RowForm::kBF16 : RowForm::kF32);
    EXPECT_TRUE(MultipliesInt8());
    EXPECT_EQ(ArithmeticFor(Precision::kInt8).precision, Precision::kInt8);
    Choose("never");
    EXPECT_FALSE(MultipliesBf16());
    EXPECT_FALSE(MultipliesInt8());
    EXPECT_EQ(RowsFor(Precision::kBf16, 100), RowForm::kF32);
    EXPECT_EQ(ArithmeticFor(Precision::kInt8).precision, Precision::kInt8Weight);
    EXPECT_THAT(ArithmeticFor(Precision::kInt8).why, HasSubstr("THRESHER_SMALL_PRODUCTS"));
    EXPECT_EQ(ArithmeticFor(Precision::kBf16).precision, Precision::kBf16);
    EXPECT_THAT(ArithmeticFor(Precision::kBf16).why, HasSubstr("THRESHER_SMALL_PRODUCTS"));
  });
}

TEST_F(ArithmeticTest, ReasonsSayWhatIsNotAsAsked) {
  ForEachIsa([] {
    for (const Precision precision : {Precision::kFp32, Precision::kFp16, Precision::kInt8Weight}) {
      EXPECT_EQ(ArithmeticFor(precision).precision, precision);
      EXPECT_EQ(ArithmeticFor(precision).why, "");
    }
    const Arithmetic bf16 = ArithmeticFor(Precision::kBf16);
    EXPECT_EQ(bf16.why.empty(), MultipliesBf16());
    if (!Bf16Dots()) {
      EXPECT_THAT(bf16.why, HasSubstr("this instruction set does not multiply bf16"));
    }
    if (Bf16Dots() && !MultipliesBf16()) {
      EXPECT_THAT(bf16.why, HasSubstr("times its rate on this machine"));
    }
  });
}

}  // namespace
}  // namespace thresher::kernels
