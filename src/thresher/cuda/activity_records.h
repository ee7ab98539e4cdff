// CUPTI's binary interface as far as it is used, so that building needs no copy of it: numbers, and the beginnings of
// its records. Where its header is installed, activity_check.cc compares them.
#pragma once

#include <cstdint>

namespace thresher::cuda {

inline constexpr uint32_t kActivityMemcpy = 1;
inline constexpr uint32_t kActivityMemset = 2;
inline constexpr uint32_t kActivityKernel = 3;
inline constexpr uint32_t kActivityDriver = 4;
inline constexpr uint32_t kActivityRuntime = 5;
inline constexpr uint32_t kActivityConcurrentKernel = 10;
inline constexpr uint32_t kActivityExternalCorrelation = 39;

inline constexpr int kCuptiSuccess = 0;
inline constexpr int kCuptiHeldByAnother = 39;
inline constexpr uint32_t kOwnIds = 3;  // which external ids these are: a tool's own
inline constexpr uint32_t kFlushCompleted = 0;

// Records are of different sizes; a library of CUPTI knows where the next one begins.
struct ActivityRecord {
  uint32_t kind;
};

struct ActivityOfKernel {
  uint32_t kind;
  uint32_t settings[3];
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t completed_ns;
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  int32_t shared_bytes[2];
  uint32_t local_bytes[2];
  uint32_t correlation;
};

struct ActivityOfMemcpy {
  uint32_t kind;
  uint8_t places[4];
  uint64_t bytes;
  uint64_t start_ns;
  uint64_t end_ns;
  uint32_t device, context, stream;
  uint32_t correlation;
};

struct ActivityOfMemset {
  uint32_t kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start_ns;
  uint64_t end_ns;
  uint32_t device, context, stream;
  uint32_t correlation;
};

// A call that the thread made has this number of CUPTI's, and was made under this one of the tool's.
struct ActivityOfExternalId {
  uint32_t kind;
  uint32_t external_kind;
  uint64_t external_id;
  uint32_t correlation;
  uint32_t reserved;
};

}  // namespace thresher::cuda
