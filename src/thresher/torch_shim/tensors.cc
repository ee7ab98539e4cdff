#include "thresher/torch_shim/tensors.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <vector>

#include "thresher/torch_shim/results.h"
#include "thresher/torch_shim/tensor_words.h"

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

PyObject* ToBytes(const std::vector<int64_t>& words) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words.data()),
                                   static_cast<Py_ssize_t>(words.size() * sizeof(int64_t)));
}

// Takes words in.
class Written {
 public:
  explicit Written(size_t expected) { words_.reserve(expected); }
  void operator()(int64_t word) { words_.push_back(word); }
  void operator()(c10::IntArrayRef words) { words_.insert(words_.end(), words.begin(), words.end()); }
  bool goes_on() const { return true; }
  std::vector<int64_t>& words() { return words_; }

 private:
  std::vector<int64_t> words_;
};

// Compares words with those of bytes, which need not be aligned.
class Compared {
 public:
  Compared(const char* bytes, Py_ssize_t count)
      : next_(bytes), end_(bytes + count - count % static_cast<Py_ssize_t>(sizeof(int64_t))) {}
  void operator()(int64_t word) {
    same_ = same_ && next_ != end_ && std::memcmp(next_, &word, sizeof(word)) == 0;
    if (same_) next_ += sizeof(word);
  }
  void operator()(c10::IntArrayRef words) {
    for (const int64_t word : words) (*this)(word);
  }
  bool goes_on() const { return same_; }
  bool same() const { return same_ && next_ == end_; }

 private:
  const char* next_;
  const char* end_;
  bool same_ = true;
};

template <class Sink>
void AddForm(Sink& sink, const c10::TensorImpl& tensor) {
  sink(FormOf(tensor));
  sink(tensor.sizes());
  sink(tensor.strides());
}

template <class Sink>
void AddPlace(Sink& sink, const c10::TensorImpl& tensor) {
  sink(AddressOf(tensor));
  AddForm(sink, tensor);
}

template <class Sink>
void AddState(Sink& sink, c10::TensorImpl& tensor) {
  sink(ChangesOf(tensor));
  AddPlace(sink, tensor);
}

// Whether what AddForm notes is all that there is to say.
bool IsOrdinary(const c10::TensorImpl& tensor) {
  return tensor.layout() == c10::kStrided && (tensor.device().is_cpu() || tensor.device().is_cuda()) &&
         !tensor.is_python_dispatch() &&
         !tensor.key_set().has_any(c10::DispatchKeySet(
             {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor})) &&
         !tensor.has_symbolic_sizes_strides();
}

// The settings that a capture depends on.
int64_t Settings() {
  return static_cast<int64_t>(c10::get_default_dtype_as_scalartype()) << kTypeShift |
         static_cast<int64_t>(c10::GradMode::is_enabled()) |
         static_cast<int64_t>(c10::InferenceMode::is_enabled()) << 1 |
         static_cast<int64_t>(at::autocast::is_autocast_enabled(at::kCPU)) << 2 |
         static_cast<int64_t>(at::autocast::is_autocast_enabled(at::kCUDA)) << 4 |
         static_cast<int64_t>(at::globalContext().deterministicAlgorithms()) << 3;
}

// Hands every tensor of a list to `add`. False with an exception set where an item is none, or has no memory.
template <class Sink, class Add>
bool ForEach(PyObject* tensors, Sink& sink, Add add) {
  PyTypeObject* type = TensorType();
  if (type == nullptr) return false;
  if (!PyList_Check(tensors)) {
    PyErr_SetString(PyExc_TypeError, "expected a list of tensors");
    return false;
  }
  try {
    for (Py_ssize_t i = 0, count = PyList_GET_SIZE(tensors); i < count && sink.goes_on(); ++i) {
      PyObject* item = PyList_GET_ITEM(tensors, i);
      if (Py_TYPE(item) != type && !PyObject_TypeCheck(item, type)) {
        PyErr_SetString(PyExc_TypeError, "expected a list of tensors");
        return false;
      }
      add(sink, *THPVariable_Unpack(item).unsafeGetTensorImpl());
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
  return true;
}

// New tensors of the types, sizes and devices of places.
class Made {
 public:
  Made() = default;
  ~Made() { Py_XDECREF(tensors_); }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;

  // False with an exception set where that fails.
  bool Like(PyObject* places) {
    if (!PyBytes_Check(places)) {
      PyErr_SetString(PyExc_TypeError, "expected the places of tensors");
      return false;
    }
    words_ = WordsOf(places);
    Py_ssize_t count = 0;
    for (size_t i = 0; i < words_.size(); ++count) {
      const size_t left = words_.size() - i;
      const size_t needed = left < 2 ? 3 : 2 + 2 * RankAt(i);
      if (needed > left) {
        PyErr_SetString(PyExc_ValueError, "expected the places of tensors, got bytes that end too early");
        return false;
      }
      i += needed;
    }
    try {
      return Make(count);
    } catch (const std::exception& error) {
      if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
      return false;
    }
  }
  PyObject* tensors() const { return tensors_; }
  const std::vector<int64_t>& places() const { return words_; }

 private:
  size_t RankAt(size_t place) const { return static_cast<size_t>(words_[place + 1] & kRankMask); }

  bool Make(Py_ssize_t count) {
    tensors_ = PyList_New(count);
    if (tensors_ == nullptr) return false;
    size_t at = 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
      const int64_t form = words_[at + 1], number = form >> kDeviceShift & kDeviceMask;
      const c10::Device device =
          number == 0 ? c10::Device(c10::kCPU) : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(number - 1));
      const at::Tensor made = NewResult(c10::IntArrayRef(words_.data() + at + 2, RankAt(at)),
                                        static_cast<c10::ScalarType>(form >> kTypeShift), device);
      words_[at] = reinterpret_cast<intptr_t>(made.data_ptr());
      PyObject* const tensor = THPVariable_Wrap(made);
      if (tensor == nullptr) return false;
      PyList_SET_ITEM(tensors_, i, tensor);
      at += 2 + 2 * RankAt(at);
    }
    return true;
  }

  std::vector<int64_t> words_;
  PyObject* tensors_ = nullptr;
};

}  // namespace

