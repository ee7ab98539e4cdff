// Gives the requests of a recording to its model again, at a rate and for a time, and compares the answers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/run/paged_decoder.h"
#include "thresher/run/recording.h"

namespace thresher {

struct ReplayOptions {
  double rate = 0;        // requests a second; 0: each comes when it came while it was recorded
  double duration_s = 0;  // requests come, from the first one again and again, for so long; 0: each comes once
};

struct ReplayReport {
  int64_t requests = 0;
  int64_t failed = 0;
  std::vector<std::string> failures;  // why, of the first few
  double seconds = 0;                 // from the first request to the last answer
  int64_t steps = 0;
  int64_t prompt_tokens = 0;  // that were computed
  int64_t answer_tokens = 0;
  // In seconds, in order: from a request to its first token, between two tokens of an answer, to its last one.
  std::vector<double> first_s, between_s, whole_s;
};

// Requests begin in the order of their arrival, as soon as there are pages for all that they may need, and are
// computed together: a token of each answer and as much of prompts as has room in a step. A request fails alone: where
// its answer is another one than was recorded, where it cannot fit, where a step that it is part of fails.
ReplayReport ReplayLoad(const Recording& recording, PagedDecoder& decoder, const ReplayOptions& options);

// The value that `share` of them (in order) do not exceed; 0 where there are none.
double Percentile(const std::vector<double>& values, double share);

}  // namespace thresher
