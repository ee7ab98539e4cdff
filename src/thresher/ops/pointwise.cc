// Element-wise operators: one row per unary and binary kernel, where, cast.
#include "thresher/kernels/pointwise.h"

#include <algorithm>
#include <utility>

#include "thresher/ops/common.h"

namespace thresher {
namespace {

using kernels::BinaryOp;
using kernels::BinaryParams;
using kernels::UnaryOp;
using kernels::UnaryParams;

template <class Op>
Status WantSupported(Op op, const OperandType& operand) {
  if (kernels::Supports(op, ComputeType(operand.dtype))) return Status::Ok();
  std::string known;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (kernels::Supports(op, ComputeType(static_cast<DType>(i))))
      known += " " + std::string(Name(static_cast<DType>(i)));
  }
  return Unsupported("expected one of" + known + ", got " + ops::ToString(operand));
}

// The window of an operand, broadcast to the output.
TensorRef Operand(const Graph& graph, const Node& node, size_t i, Lowering& lowering) {
  return ops::ExpandTo(lowering.Ref(node.inputs[i]), graph.value(node.outputs[0]).shape);
}

// Of those whose results are floats.
constexpr bool Jumps(UnaryOp op) {
  return op == UnaryOp::kSign || op == UnaryOp::kFloor || op == UnaryOp::kCeil || op == UnaryOp::kRound ||
         op == UnaryOp::kTrunc;
}
constexpr bool Jumps(BinaryOp op) { return op >= BinaryOp::kFloorDivide; }

// ---- unary ----

Status UnaryStep(const StepContext& c) {
  kernels::Unary(c.as<UnaryParams>().op, c.in(0), c.out(), c.part, c.num_parts);
  return Status::Ok();
}

template <UnaryOp op>
Result<std::vector<TensorType>> InferUnary(const InferContext& c) {
  THRESHER_TRY(WantSupported(op, c.inputs[0]));
  return ops::One(kernels::ResultType(op, c.inputs[0].dtype), c.inputs[0].shape);
}

template <UnaryOp op>
Cost CostUnary(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, kernels::FlopsPerElement(op));
}

template <UnaryOp op>
Status LowerUnary(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  lowering.AddStep(KernelId::kUnary, {lowering.Ref(node.inputs[0])}, {out}, UnaryParams{op});
  return Status::Ok();
}

template <size_t i>
OpDef UnaryRow() {
  constexpr UnaryOp op = static_cast<UnaryOp>(i);
  return {kernels::Name(op),
          kernels::Doc(op),
          {"x"},
          {},
          Section::kForward,
          InferUnary<op>,
          CostUnary<op>,
          LowerUnary<op>,
          Trait::kUnary | Trait::kFuses | (Jumps(op) ? Trait::kJumps : Trait::kNone)};
}

// ---- binary ----

Status BinaryStep(const StepContext& c) {
  kernels::Binary(c.as<BinaryParams>().op, c.in(0), c.in(1), c.out(), c.part, c.num_parts);
  return Status::Ok();
}

template <BinaryOp op>
Result<std::vector<TensorType>> InferBinary(const InferContext& c) {
  if (c.inputs[0].dtype != c.inputs[1].dtype) {
    return InvalidArgument("expected two operands of one type, got " + ops::ToString(c.inputs[0]) + " and " +
                           ops::ToString(c.inputs[1]) + "; insert a cast");
  }
  THRESHER_TRY(WantSupported(op, c.inputs[0]));
  THRESHER_ASSIGN(Dims shape, ops::Broadcast(c.inputs[0].shape, c.inputs[1].shape));
  return ops::One(kernels::ResultType(op, c.inputs[0].dtype), std::move(shape));
}

template <BinaryOp op>
Cost CostBinary(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, kernels::FlopsPerElement(op));
}

template <BinaryOp op>
Status LowerBinary(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  lowering.AddStep(KernelId::kBinary, {Operand(graph, node, 0, lowering), Operand(graph, node, 1, lowering)}, {out},
                   BinaryParams{op});
  return Status::Ok();
}

template <size_t i>
OpDef BinaryRow() {
  constexpr BinaryOp op = static_cast<BinaryOp>(i);
  return {kernels::Name(op),
          kernels::Doc(op),
          {"a", "b"},
          {},
          Section::kForward,
          InferBinary<op>,
          CostBinary<op>,
          LowerBinary<op>,
          Trait::kBinary | Trait::kFuses | (Jumps(op) ? Trait::kJumps : Trait::kNone)};
}

// ---- where, cast ----

