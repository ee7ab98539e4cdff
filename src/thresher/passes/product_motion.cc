// Multiplying by a matrix and enlarging by interpolation do not mind which of them comes first, and a product of a
// product is one: decoders of segmentation project, enlarge, join and multiply again, at every position of the result.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

enum LinearOperand : size_t { kX, kWeight, kBias, kResidual, kWideFrom };

// Multiply-adds that take as long as a byte of a tensor that is written or read, about; on any machine.
constexpr double kWorkOfByte = 8;
// Weights whose product takes more multiply-adds are not multiplied while a plan is made.
constexpr double kMostFolding = 1 << 28;

ValueId Operand(const Operation& op, size_t i) { return i < op.inputs.size() ? op.inputs[i] : kNoValue; }

std::string ActivationOf(const Attrs& attrs) { return GetAttr<std::string>(attrs, "activation", "none"); }

bool IsNK(const Attrs& attrs) { return GetAttr<std::string>(attrs, "layout", "nk") == "nk"; }

// A linear whose weight is a constant in numbers, and whose arithmetic is nobody's choice yet.
bool IsOpen(const RuleRewriter& r, const Graph& graph, ValueId weight, const Attrs& attrs) {
  return graph.is_constant(weight) && !graph.value(weight).constant.blocks && IsFloat(r.dtype(weight)) &&
         attrs.count("precision") == 0;
}

struct Range {
  int64_t begin, end;
};

// Some inputs of the weight, side by side, stored as it is.
Result<ValueId> InputsOf(RuleRewriter& r, ValueId id, bool nk, const std::vector<Range>& inputs) {
  const Value weight = r.graph().value(id);
  THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(weight.constant));
  const auto* const from = static_cast<const std::byte*>(weight.constant.data);
  const auto size = static_cast<int64_t>(SizeOf(weight.dtype));
  // Of "kn" the inputs are whole rows.
  const int64_t rows = nk ? weight.shape[0] : 1, unit = nk ? size : size * weight.shape[1];
  const int64_t stride = nk ? unit * weight.shape[1] : 0;
  std::vector<std::byte> bytes;
  int64_t count = 0;
  for (const Range& range : inputs) count += range.end - range.begin;
  bytes.reserve(static_cast<size_t>(rows * count * unit));
  for (int64_t row = 0; row < rows; ++row) {
    for (const Range& range : inputs) {
      bytes.insert(bytes.end(), from + row * stride + range.begin * unit, from + row * stride + range.end * unit);
    }
  }
  const Dims shape = nk ? Dims{rows, count} : Dims{count, weight.shape[1]};
  return r.graph().AddOwnedConstant(weight.name, weight.dtype, shape, bytes.data());
}

// A tensor that a resize which nothing else reads made of fewer positions.
struct Enlarged {
  Node resize;
  Dims from, to;  // shapes
};

std::optional<Enlarged> FindEnlarged(const RuleRewriter& r, ValueId id) {
  const auto resize = r.Producer(id, "resize");
  if (!resize || !r.SingleUse(id)) return std::nullopt;
  Enlarged found{*resize, r.shape(resize->inputs[0]), r.shape(id)};
  if (NumElements(found.from) >= NumElements(found.to)) return std::nullopt;
  return found;
}

// What it saves to multiply the channels by n columns before they are enlarged, in multiply-adds; what else is written
// or read of a result of n columns `passes` times, and `spared` times less of the channels, counts as well.
double Saved(const Enlarged& x, int64_t n, int passes, int spared) {
  const auto channels = static_cast<double>(x.to.back()), columns = static_cast<double>(n);
  const double after = static_cast<double>(NumElements(x.to)) / channels;
  const double before = static_cast<double>(NumElements(x.from)) / channels;
  return (after - before) * channels * columns +
         kWorkOfByte * sizeof(float) * after * ((1 + spared) * channels - (1 + passes) * columns);
}

// The operator that is an activation, where there is one.
bool IsOperator(const std::string& activation) {
  static constexpr std::string_view kOperators[] = {"relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"};
  return std::find(std::begin(kOperators), std::end(kOperators), activation) != std::end(kOperators);
}

