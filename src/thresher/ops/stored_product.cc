// Products of targets that take both factors as they are stored. What such a kernel does not do beyond the bias is a
// chain behind it.
#include <algorithm>
#include <string>
#include <utility>

#include "thresher/base/half.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/pointwise_chain.h"
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher::ops {
namespace {

using kernels::Activation;
using kernels::Chain;
using kernels::ChainArg;
using kernels::ChainStep;
using kernels::StoredProductParams;
using kernels::UnaryOp;

Result<DType> StoredAs(Precision precision) {
  if (precision == Precision::kFp32) return DType::kF32;
  if (precision == Precision::kBf16) return DType::kBF16;
  return Unsupported("expected a precision of fp32 or bf16 on this device, got " + std::string(Name(precision)));
}

// The rows of x as `dtype`, no closer to each other than they are long.
TensorRef RowsAs(ValueId id, DType dtype, StoredProductParams& p, Lowering& lowering) {
  TensorRef rows = lowering.Ref(id);
  if (dtype != DType::kF32) {
    TensorRef& kept = lowering.Derived(id, static_cast<int>(dtype));
    if (kept.buffer < 0) {
      kept = lowering.AllocateTemporary(dtype, ShapeOf(rows.view));
      Step& step = lowering.AddStep(KernelId::kCast, {rows}, {kept});
      step.name = "to_" + std::string(Name(dtype));
      step.section = Section::kReshape;
      step.flops = 0;
      step.bytes = static_cast<double>(rows.view.size()) * static_cast<double>(sizeof(float) + SizeOf(dtype));
    }
    rows = kept;
  }
  int64_t cols;
  if (!AsRows(rows.view, &p.m, &cols, &p.lda) || (p.m > 1 && p.lda < cols)) {
    rows = lowering.Contiguous(rows);
    AsRows(rows.view, &p.m, &cols, &p.lda);
  }
  if (p.m == 1) p.lda = cols;
  return rows;
}

// The weight's numbers in bf16, as a constant of the plan.
Result<TensorRef> InBf16(const Value& weight, Lowering& lowering) {
  THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(weight.constant));
  const auto* from = static_cast<const float*>(weight.constant.data);
  std::vector<BF16> numbers(static_cast<size_t>(NumElements(weight.shape)));
  std::transform(from, from + numbers.size(), numbers.begin(), [](float x) { return ToBF16(x); });
  return lowering.AddConstant(DType::kBF16, weight.shape, std::move(numbers));
}

// The weight as `dtype`, with one of its two dimensions without holes.
Result<TensorRef> WeightAs(ValueId id, bool nk, DType dtype, StoredProductParams& p, Lowering& lowering) {
  const Value& value = lowering.graph().value(id);
  if (value.constant.blocks) {
    return Unsupported("expected a weight of " + std::string(Name(dtype)) + " on this device, got " +
                       std::string(Name(*value.constant.blocks)) + "; dequantise it first");
  }
  TensorRef weight;
  if (value.dtype == dtype) {
    weight = lowering.Ref(id);
  } else if (value.dtype == DType::kF32 && dtype == DType::kBF16) {
    THRESHER_ASSIGN(weight, InBf16(value, lowering));
  } else {
    return Unsupported("expected a weight of " + std::string(Name(dtype)) + " on this device, got " +
                       std::string(Name(value.dtype)));
  }
  const auto row_major = [](const View& v, int row, int col) {
    return (v.shape[col] == 1 || v.strides[col] == 1) && (v.shape[row] == 1 || v.strides[row] >= v.shape[col]);
  };
  if (!row_major(weight.view, 0, 1) && !row_major(weight.view, 1, 0)) weight = lowering.Contiguous(weight);
  const View& v = weight.view;
  const bool turned = !row_major(v, 0, 1);
  const int row = turned ? 1 : 0;
  p.transpose_b = nk != turned;
  p.ldb = v.shape[row] == 1 ? v.shape[1 - row] : v.strides[row];
  return weight;
}

UnaryOp OperatorOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return UnaryOp::kRelu;
    case Activation::kGelu:
      return UnaryOp::kGelu;
    case Activation::kGeluTanh:
      return UnaryOp::kGeluTanh;
    case Activation::kSilu:
      return UnaryOp::kSilu;
    case Activation::kTanh:
      return UnaryOp::kTanh;
    default:
      return UnaryOp::kSigmoid;
  }
}

