// Operators that move no data where strides can say it: reshape, permute, expand, slice, select, barrier; and cat,
// which does.
#include <algorithm>
#include <utility>

#include "thresher/kernels/copy.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

using ops::One;
using ops::ShapeOf;

// ---- reshape ----

Result<std::vector<TensorType>> InferReshape(const InferContext& c) {
  Dims shape = GetAttr<std::vector<int64_t>>(c.attrs, "shape", {});
  const int64_t total = NumElements(c.inputs[0].shape);
  int64_t known = 1;
  int64_t without_zeros = 1;  // beside a size of 0 the others may be large, but their product must be a number
  int64_t* unknown = nullptr;
  bool legal = true;
  for (int64_t& d : shape) {
    if (d == -1 && unknown == nullptr) {
      unknown = &d;
    } else if (d < 0 || (d > 0 && __builtin_mul_overflow(without_zeros, d, &without_zeros))) {
      legal = false;
    } else {
      known *= d;
    }
  }
  if (legal && unknown != nullptr) {
    legal = known > 0 && total % known == 0;
    if (legal) {
      *unknown = total / known;
      known = total;
    }
  }
  if (!legal || known != total) {
    return InvalidArgument("expected a shape of " + std::to_string(total) + " elements for x " +
                           ToString(c.inputs[0].shape) + ", got " +
                           ToString(GetAttr<std::vector<int64_t>>(c.attrs, "shape", {})));
  }
  return One(c.inputs[0].dtype, std::move(shape));
}

// Strides for `shape` over the memory of `view`, or false when a copy is needed. Dimensions of `view` that follow each
// other without a hole form a block; every block must be cut or merged on its own.
bool StridesForReshape(const View& view, const Dims& shape, int64_t* strides) {
  if (view.size() == 0) {
    const Dims dense = ContiguousStrides(shape);
    std::copy(dense.begin(), dense.end(), strides);
    return true;
  }
  int to = static_cast<int>(shape.size()) - 1;
  int64_t block = 1;      // elements of the current block of `view`
  int64_t block_new = 1;  // elements of `shape` placed in it
  int64_t base = view.rank > 0 ? view.strides[view.rank - 1] : 1;
  for (int from = view.rank - 1; from >= 0; --from) {
    block *= view.shape[from];
    const bool ends = from == 0 || (view.shape[from - 1] != 1 && view.strides[from - 1] != block * base);
    if (!ends) continue;
    while (to >= 0 && (block_new < block || shape[static_cast<size_t>(to)] == 1)) {
      strides[to] = block_new * base;
      block_new *= shape[static_cast<size_t>(to)];
      --to;
    }
    if (block_new != block) return false;
    if (from > 0) {
      base = view.strides[from - 1];
      block = block_new = 1;
    }
  }
  for (; to >= 0; --to) strides[to] = block_new * base;  // only sizes of 1 are left
  return true;
}

// Not where it cuts the last dimension or regroups the others, but merges neither with the other.
bool ReshapeCopiesRows(const InferContext& c, std::span<const TensorType> outputs) {
  const Dims& from = c.inputs[0].shape;
  const Dims& to = outputs[0].shape;
  if (from.empty()) return false;
  int64_t columns = 1;
  for (size_t i = to.size(); i-- > 0 && columns < from.back();) columns *= to[i];
  return columns != from.back();
}

Status LowerReshape(const Graph& graph, const Node& node, Lowering& lowering) {
  const Dims& shape = graph.value(node.outputs[0]).shape;
  TensorRef x = lowering.Ref(node.inputs[0]);
  TensorRef out = x;
  if (!StridesForReshape(x.view, shape, out.view.strides)) {
    out = lowering.Contiguous(x);
    StridesForReshape(out.view, shape, out.view.strides);
  }
  out.view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), out.view.shape);
  lowering.Bind(node.outputs[0], out);
  return Status::Ok();
}

// ---- permute ----

Result<std::vector<TensorType>> InferPermute(const InferContext& c) {
  const auto dims = GetAttr<std::vector<int64_t>>(c.attrs, "dims", {});
  const Dims& x = c.inputs[0].shape;
  Dims shape(x.size());
  uint32_t seen = 0;
  bool legal = dims.size() == x.size();
  for (size_t i = 0; legal && i < dims.size(); ++i) {
    const Result<int> dim = ops::NormalizeDim(dims[i], ops::Rank(c.inputs[0]), "a dimension");
    legal = dim.ok() && !((seen >> dim.value()) & 1);
    if (!legal) break;
    seen |= 1u << dim.value();
    shape[i] = x[static_cast<size_t>(dim.value())];
  }
  if (!legal) {
    return InvalidArgument("expected each dimension of x " + ToString(x) + " once, got " + ToString(dims));
  }
  return One(c.inputs[0].dtype, std::move(shape));
}

