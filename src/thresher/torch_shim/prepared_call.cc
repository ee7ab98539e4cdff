#include "thresher/torch_shim/prepared_call.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "thresher/torch_shim/collected_type.h"
#include "thresher/torch_shim/results.h"
#include "thresher/torch_shim/tensor_watch.h"
#include "thresher/torch_shim/tensor_words.h"

namespace thresher::torch_shim {
namespace {

constexpr int kCounts = 3;

// Lets a reference go.
struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

using Order = std::vector<size_t>;  // empty: as they are

struct Input {
  Py_ssize_t leaf = -1;        // or
  PyObject* tensor = nullptr;  // one of the object's
  Order order;
};

struct Output {
  c10::ScalarType type;
  std::vector<int64_t> sizes, strides;              // in memory
  std::vector<int64_t> sizes_shown, strides_shown;  // empty: as in memory
};

// What no call changes.
struct Call {
  bool (*run)(const void*, const int64_t*, size_t, const int64_t*, size_t) noexcept = nullptr;
  bool (*profiled)() = nullptr;
  const void* plan = nullptr;
  int threads = 0;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  Py_ssize_t result = -1;
  std::array<Py_buffer, kCounts> counts{};

  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() {
    for (Py_buffer& count : counts) PyBuffer_Release(&count);  // does nothing to one that was never filled
  }
  int64_t& count(size_t i) { return *static_cast<int64_t*>(counts[i].buf); }
  bool IsDue() const {
    const auto* calls = static_cast<const int64_t*>(counts[2].buf);
    return calls[0] >= calls[1];
  }
};

struct PreparedCall {
  PyObject_HEAD PyObject* slow;  // null once the collector of cycles was here
  PyObject* watch;
  PyObject* entry;
  PyObject* held;  // tensors among the inputs
  PyObject* build;
  Call* state;

  std::array<PyObject**, 5> References() { return {&slow, &watch, &entry, &held, &build}; }
};

PreparedCall* Of(PyObject* self) { return reinterpret_cast<PreparedCall*>(self); }

// Whether memory holds what a tensor on the CPU shows, and nothing stands between the two.
bool IsPlain(const c10::TensorImpl& tensor) {
  return tensor.device().is_cpu() && !tensor.is_python_dispatch() &&
         !tensor.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}));
}

void AddOrdered(c10::IntArrayRef numbers, const Order& order, std::vector<int64_t>& words) {
  if (order.empty()) {
    words.insert(words.end(), numbers.begin(), numbers.end());
    return;
  }
  for (const size_t d : order) words.push_back(numbers[d]);
}

// The places of the inputs; false where one is not what a plan can read.
bool AddInputs(const Call& call, PyObject* leaves, std::vector<int64_t>& words) {
  PyTypeObject* const type = TensorType();
  for (const Input& input : call.inputs) {
    PyObject* tensor = input.tensor;
    if (tensor == nullptr) {
      if (input.leaf >= PyList_GET_SIZE(leaves)) return false;
      tensor = PyList_GET_ITEM(leaves, input.leaf);
      if (type == nullptr || !PyObject_TypeCheck(tensor, type)) return false;
    }
    const c10::TensorImpl& impl = *THPVariable_Unpack(tensor).unsafeGetTensorImpl();
    if (!IsPlain(impl) || (!input.order.empty() && input.order.size() != static_cast<size_t>(impl.dim()))) return false;
    words.push_back(AddressOf(impl));
    words.push_back(FormOf(impl));
    AddOrdered(impl.sizes(), input.order, words);
    AddOrdered(impl.strides(), input.order, words);
  }
  return true;
}

// New tensors and their places in `words`; null with an exception set where that fails.
Owned MakeOutputs(const Call& call, std::vector<int64_t>& words) {
  Owned made(PyList_New(static_cast<Py_ssize_t>(call.outputs.size())));
  for (size_t i = 0; made != nullptr && i < call.outputs.size(); ++i) {
    const Output& output = call.outputs[i];
    const at::Tensor tensor = NewResult(output.sizes, output.type, c10::Device(c10::kCPU));
    c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    words.push_back(AddressOf(impl));
    words.push_back(FormOf(impl));
    AddOrdered(output.sizes, {}, words);
    AddOrdered(output.strides, {}, words);
    if (!output.sizes_shown.empty()) impl.set_sizes_and_strides(output.sizes_shown, output.strides_shown);
    PyObject* const wrapped = THPVariable_Wrap(tensor);
    if (wrapped == nullptr) return nullptr;
    PyList_SET_ITEM(made.get(), static_cast<Py_ssize_t>(i), wrapped);
  }
  return made;
}

