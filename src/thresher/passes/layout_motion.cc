// reshape and permute sink below operators that do not mind, until they meet another one and collapse. A permute in
// front of a linear would otherwise be a copy, and a reshape between linear and activation would keep them from fusing.
#include <algorithm>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"
#include "thresher/passes/view_rules.h"

namespace thresher::passes {
namespace {

bool IsScalar(const RuleRewriter& r, ValueId id) { return NumElements(r.shape(id)) == 1; }

Dims WithoutBack(Dims shape, size_t count) {
  shape.resize(shape.size() - count);
  return shape;
}

Dims Concat(Dims a, const Dims& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Dims Tail(const Dims& shape, size_t count) {
  return Dims(shape.end() - static_cast<std::ptrdiff_t>(count), shape.end());
}

// A reshape may sink when only this operation reads it, or when it costs nothing anyway: else the copy it stands for
// would be made once for each reader.
bool MaySink(const RuleRewriter& r, ValueId reshaped, const Node& reshape) {
  if (r.SingleUse(reshaped)) return true;
  const ValueId x = reshape.inputs[0];
  return !r.Producer(x, "permute") && !r.Producer(x, "expand") && !r.Producer(x, "slice") && !r.Producer(x, "select");
}

// A norm of x alone: a residual would have to move with it.
bool IsPlainNorm(const Operation& op) {
  const size_t residual = op.op == "layer_norm" ? 3 : 2;
  return (op.op == "layer_norm" || op.op == "rms_norm") &&
         (op.inputs.size() <= residual || op.inputs[residual] == kNoValue);
}

// f(reshape(x)) -> reshape(f(x)).
Result<ValueId> SinkReshapeUnary(RuleRewriter& r, const Operation& op) {
  if (!HasTrait(op.op, Trait::kUnary)) return kNoValue;
  const auto reshape = r.Producer(op.inputs[0], "reshape");
  if (!reshape || !MaySink(r, op.inputs[0], *reshape)) return kNoValue;
  const Dims shape = r.shape(op.inputs[0]);
  Operation moved = op;
  moved.inputs[0] = reshape->inputs[0];
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
  return r.Reshape(value, shape, MergeSources(reshape->source, op.source));
}

// f(reshape(x), scalar) -> reshape(f(x, scalar)), and f(reshape(x), reshape(y)) -> reshape(f(x, y)).
Result<ValueId> SinkReshapeBinary(RuleRewriter& r, const Operation& op) {
  if (!HasTrait(op.op, Trait::kBinary)) return kNoValue;
  const Dims out = BroadcastShapes(r.shape(op.inputs[0]), r.shape(op.inputs[1]));
  const auto a = r.Producer(op.inputs[0], "reshape");
  const auto b = r.Producer(op.inputs[1], "reshape");
  Operation moved = op;
  if (a && b && r.shape(op.inputs[0]) == r.shape(op.inputs[1]) && r.shape(a->inputs[0]) == r.shape(b->inputs[0]) &&
      MaySink(r, op.inputs[0], *a) && MaySink(r, op.inputs[1], *b)) {
    moved.inputs = {a->inputs[0], b->inputs[0]};
    THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
    return r.Reshape(value, out, MergeSources(MergeSources(a->source, b->source), op.source));
  }
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto& reshape = side == 0 ? a : b;
    const ValueId other = op.inputs[1 - side];
    if (!reshape || !IsScalar(r, other) || IsScalar(r, op.inputs[side]) || r.shape(op.inputs[side]) != out ||
        !MaySink(r, op.inputs[side], *reshape)) {
      continue;
    }
    moved.inputs[side] = reshape->inputs[0];
    THRESHER_ASSIGN(moved.inputs[1 - side], r.Reshape(other, {}, op.source));
    THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
    return r.Reshape(value, out, MergeSources(reshape->source, op.source));
  }
  return kNoValue;
}

// softmax over the last dimension and norms over the last ones, where the reshape regroups only those before.
Result<ValueId> SinkReshapeRows(RuleRewriter& r, const Operation& op) {
  const bool softmax = op.op == "softmax" || op.op == "log_softmax";
  if (!softmax && !IsPlainNorm(op)) return kNoValue;
  const auto reshape = r.Producer(op.inputs[0], "reshape");
  if (!reshape || !MaySink(r, op.inputs[0], *reshape)) return kNoValue;
  const Dims shape = r.shape(op.inputs[0]);
  const Dims from = r.shape(reshape->inputs[0]);
  Operation moved = op;
  auto kept = static_cast<size_t>(GetAttr<int64_t>(op.attrs, "dims", 1));
  if (softmax) {
    const int64_t dim = FromFront(GetAttr<int64_t>(op.attrs, "dim", -1), shape.size());
    if (dim + 1 != static_cast<int64_t>(shape.size())) return kNoValue;
    moved.attrs["dim"] = int64_t{-1};
    kept = 1;
  }
  if (from.size() < kept || shape.size() < kept || Tail(from, kept) != Tail(shape, kept)) return kNoValue;
  moved.inputs[0] = reshape->inputs[0];
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
  return r.Reshape(value, shape, MergeSources(reshape->source, op.source));
}

// matmul(reshape(a), b), where the reshape only regroups the batch: b is regrouped instead, and the result back.
// Attention arrives like this, with batch and heads merged for the product; cut again, the operands are windows and not
// copies.
Result<ValueId> SinkReshapeMatmul(RuleRewriter& r, const Operation& op) {
  if (op.op != "matmul") return kNoValue;
  const Dims shapes[2] = {r.shape(op.inputs[0]), r.shape(op.inputs[1])};
  if (shapes[0].size() < 3 || shapes[1].size() < 3 || WithoutBack(shapes[0], 2) != WithoutBack(shapes[1], 2))
    return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto reshape = r.Producer(op.inputs[side], "reshape");
    if (!reshape || !MaySink(r, op.inputs[side], *reshape)) continue;
    const Dims from = r.shape(reshape->inputs[0]);
    // Only towards more dimensions: merging the other side's batch instead might be a copy.
    if (from.size() <= shapes[side].size() || Tail(from, 2) != Tail(shapes[side], 2)) continue;
    const Dims batch = WithoutBack(from, 2);
    Operation moved = op;
    moved.inputs[side] = reshape->inputs[0];
    THRESHER_ASSIGN(moved.inputs[1 - side],
                    r.Reshape(op.inputs[1 - side], Concat(batch, Tail(shapes[1 - side], 2)), op.source));
    THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
    const Dims out = Concat(WithoutBack(shapes[0], 2), {shapes[0][shapes[0].size() - 2], shapes[1].back()});
    return r.Reshape(value, out, MergeSources(reshape->source, op.source));
  }
  return kNoValue;
}

bool KeepsLast(const Dims& dims, size_t count) {
  for (size_t i = dims.size() - count; i < dims.size(); ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// f(permute(x)) -> permute(f(x)) for what works element by element or on rows the permute keeps whole.
Result<ValueId> SinkPermute(RuleRewriter& r, const Operation& op) {
  size_t kept = 0;
  if (op.op == "linear") {
    // A residual has rows of its own, and wide_from (the last operand) counts them.
    if (std::any_of(op.inputs.begin() + std::min<ptrdiff_t>(3, std::ssize(op.inputs)), op.inputs.end(),
                    [](ValueId id) { return id != kNoValue; })) {
      return kNoValue;
    }
    kept = 1;
  } else if (IsPlainNorm(op)) {
    kept = static_cast<size_t>(GetAttr<int64_t>(op.attrs, "dims", 1));
  } else if (!HasTrait(op.op, Trait::kUnary)) {
    return kNoValue;
  }
  const auto permute = r.Producer(op.inputs[0], "permute");
  if (!permute) return kNoValue;
  const Dims dims = PermuteDims(*permute);
  if (!KeepsLast(dims, kept)) return kNoValue;
  Operation moved = op;
  moved.inputs[0] = permute->inputs[0];
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
  return r.Permute(value, dims, MergeSources(permute->source, op.source));
}

// f(permute(x), permute(y)), f(permute(x), scalar), and f(permute(x), vector) where the permute keeps the last
// dimension.
Result<ValueId> SinkPermuteBinary(RuleRewriter& r, const Operation& op) {
  if (!HasTrait(op.op, Trait::kBinary)) return kNoValue;
  const auto a = r.Producer(op.inputs[0], "permute");
  const auto b = r.Producer(op.inputs[1], "permute");
  Operation moved = op;
  if (a && b && PermuteDims(*a) == PermuteDims(*b) && r.shape(op.inputs[0]) == r.shape(op.inputs[1])) {
    moved.inputs = {a->inputs[0], b->inputs[0]};
    THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
    return r.Permute(value, PermuteDims(*a), MergeSources(MergeSources(a->source, b->source), op.source));
  }
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto& permute = side == 0 ? a : b;
    if (!permute) continue;
    const Dims other = r.shape(op.inputs[1 - side]);
    const Dims dims = PermuteDims(*permute);
    const bool scalar = other.empty();
    const bool vector = other.size() == 1 && KeepsLast(dims, 1) && other[0] == r.shape(op.inputs[side]).back();
    if (!scalar && !vector) continue;
    moved.inputs[side] = permute->inputs[0];
    THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
    return r.Permute(value, dims, MergeSources(permute->source, op.source));
  }
  return kNoValue;
}

// The permute that undoes this one.
Dims Inverse(const Dims& dims) {
  Dims inverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i) inverse[static_cast<size_t>(dims[i])] = static_cast<int64_t>(i);
  return inverse;
}

// f(permute(x), y), where y is broadcast and what it has beside sizes of 1 stays in order, as with one number a
// channel.
Result<ValueId> SinkPermuteBroadcast(RuleRewriter& r, const Operation& op) {
  if (!HasTrait(op.op, Trait::kBinary)) return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto permute = r.Producer(op.inputs[side], "permute");
    if (!permute) continue;
    const Dims shape = r.shape(op.inputs[side]);
    Dims other = r.shape(op.inputs[1 - side]);
    if (other.size() > shape.size() || NumElements(other) == NumElements(shape) ||
        BroadcastShapes(shape, other) != shape)
      continue;
    other.insert(other.begin(), shape.size() - other.size(), 1);
    const Dims dims = PermuteDims(*permute);
    const Dims back = Inverse(dims);
    int64_t last = -1;
    bool in_order = true;
    Dims turned;
    for (const int64_t d : back) {
      turned.push_back(other[static_cast<size_t>(d)]);
      if (turned.back() == 1) continue;
      in_order &= d > last;
      last = d;
    }
    if (!in_order) continue;
    Operation moved = op;
    moved.inputs[side] = permute->inputs[0];
    THRESHER_ASSIGN(moved.inputs[1 - side], r.Reshape(op.inputs[1 - side], turned, op.source));
    THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
    return r.Permute(value, dims, MergeSources(permute->source, op.source));
  }
  return kNoValue;
}

