// What became of the records of the last session, for thresher.torch_profiler.last_session().
#pragma once

#include <cstdint>
#include <string>

namespace thresher::torch_shim {

struct Summary {
  uint64_t number = 0;    // of the session, from 1; 0: there was none
  bool finished = false;  // PyTorch has asked for the trace
  int64_t start_ns = 0;   // PyTorch's window
  int64_t stop_ns = 0;
  uint64_t runtime = 0;  // rows of host threads
  uint64_t kernels = 0;
  uint64_t copies = 0;         // fills included
  uint64_t annotations = 0;    // bars over the kernels of a record_function
  uint64_t memory = 0;         // changes of memory handed to PyTorch
  uint64_t dropped = 0;        // records that the engine lost
  uint64_t unlinked = 0;       // kernels and copies that belong to no operator and no record_function
  uint64_t out_of_window = 0;  // records that began before the session or ended after it: not in the trace
  uint64_t before_launch = 0;  // kernels and copies that have no launch, or start before it
  std::string error;           // why nothing was recorded
};

// A copy of the summary of the newest session.
Summary LastSession();

// The summary of a new session: its number and zeros.
Summary BeginSession();

// Stores the summary of a session, unless a newer one has begun.
void StoreSession(const Summary& summary);

void CountMemoryEvent();
uint64_t MemoryEvents();

}  // namespace thresher::torch_shim
