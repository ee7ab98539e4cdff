// Between Python objects and the engine's types.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>

#include "thresher/base/encoding.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/graph.h"
#include "thresher/plan/tuning.h"

namespace thresher::bindings {

namespace nb = nanobind;

// Any tensor in CPU memory: numpy, torch or whatever else speaks DLPack or the buffer protocol.
using Array = nb::ndarray<nb::ro, nb::device::cpu>;
using MutableArray = nb::ndarray<nb::device::cpu>;

// Raises the Python exception that fits the code: ValueError, NotImplementedError, IndexError, MemoryError,
// RuntimeError.
[[noreturn]] void Raise(const Status& status);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

// A window on the array's memory. Raises NotImplementedError for element types the engine does not store.
template <class A>
View ViewOf(const A& array);

Attrs AttrsFrom(const nb::dict& dict);
nb::object ToPython(const Attr& attr);
nb::tuple ToPython(const Dims& shape);

// The bytes of an array of uint8 without gaps, and the encoding of a name. Raise ValueError.
std::span<const uint8_t> BytesOf(const Array& array);
Encoding WantEncoding(const std::string& name);

// {isa, precision, m, n, k, num_threads, choice: {panel_kib, most_rows, split, variant}}
nb::dict ToPython(const TunedProduct& product);

}  // namespace thresher::bindings
