// Matrix products: linear (with a fused epilogue) and batched matmul.
#include "thresher/ops/linear.h"

#include <algorithm>
#include <tuple>

#include "thresher/base/precision.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_block.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

using ops::AddPack;
using ops::Empty;
using ops::One;
using ops::PackParams;

// No less than what each packed matrix takes, and without the rounding that keeps PackedSize from being a polynomial.
int64_t PackedRoom(int64_t k, int64_t n) { return k * (n + kernels::PackedColumns() - 1); }

// Packs `batch` matrices that lie batch_stride elements apart.
Status PackStep(const StepContext& c) {
  const auto& p = c.as<PackParams>();
  const int64_t packed_stride = kernels::PackedSize(p.k, p.n);
  for (int64_t b = 0; b < p.batch; ++b) {
    const float* const data = c.in(0).as<const float>() + p.first + b * p.batch_stride;
    const Weight matrix{data,         Encoding::kF32, p.k,       p.n, p.stride_k, p.stride_n, p.taps,
                        p.stride_tap, Encoding::kF32, p.winograd};
    kernels::PackWeight(Precision::kFp32, matrix, c.out().as<float>() + b * packed_stride, c.part, c.num_parts);
  }
  return Status::Ok();
}

// ---- linear ----

enum LinearOperand { kX, kWeight, kBias, kResidual, kWideFrom };

Result<std::vector<TensorType>> InferLinear(const InferContext& c) {
  for (size_t i = 0; i < 4; ++i) {
    static constexpr const char* kNames[] = {"x", "weight", "bias", "residual"};
    THRESHER_TRY(ops::WantFloat(c, i, kNames[i]));
  }
  THRESHER_TRY(ops::WantFloatLike0(c, kResidual, "residual"));
  if (c.inputs[kWideFrom].present) THRESHER_TRY(ops::CheckWideFrom(c.inputs[kWideFrom]));
  THRESHER_TRY(ops::CheckProductAttrs(c.attrs));
  THRESHER_ASSIGN(TensorType out, ops::ProductType(c.attrs, c.inputs[kX], c.inputs[kWeight], c.inputs[kBias]));
  if (c.inputs[kResidual].present && c.inputs[kResidual].shape != out.shape) {
    return InvalidArgument("expected residual of the output's shape " + ToString(out.shape) + ", got " +
                           ToString(c.inputs[kResidual].shape));
  }
  return One(out.dtype, std::move(out.shape));
}

Cost CostLinear(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ProductCost(c, outputs, (c.inputs[kBias].present ? 1 : 0) + (c.inputs[kResidual].present ? 1 : 0));
}

struct GemmParams {
  int64_t m, n, k, lda, ldr;
  kernels::Activation activation;
  bool residual_first;
  Precision precision;
  kernels::RowForm form;  // of x; kF32: as it is
  int64_t row_bytes;      // of converted x from one row to the next, if it is not that form's
  bool wide;              // the last operand is the first row that is multiplied as bf16
  kernels::Gate gate;     // n is the columns of one of both products
  bool stores_blocks;     // the result is rows in blocks
  kernels::Blocking blocking;

  static constexpr auto Sizes() {
    return std::tuple(&GemmParams::m, &GemmParams::n, &GemmParams::k, &GemmParams::lda, &GemmParams::ldr,
                      &GemmParams::blocking);
  }
  friend bool operator==(const GemmParams&, const GemmParams&) = default;
};

// What both forms of a product take alike: operands are the rows, the packed weight, the bias and the residual.
template <class Args>
Args ProductArgs(const StepContext& c, const GemmParams& p) {
  Args args;
  args.m = p.m;
  args.n = p.n;
  args.k = p.k;
  args.packed_b = c.in(1).data;
  args.c = c.out().as<float>();
  args.ldc = p.n;
  args.bias = c.in(2).as<const float>();
  args.residual = c.in(3).as<const float>();
  args.ldr = p.ldr;
  args.activation = p.activation;
  args.residual_first = p.residual_first;
  args.blocking = p.blocking;
  return args;
}

