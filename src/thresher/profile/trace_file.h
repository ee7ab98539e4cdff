// A trace: every record from a start to a stop, in a file that can be read even if the process is killed.
//
// Layout, little endian: "THRTRACE", u32 format version, u32 bytes of a record; then blocks: u32 tag, u32 CRC-32 of the
// payload, u64 bytes of the payload, the payload, zeros up to a multiple of 8. Tags, as four ASCII characters:
//   HEAD  JSON object: the engine and its machine; the first block
//   DATA  JSON object: more of the same, from any time
//   SITE  JSON array of places (site.h), before the first record of each
//   RECS  records (record.h), those of one thread in the order of their ends, but for what other devices did
//   TAIL  JSON object: end of the trace, records, dropped, threads of plans; missing if the process was killed
// A reader takes all blocks before the first one that is incomplete or damaged.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/base/status.h"

namespace thresher::profile {

struct TraceOptions {
  std::string path;                      // empty: in memory
  int64_t max_bytes = int64_t{4} << 30;  // what comes after it is counted as dropped
};

struct TraceStatus {
  bool running = false;
  std::string path;  // empty: in memory, or none
  uint64_t records = 0;
  uint64_t dropped = 0;
  int64_t bytes = 0;
  std::string problem;  // why records were dropped; empty: none were
};

// Errors: a trace is running already; the file exists or cannot be written.
Status StartTrace(const TraceOptions& options);

// Ends the trace. Its content can be saved until the next start. Without a running trace it changes nothing.
TraceStatus StopTrace();

TraceStatus GetTraceStatus();

// Adds a JSON object to what the trace tells about itself. Error: no trace runs.
Status AnnotateTrace(const std::string& json_object);

// Writes what has been recorded so far, or was recorded by the last trace, to a new file, complete in itself.
// Errors: there has been no trace; the file exists or cannot be written.
Status SaveTrace(const std::string& path);

}  // namespace thresher::profile
