#include "thresher/kernels/blocking.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"
#include "thresher/base/cpu.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher::kernels {
namespace {

TEST(BlockingTest, NamesRoundTrip) {
  for (const Split split : {Split::kAuto, Split::kRows, Split::kPanels}) EXPECT_EQ(ParseSplit(Name(split)), split);
  for (const Variant variant : {Variant::kAuto, Variant::kDirect, Variant::kWidened}) {
    EXPECT_EQ(ParseVariant(Name(variant)), variant);
  }
  EXPECT_FALSE(ParseSplit("columns").has_value());
  EXPECT_FALSE(ParseVariant("").has_value());
}

TEST(BlockingTest, DefaultsFollowTheCaches) {
  const size_t l1 = static_cast<size_t>(Caches().l1);
  const size_t panel = PanelBlockBytes({}, 4);
  EXPECT_LE(panel, static_cast<size_t>(kMostPanelKib) * 1024);
  EXPECT_EQ(panel, std::clamp<size_t>(l1 / 4 * 3, 8 << 10, 64 << 10));
  for (const int rows : {6, 14}) {
    EXPECT_EQ(PanelBlockBytes({}, rows), std::clamp<size_t>(l1 / 4 * 6, 8 << 10, 64 << 10));
  }
  EXPECT_GE(PanelBlockBytes({}, TileRows()), panel);
  // Rows of which a few fit, all fit, and none fits.
  const size_t l2 = static_cast<size_t>(Caches().l2);
  EXPECT_EQ(BlockRows({}, l2 / 2 / 120), 120u);
  EXPECT_EQ(BlockRows({}, 4), 144u);
  EXPECT_EQ(BlockRows({}, 0), 144u);
  EXPECT_EQ(BlockRows({}, l2), 96u);
}

TEST(BlockingTest, ChoicesAreTakenWithinTheBounds) {
  EXPECT_EQ(PanelBlockBytes({.panel_kib = 5}, 14), size_t{5} << 10);
  EXPECT_EQ(BlockRows({.most_rows = 7}, 1 << 20), 7u);
  constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(PanelBlockBytes({.panel_kib = kHuge}, 6), size_t{kMostPanelKib} << 10);
  EXPECT_EQ(BlockRows({.most_rows = kHuge}, 1), size_t{kMostBlockRows});
}

TEST(BlockingTest, LongRowsOfFloatsAreGathered) {
  float result = 0;
  GemmArgs args;
  args.m = 1000, args.n = 8 * PackedColumns();
  args.k = args.lda = Caches().l2;  // four times as many bytes
  args.c = &result;
  const size_t plain = BlockRows(args.blocking, static_cast<size_t>(args.k) * sizeof(float));
  const size_t gathered = BlockRows(args, 1000, 8);
  EXPECT_NE(gathered, plain);
  EXPECT_LE(gathered, size_t{kMostBlockRows});
  // Fewer than those that were asked for, never more.
  args.blocking.most_rows = 7;
  EXPECT_EQ(BlockRows(args, 1000, 8), 7u);
  args.blocking.most_rows = 0;
  // Too few panels share the copy; the sums may not wait in what is added to them.
  EXPECT_EQ(BlockRows(args, 1000, 3), plain);
  args.residual = args.c;
  EXPECT_EQ(BlockRows(args, 1000, 8), plain);
}

TEST(BlockingTest, WhatIsOutOfBoundsIsNamed) {
  EXPECT_TRUE(CheckBlocking({}).ok());
  EXPECT_TRUE(CheckBlocking({kMostPanelKib, kMostBlockRows}).ok());
  const Status panel = CheckBlocking({.panel_kib = kMostPanelKib + 1});
  EXPECT_NE(panel.message().find("panel_kib: expected 0 or 1 to 64, got 65"), std::string::npos) << panel.message();
  const Status rows = CheckBlocking({.most_rows = -1});
  EXPECT_NE(rows.message().find("most_rows: expected 0 to 288, got -1"), std::string::npos) << rows.message();
}

TEST(BlockingTest, SplitDecidesWhatThePartsShare) {
  const int64_t panels = (200 + PackedColumns() - 1) / PackedColumns();
  for (int part = 0; part < 3; ++part) {
    const PanelRange rows = ShareOfProduct(30, 200, part, 3, Split::kRows);
    EXPECT_EQ(rows.row_end - rows.row_begin, 10u);
    EXPECT_EQ(rows.panel_end - rows.panel_begin, static_cast<size_t>(panels));
    const PanelRange columns = ShareOfProduct(30, 200, part, 3, Split::kPanels);
    EXPECT_EQ(columns.row_end - columns.row_begin, 30u);
    EXPECT_LT(columns.panel_end - columns.panel_begin, static_cast<size_t>(panels));
  }
}

TEST(BlockingTest, VariantDecidesTheRowsOf4BitWeights) {
  for (const int64_t m : {1, 8, 9, 300}) {
    EXPECT_EQ(RowsFor(Precision::kInt4Weight, m, Variant::kDirect), RowForm::kInt16);
    EXPECT_EQ(RowsFor(Precision::kInt4Weight, m, Variant::kWidened), RowForm::kF32);
    EXPECT_EQ(RowsFor(Precision::kInt4Weight, m), m <= 8 ? RowForm::kInt16 : RowForm::kF32);
    EXPECT_EQ(RowsFor(Precision::kInt8, m, Variant::kWidened), RowForm::kInt8);
  }
}

}  // namespace
}  // namespace thresher::kernels
