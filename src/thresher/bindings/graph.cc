#include "thresher/graph/graph.h"

#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/module.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/parser.h"
#include "thresher/graph/printer.h"
#include "thresher/kernels/copy.h"
#include "thresher/ops/outside.h"
#include "thresher/passes/pass_manager.h"
#include "thresher/run/device_constant.h"

namespace thresher::bindings {
namespace {

DType WantDType(const std::string& name) {
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) throw nb::value_error(("expected dtype f32, i64, i32 or bool, got '" + name + "'").c_str());
  return *dtype;
}

ValueId AddConstant(Graph& graph, std::string name, const Array& array, bool weight) {
  const View view = ViewOf(array);
  Dims shape(view.shape, view.shape + view.rank);
  if (weight && view.contiguous()) {
    Constant constant;
    constant.data = view.data;
    // The array object keeps the tensor's memory alive; its destructor takes the interpreter's lock by itself.
    constant.owner = std::make_shared<Array>(array);
    constant.is_weight = true;
    return graph.AddConstant(std::move(name), view.dtype, std::move(shape), std::move(constant));
  }
  const std::shared_ptr<std::byte> bytes = AlignedBytes(static_cast<size_t>(view.size()) * SizeOf(view.dtype));
  if (view.size() > 0) kernels::Copy(view, MakeView(bytes.get(), view.dtype, shape));
  Constant constant;
  constant.data = bytes.get();
  constant.owner = bytes;
  constant.is_weight = weight;
  return graph.AddConstant(std::move(name), view.dtype, std::move(shape), std::move(constant));
}

// A weight on bytes as they are stored, which are not copied.
ValueId AddWeight(Graph& graph, std::string name, const std::string& encoding_name, Dims shape, const Array& array) {
  const Encoding encoding = WantEncoding(encoding_name);
  const std::span<const uint8_t> bytes = BytesOf(array);
  Constant constant;
  DType dtype = DType::kF32;
  if (IsBlocked(encoding)) {
    Check(CheckBlocks(dtype, shape, encoding));
    constant.blocks = encoding;
  } else {
    dtype = encoding == Encoding::kBf16 ? DType::kBF16 : encoding == Encoding::kF16 ? DType::kF16 : DType::kF32;
  }
  int64_t room = kMaxTensorBytes / 4;
  for (const int64_t size : shape) {
    if (size < 0 || size > room) throw nb::value_error(("expected sizes of a tensor, got " + ToString(shape)).c_str());
    if (size > 0) room /= size;
  }
  const int64_t wanted = EncodedBytes(encoding, NumElements(shape));
  if (static_cast<int64_t>(bytes.size()) != wanted) {
    throw nb::value_error((name + ": expected " + std::to_string(wanted) + " bytes for " + encoding_name +
                           ToString(shape) + ", got " + std::to_string(bytes.size()))
                              .c_str());
  }
  if (!IsBlocked(encoding) && reinterpret_cast<uintptr_t>(bytes.data()) % SizeOf(dtype) != 0) {
    throw nb::value_error(
        (name + ": expected bytes at a multiple of " + std::to_string(SizeOf(dtype)) + "; copy them first").c_str());
  }
  constant.data = bytes.data();
  constant.owner = std::make_shared<Array>(array);
  constant.is_weight = true;
  return graph.AddConstant(std::move(name), dtype, std::move(shape), std::move(constant));
}

// A weight that lies in a device's memory.
ValueId AddPlaced(Graph& graph, std::string name, const std::string& dtype_name, Dims shape,
                  const std::shared_ptr<DeviceConstant>& placed) {
  const DType dtype = WantDType(dtype_name);
  const auto bytes = static_cast<size_t>(NumElements(shape)) * SizeOf(dtype);
  if (bytes != placed->bytes()) {
    throw nb::value_error((name + ": expected " + std::to_string(bytes) + " bytes for " + std::string(Name(dtype)) +
                           ToString(shape) + ", got " + std::to_string(placed->bytes()))
                              .c_str());
  }
  Constant constant;
  constant.data = placed->data();
  constant.owner = placed;
  constant.is_weight = true;
  constant.source = placed;
  return graph.AddConstant(std::move(name), dtype, std::move(shape), std::move(constant));
}

const Value& ValueAt(const Graph& graph, ValueId id) {
  if (id < 0 || static_cast<size_t>(id) >= graph.values().size()) {
    throw nb::index_error(("the graph has no value " + std::to_string(id)).c_str());
  }
  return graph.value(id);
}

std::vector<ValueId> AddNode(Graph& graph, const std::string& op, const std::vector<std::optional<ValueId>>& inputs,
                             const nb::dict& attrs, std::string source, std::string module) {
  std::vector<ValueId> ids;
  ids.reserve(inputs.size());
  for (const std::optional<ValueId>& id : inputs) ids.push_back(id.value_or(kNoValue));
  return Unwrap(graph.Add(op, std::move(ids), AttrsFrom(attrs), std::move(source), std::move(module)));
}

nb::list Nodes(const Graph& graph) {
  nb::list nodes;
  for (const Node& node : graph.nodes()) {
    nb::dict attrs;
    for (const auto& [name, attr] : node.attrs) attrs[name.c_str()] = ToPython(attr);
    nb::dict entry;
    entry["op"] = std::string(node.op->name);
    entry["inputs"] = node.inputs;
    entry["outputs"] = node.outputs;
    entry["attrs"] = attrs;
    entry["source"] = node.source;
    entry["module"] = node.module;
    nodes.append(entry);
  }
  return nodes;
}

// A constant of another graph in this one, on the same memory.
ValueId AdoptConstant(Graph& graph, const Graph& source, ValueId id) {
  const Value value = ValueAt(source, id);  // a copy: `source` may be `graph`
  if (value.kind != Value::Kind::kConstant) {
    throw nb::value_error(("expected a constant, got value " + std::to_string(id) +
                           ", which is an input or the result of a node; map those yourself")
                              .c_str());
  }
  return graph.AddConstant(value.name, value.dtype, value.shape, value.constant);
}

nb::dlpack::dtype DLTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return nb::dtype<float>();
    case DType::kI64:
      return nb::dtype<int64_t>();
    case DType::kI32:
      return nb::dtype<int32_t>();
    case DType::kBool:
      return nb::dtype<bool>();
    case DType::kBF16:
      return nb::dtype<uint16_t>();  // numpy has none: its bits
    case DType::kF16: {
      nb::dlpack::dtype half = nb::dtype<float>();
      half.bits = 16;
      return half;
    }
  }
  throw nb::type_error("numpy has no such type");
}

