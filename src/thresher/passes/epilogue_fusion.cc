#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

#include "thresher/base/half.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// Of linear and of convolution, whose results both have the columns of the product last.
enum ProductOperand : size_t { kX, kWeight, kBias, kResidual };

// A linear or convolution that nothing else reads, seen through a reshape that nothing else reads either.
struct OpenProduct {
  Operation product;
  Dims shape;       // of the product's own result
  Dims seen_shape;  // after the reshape
  ValueId id = kNoValue;
};

std::string ActivationOf(const OpenProduct& open) {
  return GetAttr<std::string>(open.product.attrs, "activation", "none");
}

// `uses`: how often the value at `id` is read by what is to join the product.
std::optional<OpenProduct> FindOpenProduct(const RuleRewriter& r, ValueId id, int uses = 1) {
  OpenProduct open;
  open.seen_shape = r.shape(id);
  if (r.Uses(id) > uses) return std::nullopt;
  std::string source;
  if (const auto reshape = r.Producer(id, "reshape")) {
    id = reshape->inputs[0];
    source = reshape->source;
    if (!r.SingleUse(id)) return std::nullopt;
  }
  auto node = r.Producer(id, "linear");
  if (!node) node = r.Producer(id, "convolution");
  if (!node) return std::nullopt;
  open.id = id;
  open.shape = r.shape(id);
  open.product = {std::string(node->op->name), node->inputs, node->attrs, MergeSources(node->source, source),
                  node->module};
  return open;
}

// One without a residual.
std::optional<OpenProduct> FindBareProduct(const RuleRewriter& r, ValueId id, int uses = 1) {
  std::optional<OpenProduct> open = FindOpenProduct(r, id, uses);
  if (open && open->product.inputs[kResidual] != kNoValue) return std::nullopt;
  return open;
}

Result<ValueId> Close(RuleRewriter& r, OpenProduct open, const std::string& source) {
  open.product.source = MergeSources(open.product.source, source);
  const std::string merged = open.product.source;
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(open.product)));
  if (open.shape == open.seen_shape) return value;
  return r.Reshape(value, open.seen_shape, merged);
}

// Whether `id` has a number for each column of the product, the last dimension, and nothing else.
bool IsVector(const RuleRewriter& r, const OpenProduct& open, ValueId id) {
  const Dims shape = r.shape(id);
  const int64_t n = open.shape.back();
  return !shape.empty() && shape.back() == n && NumElements(shape) == n && shape.size() <= open.seen_shape.size() &&
         !open.seen_shape.empty() && open.seen_shape.back() == n;
}

// What reshapes make the value of.
ValueId ThroughReshapes(RuleRewriter& r, ValueId id) {
  while (const auto reshape = r.Producer(id, "reshape")) id = reshape->inputs[0];
  return id;
}

// The numbers of a constant in f32, seen through reshape.
Result<std::optional<std::vector<float>>> NumbersOf(RuleRewriter& r, ValueId id) {
  id = ThroughReshapes(r, id);
  std::optional<std::vector<float>> numbers;
  if (!r.graph().is_constant(id) || r.dtype(id) != DType::kF32) return numbers;
  const Value& value = r.graph().value(id);
  if (value.constant.blocks) return numbers;
  THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(value.constant));
  const auto* const first = static_cast<const float*>(value.constant.data);
  numbers.emplace(first, first + NumElements(value.shape));
  return numbers;
}

ValueId AddVector(RuleRewriter& r, const std::vector<float>& numbers) {
  return r.graph().AddOwnedConstant("folded", DType::kF32, {static_cast<int64_t>(numbers.size())}, numbers.data());
}

// product + vector over the last dimension. A reshape between them must keep that dimension. What is computed in the
// product's own shape is a residual, even of a single row: biases are added first, and a row has the bits that it has
// beside others.
Result<ValueId> FuseBias(RuleRewriter& r, const Operation& op) {
  if (op.op != "add") return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const ValueId bias = op.inputs[1 - side];
    std::optional<OpenProduct> open = FindBareProduct(r, op.inputs[side]);
    if (!open || ActivationOf(*open) != "none" || !IsVector(r, *open, bias)) continue;
    const bool alike = r.shape(bias).size() > 1 && r.shape(bias) == r.shape(op.inputs[side]);
    if (alike && !r.graph().is_constant(ThroughReshapes(r, bias))) continue;
    ValueId& own = open->product.inputs[kBias];
    if (own != kNoValue) {
      // Of two known biases the sum is known.
      THRESHER_ASSIGN(auto sum, NumbersOf(r, own));
      THRESHER_ASSIGN(const auto added, NumbersOf(r, bias));
      if (!sum || !added) continue;
      for (size_t i = 0; i < sum->size(); ++i) (*sum)[i] += (*added)[i];
      own = AddVector(r, *sum);
    } else if (r.shape(bias).size() == 1) {
      own = bias;
    } else {
      THRESHER_ASSIGN(const ValueId vector, r.Reshape(bias, {open->shape.back()}, op.source));
      own = vector;
    }
    return Close(r, std::move(*open), op.source);
  }
  return kNoValue;
}

