#include "thresher/base/env.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <numeric>

extern char** environ;

namespace thresher::env {
namespace {

constexpr std::string_view kPrefix = "THRESHER_";

// Read by the toolchain (scripts/, docs/building.md), never by the engine, which must not call them mistakes.
constexpr std::string_view kToolchain[] = {
    "THRESHER_BUILD_DIR",     "THRESHER_CA_FILE",          "THRESHER_CONAN_HOME",
    "THRESHER_CONAN_REMOTES", "THRESHER_CONTAINER_ENGINE", "THRESHER_DIST_DIR",
    "THRESHER_OFFLINE",       "THRESHER_PYTHON_HEADERS",   "THRESHER_SOURCE_MIRROR",
};

const std::vector<Variable>& Table() {
  static const std::vector<Variable> table = {
      {"THRESHER_CACHE", Type::kSwitch, "ON", "Whether results that take long to make are kept in files."},
      {"THRESHER_CACHE_DIR", Type::kPath, "",
       "Folder of these files; by default thresher in XDG_CACHE_HOME, else in ~/.cache."},
      {"THRESHER_CUDA_OVERLAP", Type::kSwitch, "ON",
       "Whether a kernel on a GPU of compute capability 9.0 or newer takes its place while the one before it ends."},
      {"THRESHER_CUDA_PRODUCTS",
       Type::kChoice,
       "measured",
       "How algorithms of cuBLASLt are chosen: by timing some at the first product of a shape, or the first that it "
       "proposes, which is the same in every process; then convolutions are Thresher's own, too, never cuDNN's.",
       {"measured", "first"}},
      {"THRESHER_ISA",
       Type::kChoice,
       "",
       "Instruction set that kernels use; by default the best one this CPU has.",
       {"sse2", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "amx_fp16", "neon", "neon_bf16", "sve", "sve2"}},
      {"THRESHER_KEPT_RESULTS",
       Type::kInteger,
       "128",
       "MiB of memory that results of models had, kept for the results of later calls when the program has dropped "
       "them.",
       {},
       0,
       int64_t{1} << 20},
      {"THRESHER_LOG",
       Type::kChoice,
       "warning",
       "Least severe kind of message that is printed to standard error.",
       {"warning", "info", "debug"}},
      {"THRESHER_NUM_THREADS",
       Type::kInteger,
       "",
       "Threads that share one operator's work; by default as many as PyTorch or OMP_NUM_THREADS say, at most the "
       "cores "
       "this process may use.",
       {},
       1,
       1024},
      {"THRESHER_PIN", Type::kSwitch, "OFF", "Whether each of the engine's threads stays on a core of its own."},
      {"THRESHER_PROFILE", Type::kSwitch, "OFF", "Whether operators are profiled from the start of the process."},
      {"THRESHER_PROFILE_OUTPUT", Type::kPath, "",
       "File that receives the operator report as JSON when the process ends; by default none is written."},
      {"THRESHER_PROFILE_PORT",
       Type::kInteger,
       "",
       "Port of this machine on which the process lets others switch its profiler; by default none.",
       {},
       1,
       65535},
      {"THRESHER_PROFILE_RECORDS",
       Type::kInteger,
       "65536",
       "Profile records each thread keeps, 64 bytes each; older ones stay in the report as sums.",
       {},
       64,
       int64_t{1} << 26},
      {"THRESHER_PROFILE_TRACE", Type::kPath, "",
       "New file that receives every record while the process runs; {pid} becomes the process's number."},
      {"THRESHER_SMALL_PRODUCTS",
       Type::kChoice,
       "measured",
       "Whether bf16 and int8 are multiplied as such: where this machine is no slower at it than at fp32, wherever it "
       "can, or never.",
       {"measured", "always", "never"}},
      {"THRESHER_TEAMS",
       Type::kInteger,
       "1",
       "Teams of threads: so many calls run side by side, each on its share of the cores.",
       {},
       1,
       64},
      {"THRESHER_TUNING_SPEC", Type::kPath, "",
       "JSON file of tuned products to use instead of those that `thresher tune` kept; set to nothing: none."},
  };
  return table;
}

const Variable& Find(std::string_view name) {
  for (const Variable& variable : Table()) {
    if (variable.name == name) return variable;
  }
  std::abort();  // a getter was written for a variable that the table lacks: a bug no input can cause
}

std::string ValueOf(const Variable& variable) {
  std::string value = Raw(variable.name);
  return value.empty() ? std::string(variable.default_value) : value;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

Status Invalid(const Variable& variable, const std::string& found) {
  return InvalidArgument(std::string(variable.name) + ": expected " + Wanted(variable) + ", got \"" + found +
                         "\". Correct it or unset the variable.");
}

Result<bool> ParseSwitch(const Variable& variable, const std::string& value) {
  const std::string lower = Lower(value);
  for (const std::string_view on : {"on", "1", "true", "yes"}) {
    if (lower == on) return true;
  }
  for (const std::string_view off : {"off", "0", "false", "no"}) {
    if (lower == off) return false;
  }
  return Invalid(variable, value);
}

Result<int64_t> ParseInteger(const Variable& variable, const std::string& value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < variable.min || number > variable.max) {
    return Invalid(variable, value);
  }
  return number;
}

Status Check(const Variable& variable, const std::string& value) {
  if (value.empty()) return Status::Ok();
  switch (variable.type) {
    case Type::kSwitch:
      return ParseSwitch(variable, value).status();
    case Type::kInteger:
      return ParseInteger(variable, value).status();
    case Type::kChoice:
      for (const std::string_view choice : variable.choices) {
        if (Lower(value) == choice) return Status::Ok();
      }
      return Invalid(variable, value);
    case Type::kText:
    case Type::kPath:
      return Status::Ok();
  }
  return Status::Ok();
}

// Levenshtein distance.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

std::span<const Variable> Variables() { return Table(); }

std::string_view Name(Type type) {
  switch (type) {
    case Type::kSwitch:
      return "switch";
    case Type::kInteger:
      return "integer";
    case Type::kChoice:
      return "choice";
    case Type::kText:
      return "text";
    case Type::kPath:
      return "path";
  }
  return "?";
}

std::string Wanted(const Variable& variable) {
  switch (variable.type) {
    case Type::kSwitch:
      return "ON or OFF (or 1 or 0)";
    case Type::kInteger:
      return "an integer from " + std::to_string(variable.min) + " to " + std::to_string(variable.max);
    case Type::kChoice: {
      std::string text = "one of ";
      for (const std::string_view choice : variable.choices) {
        text += (choice == variable.choices.front() ? "" : ", ") + std::string(choice);
      }
      return text;
    }
    case Type::kText:
      return "a text";
    case Type::kPath:
      return "a path";
  }
  return "?";
}

Result<bool> GetSwitch(std::string_view name) {
  const Variable& variable = Find(name);
  return ParseSwitch(variable, ValueOf(variable));
}

Result<int64_t> GetInteger(std::string_view name) {
  const Variable& variable = Find(name);
  const std::string value = ValueOf(variable);
  if (value.empty()) return int64_t{0};
  return ParseInteger(variable, value);
}

Result<std::string> GetString(std::string_view name) {
  const Variable& variable = Find(name);
  std::string value = ValueOf(variable);
  THRESHER_TRY(Check(variable, value));
  return variable.type == Type::kChoice ? Lower(value) : value;
}

std::string Raw(std::string_view name) {
  // The environment is read here and nowhere else, and never written.
  const char* value = std::getenv(std::string(name).c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

Status Validate() {
  for (const Variable& variable : Table()) THRESHER_TRY(Check(variable, Raw(variable.name)));
  return Status::Ok();
}

std::vector<std::string> UnknownVariables() {
  std::vector<std::string> warnings;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix) || std::ranges::find(kToolchain, name) != std::end(kToolchain)) continue;
    const Variable* nearest = nullptr;
    size_t nearest_distance = std::numeric_limits<size_t>::max();
    for (const Variable& variable : Table()) {
      const size_t distance = Distance(name, variable.name);
      if (distance < nearest_distance) {
        nearest = &variable;
        nearest_distance = distance;
      }
    }
    if (nearest == nullptr || nearest_distance == 0) continue;
    warnings.push_back(std::string(name) + ": no such variable; the nearest known one is " +
                       std::string(nearest->name) + " (`thresher doctor --env` lists all)");
  }
  std::sort(warnings.begin(), warnings.end());
  return warnings;
}

}  // namespace thresher::env
