#include "thresher/run/compile.h"

#include <algorithm>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/windows.h"
#include "thresher/kernels/winograd.h"
#include "thresher/profile/runtime_interval.h"

namespace thresher {
namespace {

// What constant folding calls: the contents of a graph's outputs.
Result<std::vector<Constant>> EvaluateConstants(const Graph& graph) {
  THRESHER_ASSIGN(const std::vector<OwnedTensor> tensors, Evaluate(graph));
  std::vector<Constant> constants;
  for (const OwnedTensor& tensor : tensors) {
    Constant constant;
    constant.owner = AlignedCopy(*tensor.bytes);
    constant.data = constant.owner.get();
    constants.push_back(std::move(constant));
  }
  return constants;
}

// What a multiplication of a linear or a convolution takes as floats, of one of plain sums: less than 1 where there are
// fewer of them (kernels/winograd.h).
double FloatShare(const Graph& graph, const Node& product) {
  if (product.op->name != "convolution" || GetAttr<bool>(product.attrs, "transposed", false)) return 1;
  const Dims& weight = graph.value(product.inputs[1]).shape;  // [K, C / groups, kernel...]
  const Dims& out = graph.value(product.outputs[0]).shape;    // [N, positions..., K]
  const size_t rank = weight.size() - 2;
  const Dims ones(rank, 1);
  const Dims stride = GetAttr<Dims>(product.attrs, "stride", ones);
  const Dims dilation = GetAttr<Dims>(product.attrs, "dilation", ones);
  kernels::Windows windows;
  windows.channels = weight[1];
  for (size_t i = 0; i < rank; ++i) {
    const size_t d = 3 - rank + i;
    windows.out[d] = out[1 + i];
    windows.kernel[d] = weight[2 + i];
    windows.stride[d] = stride[i];
    windows.dilation[d] = dilation[i];
  }
  const int64_t outputs = weight[0] / GetAttr<int64_t>(product.attrs, "groups", 1);
  const WinogradTile tile = kernels::SuitableWinogradTile(windows, outputs, true);
  return kernels::WinogradShare(tile, windows.channels, windows.kernel[0], outputs);
}

}  // namespace

Result<CompiledPlan> CompilePlan(const Graph& graph, WeightStore& weights, const CompileOptions& options) {
  const profile::RuntimeInterval interval(profile::kCompileGraphEvent, options.plan.name);
  std::vector<std::string> names;
  if (options.passes) {
    names = *options.passes;
  } else {
    THRESHER_ASSIGN(const Level level, ParseLevel(options.level));
    names = PassesForLevel(level);
  }
  if (std::find(names.begin(), names.end(), kWideningPass) == names.end()) names.emplace(names.begin(), kWideningPass);
  if (options.device->target()->takes_halves() &&
      std::find(names.begin(), names.end(), kNarrowingPass) == names.end()) {
    names.emplace_back(kNarrowingPass);
  }
  if (options.dump) options.dump("input", graph);
  PassContext context;
  context.evaluate = EvaluateConstants;
  context.weight_error = [&](const Value& weight, bool transposed, Precision precision) {
    // Of a convolution [K, C / groups, kernel...], what an output channel meets.
    const int64_t k = weight.shape.size() > 2 ? NumElements(weight.shape) / std::max<int64_t>(weight.shape[0], 1)
                                              : weight.shape[transposed ? 1 : 0];
    return weights.GetError(WeightStore::MatrixOf(weight, transposed), k, transposed, precision,
                            options.plan.num_threads);
  };
  context.arithmetic = [&](Precision wanted) {
    if (!options.device->is_host()) {
      if (wanted != Precision::kInt8) return std::make_pair(wanted, std::string());
      return std::make_pair(Precision::kInt8Weight, std::string("this device multiplies int8 weights by floats"));
    }
    kernels::Arithmetic arithmetic = kernels::ArithmeticFor(wanted);
    return std::make_pair(arithmetic.precision, std::move(arithmetic.why));
  };
  if (options.device->is_host()) {
    context.bf16_tiles = kernels::HasBf16Tiles;
    context.fills_channels = kernels::FillsChannels;
    context.int8_pays = kernels::Int8Pays;
    context.int8_beats_floats = [](const Graph& of, const Node& product, int64_t outputs, int64_t k) {
      return kernels::Int8BeatsFloats(outputs, k, FloatShare(of, product));
    };
  } else {
    context.multiplies = [](bool convolution, Precision precision, int64_t k) {
      const bool blocks = precision == Precision::kInt8Weight || precision == Precision::kInt4Weight;
      return !blocks || (!convolution && k % kernels::kInt4Group == 0);
    };
  }
  context.precision = options.precision;
  CompiledPlan compiled;
  context.decisions = &compiled.decisions;
  THRESHER_ASSIGN(const Graph optimised, RunPasses(graph, names, context, options.dump, options.custom_passes));
  PlanOptions plan_options = options.plan;
  plan_options.target = options.device->target();
  THRESHER_ASSIGN(compiled.plan, BuildPlan(optimised, weights, plan_options));
  return compiled;
}

Result<std::unique_ptr<Session>> Compile(const Graph& graph, WeightStore& weights, const CompileOptions& options) {
  THRESHER_ASSIGN(CompiledPlan compiled, CompilePlan(graph, weights, options));
  return Session::Create(options.device, std::move(compiled.plan), weights, std::move(compiled.decisions),
                         options.graphs);
}

Result<std::vector<OwnedTensor>> Evaluate(const Graph& graph, const std::vector<View>& inputs) {
  WeightStore weights;
  PlanOptions options;
  options.recorded = false;
  THRESHER_ASSIGN(std::shared_ptr<const Plan> plan, BuildPlan(graph, weights, options));
  Session session(std::move(plan));
  std::vector<OwnedTensor> results;
  std::vector<View> views;
  for (const PortType& port : session.plan().outputs) {
    const size_t size = static_cast<size_t>(NumElements(port.shape)) * SizeOf(port.dtype);
    OwnedTensor tensor{port.dtype, port.shape, std::make_shared<std::vector<std::byte>>(size)};
    views.push_back(MakeView(tensor.bytes->data(), port.dtype, port.shape));
    results.push_back(std::move(tensor));
  }
  THRESHER_TRY(session.Run(inputs, views));
  return results;
}

}  // namespace thresher