kernels::GemmArgs PackedArgs(const StepContext& c) {
  const auto& p = c.as<GemmParams>();
  auto args = ProductArgs<kernels::GemmArgs>(c, p);
  args.a = c.in(0).as<const float>();
  args.lda = p.lda;
  args.precision = p.precision;
  return args;
}

Status PackedStep(const StepContext& c) {
  kernels::Gemm(PackedArgs(c), c.scratch, c.part, c.num_parts);
  return Status::Ok();
}

size_t PackedScratch(const StepContext& c) { return kernels::GemmScratchBytes(PackedArgs(c)); }

bool PackedLines(const Step& product, StepLines& lines) {
  const auto& p = ops::ParamsOf<GemmParams>(product);
  constexpr int64_t kBytes = sizeof(float);
  lines = {.positions = p.m,
           .x_line = p.lda * kBytes,
           .added_line = p.ldr * kBytes,
           .line = p.n * kBytes,
           .added = kResidual};
  return true;
}

void CutRows(void* params, const LineCut& cut) { static_cast<GemmParams*>(params)->m = cut.positions; }

// Rows in another form in one piece of memory: the rows, then what belongs to each of them.
struct ConvertedRows {
  ConvertedRows(const View& view, const GemmParams& p)
      : rows(static_cast<std::byte*>(view.data)),
        scale(reinterpret_cast<float*>(rows + p.m * kernels::RowBytes(p.form, p.k))),
        zero(reinterpret_cast<int32_t*>(scale + p.m)) {}

  static int64_t BytesOfRow(const GemmParams& p) {
    const bool scaled = kernels::HasRowScales(p.form);
    return kernels::RowBytes(p.form, p.k) + (scaled ? static_cast<int64_t>(sizeof(float) + sizeof(int32_t)) : 0);
  }
  static int64_t Bytes(const GemmParams& p) { return p.m * BytesOfRow(p); }

  std::byte* rows;
  float* scale;
  int32_t* zero;
};

// Where the second of two products of n columns begins (ops::ProductColumns).
int64_t SecondColumn(int64_t n) {
  const int64_t panel = kernels::PackedColumns();
  return (n + panel - 1) / panel * panel;
}

// The first row that is multiplied as bf16, where that is the step's operand `operand`.
int64_t WideFrom(const StepContext& c, const GemmParams& p, int operand) {
  return p.wide ? *c.in(operand).as<const int32_t>() : kernels::kNoRow;
}

Status ConvertStep(const StepContext& c) {
  const auto& p = c.as<GemmParams>();
  const ConvertedRows converted(c.out(), p);
  kernels::ConvertRowsArgs args;
  args.form = p.form;
  args.m = p.m;
  args.k = p.k;
  args.x = c.in(0).as<const float>();
  args.x_bf16 = c.in(0).dtype == DType::kBF16;
  args.ldx = p.lda;
  args.rows = converted.rows;
  args.scale = converted.scale;
  args.zero = converted.zero;
  args.wide_from = WideFrom(c, p, 1);
  kernels::ConvertRows(args, c.part, c.num_parts);
  return Status::Ok();
}

bool ConvertLines(const Step& convert, StepLines& lines) {
  const auto& p = ops::ParamsOf<GemmParams>(convert);
  lines = {.positions = p.m,
           .x_line = p.lda * static_cast<int64_t>(SizeOf(convert.operands[kX].view.dtype)),
           .line = ConvertedRows::BytesOfRow(p),
           .result_inside = kernels::HasRowScales(p.form)};
  return ops::HasStoredRows(p.form);
}

Status DotStep(const StepContext& c) {
  const auto& p = c.as<GemmParams>();
  const ConvertedRows converted(c.in(0), p);
  auto args = ProductArgs<kernels::GemmDotArgs>(c, p);
  args.form = p.form;
  args.precision = p.precision;
  args.rows = converted.rows;
  args.row_bytes = p.row_bytes;
  args.scale = converted.scale;
  args.zero = converted.zero;
  args.wide_from = WideFrom(c, p, kWideFrom);
  args.gate = p.gate;
  if (args.bias != nullptr && p.gate != kernels::Gate::kNone) args.second_bias = args.bias + SecondColumn(p.n);
  args.stores_blocks = p.stores_blocks;
  args.ahead = c.ahead;
  ops::SetRows(c, args);
  kernels::GemmDot(args, c.scratch, c.part, c.num_parts);
  return Status::Ok();
}

