// What a kernel finds wrong in its operands while it runs, when nobody waits for it: the first finding of a device is
// kept in memory that the host sees, and whoever waits for a stream is told. The results are defined, but worth
// nothing: where an index is wrong, zeros are read and nothing is written.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "thresher/cuda/error.h"
#include "thresher/cuda/thread.h"
#include "thresher/kernels/kernel_id.h"

namespace thresher::cuda {

// An index outside of [least, size); of a grouped product an end of rows below the one before or above all.
struct Fault {
  uint32_t claimed;  // by the thread that fills in the rest
  uint32_t raised;   // once all is filled in
  KernelId kernel;
  int32_t tensor;    // which index tensor, where there may be several; else -1
  int64_t position;  // of the index in it
  int64_t index;
  int64_t least;
  int64_t size;
};

template <class T>
THRESHER_DEVICE void Raise(T& t, Fault* fault, KernelId kernel, int tensor, int64_t position, int64_t index,
                           int64_t least, int64_t size) {
  if (!t.Claim(&fault->claimed)) return;
  fault->kernel = kernel;
  fault->tensor = tensor;
  fault->position = position;
  fault->index = index;
  fault->least = least;
  fault->size = size;
  t.Publish(&fault->raised);
}

// As the CPU says it.
inline std::string Describe(const Fault& fault) {
  if (fault.kernel == KernelId::kGroupedProduct) {
    return "grouped_linear: expected ends that do not fall, from 0 to " + std::to_string(fault.size) + ", got " +
           std::to_string(fault.index) + " for group " + std::to_string(fault.position) + " after " +
           std::to_string(fault.least);
  }
  std::string text = std::string(Name(fault.kernel)) + ": index " + std::to_string(fault.index) + " at position " +
                     std::to_string(fault.position);
  if (fault.tensor >= 0) text += " of index tensor " + std::to_string(fault.tensor);
  return text + " is outside [" + std::to_string(fault.least) + ", " + std::to_string(fault.size) + ")";
}

// The findings of a device. A stream is told of those that were made since it was first asked for work after it was
// last waited for: whoever waits for a result learns that something was wrong, and so do others whose work was under
// way at the same time.
class Faults {
 public:
  // Of a stream.
  struct Told {
    uint64_t count = 0;
    bool asked = false;
  };

  // `fault`: zeros, in memory that host and device see and that outlives the work of the device.
  void Watch(Fault* fault) { fault_ = fault; }
  Fault* fault() const { return fault_; }

  // Before work on a stream. Nobody waits for that of `foreign` ones here, which belong to another library: their next
  // work is refused instead.
  thresher_device_result Begin(Told& told, bool foreign) {
    const std::lock_guard lock(mutex_);
    const bool found = Look();
    if (found && foreign) return Fail(THRESHER_DEVICE_OUT_OF_RANGE, "an earlier call failed: " + last_);
    if (!told.asked) told = {count_, true};
    return THRESHER_DEVICE_OK;
  }

  // After all work on a stream is done.
  thresher_device_result End(Told& told) {
    const std::lock_guard lock(mutex_);
    Look();
    const bool new_ones = told.asked && told.count != count_;
    told = {};
    return new_ones ? Fail(THRESHER_DEVICE_OUT_OF_RANGE, last_) : THRESHER_DEVICE_OK;
  }

 private:
  // Whether there is a finding that nobody has seen yet.
  bool Look() {
    if (fault_ == nullptr || *static_cast<volatile uint32_t*>(&fault_->raised) == 0) return false;
    last_ = Describe(*fault_);
    ++count_;
    fault_->raised = 0;
    *static_cast<volatile uint32_t*>(&fault_->claimed) = 0;
    return true;
  }

  Fault* fault_ = nullptr;
  std::mutex mutex_;  // guards all below
  uint64_t count_ = 0;
  std::string last_;
};

}  // namespace thresher::cuda