// Which column of the product an element of its weight belongs to: element i of `rows` slices of `width` columns with
// `inner` elements each.
struct Columns {
  int64_t slices_per_group;  // slices of one group of columns; 1: each slice is a column of its own
  int64_t width, inner;

  int64_t Of(int64_t i) const { return i / inner / width / slices_per_group * width + i / inner % width; }
};

Columns ColumnsOf(const Operation& product, const Dims& weight) {
  const int64_t elements = NumElements(weight);
  if (product.op == "linear") {
    return GetAttr<std::string>(product.attrs, "layout", "nk") == "nk" ? Columns{1, 1, weight[1]}
                                                                       : Columns{weight[0], weight[1], 1};
  }
  if (!GetAttr<bool>(product.attrs, "transposed", false)) return {1, 1, elements / weight[0]};
  return {weight[0] / GetAttr<int64_t>(product.attrs, "groups", 1), weight[1], elements / weight[0] / weight[1]};
}

// The weight with each column times its factor, stored as the weight is.
Result<ValueId> Scale(RuleRewriter& r, const Operation& product, const std::vector<float>& factors) {
  const Value weight = r.graph().value(product.inputs[kWeight]);
  THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(weight.constant));
  const Columns columns = ColumnsOf(product, weight.shape);
  const int64_t elements = NumElements(weight.shape);
  const auto scaled = [&](int64_t i, float x) { return x * factors[static_cast<size_t>(columns.Of(i))]; };
  std::vector<std::byte> bytes(static_cast<size_t>(elements) * SizeOf(weight.dtype));
  for (int64_t i = 0; i < elements; ++i) {
    if (weight.dtype == DType::kF32) {
      reinterpret_cast<float*>(bytes.data())[i] = scaled(i, static_cast<const float*>(weight.constant.data)[i]);
    } else if (weight.dtype == DType::kBF16) {
      const float x = ToFloat(static_cast<const BF16*>(weight.constant.data)[i]);
      reinterpret_cast<BF16*>(bytes.data())[i] = ToBF16(scaled(i, x));
    } else {
      const float x = ToFloat(static_cast<const F16*>(weight.constant.data)[i]);
      reinterpret_cast<F16*>(bytes.data())[i] = ToF16(scaled(i, x));
    }
  }
  return r.graph().AddOwnedConstant(weight.name, weight.dtype, weight.shape, bytes.data());
}

// product * vector of known factors, as a batch norm has them, is a product with other weights.
Result<ValueId> FuseScale(RuleRewriter& r, const Operation& op) {
  if (op.op != "mul") return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    std::optional<OpenProduct> open = FindBareProduct(r, op.inputs[side]);
    if (!open || ActivationOf(*open) != "none" || !IsVector(r, *open, op.inputs[1 - side])) continue;
    const ValueId weight = open->product.inputs[kWeight];
    if (!r.graph().is_constant(weight) || r.graph().value(weight).constant.blocks || !IsFloat(r.dtype(weight)))
      continue;
    THRESHER_ASSIGN(const auto factors, NumbersOf(r, op.inputs[1 - side]));
    if (!factors) continue;
    ValueId& bias = open->product.inputs[kBias];
    if (bias != kNoValue) {
      THRESHER_ASSIGN(auto numbers, NumbersOf(r, bias));
      if (!numbers) continue;
      for (size_t i = 0; i < numbers->size(); ++i) (*numbers)[i] *= (*factors)[i];
      bias = AddVector(r, *numbers);
    }
    THRESHER_ASSIGN(open->product.inputs[kWeight], Scale(r, open->product, *factors));
    return Close(r, std::move(*open), op.source);
  }
  return kNoValue;
}