// cat of tensors that are permuted alike.
Result<ValueId> SinkPermuteBelowCat(RuleRewriter& r, const Operation& op) {
  if (op.op != "cat") return kNoValue;
  Dims dims;
  Operation moved = op;
  std::string source = op.source;
  for (ValueId& id : moved.inputs) {
    const auto permute = r.Producer(id, "permute");
    if (!permute || (!dims.empty() && PermuteDims(*permute) != dims)) return kNoValue;
    dims = PermuteDims(*permute);
    id = permute->inputs[0];
    source = MergeSources(permute->source, source);
  }
  const int64_t at = FromFront(GetAttr<int64_t>(op.attrs, "dim", 0), dims.size());
  moved.attrs["dim"] = dims[static_cast<size_t>(at)];
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
  return r.Permute(value, dims, source);
}

// sum, mean, amax or amin of a permuted tensor is that of the tensor over the dimensions in their places there.
Result<ValueId> SinkPermuteBelowReduce(RuleRewriter& r, const Operation& op) {
  if (op.op != "sum" && op.op != "mean" && op.op != "amax" && op.op != "amin") return kNoValue;
  const auto permute = r.Producer(op.inputs[0], "permute");
  if (!permute) return kNoValue;
  const Dims dims = PermuteDims(*permute);
  std::vector<bool> reduced(dims.size(), false);
  const Dims over = GetAttr<Dims>(op.attrs, "dims", {});
  if (over.empty()) return kNoValue;
  Dims moved_over;
  for (const int64_t d : over) {
    reduced[static_cast<size_t>(FromFront(d, dims.size()))] = true;
    moved_over.push_back(dims[static_cast<size_t>(FromFront(d, dims.size()))]);
  }
  std::sort(moved_over.begin(), moved_over.end());
  Operation moved = op;
  moved.inputs[0] = permute->inputs[0];
  moved.attrs["dims"] = moved_over;
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
  const std::string source = MergeSources(permute->source, op.source);
  if (GetAttr<bool>(op.attrs, "keepdim", false)) return r.Permute(value, dims, source);
  Dims kept;  // the dimensions of x that stay, in the order of the result
  for (size_t i = 0; i < dims.size(); ++i) {
    if (!reduced[i]) kept.push_back(dims[i]);
  }
  Dims order;
  for (const int64_t d : kept) {
    order.push_back(std::count_if(kept.begin(), kept.end(), [d](int64_t other) { return other < d; }));
  }
  return r.Permute(value, order, source);
}