Result<ValueId> Activated(RuleRewriter& r, ValueId x, const std::string& activation, const std::string& source) {
  if (activation == "none") return x;
  return r.Emit({activation, {x}, {}, source});
}

// What reshapes show, which between vectors change nothing.
ValueId Reshaped(const RuleRewriter& r, ValueId id) {
  while (const auto reshape = r.Producer(id, "reshape")) id = reshape->inputs[0];
  return id;
}

// The numbers of a constant in f32.
Result<std::vector<float>> NumbersOf(RuleRewriter& r, ValueId id) {
  const Value value = r.graph().value(id);
  THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(value.constant));
  const auto* const first = static_cast<const float*>(value.constant.data);
  return std::vector<float>(first, first + NumElements(value.shape));
}

// One factor of a product of weights.
struct Matrix {
  std::vector<float> numbers;
  int64_t n, k;
  int64_t stride_n, stride_k;
};

Result<Matrix> MatrixOf(RuleRewriter& r, ValueId id, bool nk) {
  const Dims shape = r.shape(id);
  THRESHER_ASSIGN(std::vector<float> numbers, NumbersOf(r, id));
  if (nk) return Matrix{std::move(numbers), shape[0], shape[1], shape[1], 1};
  return Matrix{std::move(numbers), shape[1], shape[0], 1, shape[1]};
}

bool IsF32Constant(const RuleRewriter& r, const Graph& graph, ValueId id) {
  return graph.is_constant(id) && r.dtype(id) == DType::kF32;
}

// linear(linear(x)) with nothing between, where one matrix has fewer elements than both; else kNoValue.
Result<ValueId> MultiplyOnce(RuleRewriter& r, const Operation& op) {
  ValueId id = op.inputs[kX];
  std::string source = op.source;
  const Dims rows = r.shape(id);
  if (const auto reshape = r.Producer(id, "reshape"); reshape && r.SingleUse(id)) {
    if (r.shape(reshape->inputs[0]).back() != rows.back()) return kNoValue;
    id = reshape->inputs[0];
    source = MergeSources(reshape->source, source);
  }
  const auto inner = r.Producer(id, "linear");
  if (!inner || !r.SingleUse(id) || inner->inputs[kResidual] != kNoValue || inner->inputs[kWideFrom] != kNoValue ||
      Operand(op, kWideFrom) != kNoValue || ActivationOf(inner->attrs) != "none" ||
      !IsOpen(r, r.graph(), inner->inputs[kWeight], inner->attrs)) {
    return kNoValue;
  }
  const ValueId first_bias = Reshaped(r, inner->inputs[kBias]), second_bias = Reshaped(r, Operand(op, kBias));
  for (const ValueId factor : {op.inputs[kWeight], inner->inputs[kWeight], first_bias, second_bias}) {
    if (factor != kNoValue && !IsF32Constant(r, r.graph(), factor)) return kNoValue;
  }
  const Dims outer_shape = r.shape(op.inputs[kWeight]), inner_shape = r.shape(inner->inputs[kWeight]);
  const bool outer_nk = IsNK(op.attrs), inner_nk = IsNK(inner->attrs);
  const auto n = static_cast<double>(outer_shape[outer_nk ? 0 : 1]), j = static_cast<double>(rows.back()),
             k = static_cast<double>(inner_shape[inner_nk ? 1 : 0]);
  if (n * k >= n * j + j * k || n * j * k > kMostFolding) return kNoValue;

  THRESHER_ASSIGN(const Matrix outer, MatrixOf(r, op.inputs[kWeight], outer_nk));
  THRESHER_ASSIGN(const Matrix first, MatrixOf(r, inner->inputs[kWeight], inner_nk));
  std::vector<float> before(static_cast<size_t>(first.n), 0.0f), after(static_cast<size_t>(outer.n), 0.0f);
  if (first_bias != kNoValue) {
    THRESHER_ASSIGN(before, NumbersOf(r, first_bias));
  }
  if (second_bias != kNoValue) {
    THRESHER_ASSIGN(after, NumbersOf(r, second_bias));
  }
  std::vector<float> product, bias;
  std::vector<double> sums(static_cast<size_t>(first.k));
  bool finite = true;
  for (int64_t row = 0; row < outer.n; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0);
    double added = after[static_cast<size_t>(row)];
    for (int64_t i = 0; i < outer.k; ++i) {
      const double factor = outer.numbers[static_cast<size_t>(row * outer.stride_n + i * outer.stride_k)];
      const float* const numbers = first.numbers.data() + i * first.stride_n;
      for (int64_t c = 0; c < first.k; ++c) {
        sums[static_cast<size_t>(c)] += factor * static_cast<double>(numbers[c * first.stride_k]);
      }
      added += factor * static_cast<double>(before[static_cast<size_t>(i)]);
    }
    for (const double sum : sums) product.push_back(static_cast<float>(sum));
    bias.push_back(static_cast<float>(added));
    finite &= std::isfinite(bias.back());
  }
  finite &= std::all_of(product.begin(), product.end(), [](float x) { return std::isfinite(x); });
  if (!finite) return kNoValue;

  Operation linear = op;
  linear.source = MergeSources(inner->source, source);
  Dims shape = rows;
  shape.back() = first.k;
  linear.inputs[kX] = inner->inputs[kX];
  if (shape != r.shape(linear.inputs[kX])) {
    THRESHER_ASSIGN(linear.inputs[kX], r.Reshape(linear.inputs[kX], shape, inner->source));
  }
  linear.attrs["layout"] = std::string("nk");
  const std::string name = r.graph().value(op.inputs[kWeight]).name;
  linear.inputs[kWeight] = r.graph().AddOwnedConstant(name, DType::kF32, {outer.n, first.k}, product.data());
  if (first_bias != kNoValue || second_bias != kNoValue) {
    linear.inputs.resize(std::max(linear.inputs.size(), size_t{kBias + 1}), kNoValue);
    linear.inputs[kBias] = r.graph().AddOwnedConstant("folded", DType::kF32, {outer.n}, bias.data());
  }
  return r.Emit(std::move(linear));
}

