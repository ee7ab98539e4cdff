#define PY_SSIZE_T_CLEAN
#include "thresher/torch_shim/results.h"

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace thresher::torch_shim {
namespace {

// Functions of the engine, set while Python's lock is held.
void* (*take)(size_t) = nullptr;
void (*give)(void*) = nullptr;
size_t least_bytes = 0;

void GiveBack(void* data) {
  c10::profiledCPUMemoryReporter().Delete(data);
  give(data);
}

// A storage that is made larger asks it again.
class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = bytes >= least_bytes ? take(bytes) : nullptr;
    if (data == nullptr) return c10::GetDefaultCPUAllocator()->allocate(bytes);  // or its error
    c10::profiledCPUMemoryReporter().New(data, bytes);
    return {data, data, &GiveBack, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// Never destroyed, as tensors may outlive all.
c10::Allocator* Results() {
  static auto* const allocator = new ResultAllocator;
  return allocator;
}

bool ReadAddress(PyObject* number, uintptr_t* address) {
  *address = std::bit_cast<uintptr_t>(PyLong_AsVoidPtr(number));
  return PyErr_Occurred() == nullptr;
}

}  // namespace

bool IsInAMode() {
  return c10::impl::TorchDispatchModeTLS::stack_len() > 0 || at::impl::PythonTorchFunctionTLS::stack_len() > 0 ||
         torch::jit::tracer::isTracing();
}

at::Tensor NewResult(c10::IntArrayRef sizes, c10::ScalarType type, c10::Device device) {
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  if (take == nullptr || !device.is_cpu() || bytes < least_bytes || IsInAMode() ||
      c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) {
    return at::empty(sizes, at::TensorOptions(type).device(device));
  }
  constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);
  return at::Tensor(at::detail::empty_generic(sizes, Results(), kCpu, type, std::nullopt));
}

PyObject* SetResultMemory(PyObject*, PyObject* const* args, Py_ssize_t count) {
  uintptr_t numbers[3] = {};
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "expected two addresses and a number of bytes");
    return nullptr;
  }
  for (int i = 0; i < 3; ++i) {
    if (!ReadAddress(args[i], &numbers[i])) return nullptr;
  }
  give = std::bit_cast<void (*)(void*)>(numbers[1]);
  least_bytes = numbers[2];
  take = std::bit_cast<void* (*)(size_t)>(numbers[0]);
  Py_RETURN_NONE;
}

}  // namespace thresher::torch_shim
