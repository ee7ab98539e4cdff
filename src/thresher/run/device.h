// Where kernels run: one interface for the CPU (cpu_device.h) and for every other kind of device (device_library.h).
//
//   std::shared_ptr<Device> device = ...;
//   DeviceMemory x = device->Allocate(bytes);          // each of these gives a Result
//   std::unique_ptr<DeviceStream> stream = device->CreateStream();
//   stream->CopyToDevice(x.data(), numbers, bytes);
//   stream->Run(context);                              // the steps of a plan; see session.h
//   stream->CopyToHost(numbers, x.data(), bytes);      // waits for all of it
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "thresher/base/function_ref.h"
#include "thresher/base/status.h"
#include "thresher/plan/target.h"

namespace thresher {

struct RunContext;  // run_context.h

struct DeviceInfo {
  std::string kind;  // "cpu", "cuda"
  int index = 0;     // among those of its kind
  std::string name;  // "NVIDIA H100 80GB HBM3"
  uint64_t memory_bytes = 0;
  int multiprocessors = 0;         // cores of a CPU
  std::string compute_capability;  // "9.0"; empty for a CPU
  int driver_version = 0;          // 13000 for 13.0; 0 for a CPU
  int runtime_version = 0;
};

// A stream of another library, by its handle.
struct ForeignStreamState {
  bool capturing = false;  // what it is asked for is recorded instead of done
  uint64_t number = 0;     // else no other stream of the process has it or had it, while handles come again
};

// A moment in the work of a stream.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  virtual Status Synchronize() = 0;
  // From an earlier event to this one; both are timed and have been recorded, and their streams' work until then is
  // done.
  virtual Result<double> NsSince(DeviceEvent& earlier) = 0;
};

// Work of a stream that was recorded, with every address as it was then; destroyed when it has been done.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// Work in order. Kernels, fills and copies on the device may return before they are done; errors in what they do then
// show at the next Synchronize. One thread at a time. Addresses are the device's unless said otherwise.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // Return when the copy is done; host memory is the caller's again.
  virtual Status CopyToDevice(void* to, const void* host, size_t bytes) = 0;
  virtual Status CopyToHost(void* host, const void* from, size_t bytes) = 0;
  // The same, but with host memory of Device::AllocateHost(), which stays as it is until the stream is synchronised.
  virtual Status SendToDevice(void* to, const void* host, size_t bytes) = 0;
  virtual Status SendToHost(void* host, const void* from, size_t bytes) = 0;
  // The ranges do not overlap.
  virtual Status CopyOnDevice(void* to, const void* from, size_t bytes) = 0;
  virtual Status Fill(void* to, uint8_t value, size_t bytes) = 0;

  // The steps of the context's plan, which was made for this device's target(). The context is the stream's until they
  // are done. An error in the data shows here, or at the next Synchronize.
  virtual Status Run(RunContext& context) = 0;

  virtual Status Record(DeviceEvent& event) = 0;
  // What is asked of this stream from now on waits for what was asked of another one before the event.
  virtual Status Wait(DeviceEvent& event) = 0;
  virtual Status Synchronize() = 0;

  // Whether what the stream is asked for is recorded instead of done, be it the program's wish or that of Capture().
  virtual Result<bool> IsCapturing() = 0;
  // What `work` asks of the stream, as a graph, which Launch() does any number of times. Nothing of it is done here.
  // Errors: the device records no such work, whatever `work` says.
  virtual Result<std::unique_ptr<DeviceGraph>> Capture(FunctionRef<Status()> work) = 0;
  virtual Status Launch(DeviceGraph& graph) = 0;
};

class DeviceMemory;

class Device : public std::enable_shared_from_this<Device> {
 public:
  virtual ~Device() = default;

  const DeviceInfo& info() const { return info_; }
  // What plans for this device are made for; keeps the device alive.
  virtual std::shared_ptr<const Target> target() = 0;
  // Whether its memory is the host's, so that nothing is copied to it, and what a stream is asked for is done when the
  // call returns.
  virtual bool is_host() const = 0;

  // Aligned for every kernel; the content is undefined. InvalidArgument for 0 bytes, ResourceExhausted.
  Result<DeviceMemory> Allocate(size_t bytes);
  // Host memory that copies from and to the device need not copy once more: pinned.
  Result<DeviceMemory> AllocateHost(size_t bytes);
  virtual Result<std::unique_ptr<DeviceStream>> CreateStream() = 0;
  // A stream of this device that another library of the process made and keeps, by its handle: a cudaStream_t, say.
  virtual Result<std::unique_ptr<DeviceStream>> WrapStream(void* handle) = 0;
  virtual Result<ForeignStreamState> StateOf(void* handle) = 0;
  // One that is not `timed` takes less.
  virtual Result<std::unique_ptr<DeviceEvent>> CreateEvent(bool timed) = 0;
  // Opens and closes the window outside of which tools that were told so record nothing (`nsys profile
  // --capture-range=cudaProfilerApi`).
  virtual Status SetToolWindow(bool open) = 0;
  // What the device has measured to choose among kernels: lines of subject, choice and remark with tabs between them;
  // and what an earlier process with the same device, driver and libraries had, so that it is not measured again.
  virtual Result<std::string> Choices() = 0;
  virtual Status Learn(const std::string& choices) = 0;

 protected:
  explicit Device(DeviceInfo info) : info_(std::move(info)) {}

 private:
  friend class DeviceMemory;
  virtual Result<void*> AllocateBytes(size_t bytes) = 0;
  virtual void ReleaseBytes(void* address, size_t bytes) = 0;
  virtual Result<void*> AllocateHostBytes(size_t bytes) = 0;
  virtual void ReleaseHostBytes(void* address, size_t bytes) = 0;

  const DeviceInfo info_;
};

// Memory of a device, or of the host for it, which it keeps alive.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(std::move(other.device_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        host_(std::exchange(other.host_, false)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(host_, other.host_);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  friend class Device;
  DeviceMemory(std::shared_ptr<Device> device, void* data, size_t size, bool host)
      : device_(std::move(device)), data_(data), size_(size), host_(host) {}

  std::shared_ptr<Device> device_;
  void* data_ = nullptr;
  size_t size_ = 0;
  bool host_ = false;  // it is the host's
};

}  // namespace thresher