// A linear that was moved. What it reads now may be a product that nothing else reads.
template <bool kOnce>
Result<ValueId> EmitMoved(RuleRewriter& r, Operation product) {
  if constexpr (kOnce) {
    THRESHER_ASSIGN(const ValueId value, MultiplyOnce(r, product));
    if (value != kNoValue) return value;
  }
  return r.Emit(std::move(product));
}

// The product of what was enlarged, enlarged.
template <bool kOnce>
Result<ValueId> EnlargeProduct(RuleRewriter& r, const Enlarged& x, Operation product) {
  const std::string source = MergeSources(x.resize.source, product.source);
  product.inputs[kX] = x.resize.inputs[0];
  THRESHER_ASSIGN(const ValueId value, EmitMoved<kOnce>(r, std::move(product)));
  return r.Emit({"resize", {value}, x.resize.attrs, source});
}

// Whether the linear may be taken apart: its weight is there, and nothing joins its result but an activation.
bool IsPlain(RuleRewriter& r, const Operation& op) {
  return op.op == "linear" && Operand(op, kResidual) == kNoValue && Operand(op, kWideFrom) == kNoValue &&
         IsOpen(r, r.graph(), op.inputs[kWeight], op.attrs);
}

// linear(resize(x)) is resize(linear(x)): the weights of an interpolation add up to 1, so the bias may join before.
template <bool kOnce>
Result<ValueId> MultiplyBeforeEnlarging(RuleRewriter& r, const Operation& op) {
  if (!IsPlain(r, op)) return kNoValue;
  const auto x = FindEnlarged(r, op.inputs[kX]);
  if (!x) return kNoValue;
  const std::string activation = ActivationOf(op.attrs);
  const bool activated = activation != "none";
  const int64_t n = r.shape(op.inputs[kWeight])[IsNK(op.attrs) ? 0 : 1];
  if ((activated && !IsOperator(activation)) || Saved(*x, n, activated ? 2 : 0, 0) <= 0) return kNoValue;
  Operation product = op;
  product.attrs.erase("activation");
  THRESHER_ASSIGN(const ValueId enlarged, EnlargeProduct<kOnce>(r, *x, std::move(product)));
  return Activated(r, enlarged, activation, op.source);
}

