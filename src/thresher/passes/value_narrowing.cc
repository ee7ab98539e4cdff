// The way back from value_widening for devices that compute with floats of 16 bits as they are stored: what the model
// has in 16 bits lies so in memory between two operators, which still compute in f32. Sums and what goes on inside of a
// fused operator stay wide.
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

size_t Index(ValueId id) { return static_cast<size_t>(id); }

// Operators that devices have with operands of 16 bits, and which of these decide about the result's type.
struct Row {
  std::string_view op;
  std::vector<size_t> values;
};

const Row* RowOf(std::string_view op) {
  static const std::vector<Row> rows = {
      {"linear", {0, 3}},         {"linears", {0}},     {"matmul", {0, 1}},
      {"layer_norm", {0, 3}},     {"rms_norm", {0, 2}}, {"softmax", {0}},
      {"log_softmax", {0}},       {"sdpa", {0, 1, 2}},  {"rotary", {0}},
      {"convolution", {0, 3}},    {"max_pool", {0}},    {"avg_pool", {0}},
      {"adaptive_avg_pool", {0}}, {"resize", {0}},      {"grouped_linear", {0}},
      {"paged_attention", {1}},
  };
  const auto row = std::find_if(rows.begin(), rows.end(), [op](const Row& r) { return r.op == op; });
  return row == rows.end() ? nullptr : &*row;
}

class Narrower {
 public:
  explicit Narrower(const Graph& graph)
      : graph_(graph),
        rewriter_(graph),
        wide_(graph.values().size(), kNoValue),
        narrow_(graph.values().size(), kNoValue),
        stored_(graph.values().size()) {}

  Result<Graph> Run() {
    FindStored();
    for (const Node& node : graph_.nodes()) {
      Result<bool> done = false;
      if (node.op->name == "cast") {
        done = Cast(node);
      } else if (node.op->Has(Trait::kMoves) || node.op->Has(Trait::kView)) {
        done = Move(node);
      } else if (node.op->name == "pointwise") {
        done = Chain(node);
      } else if (node.op->name == "kv_write") {
        done = Write(node);
      } else if (const Row* const row = RowOf(node.op->name)) {
        done = Compute(node, row->values);
      } else if (node.op->Has(Trait::kUnary) || node.op->Has(Trait::kBinary)) {
        done = Compute(node, node.inputs.size() == 1 ? std::vector<size_t>{0} : std::vector<size_t>{0, 1});
      }
      THRESHER_TRY(done.status());
      if (!done.value()) THRESHER_TRY(Copy(node));
    }
    for (const ValueId id : graph_.outputs()) {
      THRESHER_ASSIGN(const ValueId wide, Wide(id, graph_.producer(id)));
      rewriter_.Replace(id, wide);
    }
    return rewriter_.Finish();
  }

 private:
  // The type that a node's products are computed in, where that is one of 16 bits.
  std::optional<DType> FactorsOf(const Node& node) const {
    if (node.op->name == "sdpa" && GetAttr<std::string>(node.attrs, "precision", "fp32") == Name(Precision::kBf16)) {
      return DType::kBF16;
    }
    if (node.op->name != "linear" && node.op->name != "linears" && node.op->name != "convolution") return std::nullopt;
    const Value& weight = graph_.value(node.inputs[1]);
    const std::optional<Precision> precision = ParsePrecision(
        GetAttr<std::string>(node.attrs, "precision", std::string(Name(StoredPrecision(StoredAs(weight))))));
    if (!graph_.is_constant(node.inputs[1]) || !precision) return std::nullopt;
    if (*precision == Precision::kBf16) return DType::kBF16;
    return *precision == Precision::kFp16 ? std::optional(DType::kF16) : std::nullopt;
  }

