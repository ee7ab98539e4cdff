// One step of a plan as device_api.h passes it, and what a family of kernels says to it.
//
// A family is a struct in the header of its kernels, named in dispatch.h:
//   kKernels                      the numbers that it answers to
//   Verdict Check(call)           whether there is a kernel for such operands, which have no data yet
//   size_t ScratchBytes(call)     what a launch wants of it; NoScratch gives none
//   auto Launch(launch, call)     launch(shape, kernel) for what Check() lets pass, or launch.Nothing()
// A family whose kernels another library has (kOfLibrary) has no Launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "thresher/base/view.h"
#include "thresher/device_api.h"
#include "thresher/kernels/kernel_id.h"

namespace thresher::cuda {

struct Fault;

struct Call {
  uint32_t number;
  const void* params;
  size_t params_bytes;
  const View* views;
  int32_t num_views;
  void* scratch = nullptr;  // as ScratchBytes() asked for
  Fault* fault = nullptr;   // where a launch tells what is wrong in its operands

  KernelId kernel() const { return static_cast<KernelId>(number); }
  template <class Params>
  const Params& as() const {
    return *static_cast<const Params*>(params);
  }
  const View& last() const { return views[num_views - 1]; }
};

struct Verdict {
  thresher_device_result result = THRESHER_DEVICE_OK;
  std::string problem;

  bool ok() const { return result == THRESHER_DEVICE_OK; }
};

inline Verdict Unsupported(std::string text) { return {THRESHER_DEVICE_UNSUPPORTED, std::move(text)}; }

// Parameters and operands are as many as a kernel of this release takes.
inline Verdict Fits(const Call& call, size_t params_bytes, int32_t num_views) {
  if (call.params_bytes == params_bytes && call.num_views == num_views) return {};
  return {THRESHER_DEVICE_INVALID_ARGUMENT, std::string(Name(call.kernel())) + ": expected " +
                                                std::to_string(params_bytes) + " bytes of parameters and " +
                                                std::to_string(num_views) + " operands, got " +
                                                std::to_string(call.params_bytes) + " and " +
                                                std::to_string(call.num_views) + "; the engine is of another release"};
}

// All operands are f32, absent ones too.
inline Verdict AllF32(const Call& call) {
  for (int i = 0; i < call.num_views; ++i) {
    if (call.views[i].dtype == DType::kF32) continue;
    return Unsupported(std::string(Name(call.kernel())) + ": expected operands of f32 on this device, got " +
                       std::string(Name(call.views[i].dtype)));
  }
  return {};
}

// All operands are floats; absent ones pass.
inline Verdict AllFloats(const Call& call) {
  for (int i = 0; i < call.num_views; ++i) {
    if (IsFloat(call.views[i].dtype)) continue;
    return Unsupported(std::string(Name(call.kernel())) +
                       ": expected operands of f32, bf16 or f16 on this device, got " +
                       std::string(Name(call.views[i].dtype)));
  }
  return {};
}

struct NoScratch {
  static size_t ScratchBytes(const Call&) { return 0; }
};

}  // namespace thresher::cuda