// linear(cat(x, resize(y), ...)) is the sum of the products of the parts, where some of them are cheaper alone.
template <bool kOnce>
Result<ValueId> MultiplyBeforeJoining(RuleRewriter& r, const Operation& op) {
  if (!IsPlain(r, op)) return kNoValue;
  const auto cat = r.Producer(op.inputs[kX], "cat");
  const size_t rank = r.shape(op.inputs[kX]).size();
  if (!cat || !r.SingleUse(op.inputs[kX]) ||
      FromFront(GetAttr<int64_t>(cat->attrs, "dim", 0), rank) + 1 != static_cast<int64_t>(rank)) {
    return kNoValue;
  }
  const bool nk = IsNK(op.attrs);
  const int64_t n = r.shape(op.inputs[kWeight])[nk ? 0 : 1];
  const std::string activation = ActivationOf(op.attrs);
  // The parts that are multiplied before they are enlarged. The others stay one product, which adds the rest.
  std::vector<std::optional<Enlarged>> apart;
  int64_t rest = 0;
  for (const ValueId part : cat->inputs) {
    std::optional<Enlarged> x = FindEnlarged(r, part);
    // Its sum with others is written and read; nobody writes and reads its channels once more.
    if (x && Saved(*x, n, 2, 2) <= 0) x.reset();
    if (!x) rest += r.shape(part).back();
    apart.push_back(std::move(x));
  }
  const bool ends = rest > 0 || activation == "none" || IsOperator(activation);
  if (!ends || std::none_of(apart.begin(), apart.end(), [](const auto& part) { return part.has_value(); })) {
    return kNoValue;
  }
  const Attrs layout = {{"layout", std::string(nk ? "nk" : "kn")}};
  const ValueId bias = Operand(op, kBias);
  ValueId sum = kNoValue;
  std::vector<ValueId> kept;
  std::vector<Range> kept_inputs;
  int64_t begin = 0;
  for (size_t i = 0; i < apart.size(); ++i) {
    const ValueId part = cat->inputs[i];
    const Range inputs{begin, begin + r.shape(part).back()};
    begin = inputs.end;
    const std::optional<Enlarged>& x = apart[i];
    if (!x) {
      kept.push_back(part);
      kept_inputs.push_back(inputs);
      continue;
    }
    THRESHER_ASSIGN(const ValueId weight, InputsOf(r, op.inputs[kWeight], nk, {inputs}));
    Operation product{"linear", {part, weight}, layout, op.source, op.module};
    if (rest == 0 && sum == kNoValue && bias != kNoValue) product.inputs.push_back(bias);
    THRESHER_ASSIGN(const ValueId value, EnlargeProduct<kOnce>(r, *x, std::move(product)));
    if (sum == kNoValue) {
      sum = value;
    } else {
      THRESHER_ASSIGN(sum, r.Emit({"add", {sum, value}, {}, op.source}));
    }
  }
  if (kept.empty()) return Activated(r, sum, activation, op.source);
  Operation product = op;
  product.inputs = {kept[0], kNoValue, bias, sum};
  product.attrs["residual_first"] = true;
  THRESHER_ASSIGN(product.inputs[kWeight], InputsOf(r, op.inputs[kWeight], nk, kept_inputs));
  if (kept.size() > 1) {
    THRESHER_ASSIGN(product.inputs[kX], r.Emit({"cat", kept, cat->attrs, cat->source}));
  }
  return EmitMoved<kOnce>(r, std::move(product));
}

}  // namespace

Result<Graph> ProductMotion(const Graph& graph, const PassContext& context) {
  static constexpr RuleRewriter::Rule kRules[] = {MultiplyBeforeJoining<true>, MultiplyBeforeEnlarging<true>};
  static constexpr RuleRewriter::Rule kApart[] = {MultiplyBeforeJoining<false>, MultiplyBeforeEnlarging<false>};
  // Of two layers one may be to stay as the model has it.
  const bool once = context.precision.exclude.empty();
  return RuleRewriter(graph, once ? kRules : kApart).Run();
}

}  // namespace thresher::passes