// How many dimensions of `fine` make up each dimension of `coarse`, from the front; nullopt when a dimension of
// `coarse` is not a product of whole ones. Sizes of 1 go where they come first.
std::optional<std::vector<size_t>> Groups(const Dims& fine, const Dims& coarse) {
  std::vector<size_t> groups;
  size_t at = 0;
  for (const int64_t size : coarse) {
    int64_t product = 1;
    size_t count = 0;
    while (at < fine.size() && (product < size || count == 0)) {
      product *= fine[at++];
      ++count;
    }
    if (product != size || count == 0) return std::nullopt;
    groups.push_back(count);
  }
  for (; at < fine.size() && fine[at] == 1 && !groups.empty(); ++at) ++groups.back();
  if (at != fine.size()) return std::nullopt;
  return groups;
}

// The permute of fine dimensions that moves whole groups: coarse dimension i of the result is group order[i], and
// `sizes[g]` is the number of fine dimensions of group g in the operand.
Dims ExpandOrder(const Dims& order, const std::vector<size_t>& sizes) {
  std::vector<int64_t> starts;
  int64_t next = 0;
  for (const size_t size : sizes) {
    starts.push_back(next);
    next += static_cast<int64_t>(size);
  }
  Dims dims;
  for (const int64_t group : order) {
    for (size_t i = 0; i < sizes[static_cast<size_t>(group)]; ++i) {
      dims.push_back(starts[static_cast<size_t>(group)] + static_cast<int64_t>(i));
    }
  }
  return dims;
}

