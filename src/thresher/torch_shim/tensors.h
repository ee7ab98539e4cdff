// What tensors of PyTorch look like at one moment, for many at once: Python takes a microsecond to ask one.
#pragma once

#include <Python.h>

namespace thresher::torch_shim {

// Of a list of tensors: where their elements lie, with type, sizes, strides and whether gradients are wanted, as bytes
// that are equal where all of these are. Null with an exception set where an item is no tensor with memory of its own.
PyObject* Places(PyObject* module, PyObject* tensors);

// Their counts of changes in place, -1 for inference tensors, which do not count; likewise.
PyObject* Versions(PyObject* module, PyObject* tensors);

// What tells captures for two calls apart: of tensors everything but where they lie and what they hold, and which of
// them are the same one; of None that it is. None (the object) where the list holds anything else, or tensors of a
// class, layout or device of their own.
PyObject* Forms(PyObject* module, PyObject* values);

}  // namespace thresher::torch_shim
