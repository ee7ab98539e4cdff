// What a package of operators outside this repository gives the engine: rows, as those of src/thresher/ops/, and
// kernels.
//
// The package is a shared library with THRESHER_OPERATOR_PACKAGE in one source. It needs this header and the two it
// includes, and links nothing of the engine's. It belongs to one release of the engine, whose headers it was compiled
// with: the release is read before anything else, and another one is refused.
//
// What a package writes are plain functions of a Call that return Status and the like; Infer, CostOf, Run and Scratch
// make of them what rows hold. Nothing but numbers and addresses crosses over, and no exception, so that compilers and
// C++ libraries may differ. docs/operators.md is the guide, examples/operator_package one to begin with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "thresher/base/dtype.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"

namespace thresher::operators {

inline constexpr int kMaxOperands = 8;  // of a row, results not counted
inline constexpr int kMaxResults = 4;
inline constexpr int kMaxAttributes = 8;

enum class AttributeType : int32_t { kBool, kInt, kFloat };

// The value of an attribute; which member holds it follows from its type.
struct Number {
  int64_t integer = 0;  // bool: 0 or 1
  double real = 0;
};

struct Attribute {
  const char* name;
  const char* doc;
  AttributeType type;
  bool required;
  Number value;  // where it is not required: what it is when left out
};

constexpr Attribute Bool(const char* name, const char* doc, bool value) {
  return {name, doc, AttributeType::kBool, false, {value, 0}};
}
constexpr Attribute Int(const char* name, const char* doc) { return {name, doc, AttributeType::kInt, true, {}}; }
constexpr Attribute Int(const char* name, const char* doc, int64_t value) {
  return {name, doc, AttributeType::kInt, false, {value, 0}};
}
constexpr Attribute Float(const char* name, const char* doc) { return {name, doc, AttributeType::kFloat, true, {}}; }
constexpr Attribute Float(const char* name, const char* doc, double value) {
  return {name, doc, AttributeType::kFloat, false, {0, value}};
}

// What the functions of a row see of a node. Views have data in kernels alone, and are row-major but for operands of a
// row that reads strides. Floats are f32: the engine widens those of 16 bits; where the first operand of floats is of
// 16 bits, so is a result of f32 in the model.
struct Call {
  const View* operands = nullptr;  // those of the row, then the results
  int32_t num_operands = 0;
  int32_t num_results = 0;
  uint32_t absent = 0;                 // bit i: operand i, an optional one, is not given
  const Number* attributes = nullptr;  // those of the row, in its order
  std::byte* scratch = nullptr;        // 64-byte aligned, this part's own; in kernels
  int32_t part = 0;                    // kernels do one of num_parts parts, several at once; see PartOf
  int32_t num_parts = 1;