Result<std::vector<TensorType>> InferWhere(const InferContext& c) {
  if (c.inputs[0].dtype != DType::kBool) {
    return InvalidArgument("expected the condition as bool, got " + ops::ToString(c.inputs[0]));
  }
  if (c.inputs[1].dtype != c.inputs[2].dtype) {
    return InvalidArgument("expected two branches of one type, got " + ops::ToString(c.inputs[1]) + " and " +
                           ops::ToString(c.inputs[2]) + "; insert a cast");
  }
  THRESHER_ASSIGN(const Dims branches, ops::Broadcast(c.inputs[1].shape, c.inputs[2].shape));
  THRESHER_ASSIGN(Dims shape, ops::Broadcast(c.inputs[0].shape, branches));
  return ops::One(c.inputs[1].dtype, std::move(shape));
}

Cost CostMoving(const InferContext& c, std::span<const TensorType> outputs) {
  return ops::ElementwiseCost(c, outputs, 0);
}

Status WhereStep(const StepContext& c) {
  kernels::Where(c.in(0), c.in(1), c.in(2), c.out(), c.part, c.num_parts);
  return Status::Ok();
}

Status LowerWhere(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  lowering.AddStep(
      KernelId::kWhere,
      {Operand(graph, node, 0, lowering), Operand(graph, node, 1, lowering), Operand(graph, node, 2, lowering)}, {out});
  return Status::Ok();
}

Result<std::vector<TensorType>> InferCast(const InferContext& c) {
  const std::string name = GetAttr<std::string>(c.attrs, "dtype", "");
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) return Unsupported("expected dtype f32, bf16, f16, i64, i32 or bool, got \"" + name + "\"");
  return ops::One(*dtype, c.inputs[0].shape);
}

Status CastStep(const StepContext& c) {
  kernels::Cast(c.in(0), c.out(), c.part, c.num_parts);
  return Status::Ok();
}

// As the writer that a conversion to bf16 follows.
Taken CastTakesRows(Step& cast, int, StoredRows& rows) {
  const View &from = cast.operands[0].view, &to = cast.operands[1].view;
  const bool whole = !rows.given && to.dtype == DType::kBF16 && from.contiguous() && to.contiguous() &&
                     cast.operands[0].offset == 0 && to.size() == rows.rows * rows.columns &&
                     (rows.dense || rows.columns % kernels::kStoredColumns == 0);
  if (!whole) return Taken::kNot;
  rows.stride = rows.columns;
  return Taken::kWhole;
}

// What is read of it lies in bf16 already.
bool CastStoresRows(Step& cast, StoredRows& rows) {
  const View &from = cast.operands[0].view, &to = cast.operands[1].view;
  if (from.dtype != DType::kBF16 || to.dtype != DType::kF32 || from.rank == 0 || !from.contiguous() ||
      !to.contiguous()) {
    return false;
  }
  rows.columns = from.shape[from.rank - 1];
  rows.rows = from.size() / std::max<int64_t>(rows.columns, 1);
  rows.stride = rows.columns;
  rows.given = true;
  // Others count pairs.
  return cast.operands[1].offset == 0 && cast.operands[0].offset % 2 == 0;
}

Status LowerCast(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef x = lowering.Ref(node.inputs[0]);
  if (x.view.dtype == graph.value(node.outputs[0]).dtype) {
    lowering.Bind(node.outputs[0], x);
    return Status::Ok();
  }
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (!ops::Empty(out)) lowering.AddStep(KernelId::kCast, {x}, {out});
  return Status::Ok();
}

template <size_t... unary, size_t... binary>
std::vector<OpDef> MakeRows(std::index_sequence<unary...>, std::index_sequence<binary...>) {
  std::vector<OpDef> rows = {UnaryRow<unary>()..., BinaryRow<binary>()...};
  rows.push_back({"where",
                  "a where the condition holds, else b.",
                  {"condition", "a", "b"},
                  {},
                  Section::kForward,
                  InferWhere,
                  CostMoving,
                  LowerWhere,
                  Trait::kFuses});
  rows.push_back({"cast",
                  "The same values as another type; a float to an integer truncates, to bool is x != 0.",
                  {"x"},
                  {{"dtype", AttrType::kString, true, "f32, bf16, f16, i64, i32 or bool"}},
                  Section::kReshape,
                  InferCast,
                  CostMoving,
                  LowerCast,
                  Trait::kUnary});
  return rows;
}

}  // namespace

std::span<const CpuKernel> PointwiseKernels() {
  static const CpuKernel kernels[] = {{KernelId::kUnary, UnaryStep},
                                      {KernelId::kBinary, BinaryStep},
                                      {KernelId::kWhere, WhereStep},
                                      {KernelId::kCast, CastStep, nullptr, CastTakesRows, CastStoresRows}};
  return kernels;
}

std::span<const OpDef> PointwiseOps() {
  static const std::vector<OpDef> rows =
      MakeRows(std::make_index_sequence<static_cast<size_t>(UnaryOp::kRoundF16) + 1>(),
               std::make_index_sequence<static_cast<size_t>(BinaryOp::kFmod) + 1>());
  return rows;
}

}  // namespace thresher
