// Passes: pure functions from graph to graph, in one ordered list per optimisation level.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thresher/base/precision.h"
#include "thresher/graph/graph.h"

namespace thresher {

// Runs a graph without inputs and gives the contents of its outputs, row-major, in order.
using Evaluator = std::function<Result<std::vector<Constant>>(const Graph&)>;

// What a weight would lose in another precision; `transposed` says it is stored [N, K].
using WeightErrorFunction =
    std::function<Result<WeightError>(const Value& weight, bool transposed, Precision precision)>;

inline constexpr std::string_view kModelPrecision = "model";

// What this machine computes where a precision is asked for, and why where that is not what its name says.
using ArithmeticFunction = std::function<std::pair<Precision, std::string>(Precision wanted)>;

// How precision_assignment chooses.
struct PrecisionOptions {
  // For every linear that nothing below keeps as the model has it: a Precision's name, or "model": as the weight is
  // stored, a float of 16 bits in 16 bits.
  std::string precision = std::string(kModelPrecision);
  std::vector<std::string> exclude;        // modules that stay, with all below them; * and ? are wildcards
  std::optional<double> max_weight_error;  // 0: no limit; nullopt: 0.04, and 0.12 for int4_weight
};

struct PassContext {
  Evaluator evaluate;                // empty: constant folding does only what needs no arithmetic
  WeightErrorFunction weight_error;  // empty: weights are not looked at, and no limit on their error applies
  ArithmeticFunction arithmetic;     // empty: what is asked for
  // As kernels::HasBf16Tiles() and FillsChannels(), empty: no; as kernels::Int8Pays(), empty: always.
  std::function<bool()> bf16_tiles;
  std::function<bool(int64_t channels)> fills_channels;
  std::function<bool(int64_t outputs, int64_t k)> int8_pays;
  // As kernels::Int8BeatsFloats(); empty: always.
  std::function<bool(const Graph& graph, const Node& product, int64_t outputs, int64_t k)> int8_beats_floats;
  // Whether sums of k products are multiplied so, of a convolution or of a linear; empty: they are.
  std::function<bool(bool convolution, Precision precision, int64_t k)> multiplies;
  PrecisionOptions precision;
  std::vector<PrecisionDecision>* decisions = nullptr;  // where precision_assignment reports, one entry a linear
};

struct Pass {
  std::string_view name;
  std::string_view doc;  // one sentence
  Result<Graph> (*run)(const Graph&, const PassContext&);
};

// All passes, each once, in the order of docs/passes.md.
std::span<const Pass> AllPasses();

// The pass of that name, or nullptr.
const Pass* FindPass(std::string_view name);

enum class Level : uint8_t { kO0, kO1, kO2, kO3 };

// "O0" to "O3"; an error lists them.
Result<Level> ParseLevel(std::string_view name);

// The pass that every graph goes through before any other, at every level: what lowering takes computes with f32.
inline constexpr std::string_view kWideningPass = "value_widening";

// The pass that comes last at every level where the device computes with floats of 16 bits (Target::takes_halves).
inline constexpr std::string_view kNarrowingPass = "value_narrowing";

// What the level runs, in order. A pass may stand there more than once.
std::vector<std::string> PassesForLevel(Level level);

// Called after each pass with its name and what it made.
using PassDump = std::function<void(std::string_view pass, const Graph& graph)>;

// Passes that the caller brings along, by name; they stand in the list of names like the engine's own. What one returns
// is checked with CheckRewrite and loses its dead nodes.
using CustomPasses = std::map<std::string, std::function<Result<Graph>(const Graph&)>, std::less<>>;

// Whether `after` can stand for `before`: the same types of inputs and outputs, in the same order. Callers of a plan
// pass tensors by position.
Status CheckRewrite(const Graph& before, const Graph& after);

// Runs the named passes in order. An unknown name is an error that lists the known ones; errors of a pass begin with
// "pass NAME: ".
Result<Graph> RunPasses(const Graph& graph, std::span<const std::string> names, const PassContext& context,
                        const PassDump& dump = {}, const CustomPasses& custom = {});

}  // namespace thresher
