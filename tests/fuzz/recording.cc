// Recordings of loads. Digests are made right where the text says @NAME, so that what they protect is read, too.
#include "thresher/run/recording.h"

#include "fuzz/recording_files.h"
#include "fuzz/target.h"

namespace thresher {
namespace {

THRESHER_FUZZ_TARGET(recording, fuzz::MemoryLimit{}) {
  static const fuzz::RecordingFiles files;
  const std::string text = files.WithDigests(bytes);
  const Result<Recording> read = ParseRecording(text, files.folder());
  if (!read.ok()) {
    THRESHER_FUZZ_REQUIRE(read.status().code() != Code::kInternal, read.status().message());
    return;
  }
  const Recording& recording = read.value();
  THRESHER_FUZZ_REQUIRE(recording.graphs.size() == 2 && recording.step_tokens > 0, recording.model);
  THRESHER_FUZZ_REQUIRE(!recording.requests.empty(), recording.model);
  for (const Recording::Request& request : recording.requests) {
    THRESHER_FUZZ_REQUIRE(!request.prompt.empty() && !request.answer.empty() && request.at_s >= 0, recording.model);
  }
}

}  // namespace
}  // namespace thresher
