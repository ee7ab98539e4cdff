#include "thresher/graph/rewriter.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "thresher/base/half.h"
#include "thresher/graph/operator.h"

namespace thresher {
namespace {

constexpr int kMaxRuleDepth = 64;          // a rule that feeds itself ends here instead of never
constexpr size_t kMaxMergedSource = 1000;  // bytes
constexpr int64_t kMaxUniformScan = 1 << 16;
constexpr double kMaxExactInteger = 9007199254740992.0;

size_t Index(ValueId id) { return static_cast<size_t>(id); }

std::optional<double> UniformFull(const Node& full, DType dtype) {
  double number = GetAttr<double>(full.attrs, "value", 0);
  if (full.attrs.contains("value_int")) number = static_cast<double>(GetAttr<int64_t>(full.attrs, "value_int", 0));
  if (IsFloat(dtype)) return static_cast<double>(static_cast<float>(number));
  if (dtype == DType::kBool) return number != 0 ? 1 : 0;
  if (!(std::abs(number) <= kMaxExactInteger)) return std::nullopt;
  return std::trunc(number);
}

double Number(BF16 element) { return ToFloat(element); }
double Number(F16 element) { return ToFloat(element); }
template <class T>
double Number(T element) {
  return static_cast<double>(element);
}

template <class T>
std::optional<double> Uniform(const Value& constant) {
  const auto* bytes = static_cast<const char*>(constant.constant.data);
  const int64_t elements = NumElements(constant.shape);
  for (int64_t i = 1; i < elements; ++i) {
    // Bits, not values: 0.0 and -0.0 differ, and a NaN equals itself.
    if (std::memcmp(bytes, bytes + static_cast<size_t>(i) * sizeof(T), sizeof(T)) != 0) return std::nullopt;
  }
  T element;
  std::memcpy(&element, bytes, sizeof(T));
  const double number = Number(element);
  if (std::is_integral_v<T> && std::abs(number) > kMaxExactInteger) return std::nullopt;
  return number;
}

// Whether WithoutDeadNodes() would give this very graph: values stand in the order in which they are first used, and
// something uses all that are no inputs or new versions of a state. Most passes find nothing to do in most graphs.
bool IsCompact(const Graph& graph) {
  const std::vector<int> uses = graph.UseCounts();
  auto next = static_cast<ValueId>(graph.inputs().size());
  for (ValueId i = 0; i < next; ++i) {
    if (graph.inputs()[Index(i)] != i) return false;
  }
  // Whether a value is the next one, or was there before.
  const auto follows = [&next](ValueId id) {
    if (id < next) return true;
    return id == next++;
  };
  for (const Node& node : graph.nodes()) {
    if (!std::all_of(node.inputs.begin(), node.inputs.end(), follows)) return false;  // constants
    if (!std::all_of(node.outputs.begin(), node.outputs.end(), follows)) return false;
    const auto used = [&](ValueId id) { return uses[Index(id)] > 0; };
    if (!node.op->Has(Trait::kWritesState) && !std::any_of(node.outputs.begin(), node.outputs.end(), used)) {
      return false;
    }
  }
  if (!std::all_of(graph.outputs().begin(), graph.outputs().end(), follows)) return false;
  return Index(next) == graph.values().size();
}

}  // namespace

// ---- Rewriter ----

Rewriter::Rewriter(const Graph& source) : source_(source), map_(source.values().size(), kNoValue) {
  for (const ValueId id : source.inputs()) {
    const Value& input = source.value(id);
    map_[Index(id)] = graph_.AddInput(input.name, input.dtype, input.shape, input.kind, input.constant.blocks);
  }
}

bool Rewriter::IsMapped(ValueId id) const {
  return id == kNoValue || map_[Index(id)] != kNoValue || source_.is_constant(id);
}

ValueId Rewriter::Map(ValueId id) {
  if (id == kNoValue) return kNoValue;
  ValueId& mapped = map_[Index(id)];
  if (mapped == kNoValue && source_.is_constant(id)) {
    const Value& constant = source_.value(id);
    mapped = graph_.AddConstant(constant.name, constant.dtype, constant.shape, constant.constant);
  }
  return mapped;
}

std::vector<ValueId> Rewriter::MapAll(const std::vector<ValueId>& ids) {
  std::vector<ValueId> mapped;
  mapped.reserve(ids.size());
  for (const ValueId id : ids) mapped.push_back(Map(id));
  return mapped;
}

void Rewriter::Replace(ValueId id, ValueId with) {
  map_[Index(id)] = with;
  const std::optional<DType> narrow = source_.value(id).narrow;
  if (narrow && graph_.producer(with) != nullptr && graph_.value(with).dtype == DType::kF32) {
    graph_.SetNarrow(with, *narrow);
  }
}

Status Rewriter::Copy(const Node& node) {
  THRESHER_ASSIGN(const std::vector<ValueId> outputs,
                  graph_.Add(std::string(node.op->name), MapAll(node.inputs), node.attrs, node.source, node.module));
  for (size_t i = 0; i < outputs.size(); ++i) Replace(node.outputs[i], outputs[i]);
  return Status::Ok();
}

Result<Graph> Rewriter::Finish() {
  graph_.SetOutputs(MapAll(source_.outputs()));
  if (IsCompact(graph_)) return std::move(graph_);
  return WithoutDeadNodes(graph_);
}

Result<Graph> WithoutDeadNodes(const Graph& graph) {
  std::vector<bool> live(graph.values().size(), false);
  for (const ValueId id : graph.outputs()) live[Index(id)] = true;
  const auto any_live = [&live](const Node& node) {
    return node.op->Has(Trait::kWritesState) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), [&live](ValueId id) { return live[Index(id)]; });
  };
  for (auto node = graph.nodes().rbegin(); node != graph.nodes().rend(); ++node) {
    if (!any_live(*node)) continue;
    for (const ValueId id : node->inputs) {
      if (id != kNoValue) live[Index(id)] = true;
    }
  }
  Rewriter rewriter(graph);
  for (const Node& node : graph.nodes()) {
    if (any_live(node)) THRESHER_TRY(rewriter.Copy(node));
  }
  rewriter.graph().SetOutputs(rewriter.MapAll(graph.outputs()));
  return std::move(rewriter.graph());
}

