#include "thresher/passes/view_rules.h"

#include <algorithm>
#include <cmath>

#include "thresher/graph/operator.h"

namespace thresher::passes {
namespace {

// What reshape's "shape" means for that many elements.
Dims ResolveShape(Dims shape, int64_t elements) {
  int64_t known = 1;
  for (const int64_t d : shape) known *= d == -1 ? 1 : d;
  for (int64_t& d : shape) {
    if (d == -1 && known > 0) d = elements / known;
  }
  return shape;
}

// reshape(reshape(x)), and reshape to the shape x has.
Result<ValueId> SimplifyReshape(RuleRewriter& r, const Operation& op) {
  if (op.op != "reshape") return kNoValue;
  const ValueId x = op.inputs[0];
  const Dims from = r.shape(x);
  const Dims to = ResolveShape(GetAttr<Dims>(op.attrs, "shape", {}), NumElements(from));
  if (from == to) return x;
  if (const auto inner = r.Producer(x, "reshape")) {
    return r.Reshape(inner->inputs[0], to, MergeSources(inner->source, op.source));
  }
  if (to != GetAttr<Dims>(op.attrs, "shape", {}) && std::find(to.begin(), to.end(), -1) == to.end()) {
    return r.Reshape(x, to, op.source);  // one spelling, so that equal reshapes are seen to be equal
  }
  return kNoValue;
}

// permute(permute(x)), permutes that move nothing or only dimensions of size 1.
Result<ValueId> SimplifyPermute(RuleRewriter& r, const Operation& op) {
  if (op.op != "permute") return kNoValue;
  const ValueId x = op.inputs[0];
  Dims dims = GetAttr<Dims>(op.attrs, "dims", {});
  for (int64_t& d : dims) d = FromFront(d, dims.size());
  if (const auto inner = r.Producer(x, "permute")) {
    return r.Permute(inner->inputs[0], ComposePermutes(PermuteDims(*inner), dims),
                     MergeSources(inner->source, op.source));
  }
  const Dims shape = r.shape(x);
  int64_t last = -1;
  bool in_order = true;
  bool identity = true;
  Dims to;
  for (size_t i = 0; i < dims.size(); ++i) {
    identity &= dims[i] == static_cast<int64_t>(i);
    const int64_t size = shape[static_cast<size_t>(dims[i])];
    to.push_back(size);
    if (size == 1) continue;
    in_order &= dims[i] > last;
    last = dims[i];
  }
  if (identity) return x;
  if (in_order) return r.Reshape(x, to, op.source);
  return kNoValue;
}

// expand(expand(x)), expand to the shape x has, and expand that only adds dimensions of size 1.
Result<ValueId> SimplifyExpand(RuleRewriter& r, const Operation& op) {
  if (op.op != "expand") return kNoValue;
  const ValueId x = op.inputs[0];
  const Dims from = r.shape(x);
  Dims to = GetAttr<Dims>(op.attrs, "shape", {});
  bool resolved = false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] != -1) continue;
    to[i] = from[i + from.size() - to.size()];
    resolved = true;
  }
  if (from == to) return x;
  if (const auto inner = r.Producer(x, "expand")) {
    return r.Expand(inner->inputs[0], to, MergeSources(inner->source, op.source));
  }
  if (NumElements(from) == NumElements(to)) return r.Reshape(x, to, op.source);
  if (resolved) return r.Expand(x, to, op.source);
  return kNoValue;
}

// Whether every value of `from` survives a cast to `to` and back.
bool Lossless(DType from, DType to) {
  return from == to || from == DType::kBool || (from == DType::kI32 && to == DType::kI64) ||
         (IsHalf(from) && to == DType::kF32);
}

// cast to the type x has, and cast(cast(x)) where the inner one loses nothing.
Result<ValueId> SimplifyCast(RuleRewriter& r, const Operation& op) {
  if (op.op != "cast") return kNoValue;
  const ValueId x = op.inputs[0];
  if (Name(r.dtype(x)) == GetAttr<std::string>(op.attrs, "dtype", "")) return x;
  if (const auto inner = r.Producer(x, "cast")) {
    const ValueId origin = inner->inputs[0];
    if (Lossless(r.dtype(origin), r.dtype(x))) {
      return r.Emit({"cast", {origin}, op.attrs, MergeSources(inner->source, op.source)});
    }
  }
  return kNoValue;
}

