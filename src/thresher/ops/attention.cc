// Scaled dot-product attention.
#include "thresher/kernels/attention.h"

#include "thresher/base/precision.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

Result<std::vector<TensorType>> InferSdpa(const InferContext& c) {
  static constexpr const char* kNames[] = {"q", "k", "v"};
  for (size_t i = 0; i < 3; ++i) {
    THRESHER_TRY(ops::WantFloatLike0(c, i, kNames[i]));
    if (c.inputs[i].shape.size() != 4) {
      return InvalidArgument(std::string("expected ") + kNames[i] + " [batch, heads, sequence, head size], got " +
                             ToString(c.inputs[i].shape));
    }
  }
  const Dims& q = c.inputs[0].shape;
  const Dims& k = c.inputs[1].shape;
  const Dims& v = c.inputs[2].shape;
  if (q[0] != k[0] || q[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[3] != k[3] || k[1] == 0 || q[1] % k[1] != 0) {
    return InvalidArgument(
        "expected q [B, Hq, Sq, D], k [B, Hkv, Skv, D], v [B, Hkv, Skv, Dv] with Hq a multiple of Hkv, "
        "got " +
        ToString(q) + ", " + ToString(k) + ", " + ToString(v));
  }
  const std::string precision = GetAttr<std::string>(c.attrs, "precision", "fp32");
  if (precision != Name(Precision::kFp32) && precision != Name(Precision::kBf16) &&
      precision != Name(Precision::kFp16)) {
    return InvalidArgument("expected precision fp32, bf16 or fp16, got \"" + precision + "\"");
  }
  const OperandType& mask = c.inputs[3];
  if (mask.present) {
    if (!IsFloat(mask.dtype) && mask.dtype != DType::kBool) {
      return Unsupported("expected a mask of a float type or bool, got " + ops::ToString(mask));
    }
    const Dims scores{q[0], q[1], q[2], k[2]};
    const Result<Dims> together = ops::Broadcast(mask.shape, scores);
    if (!together.ok() || together.value() != scores) {
      return InvalidArgument("expected a mask that broadcasts to the scores " + ToString(scores) + ", got " +
                             ToString(mask.shape));
    }
  }
  return ops::One(c.inputs[0].dtype, {q[0], q[1], q[2], v[3]});
}

// Two products and about five operations a score (scale, mask, maximum, exp counted as one, sum).
Cost CostSdpa(const InferContext& c, std::span<const TensorType> outputs) {
  const Dims& q = c.inputs[0].shape;
  const double scores = static_cast<double>(q[0] * q[1] * q[2]) * static_cast<double>(c.inputs[1].shape[2]);
  Cost cost = ops::ElementwiseCost(c, outputs, 0);
  cost.flops = scores * (2.0 * static_cast<double>(q[3]) + 2.0 * static_cast<double>(c.inputs[2].shape[3]) + 5.0);
  return cost;
}

using kernels::SdpaParams;

kernels::SdpaArgs MakeArgs(const View& q, const View& k, const View& v, const View& mask, const View& out,
                           const SdpaParams& p) {
  kernels::SdpaArgs args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.out = out;
  if (p.masked) args.mask = mask;
  args.scale = p.scale;
  args.causal = p.causal;
  args.precision = p.precision;
  return args;
}

Status SdpaStep(const StepContext& c) {
  kernels::Sdpa(MakeArgs(c.in(0), c.in(1), c.in(2), c.in(3), c.out(), c.as<SdpaParams>()), c.scratch, c.part,
                c.num_parts);
  return Status::Ok();
}

size_t SdpaScratch(const StepContext& c) {
  const auto& p = c.as<SdpaParams>();
  kernels::SdpaArgs sizes = MakeArgs(c.in(0), c.in(1), c.in(2), c.in(3), c.out(), p);
  sizes.mask.data = p.masked ? &sizes : nullptr;  // only whether there is a mask counts, there is no data yet
  return kernels::SdpaScratchBytes(sizes);
}

// q, k and v, which lie side by side in the rows.
Taken SdpaTakesRows(Step& sdpa, int buffer, StoredRows& rows) {
  if (rows.place != nullptr) {
    for (size_t i = 0; i < 3; ++i) {
      TensorRef& ref = sdpa.operands[i];
      ref.buffer = rows.place->buffer;
      ref.offset += rows.place->offset;
      ref.view.dtype = DType::kBF16;
      ref.view.strides[2] = rows.stride;
      ref.view.strides[0] = ref.view.shape[2] * rows.stride;
    }
    return Taken::kRead;
  }
  if (ops::ParamsOf<SdpaParams>(sdpa).precision != Precision::kBf16) return Taken::kNot;
  if (sdpa.operands[3].buffer == buffer) return Taken::kNot;  // a mask stays what it is
  for (size_t i = 0; i < 3; ++i) {
    const TensorRef& ref = sdpa.operands[i];
    const View& v = ref.view;
    const bool even = ref.offset % 2 == 0 && rows.columns % 2 == 0 && v.strides[1] % 2 == 0 && v.shape[3] % 2 == 0;
    const bool in_rows = v.strides[3] == 1 && v.strides[2] == rows.columns && v.strides[0] == v.shape[2] * rows.columns;
    const int64_t end = ref.offset + v.strides[1] * (v.shape[1] - 1) + v.shape[3];
    if (ref.buffer != buffer || end > rows.columns || !even || !in_rows) return Taken::kNot;
  }
  return Taken::kRead;
}

// [B, H, S, D], stored as [B, S, H, D].
bool SdpaStoresRows(Step& sdpa, StoredRows& rows) {
  TensorRef& out = sdpa.operands.back();
  View view = out.view;
  const int64_t heads = view.shape[1], queries = view.shape[2], depth = view.shape[3], columns = heads * depth;
  if (rows.place != nullptr) {
    out = *rows.place;
    view.dtype = DType::kBF16;
    view.strides[2] = rows.stride;
    view.strides[0] = queries * rows.stride;
    out.view = view;
    return true;
  }
  rows.rows = view.shape[0] * queries;
  rows.columns = columns;
  rows.stride = ops::RowStride(columns);
  return ops::ParamsOf<SdpaParams>(sdpa).precision == Precision::kBf16 && depth % 2 == 0 && out.offset == 0 &&
         columns % kernels::kStoredColumns == 0 && view.strides[1] == depth && view.strides[2] == columns &&
         view.strides[0] == queries * columns;
}

Status LowerSdpa(const Graph& graph, const Node& node, Lowering& lowering) {
  const Dims shape = graph.value(node.outputs[0]).shape;  // [B, H, S, Dv]
  // Stored as [B, S, H, Dv], so that merging the heads afterwards is a window and not a copy.
  TensorRef out =
      lowering.AllocateTemporary(graph.value(node.outputs[0]).dtype, {shape[0], shape[2], shape[1], shape[3]});
  std::swap(out.view.shape[1], out.view.shape[2]);
  std::swap(out.view.strides[1], out.view.strides[2]);
  lowering.Bind(node.outputs[0], out);
  if (ops::Empty(out)) return Status::Ok();
  SdpaParams p{};
  p.scale = static_cast<float>(GetAttr<double>(node.attrs, "scale", 1.0));
  p.causal = GetAttr<bool>(node.attrs, "causal", false);
  p.masked = node.inputs[3] != kNoValue;
  const std::string wanted = GetAttr<std::string>(node.attrs, "precision", "fp32");
  const auto multiplies = [&](Precision precision) {
    return wanted == Name(precision) &&
           lowering.target().RowsFor(precision, shape[2], kernels::Variant::kAuto) != kernels::RowForm::kF32;
  };
  p.precision = multiplies(Precision::kBf16)   ? Precision::kBf16
                : multiplies(Precision::kFp16) ? Precision::kFp16
                                               : Precision::kFp32;
  const TensorRef q = lowering.InnerContiguous(lowering.Ref(node.inputs[0]));
  const TensorRef k = lowering.InnerContiguous(lowering.Ref(node.inputs[1]));
  const TensorRef v = lowering.InnerContiguous(lowering.Ref(node.inputs[2]));
  TensorRef mask;
  if (p.masked) {
    const TensorRef raw = lowering.Ref(node.inputs[3]);
    // A mask repeated along the keys keeps stride 0; any other inner stride but 1 is copied.
    const Dims scores{shape[0], shape[1], shape[2], k.view.shape[2]};
    mask = ops::ExpandTo(raw, scores);
    if (mask.view.strides[3] > 1) mask = ops::ExpandTo(lowering.Contiguous(raw), scores);
  }
  lowering.AddStep(KernelId::kSdpa, {q, k, v, mask}, {out}, p);
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> AttentionKernels() {
  static const CpuKernel kernels[] = {{KernelId::kSdpa, SdpaStep, SdpaScratch, SdpaTakesRows, SdpaStoresRows}};
  return kernels;
}

std::span<const OpDef> AttentionOps() {
  static const std::vector<OpDef> rows = {
      {"sdpa",
       "softmax(scale q k^T + mask) v by blocks of keys, without storing the scores.",
       {"q", "k", "v", "mask?"},
       {{"scale", AttrType::kFloat, true, "factor on the scores, usually 1/sqrt(head size)"},
        {"causal", AttrType::kBool, false, "query i sees keys 0..i only"},
        {"precision", AttrType::kString, false,
         "of the products: fp32 (default), or bf16 or fp16, which mean fp32 where the processor does not multiply "
         "them"}},
       Section::kForward,
       InferSdpa,
       CostSdpa,
       LowerSdpa,
       Trait::kProduct},
  };
  return rows;
}

}  // namespace thresher
