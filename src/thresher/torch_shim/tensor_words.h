// A tensor of PyTorch as words of 64 bits: how often it was changed in place, where its elements lie, its form (type,
// device, whether gradients are needed, rank), sizes, strides.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace thresher::torch_shim {

inline constexpr int kRankMask = 0xFF;
inline constexpr int kDeviceShift = 9;  // 0: the CPU, else 1 more than the number of the CUDA device
inline constexpr int64_t kDeviceMask = 0x7F;
inline constexpr int kTypeShift = 16;

// -1 for inference tensors, which do not count.
inline int64_t ChangesOf(c10::TensorImpl& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor.version_counter().current_version());
}

inline int64_t AddressOf(const c10::TensorImpl& tensor) { return reinterpret_cast<intptr_t>(tensor.data()); }

inline int64_t FormOf(const c10::TensorImpl& tensor) {
  const c10::Device device = tensor.device();
  return static_cast<int64_t>(c10::typeMetaToScalarType(tensor.dtype())) << kTypeShift |
         static_cast<int64_t>(device.is_cuda() ? device.index() + 1 : 0) << kDeviceShift |
         static_cast<int64_t>(tensor.requires_grad()) << 8 | tensor.dim();
}

// The words that bytes hold.
inline std::vector<int64_t> WordsOf(PyObject* bytes) {
  std::vector<int64_t> words(static_cast<size_t>(PyBytes_GET_SIZE(bytes)) / sizeof(int64_t));
  std::memcpy(words.data(), PyBytes_AS_STRING(bytes), words.size() * sizeof(int64_t));
  return words;
}

// torch.Tensor; null with an exception set where PyTorch has none.
PyTypeObject* TensorType();

}  // namespace thresher::torch_shim