// out = activation(product) + residual.
void AddEpilogue(const TensorRef& product, Activation activation, const TensorRef& residual, const TensorRef& out,
                 Lowering& lowering) {
  Chain chain;
  std::vector<TensorRef> inputs = {product};
  double flops = 0;
  if (activation != Activation::kNone) {
    ChainStep& step = chain.steps[chain.num_steps++];
    step.unary = OperatorOf(activation);
    flops += kernels::FlopsPerElement(step.unary);
  }
  if (residual.buffer >= 0) {
    ChainStep& step = chain.steps[chain.num_steps];
    step.kind = ChainStep::Kind::kBinary;
    step.args[0] = {chain.num_steps > 0 ? ChainArg::Kind::kStep : ChainArg::Kind::kOperand, 0, 0};
    step.args[1] = {ChainArg::Kind::kOperand, 1, 0};
    ++chain.num_steps;
    flops += kernels::FlopsPerElement(step.binary);
    inputs.push_back(ExpandTo(residual, ShapeOf(out.view)));
  }
  chain.num_operands = static_cast<int>(inputs.size());
  kernels::AssignSlots(chain);
  const double elements = static_cast<double>(out.view.size());
  const double tensors = static_cast<double>(inputs.size() + 1);
  Step& step = lowering.AddStep(KernelId::kPointwise, std::move(inputs), {out}, chain);
  step.name = "epilogue";
  step.flops = flops * elements;
  step.bytes = tensors * elements * static_cast<double>(sizeof(float));
}

}  // namespace

Status LowerStoredProduct(const Product& product, const Attrs& attrs, const TensorRef& out, Lowering& lowering) {
  const Graph& graph = lowering.graph();
  const bool nk = GetAttr<std::string>(attrs, "layout", "nk") == "nk";
  StoredProductParams p{};
  p.n = graph.value(product.weights[0]).shape[nk ? 0 : 1];
  p.k = graph.value(product.x).shape.back();
  if (p.k == 0) return Unsupported("expected K of at least 1 on this device, got 0");
  p.ldc = p.n;
  p.allow_tf32 = lowering.allow_tf32();
  THRESHER_ASSIGN(const DType dtype, StoredAs(PrecisionOf(product, attrs, graph)));
  const TensorRef x = RowsAs(product.x, dtype, p, lowering);
  THRESHER_ASSIGN(const TensorRef weight, WeightAs(product.weights[0], nk, dtype, p, lowering));
  const TensorRef bias = product.biases.empty() ? TensorRef{} : lowering.Contiguous(lowering.Ref(product.biases[0]));
  const TensorRef residual = lowering.Ref(product.residual);
  const Activation activation = kernels::ParseActivation(GetAttr<std::string>(attrs, "activation", "none")).value();
  const bool plain = activation == Activation::kNone && residual.buffer < 0;
  const TensorRef c = plain ? out : lowering.AllocateTemporary(DType::kF32, ShapeOf(out.view));
  Step& step = lowering.AddStep(KernelId::kStoredProduct, {x, weight, bias}, {c}, p);
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const bool biased = bias.buffer >= 0;
  step.flops = 2 * m * n * k + (biased ? m * n : 0);
  step.bytes = static_cast<double>(SizeOf(dtype)) * (m * k + k * n) + 4 * (m * n + (biased ? n : 0));
  if (!plain) AddEpilogue(c, activation, residual, out, lowering);
  return Status::Ok();
}

}  // namespace thresher::ops