PyTypeObject* TensorType() {
  static PyTypeObject* type = nullptr;
  if (type == nullptr) type = ClassOf("Tensor");
  return type;
}

PyObject* Places(PyObject*, PyObject* tensors) {
  Written words(PyList_Check(tensors) ? static_cast<size_t>(PyList_GET_SIZE(tensors)) * 8 : 0);
  return ForEach(tensors, words, AddPlace<Written>) ? ToBytes(words.words()) : nullptr;
}

PyObject* States(PyObject*, PyObject* tensors) {
  Written words(PyList_Check(tensors) ? static_cast<size_t>(PyList_GET_SIZE(tensors)) * 8 : 0);
  return ForEach(tensors, words, AddState<Written>) ? ToBytes(words.words()) : nullptr;
}

PyObject* SameStates(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyBytes_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "expected a list of tensors and bytes");
    return nullptr;
  }
  Compared words(PyBytes_AS_STRING(args[1]), PyBytes_GET_SIZE(args[1]));
  if (!ForEach(args[0], words, AddState<Compared>)) return nullptr;
  return PyBool_FromLong(words.same());
}

PyObject* Empty(PyObject*, PyObject* places) {
  Made made;
  if (!made.Like(places)) return nullptr;
  PyObject* const own = ToBytes(made.places());
  PyObject* const result = own == nullptr ? nullptr : PyTuple_Pack(2, made.tensors(), own);
  Py_XDECREF(own);
  return result;
}

PyObject* Ready(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "expected a list of tensors, places, and whether gaps are refused");
    return nullptr;
  }
  const bool refuses_gaps = args[2] == Py_True;
  bool plain = true;
  Written words(PyList_Check(args[0]) ? static_cast<size_t>(PyList_GET_SIZE(args[0])) * 8 : 0);
  const auto add = [&](Written& sink, const c10::TensorImpl& tensor) {
    plain = plain && !tensor.key_set().has(c10::DispatchKey::Negative) && (!refuses_gaps || tensor.is_contiguous());
    AddPlace(sink, tensor);
  };
  if (!ForEach(args[0], words, add)) return nullptr;
  if (!plain) Py_RETURN_NONE;
  Made made;
  if (!made.Like(args[1])) return nullptr;
  PyObject *const own = ToBytes(made.places()), *const given = ToBytes(words.words());
  PyObject* const result = own == nullptr || given == nullptr ? nullptr : PyTuple_Pack(3, made.tensors(), own, given);
  Py_XDECREF(own);
  Py_XDECREF(given);
  return result;
}

PyObject* Forms(PyObject*, PyObject* values) {
  PyTypeObject* type = TensorType();
  if (type == nullptr) return nullptr;
  if (!PyList_Check(values)) {
    PyErr_SetString(PyExc_TypeError, "expected a list");
    return nullptr;
  }
  const Py_ssize_t count = PyList_GET_SIZE(values);
  Written words(1 + static_cast<size_t>(count) * 6);
  try {
    if (IsInAMode()) Py_RETURN_NONE;
    words(Settings());
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* value = PyList_GET_ITEM(values, i);
      if (value == Py_None) {
        words(-1);
        continue;
      }
      if (Py_TYPE(value) != type) Py_RETURN_NONE;
      const c10::TensorImpl& tensor = *THPVariable_Unpack(value).unsafeGetTensorImpl();
      if (!IsOrdinary(tensor)) Py_RETURN_NONE;
      for (Py_ssize_t k = 0; k < i; ++k) {
        if (PyList_GET_ITEM(values, k) == value) words(-2 - k);
      }
      AddForm(words, tensor);
    }
  } catch (const std::exception&) {
    Py_RETURN_NONE;  // a tensor without sizes, say; the slow way has words for it
  }
  return ToBytes(words.words());
}

}  // namespace thresher::torch_shim
