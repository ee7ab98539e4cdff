// Whether Python objects still hold what they held: the comparison behind compiler/watch.py.
#include <nanobind/nanobind.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "thresher/bindings/module.h"

namespace thresher::bindings {
namespace {

namespace nb = nanobind;

// A number that no change of any dictionary leaves as it was; 0 where this interpreter has none.
uint64_t TagOf(PyObject* holder) {
#if PY_VERSION_HEX < 0x030C0000
  if (PyDict_Check(holder)) return reinterpret_cast<PyDictObject*>(holder)->ma_version_tag;
#endif
  (void)holder;
  return 0;
}

// `saved` is key, value, key, value ... in the order of the dictionary.
bool SameDict(PyObject* dict, PyObject* saved) {
  const Py_ssize_t count = PyTuple_GET_SIZE(saved);
  if (2 * PyDict_Size(dict) != count) return false;
  Py_ssize_t position = 0, i = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (PyDict_Next(dict, &position, &key, &value)) {
    if (i >= count || PyTuple_GET_ITEM(saved, i) != key || PyTuple_GET_ITEM(saved, i + 1) != value) return false;
    i += 2;
  }
  return i == count;
}

bool SameList(PyObject* list, PyObject* saved) {
  const Py_ssize_t count = PyTuple_GET_SIZE(saved);
  if (PyList_GET_SIZE(list) != count) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (PyList_GET_ITEM(list, i) != PyTuple_GET_ITEM(saved, i)) return false;
  }
  return true;
}

bool SameSet(PyObject* set, PyObject* saved) {
  const int equal = PyObject_RichCompareBool(set, saved, Py_EQ);
  if (equal < 0) PyErr_Clear();
  return equal == 1;
}

// Attributes that are not kept in a dictionary; one that is not set counts as None.
bool SameAttributes(PyObject* owner, PyObject* names, PyObject* saved) {
  for (Py_ssize_t i = 0, count = PyTuple_GET_SIZE(names); i < count; ++i) {
    PyObject* value = PyObject_GetAttr(owner, PyTuple_GET_ITEM(names, i));
    if (value == nullptr) PyErr_Clear();
    Py_XDECREF(value);
    if ((value == nullptr ? Py_None : value) != PyTuple_GET_ITEM(saved, i)) return false;
  }
  return true;
}

// Dicts, lists and sets, and what they held.
class Holders {
 public:
  // Of each: (owner or None, dict, (key, value, ...)), (None, list, items), (None, set, frozenset) or (owner, names of
  // attributes, their values). An owner has the dict as its __dict__.
  explicit Holders(nb::tuple entries) : owned_(std::move(entries)) {
    for (const nb::handle entry : owned_) {
      if (!PyTuple_Check(entry.ptr()) || PyTuple_GET_SIZE(entry.ptr()) != 3) throw nb::value_error("expected triples");
      PyObject* owner = PyTuple_GET_ITEM(entry.ptr(), 0);
      PyObject* holder = PyTuple_GET_ITEM(entry.ptr(), 1);
      PyObject* saved = PyTuple_GET_ITEM(entry.ptr(), 2);
      const bool names =
          PyTuple_Check(holder) && PyTuple_Check(saved) && PyTuple_GET_SIZE(holder) == PyTuple_GET_SIZE(saved);
      const bool ordered = (PyDict_Check(holder) || PyList_Check(holder)) && PyTuple_Check(saved);
      if (!names && !ordered && !PyAnySet_Check(holder)) {
        throw nb::type_error("expected dicts, lists or names of attributes with a tuple each, or sets");
      }
      if (owner != Py_None) AddOwner(owner, PyDict_Check(holder) ? holder : nullptr);
      if (PyDict_Check(holder)) {
        dicts_.push_back({holder, saved, 0});
      } else {
        others_.push_back({owner == Py_None ? nullptr : owner, holder, saved});
      }
    }
  }

