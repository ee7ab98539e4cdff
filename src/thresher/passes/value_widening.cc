// Floats of 16 bits are how values are stored; they are computed with as f32. What only moves elements moves the stored
// ones, everything else reads them widened and leaves its results wide: nothing is rounded between two operators.
#include <algorithm>
#include <memory>
#include <vector>

#include "thresher/base/half.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// Constants of at most so many elements (biases, weights of norms) are widened here, once; larger ones where they are
// read, so that the memory they take does not double.
constexpr int64_t kMaxWidenedElements = int64_t{1} << 16;

size_t Index(ValueId id) { return static_cast<size_t>(id); }

// A state is read and written as it is stored.
bool IsHalf(const Graph& graph, ValueId id) {
  return id != kNoValue && thresher::IsHalf(graph.value(id).dtype) && !graph.is_state(id);
}

DType CastTarget(const Node& cast) { return ParseDType(GetAttr<std::string>(cast.attrs, "dtype", "")).value(); }

// Whether the node tells a value that was rounded from one that was not.
bool Jumps(const Graph& graph, const Node& node) {
  if (node.op->name == "cast") return !IsFloat(CastTarget(node));
  return node.op->Has(Trait::kJumps) || std::any_of(node.outputs.begin(), node.outputs.end(),
                                                    [&](ValueId id) { return !IsFloat(graph.value(id).dtype); });
}

class Widener {
 public:
  explicit Widener(const Graph& graph)
      : graph_(graph), rewriter_(graph), wide_(graph.values().size(), kNoValue), exact_(graph.values().size(), false) {}

  Result<Graph> Run() {
    MarkExact();
    for (const Node& node : graph_.nodes()) {
      Status status = Status::Ok();
      if (node.op->name == "cast") {
        status = Cast(node);
      } else if (node.op->Has(Trait::kMoves)) {
        status = Move(node);
      } else {
        status = Compute(node);
      }
      THRESHER_TRY(status);
    }
    for (const ValueId id : graph_.outputs()) {
      THRESHER_ASSIGN(const ValueId narrow, Narrow(id));
      rewriter_.Replace(id, narrow);
    }
    return rewriter_.Finish();
  }

 private:
  // Values that something reads which would notice if they were not rounded, through what moves them.
  void MarkExact() {
    for (auto node = graph_.nodes().rbegin(); node != graph_.nodes().rend(); ++node) {
      const bool noticed = Jumps(graph_, *node) ||
                           (node->op->Has(Trait::kMoves) && std::any_of(node->outputs.begin(), node->outputs.end(),
                                                                        [&](ValueId id) { return exact_[Index(id)]; }));
      if (!noticed) continue;
      for (const ValueId id : node->inputs) {
        if (id != kNoValue) exact_[Index(id)] = true;
      }
    }
  }

  // Whether the value is at hand as it is stored.
  bool IsStored(ValueId id) const { return rewriter_.IsMapped(id); }

  Result<ValueId> Add(const std::string& op, std::vector<ValueId> inputs, Attrs attrs, const Node* from) {
    return rewriter_.graph().Add1(op, std::move(inputs), std::move(attrs), from == nullptr ? "" : from->source,
                                  from == nullptr ? "" : from->module);
  }

  Result<ValueId> CastTo(ValueId id, DType dtype, const Node* from) {
    return Add("cast", {id}, {{"dtype", std::string(Name(dtype))}}, from);
  }

  // The value as something computes with it.
  Result<ValueId> Wide(ValueId id, const Node* reader) {
    if (!IsHalf(graph_, id)) return rewriter_.Map(id);
    ValueId& wide = wide_[Index(id)];
    if (wide != kNoValue) return wide;
    const Value& value = graph_.value(id);
    if (graph_.is_constant(id) && NumElements(value.shape) <= kMaxWidenedElements) {
      THRESHER_ASSIGN(wide, WidenedConstant(value));
      return wide;
    }
    THRESHER_ASSIGN(const ValueId cast, CastTo(rewriter_.Map(id), DType::kF32, reader));
    wide_[Index(id)] = cast;
    return cast;
  }

  // The value as it is stored.
  Result<ValueId> Narrow(ValueId id) {
    if (!IsHalf(graph_, id) || IsStored(id)) return rewriter_.Map(id);
    return CastTo(wide_[Index(id)], graph_.value(id).dtype, graph_.producer(id));
  }

