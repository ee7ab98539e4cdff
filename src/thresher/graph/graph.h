// The intermediate representation: typed SSA values and the nodes that define them.
//
// Every front end builds this, every pass maps one to another, the plan is made from it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "thresher/base/dtype.h"
#include "thresher/base/encoding.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/constant_source.h"

namespace thresher {

struct OpDef;  // graph/operator.h: one row per operator

using Attr = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>>;
using Attrs = std::map<std::string, Attr>;  // ordered: printing and hashing need one order

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;  // an optional operand that was left out

// Of one value that a node reads or computes; far from where sizes overflow.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 46;

// Bytes of a constant. `data` stays its address as long as `owner` lives. Where it has a source it is readable only
// while it is held; else always.
struct Constant {
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
  bool is_weight = false;  // shared with the caller (a model's parameter), not folded by value
  std::shared_ptr<ConstantSource> source = {};
  // Where the numbers of a weight or a state, f32 by their type, are stored in blocks: for operands that OpDef::blocked
  // names.
  std::optional<Encoding> blocks = {};
};

// Makes a constant readable for as long as the result lives. Errors are those of its source.
Result<std::shared_ptr<const void>> Hold(const Constant& constant);

struct Value {
  enum class Kind : uint8_t {
    kInput,
    kConstant,
    kResult,
    kState,  // memory of the caller's that outlives a run, among the inputs; what writes to it makes a new version of
             // it
  };
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  Kind kind = Kind::kResult;
  Constant constant;  // kConstant; of a state and its versions `blocks` alone
  // Of a result in f32: the float of 16 bits that the model has it in. It may be stored so (value_narrowing).
  std::optional<DType> narrow = {};
};

// How a constant of floats is stored.
inline Encoding StoredAs(const Value& constant) {
  return constant.constant.blocks.value_or(EncodingOf(constant.dtype).value_or(Encoding::kF32));
}

// Bytes of a constant.
inline int64_t ConstantBytes(const Value& constant) {
  const int64_t elements = NumElements(constant.shape);
  if (constant.constant.blocks) return EncodedBytes(*constant.constant.blocks, elements);
  return elements * static_cast<int64_t>(SizeOf(constant.dtype));
}

// Whether constants of this type and shape may be stored in these blocks.
Status CheckBlocks(DType dtype, const Dims& shape, Encoding blocks);

struct Node {
  const OpDef* op = nullptr;
  std::vector<ValueId> inputs;  // kNoValue where optional and absent
  std::vector<ValueId> outputs;
  Attrs attrs;
  std::string source;  // where it came from in the user's model, for messages and profiles
  std::string module;  // the nn.Module it belongs to, by its path in the model: "encoder.layer.0.attention"
};

// Nodes stand in topological order: every input is defined before it is used.
class Graph {
 public:
  // An input, or a state where `kind` says so; how blocks lie in a state is a matter of the operators that take it.
  ValueId AddInput(std::string name, DType dtype, Dims shape, Value::Kind kind = Value::Kind::kInput,
                   std::optional<Encoding> blocks = {});
  ValueId AddConstant(std::string name, DType dtype, Dims shape, Constant constant);
  // A constant that owns a copy of `bytes` (row-major).
  ValueId AddOwnedConstant(std::string name, DType dtype, Dims shape, const void* bytes);

  // Appends a node after checking operand count, attributes, dtypes and shapes with the operator's own row.
  // Errors name the operator, what it wanted and what it found.
  Result<std::vector<ValueId>> Add(const std::string& op, std::vector<ValueId> inputs, Attrs attrs = {},
                                   std::string source = {}, std::string module = {});
  // The same for an operator with one output.
  Result<ValueId> Add1(const std::string& op, std::vector<ValueId> inputs, Attrs attrs = {}, std::string source = {},
                       std::string module = {});

  void SetNarrow(ValueId id, DType dtype) { values_[static_cast<size_t>(id)].narrow = dtype; }
  void SetOutputs(std::vector<ValueId> outputs) { outputs_ = std::move(outputs); }

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Value>& values() const { return values_; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id)]; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  // The node that defines `id`, or nullptr for inputs and constants.
  const Node* producer(ValueId id) const;
  // Whether the value is a state, or a version of one that an operator with Trait::kWritesState made.
  bool is_state(ValueId id) const;
  bool is_constant(ValueId id) const { return id != kNoValue && value(id).kind == Value::Kind::kConstant; }
  // How many operands and graph outputs use each value, indexed by ValueId.
  std::vector<int> UseCounts() const;

 private:
  std::vector<Value> values_;
  std::vector<Node> nodes_;
  std::vector<ValueId> inputs_;
  std::vector<ValueId> outputs_;
  std::vector<int32_t> producer_;  // per value: index into nodes_, -1 if none
};

// Attribute access with a default; the operator's row has checked the types already.
template <class T>
T GetAttr(const Attrs& attrs, const std::string& name, const T& fallback) {
  const auto it = attrs.find(name);
  return it == attrs.end() ? fallback : std::get<T>(it->second);
}

}  // namespace thresher
