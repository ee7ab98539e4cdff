// Ranges of NVTX, which tools such as Nsight Systems show on their own time lines: what a thread does from Push() to
// Pop(). A tool sets NVTX_INJECTION64_PATH to a library of its own; without it nobody listens, and a range costs one
// load.
#pragma once

#include <atomic>
#include <string>

namespace thresher::profile::nvtx {

namespace internal {
inline std::atomic<bool> listening{false};
}  // namespace internal

// Opens the tool's library, where there is one. Called once, when the engine is loaded.
void Connect();
// What is in the way of a tool that is wanted, else "".
const std::string& Problem();

// Whether a tool has taken up the engine's domain, "thresher".
inline bool Listening() { return internal::listening.load(std::memory_order_relaxed); }

// On the calling thread, one in the other. `name` is read before Push() returns. Nothing while nobody listens.
void Push(const char* name);
void Pop();

// From one brace to the other.
class Range {
 public:
  // `name` is called for the text while somebody listens, and may be null for no range.
  template <class Name>
  explicit Range(const Name& name) : text_(Listening() ? name() : nullptr) {
    if (text_ != nullptr) Push(text_);
  }
  ~Range() {
    if (text_ != nullptr) Pop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  const char* const text_;
};

}  // namespace thresher::profile::nvtx