size_t DotScratch(const StepContext& c) {
  const auto& p = c.as<GemmParams>();
  auto args = ProductArgs<kernels::GemmDotArgs>(c, p);
  args.form = p.form;
  args.precision = p.precision;
  if (p.wide) args.wide_from = 0;
  args.gate = p.gate;
  return kernels::GemmDotScratchBytes(args);
}

bool DotLines(const Step& product, StepLines& lines) {
  const auto& p = ops::ParamsOf<GemmParams>(product);
  const View& out = product.operands.back().view;
  lines = {.positions = p.m,
           .x_line = p.row_bytes != 0 ? p.row_bytes : ConvertedRows::BytesOfRow(p),
           .added_line = p.ldr * static_cast<int64_t>(sizeof(float)),
           .line = ops::ResultRowBytes(out, p.n),
           .added = kResidual,
           .x_inside = kernels::HasRowScales(p.form),
           .speed = ops::TimesFloats(p.form)};
  return ops::HasStoredRows(p.form) && p.gate == kernels::Gate::kNone;
}

// The rows of bf16 that it makes are stored by who makes x; or x lies in rows of another stride.
Taken ConvertTakesRows(Step& convert, int, StoredRows& rows) {
  auto& p = ops::ParamsOf<GemmParams>(convert);
  if (rows.place != nullptr) {
    convert.operands[0] = *rows.place;
    p.lda = rows.stride;
    return Taken::kRead;
  }
  const bool whole = p.form == kernels::RowForm::kBF16;
  const bool same = ops::HasStoredRows(p.form) && p.lda == p.k && p.m == rows.rows && p.k == rows.columns &&
                    convert.operands[0].offset == 0;
  if (!same) return Taken::kNot;
  if (!whole) return Taken::kRead;
  if (rows.given) return Taken::kWhole;
  rows.stride = ops::RowStride(p.k);
  return Taken::kWhole;
}

bool DotStoresRows(Step& product, StoredRows& rows) {
  const auto& p = ops::ParamsOf<GemmParams>(product);
  return ops::HasStoredRows(p.form) && ops::StoresResultAsRows(product, p.m, p.n, rows);
}

// As its residual; or given ones in place of those that would be converted.
Taken DotTakesRows(Step& product, int buffer, StoredRows& rows) {
  auto& p = ops::ParamsOf<GemmParams>(product);
  if (product.operands[kX].buffer == buffer) {
    if (rows.place != nullptr) {
      product.operands[kX] = *rows.place;
      p.row_bytes = rows.stride * static_cast<int64_t>(sizeof(uint16_t));
    }
    const bool suits = rows.given && p.form == kernels::RowForm::kBF16 && kernels::SuitsAsRows(p.k, p.n);
    return suits ? Taken::kRead : Taken::kNot;
  }
  const bool same = ops::HasStoredRows(p.form) && p.m == rows.rows && p.n == rows.columns;
  return same ? ops::TakesResidualAsRows(product, buffer, p.ldr, rows) : Taken::kNot;
}

bool DotTakesGate(Step& product, const GatedResult& gated) {
  auto& p = ops::ParamsOf<GemmParams>(product);
  if (gated.place != nullptr) {
    p.n = gated.columns;
    p.gate = gated.gate;
    p.activation = gated.activation;
    product.operands.back() = *gated.place;
    return true;
  }
  return kernels::TakesGate(p.form) && p.gate == kernels::Gate::kNone && p.m == gated.rows &&
         gated.second == SecondColumn(gated.columns) && p.n == gated.second + gated.columns &&
         p.activation == kernels::Activation::kNone && product.operands[kResidual].buffer < 0;
}

bool DotTakesConversion(Step& product, const Step& conversion) {
  auto& p = ops::ParamsOf<GemmParams>(product);
  if (conversion.kernel != KernelId::kConvertRows || p.form != kernels::RowForm::kBlocks) return false;
  const auto& to = ops::ParamsOf<GemmParams>(conversion);
  const bool same = to.form == p.form && to.m == p.m && to.k == p.n && to.lda == p.n && to.wide == p.wide;
  if (!same || (p.wide && product.operands[kWideFrom].buffer != conversion.operands[1].buffer)) return false;
  p.stores_blocks = true;
  product.operands.back() = conversion.operands.back();
  return true;
}