// reshape(permute(x)), where the reshape only cuts dimensions -> permute(reshape(x)).
Result<ValueId> SinkPermuteBelowSplit(RuleRewriter& r, const Operation& op) {
  if (op.op != "reshape") return kNoValue;
  const auto permute = r.Producer(op.inputs[0], "permute");
  if (!permute) return kNoValue;
  const Dims coarse = r.shape(op.inputs[0]);
  const Dims fine = GetAttr<Dims>(op.attrs, "shape", {});
  if (NumElements(coarse) == 0 || fine.size() <= coarse.size()) return kNoValue;
  const auto groups = Groups(fine, coarse);
  if (!groups) return kNoValue;
  const Dims dims = PermuteDims(*permute);
  // Dimension i of the permuted tensor is dimension dims[i] of x.
  std::vector<size_t> sizes(dims.size());
  std::vector<Dims> parts(dims.size());
  size_t at = 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    const auto to = static_cast<size_t>(dims[i]);
    sizes[to] = (*groups)[i];
    parts[to].assign(fine.begin() + static_cast<std::ptrdiff_t>(at),
                     fine.begin() + static_cast<std::ptrdiff_t>(at + (*groups)[i]));
    at += (*groups)[i];
  }
  Dims cut;
  for (const Dims& part : parts) cut = Concat(cut, part);
  const std::string source = MergeSources(permute->source, op.source);
  THRESHER_ASSIGN(const ValueId value, r.Reshape(permute->inputs[0], cut, source));
  return r.Permute(value, ExpandOrder(dims, sizes), source);
}

// reshape(permute(x)), where the reshape only drops dimensions of size 1 -> permute(reshape(x)).
Result<ValueId> SinkPermuteBelowSqueeze(RuleRewriter& r, const Operation& op) {
  if (op.op != "reshape") return kNoValue;
  const auto permute = r.Producer(op.inputs[0], "permute");
  if (!permute) return kNoValue;
  const auto drop_ones = [](Dims shape) {
    std::erase(shape, 1);
    return shape;
  };
  const Dims from = r.shape(op.inputs[0]);
  const Dims to = GetAttr<Dims>(op.attrs, "shape", {});
  const Dims lean = drop_ones(from);
  if (lean.size() == from.size() || drop_ones(to) != lean) return kNoValue;
  const Dims shape = r.shape(permute->inputs[0]);
  Dims places;  // of the dimensions of x that stay
  int64_t next = 0;
  for (const int64_t size : shape) places.push_back(size == 1 ? -1 : next++);
  Dims dims;
  for (const int64_t d : PermuteDims(*permute)) {
    if (places[static_cast<size_t>(d)] >= 0) dims.push_back(places[static_cast<size_t>(d)]);
  }
  const std::string source = MergeSources(permute->source, op.source);
  THRESHER_ASSIGN(const ValueId squeezed, r.Reshape(permute->inputs[0], drop_ones(shape), source));
  THRESHER_ASSIGN(const ValueId value, r.Permute(squeezed, dims, source));
  return r.Reshape(value, to, source);
}