Status LowerPermute(const Graph&, const Node& node, Lowering& lowering) {
  const auto dims = GetAttr<std::vector<int64_t>>(node.attrs, "dims", {});
  const TensorRef x = lowering.Ref(node.inputs[0]);
  TensorRef out = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    const int64_t from = dims[i] < 0 ? dims[i] + x.view.rank : dims[i];
    out.view.shape[i] = x.view.shape[from];
    out.view.strides[i] = x.view.strides[from];
  }
  lowering.Bind(node.outputs[0], out);
  return Status::Ok();
}

// ---- expand ----

Result<std::vector<TensorType>> InferExpand(const InferContext& c) {
  const auto wanted = GetAttr<std::vector<int64_t>>(c.attrs, "shape", {});
  const Dims& x = c.inputs[0].shape;
  Dims shape = wanted;
  bool legal = wanted.size() >= x.size();
  for (size_t i = 0; legal && i < wanted.size(); ++i) {
    const bool added = i + x.size() < wanted.size();
    const int64_t old = added ? 1 : x[i + x.size() - wanted.size()];
    if (wanted[i] == -1 && !added) shape[i] = old;
    legal = shape[i] >= 0 && (shape[i] == old || old == 1);
  }
  if (!legal) return InvalidArgument("x " + ToString(x) + " does not expand to " + ToString(wanted));
  return One(c.inputs[0].dtype, std::move(shape));
}

Status LowerExpand(const Graph& graph, const Node& node, Lowering& lowering) {
  lowering.Bind(node.outputs[0], ops::ExpandTo(lowering.Ref(node.inputs[0]), graph.value(node.outputs[0]).shape));
  return Status::Ok();
}

// ---- slice ----

struct SliceRange {
  int dim = 0;
  int64_t start = 0;
  int64_t step = 1;
  int64_t size = 0;
};

// torch's rule: ends are clamped to the dimension, negative ones count from its end.
Result<SliceRange> RangeOf(const Attrs& attrs, const Dims& shape) {
  SliceRange range;
  THRESHER_ASSIGN(range.dim,
                  ops::NormalizeDim(GetAttr<int64_t>(attrs, "dim", 0), static_cast<int>(shape.size()), "dim"));
  if (shape.empty()) return InvalidArgument("a scalar cannot be sliced");
  const int64_t size = shape[static_cast<size_t>(range.dim)];
  const auto clamp = [size](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
  range.start = clamp(GetAttr<int64_t>(attrs, "start", 0));
  const int64_t end = clamp(GetAttr<int64_t>(attrs, "end", size));
  range.step = GetAttr<int64_t>(attrs, "step", 1);
  if (range.step < 1) return InvalidArgument("expected a step of 1 or more, got " + std::to_string(range.step));
  range.size = end > range.start ? (end - range.start - 1) / range.step + 1 : 0;
  return range;
}

Result<std::vector<TensorType>> InferSlice(const InferContext& c) {
  THRESHER_ASSIGN(const SliceRange range, RangeOf(c.attrs, c.inputs[0].shape));
  Dims shape = c.inputs[0].shape;
  shape[static_cast<size_t>(range.dim)] = range.size;
  return One(c.inputs[0].dtype, std::move(shape));
}

Status LowerSlice(const Graph&, const Node& node, Lowering& lowering) {
  TensorRef ref = lowering.Ref(node.inputs[0]);
  THRESHER_ASSIGN(const SliceRange range, RangeOf(node.attrs, ShapeOf(ref.view)));
  ref.offset += range.start * ref.view.strides[range.dim];
  ref.view.shape[range.dim] = range.size;
  if (range.size > 1) ref.view.strides[range.dim] *= range.step;  // else no stride is taken, and a step may be huge
  lowering.Bind(node.outputs[0], ref);
  return Status::Ok();
}

// ---- select ----

Result<std::vector<TensorType>> InferSelect(const InferContext& c) {
  Dims shape = c.inputs[0].shape;
  if (shape.empty()) return InvalidArgument("a scalar has no dimension to select from");
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(c.attrs, "dim", 0), ops::Rank(c.inputs[0]), "dim"));
  const int64_t size = shape[static_cast<size_t>(dim)];
  const int64_t index = GetAttr<int64_t>(c.attrs, "index", 0);
  if (index < -size || index >= size) {
    return OutOfRange("index " + std::to_string(index) + " is outside dimension " + std::to_string(dim) + " of x " +
                      ToString(shape));
  }
  shape.erase(shape.begin() + dim);
  return One(c.inputs[0].dtype, std::move(shape));
}

Status LowerSelect(const Graph&, const Node& node, Lowering& lowering) {
  TensorRef ref = lowering.Ref(node.inputs[0]);
  View& v = ref.view;
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(node.attrs, "dim", 0), v.rank, "dim"));
  const int64_t index = GetAttr<int64_t>(node.attrs, "index", 0);
  ref.offset += (index < 0 ? index + v.shape[dim] : index) * v.strides[dim];
  for (int i = dim; i + 1 < v.rank; ++i) {
    v.shape[i] = v.shape[i + 1];
    v.strides[i] = v.strides[i + 1];
  }
  --v.rank;
  lowering.Bind(node.outputs[0], ref);
  return Status::Ok();
}

// ---- barrier ----

