// A backend that has a name needs a guard and hooks: autograd, pinned memory and the accelerator interface of PyTorch
// ask the named backend first, and fail where there is nothing to ask. What they learn here is that there is no device.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "thresher/torch_shim/registration.h"

namespace thresher::torch_shim {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

class NoDeviceGuard final : public c10::impl::NoOpDeviceGuardImpl<kType> {
 public:
  c10::DeviceIndex deviceCount() const noexcept override { return 0; }
};

class NoDeviceHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return false; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    TORCH_CHECK(false, "Cannot pin memory: expected an accelerator, got none (thresher computes on the CPU)");
  }
};

}  // namespace

void RegisterDevice() {
  // PyTorch keeps the pointers for as long as the process lives.
  if (!c10::impl::hasDeviceGuardImpl(kType)) {
    static const c10::impl::DeviceGuardImplRegistrar registrar(kType, new NoDeviceGuard);
  }
  if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(new NoDeviceHooks);
}

}  // namespace thresher::torch_shim
