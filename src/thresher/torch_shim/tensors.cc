#define PY_SSIZE_T_CLEAN
#include "thresher/torch_shim/tensors.h"

#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <exception>
#include <vector>

namespace thresher::torch_shim {
namespace {

// A class of torch; never given back: modules of PyTorch are not unloaded.
PyTypeObject* ClassOf(const char* name) {
  PyObject* torch = PyImport_ImportModule("torch");
  if (torch == nullptr) return nullptr;
  PyObject* found = PyObject_GetAttrString(torch, name);
  Py_DECREF(torch);
  return reinterpret_cast<PyTypeObject*>(found);
}

PyTypeObject* TensorType() {
  static PyTypeObject* type = nullptr;
  if (type == nullptr) type = ClassOf("Tensor");
  return type;
}

PyObject* ToBytes(const std::vector<int64_t>& words) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words.data()),
                                   static_cast<Py_ssize_t>(words.size() * sizeof(int64_t)));
}

void AddForm(std::vector<int64_t>& words, const c10::TensorImpl& tensor) {
  words.push_back(static_cast<int64_t>(c10::typeMetaToScalarType(tensor.dtype())) << 16 |
                  static_cast<int64_t>(tensor.requires_grad()) << 8 | tensor.dim());
  const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  words.insert(words.end(), sizes.begin(), sizes.end());
  words.insert(words.end(), strides.begin(), strides.end());
}

// Whether what AddForm notes is all that there is to say.
bool IsOrdinary(const c10::TensorImpl& tensor) {
  return tensor.layout() == c10::kStrided && tensor.device().is_cpu() && !tensor.is_python_dispatch() &&
         !tensor.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor})) &&
         !tensor.has_symbolic_sizes_strides();
}

// Bytes made of the words that `add` finds for each tensor.
template <class Add>
PyObject* Describe(PyObject* tensors, Add add) {
  PyTypeObject* type = TensorType();
  if (type == nullptr) return nullptr;
  if (!PyList_Check(tensors)) {
    PyErr_SetString(PyExc_TypeError, "wanted a list of tensors");
    return nullptr;
  }
  const Py_ssize_t count = PyList_GET_SIZE(tensors);
  std::vector<int64_t> words;
  words.reserve(static_cast<size_t>(count) * 7);
  try {
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* item = PyList_GET_ITEM(tensors, i);
      if (!PyObject_TypeCheck(item, type)) {
        PyErr_SetString(PyExc_TypeError, "wanted a list of tensors");
        return nullptr;
      }
      add(words, *THPVariable_Unpack(item).unsafeGetTensorImpl());
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return ToBytes(words);
}

}  // namespace

PyObject* Places(PyObject*, PyObject* tensors) {
  return Describe(tensors, [](std::vector<int64_t>& words, c10::TensorImpl& tensor) {
    words.push_back(reinterpret_cast<intptr_t>(tensor.data()));
    AddForm(words, tensor);
  });
}

PyObject* Versions(PyObject*, PyObject* tensors) {
  return Describe(tensors, [](std::vector<int64_t>& words, c10::TensorImpl& tensor) {
    words.push_back(tensor.is_inference() ? -1 : static_cast<int64_t>(tensor.version_counter().current_version()));
  });
}

PyObject* Forms(PyObject*, PyObject* values) {
  PyTypeObject* type = TensorType();
  if (type == nullptr) return nullptr;
  if (!PyList_Check(values)) {
    PyErr_SetString(PyExc_TypeError, "wanted a list");
    return nullptr;
  }
  const Py_ssize_t count = PyList_GET_SIZE(values);
  std::vector<int64_t> words;
  words.reserve(static_cast<size_t>(count) * 6);
  try {
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* value = PyList_GET_ITEM(values, i);
      if (value == Py_None) {
        words.push_back(-1);
        continue;
      }
      if (Py_TYPE(value) != type) Py_RETURN_NONE;
      const c10::TensorImpl& tensor = *THPVariable_Unpack(value).unsafeGetTensorImpl();
      if (!IsOrdinary(tensor)) Py_RETURN_NONE;
      for (Py_ssize_t k = 0; k < i; ++k) {
        if (PyList_GET_ITEM(values, k) == value) words.push_back(-2 - k);
      }
      AddForm(words, tensor);
    }
  } catch (const std::exception&) {
    Py_RETURN_NONE;  // a tensor without sizes, say; the slow way has words for it
  }
  return ToBytes(words);
}

}  // namespace thresher::torch_shim
