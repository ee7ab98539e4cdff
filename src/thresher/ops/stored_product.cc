// Products of targets that take both factors as they are stored.
#include <string>
#include <utility>

#include "thresher/base/half.h"
#include "thresher/kernels/gemm.h"
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher::ops {
namespace {

using kernels::StoredProductParams;

// How the factors are stored.
struct Factors {
  DType dtype;  // of x, and of a weight that is not in blocks
  Encoding weight;
  int64_t group = kernels::kInt4Group;  // numbers of a weight that share a scale, where it is quantised here
};

Encoding EncodingOfFloat(DType dtype) { return EncodingOf(dtype).value_or(Encoding::kF32); }

Result<Factors> FactorsOf(const Product& product, const Attrs& attrs, const Graph& graph) {
  const Value& weight = graph.value(product.weights[0]);
  const DType x = graph.value(product.x).dtype;
  const int64_t k = graph.value(product.x).shape.back();
  if (!graph.is_constant(product.weights[0])) return Factors{weight.dtype, EncodingOfFloat(weight.dtype)};
  const Precision precision = PrecisionOf(product, attrs, graph);
  if (IsBlocked(precision)) return Factors{x, EncodingOf(precision)};
  switch (precision) {
    case Precision::kFp32:
      return Factors{DType::kF32, Encoding::kF32};
    case Precision::kBf16:
      return Factors{DType::kBF16, Encoding::kBf16};
    case Precision::kFp16:
      return Factors{DType::kF16, Encoding::kF16};
    default:
      break;
  }
  if (k % kernels::kInt4Group != 0) {
    return Unsupported("expected K of a multiple of " + std::to_string(kernels::kInt4Group) + " in " +
                       std::string(Name(precision)) + " on this device, got " + std::to_string(k));
  }
  // Rows stay floats.
  if (precision == Precision::kInt4Weight) return Factors{x, Encoding::kQ4_0};
  return Factors{x, Encoding::kQ8_0, k};
}

// Rows that lie no closer to each other than they are long, `stride` apart.
TensorRef DistinctRows(TensorRef rows, int64_t* count, int64_t* stride, Lowering& lowering) {
  int64_t cols;
  if (!AsRows(rows.view, count, &cols, stride) || (*count > 1 && *stride < cols)) {
    rows = lowering.Contiguous(rows);
    AsRows(rows.view, count, &cols, stride);
  }
  if (*count == 1) *stride = cols;
  return rows;
}

// A matrix with one of its two dimensions without holes; whether that is the first one, and the distance of the other.
TensorRef Dense(TensorRef matrix, bool* turned, int64_t* stride, Lowering& lowering) {
  const auto row_major = [](const View& v, int row, int col) {
    return (v.shape[col] == 1 || v.strides[col] == 1) && (v.shape[row] == 1 || v.strides[row] >= v.shape[col]);
  };
  const int r = matrix.view.rank;
  if (!row_major(matrix.view, r - 2, r - 1) && !row_major(matrix.view, r - 1, r - 2)) {
    matrix = lowering.Contiguous(matrix);
  }
  const View& v = matrix.view;
  *turned = !row_major(v, r - 2, r - 1);
  const int row = *turned ? r - 1 : r - 2;
  const int col = *turned ? r - 2 : r - 1;
  *stride = v.shape[row] == 1 ? v.shape[col] : v.strides[row];
  return matrix;
}

// The biases, one behind the other, as constants of the type.
Result<TensorRef> JoinedBiases(const Product& product, DType dtype, Lowering& lowering) {
  const Graph& graph = lowering.graph();
  std::vector<float> joined;
  for (const ValueId id : product.biases) {
    const Value& bias = graph.value(id);
    if (bias.dtype != DType::kF32) return Unsupported("expected a bias of f32, got " + std::string(Name(bias.dtype)));
    THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(bias.constant));
    const auto* const numbers = static_cast<const float*>(bias.constant.data);
    joined.insert(joined.end(), numbers, numbers + NumElements(bias.shape));
  }
  const Dims shape = {static_cast<int64_t>(joined.size())};
  if (dtype == DType::kF32) return lowering.AddConstant(dtype, shape, joined);
  std::vector<uint16_t> rounded;
  rounded.reserve(joined.size());
  for (const float x : joined) rounded.push_back(dtype == DType::kBF16 ? ToBF16(x).bits : ToF16(x).bits);
  return lowering.AddConstant(dtype, shape, rounded);
}

Result<TensorRef> BiasOf(const Product& product, DType dtype, Lowering& lowering) {
  if (product.biases.empty()) return TensorRef{};
  const Graph& graph = lowering.graph();
  const ValueId first = product.biases[0];
  const bool as_is = product.biases.size() == 1 && graph.value(first).dtype == dtype;
  if (!as_is && graph.is_constant(first) && graph.value(first).dtype == DType::kF32) {
    return JoinedBiases(product, dtype, lowering);
  }
  return lowering.Contiguous(AsType(dtype, lowering.Ref(first), first, lowering));
}

}  // namespace