  // Values that may be stored in 16 bits: the model has them so, or whatever reads them rounds them first.
  void FindStored() {
    struct Use {
      const Node* node;
      size_t operand;
    };
    std::vector<std::vector<Use>> uses(graph_.values().size());
    std::vector<bool> is_output(graph_.values().size(), false);
    for (const ValueId id : graph_.outputs()) is_output[Index(id)] = true;
    for (const Node& node : graph_.nodes()) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] != kNoValue) uses[Index(node.inputs[i])].push_back({&node, i});
      }
    }
    const auto reads = [&](const Use& use) -> std::optional<DType> {
      if (use.node->op->name == "cast") {
        const DType to = graph_.value(use.node->outputs[0]).dtype;
        return IsHalf(to) ? std::optional(to) : std::nullopt;
      }
      if (use.node->op->Has(Trait::kMoves) || use.node->op->Has(Trait::kView)) {
        return stored_[Index(use.node->outputs[0])];
      }
      const bool factor = use.operand == 0 || (use.node->op->name == "sdpa" && use.operand < 3);
      return factor ? FactorsOf(*use.node) : std::nullopt;
    };
    for (size_t v = graph_.values().size(); v-- > 0;) {
      const Value& value = graph_.values()[v];
      if (value.kind != Value::Kind::kResult || value.dtype != DType::kF32) continue;
      stored_[v] = value.narrow;
      if (value.narrow || is_output[v] || uses[v].empty()) continue;
      const std::optional<DType> first = reads(uses[v][0]);
      if (first && std::all_of(uses[v].begin(), uses[v].end(), [&](const Use& use) { return reads(use) == first; })) {
        stored_[v] = first;
      }
    }
  }

  // The value as `dtype`, if it is at hand so.
  ValueId Narrow(ValueId id, DType dtype) {
    if (graph_.value(id).dtype == dtype) return rewriter_.Map(id);
    const ValueId narrow = narrow_[Index(id)];
    return narrow != kNoValue && rewriter_.graph().value(narrow).dtype == dtype ? narrow : kNoValue;
  }

  // The value with the type that it has in the source.
  Result<ValueId> Wide(ValueId id, const Node* reader) {
    if (id == kNoValue || narrow_[Index(id)] == kNoValue) return rewriter_.Map(id);
    ValueId& wide = wide_[Index(id)];
    if (wide == kNoValue) {
      THRESHER_ASSIGN(wide, CastTo(narrow_[Index(id)], graph_.value(id).dtype, reader));
    }
    return wide;
  }

  Result<ValueId> CastTo(ValueId id, DType dtype, const Node* from) {
    return rewriter_.graph().Add1("cast", {id}, {{"dtype", std::string(Name(dtype))}},
                                  from == nullptr ? "" : from->source, from == nullptr ? "" : from->module);
  }

  Status Copy(const Node& node) {
    Node copy = node;
    for (ValueId& id : copy.inputs) {
      THRESHER_ASSIGN(id, Wide(id, &node));
    }
    return Emit(copy, node.outputs);
  }

  // The node on operands of the new graph. What was f32 and is not any more is the narrow form.
  Status Emit(const Node& node, const std::vector<ValueId>& outputs) {
    THRESHER_ASSIGN(const std::vector<ValueId> made, rewriter_.graph().Add(std::string(node.op->name), node.inputs,
                                                                           node.attrs, node.source, node.module));
    for (size_t i = 0; i < made.size(); ++i) {
      if (rewriter_.graph().value(made[i]).dtype == graph_.value(outputs[i]).dtype) {
        rewriter_.Replace(outputs[i], made[i]);
      } else {
        narrow_[Index(outputs[i])] = made[i];
      }
    }
    return Status::Ok();
  }

  // These give whether the node is there.
  Result<bool> Cast(const Node& node) {
    const ValueId x = node.inputs[0], out = node.outputs[0];
    const DType from = graph_.value(x).dtype, to = graph_.value(out).dtype;
    if (from == DType::kF32 && IsHalf(to)) {
      const ValueId narrow = Narrow(x, to);
      if (narrow == kNoValue) return false;
      rewriter_.Replace(out, narrow);
      return true;
    }
    if (to != DType::kF32 || !IsHalf(from)) return false;
    narrow_[Index(out)] = rewriter_.Map(x);
    return true;
  }

  Result<bool> Move(const Node& node) {
    std::optional<DType> type;
    Node moved = node;
    for (ValueId& id : moved.inputs) {
      if (id == kNoValue) continue;
      if (graph_.value(id).dtype != DType::kF32) {
        id = rewriter_.Map(id);
        continue;
      }
      const ValueId narrow = narrow_[Index(id)];
      if (narrow == kNoValue) return false;
      const DType found = rewriter_.graph().value(narrow).dtype;
      if (type && *type != found) return false;
      type = found;
      id = narrow;
    }
    if (!type) return false;
    THRESHER_TRY(Emit(moved, node.outputs));
    return true;
  }

  // Takes operands of any width, and gives a result of any.
  Result<bool> Chain(const Node& node) {
    Node chain = node;
    for (ValueId& id : chain.inputs) id = Any(id);
    if (const std::optional<DType> type = stored_[Index(node.outputs[0])]) {
      chain.attrs["dtype"] = std::string(Name(*type));
    }
    THRESHER_TRY(Emit(chain, node.outputs));
    return true;
  }

  // Takes operands of any width, which the state that they are written to knows nothing of.
  Result<bool> Write(const Node& node) {
    Node write = node;
    for (ValueId& id : write.inputs) id = Any(id);
    THRESHER_TRY(Emit(write, node.outputs));
    return true;
  }

  // The value in the form that it has in memory.
  ValueId Any(ValueId id) {
    return id != kNoValue && narrow_[Index(id)] != kNoValue ? narrow_[Index(id)] : rewriter_.Map(id);
  }

  Result<bool> Compute(const Node& node, const std::vector<size_t>& values) {
    const std::optional<DType> type = stored_[Index(node.outputs[0])];
    if (!type) return false;
    for (const ValueId id : node.outputs) {
      if (stored_[Index(id)] != type) return false;
    }
    const bool rounds = FactorsOf(node) == type;
    Node narrowed = node;
    for (const size_t i : values) {
      if (i >= node.inputs.size() || node.inputs[i] == kNoValue) continue;
      narrowed.inputs[i] = Narrow(node.inputs[i], *type);
      if (narrowed.inputs[i] != kNoValue) continue;
      // A product rounds its factors in any case; nothing else is rounded to make the rest fit.
      if (!rounds || (i != 0 && node.op->name != "sdpa")) return false;
      THRESHER_ASSIGN(const ValueId wide, Wide(node.inputs[i], &node));
      THRESHER_ASSIGN(narrowed.inputs[i], CastTo(wide, *type, &node));
      narrow_[Index(node.inputs[i])] = narrowed.inputs[i];
      wide_[Index(node.inputs[i])] = wide;
    }
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (std::find(values.begin(), values.end(), i) == values.end()) narrowed.inputs[i] = Any(node.inputs[i]);
    }
    THRESHER_TRY(Emit(narrowed, node.outputs));
    return true;
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::vector<ValueId> wide_;  // per source value: its f32 form in the new graph, where it was made from the narrow one
  std::vector<ValueId> narrow_;               // per source value of f32: its form in 16 bits, if there is one
  std::vector<std::optional<DType>> stored_;  // per source value
};

}  // namespace

Result<Graph> ValueNarrowing(const Graph& graph, const PassContext&) { return Narrower(graph).Run(); }

}  // namespace thresher::passes