// x in the form p.form, converted once for all products that want it. `wide_from`: the operand, if p.wide.
TensorRef Converted(ValueId id, const TensorRef& x, const GemmParams& p, ValueId wide_from, Lowering& lowering) {
  TensorRef& kept = lowering.Derived(id, p.wide ? ops::kDerivedWide + wide_from : static_cast<int>(p.form));
  if (kept.buffer >= 0) return kept;
  const int64_t bytes = ConvertedRows::Bytes(p);
  kept = lowering.AllocateTemporary(DType::kF32, {(bytes + 3) / static_cast<int64_t>(sizeof(float))});
  std::vector<TensorRef> operands = {x};
  if (p.wide) operands.push_back(lowering.Ref(wide_from));
  Step& step = lowering.AddStep(KernelId::kConvertRows, std::move(operands), {kept}, p);
  step.name = p.form == kernels::RowForm::kBF16 ? "to_bf16" : p.form == kernels::RowForm::kF16 ? "to_fp16" : "quantize";
  step.section = Section::kReshape;
  step.flops = 0;
  step.bytes = static_cast<double>(bytes) + static_cast<double>(sizeof(float)) * static_cast<double>(p.m * p.k);
  return kept;
}

Status LowerLinear(const Graph&, const Node& node, Lowering& lowering) {
  ops::Product product{node.inputs[kX], {node.inputs[kWeight]}, {}, node.inputs[kResidual], node.inputs[kWideFrom]};
  if (node.inputs[kBias] != kNoValue) product.biases = {node.inputs[kBias]};
  return ops::LowerProduct(product, node.attrs, lowering.Allocate(node.outputs[0]), lowering);
}

// ---- matmul ----

Result<std::vector<TensorType>> InferMatmul(const InferContext& c) {
  THRESHER_TRY(ops::WantFloat(c, 0, "a"));
  THRESHER_TRY(ops::WantFloat(c, 1, "b"));
  const Dims& a = c.inputs[0].shape;
  const Dims& b = c.inputs[1].shape;
  if (a.size() < 2 || b.size() < 2 || a.back() != b[b.size() - 2]) {
    return InvalidArgument("expected a [..., M, K] and b [..., K, N], got " + ToString(a) + " and " + ToString(b));
  }
  THRESHER_ASSIGN(Dims out, ops::Broadcast(Dims(a.begin(), a.end() - 2), Dims(b.begin(), b.end() - 2)));
  out.push_back(a[a.size() - 2]);
  out.push_back(b.back());
  return One(c.inputs[0].dtype, std::move(out));
}

Cost CostMatmul(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 2 * static_cast<double>(c.inputs[0].shape.back()));
}

struct MatmulParams {
  int64_t batch, m, n, k, lda, a_batch_stride;
  bool shared_b;  // one matrix for the whole batch

  static constexpr auto Sizes() {
    return std::tuple(&MatmulParams::batch, &MatmulParams::m, &MatmulParams::n, &MatmulParams::k, &MatmulParams::lda,
                      &MatmulParams::a_batch_stride);
  }
  friend bool operator==(const MatmulParams&, const MatmulParams&) = default;
};

// One product of the batch, without its matrices.
kernels::GemmArgs BatchedArgs(const MatmulParams& p) { return ops::FloatProduct(p.m, p.n, p.k, p.lda); }

Status BatchedStep(const StepContext& c) {
  const auto& p = c.as<MatmulParams>();
  kernels::GemmArgs args = BatchedArgs(p);
  // Whole products a thread where there are enough of them, else each product is shared.
  const bool share = p.batch < c.num_parts;
  const int64_t begin = share ? 0 : p.batch * c.part / c.num_parts;
  const int64_t end = share ? p.batch : p.batch * (c.part + 1) / c.num_parts;
  const int64_t packed_stride = p.shared_b ? 0 : kernels::PackedSize(p.k, p.n);
  for (int64_t b = begin; b < end; ++b) {
    args.a = c.in(0).as<const float>() + b * p.a_batch_stride;
    args.packed_b = c.in(1).as<const float>() + b * packed_stride;
    args.c = c.out().as<float>() + b * p.m * p.n;
    kernels::Gemm(args, c.scratch, share ? c.part : 0, share ? c.num_parts : 1);
  }
  return Status::Ok();
}

