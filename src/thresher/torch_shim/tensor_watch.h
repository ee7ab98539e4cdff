// Whether many tensors are in the states that they were in, and where they were: all that a call asks of them, at once.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace thresher::torch_shim {

// A new reference to the class, or null with an exception set:
//
//   TensorWatch(tensors, states, others, places, addresses, words)
//
// `states` is what States gave of the list `tensors`, `places` what Places gave of `others`; `addresses` are words of
// 64 bits that say where words of 32 bits lie, which held `words`. unchanged() says whether all is as it was. The
// object keeps the tensors alive, but not what lies at the addresses.
PyObject* MakeTensorWatchType();

bool IsTensorWatch(PyObject* object);
// What unchanged() of a TensorWatch says; throws where a tensor has no memory any more.
bool IsUnchanged(PyObject* watch);

}  // namespace thresher::torch_shim