// What keeps the plan, alive, where the call may be made; null without an exception where it may not.
Owned EntryOf(const PreparedCall& prepared) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(prepared.entry, &found) <= 0) return nullptr;
  Owned entry(found);
#else
  PyObject* const found = PyWeakref_GetObject(prepared.entry);  // borrowed, and None where it is gone
  if (found == nullptr || found == Py_None) return nullptr;
  Owned entry(Py_NewRef(found));
#endif
  const Call& call = *prepared.state;
  if (at::get_num_threads() != call.threads || call.IsDue() || call.profiled() || IsInAMode()) return nullptr;
  if (!IsUnchanged(prepared.watch)) return nullptr;
  return entry;
}

// The plan's outputs; null without an exception where slow() is to be called, and with one where memory is short.
Owned RunPlan(PreparedCall& prepared, PyObject* leaves) {
  const Owned entry = EntryOf(prepared);
  if (entry == nullptr) return nullptr;
  Call& call = *prepared.state;
  std::vector<int64_t> in, out;
  in.reserve(call.inputs.size() * 12);
  out.reserve(call.outputs.size() * 12);
  if (!AddInputs(call, leaves, in)) return nullptr;
  Owned outputs = MakeOutputs(call, out);
  if (outputs == nullptr) return nullptr;
  if (!call.run(call.plan, in.data(), in.size(), out.data(), out.size())) return nullptr;
  call.count(1) = ++call.count(0);
  ++call.count(2);
  return outputs;
}

PyObject* Run(PyObject* self, PyObject* leaves) {
  PreparedCall& prepared = *Of(self);
  if (prepared.slow == nullptr || !PyList_Check(leaves)) {
    PyErr_SetString(PyExc_TypeError, "expected a list of a call's leaves");
    return nullptr;
  }
  const Owned alive(Py_NewRef(self));  // whoever holds it may let it go while the lock is given up
  Owned outputs;
  try {
    outputs = RunPlan(prepared, leaves);
  } catch (const std::exception& error) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  if (outputs == nullptr) return PyErr_Occurred() != nullptr ? nullptr : PyObject_CallOneArg(prepared.slow, leaves);
  if (prepared.state->result >= 0) return Py_NewRef(PyList_GET_ITEM(outputs.get(), prepared.state->result));
  return PyObject_CallFunctionObjArgs(prepared.build, outputs.get(), leaves, nullptr);
}

// ---- what a call is made of ----

bool Refuse(const char* problem) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, problem);
  return false;
}

bool ReadOrder(PyObject* order, Order& read) {
  if (order == Py_None) return true;
  const Owned items(PySequence_Tuple(order));
  if (items == nullptr) return false;
  const auto rank = static_cast<size_t>(PyTuple_GET_SIZE(items.get()));
  for (size_t d = 0; d < rank; ++d) {
    const Py_ssize_t from = PyLong_AsSsize_t(PyTuple_GET_ITEM(items.get(), static_cast<Py_ssize_t>(d)));
    if (from < 0 || static_cast<size_t>(from) >= rank) return Refuse("expected an order of dimensions");
    read.push_back(static_cast<size_t>(from));
  }
  return true;
}

bool ReadInputs(PyObject* inputs, PyObject* held, Call& call) {
  PyTypeObject* const type = TensorType();
  if (type == nullptr) return false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(inputs); ++i) {
    PyObject* const item = PyList_GET_ITEM(inputs, i);
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) return Refuse("expected pairs of a source and an order");
    PyObject *const source = PyTuple_GET_ITEM(item, 0), *const order = PyTuple_GET_ITEM(item, 1);
    Input input;
    if (PyObject_TypeCheck(source, type)) {
      if (PyList_Append(held, source) < 0) return false;
      input.tensor = source;
    } else {
      input.leaf = PyLong_AsSsize_t(source);
      if (input.leaf < 0) return Refuse("expected the number of a leaf, or a tensor");
    }
    if (!ReadOrder(order, input.order)) return false;
    call.inputs.push_back(std::move(input));
  }
  return true;
}

