// Where new tensors on the CPU have their memory from: the engine, which keeps what is dropped for the next ones.
#pragma once

#include <Python.h>
//
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

namespace thresher::torch_shim {

// Whether something stands between the program and PyTorch's operators.
bool IsInAMode();

// A new row-major tensor with anything in it, as at::empty makes it. Large ones on the CPU have the engine's memory, if
// it has named its functions, no mode wants to see the operator, and no other package has replaced PyTorch's allocator.
at::Tensor NewResult(c10::IntArrayRef sizes, c10::ScalarType type, c10::Device device);

// (take, give, least): addresses of the engine's functions, and the bytes from which on they are used. Once a process.
PyObject* SetResultMemory(PyObject* module, PyObject* const* args, Py_ssize_t count);

}  // namespace thresher::torch_shim
