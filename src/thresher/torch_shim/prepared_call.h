// A call of a model that is known to run one plan: from its arguments to its result without a line of Python. Where
// kernels fill the caches, each object and each line of Python that a call meets is fetched from memory again.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace thresher::torch_shim {

// A new reference to the class, or null with an exception set:
//
//   PreparedCall(slow, watch, entry, engine, threads, inputs, outputs, orders, result, build, counts)
//
// call(leaves) runs the plan with tensors of the list `leaves` and gives the model's result. Where anything is not as
// it was, or anybody wants to know of the call, it is slow(leaves) instead, which has to know what to do then, and what
// to raise where the engine refuses.
//
//   watch: a TensorWatch, which has to be unchanged.
//   entry: a weak reference to what keeps the plan; it has to be alive.
//   engine: (run, profiled, plan), addresses: of functions as PlanAtSizes.door() describes them, and of what the first
//   is given. threads: that PyTorch has to have. inputs: of each of the plan's, (number of a leaf, or a tensor; the
//   order of its dimensions, or None). outputs: places, as Empty takes them. orders: of each output's dimensions, or
//   None. result: the number of the output that the model gives, or -1: build(outputs, leaves) makes its result.
//   counts: arrays of int64: the first counts runs, and what it then is becomes the second; the third counts calls, and
//   where these have reached its other number it is slow(leaves).
PyObject* MakePreparedCallType();

}  // namespace thresher::torch_shim
