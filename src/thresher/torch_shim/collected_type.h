// Classes of Python whose objects hold references, through which cycles may lead.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

namespace thresher::torch_shim {

// `Object` begins with PyObject_HEAD; References() gives the addresses of its references, each of which may be null,
// and is from the collector of cycles on; `state` is what it owns besides, or null.
template <class Object>
class CollectedType {
 public:
  // A new reference to the class, or null with an exception set. `methods` are static.
  static PyObject* Make(const char* name, const char* doc, newfunc make, PyMethodDef* methods) {
    PyType_Slot slots[] = {{Py_tp_doc, const_cast<char*>(doc)},
                           {Py_tp_new, reinterpret_cast<void*>(make)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(&Dealloc)},
                           {Py_tp_traverse, reinterpret_cast<void*>(&Traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(&Clear)},
                           {Py_tp_methods, methods},
                           {0, nullptr}};
    PyType_Spec spec = {name, sizeof(Object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return PyType_FromSpec(&spec);
  }

 private:
  static Object* Of(PyObject* self) { return reinterpret_cast<Object*>(self); }

  static int Traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    for (PyObject** const reference : Of(self)->References()) Py_VISIT(*reference);
    return 0;
  }

  static int Clear(PyObject* self) {
    for (PyObject** const reference : Of(self)->References()) Py_CLEAR(*reference);
    return 0;
  }

  static void Dealloc(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Clear(self);
    delete Of(self)->state;
    type->tp_free(self);
    Py_DECREF(type);
  }
};

}  // namespace thresher::torch_shim
