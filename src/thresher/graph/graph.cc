#include "thresher/graph/graph.h"

#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/tensor.h"
#include "thresher/graph/operator.h"

namespace thresher {
namespace {

// One operand of a row's schema: "x", "bias?" or "xs*".
struct OperandSpec {
  std::string_view name;
  bool optional = false;
  bool variadic = false;
};

OperandSpec ParseOperand(std::string_view text) {
  OperandSpec spec{text};
  if (text.back() == '?') spec.optional = true;
  if (text.back() == '*') spec.variadic = true;
  if (spec.optional || spec.variadic) spec.name.remove_suffix(1);
  return spec;
}

std::string_view TypeName(AttrType type) {
  switch (type) {
    case AttrType::kBool:
      return "bool";
    case AttrType::kInt:
      return "int";
    case AttrType::kFloat:
      return "float";
    case AttrType::kString:
      return "string";
    case AttrType::kInts:
      return "list of ints";
  }
  return "?";
}

std::string_view TypeName(const Attr& attr) {
  static constexpr std::string_view kNames[] = {"bool", "int", "float", "string", "list of ints"};
  return kNames[attr.index()];
}

std::string Quote(std::string_view text) { return "'" + std::string(text) + "'"; }

// Checks the attributes against the row and turns ints into floats where the row wants floats.
Status CheckAttrs(const OpDef& op, Attrs& attrs) {
  for (const AttrSpec& spec : op.attrs) {
    const auto it = attrs.find(std::string(spec.name));
    if (it == attrs.end()) {
      if (!spec.required) continue;
      return InvalidArgument(std::string(op.name) + ": expected attribute " + Quote(spec.name) + " (" +
                             std::string(TypeName(spec.type)) + "), got none");
    }
    Attr& attr = it->second;
    if (spec.type == AttrType::kFloat && std::holds_alternative<int64_t>(attr)) {
      attr = static_cast<double>(std::get<int64_t>(attr));
    }
    if (static_cast<size_t>(spec.type) != attr.index()) {
      return InvalidArgument(std::string(op.name) + ": expected attribute " + Quote(spec.name) + " as " +
                             std::string(TypeName(spec.type)) + ", got " + std::string(TypeName(attr)));
    }
  }
  for (const auto& [name, attr] : attrs) {
    bool known = false;
    for (const AttrSpec& spec : op.attrs) known |= spec.name == name;
    if (known) continue;
    std::string message = std::string(op.name) + ": unknown attribute " + Quote(name) + "; known are";
    for (const AttrSpec& spec : op.attrs) message += " " + std::string(spec.name);
    if (op.attrs.empty()) message += " none";
    return InvalidArgument(std::move(message));
  }
  return Status::Ok();
}

// Operators such as expand can make large tensors out of small ones.
Status CheckSize(const std::string& op, const char* role, DType dtype, const Dims& shape) {
  int64_t room = kMaxTensorBytes / static_cast<int64_t>(SizeOf(dtype));
  for (const int64_t size : shape) {
    if (size < 0 || size > room) {
      return InvalidArgument(op + ": expected tensors of at most " + std::to_string(kMaxTensorBytes) +
                             " bytes and no negative size, got the " + role + " " + ToString(dtype, shape));
    }
    if (size > 0) room /= size;  // zeros shrink the tensor, not the limit on the other sizes
  }
  return Status::Ok();
}

}  // namespace

Status CheckBlocks(DType dtype, const Dims& shape, Encoding blocks) {
  const int64_t numbers = BlockNumbers(blocks);
  if (!IsBlocked(blocks)) return InvalidArgument("expected a format of blocks, got " + std::string(Name(blocks)));
  if (dtype == DType::kF32 && shape.size() == 2 && shape[1] % numbers == 0) return Status::Ok();
  return InvalidArgument("expected f32[rows, a multiple of " + std::to_string(numbers) + "] in " +
                         std::string(Name(blocks)) + ", got " + ToString(dtype, shape));
}

Result<std::shared_ptr<const void>> Hold(const Constant& constant) {
  if (constant.source == nullptr) return constant.owner;
  return constant.source->Hold(constant.data);
}

ValueId Graph::AddInput(std::string name, DType dtype, Dims shape, Value::Kind kind, std::optional<Encoding> blocks) {
  const ValueId id = static_cast<ValueId>(values_.size());
  values_.push_back({std::move(name), dtype, std::move(shape), kind, {}});
  values_.back().constant.blocks = blocks;
  producer_.push_back(-1);
  inputs_.push_back(id);
  return id;
}

ValueId Graph::AddConstant(std::string name, DType dtype, Dims shape, Constant constant) {
  const ValueId id = static_cast<ValueId>(values_.size());
  values_.push_back({std::move(name), dtype, std::move(shape), Value::Kind::kConstant, std::move(constant)});
  producer_.push_back(-1);
  return id;
}

ValueId Graph::AddOwnedConstant(std::string name, DType dtype, Dims shape, const void* bytes) {
  const size_t size = static_cast<size_t>(NumElements(shape)) * SizeOf(dtype);
  Constant constant;
  constant.owner = AlignedCopy({static_cast<const std::byte*>(bytes), size});
  constant.data = constant.owner.get();
  return AddConstant(std::move(name), dtype, std::move(shape), std::move(constant));
}

Result<std::vector<ValueId>> Graph::Add(const std::string& op_name, std::vector<ValueId> inputs, Attrs attrs,
                                        std::string source, std::string module) {
  const OpDef* op = FindOp(op_name);
  if (op == nullptr) {
    const size_t dot = op_name.find('.');
    const std::string cure =
        dot == std::string::npos ? "" : "install the package of operators " + Quote(op_name.substr(0, dot)) + "; ";
    return Unsupported("operator " + Quote(op_name) + " is not one of this engine's; " + cure +
                       "`thresher ops` lists those that there are");
  }
  const size_t declared = op->operands.size();
  const bool variadic = declared > 0 && ParseOperand(op->operands.back()).variadic;
  size_t required = 0;
  for (const std::string_view text : op->operands) {
    const OperandSpec spec = ParseOperand(text);
    if (!spec.optional && !spec.variadic) ++required;
  }
  while (inputs.size() < declared && !variadic) inputs.push_back(kNoValue);
  if (inputs.size() < required || (!variadic && inputs.size() > declared)) {
    return InvalidArgument(op_name + ": expected " + std::to_string(required) +
                           (variadic ? " or more" : " to " + std::to_string(declared)) + " operands, got " +
                           std::to_string(inputs.size()));
  }
  std::vector<OperandType> types(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const OperandSpec spec = ParseOperand(op->operands[std::min(i, declared - 1)]);
    if (inputs[i] == kNoValue) {
      if (spec.optional) continue;
      return InvalidArgument(op_name + ": operand " + Quote(spec.name) + " is required, got none");
    }
    if (inputs[i] < 0 || static_cast<size_t>(inputs[i]) >= values_.size()) {
      return InvalidArgument(op_name + ": operand " + Quote(spec.name) + " names value " + std::to_string(inputs[i]) +
                             ", but the graph has " + std::to_string(values_.size()));
    }
    if (is_state(inputs[i]) != (spec.name == "state")) {
      return InvalidArgument(op_name + ": expected " + (spec.name == "state" ? "a state" : "a value that is no state") +
                             " as operand " + Quote(spec.name) + ", got " +
                             (spec.name == "state" ? "another value" : "a state"));
    }
    types[i].dtype = value(inputs[i]).dtype;
    types[i].shape = value(inputs[i]).shape;
    types[i].present = true;
    const auto& blocks = value(inputs[i]).constant.blocks;
    types[i].blocks = blocks;
    if (blocks) {
      const auto [first, last] =
          op->blocked == nullptr ? std::pair<size_t, size_t>(0, 0) : op->blocked(attrs, inputs.size());
      if (i < first || i >= last) {
        return Unsupported(op_name + ": expected numbers one by one as operand " + Quote(spec.name) + ", got " +
                           std::string(Name(*blocks)) +
                           "; only weights of products and tables of embedding are read in blocks: dequantise it");
      }
    }
    THRESHER_TRY(CheckSize(op_name, "operand", types[i].dtype, types[i].shape));
  }
  THRESHER_TRY(CheckAttrs(*op, attrs));
  Result<std::vector<TensorType>> inferred = op->infer(InferContext{types, attrs, op});
  if (!inferred.ok()) {
    const Status status = inferred.status();
    std::string where = source.empty() ? "" : " (from " + source + ")";
    return Status(status.code(), op_name + where + ": " + status.message());
  }
  Node node;
  node.op = op;
  node.inputs = std::move(inputs);
  node.attrs = std::move(attrs);
  node.source = std::move(source);
  node.module = std::move(module);
  for (TensorType& type : inferred.value()) {
    if (static_cast<int>(type.shape.size()) > kMaxRank) {
      return Unsupported(op_name + ": expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
                         ToString(type.shape));
    }
    THRESHER_TRY(CheckSize(op_name, "result", type.dtype, type.shape));
    const ValueId id = static_cast<ValueId>(values_.size());
    values_.push_back({{}, type.dtype, std::move(type.shape), Value::Kind::kResult, {}});
    if (op->Has(Trait::kWritesState)) values_.back().constant.blocks = types.front().blocks;
    producer_.push_back(static_cast<int32_t>(nodes_.size()));
    node.outputs.push_back(id);
  }
  std::vector<ValueId> outputs = node.outputs;
  nodes_.push_back(std::move(node));
  return outputs;
}

Result<ValueId> Graph::Add1(const std::string& op, std::vector<ValueId> inputs, Attrs attrs, std::string source,
                            std::string module) {
  THRESHER_ASSIGN(const std::vector<ValueId> outputs,
                  Add(op, std::move(inputs), std::move(attrs), std::move(source), std::move(module)));
  return outputs.front();
}

const Node* Graph::producer(ValueId id) const {
  const int32_t index = id == kNoValue ? -1 : producer_[static_cast<size_t>(id)];
  return index < 0 ? nullptr : &nodes_[static_cast<size_t>(index)];
}

bool Graph::is_state(ValueId id) const {
  if (id == kNoValue) return false;
  const Node* node = producer(id);
  return node == nullptr ? value(id).kind == Value::Kind::kState : node->op->Has(Trait::kWritesState);
}

std::vector<int> Graph::UseCounts() const {
  std::vector<int> counts(values_.size(), 0);
  for (const Node& node : nodes_) {
    for (const ValueId id : node.inputs) {
      if (id != kNoValue) ++counts[static_cast<size_t>(id)];
    }
  }
  for (const ValueId id : outputs_) ++counts[static_cast<size_t>(id)];
  return counts;
}

}  // namespace thresher
