// Rotary positions arrive written out, as x cos + turned(x) sin, where turned(x) is the second half of x with its sign
// changed, then the first.
#include <cstring>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

bool IsLast(int64_t dim, size_t rank) { return FromFront(dim, rank) + 1 == static_cast<int64_t>(rank); }

// Whether `id` is elements [start, end) of the last dimension of x.
bool IsPart(const RuleRewriter& r, ValueId id, ValueId x, int64_t start, int64_t end) {
  const auto slice = r.Producer(id, "slice");
  if (!slice || slice->inputs[0] != x) return false;
  const int64_t size = r.shape(x).back();
  const int64_t stop = GetAttr<int64_t>(slice->attrs, "end", size);
  return IsLast(GetAttr<int64_t>(slice->attrs, "dim", 0), r.shape(x).size()) &&
         GetAttr<int64_t>(slice->attrs, "step", 1) == 1 && GetAttr<int64_t>(slice->attrs, "start", 0) == start &&
         (stop < size ? stop : size) == end;
}

bool IsTurned(const RuleRewriter& r, ValueId id, ValueId x) {
  const auto cat = r.Producer(id, "cat");
  const int64_t size = r.shape(x).back();
  if (!cat || cat->inputs.size() != 2 || size % 2 != 0 || r.shape(id) != r.shape(x) ||
      !IsLast(GetAttr<int64_t>(cat->attrs, "dim", 0), r.shape(x).size())) {
    return false;
  }
  const auto neg = r.Producer(cat->inputs[0], "neg");
  return neg && IsPart(r, neg->inputs[0], x, size / 2, size) && IsPart(r, cat->inputs[1], x, 0, size / 2);
}

bool HasEqualRows(const Value& value) {
  const auto half = static_cast<size_t>(value.shape.back() / 2) * SizeOf(value.dtype);
  const Result<std::shared_ptr<const void>> held = Hold(value.constant);
  if (!held.ok()) return false;
  const auto* row = static_cast<const std::byte*>(value.constant.data);
  for (int64_t i = NumElements(value.shape) / value.shape.back(); i > 0; --i, row += 2 * half) {
    if (std::memcmp(row, row + half, half) != 0) return false;
  }
  return true;
}

// Whether the second half of the last dimension is known to be as the first.
bool HasEqualHalves(const RuleRewriter& r, const Graph& graph, ValueId id) {
  const Dims shape = r.shape(id);
  if (shape.empty() || shape.back() == 0 || shape.back() % 2 != 0) return false;
  if (graph.is_constant(id)) return !graph.value(id).constant.blocks && HasEqualRows(graph.value(id));
  if (const auto cat = r.Producer(id, "cat")) {
    return cat->inputs.size() == 2 && cat->inputs[0] == cat->inputs[1] &&
           IsLast(GetAttr<int64_t>(cat->attrs, "dim", 0), shape.size());
  }
  for (const char* const op : {"cos", "sin", "cast", "round_bf16", "round_f16", "reshape", "expand", "permute"}) {
    const auto node = r.Producer(id, op);
    if (!node) continue;
    const Dims from = r.shape(node->inputs[0]);
    const bool permutes = node->op->name == "permute";
    if (from.empty() || from.back() != shape.back() || (permutes && !IsLast(PermuteDims(*node).back(), shape.size()))) {
      return false;
    }
    return HasEqualHalves(r, graph, node->inputs[0]);
  }
  for (const char* const op : {"mul", "div"}) {
    const auto node = r.Producer(id, op);
    if (node && UniformConstant(graph, node->inputs[1])) {
      return r.shape(node->inputs[0]) == shape && HasEqualHalves(r, graph, node->inputs[0]);
    }
  }
  return false;
}

