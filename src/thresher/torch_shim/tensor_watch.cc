#include "thresher/torch_shim/tensor_watch.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "thresher/torch_shim/collected_type.h"
#include "thresher/torch_shim/tensor_words.h"

namespace thresher::torch_shim {
namespace {

// Where what is compared of a tensor lay when it was watched. By now it may lie elsewhere: it is fetched, not read.
using Places = std::array<const void*, 8>;

struct Watched {
  std::vector<PyObject*> tensors;  // of the object's lists; the first ones are counted
  size_t counted = 0;
  std::vector<Places> places;  // of each tensor
  std::vector<int64_t> words;  // what they were, one after the other
  std::vector<const volatile uint32_t*> addresses;
  std::vector<uint32_t> samples;
};

struct TensorWatch {
  PyObject_HEAD PyObject* held;  // the tensors, for the collector of cycles; null once it was here
  Watched* state;

  std::array<PyObject**, 1> References() { return {&held}; }
};

TensorWatch* Of(PyObject* self) { return reinterpret_cast<TensorWatch*>(self); }

Places PlacesOf(PyObject* object) {
  constexpr size_t kLine = 64;
  const c10::TensorImpl& tensor = *THPVariable_Unpack(object).unsafeGetTensorImpl();
  static_assert(sizeof(tensor) <= 3 * kLine + kLine / 2);
  const auto* const begin = reinterpret_cast<const char*>(&tensor);
  const void* counter = nullptr;  // the one member of a VariableVersion points there
  static_assert(sizeof(tensor.version_counter()) == sizeof(counter));
  std::memcpy(static_cast<void*>(&counter), static_cast<const void*>(&tensor.version_counter()), sizeof(counter));
  const void* const storage = tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
  return {object,  begin,   begin + kLine,         begin + 2 * kLine, begin + sizeof(tensor) - 1,
          counter, storage, tensor.autograd_meta()};
}

// A call's kernels push all of it out of the caches: fetched one behind the other, that is 0.3 microseconds a tensor.
constexpr size_t kTensorsAhead = 8, kSamplesAhead = 16;

void Fetch(const Places& places) {
  for (const void* const place : places) __builtin_prefetch(place);
}

// Moves `next` behind the words of the tensor where they are these.
bool IsAsItWas(c10::TensorImpl& tensor, bool counted, const int64_t*& next) {
  if (counted && *next++ != ChangesOf(tensor)) return false;
  if (*next++ != AddressOf(tensor)) return false;
  const int64_t form = *next++;
  if (form != FormOf(tensor)) return false;
  const auto rank = static_cast<size_t>(form & kRankMask);
  const c10::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t d = 0; d < rank; ++d) {
    if (next[d] != sizes[d] || next[rank + d] != strides[d]) return false;
  }
  next += 2 * rank;
  return true;
}

bool IsAsItWas(const Watched& watched) {
  const int64_t* next = watched.words.data();
  const size_t count = watched.tensors.size(), samples = watched.samples.size();
  for (size_t i = 0; i < std::min(count, kTensorsAhead); ++i) Fetch(watched.places[i]);
  for (size_t i = 0; i < count; ++i) {
    if (i + kTensorsAhead < count) Fetch(watched.places[i + kTensorsAhead]);
    c10::TensorImpl& tensor = *THPVariable_Unpack(watched.tensors[i]).unsafeGetTensorImpl();
    if (!IsAsItWas(tensor, i < watched.counted, next)) return false;
  }
  for (size_t i = 0; i < samples; ++i) {
    if (i + kSamplesAhead < samples)
      __builtin_prefetch(const_cast<const uint32_t*>(watched.addresses[i + kSamplesAhead]));
    if (*watched.addresses[i] != watched.samples[i]) return false;
  }
  return true;
}

// The words of `bytes` behind those of `watched`. False with an exception set where they are not those of `count`
// tensors.
bool AddWords(PyObject* bytes, size_t count, bool counted, Watched& watched) {
  const std::vector<int64_t> words = WordsOf(bytes);
  size_t at = 0;
  for (size_t i = 0; i < count && at <= words.size(); ++i) {
    const size_t form = at + (counted ? 2 : 1);
    at = form < words.size() ? form + 1 + 2 * static_cast<size_t>(words[form] & kRankMask) : words.size() + 1;
  }
  if (at != words.size()) {
    PyErr_SetString(PyExc_ValueError, "expected the words of each of the tensors, got those of others");
    return false;
  }
  watched.words.insert(watched.words.end(), words.begin(), words.end());
  return true;
}

bool AddTensors(PyObject* held, PyObject* list, Watched& watched) {
  PyTypeObject* const type = TensorType();
  if (type == nullptr) return false;
  for (Py_ssize_t i = 0, count = PyList_GET_SIZE(list); i < count; ++i) {
    PyObject* const tensor = PyList_GET_ITEM(list, i);
    if (!PyObject_TypeCheck(tensor, type)) {
      PyErr_SetString(PyExc_TypeError, "expected a list of tensors");
      return false;
    }
    if (PyList_Append(held, tensor) < 0) return false;
    watched.tensors.push_back(tensor);
    watched.places.push_back(PlacesOf(tensor));
  }
  return true;
}

bool AddSamples(PyObject* addresses, PyObject* words, Watched& watched) {
  const size_t count = static_cast<size_t>(PyBytes_GET_SIZE(words)) / sizeof(uint32_t);
  if (static_cast<size_t>(PyBytes_GET_SIZE(addresses)) != count * sizeof(uint64_t)) {
    PyErr_SetString(PyExc_ValueError, "expected an address for each word");
    return false;
  }
  watched.addresses.resize(count);
  watched.samples.resize(count);
  std::memcpy(static_cast<void*>(watched.addresses.data()), PyBytes_AS_STRING(addresses), count * sizeof(uint64_t));
  std::memcpy(watched.samples.data(), PyBytes_AS_STRING(words), count * sizeof(uint32_t));
  return true;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *tensors = nullptr, *states = nullptr, *others = nullptr, *places = nullptr, *addresses = nullptr,
           *words = nullptr;
  if (!PyArg_ParseTuple(args, "O!SO!SSS", &PyList_Type, &tensors, &states, &PyList_Type, &others, &places, &addresses,
                        &words)) {
    return nullptr;
  }
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  try {
    auto watched = std::make_unique<Watched>();
    Of(self)->held = PyList_New(0);
    const auto first = static_cast<size_t>(PyList_GET_SIZE(tensors)),
               rest = static_cast<size_t>(PyList_GET_SIZE(others));
    if (Of(self)->held != nullptr && AddTensors(Of(self)->held, tensors, *watched) &&
        AddTensors(Of(self)->held, others, *watched) && AddWords(states, first, true, *watched) &&
        AddWords(places, rest, false, *watched) && AddSamples(addresses, words, *watched)) {
      watched->counted = first;
      Of(self)->state = watched.release();
      return self;
    }
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  Py_DECREF(self);
  return nullptr;
}

PyObject* Unchanged(PyObject* self, PyObject*) {
  try {
    return PyBool_FromLong(IsUnchanged(self));
  } catch (const std::exception& error) {  // one has no memory any more, say
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

PyMethodDef kMethods[] = {{"unchanged", Unchanged, METH_NOARGS, "Whether all is as it was."},
                          {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* MakeTensorWatchType() {
  return CollectedType<TensorWatch>::Make("thresher.TensorWatch", "Tensors and what they were at one moment.", New,
                                          kMethods);
}

bool IsTensorWatch(PyObject* object) { return Py_TYPE(object)->tp_new == &New; }

bool IsUnchanged(PyObject* watch) { return Of(watch)->held != nullptr && IsAsItWas(*Of(watch)->state); }

}  // namespace thresher::torch_shim
