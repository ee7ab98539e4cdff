#include "thresher/base/env.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace thresher::env {
namespace {

// Sets a variable and puts the old state back.
class Scoped {
 public:
  Scoped(const char* name, const char* value) : name_(name), had_(std::getenv(name) != nullptr) {
    if (had_) old_ = std::getenv(name);
    setenv(name, value, 1);
  }
  ~Scoped() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  bool had_;
  std::string old_;
};

TEST(Env, TableIsSortedAndDocumented) {
  const auto variables = Variables();
  ASSERT_FALSE(variables.empty());
  for (size_t i = 0; i < variables.size(); ++i) {
    EXPECT_TRUE(variables[i].name.starts_with("THRESHER_"));
    EXPECT_TRUE(variables[i].doc.ends_with(".")) << variables[i].name;
    if (i > 0) {
      EXPECT_LT(variables[i - 1].name, variables[i].name);
    }
  }
}

TEST(Env, SwitchTakesItsSpellings) {
  for (const char* on : {"ON", "on", "1", "true", "Yes"}) {
    const Scoped scoped("THRESHER_PROFILE", on);
    ASSERT_TRUE(GetSwitch("THRESHER_PROFILE").ok());
    EXPECT_TRUE(GetSwitch("THRESHER_PROFILE").value()) << on;
  }
  for (const char* off : {"OFF", "0", "False", "no", ""}) {
    const Scoped scoped("THRESHER_PROFILE", off);
    ASSERT_TRUE(GetSwitch("THRESHER_PROFILE").ok());
    EXPECT_FALSE(GetSwitch("THRESHER_PROFILE").value()) << off;
  }
}

TEST(Env, InvalidValuesSayWhatWasWantedAndFound) {
  {
    const Scoped scoped("THRESHER_PROFILE", "maybe");
    const Status status = GetSwitch("THRESHER_PROFILE").status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "THRESHER_PROFILE: expected ON or OFF (or 1 or 0), got \"maybe\". Correct it or unset the variable.");
  }
  for (const char* number : {"0", "-1", "two", "3x", " 3", "1025", "99999999999999999999"}) {
    const Scoped scoped("THRESHER_NUM_THREADS", number);
    const Status status = GetInteger("THRESHER_NUM_THREADS").status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << number;
    EXPECT_NE(status.message().find("an integer from 1 to 1024"), std::string::npos) << status.message();
  }
  {
    const Scoped scoped("THRESHER_LOG", "loud");
    const Status status = GetString("THRESHER_LOG").status();
    EXPECT_NE(status.message().find("one of warning, info, debug"), std::string::npos) << status.message();
    EXPECT_EQ(Validate().message(), status.message());
  }
}

TEST(Env, ChoicesMayBeWrittenInAnyCase) {
  const Scoped scoped("THRESHER_LOG", "INFO");
  EXPECT_TRUE(Validate().ok());
  EXPECT_EQ(GetString("THRESHER_LOG").value(), "info");
}

TEST(Env, DefaultsApplyWhereNothingIsSet) {
  const Scoped records("THRESHER_PROFILE_RECORDS", "");
  EXPECT_EQ(GetInteger("THRESHER_PROFILE_RECORDS").value(), 65536);
  const Scoped threads("THRESHER_NUM_THREADS", "");
  EXPECT_EQ(GetInteger("THRESHER_NUM_THREADS").value(), 0);
  const Scoped set("THRESHER_NUM_THREADS", "7");
  EXPECT_EQ(GetInteger("THRESHER_NUM_THREADS").value(), 7);
}

TEST(Env, UnknownVariableNamesTheNearest) {
  const Scoped scoped("THRESHER_NUM_THREAD", "2");
  const auto warnings = UnknownVariables();
  const auto found = std::find_if(warnings.begin(), warnings.end(),
                                  [](const std::string& text) { return text.starts_with("THRESHER_NUM_THREAD:"); });
  ASSERT_NE(found, warnings.end());
  EXPECT_NE(found->find("nearest known one is THRESHER_NUM_THREADS "), std::string::npos) << *found;
}

TEST(Env, KnownVariablesGiveNoWarning) {
  const Scoped scoped("THRESHER_NUM_THREADS", "2");
  for (const std::string& warning : UnknownVariables()) EXPECT_FALSE(warning.starts_with("THRESHER_NUM_THREADS:"));
}

TEST(Env, VariablesOfTheToolchainGiveNoWarning) {
  const Scoped scoped("THRESHER_CONAN_HOME", "/x");
  for (const std::string& warning : UnknownVariables()) EXPECT_FALSE(warning.starts_with("THRESHER_CONAN_HOME:"));
}

}  // namespace
}  // namespace thresher::env
