// What tensors of PyTorch look like at one moment, for many at once: Python takes a microsecond to ask one.
#pragma once

#include <Python.h>

namespace thresher::torch_shim {

// Of a list of tensors: where their elements lie, with type, sizes, strides and whether gradients are needed, as bytes
// that are equal where all of these are. Of each, in words of 64 bits: the address, one whose lowest 8 bits are the
// rank, sizes, strides. Null with an exception set where an item is no tensor with memory of its own.
PyObject* Places(PyObject* module, PyObject* tensors);

// Their places, each with its count of changes in place, -1 for inference tensors, which do not count; likewise.
PyObject* States(PyObject* module, PyObject* tensors);

// (tensors, what States gave): whether they are in this state. Takes no memory.
PyObject* SameStates(PyObject* module, PyObject* const* args, Py_ssize_t count);

// New row-major tensors of the types, sizes and devices that these places have; and their own places.
PyObject* Empty(PyObject* module, PyObject* places);

// (a list of tensors, places, whether gaps are refused): what Empty gives of the places, and the places of the tensors;
// None (the object) where memory does not hold what one of these shows, or one has gaps that are refused.
PyObject* Ready(PyObject* module, PyObject* const* args, Py_ssize_t count);

// What tells captures for two calls apart: the settings of PyTorch; of tensors everything but where they lie and what
// they hold, and which of them are the same one; of None that it is. None (the object) where the list holds anything
// else, or tensors of a class, layout or device of their own, or where a mode stands between the program and PyTorch's
// operators, or it is traced.
PyObject* Forms(PyObject* module, PyObject* values);

}  // namespace thresher::torch_shim
