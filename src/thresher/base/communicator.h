// How the processes that run one model together exchange numbers.
#pragma once

#include <cstdint>

#include "thresher/base/status.h"

namespace thresher {

// One process of several, which all ask for the same in the same order: each call returns when every rank has made it.
// One thread at a time. After an error the ranks no longer agree on where they are, and have to end.
class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // out[i] is the sum of in[i] of all ranks. The two do not overlap.
  virtual Status AllReduce(const float* in, float* out, int64_t count) = 0;
  // out[r * count + i] is in[i] of rank r. The two do not overlap.
  virtual Status AllGather(const float* in, float* out, int64_t count) = 0;

 protected:
  Communicator(int rank, int size) : rank_(rank), size_(size) {}

 private:
  const int rank_;
  const int size_;
};

}  // namespace thresher
