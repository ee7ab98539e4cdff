// Operators that read or write where integers say: embedding, gather, index, index_put.
#include "thresher/kernels/index.h"

#include <algorithm>

#include "thresher/ops/common.h"

namespace thresher {
namespace {

using kernels::EmbeddingParams;
using kernels::GatherParams;
using kernels::IndexPutParams;

Status WantIndices(const OperandType& indices) {
  if (indices.dtype == DType::kI64 || indices.dtype == DType::kI32) return Status::Ok();
  return Unsupported("expected indices of i64 or i32, got " + ops::ToString(indices));
}

// What is read is what is written, besides the indices.
Cost CostIndex(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ops::MoveCost(c, outputs);
  for (size_t i = 1; i < c.inputs.size(); ++i) cost.bytes_read += static_cast<double>(ops::Bytes(c.inputs[i]));
  return cost;
}

// ---- embedding ----

Result<std::vector<TensorType>> InferEmbedding(const InferContext& c) {
  THRESHER_TRY(WantIndices(c.inputs[1]));
  const Dims& table = c.inputs[0].shape;
  if (table.size() != 2) return InvalidArgument("expected a table [rows, width], got " + ToString(table));
  Dims shape = c.inputs[1].shape;
  shape.push_back(table[1]);
  return ops::One(c.inputs[0].dtype, std::move(shape));
}

Status EmbeddingStep(const StepContext& c) {
  const Encoding blocks = c.as<EmbeddingParams>().blocks;
  if (IsBlocked(blocks)) return kernels::EmbeddingOfBlocks(blocks, c.in(0), c.in(1), c.out(), c.part, c.num_parts);
  return kernels::Embedding(c.in(0), c.in(1), c.out(), c.part, c.num_parts);
}

Status LowerEmbedding(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const std::optional<Encoding> blocks = graph.value(node.inputs[0]).constant.blocks;
  lowering.AddStep(KernelId::kEmbedding, {lowering.Ref(node.inputs[0]), lowering.Ref(node.inputs[1])}, {out},
                   EmbeddingParams{blocks.value_or(Encoding::kF32)});
  return Status::Ok();
}

// ---- gather ----

Result<std::vector<TensorType>> InferGather(const InferContext& c) {
  THRESHER_TRY(WantIndices(c.inputs[1]));
  const Dims& x = c.inputs[0].shape;
  const Dims& indices = c.inputs[1].shape;
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(c.attrs, "dim", 0), ops::Rank(c.inputs[0]), "dim"));
  bool fits = x.size() == indices.size();
  for (size_t i = 0; fits && i < x.size(); ++i) fits = static_cast<int>(i) == dim || indices[i] <= x[i];
  if (!fits) {
    return InvalidArgument("expected indices of x's rank and no larger than x but in dim " + std::to_string(dim) +
                           ", got x " + ToString(x) + " and indices " + ToString(indices));
  }
  return ops::One(c.inputs[0].dtype, indices);
}

Status GatherStep(const StepContext& c) {
  return kernels::Gather(c.in(0), c.as<GatherParams>().dim, c.in(1), c.out(), c.part, c.num_parts);
}

Status LowerGather(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const int rank = static_cast<int>(graph.value(node.inputs[0]).shape.size());
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(node.attrs, "dim", 0), rank, "dim"));
  lowering.AddStep(KernelId::kGather, {lowering.Ref(node.inputs[0]), lowering.Ref(node.inputs[1])}, {out},
                   GatherParams{dim});
  return Status::Ok();
}

// ---- index ----

Result<Dims> BroadcastIndices(std::span<const OperandType> indices) {
  Dims shape;
  for (const OperandType& index : indices) {
    THRESHER_TRY(WantIndices(index));
    THRESHER_ASSIGN(shape, ops::Broadcast(shape, index.shape));
  }
  return shape;
}

Result<std::vector<TensorType>> InferIndex(const InferContext& c) {
  const Dims& x = c.inputs[0].shape;
  const size_t n = c.inputs.size() - 1;
  if (n == 0 || n > x.size()) {
    return InvalidArgument("expected 1 to " + std::to_string(x.size()) + " index tensors for x " + ToString(x) +
                           ", got " + std::to_string(n));
  }
  THRESHER_ASSIGN(Dims shape, BroadcastIndices(c.inputs.subspan(1)));
  shape.insert(shape.end(), x.begin() + static_cast<std::ptrdiff_t>(n), x.end());
  return ops::One(c.inputs[0].dtype, std::move(shape));
}

Status IndexStep(const StepContext& c) {
  return kernels::IndexNd(c.in(0), c.operands + 1, c.num_inputs - 1, c.out(), c.part, c.num_parts);
}

