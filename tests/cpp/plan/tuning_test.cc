#include "thresher/plan/tuning.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "thresher/base/isa.h"
#include "thresher/plan/tuner.h"

namespace thresher {
namespace {

using kernels::Blocking;
using kernels::Split;
using kernels::Variant;

ProductKey Key(int64_t m, int64_t n = 64, int64_t k = 96, Precision precision = Precision::kFp32, int threads = 1) {
  return {isa::Current(), precision, n, k, threads, m};
}

TEST(TuningTableTest, FindsTheNearestNumberOfRows) {
  TuningTable table;
  ASSERT_TRUE(table
                  .Replace({{Key(16), {.panel_kib = 16}},
                            {Key(64), {.panel_kib = 64}},
                            {Key(300), {.panel_kib = 30}},
                            {Key(40, 65), {.panel_kib = 1}},
                            {Key(40, 64, 97), {.panel_kib = 2}},
                            {Key(40, 64, 96, Precision::kInt8), {.panel_kib = 3}},
                            {Key(40, 64, 96, Precision::kFp32, 2), {.panel_kib = 4}}})
                  .ok());
  const auto rows = [&](int64_t m) {
    const auto found = table.Find(Key(m));
    return found ? found->key.m : 0;
  };
  EXPECT_EQ(rows(16), 16);
  EXPECT_EQ(rows(64), 64);
  EXPECT_EQ(rows(7), 0);
  EXPECT_EQ(rows(8), 16);
  EXPECT_EQ(rows(31), 16);
  EXPECT_EQ(rows(32), 16);  // as near to 64: the smaller one
  EXPECT_EQ(rows(33), 64);
  EXPECT_EQ(rows(128), 64);
  EXPECT_EQ(rows(129), 0);
  EXPECT_EQ(rows(150), 300);
  EXPECT_EQ(rows(600), 300);
  EXPECT_EQ(rows(601), 0);
  EXPECT_EQ(table.Find(Key(33))->blocking.panel_kib, 64);
  EXPECT_EQ(table.Find(Key(40, 65))->blocking.panel_kib, 1);
  EXPECT_EQ(table.Find(Key(40, 64, 97))->blocking.panel_kib, 2);
  EXPECT_EQ(table.Find(Key(40, 64, 96, Precision::kInt8))->blocking.panel_kib, 3);
  EXPECT_EQ(table.Find(Key(40, 64, 96, Precision::kFp32, 2))->blocking.panel_kib, 4);
  EXPECT_FALSE(table.Find(Key(40, 64, 96, Precision::kBf16)).has_value());
}

TEST(TuningTableTest, RefusesWhatNoKernelTakes) {
  TuningTable table;
  ASSERT_TRUE(table.Replace({{Key(4), {.most_rows = 9}}}).ok());
  for (const TunedProduct& wrong : std::vector<TunedProduct>{{Key(0), {}}, {Key(1, -1), {}}, {Key(1), {-1, 0}}}) {
    const Status status = table.Replace({{Key(5), {}}, wrong});
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("expected"), std::string::npos);
  }
  ASSERT_EQ(table.Entries().size(), 1u) << "a refused table must leave the old one";
  EXPECT_EQ(table.Entries()[0].blocking.most_rows, 9);
  ASSERT_TRUE(table.Replace({}).ok());
  EXPECT_TRUE(table.Entries().empty());
}

TuneOptions Quick() {
  TuneOptions options;
  options.sample_ns = 10'000;
  options.stage_ns = 1'000'000;
  options.confirm_rounds = 5;
  return options;
}

TEST(TunerTest, EveryPrecisionHasAVerdict) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16, Precision::kInt8,
                                    Precision::kInt8Weight, Precision::kInt4Weight}) {
    for (const int threads : {1, 2}) {
      SCOPED_TRACE(std::string(Name(precision)) + " threads " + std::to_string(threads));
      double done = -1;
      const auto result = TuneProduct(Key(33, 200, 400, precision, threads), Quick(), [&](double now) {
        EXPECT_GE(now, done);
        done = now;
      });
      ASSERT_TRUE(result.ok()) << result.status().message();
      const TuneResult& found = result.value();
      EXPECT_EQ(done, 1);
      EXPECT_GT(found.candidates, 1);
      EXPECT_GE(found.rounds, 3);
      EXPECT_TRUE(CheckBlocking(found.blocking).ok());
      EXPECT_GT(found.by_default.lower, 0);
      EXPECT_LE(found.by_default.lower, found.by_default.median);
      EXPECT_LE(found.by_default.median, found.by_default.upper);
      if (found.blocking == Blocking{}) {
        EXPECT_EQ(found.tuned.median, found.by_default.median);
      } else {
        EXPECT_LT(found.ratio.median, 0.98);
        EXPECT_LT(found.ratio.upper, 1);
      }
      if (threads == 1) {
        EXPECT_EQ(found.blocking.split, Split::kAuto);
      }
      if (precision == Precision::kFp32 || precision == Precision::kInt8) {
        EXPECT_EQ(found.blocking.variant, Variant::kAuto);
      }
    }
  }
}

TEST(TunerTest, RefusesWhatCannotBeMeasured) {
  const auto nothing = [](double) { FAIL() << "there is nothing to measure"; };
  for (const ProductKey& key :
       {Key(0), Key(1, 0), Key(1, 1, 0), Key(1, 1, 1, Precision::kFp32, 0), Key(int64_t{1} << 40)}) {
    EXPECT_EQ(TuneProduct(key, Quick(), nothing).status().code(), Code::kInvalidArgument);
  }
  ProductKey other = Key(1);
  other.isa = isa::Current() == isa::Isa::kSve ? isa::Isa::kSse2 : isa::Isa::kSve;
  const auto result = TuneProduct(other, Quick(), nothing);
  EXPECT_NE(result.status().message().find("expected the instruction set in use"), std::string::npos);
  const auto huge = TuneProduct(Key(1 << 20, 1 << 20, 1 << 20), Quick(), [](double) {});
  EXPECT_EQ(huge.status().code(), Code::kResourceExhausted);
}

TEST(TunerTest, ProgressMayEndIt) {
  struct Stop {};
  EXPECT_THROW((void)TuneProduct(Key(33, 64, 64), Quick(),
                                 [](double done) {
                                   if (done > 0) throw Stop();
                                 }),
               Stop);
}

}  // namespace
}  // namespace thresher
