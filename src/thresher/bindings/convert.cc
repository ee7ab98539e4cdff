#include "thresher/bindings/convert.h"

namespace thresher::bindings {
namespace {

DType DTypeOf(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(dtype.code);
  if (dtype.lanes == 1) {
    if (code == Code::Float && dtype.bits == 32) return DType::kF32;
    if (code == Code::Bfloat && dtype.bits == 16) return DType::kBF16;
    if (code == Code::Float && dtype.bits == 16) return DType::kF16;
    if (code == Code::UInt && dtype.bits == 16) return DType::kBF16;  // its bits, which is all that numpy can hold
    if (code == Code::Int && dtype.bits == 64) return DType::kI64;
    if (code == Code::Int && dtype.bits == 32) return DType::kI32;
    if (code == Code::Bool && dtype.bits == 8) return DType::kBool;
  }
  static constexpr const char* kNames[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string name = dtype.code < 7 ? kNames[dtype.code] : "type " + std::to_string(dtype.code);
  throw nb::type_error(
      ("expected a tensor of float32, bfloat16 (from numpy its bits as uint16), float16, int64, int32 or bool, got " +
       name + std::to_string(static_cast<int>(dtype.bits)) + "; convert it first")
          .c_str());
}

}  // namespace

void Raise(const Status& status) {
  PyObject* type = PyExc_RuntimeError;
  switch (status.code()) {
    case Code::kInvalidArgument:
      type = PyExc_ValueError;
      break;
    case Code::kUnsupported:
      type = PyExc_NotImplementedError;
      break;
    case Code::kOutOfRange:
      type = PyExc_IndexError;
      break;
    case Code::kResourceExhausted:
      type = PyExc_MemoryError;
      break;
    case Code::kInternal:
    case Code::kOk:
      break;
  }
  PyErr_SetString(type, status.message().c_str());
  throw nb::python_error();
}

template <class A>
View ViewOf(const A& array) {
  View view;
  view.dtype = DTypeOf(array.dtype());
  if (array.ndim() > static_cast<size_t>(kMaxRank)) {
    throw nb::value_error(("expected a tensor of at most " + std::to_string(kMaxRank) + " dimensions, got " +
                           std::to_string(array.ndim()))
                              .c_str());
  }
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  view.rank = static_cast<int>(array.ndim());
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = static_cast<int64_t>(array.shape(static_cast<size_t>(i)));
    view.strides[i] = array.stride(static_cast<size_t>(i));
  }
  return view;
}

template View ViewOf(const Array&);
template View ViewOf(const MutableArray&);

std::span<const uint8_t> BytesOf(const Array& array) {
  const nb::dlpack::dtype type = array.dtype();
  if (type.bits != 8 || type.lanes != 1 || array.ndim() != 1 || (array.shape(0) > 1 && array.stride(0) != 1)) {
    throw nb::value_error("expected bytes: uint8 of one dimension without gaps");
  }
  return {static_cast<const uint8_t*>(static_cast<const void*>(array.data())), array.shape(0)};
}

Encoding WantEncoding(const std::string& name) {
  if (const std::optional<Encoding> encoding = ParseEncoding(name)) return *encoding;
  std::string known;
  for (const std::string_view each : kEncodingNames) known += (known.empty() ? "" : ", ") + std::string(each);
  throw nb::value_error(("expected an encoding of " + known + ", got '" + name + "'").c_str());
}

Attrs AttrsFrom(const nb::dict& dict) {
  Attrs attrs;
  for (const auto& [key, value] : dict) {
    const std::string name = nb::cast<std::string>(key);
    if (nb::isinstance<nb::bool_>(value)) {
      attrs[name] = nb::cast<bool>(value);
    } else if (nb::isinstance<nb::int_>(value)) {
      attrs[name] = nb::cast<int64_t>(value);
    } else if (nb::isinstance<nb::float_>(value)) {
      attrs[name] = nb::cast<double>(value);
    } else if (nb::isinstance<nb::str>(value)) {
      attrs[name] = nb::cast<std::string>(value);
    } else if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
      attrs[name] = nb::cast<std::vector<int64_t>>(value);
    } else {
      throw nb::type_error(("attribute '" + name + "': expected bool, int, float, str or a list of ints").c_str());
    }
  }
  return attrs;
}

nb::object ToPython(const Attr& attr) {
  return std::visit([](const auto& value) -> nb::object { return nb::cast(value); }, attr);
}

nb::tuple ToPython(const Dims& shape) {
  nb::list list;
  for (const int64_t d : shape) list.append(d);
  return nb::tuple(list);
}

}  // namespace thresher::bindings