bool ReadOutputs(PyObject* places, PyObject* orders, Call& call) {
  const std::vector<int64_t> words = WordsOf(places);
  size_t at = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(orders); ++i) {
    const size_t rank = at + 2 <= words.size() ? static_cast<size_t>(words[at + 1] & kRankMask) : 0;
    if (at + 2 + 2 * rank > words.size()) return Refuse("expected as many orders as places");
    Output output;
    output.type = static_cast<c10::ScalarType>(words[at + 1] >> kTypeShift);
    const auto first = words.begin() + static_cast<std::ptrdiff_t>(at) + 2,
               middle = first + static_cast<std::ptrdiff_t>(rank);
    output.sizes.assign(first, middle);
    output.strides.assign(middle, middle + static_cast<std::ptrdiff_t>(rank));
    Order order;
    if (!ReadOrder(PyList_GET_ITEM(orders, i), order)) return false;
    if (!order.empty() && order.size() != rank) return Refuse("expected an order of all dimensions of an output");
    if (!order.empty()) {
      AddOrdered(output.sizes, order, output.sizes_shown);
      AddOrdered(output.strides, order, output.strides_shown);
    }
    call.outputs.push_back(std::move(output));
    at += 2 + 2 * rank;
  }
  return at == words.size() || Refuse("expected as many orders as places");
}

bool ReadCounts(PyObject* counts, Call& call) {
  if (!PyTuple_Check(counts) || PyTuple_GET_SIZE(counts) != kCounts) return Refuse("expected three arrays");
  for (size_t i = 0; i < kCounts; ++i) {
    PyObject* const array = PyTuple_GET_ITEM(counts, static_cast<Py_ssize_t>(i));
    if (PyObject_GetBuffer(array, &call.counts[i], PyBUF_WRITABLE) < 0) return false;
    const size_t numbers = i == 2 ? 2 : 1;
    if (call.counts[i].len < static_cast<Py_ssize_t>(numbers * sizeof(int64_t))) {
      return Refuse("expected arrays of one, one and two int64");
    }
  }
  return true;
}

PyObject* New(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *slow = nullptr, *watch = nullptr, *entry = nullptr, *inputs = nullptr, *places = nullptr, *orders = nullptr,
           *build = nullptr, *counts = nullptr;
  unsigned long long run = 0, profiled = 0, plan = 0;
  auto call = std::make_unique<Call>();
  if (!PyArg_ParseTuple(args, "OOO(KKK)iO!SO!nOO", &slow, &watch, &entry, &run, &profiled, &plan, &call->threads,
                        &PyList_Type, &inputs, &places, &PyList_Type, &orders, &call->result, &build, &counts)) {
    return nullptr;
  }
  if (!IsTensorWatch(watch) || !PyWeakref_Check(entry) || call->result >= PyList_GET_SIZE(orders)) {
    Refuse("expected a TensorWatch, a weak reference and the number of an output");
    return nullptr;
  }
  call->run = std::bit_cast<decltype(call->run)>(static_cast<uintptr_t>(run));
  call->profiled = std::bit_cast<decltype(call->profiled)>(static_cast<uintptr_t>(profiled));
  call->plan = std::bit_cast<const void*>(static_cast<uintptr_t>(plan));
  Owned held(PyList_New(0));
  if (held == nullptr || !ReadInputs(inputs, held.get(), *call) || !ReadOutputs(places, orders, *call) ||
      !ReadCounts(counts, *call)) {
    return nullptr;
  }
  PyObject* const self = type->tp_alloc(type, 0);
  if (self == nullptr) return nullptr;
  *Of(self) = {.ob_base = Of(self)->ob_base,
               .slow = Py_NewRef(slow),
               .watch = Py_NewRef(watch),
               .entry = Py_NewRef(entry),
               .held = held.release(),
               .build = Py_NewRef(build),
               .state = call.release()};
  return self;
}

PyMethodDef kMethods[] = {{"call", Run, METH_O, "The model's result for the leaves of a call's arguments."},
                          {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyObject* MakePreparedCallType() {
  return CollectedType<PreparedCall>::Make("thresher.PreparedCall", "A call of a model that is known to run one plan.",
                                           New, kMethods);
}

}  // namespace thresher::torch_shim
