#include <c10/core/Device.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "thresher/torch_shim/engine.h"
#include "thresher/torch_shim/registration.h"

namespace thresher::torch_shim {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

// Event pairs around operators. The engine computes on the calling thread's behalf and returns when it is done, so the
// time on the host is the time on the device.
class Stubs final : public torch::profiler::impl::ProfilerStubs {
 public:
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const int64_t now = Engine()->timestamp_ns();
    if (device != nullptr) *device = 0;
    *event = std::make_shared<int64_t>(now);
    if (cpu_ns != nullptr) *cpu_ns = now;
  }

  // Microseconds.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* stop) const override {
    const int64_t ns = *static_cast<const int64_t*>(stop->get()) - *static_cast<const int64_t*>(start->get());
    return static_cast<float>(static_cast<double>(ns) / 1e3);
  }

  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override { visit(0); }
  void synchronize() const override {}
};

}  // namespace

void RegisterStubs() {
  // PyTorch keeps the pointer for as long as the process lives.
  static Stubs* const stubs = new Stubs;
  torch::profiler::impl::registerPrivateUse1Methods(stubs);
}

}  // namespace thresher::torch_shim