size_t BatchedScratch(const StepContext& c) { return kernels::GemmScratchBytes(BatchedArgs(c.as<MatmulParams>())); }

// The window [batch, rows, cols] of an operand whose leading dimensions are broadcast to `lead`; a copy where the
// leading dimensions have no common stride.
TensorRef AsBatch(const TensorRef& ref, const Dims& lead, bool inner_contiguous, Lowering& lowering) {
  Dims shape = lead;
  const View& v = ref.view;
  shape.push_back(v.shape[v.rank - 2]);
  shape.push_back(v.shape[v.rank - 1]);
  TensorRef full = ops::ExpandTo(ref, shape);
  const auto collapsible = [&](const View& view) {
    if (inner_contiguous && view.shape[view.rank - 1] > 1 && view.strides[view.rank - 1] != 1) return false;
    int64_t expected = -1;
    for (int i = view.rank - 3; i >= 0; --i) {
      if (view.shape[i] == 1) continue;
      if (expected >= 0 && view.strides[i] != expected) return false;
      expected = view.strides[i] * view.shape[i];
    }
    return true;
  };
  if (!collapsible(full.view)) full = lowering.Contiguous(full);
  return full;
}

Status LowerMatmul(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (Empty(out)) return Status::Ok();
  const Dims& shape = graph.value(node.outputs[0]).shape;
  Dims lead = shape;
  lead.resize(shape.size() - 2);
  if (!lowering.target().packs_weights()) {
    const TensorRef a = AsBatch(lowering.Ref(node.inputs[0]), lead, false, lowering);
    return ops::LowerStoredMatmul(a, AsBatch(lowering.Ref(node.inputs[1]), lead, false, lowering), out, lowering);
  }
  const TensorRef a = AsBatch(lowering.Ref(node.inputs[0]), lead, true, lowering);
  MatmulParams p{};
  p.batch = NumElements(lead);
  p.m = shape[shape.size() - 2];
  p.n = shape.back();
  p.k = a.view.shape[a.view.rank - 1];
  p.lda = a.view.shape[a.view.rank - 2] == 1 ? p.k : a.view.strides[a.view.rank - 2];
  p.a_batch_stride = ops::BatchStride(a.view);
  TensorRef packed;
  p.shared_b = true;
  if (graph.is_constant(node.inputs[1]) && graph.value(node.inputs[1]).shape.size() == 2) {
    packed = lowering.PackedWeight({node.inputs[1]}, false);
  } else {
    const TensorRef raw = lowering.Ref(node.inputs[1]);
    int64_t matrices = 1;
    for (int i = 0; i < raw.view.rank - 2; ++i) matrices *= raw.view.shape[i];
    p.shared_b = matrices == 1;
    const TensorRef b = p.shared_b ? raw : AsBatch(raw, lead, false, lowering);
    const int r = b.view.rank;
    packed = AddPack(b,
                     {p.k, p.n, b.view.strides[r - 2], b.view.strides[r - 1], p.shared_b ? 1 : p.batch,
                      p.shared_b ? 0 : ops::BatchStride(b.view)},
                     lowering);
  }
  lowering.AddStep(KernelId::kBatchedProduct, {a, packed}, {out}, p);
  return Status::Ok();
}

}  // namespace

