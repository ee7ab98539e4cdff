// Every THRESHER_* environment variable, declared once. Documentation, `thresher doctor --env` and the checks read
// this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thresher/base/status.h"

namespace thresher::env {

enum class Type : uint8_t { kSwitch, kInteger, kChoice, kText, kPath };

struct Variable {
  std::string_view name;
  Type type;
  std::string_view default_value;              // "" where the default is worked out at run time; `doc` says how
  std::string_view doc;                        // one sentence
  std::vector<std::string_view> choices = {};  // kChoice
  int64_t min = 0;                             // kInteger
  int64_t max = 0;
};

// Sorted by name.
std::span<const Variable> Variables();

// "switch", "integer", ...
std::string_view Name(Type type);

// What a value of this variable may be, for messages and documentation: "ON or OFF", "an integer from 1 to 1024".
std::string Wanted(const Variable& variable);

// The value in the environment, else the default. An empty value counts as not set. Errors: a value that is not of the
// variable's type (the message says what was wanted). `name` must be declared with the type asked for.
Result<bool> GetSwitch(std::string_view name);
Result<int64_t> GetInteger(std::string_view name);  // kInteger without default: 0 when not set
Result<std::string> GetString(std::string_view name);

// The text in the environment, "" when not set; no check.
std::string Raw(std::string_view name);

// The first declared variable that holds an invalid value, as an error. Called when an engine starts.
Status Validate();

// One warning per THRESHER_* variable that neither is declared nor belongs to the toolchain, naming the nearest
// declared one.
std::vector<std::string> UnknownVariables();

}  // namespace thresher::env