  // Whether they still hold these very objects; sets, equal ones. Owners are of the same classes.
  bool Unchanged() {
    for (const Owner& owner : owners_) {
      if (Py_TYPE(owner.object) != owner.type || (owner.slot != nullptr && *owner.slot != owner.dict)) return false;
    }
    for (Dict& dict : dicts_) {  // comparing them runs no code of Python's
      const uint64_t tag = TagOf(dict.holder);
      if (tag != 0 && tag == dict.tag) continue;
      if (!SameDict(dict.holder, dict.saved)) return false;
      dict.tag = tag;
    }
    for (size_t i = 0; i < others_.size(); ++i) {  // none any more once the collector was here
      const Other other = others_[i];
      if (!Same(other)) return false;
    }
    return true;
  }

  int Traverse(visitproc visit, void* arg) {
    Py_VISIT(owned_.ptr());
    return 0;
  }

  void Clear() {
    owners_.clear();
    dicts_.clear();
    others_.clear();
    owned_ = nb::steal<nb::tuple>(PyTuple_New(0));
  }

 private:
  // Each kind lies side by side: the comparison is bound by the memory that it looks at.
  struct Owner {
    PyObject* object;
    PyTypeObject* type;
    PyObject** slot;  // where the object keeps its __dict__; null: none that is watched
    PyObject* dict;
  };
  struct Dict {
    PyObject* holder;
    PyObject* saved;
    uint64_t tag;  // 0 at first: what a dictionary held may be older than its tag
  };
  struct Other {
    PyObject* owner;
    PyObject* holder;
    PyObject* saved;
  };

  void AddOwner(PyObject* object, PyObject* dict) {
    static PyObject* nowhere = nullptr;  // for a __dict__ that the object makes up: it never counts as unchanged
    PyObject** slot = nullptr;
    if (dict != nullptr) slot = _PyObject_GetDictPtr(object);
    if (dict != nullptr && slot == nullptr) slot = &nowhere;
    owners_.push_back({object, Py_TYPE(object), slot, dict});
  }

  static bool Same(const Other& other) {
    if (PyTuple_Check(other.holder)) return SameAttributes(other.owner, other.holder, other.saved);
    return PyList_Check(other.holder) ? SameList(other.holder, other.saved) : SameSet(other.holder, other.saved);
  }

  nb::tuple owned_;  // for the collector of cycles: a model's objects may lead back here
  std::vector<Owner> owners_;
  std::vector<Dict> dicts_;
  std::vector<Other> others_;
};

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Holders>(self)->Traverse(visit, arg) : 0;
}

int Clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Holders>(self)->Clear();
  return 0;
}

PyType_Slot kSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(&Traverse)}, {Py_tp_clear, reinterpret_cast<void*>(&Clear)}, {0, nullptr}};

// Whether the words of memory at these addresses hold what they held.
bool SameWords(const nb::bytes& addresses, const nb::bytes& words) {
  const auto* at = static_cast<const uint64_t*>(addresses.data());
  const auto* saved = static_cast<const uint32_t*>(words.data());
  const size_t count = words.size() / sizeof(uint32_t);
  if (addresses.size() != count * sizeof(uint64_t)) throw nb::value_error("expected an address for each word");
  for (size_t i = 0; i < count; ++i) {
    if (*std::bit_cast<const volatile uint32_t*>(at[i]) != saved[i]) return false;
  }
  return true;
}

nb::object ClassDict(const nb::type_object& type) {
#if PY_VERSION_HEX >= 0x030C0000
  return nb::steal(PyType_GetDict(reinterpret_cast<PyTypeObject*>(type.ptr())));
#else
  return nb::borrow(reinterpret_cast<PyTypeObject*>(type.ptr())->tp_dict);
#endif
}

}  // namespace

void BindWatch(nb::module_& m) {
  nb::class_<Holders>(m, "Holders", "Dicts, lists and sets, and what they held.", nb::type_slots(kSlots))
      .def(nb::init<nb::tuple>(), nb::arg("entries"),
           nb::sig("def __init__(self, entries: tuple[tuple[object, object, object], ...]) -> None"))
      .def("unchanged", &Holders::Unchanged, "Whether they still hold these very objects.");
  m.def("same_words", &SameWords, nb::arg("addresses"), nb::arg("words"),
        "Whether the words of 32 bits at these addresses of 64 bits hold what they held.");
  m.def("class_dict", &ClassDict, nb::arg("type"), nb::sig("def class_dict(type: type) -> dict[str, object]"),
        "What type.__dict__ is a view of. Not to be changed.");
}

}  // namespace thresher::bindings