Result<std::vector<TensorType>> InferBarrier(const InferContext& c) {
  return One(c.inputs[0].dtype, c.inputs[0].shape);
}

Status LowerBarrier(const Graph&, const Node& node, Lowering& lowering) {
  lowering.Bind(node.outputs[0], lowering.Ref(node.inputs[0]));
  return Status::Ok();
}

// ---- cat ----

Result<std::vector<TensorType>> InferCat(const InferContext& c) {
  if (c.inputs.empty()) return InvalidArgument("expected at least one tensor, got none");
  Dims shape = c.inputs[0].shape;
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(c.attrs, "dim", 0), ops::Rank(c.inputs[0]), "dim"));
  if (shape.empty()) return InvalidArgument("scalars cannot be concatenated");
  for (size_t i = 1; i < c.inputs.size(); ++i) {
    Dims expected = c.inputs[i].shape;
    if (expected.size() == shape.size()) expected[static_cast<size_t>(dim)] = shape[static_cast<size_t>(dim)];
    if (expected != shape || c.inputs[i].dtype != c.inputs[0].dtype) {
      return InvalidArgument("expected tensors of one type that agree but in dim " + std::to_string(dim) + ", got " +
                             ops::ToString(c.inputs[0]) + " and " + ops::ToString(c.inputs[i]));
    }
    shape[static_cast<size_t>(dim)] += c.inputs[i].shape[static_cast<size_t>(dim)];
  }
  return One(c.inputs[0].dtype, std::move(shape));
}

Status CatStep(const StepContext& c) {
  for (int i = 0; i < c.num_inputs; ++i) kernels::Copy(c.in(i), c.out(i), c.part, c.num_parts);
  return Status::Ok();
}

Status LowerCat(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  THRESHER_ASSIGN(const int dim, ops::NormalizeDim(GetAttr<int64_t>(node.attrs, "dim", 0), out.view.rank, "dim"));
  std::vector<TensorRef> parts, windows;
  int64_t at = 0;
  for (const ValueId id : node.inputs) {
    const TensorRef part = lowering.Ref(id);
    if (ops::Empty(part)) continue;
    TensorRef window = out;
    window.offset += at * out.view.strides[dim];
    window.view.shape[dim] = part.view.shape[dim];
    at += part.view.shape[dim];
    parts.push_back(part);
    windows.push_back(window);
  }
  lowering.AddStep(KernelId::kCat, std::move(parts), std::move(windows));
  return Status::Ok();
}

Status CopyStep(const StepContext& c) {
  kernels::Copy(c.in(0), c.out(), c.part, c.num_parts);
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> ShapeKernels() {
  static const CpuKernel kernels[] = {{KernelId::kCopy, CopyStep}, {KernelId::kCat, CatStep}};
  return kernels;
}

std::span<const OpDef> ShapeOps() {
  static const std::vector<OpDef> rows = {
      {"reshape",
       "The same elements in row-major order under another shape.",
       {"x"},
       {{"shape", AttrType::kInts, true, "sizes; one may be -1"}},
       Section::kReshape,
       InferReshape,
       nullptr,
       LowerReshape,
       Trait::kView | Trait::kMoves,
       ReshapeCopiesRows},
      {"permute",
       "Dimensions in another order.",
       {"x"},
       {{"dims", AttrType::kInts, true, "output dimension i is input dimension dims[i]"}},
       Section::kReshape,
       InferPermute,
       nullptr,
       LowerPermute,
       Trait::kView | Trait::kMoves},
      {"expand",
       "Dimensions of size 1 repeated, new ones added in front.",
       {"x"},
       {{"shape", AttrType::kInts, true, "sizes; -1 keeps the old one"}},
       Section::kReshape,
       InferExpand,
       nullptr,
       LowerExpand,
       Trait::kView | Trait::kMoves},
      {"slice",
       "A range of one dimension.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default 0"},
        {"start", AttrType::kInt, false, "default 0; negative counts from the end"},
        {"end", AttrType::kInt, false, "not included; default the size"},
        {"step", AttrType::kInt, false, "default 1, at least 1"}},
       Section::kReshape,
       InferSlice,
       nullptr,
       LowerSlice,
       Trait::kView | Trait::kMoves},
      {"select",
       "One index of one dimension, which disappears.",
       {"x"},
       {{"dim", AttrType::kInt, false, "default 0"}, {"index", AttrType::kInt, true, "negative counts from the end"}},
       Section::kReshape,
       InferSelect,
       nullptr,
       LowerSelect,
       Trait::kView | Trait::kMoves},
      {"barrier",
       "x as it is; a constant behind it is not computed with ahead.",
       {"x"},
       {},
       Section::kReshape,
       InferBarrier,
       nullptr,
       LowerBarrier,
       Trait::kMoves},
      {"cat",
       "Tensors joined along one dimension.",
       {"xs*"},
       {{"dim", AttrType::kInt, false, "default 0"}},
       Section::kReshape,
       InferCat,
       ops::MoveCost,
       LowerCat,
       Trait::kMoves},
  };
  return rows;
}

}  // namespace thresher