// ---- RuleRewriter ----

RuleRewriter::RuleRewriter(const Graph& source, std::span<const Rule> rules)
    : rewriter_(source), rules_(rules.begin(), rules.end()) {}

Result<Graph> RuleRewriter::Run() {
  const Graph& source = rewriter_.source();
  const std::vector<int> source_uses = source.UseCounts();
  const auto count_uses = [&](ValueId from, ValueId to) {
    if (uses_.size() <= Index(to)) uses_.resize(Index(to) + 1, 0);
    uses_[Index(to)] += source_uses[Index(from)];
  };
  for (const ValueId id : source.inputs()) count_uses(id, rewriter_.Map(id));
  for (const Node& node : source.nodes()) {
    if (node.outputs.size() == 1) {
      THRESHER_ASSIGN(const ValueId value, Emit({std::string(node.op->name), rewriter_.MapAll(node.inputs), node.attrs,
                                                 node.source, node.module}));
      // An operation that dissolves into its operand is no use of it any more.
      for (const ValueId input : node.inputs) {
        if (input != kNoValue && rewriter_.Map(input) == value && Index(value) < uses_.size()) --uses_[Index(value)];
      }
      rewriter_.Replace(node.outputs[0], value);
    } else {
      THRESHER_TRY(rewriter_.Copy(node));
    }
    for (const ValueId id : node.outputs) count_uses(id, rewriter_.Map(id));
  }
  return rewriter_.Finish();
}