// The first half of a table's last dimension for every token: [tokens, pairs]. `heads`: the dimension, of as many as x
// has, along which all tokens' heads have the same.
Result<ValueId> TableOf(RuleRewriter& r, ValueId id, Dims lead, size_t heads, const std::string& source) {
  Dims shape = r.shape(id);
  const int64_t pairs = shape.back() / 2;
  THRESHER_ASSIGN(ValueId table, r.Emit({"slice",
                                         {id},
                                         {{"dim", static_cast<int64_t>(shape.size()) - 1},
                                          {"start", int64_t{0}},
                                          {"end", pairs},
                                          {"step", int64_t{1}}},
                                         source}));
  shape.back() = pairs;
  shape.insert(shape.begin(), lead.size() + 2 - shape.size(), 1);
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(heads));
  THRESHER_ASSIGN(table, r.Reshape(table, shape, source));
  const int64_t tokens = NumElements(lead);
  lead.push_back(pairs);
  THRESHER_ASSIGN(table, r.Expand(table, lead, source));
  return r.Reshape(table, {tokens, pairs}, source);
}

// The dimension of x that tells heads apart: the one before the last, or the one before that; the tables are the same
// all along it.
std::optional<size_t> HeadsOf(const Dims& x, const Dims& cos, const Dims& sin) {
  const size_t rank = x.size();
  if (rank < 3 || cos != sin || cos.size() > rank || cos.size() < 2 || cos.back() != x.back()) return std::nullopt;
  const auto size = [&](size_t dim) { return dim + cos.size() < rank ? 1 : cos[dim + cos.size() - rank]; };
  for (size_t d = 0; d + 1 < rank; ++d) {
    if (size(d) != 1 && size(d) != x[d]) return std::nullopt;
  }
  for (const size_t heads : {rank - 2, rank - 3}) {
    if (size(heads) == 1 && (heads == rank - 2 || size(rank - 2) == x[rank - 2])) return heads;
  }
  return std::nullopt;
}

Result<ValueId> Build(RuleRewriter& r, ValueId x, ValueId cos, ValueId sin, size_t heads, const std::string& source) {
  const Dims shape = r.shape(x);
  const size_t rank = shape.size();
  Dims order;
  for (size_t d = 0; d < rank; ++d) order.push_back(static_cast<int64_t>(d));
  std::swap(order[heads], order[rank - 2]);
  const bool moves = heads != rank - 2;
  if (moves) {
    THRESHER_ASSIGN(x, r.Permute(x, order, source));
  }
  const Dims own = r.shape(x);
  const Dims lead(own.begin(), own.end() - 2);
  THRESHER_ASSIGN(const ValueId c, TableOf(r, cos, lead, heads, source));
  THRESHER_ASSIGN(const ValueId s, TableOf(r, sin, lead, heads, source));
  THRESHER_ASSIGN(const ValueId tokens, r.Reshape(x, {NumElements(lead), own[rank - 2], own[rank - 1]}, source));
  THRESHER_ASSIGN(ValueId y, r.Emit({"rotary", {tokens, c, s}, {}, source}));
  THRESHER_ASSIGN(y, r.Reshape(y, own, source));
  return moves ? r.Permute(y, order, source) : Result<ValueId>(y);
}

Result<ValueId> Recognize(RuleRewriter& r, const Operation& op) {
  if (op.op != "add") return kNoValue;
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const auto straight = r.Producer(op.inputs[side], "mul"), crossed = r.Producer(op.inputs[1 - side], "mul");
    if (!straight || !crossed) continue;
    for (int way = 0; way < 4; ++way) {
      const size_t at = way % 2, turned = way / 2;
      const ValueId x = straight->inputs[at], cos = straight->inputs[1 - at], sin = crossed->inputs[1 - turned];
      if (r.shape(x).empty() || !IsTurned(r, crossed->inputs[turned], x)) continue;
      const std::optional<size_t> heads = HeadsOf(r.shape(x), r.shape(cos), r.shape(sin));
      if (!heads || NumElements(r.shape(x)) == 0 || r.dtype(x) != DType::kF32 || !HasEqualHalves(r, r.graph(), cos) ||
          !HasEqualHalves(r, r.graph(), sin)) {
        continue;
      }
      const std::string source = MergeSources(MergeSources(straight->source, crossed->source), op.source);
      return Build(r, x, cos, sin, *heads, source);
    }
  }
  return kNoValue;
}

}  // namespace

Result<Graph> RotaryRecognition(const Graph& graph, const PassContext&) {
  static constexpr RuleRewriter::Rule kRules[] = {Recognize};
  return RuleRewriter(graph, kRules).Run();
}

}  // namespace thresher::passes
