// What was measured to choose among kernels for one shape: a line each, so that a later process need not measure.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace thresher::cuda {

struct Choice {
  std::string taken;   // the name of a candidate, with the version of the library that it belongs to
  std::string remark;  // times, or why another is not taken
};

// Thread safe. Neither subjects nor what is said of them have tabs or ends of lines.
class Choices {
 public:
  // The name that was taken for `subject`; empty: none yet.
  std::string Find(const std::string& subject) const {
    const std::lock_guard lock(mutex_);
    const auto found = choices_.find(subject);
    return found == choices_.end() ? std::string() : found->second.taken;
  }

  void Keep(std::string subject, Choice choice) {
    const std::lock_guard lock(mutex_);
    choices_.insert_or_assign(std::move(subject), std::move(choice));
  }

  // Lines "subject, tab, taken, tab, remark".
  std::string Text() const {
    const std::lock_guard lock(mutex_);
    std::string text;
    for (const auto& [subject, choice] : choices_) text += subject + '\t' + choice.taken + '\t' + choice.remark + '\n';
    return text;
  }

  // What an earlier process had as Text(). What this one measured itself stays; lines of another form are passed over.
  void Learn(std::string_view text) {
    const std::lock_guard lock(mutex_);
    while (!text.empty()) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(line.size() == text.size() ? text.size() : line.size() + 1);
      const size_t first = line.find('\t');
      if (first == std::string_view::npos) continue;
      const size_t second = line.find('\t', first + 1);
      if (second == std::string_view::npos) continue;
      choices_.try_emplace(
          std::string(line.substr(0, first)),
          Choice{std::string(line.substr(first + 1, second - first - 1)), std::string(line.substr(second + 1))});
    }
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Choice> choices_;
};

}  // namespace thresher::cuda