namespace ops {

const std::vector<AttrSpec>& ProductAttrs() {
  static const std::vector<AttrSpec> attrs = {
      {"layout", AttrType::kString, false, "how the weight is stored: \"nk\" ([out, in], default) or \"kn\""},
      {"activation", AttrType::kString, false, "none, relu, gelu, gelu_tanh, silu, tanh, sigmoid, relu6 or hardswish"},
      {"residual_first", AttrType::kBool, false, "a residual is added before the activation; default false"},
      {"precision", AttrType::kString, false,
       "of weights and arithmetic: fp32, bf16, fp16, int8, int8_weight or int4_weight; default: as the weight is "
       "stored"}};
  return attrs;
}

Status CheckWideFrom(const OperandType& type) {
  if (type.dtype == DType::kI32 && type.shape == Dims{1}) return Status::Ok();
  return InvalidArgument("expected wide_from i32 [1], got " + ToString(type.dtype, type.shape));
}

Status CheckProductAttrs(const Attrs& attrs) {
  const std::string layout = GetAttr<std::string>(attrs, "layout", "nk");
  if (layout != "nk" && layout != "kn") {
    return InvalidArgument("expected layout \"nk\" ([out, in], torch's) or \"kn\", got \"" + layout + "\"");
  }
  const std::string activation = GetAttr<std::string>(attrs, "activation", "none");
  if (!kernels::ParseActivation(activation)) return Unsupported("activation \"" + activation + "\" is not known");
  const std::string precision = GetAttr<std::string>(attrs, "precision", "fp32");
  if (!ParsePrecision(precision)) return Unsupported("precision \"" + precision + "\" is not known");
  return Status::Ok();
}

TensorRef AddPack(const TensorRef& b, const PackParams& params, Lowering& lowering) {
  const TensorRef packed = lowering.AllocateTemporary(DType::kF32, {params.batch * PackedRoom(params.k, params.n)});
  Step& step = lowering.AddStep(KernelId::kPack, {b}, {packed}, params);
  step.name = "pack";
  step.section = Section::kReshape;
  step.flops = 0;
  step.bytes = 2.0 * static_cast<double>(sizeof(float)) * static_cast<double>(params.batch * params.k * params.n);
  return packed;
}

Result<TensorType> ProductType(const Attrs& attrs, const OperandType& x, const OperandType& weight,
                               const OperandType& bias) {
  const Dims& w = weight.shape;
  const bool nk = GetAttr<std::string>(attrs, "layout", "nk") == "nk";
  if (w.size() != 2 || x.shape.empty() || x.shape.back() != (nk ? w[1] : w[0])) {
    return InvalidArgument("expected x [..., K] and weight " + std::string(nk ? "[N, K]" : "[K, N]") + ", got x " +
                           thresher::ToString(x.shape) + " and weight " + thresher::ToString(w));
  }
  if (weight.blocks && (!nk || attrs.count("precision") > 0)) {
    return Unsupported("expected layout \"nk\" and no precision for a weight in " + std::string(Name(*weight.blocks)) +
                       ", which is multiplied as it is stored, got " + (nk ? "a precision" : "\"kn\""));
  }
  TensorType out{x.dtype, x.shape};
  out.shape.back() = nk ? w[0] : w[1];
  if (bias.present && bias.shape != Dims{out.shape.back()}) {
    return InvalidArgument("expected bias [" + std::to_string(out.shape.back()) + "], got " +
                           thresher::ToString(bias.shape));
  }
  return out;
}

Cost ProductCost(const InferContext& c, std::span<const TensorType> outputs, int added) {
  const bool activated = GetAttr<std::string>(c.attrs, "activation", "none") != "none";
  return ElementwiseCost(c, outputs, 2 * static_cast<double>(c.inputs[0].shape.back()) + added + (activated ? 1 : 0));
}

std::vector<int64_t> ProductColumns(const std::vector<int64_t>& n, const Target& target) {
  const int64_t panel = target.packs_weights() ? kernels::PackedColumns() : 1;
  std::vector<int64_t> columns = {0};
  for (size_t i = 0; i < n.size(); ++i) {
    columns.push_back(columns.back() + (i + 1 < n.size() ? (n[i] + panel - 1) / panel * panel : n[i]));
  }
  return columns;
}

int64_t BatchStride(const View& view) {
  for (int i = view.rank - 3; i >= 0; --i) {
    if (view.shape[i] != 1) return view.strides[i];
  }
  return 0;
}

Precision PrecisionOf(const Product& product, const Attrs& attrs, const Graph& graph) {
  if (!graph.is_constant(product.weights[0])) return Precision::kFp32;
  const Precision stored = StoredPrecision(StoredAs(graph.value(product.weights[0])));
  if (IsBlocked(stored)) return stored;
  return ParsePrecision(GetAttr<std::string>(attrs, "precision", std::string(Name(stored)))).value();
}

int64_t RowStride(int64_t columns) {
  return kernels::RowBytes(kernels::RowForm::kBF16, columns) / static_cast<int64_t>(sizeof(uint16_t));
}

bool StoresResultAsRows(Step& writer, int64_t m, int64_t n, StoredRows& rows) {
  TensorRef& out = writer.operands[static_cast<size_t>(writer.num_inputs)];
  if (rows.place != nullptr) {
    out = *rows.place;
    return true;
  }
  rows.rows = m;
  rows.columns = n;
  rows.stride = RowStride(n);
  rows.dense = n % 2 == 0;
  // The second half of a last pair has to be zeros.
  const bool filled = n % 2 == 0 || rows.stride % kernels::kStoredColumns == 0;
  return filled && out.offset == 0 && out.view.size() == m * n;
}

Taken TakesResidualAsRows(Step& product, int buffer, int64_t& ldr, StoredRows& rows) {
  constexpr size_t kPlace = 3;
  TensorRef& residual = product.operands[kPlace];
  if (rows.place != nullptr) {
    residual = *rows.place;
    ldr = rows.stride / 2;
    return Taken::kRead;
  }
  for (size_t i = 0; i < static_cast<size_t>(product.num_inputs); ++i) {
    if (i != kPlace && product.operands[i].buffer == buffer) return Taken::kNot;
  }
  return residual.offset == 0 && ldr == rows.columns && rows.stride % 2 == 0 ? Taken::kRead : Taken::kNot;
}

int64_t ResultRowBytes(const View& out, int64_t columns) {
  const int64_t elements = out.dtype == DType::kBF16 ? out.strides[0] : columns;
  return elements * static_cast<int64_t>(SizeOf(out.dtype));
}

double TimesFloats(kernels::RowForm form) {
  const double by_vectors = form == kernels::RowForm::kInt8 ? 4 : 2;
  constexpr int kUnitRows = 32;  // of a matrix unit's tiles
  return kernels::TileRows(form) == kUnitRows ? 4 * by_vectors : by_vectors;
}

void SetRows(const StepContext& c, kernels::GemmDotArgs& args) {
  args.stores_bf16 = c.out().dtype == DType::kBF16;
  if (args.stores_bf16) args.ldc = c.out().strides[0] / 2;
  args.residual_bf16 = c.in(3).dtype == DType::kBF16;
}

TensorRef RowsInBlocks(ValueId id, const TensorRef& x, int64_t m, int64_t k, int64_t lda, Lowering& lowering) {
  GemmParams p{};
  p.m = m;
  p.k = k;
  p.lda = lda;
  p.form = kernels::RowForm::kBlocks;
  return Converted(id, x, p, kNoValue, lowering);
}

Status LowerProduct(const Product& product, const Attrs& attrs, const TensorRef& out, Lowering& lowering) {
  if (Empty(out)) return Status::Ok();
  if (!lowering.target().packs_weights()) return LowerStoredProduct(product, attrs, out, lowering);
  const Graph& graph = lowering.graph();
  const bool nk = GetAttr<std::string>(attrs, "layout", "nk") == "nk";
  const TensorRef x = RowsOrCopy(lowering.Ref(product.x), lowering);
  std::vector<int64_t> widths;
  widths.reserve(product.weights.size());
  for (const ValueId id : product.weights) widths.push_back(graph.value(id).shape[nk ? 0 : 1]);
  const std::vector<int64_t> columns = ProductColumns(widths, lowering.target());
  GemmParams p{};
  p.k = graph.value(product.x).shape.back();
  p.n = columns.back();
  int64_t cols;
  AsRows(x.view, &p.m, &cols, &p.lda);
  p.activation = kernels::ParseActivation(GetAttr<std::string>(attrs, "activation", "none")).value();
  p.residual_first = GetAttr<bool>(attrs, "residual_first", false);
  const bool constant = graph.is_constant(product.weights[0]);
  p.precision = PrecisionOf(product, attrs, graph);
  // How products with weights in blocks are cut is not chosen.
  const int number = IsBlocked(p.precision) ? -1 : lowering.AddProduct(p.precision, p.m, p.n, p.k);
  p.form = kernels::RowForm::kBlocks;
  if (number >= 0) {
    p.blocking = lowering.product(number).blocking;
    p.form = lowering.product(number).form;
  }
  p.wide = p.form == kernels::RowForm::kBlocks && product.wide_from != kNoValue && kernels::WidensBlocks();
  TensorRef weight;
  if (constant) {
    weight = lowering.PackedWeight(product.weights, nk, p.precision);
  } else {
    const TensorRef raw = lowering.Ref(product.weights[0]);
    const int64_t s0 = raw.view.strides[0], s1 = raw.view.strides[1];
    weight = AddPack(raw, {p.k, p.n, nk ? s1 : s0, nk ? s0 : s1, 1, 0}, lowering);
  }
  TensorRef bias;
  if (product.biases.size() == 1) {
    bias = lowering.Contiguous(lowering.Ref(product.biases[0]));
  } else if (!product.biases.empty()) {
    std::vector<float> joined(static_cast<size_t>(p.n), 0.0f);
    for (size_t i = 0; i < widths.size(); ++i) {
      THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(graph.value(product.biases[i]).constant));
      std::copy_n(static_cast<const float*>(graph.value(product.biases[i]).constant.data), widths[i],
                  joined.begin() + columns[i]);
    }
    bias = lowering.AddConstant(DType::kF32, {p.n}, joined);
  }
  TensorRef residual = lowering.Ref(product.residual);
  if (residual.buffer >= 0) {
    int64_t rows;
    residual = RowsOrCopy(residual, lowering);
    AsRows(residual.view, &rows, &cols, &p.ldr);
  }
  const bool as_is = p.form == kernels::RowForm::kF32;
  const TensorRef rows = as_is ? x : Converted(product.x, x, p, product.wide_from, lowering);
  const KernelId kernel = as_is ? KernelId::kPackedProduct : KernelId::kDotProduct;
  std::vector<TensorRef> operands = {rows, weight, bias, residual};
  if (p.wide) operands.push_back(lowering.Ref(product.wide_from));
  lowering.AddStep(kernel, std::move(operands), {out}, p).product = number;
  return Status::Ok();
}

}  // namespace ops