  Result<ValueId> WidenedConstant(const Value& value) {
    THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(value.constant));
    std::vector<float> elements(static_cast<size_t>(NumElements(value.shape)));
    const auto* bits = static_cast<const uint16_t*>(value.constant.data);
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = value.dtype == DType::kBF16 ? ToFloat(BF16{bits[i]}) : ToFloat(F16{bits[i]});
    }
    return rewriter_.graph().AddOwnedConstant(value.name, DType::kF32, value.shape, elements.data());
  }

  // Moved as they are stored, if all are; wide, if one is.
  Status Move(const Node& node) {
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return IsHalf(graph_, id); }) ||
        std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId id) { return IsStored(id); })) {
      return rewriter_.Copy(node);
    }
    return Compute(node);
  }

  Status Compute(const Node& node) {
    Node wide = node;
    bool halves = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      halves |= IsHalf(graph_, node.inputs[i]);
      // Weights of products stay as they are stored: packing widens them, or does not.
      THRESHER_ASSIGN(wide.inputs[i],
                      IsConstantWeight(graph_, node, i) ? rewriter_.Map(node.inputs[i]) : Wide(node.inputs[i], &node));
    }
    if (node.op->name == "full" || node.op->name == "arange" || node.op->name == "pointwise") {
      halves |= IsHalf(graph_, node.outputs[0]);
      if (halves) wide.attrs["dtype"] = std::string(Name(DType::kF32));
    }
    if (!halves) return rewriter_.Copy(node);
    // Where the processor multiplies what attention is given, attention does so.
    if (node.op->name == "sdpa" && IsHalf(graph_, node.inputs[0])) {
      const bool bf16 = graph_.value(node.inputs[0]).dtype == DType::kBF16;
      wide.attrs.try_emplace("precision", std::string(bf16 ? "bf16" : "fp16"));
    }
    THRESHER_ASSIGN(const std::vector<ValueId> outputs,
                    rewriter_.graph().Add(std::string(node.op->name), std::move(wide.inputs), std::move(wide.attrs),
                                          node.source, node.module));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (IsHalf(graph_, node.outputs[i])) {
        THRESHER_TRY(Keep(node.outputs[i], outputs[i], node));
      } else {
        rewriter_.Replace(node.outputs[i], outputs[i]);
      }
    }
    return Status::Ok();
  }

  // `wide` stands for the result `id` of 16 bits, rounded where that is noticed. `shared`: it is a result in f32, too.
  Status Keep(ValueId id, ValueId wide, const Node& node, bool shared = false) {
    if (exact_[Index(id)] && !node.op->Has(Trait::kMoves)) {
      const bool bf16 = graph_.value(id).dtype == DType::kBF16;
      THRESHER_ASSIGN(wide, Add(bf16 ? "round_bf16" : "round_f16", {wide}, {}, &node));
    }
    if (!shared && rewriter_.graph().producer(wide) != nullptr)
      rewriter_.graph().SetNarrow(wide, graph_.value(id).dtype);
    wide_[Index(id)] = wide;
    return Status::Ok();
  }

  // Whether casts to this type are all that reads the value.
  bool ReadAs(ValueId id, DType dtype) const {
    const auto& outputs = graph_.outputs();
    return std::find(outputs.begin(), outputs.end(), id) == outputs.end() &&
           std::all_of(graph_.nodes().begin(), graph_.nodes().end(), [&](const Node& node) {
             return std::find(node.inputs.begin(), node.inputs.end(), id) == node.inputs.end() ||
                    (node.op->name == "cast" && CastTarget(node) == dtype);
           });
  }

  Status Cast(const Node& node) {
    const ValueId x = node.inputs[0];
    const ValueId out = node.outputs[0];
    const DType to = CastTarget(node);
    const DType from = graph_.value(x).dtype;
    if (to == from && IsStored(x)) {
      rewriter_.Replace(out, rewriter_.Map(x));
      return Status::Ok();
    }
    THRESHER_ASSIGN(ValueId wide, Wide(x, &node));
    if (!thresher::IsHalf(to)) {
      if (to != DType::kF32 || !thresher::IsHalf(from)) {
        THRESHER_ASSIGN(wide, CastTo(wide, to, &node));
      }
      rewriter_.Replace(out, wide);
      return Status::Ok();
    }
    if (!IsFloat(from)) {
      THRESHER_ASSIGN(wide, CastTo(wide, DType::kF32, &node));
    }
    return Keep(out, wide, node, from == DType::kF32 && !ReadAs(x, to));
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::vector<ValueId> wide_;  // per source value of 16 bits: its f32 form in the new graph
  std::vector<bool> exact_;    // per source value
};

}  // namespace

Result<Graph> ValueWidening(const Graph& graph, const PassContext&) {
  const bool any = std::any_of(graph.values().begin(), graph.values().end(),
                               [](const Value& value) { return thresher::IsHalf(value.dtype); });
  if (!any) return graph;
  return Widener(graph).Run();
}

}  // namespace thresher::passes
