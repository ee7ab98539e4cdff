// Convolutions by cuDNN, which PyTorch for CUDA brings: it competes with the kernels of this library where it can be
// opened, and is never needed. Nothing here is of the CUDA runtime, so the emulator runs it, too.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "thresher/base/function_ref.h"
#include "thresher/cuda/call.h"
#include "thresher/cuda/choices.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

struct Cudnn;  // its functions

// What a device does for a contest. Streams are those of the runtime.
class ConvolutionBench {
 public:
  virtual ~ConvolutionBench() = default;
  // The kernels of this library.
  virtual thresher_device_result Own(void* stream, const Call& call) = 0;
  // What follows a sum of products that is where the result will be.
  virtual thresher_device_result Finish(void* stream, const Call& call) = 0;
  // Milliseconds that the device takes for `work`, which is asked for more than once and writes to no other memory of
  // the call than `result`. Below zero where it cannot be timed.
  using Work = FunctionRef<thresher_device_result(void* stream, void* result)>;
  virtual thresher_device_result Time(const Call& call, Work work, float& ms) = 0;
};

// Convolutions on one device. Thread safe.
class Convolutions {
 public:
  struct Known;  // descriptors of one kind of convolution, and whose kernel it gets

  explicit Convolutions(Choices& choices);
  ~Convolutions();
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  // Of scratch memory that cuDNN wants for the call, 0 where it is not there or has nothing for it. For plans in the
  // making; the device is current.
  size_t ScratchBytes(const Call& call);

  // Whose kernel the call gets: null for those of this library. The first of a kind is a contest, unless the stream is
  // `captured`, where nothing may be made or waited for. What cuDNN cannot do, or does wrong, is no error.
  thresher_device_result Choose(const Call& call, bool captured, ConvolutionBench& bench, Known*& known);
  // Where cuDNN fails, this and all later calls of the kind are those of this library.
  thresher_device_result Run(Known& known, void* stream, const Call& call, ConvolutionBench& bench);

 private:
  using Key = std::array<int64_t, 40>;
  static Key KeyOf(const Call& call);

  bool Open(std::string& problem);
  Known* Find(const Call& call);
  thresher_device_result Contest(const Call& call, ConvolutionBench& bench, Known& known);
  thresher_device_result Ask(const Known& known, int way, void* stream, const Call& call, void* result,
                             ConvolutionBench& bench);

  std::mutex mutex_;
  Choices& choices_;
  const bool wanted_;
  const Cudnn* library_ = nullptr;
  void* handle_ = nullptr;
  bool opened_ = false;
  std::string problem_;
  std::map<Key, std::unique_ptr<Known>> known_;
};

}  // namespace thresher::cuda