TensorRef AsType(DType dtype, const TensorRef& ref, ValueId id, Lowering& lowering) {
  if (ref.buffer < 0 || ref.view.dtype == dtype) return ref;
  TensorRef alone;
  TensorRef& kept = id == kNoValue ? alone : lowering.Derived(id, kDerivedTypes + static_cast<int>(dtype));
  if (kept.buffer < 0) {
    kept = lowering.AllocateTemporary(dtype, ShapeOf(ref.view));
    Step& step = lowering.AddStep(KernelId::kCast, {ref}, {kept});
    step.name = "to_" + std::string(Name(dtype));
    step.section = Section::kReshape;
    step.flops = 0;
    step.bytes = static_cast<double>(ref.view.size()) * static_cast<double>(SizeOf(ref.view.dtype) + SizeOf(dtype));
  }
  return kept;
}

Status AddStoredProduct(const Product& product, StoredProductParams p, const TensorRef& x, const TensorRef& weight,
                        const TensorRef& out, Lowering& lowering) {
  const DType dtype = x.view.dtype;
  // Results are of the rows' type or, but for weights in blocks, f32.
  const bool direct = out.view.dtype == dtype || (out.view.dtype == DType::kF32 && !IsBlocked(p.encoding));
  const DType temporary = IsBlocked(p.encoding) ? dtype : DType::kF32;
  const TensorRef c = direct ? out : lowering.AllocateTemporary(temporary, ShapeOf(out.view));
  const DType c_type = c.view.dtype;
  THRESHER_ASSIGN(const TensorRef bias, BiasOf(product, c_type, lowering));
  TensorRef residual = AsType(c_type, lowering.Ref(product.residual), product.residual, lowering);
  if (residual.buffer >= 0) {
    int64_t rows;
    residual = DistinctRows(residual, &rows, &p.ldr, lowering);
  }
  Step& step = lowering.AddStep(KernelId::kStoredProduct, {x, weight, bias, residual}, {c}, p);
  const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
  const double c_size = static_cast<double>(SizeOf(c_type));
  const bool biased = bias.buffer >= 0, added = residual.buffer >= 0;
  const double per_element = (biased ? 1 : 0) + (added ? 1 : 0) + (p.activation != kernels::Activation::kNone ? 1 : 0);
  step.flops = m * n * (2 * k + per_element);
  step.bytes = static_cast<double>(SizeOf(dtype)) * m * k + static_cast<double>(EncodedBytes(p.encoding, p.k * p.n)) +
               c_size * (m * n * (added ? 2 : 1) + (biased ? n : 0));
  if (!direct) lowering.AddStep(KernelId::kCast, {c}, {out});
  return Status::Ok();
}

Status LowerStoredProduct(const Product& product, const Attrs& attrs, const TensorRef& out, Lowering& lowering) {
  const Graph& graph = lowering.graph();
  const bool nk = GetAttr<std::string>(attrs, "layout", "nk") == "nk";
  THRESHER_ASSIGN(const Factors factors, FactorsOf(product, attrs, graph));
  const DType dtype = factors.dtype;
  StoredProductParams p{};
  for (const ValueId weight : product.weights) p.n += graph.value(weight).shape[nk ? 0 : 1];
  p.k = graph.value(product.x).shape.back();
  if (p.k == 0) return Unsupported("expected K of at least 1 on this device, got 0");
  p.batch = 1;
  p.ldc = p.n;
  p.encoding = factors.weight;
  p.allow_tf32 = lowering.allow_tf32();
  p.activation = kernels::ParseActivation(GetAttr<std::string>(attrs, "activation", "none")).value();
  p.residual_first = GetAttr<bool>(attrs, "residual_first", false);
  const TensorRef x = DistinctRows(AsType(dtype, lowering.Ref(product.x), product.x, lowering), &p.m, &p.lda, lowering);

  TensorRef weight;
  if (graph.is_constant(product.weights[0])) {
    weight = lowering.StoredWeight(product.weights, nk, factors.weight, factors.group);
    p.transpose_b = true;
    p.ldb = p.k;
  } else {
    bool turned;
    weight = Dense(lowering.Ref(product.weights[0]), &turned, &p.ldb, lowering);
    p.transpose_b = nk != turned;
  }

  return AddStoredProduct(product, p, x, weight, out, lowering);
}

// One product of a batch is a [m, k] and b [k, n], the last two dimensions of both.
Status LowerStoredMatmul(const TensorRef& a_batch, const TensorRef& b_batch, const TensorRef& out, Lowering& lowering) {
  StoredProductParams p{};
  const DType dtype = a_batch.view.dtype;
  const View& c = out.view;
  p.m = c.shape[c.rank - 2];
  p.n = c.shape[c.rank - 1];
  p.k = a_batch.view.shape[a_batch.view.rank - 1];
  if (p.k == 0) return Unsupported("expected K of at least 1 on this device, got 0");
  p.batch = c.size() / (p.m * p.n);
  p.ldc = p.n;
  p.stride_c = p.m * p.n;
  p.encoding = EncodingOfFloat(dtype);
  p.allow_tf32 = lowering.allow_tf32();
  const TensorRef a = Dense(a_batch, &p.transpose_a, &p.lda, lowering);
  const TensorRef b = Dense(AsType(dtype, b_batch, kNoValue, lowering), &p.transpose_b, &p.ldb, lowering);
  p.stride_a = BatchStride(a.view);
  p.stride_b = BatchStride(b.view);
  lowering.AddStep(KernelId::kStoredProduct, {a, b, {}, {}}, {out}, p);
  return Status::Ok();
}

}  // namespace thresher::ops
