#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>

#include "thresher/base/phases.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// Where no limit is given: 8 bits of a well-behaved layer lose about 1%, 4 bits about 9%. Far beyond, a few large
// weights have taken the range from all others.
constexpr double kMaxError = 0.04;
constexpr double kMaxErrorInt4 = 0.12;

// Shell wildcards: * matches any text, dots included, and ? any character.
bool Matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, after_star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      star_text = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      t = ++star_text;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(), [](char c) { return c == '*'; });
}

// The pattern that matches the module or one that it is part of; nullptr if none does.
const std::string* Excluded(const std::string& module, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    for (size_t end = module.find('.');; end = module.find('.', end + 1)) {
      if (Matches(pattern, std::string_view(module).substr(0, end))) return &pattern;
      if (end == std::string::npos) break;
    }
  }
  return nullptr;
}

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g%%", 100 * share);
  return text;
}

// Of a group's channels in convolutions of smaller numbers, a multiple: steps along k stay within a tap.
constexpr int64_t kStepChannels = 8;
// Groups of no more outputs than a vector are not products.
constexpr int64_t kVectorOutputs = 16;

bool IsTransposed(const Node& node) { return GetAttr<bool>(node.attrs, "transposed", false); }

// Why a product stays as the model has it whatever its weights are; empty if nothing is against it.
std::string Unsuited(const Graph& graph, const Node& node) {
  if (node.op->name == "linear") return {};
  const Dims& w = graph.value(node.inputs[1]).shape;
  const int64_t groups = GetAttr<int64_t>(node.attrs, "groups", 1);
  const bool transposed = IsTransposed(node);
  if (transposed) {
    const Dims ones(w.size() - 2, 1), stride = GetAttr<Dims>(node.attrs, "stride", ones);
    const Dims dilation = GetAttr<Dims>(node.attrs, "dilation", ones);
    if (groups > 1 || !PhasesPay(std::span(w).subspan(2), stride, dilation)) return "a transposed convolution";
  } else if (groups > 1 && w[0] / groups <= kVectorOutputs) {
    return "a convolution of small groups";
  }
  const int64_t channels = transposed ? w[0] : w[1];
  if (channels % kStepChannels == 0) return {};
  return std::to_string(channels) + " channels are no multiple of " + std::to_string(kStepChannels);
}

// Whether a convolution that Unsuited() names has few channels, or small groups, that are filled up with zeros.
bool IsFilled(const Graph& graph, const Node& node, const PassContext& context) {
  const Dims& w = graph.value(node.inputs[1]).shape;
  const int64_t groups = GetAttr<int64_t>(node.attrs, "groups", 1);
  if (IsTransposed(node)) return false;
  if (groups == 1) return context.fills_channels && context.fills_channels(w[1]);
  return w[1] > 1 && w[1] == w[0] / groups && kVectorOutputs % w[1] == 0 && context.bf16_tiles && context.bf16_tiles();
}

// How many products a number of x takes part in, for all that read it.
int64_t OutputsOf(const Graph& graph, const Node& product) {
  if (product.op->name == "linear") return graph.value(product.outputs[0]).shape.back();
  const Dims& w = graph.value(product.inputs[1]).shape;
  if (IsTransposed(product)) return NumElements(w) / std::max<int64_t>(w[0], 1);
  return NumElements(w) / std::max<int64_t>(w[1] * GetAttr<int64_t>(product.attrs, "groups", 1), 1);
}

// Of how many products a result is the sum.
int64_t DepthOf(const Graph& graph, const Node& product) {
  if (product.op->name == "linear") return graph.value(product.inputs[0]).shape.back();
  const Dims& w = graph.value(product.inputs[1]).shape;
  if (!IsTransposed(product)) return NumElements(w) / std::max<int64_t>(w[0], 1);
  const Dims stride = GetAttr<Dims>(product.attrs, "stride", Dims(w.size() - 2, 1));
  int64_t depth = w[0] / std::max<int64_t>(GetAttr<int64_t>(product.attrs, "groups", 1), 1);
  for (size_t d = 0; d < stride.size(); ++d) depth *= PhaseTaps(w[d + 2], stride[d]);
  return depth;
}

