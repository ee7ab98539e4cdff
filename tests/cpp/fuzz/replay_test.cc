// Replays the seeds and the findings of earlier runs of the fuzz targets (tests/fuzz): with any compiler, and without
// libFuzzer. What a target promises ends the process where it does not hold.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>

#include "fuzz/target.h"

namespace thresher::fuzz {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(THRESHER_TEST_DATA) / "fuzz";

// What any input may take, with room for slow machines and for sanitizers.
constexpr std::chrono::seconds kSlowest{30};
constexpr size_t kPageSlack = size_t{64} << 20;

// A file that ends in .hex holds its bytes as digits; blanks and line breaks mean nothing.
std::string Contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (path.extension() != ".hex") return text;
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  EXPECT_EQ(text.size() % 2, 0u) << path;
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::vector<fs::path> FilesIn(const fs::path& folder) {
  std::vector<fs::path> files;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

size_t PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

class FuzzReplay : public testing::TestWithParam<Target> {};

TEST_P(FuzzReplay, SeedsAndFindings) {
  if (!fs::is_directory(THRESHER_TEST_DATA)) GTEST_SKIP() << "the clone it was built from is not on this machine";
  const Target& target = GetParam();
  const std::vector<fs::path> seeds = FilesIn(kFolder / "corpus" / target.name);
  ASSERT_FALSE(seeds.empty()) << "expected seeds in " << kFolder / "corpus" / target.name;
  std::vector<fs::path> files = FilesIn(kFolder / "regressions" / target.name);
  files.insert(files.end(), seeds.begin(), seeds.end());
  for (const fs::path& file : files) {
    SCOPED_TRACE(file);
    const std::string bytes = Contents(file);
    const size_t peak = PeakBytes();
    const auto begin = std::chrono::steady_clock::now();
    fuzz::Replay(target, bytes);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowest);
    EXPECT_LT(PeakBytes() - peak, target.limit.base + target.limit.factor * bytes.size() + kPageSlack);
  }
}

// Each cut of a seed is an input, too.
TEST_P(FuzzReplay, BeginningsOfSeeds) {
  for (const fs::path& file : FilesIn(kFolder / "corpus" / GetParam().name)) {
    SCOPED_TRACE(file);
    const std::string bytes = Contents(file);
    const size_t step = std::max<size_t>(1, bytes.size() / 64);
    for (size_t end = 0; end < bytes.size(); end += step)
      fuzz::Replay(GetParam(), std::string_view(bytes).substr(0, end));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, testing::ValuesIn(Targets()),
                         [](const testing::TestParamInfo<Target>& info) { return std::string(info.param.name); });

// Every source in tests/fuzz has registered itself.
TEST(FuzzTargets, AreAllHere) {
  if (!fs::is_directory(kFolder)) GTEST_SKIP() << "the clone it was built from is not on this machine";
  std::vector<std::string> sources, targets;
  for (const fs::path& file : FilesIn(kFolder)) {
    if (file.extension() == ".cc") sources.push_back(file.stem());
  }
  for (const Target& target : Targets()) targets.emplace_back(target.name);
  std::sort(targets.begin(), targets.end());
  EXPECT_EQ(targets, sources);
  EXPECT_FALSE(targets.empty());
}

}  // namespace
}  // namespace thresher::fuzz