std::span<const CpuKernel> LinearKernels() {
  static const CpuKernel kernels[] = {{KernelId::kPack, PackStep},
                                      {.id = KernelId::kConvertRows,
                                       .run = ConvertStep,
                                       .takes_rows = ConvertTakesRows,
                                       .lines = ConvertLines,
                                       .cut = CutRows},
                                      {.id = KernelId::kPackedProduct,
                                       .run = PackedStep,
                                       .scratch = PackedScratch,
                                       .lines = PackedLines,
                                       .cut = CutRows},
                                      {.id = KernelId::kDotProduct,
                                       .run = DotStep,
                                       .scratch = DotScratch,
                                       .takes_rows = DotTakesRows,
                                       .stores_rows = DotStoresRows,
                                       .takes_gate = DotTakesGate,
                                       .takes_conversion = DotTakesConversion,
                                       .replaced = kResidual,
                                       .lines = DotLines,
                                       .cut = CutRows},
                                      {KernelId::kBatchedProduct, BatchedStep, BatchedScratch}};
  return kernels;
}

std::span<const OpDef> LinearOps() {
  static const std::vector<OpDef> rows = {
      {"linear",
       "act(x W + bias) + residual over the last dimension of x. Rows from wide_from (i32 [1]) on may be multiplied by "
       "weights in blocks as bf16.",
       {"x", "weight", "bias?", "residual?", "wide_from?"},
       ops::ProductAttrs(),
       Section::kForward,
       InferLinear,
       CostLinear,
       LowerLinear,
       Trait::kProduct,
       nullptr,
       [](const Attrs&, size_t) { return std::pair<size_t, size_t>(kWeight, kBias); },
       [](const Attrs&, size_t) { return std::pair<size_t, size_t>(kWeight, kBias); }},
      {"matmul",
       "Matrix product of the last two dimensions; leading ones broadcast.",
       {"a", "b"},
       {},
       Section::kForward,
       InferMatmul,
       CostMatmul,
       LowerMatmul,
       Trait::kProduct},
  };
  return rows;
}

}  // namespace thresher