// A constant's contents, without a copy. Read only: graphs share them.
nb::object Contents(const Graph& graph, ValueId id) {
  const Value& value = ValueAt(graph, id);
  if (value.kind != Value::Kind::kConstant) {
    throw nb::value_error(
        ("expected a constant, got value " + std::to_string(id) + ", which has no contents before the plan runs")
            .c_str());
  }
  using Owner = std::shared_ptr<const void>;
  nb::capsule owner(new Owner(Unwrap(Hold(value.constant))), [](void* p) noexcept { delete static_cast<Owner*>(p); });
  std::vector<size_t> shape(value.shape.begin(), value.shape.end());
  if (value.constant.blocks) {
    shape.back() = static_cast<size_t>(EncodedBytes(*value.constant.blocks, value.shape.back()));
    return nb::cast(nb::ndarray<nb::numpy, nb::ro>(value.constant.data, shape.size(), shape.data(), owner, nullptr,
                                                   nb::dtype<uint8_t>()));
  }
  return nb::cast(nb::ndarray<nb::numpy, nb::ro>(value.constant.data, shape.size(), shape.data(), owner, nullptr,
                                                 DLTypeOf(value.dtype)));
}

nb::list Ops() {
  static constexpr const char* kSections[] = {"forward", "reshape", "alloc"};
  static constexpr const char* kTypes[] = {"bool", "int", "float", "string", "ints"};
  nb::list rows;
  for (const OpDef* op : AllOps()) {
    nb::list operands, attrs;
    for (const std::string_view operand : op->operands) operands.append(std::string(operand));
    for (const AttrSpec& spec : op->attrs) {
      nb::dict attr;
      attr["name"] = std::string(spec.name);
      attr["type"] = kTypes[static_cast<size_t>(spec.type)];
      attr["required"] = spec.required;
      attr["doc"] = std::string(spec.doc);
      attrs.append(attr);
    }
    nb::dict row;
    row["name"] = std::string(op->name);
    row["doc"] = std::string(op->doc);
    row["operands"] = operands;
    row["attrs"] = attrs;
    row["section"] = kSections[static_cast<size_t>(op->section)];
    row["modelled"] = op->cost != nullptr;
    row["package"] = op->outside == nullptr ? "" : std::string(op->name.substr(0, op->name.find('.')));
    rows.append(row);
  }
  return rows;
}

}  // namespace