Status LowerIndex(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  Dims shape;
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    THRESHER_ASSIGN(shape, ops::Broadcast(shape, graph.value(node.inputs[i]).shape));
  }
  std::vector<TensorRef> inputs = {lowering.Ref(node.inputs[0])};
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    inputs.push_back(ops::ExpandTo(lowering.Ref(node.inputs[i]), shape));
  }
  lowering.AddStep(KernelId::kIndex, std::move(inputs), {out});
  return Status::Ok();
}

// ---- index_put ----

Result<std::vector<TensorType>> InferIndexPut(const InferContext& c) {
  const OperandType& x = c.inputs[0];
  const OperandType& values = c.inputs[1];
  const size_t n = c.inputs.size() - 2;
  if (n == 0 || n > x.shape.size()) {
    return InvalidArgument("expected 1 to " + std::to_string(x.shape.size()) + " index tensors for x " +
                           ToString(x.shape) + ", got " + std::to_string(n));
  }
  THRESHER_ASSIGN(Dims shape, BroadcastIndices(c.inputs.subspan(2)));
  shape.insert(shape.end(), x.shape.begin() + static_cast<std::ptrdiff_t>(n), x.shape.end());
  THRESHER_ASSIGN(const Dims both, ops::Broadcast(shape, values.shape));
  if (values.dtype != x.dtype || both != shape) {
    return InvalidArgument("expected values of type " + std::string(Name(x.dtype)) + " that broadcast to " +
                           ToString(shape) + ", got " + ops::ToString(values));
  }
  if (x.dtype == DType::kBool && GetAttr<bool>(c.attrs, "accumulate", false)) {
    return Unsupported("expected numbers where values are accumulated, got " + ops::ToString(x));
  }
  return ops::One(x.dtype, x.shape);
}

Status IndexPutStep(const StepContext& c) {
  return kernels::IndexPut(c.operands + 1, c.num_inputs - 1, c.in(0), c.as<IndexPutParams>().accumulate, c.out(),
                           c.part, c.num_parts);
}

Status LowerIndexPut(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  lowering.AddCopy(lowering.Ref(node.inputs[0]), out);
  Dims shape;
  for (size_t i = 2; i < node.inputs.size(); ++i) {
    THRESHER_ASSIGN(shape, ops::Broadcast(shape, graph.value(node.inputs[i]).shape));
  }
  std::vector<TensorRef> inputs(1);
  for (size_t i = 2; i < node.inputs.size(); ++i) {
    inputs.push_back(ops::ExpandTo(lowering.Ref(node.inputs[i]), shape));
  }
  const Dims& x = graph.value(node.inputs[0]).shape;
  shape.insert(shape.end(), x.begin() + static_cast<std::ptrdiff_t>(node.inputs.size() - 2), x.end());
  inputs[0] = ops::ExpandTo(lowering.Ref(node.inputs[1]), shape);
  lowering.AddStep(KernelId::kIndexPut, std::move(inputs), {out},
                   IndexPutParams{GetAttr<bool>(node.attrs, "accumulate", false)});
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> IndexKernels() {
  static const CpuKernel kernels[] = {{KernelId::kEmbedding, EmbeddingStep},
                                      {KernelId::kGather, GatherStep},
                                      {KernelId::kIndex, IndexStep},
                                      {KernelId::kIndexPut, IndexPutStep}};
  return kernels;
}

std::span<const OpDef> IndexOps() {
  static const std::vector<OpDef> rows = {
      {"embedding",
       "Rows of a table; a negative or too large index is an error.",
       {"table", "indices"},
       {},
       Section::kForward,
       InferEmbedding,
       CostIndex,
       LowerEmbedding,
       Trait::kMoves,
       nullptr,
       nullptr,
       [](const Attrs&, size_t) { return std::pair<size_t, size_t>(0, 1); }},
      {"gather",
       "Elements picked along one dimension, as torch.gather.",
       {"x", "indices"},
       {{"dim", AttrType::kInt, true, "the dimension the indices run over"}},
       Section::kForward,
       InferGather,
       CostIndex,
       LowerGather,
       Trait::kMoves},
      {"index",
       "The first dimensions indexed by integer tensors broadcast together, as x[i, j].",
       {"x", "indices*"},
       {},
       Section::kForward,
       InferIndex,
       CostIndex,
       LowerIndex,
       Trait::kMoves},
      {"index_put",
       "x with x[i, j] = values, or += values, where integer tensors index its first dimensions.",
       {"x", "values", "indices*"},
       {{"accumulate", AttrType::kBool, false, "add instead of replacing"}},
       Section::kForward,
       InferIndexPut,
       CostIndex,
       LowerIndexPut},
  };
  return rows;
}

}  // namespace thresher