  const View& in(int i) const { return operands[i]; }
  const View& out(int i = 0) const { return operands[num_operands + i]; }
  bool has(int i) const { return (absent >> i & 1) == 0; }
  bool flag(int i) const { return attributes[i].integer != 0; }
  int64_t integer(int i) const { return attributes[i].integer; }
  double real(int i) const { return attributes[i].real; }
};

struct Type {
  DType dtype = DType::kF32;
  Dims shape;
};
inline Type TypeOf(const View& view) { return {view.dtype, Dims(view.shape, view.shape + view.rank)}; }

// Work of one execution. flops < 0: not modelled.
struct Cost {
  double flops = -1;
  double bytes_read = 0;
  double bytes_written = 0;
};

inline double Bytes(const View& view) {
  return static_cast<double>(view.size()) * static_cast<double>(SizeOf(view.dtype));
}
// So many operations for each element of the first result; everything read and written once.
inline Cost PerElement(const Call& call, double flops) {
  Cost cost{flops * static_cast<double>(call.out().size()), 0, 0};
  for (int i = 0; i < call.num_operands; ++i) cost.bytes_read += call.has(i) ? Bytes(call.in(i)) : 0;
  for (int i = 0; i < call.num_results; ++i) cost.bytes_written += Bytes(call.out(i));
  return cost;
}

struct Range {
  int64_t begin;
  int64_t end;
};
// Which of `count` equal pieces of work belong to the call's part.
inline Range PartOf(const Call& call, int64_t count) {
  return {count * call.part / call.num_parts, count * (call.part + 1) / call.num_parts};
}

// Where a function of a row leaves its error.
struct Error {
  char text[512] = {};
};

// What rows hold. Not for packages to write: below is what makes them.
using InferFn = Code (*)(const Call&, View* results, Error&) noexcept;
using CostFn = void (*)(const Call&, Cost&) noexcept;
using RunFn = Code (*)(const Call&, Error&) noexcept;
using ScratchFn = size_t (*)(const Call&) noexcept;

struct Row {
  const char* name;      // "package.operator", of letters, digits and _
  const char* doc;       // one sentence
  const char* operands;  // "x weight bias?": names, and ? behind those that may be absent
  int32_t num_results = 1;
  const Attribute* attributes = nullptr;
  int32_t num_attributes = 0;
  InferFn infer = nullptr;
  CostFn cost = nullptr;
  RunFn run = nullptr;
  ScratchFn scratch = nullptr;  // null: none
  bool reads_strides = false;   // operands come with any strides, else those that are not row-major are copied before
};

struct Package {
  const char* engine_version;  // first in every release
  const char* name;
  const char* version;
  const Row* rows;
  int32_t num_rows;
};

namespace detail {

inline Code Fail(Error& error, Code code, const std::string& text) {
  const size_t size = std::min(text.size(), sizeof(error.text) - 1);
  std::memcpy(error.text, text.data(), size);
  error.text[size] = '\0';
  return code;
}

template <class Body>
Code Guard(Error& error, Body body) noexcept {
  try {
    const Status status = body();
    return status.ok() ? Code::kOk : Fail(error, status.code(), status.message());
  } catch (const std::exception& thrown) {
    return Fail(error, Code::kInternal, thrown.what());
  } catch (...) {
    return Fail(error, Code::kInternal, "an exception of an unknown type");
  }
}

}  // namespace detail

// Of a function `Result<std::vector<Type>> F(const Call&)`: the types of the results, or what is wrong.
template <auto F>
Code Infer(const Call& call, View* results, Error& error) noexcept {
  return detail::Guard(error, [&]() -> Status {
    THRESHER_ASSIGN(const std::vector<Type> types, F(call));
    if (types.size() != static_cast<size_t>(call.num_results)) {
      return Internal("its row has " + std::to_string(call.num_results) + " results, its function gives " +
                      std::to_string(types.size()));
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i].shape.size() > kMaxRank) {
        return Unsupported("expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
                           ToString(types[i].shape));
      }
      results[i] = MakeView(nullptr, types[i].dtype, types[i].shape);
    }
    return Status::Ok();
  });
}

// Of a function `Cost F(const Call&)`.
template <auto F>
void CostOf(const Call& call, Cost& cost) noexcept {
  try {
    cost = F(call);
  } catch (...) {
    cost = {};
  }
}

// Of a kernel `Status F(const Call&)`, which does one part of the work and leaves the results' other elements alone.
template <auto F>
Code Run(const Call& call, Error& error) noexcept {
  return detail::Guard(error, [&] { return F(call); });
}

// Of a function `size_t F(const Call&)` that throws nothing: bytes of scratch memory that a part of the work wants.
template <auto F>
size_t Scratch(const Call& call) noexcept {
  return F(call);
}

}  // namespace thresher::operators

extern "C" {
// The library's only symbol.
__attribute__((visibility("default"))) const thresher::operators::Package* thresher_operator_package();
}

// Hands out the rows of an array. THRESHER_OPERATOR_RELEASE comes with the CMake target thresher::operators.
#define THRESHER_OPERATOR_PACKAGE(name, version, rows)                                                                \
  extern "C" const ::thresher::operators::Package* thresher_operator_package() {                                      \
    static constexpr ::thresher::operators::Package package = {THRESHER_OPERATOR_RELEASE, name, version, rows,        \
                                                               static_cast<int32_t>(sizeof(rows) / sizeof(rows[0]))}; \
    return &package;                                                                                                  \
  }
