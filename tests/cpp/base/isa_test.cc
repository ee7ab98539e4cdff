#include "thresher/base/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "thresher/base/amx.h"

namespace thresher::isa {
namespace {

class IsaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* value = std::getenv("THRESHER_ISA");
    had_ = value != nullptr;
    if (had_) old_ = value;
  }
  void TearDown() override {
    had_ ? setenv("THRESHER_ISA", old_.c_str(), 1) : unsetenv("THRESHER_ISA");
    EXPECT_TRUE(Select().ok());
  }

 private:
  bool had_ = false;
  std::string old_;
};

TEST_F(IsaTest, BestIsTheDefault) {
  unsetenv("THRESHER_ISA");
  const Result<Isa> selected = Select();
  ASSERT_TRUE(selected.ok());
  EXPECT_EQ(selected.value(), Available().back());
  EXPECT_EQ(Current(), Available().back());
}

TEST_F(IsaTest, EveryAvailableOneCanBeForcedAndForcingHidesNone) {
  const std::vector<Isa> available = Available();
  ASSERT_FALSE(available.empty());
  for (const Isa isa : available) {
    ASSERT_TRUE(Force(Name(isa)).ok());
    EXPECT_EQ(Current(), isa);
    EXPECT_EQ(Available(), available);
    setenv("THRESHER_ISA", std::string(Name(isa)).c_str(), 1);
    ASSERT_TRUE(Select().ok());
    EXPECT_EQ(Current(), isa);
  }
}

TEST_F(IsaTest, AvailableIsPartOfCompiled) {
  for (const Isa isa : Available()) {
    EXPECT_NE(std::find(Compiled().begin(), Compiled().end(), isa), Compiled().end()) << Name(isa);
  }
}

#if defined(__x86_64__)
TEST_F(IsaTest, PlainTilesStandInForAmx) {
  if (!ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmx";
  EXPECT_EQ(Current(), Isa::kAmxFp16);
  EXPECT_EQ(CurrentTiles(), Tiles::kPlain);
  for (const Isa isa : Available()) {
    ASSERT_TRUE(Force(Name(isa)).ok());
    EXPECT_EQ(Current(), isa);
    const bool tiles = isa == Isa::kAmx || isa == Isa::kAmxFp16;
    EXPECT_EQ(CurrentTiles(), tiles ? Tiles::kInstructions : Tiles::kNone);
    EXPECT_EQ(HasF16Tiles(), isa == Isa::kAmxFp16);
  }
}

// Where the processor lacks it, nothing is refused; where the system does not let it be used, there is a reason.
TEST_F(IsaTest, AmxIsAvailableWhereItIsUsable) {
  const bool available = std::find(Available().begin(), Available().end(), Isa::kAmx) != Available().end();
  EXPECT_EQ(available, DetectAmx().usable);
  EXPECT_TRUE(Refusal().empty() || !available);
}

// Whoever made the processor.
TEST_F(IsaTest, Bf16IsFoundWhereTheProcessorHasIt) {
  const auto available = [](Isa isa) {
    return std::find(Available().begin(), Available().end(), isa) != Available().end();
  };
  __builtin_cpu_init();
  EXPECT_EQ(available(Isa::kAvx512Bf16), available(Isa::kAvx512Vnni) && __builtin_cpu_supports("avx512bf16"));
}
#endif

TEST_F(IsaTest, UnknownNameListsTheKnownOnes) {
  const Isa before = Current();
  setenv("THRESHER_ISA", "avx3", 1);
  const Status status = Select().status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const char* part :
       {"\"avx3\"", "sse2, avx2, avx512, avx512_vnni, avx512_bf16, amx, amx_fp16, neon, neon_bf16, sve, sve2",
        "unset"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_EQ(Current(), before);
}

TEST_F(IsaTest, OneThatIsMissingIsNamedWithWhatThereIs) {
  for (const Isa isa : {Isa::kSse2, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx, Isa::kNeon,
                        Isa::kNeonBf16, Isa::kSve, Isa::kSve2}) {
    if (std::find(Available().begin(), Available().end(), isa) != Available().end()) continue;
    const Status status = Force(Name(isa));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("THRESHER_ISA=" + std::string(Name(isa))), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(Name(Available().back())), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace thresher::isa