// permute(reshape(permute(x))), where the reshape only merges dimensions -> reshape(permute(x)), the two permutes in
// one.
Result<ValueId> RaisePermuteAboveMerge(RuleRewriter& r, const Operation& op) {
  if (op.op != "permute") return kNoValue;
  const auto reshape = r.Producer(op.inputs[0], "reshape");
  if (!reshape || !r.Producer(reshape->inputs[0], "permute") || !r.SingleUse(op.inputs[0])) return kNoValue;
  const Dims fine = r.shape(reshape->inputs[0]);
  const Dims coarse = r.shape(op.inputs[0]);
  if (NumElements(coarse) == 0 || fine.size() <= coarse.size()) return kNoValue;
  const auto groups = Groups(fine, coarse);
  if (!groups) return kNoValue;
  Node permute;
  permute.attrs = op.attrs;
  const Dims dims = PermuteDims(permute);
  Dims out;
  for (const int64_t d : dims) out.push_back(coarse[static_cast<size_t>(d)]);
  const std::string source = MergeSources(reshape->source, op.source);
  THRESHER_ASSIGN(const ValueId value, r.Permute(reshape->inputs[0], ExpandOrder(dims, *groups), source));
  return r.Reshape(value, out, source);
}

// permute(linear(x)), where x is made by a permute that takes this one in -> linear(permute(x)).
Result<ValueId> RaisePermuteAboveLinear(RuleRewriter& r, const Operation& op) {
  if (op.op != "permute" || !r.SingleUse(op.inputs[0])) return kNoValue;
  const auto linear = r.Producer(op.inputs[0], "linear");
  if (!linear || linear->inputs[3] != kNoValue || linear->inputs[4] != kNoValue || !r.SingleUse(linear->inputs[0])) {
    return kNoValue;
  }
  const auto reshape = r.Producer(linear->inputs[0], "reshape");
  if (!reshape || !r.Producer(reshape->inputs[0], "permute")) return kNoValue;
  const Dims fine = r.shape(reshape->inputs[0]);
  const Dims coarse = r.shape(linear->inputs[0]);
  Node permute;
  permute.attrs = op.attrs;
  const Dims dims = PermuteDims(permute);
  if (!KeepsLast(dims, 1) || NumElements(coarse) == 0 || fine.size() <= coarse.size() || !Groups(fine, coarse))
    return kNoValue;
  Operation moved{"linear", linear->inputs, linear->attrs, MergeSources(linear->source, op.source), linear->module};
  THRESHER_ASSIGN(moved.inputs[0], r.Permute(linear->inputs[0], dims, op.source));
  return r.Emit(std::move(moved));
}

// select and slice commute with permute, on another dimension.
Result<ValueId> SinkPermuteBelowCut(RuleRewriter& r, const Operation& op) {
  const bool select = op.op == "select";
  if (!select && op.op != "slice") return kNoValue;
  const auto permute = r.Producer(op.inputs[0], "permute");
  if (!permute) return kNoValue;
  Dims dims = PermuteDims(*permute);
  const int64_t at = FromFront(GetAttr<int64_t>(op.attrs, "dim", 0), dims.size());
  const int64_t dim = dims[static_cast<size_t>(at)];
  Operation moved = op;
  moved.inputs[0] = permute->inputs[0];
  moved.attrs["dim"] = dim;
  if (select) {
    dims.erase(dims.begin() + at);
    for (int64_t& d : dims) d -= d > dim ? 1 : 0;
  }
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(moved)));
  return r.Permute(value, dims, MergeSources(permute->source, op.source));
}

}  // namespace

Result<Graph> LayoutMotion(const Graph& graph, const PassContext&) {
  // Raising comes first: a permute that was just made must not sink where it can be taken in.
  std::vector<RuleRewriter::Rule> rules = {RaisePermuteAboveMerge, RaisePermuteAboveLinear};
  rules.insert(rules.end(), ViewRules().begin(), ViewRules().end());
  static constexpr RuleRewriter::Rule kSinking[] = {
      SinkReshapeUnary,      SinkReshapeBinary,      SinkReshapeRows,     SinkReshapeMatmul,      SinkPermute,
      SinkPermuteBinary,     SinkPermuteBroadcast,   SinkPermuteBelowCat, SinkPermuteBelowReduce, SinkPermuteBelowCut,
      SinkPermuteBelowSplit, SinkPermuteBelowSqueeze};
  rules.insert(rules.end(), std::begin(kSinking), std::end(kSinking));
  return RuleRewriter(graph, rules).Run();
}

}  // namespace thresher::passes