void BindGraph(nb::module_& m) {
  nb::class_<Graph>(m, "Graph", "A program of typed SSA values; see docs/architecture.md.")
      .def(nb::init<>())
      .def(
          "input",
          [](Graph& graph, std::string name, const std::string& dtype, Dims shape) {
            return graph.AddInput(std::move(name), WantDType(dtype), std::move(shape));
          },
          nb::arg("name"), nb::arg("dtype"), nb::arg("shape"))
      .def(
          "state",
          [](Graph& graph, std::string name, const std::string& encoding, Dims shape) {
            const std::optional<Encoding> blocks = ParseEncoding(encoding);
            const bool blocked = blocks && IsBlocked(*blocks);
            return graph.AddInput(std::move(name), blocked ? DType::kF32 : WantDType(encoding), std::move(shape),
                                  Value::Kind::kState, blocked ? blocks : std::nullopt);
          },
          nb::arg("name"), nb::arg("encoding"), nb::arg("shape"),
          "An input that runs write to: memory of the caller's, which outlives them. `encoding`: a type, or of blocks.")
      .def("constant", &AddConstant, nb::arg("name"), nb::arg("array"), nb::arg("weight") = false,
           nb::sig("def constant(self, name: str, array: object, weight: bool = False) -> int"))
      .def("placed", &AddPlaced, nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("constant"),
           nb::sig("def placed(self, name: str, dtype: str, shape: Sequence[int], constant: DeviceConstant) -> int"),
           "Adds a weight that lies in a device's memory, row-major.")
      .def("weight", &AddWeight, nb::arg("name"), nb::arg("encoding"), nb::arg("shape"), nb::arg("data"),
           nb::sig("def weight(self, name: str, encoding: str, shape: Sequence[int], data: object) -> int"),
           "Adds a constant on bytes as they are stored (uint8), without a copy: encodings() lists how. One in blocks "
           "may be a weight of linear and linears, [out, in], and a table of embedding.")
      .def(
          "encoding", [](const Graph& graph, ValueId id) { return std::string(Name(StoredAs(ValueAt(graph, id)))); },
          nb::arg("id"), "How the numbers of a constant of floats are stored.")
      .def("add", &AddNode, nb::arg("op"), nb::arg("inputs"), nb::arg("attrs") = nb::dict(), nb::arg("source") = "",
           nb::arg("module") = "",
           nb::sig("def add(self, op: str, inputs: Sequence[int | None], attrs: Mapping[str, object] = {}, "
                   "source: str = \"\", module: str = \"\") -> list[int]"))
      .def("set_outputs",
           [](Graph& graph, std::vector<ValueId> outputs) {
             for (const ValueId id : outputs) ValueAt(graph, id);
             graph.SetOutputs(std::move(outputs));
           })
      .def("adopt", &AdoptConstant, nb::arg("source"), nb::arg("id"),
           "Adds a constant of another graph on the same memory and gives its id here.")
      .def("copy", [](const Graph& graph) { return Graph(graph); })
      .def_prop_ro("inputs", [](const Graph& graph) { return graph.inputs(); })
      .def_prop_ro("outputs", [](const Graph& graph) { return graph.outputs(); })
      .def("name", [](const Graph& graph, ValueId id) { return ValueAt(graph, id).name; })
      .def("contents", &Contents, nb::arg("id"), nb::sig("def contents(self, id: int) -> npt.NDArray[Any]"),
           "A constant's elements, read only, without a copy; of one in blocks its bytes, row by row.")
      .def("dtype", [](const Graph& graph, ValueId id) { return std::string(Name(ValueAt(graph, id).dtype)); })
      .def(
          "shape", [](const Graph& graph, ValueId id) { return ToPython(ValueAt(graph, id).shape); },
          nb::sig("def shape(self, id: int) -> tuple[int, ...]"))
      .def("is_constant",
           [](const Graph& graph, ValueId id) {
             ValueAt(graph, id);
             return graph.is_constant(id);
           })
      .def("is_weight",
           [](const Graph& graph, ValueId id) {
             const Value& value = ValueAt(graph, id);
             return value.kind == Value::Kind::kConstant && value.constant.is_weight;
           })
      .def("nodes", &Nodes, nb::sig("def nodes(self) -> list[dict[str, object]]"))
      .def(
          "text", [](const Graph& graph, bool digests) { return PrintGraph(graph, {.digests = digests}); },
          nb::arg("digests") = true)
      .def("hash", [](const Graph& graph) { return ToHex(HashGraph(graph)); })
      .def_static("parse", [](const std::string& text) { return Unwrap(ParseGraph(text)); });
  m.def("ops", &Ops, nb::sig("def ops() -> list[dict[str, object]]"),
        "One dict per operator: name, doc, operands, attrs, section, modelled, package (empty: the engine's own).");
  m.def(
      "load_operators",
      [](const std::string& path) {
        const OperatorLibrary library = Unwrap(LoadOperators(path));
        nb::dict described;
        described["name"] = library.name;
        described["version"] = library.version;
        described["operators"] = library.operators;
        return described;
      },
      nb::arg("path"), nb::sig("def load_operators(path: str) -> dict[str, object]"),
      "Opens a library of operators outside the engine (operator_package.h); gives its name, version and operators.");
  m.def(
      "passes", [](const std::string& level) { return PassesForLevel(Unwrap(ParseLevel(level))); },
      nb::arg("level") = "O2", "Names of the passes of an optimisation level, in order.");
  constexpr auto all_passes = [] {
    nb::list rows;
    for (const Pass& pass : AllPasses()) {
      nb::dict row;
      row["name"] = std::string(pass.name);
      row["doc"] = std::string(pass.doc);
      rows.append(row);
    }
    return rows;
  };
  m.def("all_passes", all_passes, nb::sig("def all_passes() -> list[dict[str, str]]"),
        "One dict per pass: name and doc.");
}

}  // namespace thresher::bindings
