// Several linears of one x as a single product.
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

// Operands are x, the weights, then the biases: the dimensions tell weights from biases.
template <class IsMatrix>
size_t CountWeights(size_t operands, IsMatrix is_matrix) {
  size_t count = 0;
  while (1 + count < operands && is_matrix(1 + count)) ++count;
  return count;
}

Result<std::vector<TensorType>> InferLinears(const InferContext& c) {
  for (size_t i = 0; i < c.inputs.size(); ++i) THRESHER_TRY(ops::WantFloat(c, i, "every operand"));
  THRESHER_TRY(ops::CheckProductAttrs(c.attrs));
  const size_t weights = CountWeights(c.inputs.size(), [&](size_t i) { return c.inputs[i].shape.size() == 2; });
  const size_t biases = c.inputs.size() - 1 - weights;
  if (weights == 0 || (biases != 0 && biases != weights)) {
    return InvalidArgument("wanted x, matrices, and as many vectors as matrices or none, found " +
                           std::to_string(weights) + " matrices and " + std::to_string(biases) + " others");
  }
  const bool nk = GetAttr<std::string>(c.attrs, "layout", "nk") == "nk";
  const Dims& x = c.inputs[0].shape;
  std::vector<TensorType> outputs;
  for (size_t i = 0; i < weights; ++i) {
    const Dims& w = c.inputs[1 + i].shape;
    if (x.empty() || x.back() != (nk ? w[1] : w[0])) {
      return InvalidArgument("wanted x [..., K] and weights " + std::string(nk ? "[N, K]" : "[K, N]") + ", found x " +
                             ToString(x) + " and weight " + ToString(w));
    }
    const int64_t n = nk ? w[0] : w[1];
    if (biases != 0 && c.inputs[1 + weights + i].shape != Dims{n}) {
      return InvalidArgument("wanted bias [" + std::to_string(n) + "], found " +
                             ToString(c.inputs[1 + weights + i].shape));
    }
    outputs.push_back({c.inputs[0].dtype, x});
    outputs.back().shape.back() = n;
  }
  return outputs;
}

Cost CostLinears(const InferContext& c, std::span<const TensorType> outputs) {
  double per_output = 2 * static_cast<double>(c.inputs[0].shape.back());
  if (c.inputs.size() > 1 + outputs.size()) per_output += 1;
  if (GetAttr<std::string>(c.attrs, "activation", "none") != "none") per_output += 1;
  return ops::ElementwiseCost(c, outputs, per_output);
}

Status LowerLinears(const Graph& graph, const Node& node, Lowering& lowering) {
  const size_t count = node.outputs.size();
  const auto operand = [&](size_t i) { return node.inputs.begin() + static_cast<std::ptrdiff_t>(i); };
  ops::Product product;
  product.x = node.inputs[0];
  product.weights.assign(operand(1), operand(1 + count));
  product.biases.assign(operand(1 + count), node.inputs.end());
  bool constant = true;
  for (size_t i = 1; i < node.inputs.size(); ++i) constant &= graph.is_constant(node.inputs[i]);
  const Dims& x = graph.value(product.x).shape;
  const int64_t rows = NumElements(Dims(x.begin(), x.end() - 1));
  if (!constant || rows == 0 || !lowering.target().packs_weights()) {
    // What is computed at run time is not packed together, nor what is not packed at all.
    for (size_t i = 0; i < count; ++i) {
      ops::Product one{product.x, {product.weights[i]}, {}, kNoValue};
      if (!product.biases.empty()) one.biases = {product.biases[i]};
      THRESHER_TRY(ops::LowerProduct(one, node.attrs, lowering.Allocate(node.outputs[i]), lowering));
    }
    return Status::Ok();
  }
  std::vector<int64_t> n;
  n.reserve(node.outputs.size());
  for (const ValueId output : node.outputs) n.push_back(graph.value(output).shape.back());
  const std::vector<int64_t> columns = ops::ProductColumns(n);
  const TensorRef all = lowering.AllocateTemporary(DType::kF32, {rows, columns.back()});
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

}  // namespace

std::span<const OpDef> LinearsOps() {
  static const std::vector<OpDef> rows = {
      {"linears",
       "act(x W + bias) for several weights as one product: x, the weights, then one bias a weight or none.",
       {"x", "weights_and_biases*"},
       ops::ProductAttrs(),
       Section::kForward,
       InferLinears,
       CostLinears,
       LowerLinears,
       Trait::kProduct},
  };
  return rows;
}

}  // namespace thresher
