// Several linears of one x as a single product.
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

bool HasWideFrom(const Attrs& attrs) { return GetAttr<bool>(attrs, "wide_from", false); }

// Operands less wide_from: x, the weights and the biases.
size_t Factors(const Attrs& attrs, size_t operands) { return operands - (HasWideFrom(attrs) && operands > 0 ? 1 : 0); }

Result<std::vector<TensorType>> InferLinears(const InferContext& c) {
  const size_t factors = Factors(c.attrs, c.inputs.size());
  for (size_t i = 0; i < factors; ++i) THRESHER_TRY(ops::WantFloat(c, i, "every operand"));
  if (factors < c.inputs.size()) THRESHER_TRY(ops::CheckWideFrom(c.inputs.back()));
  THRESHER_TRY(ops::CheckProductAttrs(c.attrs));
  const int64_t weights = GetAttr<int64_t>(c.attrs, "weights", 0);
  const int64_t others = static_cast<int64_t>(factors) - 1;
  if (weights < 1 || (others != weights && others != 2 * weights)) {
    return InvalidArgument("expected x, weights, and as many biases or none, got " + std::to_string(others) +
                           " operands behind x, of which weights = " + std::to_string(weights));
  }
  const size_t count = static_cast<size_t>(weights);
  std::vector<TensorType> outputs;
  for (size_t i = 1; i <= count; ++i) {
    const OperandType bias = others == weights ? OperandType{} : c.inputs[i + count];
    THRESHER_ASSIGN(TensorType out, ops::ProductType(c.attrs, c.inputs[0], c.inputs[i], bias));
    outputs.push_back(std::move(out));
  }
  return outputs;
}

Cost CostLinears(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ProductCost(c, outputs, Factors(c.attrs, c.inputs.size()) > 1 + outputs.size() ? 1 : 0);
}

Status LowerLinears(const Graph& graph, const Node& node, Lowering& lowering) {
  const size_t count = node.outputs.size(), factors = Factors(node.attrs, node.inputs.size());
  const auto operand = [&](size_t i) { return node.inputs.begin() + static_cast<std::ptrdiff_t>(i); };
  ops::Product product;
  product.x = node.inputs[0];
  product.weights.assign(operand(1), operand(1 + count));
  product.biases.assign(operand(1 + count), operand(factors));
  if (factors < node.inputs.size()) product.wide_from = node.inputs.back();
  bool constant = true;
  for (size_t i = 1; i < factors; ++i) constant &= graph.is_constant(node.inputs[i]);
  const Dims& x = graph.value(product.x).shape;
  const int64_t rows = NumElements(Dims(x.begin(), x.end() - 1));
  if (!constant || rows == 0) {
    // What is computed at run time is not put together.
    for (size_t i = 0; i < count; ++i) {
      ops::Product one{product.x, {product.weights[i]}, {}, kNoValue, product.wide_from};
      if (!product.biases.empty()) one.biases = {product.biases[i]};
      THRESHER_TRY(ops::LowerProduct(one, node.attrs, lowering.Allocate(node.outputs[i]), lowering));
    }
    return Status::Ok();
  }
  std::vector<int64_t> n;
  n.reserve(node.outputs.size());
  for (const ValueId output : node.outputs) n.push_back(graph.value(output).shape.back());
  const std::vector<int64_t> columns = ops::ProductColumns(n, lowering.target());
  const TensorRef all = lowering.AllocateTemporary(graph.value(node.outputs[0]).dtype, {rows, columns.back()});
  THRESHER_TRY(ops::LowerProduct(product, node.attrs, all, lowering));
  for (size_t i = 0; i < count; ++i) {
    const Dims& shape = graph.value(node.outputs[i]).shape;
    TensorRef window = all;
    window.offset = columns[i];
    window.view.rank = static_cast<int>(shape.size());
    int64_t stride = columns.back();
    for (size_t d = shape.size(); d-- > 0;) {
      const bool last = d + 1 == shape.size();
      window.view.shape[d] = shape[d];
      window.view.strides[d] = last ? 1 : stride;
      if (!last) stride *= shape[d];
    }
    lowering.Bind(node.outputs[i], window);
  }
  return Status::Ok();
}

std::pair<size_t, size_t> WeightsOf(const Attrs& attrs, size_t) {
  return {1, 1 + static_cast<size_t>(GetAttr<int64_t>(attrs, "weights", 0))};
}

std::vector<AttrSpec> LinearsAttrs() {
  std::vector<AttrSpec> attrs = ops::ProductAttrs();
  attrs.push_back({"weights", AttrType::kInt, true, "how many of the operands behind x are weights"});
  attrs.push_back({"wide_from", AttrType::kBool, false, "the last operand is wide_from, as of linear; default false"});
  return attrs;
}

}  // namespace

std::span<const OpDef> LinearsOps() {
  static const std::vector<OpDef> rows = {
      {"linears",
       "act(x W + bias) for several weights as one product: x, the weights, then one bias a weight or none, then "
       "wide_from if the attribute says so.",
       {"x", "weights_and_biases*"},
       LinearsAttrs(),
       Section::kForward,
       InferLinears,
       CostLinears,
       LowerLinears,
       Trait::kProduct,
       nullptr,
       WeightsOf,
       WeightsOf},
  };
  return rows;
}

}  // namespace thresher