// act(product), and act(product + residual).
Result<ValueId> FuseActivation(RuleRewriter& r, const Operation& op) {
  static constexpr std::string_view kActivations[] = {"relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"};
  if (std::find(std::begin(kActivations), std::end(kActivations), op.op) == std::end(kActivations)) return kNoValue;
  std::optional<OpenProduct> open = FindOpenProduct(r, op.inputs[0]);
  if (!open || ActivationOf(*open) != "none") return kNoValue;
  open->product.attrs["activation"] = op.op;
  if (open->product.inputs[kResidual] != kNoValue) open->product.attrs["residual_first"] = true;
  return Close(r, std::move(*open), op.source);
}

// The other operand of a commutative operator, where one is a constant of equal numbers.
ValueId BesideNumber(RuleRewriter& r, const Node& node, double number) {
  for (const size_t side : {size_t{0}, size_t{1}}) {
    if (UniformConstant(r.graph(), node.inputs[1 - side]) == number) return node.inputs[side];
  }
  return kNoValue;
}

// x in minimum(maximum(x, 0), 6).
ValueId Relu6Operand(RuleRewriter& r, ValueId id) {
  const auto minimum = r.Producer(id, "minimum");
  if (!minimum || !r.SingleUse(id)) return kNoValue;
  const ValueId inner = BesideNumber(r, *minimum, 6);
  const auto maximum = inner == kNoValue ? std::nullopt : r.Producer(inner, "maximum");
  return maximum && r.SingleUse(inner) ? BesideNumber(r, *maximum, 0) : kNoValue;
}

Result<ValueId> Activated(RuleRewriter& r, ValueId x, int uses, const char* activation, const Operation& op) {
  std::optional<OpenProduct> open = FindBareProduct(r, x, uses);
  if (!open || ActivationOf(*open) != "none") return kNoValue;
  open->product.attrs["activation"] = std::string(activation);
  return Close(r, std::move(*open), op.source);
}

Result<ValueId> FuseRelu6(RuleRewriter& r, const Operation& op) {
  if (op.op != "minimum") return kNoValue;
  Node minimum;
  minimum.inputs = op.inputs;
  const ValueId inner = BesideNumber(r, minimum, 6);
  const auto maximum = inner == kNoValue ? std::nullopt : r.Producer(inner, "maximum");
  if (!maximum || !r.SingleUse(inner)) return kNoValue;
  const ValueId x = BesideNumber(r, *maximum, 0);
  if (x == kNoValue || r.shape(x) != r.shape(inner)) return kNoValue;
  return Activated(r, x, 1, "relu6", op);
}

// x * relu6(x + 3) / 6.
Result<ValueId> FuseHardSwish(RuleRewriter& r, const Operation& op) {
  if (op.op != "div" || UniformConstant(r.graph(), op.inputs[1]) != 6 || !r.SingleUse(op.inputs[0])) return kNoValue;
  const auto product = r.Producer(op.inputs[0], "mul");
  if (!product) return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const ValueId x = product->inputs[side];
    const ValueId gate = Relu6Operand(r, product->inputs[1 - side]);
    const auto sum = gate == kNoValue ? std::nullopt : r.Producer(gate, "add");
    if (!sum || !r.SingleUse(gate) || BesideNumber(r, *sum, 3) != x || r.shape(gate) != r.shape(x)) continue;
    return Activated(r, x, 2, "hardswish", op);
  }
  return kNoValue;
}

// act(product) + residual of the same shape.
Result<ValueId> FuseResidual(RuleRewriter& r, const Operation& op) {
  if (op.op != "add" || r.shape(op.inputs[0]) != r.shape(op.inputs[1])) return kNoValue;
  std::optional<OpenProduct> best;
  ValueId residual = kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    std::optional<OpenProduct> open = FindBareProduct(r, op.inputs[side]);
    // Of two candidates the later one: the other is computed by then and need not be kept waiting.
    if (!open || (best && best->id > open->id)) continue;
    best = std::move(open);
    residual = op.inputs[1 - side];
  }
  if (!best) return kNoValue;
  if (best->shape != best->seen_shape) {
    THRESHER_ASSIGN(residual, r.Reshape(residual, best->shape, op.source));
  }
  best->product.inputs[kResidual] = residual;
  return Close(r, std::move(*best), op.source);
}

}  // namespace

Result<Graph> EpilogueFusion(const Graph& graph, const PassContext&) {
  static constexpr RuleRewriter::Rule kRules[] = {FuseScale, FuseBias,      FuseActivation,
                                                  FuseRelu6, FuseHardSwish, FuseResidual};
  return RuleRewriter(graph, kRules).Run();
}

}  // namespace thresher::passes
