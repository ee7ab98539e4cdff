#include "thresher/run/device_clock.h"

#include <gtest/gtest.h>

namespace thresher {
namespace {

TEST(DeviceClock, TheShortestAttemptCounts) {
  DeviceClock clock;
  EXPECT_TRUE(clock.Calibrate(1000, 1100));
  EXPECT_FALSE(clock.Calibrate(2000, 2100));  // no better
  EXPECT_TRUE(clock.Calibrate(3000, 3010));
  EXPECT_EQ(clock.span_ns(), 10);
  EXPECT_EQ(clock.base_ns(), 3005);
  EXPECT_EQ(clock.ToHost(500.7, 0), 3505);
}

TEST(DeviceClock, NothingBeginsBeforeItsLaunch) {
  DeviceClock clock;
  clock.Calibrate(1000, 1010);
  EXPECT_EQ(clock.ToHost(100, 1100), 1105);
  EXPECT_EQ(clock.ToHost(200, 1230), 1230);  // the clock was 25 behind
  EXPECT_EQ(clock.ToHost(300, 0), 1330);
  EXPECT_EQ(clock.ToHost(100, 1100), 1130);  // and stays corrected
}

}  // namespace
}  // namespace thresher
