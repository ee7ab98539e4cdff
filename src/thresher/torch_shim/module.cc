// The Python face of the shim: a handful of functions, in Python's own C interface.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <exception>

#include "thresher/torch_shim/collector.h"
#include "thresher/torch_shim/engine.h"
#include "thresher/torch_shim/prepared_call.h"
#include "thresher/torch_shim/registration.h"
#include "thresher/torch_shim/results.h"
#include "thresher/torch_shim/summary.h"
#include "thresher/torch_shim/tensor_watch.h"
#include "thresher/torch_shim/tensors.h"

namespace {

using namespace thresher::torch_shim;

PyObject* Install(PyObject*, PyObject* argument) {
  void* address = PyLong_AsVoidPtr(argument);
  if (address == nullptr && PyErr_Occurred()) return nullptr;
  try {
    const char* problem = SetEngine(static_cast<const thresher_pti_api*>(address));
    if (problem == nullptr) problem = RegisterAll();
    if (problem == nullptr) Py_RETURN_NONE;
    PyErr_SetString(PyExc_RuntimeError, problem);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* IsRecording(PyObject*, PyObject*) { return PyBool_FromLong(collector::Running()); }

PyObject* StopRecording(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  collector::Stop();
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* GetLastSession(PyObject*, PyObject*) {
  const Summary last = LastSession();
  return Py_BuildValue(
      "{s:K,s:O,s:L,s:L,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:s#}", "number",
      static_cast<unsigned long long>(last.number), "finished", last.finished ? Py_True : Py_False, "start_ns",
      static_cast<long long>(last.start_ns), "stop_ns", static_cast<long long>(last.stop_ns), "runtime",
      static_cast<unsigned long long>(last.runtime), "kernels", static_cast<unsigned long long>(last.kernels), "copies",
      static_cast<unsigned long long>(last.copies), "annotations", static_cast<unsigned long long>(last.annotations),
      "memory", static_cast<unsigned long long>(last.memory), "dropped", static_cast<unsigned long long>(last.dropped),
      "unlinked", static_cast<unsigned long long>(last.unlinked), "out_of_window",
      static_cast<unsigned long long>(last.out_of_window), "before_launch",
      static_cast<unsigned long long>(last.before_launch), "error", last.error.data(),
      static_cast<Py_ssize_t>(last.error.size()));
}

PyMethodDef kMethods[] = {
    {"install", Install, METH_O, "Takes the address of the engine's tracing interface and registers with PyTorch."},
    {"is_recording", IsRecording, METH_NOARGS, "Whether a session of PyTorch's profiler collects our records."},
    {"stop_recording", StopRecording, METH_NOARGS, "Ends a session that is still running, before the process does."},
    {"last_session", GetLastSession, METH_NOARGS, "What became of the records of the newest session."},
    {"places", Places, METH_O, "Where tensors of a list lie, their types, sizes and strides, as bytes to be compared."},
    {"states", States, METH_O, "Their places with how often each was changed in place, as bytes."},
    {"same_states", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(SameStates)), METH_FASTCALL,
     "Whether tensors are in the states that bytes name."},
    {"empty", Empty, METH_O, "New tensors of the types, sizes and devices that places name, and their own places."},
    {"ready", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Ready)), METH_FASTCALL,
     "What empty() gives, and the places of tensors; None where memory does not hold what one of these shows."},
    {"forms", Forms, METH_O, "What tells captures for arguments apart, as bytes; None where bytes cannot say it."},
    {"set_result_memory", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(SetResultMemory)), METH_FASTCALL,
     "Addresses of the engine's functions that take and give back memory, and from how many bytes on empty() uses it."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       THRESHER_TORCH_SHIM_NAME,
                       "Connects the engine with PyTorch's profiler and tensors.",
                       -1,
                       kMethods,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC THRESHER_TORCH_SHIM_INIT() {
  PyObject* const module = PyModule_Create(&kModule);
  if (module == nullptr) return nullptr;
  PyObject* const watch = MakeTensorWatchType();
  PyObject* const call = MakePreparedCallType();
  const bool added = watch != nullptr && PyModule_AddObjectRef(module, "TensorWatch", watch) == 0 && call != nullptr &&
                     PyModule_AddObjectRef(module, "PreparedCall", call) == 0;
  Py_XDECREF(watch);
  Py_XDECREF(call);
  if (added) return module;
  Py_DECREF(module);
  return nullptr;
}