// slice that takes everything.
Result<ValueId> SimplifySlice(RuleRewriter& r, const Operation& op) {
  if (op.op != "slice") return kNoValue;
  const ValueId x = op.inputs[0];
  const Dims shape = r.shape(x);
  const int64_t size = shape[static_cast<size_t>(FromFront(GetAttr<int64_t>(op.attrs, "dim", 0), shape.size()))];
  const auto at = [size](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const bool all = at(GetAttr<int64_t>(op.attrs, "start", 0)) == 0 &&
                   at(GetAttr<int64_t>(op.attrs, "end", size)) == size && GetAttr<int64_t>(op.attrs, "step", 1) == 1;
  return all ? x : kNoValue;
}

// resize to the sizes x has.
Result<ValueId> SimplifyResize(RuleRewriter& r, const Operation& op) {
  if (op.op != "resize") return kNoValue;
  const Dims shape = r.shape(op.inputs[0]);
  return Dims(shape.begin() + 1, shape.end() - 1) == GetAttr<Dims>(op.attrs, "size", {}) ? op.inputs[0] : kNoValue;
}

// select from a dimension of size 1.
Result<ValueId> SimplifySelect(RuleRewriter& r, const Operation& op) {
  if (op.op != "select") return kNoValue;
  Dims shape = r.shape(op.inputs[0]);
  const auto dim = static_cast<size_t>(FromFront(GetAttr<int64_t>(op.attrs, "dim", 0), shape.size()));
  if (shape[dim] != 1) return kNoValue;
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
  return r.Reshape(op.inputs[0], shape, op.source);
}

Result<ValueId> SimplifyCat(RuleRewriter&, const Operation& op) {
  return op.op == "cat" && op.inputs.size() == 1 ? op.inputs[0] : kNoValue;
}

// Whether `op` with the constant `c` on its right (or, where `left` says so, on its left) gives the other operand back,
// bit for bit. x + 0 is not among them for f32: it turns -0 into 0.
bool IsNeutral(std::string_view op, DType dtype, double c, bool left) {
  const bool positive_zero = c == 0 && !std::signbit(c);
  if (op == "mul") return c == 1 && dtype != DType::kBool;
  if (op == "div" || op == "pow") return c == 1 && dtype == DType::kF32 && !left;
  if (op == "sub") return positive_zero && dtype != DType::kBool && !left;
  if (op == "add") return (dtype == DType::kF32 ? c == 0 && std::signbit(c) : c == 0);
  if (dtype != DType::kBool) return false;
  if (op == "bitwise_and" || op == "logical_and") return c == 1;
  if (op == "bitwise_or" || op == "logical_or" || op == "bitwise_xor") return c == 0;
  return false;
}

// x * 1, x / 1, x - 0, b and true, ...
Result<ValueId> DropNeutral(RuleRewriter& r, const Operation& op) {
  if (!HasTrait(op.op, Trait::kBinary)) return kNoValue;
  for (const size_t side : {size_t{1}, size_t{0}}) {
    const std::optional<double> c = UniformConstant(r.graph(), op.inputs[side]);
    const ValueId other = op.inputs[1 - side];
    if (!c || !IsNeutral(op.op, r.dtype(other), *c, side == 0)) continue;
    return r.Expand(other, BroadcastShapes(r.shape(op.inputs[0]), r.shape(op.inputs[1])), op.source);
  }
  return kNoValue;
}

// f(expand(x)) becomes expand(f(x)), for operators that work element by element, and for the indices of embedding.
Result<ValueId> HoistExpand(RuleRewriter& r, const Operation& op) {
  const bool embedding = op.op == "embedding";
  if (!embedding && op.op != "where" && !HasTrait(op.op, Trait::kUnary) && !HasTrait(op.op, Trait::kBinary))
    return kNoValue;
  Operation lean = op;
  bool stripped = false;
  Dims full, shape;
  for (size_t i = embedding ? 1 : 0; i < op.inputs.size(); ++i) {
    full = BroadcastShapes(full, r.shape(op.inputs[i]));
    if (const auto expand = r.Producer(op.inputs[i], "expand")) {
      lean.inputs[i] = expand->inputs[0];
      stripped = true;
    }
    shape = BroadcastShapes(shape, r.shape(lean.inputs[i]));
  }
  if (!stripped) return kNoValue;
  if (embedding) full.push_back(r.shape(op.inputs[0])[1]);
  THRESHER_ASSIGN(const ValueId value, r.Emit(std::move(lean)));
  return r.Expand(value, full, op.source);
}

// Whether the numbers are first, first + step, first + 2 step, and so on, the last of which there is.
bool Progress(const int64_t* numbers, int64_t count, int64_t first, int64_t step) {
  for (int64_t i = 0; i < count; ++i) {
    if (numbers[i] != first + i * step) return false;
  }
  return true;
}

// Which dimension of the index tensor counts 0, 1, ... over `extent` while all others have size 1; nullopt if none
// does.
std::optional<size_t> CountingDim(const Value& indices, int64_t extent) {
  if (indices.dtype != DType::kI64 || NumElements(indices.shape) != extent) return std::nullopt;
  if (!Progress(static_cast<const int64_t*>(indices.constant.data), extent, 0, 1)) return std::nullopt;
  for (size_t d = 0; d < indices.shape.size(); ++d) {
    if (indices.shape[d] == extent) return d;
  }
  return std::nullopt;
}

// index(x, [[0], [1], ...], [[0, 1, ...]]): every element in its own place, so only the shape changes.
Result<ValueId> SimplifyIndex(RuleRewriter& r, const Operation& op) {
  if (op.op != "index") return kNoValue;
  const Dims from = r.shape(op.inputs[0]);
  Dims shape;
  for (size_t i = 1; i < op.inputs.size(); ++i) shape = BroadcastShapes(shape, r.shape(op.inputs[i]));
  const size_t rank = shape.size();
  int64_t last = -1;
  for (size_t i = 1; i < op.inputs.size(); ++i) {
    const Value& indices = r.graph().value(op.inputs[i]);
    if (indices.kind != Value::Kind::kConstant || indices.constant.is_weight || from[i - 1] == 1) return kNoValue;
    const std::optional<size_t> dim = CountingDim(indices, from[i - 1]);
    if (!dim) return kNoValue;
    const auto place = static_cast<int64_t>(*dim + rank - indices.shape.size());
    if (place <= last) return kNoValue;
    last = place;
  }
  shape.insert(shape.end(), from.begin() + static_cast<std::ptrdiff_t>(op.inputs.size()) - 1, from.end());
  if (NumElements(shape) != NumElements(from)) return kNoValue;
  return r.Reshape(op.inputs[0], shape, op.source);
}

// embedding of rows that follow each other, as those of positions do, or of one row again and again.
Result<ValueId> SimplifyEmbedding(RuleRewriter& r, const Operation& op) {
  if (op.op != "embedding") return kNoValue;
  const Value &table = r.graph().value(op.inputs[0]), &indices = r.graph().value(op.inputs[1]);
  const int64_t count = NumElements(indices.shape);
  if (indices.kind != Value::Kind::kConstant || indices.constant.is_weight || indices.dtype != DType::kI64 ||
      table.constant.blocks || count == 0) {
    return kNoValue;
  }
  const auto* numbers = static_cast<const int64_t*>(indices.constant.data);
  const int64_t first = numbers[0], step = count == 1 || numbers[1] == first ? 0 : 1;
  const int64_t rows = step == 0 ? 1 : count;
  // Numbers may be any: nothing is added to one before it is known to be a row's.
  if (first < 0 || first > table.shape[0] - rows || !Progress(numbers, count, first, step)) return kNoValue;
  const int64_t width = table.shape[1];
  Dims shape = indices.shape;
  shape.push_back(width);
  THRESHER_ASSIGN(ValueId part,
                  r.Emit({"slice",
                          {op.inputs[0]},
                          {{"dim", int64_t{0}}, {"start", first}, {"end", first + rows}, {"step", int64_t{1}}},
                          op.source}));
  if (step != 0) return r.Reshape(part, shape, op.source);
  Dims one(shape.size(), 1);
  one.back() = width;
  THRESHER_ASSIGN(part, r.Reshape(part, one, op.source));
  return r.Expand(part, shape, op.source);
}

}  // namespace

std::span<const RuleRewriter::Rule> ViewRules() {
  static constexpr RuleRewriter::Rule kRules[] = {SimplifyReshape, SimplifyPermute, SimplifyExpand, SimplifyCast,
                                                  SimplifySlice,   SimplifyResize,  SimplifySelect, SimplifyCat,
                                                  DropNeutral,     HoistExpand,     SimplifyIndex,  SimplifyEmbedding};
  return kRules;
}

}  // namespace thresher::passes
