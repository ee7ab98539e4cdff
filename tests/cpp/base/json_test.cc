#include "thresher/base/json.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "thresher/base/crc32.h"

namespace thresher {
namespace {

TEST(Json, QuotesWhatNeedsIt) {
  EXPECT_EQ(json::Quote(""), "\"\"");
  EXPECT_EQ(json::Quote("plain"), "\"plain\"");
  EXPECT_EQ(json::Quote("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(json::Quote(std::string("\n\x01\0", 3)), "\"\\u000a\\u0001\\u0000\"");
}

TEST(Json, KeepsUtf8AndReplacesTheRest) {
  EXPECT_EQ(json::Quote("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x8C\xBE"), "\"\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x8C\xBE\"");
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(json::Quote("\xFFx"), "\"" + replaced + "x\"");
  EXPECT_EQ(json::Quote("\xC3"), "\"" + replaced + "\"") << "cut off";
  EXPECT_EQ(json::Quote("\xC0\x80"), "\"" + replaced + replaced + "\"") << "overlong";
  EXPECT_EQ(json::Quote("\xED\xA0\x80"), "\"" + replaced + replaced + replaced + "\"") << "surrogate";
}

TEST(Json, Numbers) {
  EXPECT_EQ(json::Number(0.1), "0.1");
  EXPECT_EQ(json::Number(-1), "-1");
  EXPECT_EQ(std::stod(json::Number(1.0 / 3)), 1.0 / 3);
  EXPECT_EQ(json::Number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json::Number(std::numeric_limits<double>::quiet_NaN()), "null");
}

TEST(Crc32, KnownValues) {
  EXPECT_EQ(Crc32("", 0), 0u);
  EXPECT_EQ(Crc32("123456789", 9), 0xCBF43926u);  // the check value of ISO 3309
  const std::string text = "The quick brown fox jumps over the lazy dog";
  EXPECT_EQ(Crc32(text.data(), text.size()), 0x414FA339u);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32(text.data() + cut, text.size() - cut, Crc32(text.data(), cut)), 0x414FA339u) << cut;
  }
}

}  // namespace
}  // namespace thresher