// Fills in precision, weight_error and reason. outputs: OutputsOf() all products that read x.
Status Decide(const Graph& graph, const Node& linear, Precision wanted, int64_t outputs, const PassContext& context,
              PrecisionDecision& decision) {
  const PrecisionOptions& options = context.precision;
  std::string why;
  if (context.arithmetic) std::tie(wanted, why) = context.arithmetic(wanted);
  decision.precision = StoredPrecision(StoredAs(graph.value(linear.inputs[1])));
  if (IsBlocked(decision.precision)) {
    decision.reason = "the weight is stored so";
    return Status::Ok();
  }
  if (const auto set = linear.attrs.find("precision"); set != linear.attrs.end()) {
    decision.precision = ParsePrecision(std::get<std::string>(set->second)).value();
    decision.reason = "the graph sets it";
    return Status::Ok();
  }
  if (!graph.is_constant(linear.inputs[1])) {
    decision.reason = "the weight is not a constant";
    return Status::Ok();
  }
  if (const bool convolution = linear.op->name == "convolution";
      context.multiplies && !context.multiplies(convolution, wanted, decision.k)) {
    const std::string what = convolution ? "a convolution" : "a linear of " + std::to_string(decision.k) + " inputs";
    decision.reason = what + ", which this device does not multiply in " + std::string(Name(wanted));
    return Status::Ok();
  }
  if (decision.reason = Unsuited(graph, linear); !decision.reason.empty()) {
    const bool small = wanted == Precision::kBf16 || wanted == Precision::kInt8;
    if (!small || !IsFilled(graph, linear, context)) return Status::Ok();
    why = decision.reason + ", so it is filled up and multiplied in bf16";
    wanted = Precision::kBf16;
  } else if (wanted == Precision::kInt8 && context.int8_pays && !context.int8_pays(outputs, decision.k)) {
    why = "multiplied in bf16, since int8 saves less time than quantising takes";
    wanted = Precision::kBf16;
  } else if (wanted == Precision::kInt8 && context.int8_beats_floats &&
             !context.int8_beats_floats(graph, linear, outputs, decision.k)) {
    decision.reason = "int8 takes no less time";
    return Status::Ok();
  }
  if (const std::string* pattern = Excluded(linear.module, options.exclude)) {
    decision.reason = "excluded by \"" + *pattern + "\"";
    return Status::Ok();
  }
  if (context.weight_error) {
    const bool transposed = GetAttr<std::string>(linear.attrs, "layout", "nk") == "nk";
    THRESHER_ASSIGN(const WeightError error, context.weight_error(graph.value(linear.inputs[1]), transposed, wanted));
    if (!error.finite) {
      decision.reason = "the weight holds infinities or NaN";
      return Status::Ok();
    }
    if (error.overflows) {
      decision.reason = "the weight exceeds the range of " + std::string(Name(wanted));
      return Status::Ok();
    }
    decision.weight_error = error.relative;
    const double limit =
        options.max_weight_error.value_or(wanted == Precision::kInt4Weight ? kMaxErrorInt4 : kMaxError);
    if (limit > 0 && error.relative > limit) {
      decision.reason = "the weight error of " + Percent(error.relative) + " exceeds " + Percent(limit);
      return Status::Ok();
    }
  }
  decision.precision = wanted;
  decision.reason = why.empty() ? "asked for" : "asked for; " + why;
  return Status::Ok();
}

}  // namespace

Result<Graph> PrecisionAssignment(const Graph& graph, const PassContext& context) {
  const PrecisionOptions& options = context.precision;
  const bool as_stored = options.precision == kModelPrecision;
  const std::optional<Precision> wanted = as_stored ? Precision::kFp32 : ParsePrecision(options.precision);
  if (!wanted) {
    std::string message = "expected a precision of " + std::string(kModelPrecision);
    for (const std::string_view name : kPrecisionNames) message += " " + std::string(name);
    return InvalidArgument(message + ", got '" + options.precision + "'");
  }
  if (options.max_weight_error && !(*options.max_weight_error >= 0)) {
    return InvalidArgument("expected a max_weight_error of 0 (no limit) or more, got " +
                           std::to_string(*options.max_weight_error));
  }
  const auto concerned = [&](const Node& node) {
    if (node.op->name == "linear") {
      return *wanted != Precision::kFp32 || StoredAs(graph.value(node.inputs[1])) != Encoding::kF32;
    }
    return node.op->name == "convolution" && (*wanted == Precision::kInt8 || *wanted == Precision::kBf16);
  };
  if (*wanted == Precision::kFp32 && std::none_of(graph.nodes().begin(), graph.nodes().end(), concerned)) return graph;
  Rewriter rewriter(graph);
  // What int8 does to the operands of attention is larger than what bf16 adds. These products have no weights that
  // would be smaller in bf16, so they stay in fp32 where bf16 would be widened.
  const bool bf16_attention = (*wanted == Precision::kBf16 || *wanted == Precision::kInt8) &&
                              (!context.arithmetic || context.arithmetic(Precision::kBf16).second.empty());
  const bool narrow_attention = bf16_attention || *wanted == Precision::kFp16;
  std::unordered_map<ValueId, int64_t> outputs;  // of what reads a value
  for (const Node& node : graph.nodes()) {
    if (concerned(node)) outputs[node.inputs[0]] += OutputsOf(graph, node);
  }
  for (const Node& node : graph.nodes()) {
    if (node.op->name == "sdpa" && narrow_attention && node.attrs.count("precision") == 0 &&
        Excluded(node.module, options.exclude) == nullptr) {
      Node assigned = node;
      assigned.attrs["precision"] = std::string(Name(bf16_attention ? Precision::kBf16 : Precision::kFp16));
      THRESHER_TRY(rewriter.Copy(assigned));
      continue;
    }
    if (!concerned(node)) {
      THRESHER_TRY(rewriter.Copy(node));
      continue;
    }
    PrecisionDecision decision;
    decision.module = node.module;
    decision.source = node.source;
    decision.op = node.op->name;
    decision.k = DepthOf(graph, node);
    decision.n = graph.value(node.outputs[0]).shape.back();
    if (as_stored) {
      decision.precision = StoredPrecision(StoredAs(graph.value(node.inputs[1])));
      const std::string why = context.arithmetic ? context.arithmetic(decision.precision).second : std::string();
      decision.reason = "the weight is stored so" + (why.empty() ? why : "; " + why);
    } else {
      THRESHER_TRY(Decide(graph, node, *wanted, outputs[node.inputs[0]], context, decision));
    }
    Node assigned = node;
    if (node.attrs.count("precision") == 0 &&
        decision.precision != StoredPrecision(StoredAs(graph.value(node.inputs[1])))) {
      assigned.attrs["precision"] = std::string(Name(decision.precision));
    }
    THRESHER_TRY(rewriter.Copy(assigned));
    if (context.decisions != nullptr) context.decisions->push_back(std::move(decision));
  }
  return rewriter.Finish();
}

}  // namespace thresher::passes
