// A folder with all files that a small recording names, and texts that name them by their digests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>

#include "thresher/graph/hash.h"
#include "thresher/plan/packed_layout.h"

namespace thresher::fuzz {

class RecordingFiles {
 public:
  RecordingFiles() {
    std::string pattern = (std::filesystem::temp_directory_path() / "recording.XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    folder_ = pattern;
    Write("weights.bin", std::string(112, '\1'));
    Write("constants.bin", std::string(64, '\2'));
    Write("parts.bin", std::string(192, '\3'));
    for (const char* rows : {"1", "2", "3", "5"}) {
      const std::string r = rows;
      Write("body." + r,
            "graph 1\ninput %0 \"tokens\" : i32[" + r +
                "]\nweight %1 \"table\" : f32[7, 4]\nweight %2 \"scale\" : f32[4]\n%3 = embedding(%1, %0)\n"
                "%4 = mul(%3, %2)\nreturn %4\n");
      Write("head." + r, "graph 1\ninput %0 \"hidden\" : f32[" + r +
                             ", 4]\nweight %1 \"table\" : f32[7, 4]\n%2 = linear(%0, %1)\nreturn %2\n");
    }
  }
  RecordingFiles(const RecordingFiles&) = delete;
  RecordingFiles& operator=(const RecordingFiles&) = delete;
  ~RecordingFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  const std::string& folder() const { return folder_; }

  void Write(const std::string& name, const std::string& contents) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << contents;
    digests_[name] = ToHex(HashBytes(contents.data(), contents.size()));
  }

  // The text with the digest of a file for each @NAME, that of 64 bytes of parts.bin for @part, and for @layout how
  // weights are packed here.
  std::string WithDigests(std::string_view text) const {
    const std::string part(64, '\3');
    std::string made;
    while (!text.empty()) {
      const size_t at = text.find('@');
      made += text.substr(0, at);
      if (at == std::string_view::npos) break;
      text.remove_prefix(at + 1);
      const std::string name(text.substr(0, text.find_first_of(" \n")));
      text.remove_prefix(name.size());
      const auto found = digests_.find(name);
      made += found != digests_.end() ? found->second
              : name == "layout"      ? ToHex(PackedLayout())
              : name == "part"        ? ToHex(HashBytes(part.data(), part.size()))
                                      : "@" + name;
    }
    return made;
  }

 private:
  std::string folder_;
  std::map<std::string, std::string> digests_;
};

}  // namespace thresher::fuzz