Result<ValueId> RuleRewriter::Emit(Operation operation) {
  if (operation.module.empty() && depth_ > 0) operation.module = module_;
  if (depth_ < kMaxRuleDepth) {
    ++depth_;
    const std::string outer = std::exchange(module_, operation.module);
    Result<ValueId> replaced = kNoValue;
    for (const Rule rule : rules_) {
      replaced = rule(*this, operation);
      if (!replaced.ok() || replaced.value() != kNoValue) break;
    }
    --depth_;
    module_ = outer;
    if (!replaced.ok() || replaced.value() != kNoValue) return replaced;
  }
  return graph().Add1(operation.op, std::move(operation.inputs), std::move(operation.attrs),
                      std::move(operation.source), std::move(operation.module));
}

std::optional<Node> RuleRewriter::Producer(ValueId id, std::string_view op) const {
  const Node* node = rewriter_.graph().producer(id);
  if (node == nullptr || node->op->name != op) return std::nullopt;
  return *node;
}

int RuleRewriter::Uses(ValueId id) const { return Index(id) >= uses_.size() ? 0 : uses_[Index(id)]; }

Result<ValueId> RuleRewriter::Reshape(ValueId x, Dims shape, const std::string& source) {
  return Emit({"reshape", {x}, {{"shape", std::move(shape)}}, source});
}

Result<ValueId> RuleRewriter::Permute(ValueId x, Dims dims, const std::string& source) {
  return Emit({"permute", {x}, {{"dims", std::move(dims)}}, source});
}

Result<ValueId> RuleRewriter::Expand(ValueId x, Dims shape, const std::string& source) {
  if (this->shape(x) == shape) return x;
  return Emit({"expand", {x}, {{"shape", std::move(shape)}}, source});
}

// ---- what patterns ask ----

Dims PermuteDims(const Node& permute) {
  Dims dims = GetAttr<std::vector<int64_t>>(permute.attrs, "dims", {});
  for (int64_t& d : dims) d = FromFront(d, dims.size());
  return dims;
}

Dims ComposePermutes(const Dims& first, const Dims& second) {
  Dims dims;
  for (const int64_t d : second) dims.push_back(first[static_cast<size_t>(d)]);
  return dims;
}

bool SwapsLastTwo(const Dims& dims) {
  const size_t rank = dims.size();
  if (rank < 2) return false;
  for (size_t i = 0; i + 2 < rank; ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return false;
  }
  return dims[rank - 1] == static_cast<int64_t>(rank) - 2;
}

Dims BroadcastShapes(const Dims& a, const Dims& b) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims shape = longer;
  const size_t offset = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    if (shape[offset + i] == 1) shape[offset + i] = shorter[i];
  }
  return shape;
}

std::optional<double> UniformConstant(const Graph& graph, ValueId id) {
  while (const Node* node = graph.producer(id)) {
    if (node->op->name == "full") return UniformFull(*node, graph.value(id).dtype);
    if (node->op->name != "reshape" && node->op->name != "expand" && node->op->name != "barrier") return std::nullopt;
    id = node->inputs[0];
  }
  if (!graph.is_constant(id)) return std::nullopt;
  const Value& constant = graph.value(id);
  const int64_t elements = NumElements(constant.shape);
  if (constant.constant.is_weight || elements == 0 || elements > kMaxUniformScan) return std::nullopt;
  switch (constant.dtype) {
    case DType::kF32:
      return Uniform<float>(constant);
    case DType::kI64:
      return Uniform<int64_t>(constant);
    case DType::kI32:
      return Uniform<int32_t>(constant);
    case DType::kBool:
      return Uniform<uint8_t>(constant);
    case DType::kBF16:
      return Uniform<BF16>(constant);
    case DType::kF16:
      return Uniform<F16>(constant);
  }
  return std::nullopt;
}

std::string MergeSources(const std::string& a, const std::string& b) {
  if (a.empty()) return b;
  std::string merged = a;
  for (size_t begin = 0; begin < b.size();) {
    const size_t end = std::min(b.find(", ", begin), b.size());
    const std::string part = b.substr(begin, end - begin);
    if ((", " + merged + ", ").find(", " + part + ", ") == std::string::npos) {
      if (merged.size() + part.size() + 2 > kMaxMergedSource) break;
      merged += ", " + part;
    }
    begin = end + 2;
  }
  return merged;
}

}  // namespace thresher
