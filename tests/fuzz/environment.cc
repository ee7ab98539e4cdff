// THRESHER_* variables, one a line, NAME=VALUE: what the check at the start lets pass, every getter can read.
#include <unistd.h>

#include <algorithm>

#include "fuzz/target.h"
#include "thresher/base/env.h"

namespace thresher {
namespace {

constexpr size_t kMostVariables = 32;

Status Get(const env::Variable& variable) {
  switch (variable.type) {
    case env::Type::kSwitch:
      return env::GetSwitch(variable.name).status();
    case env::Type::kInteger: {
      const Result<int64_t> number = env::GetInteger(variable.name);
      if (!number.ok() || env::Raw(variable.name).empty()) return number.status();
      THRESHER_FUZZ_REQUIRE(number.value() >= variable.min && number.value() <= variable.max,
                            std::to_string(number.value()));
      return Status::Ok();
    }
    default:
      return env::GetString(variable.name).status();
  }
}

// Variables in place of the process's own: setenv would keep a copy of every value for good.
class Environment {
 public:
  Environment() : before_(environ) {}
  ~Environment() { environ = before_; }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  void Add(std::string entry) { entries_.push_back(std::move(entry)); }
  void Use() {
    for (std::string& entry : entries_) pointers_.push_back(entry.data());
    pointers_.push_back(nullptr);
    environ = pointers_.data();
  }

 private:
  char** before_;
  std::vector<std::string> entries_;
  std::vector<char*> pointers_;
};

}  // namespace

THRESHER_FUZZ_TARGET(environment, fuzz::MemoryLimit{}) {
  Environment environment;
  for (size_t count = 0; count < kMostVariables && !bytes.empty(); ++count) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string line(bytes.substr(0, end));
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.find('=') == std::string::npos || line.find('\0') != std::string::npos) continue;
    environment.Add(line.starts_with("THRESHER_") ? line : "THRESHER_" + line);
  }
  environment.Use();
  const Status valid = env::Validate();
  bool readable = true;
  for (const env::Variable& variable : env::Variables()) {
    const Status found = Get(variable);
    THRESHER_FUZZ_REQUIRE(found.ok() || found.message().find(variable.name) != std::string::npos, found.message());
    readable = readable && found.ok();
  }
  THRESHER_FUZZ_REQUIRE(valid.ok() == readable, valid.message());
  for (const std::string& warning : env::UnknownVariables()) {
    THRESHER_FUZZ_REQUIRE(warning.starts_with("THRESHER_"), warning);
  }
}

}  // namespace thresher
