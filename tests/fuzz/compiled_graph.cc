// What a model file makes the engine do: passes, plan and a run, for graphs of small tensors. The first byte chooses
// the optimisation level and the precision, the rest is the text of the graph.
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "fuzz/target.h"
#include "fuzz/tensors.h"
#include "thresher/base/precision.h"
#include "thresher/run/compile.h"

namespace thresher {
namespace {

constexpr size_t kMostNodes = 48;

bool IsSmall(const Graph& graph) {
  int64_t elements = 0;
  for (const Value& value : graph.values()) {
    for (const int64_t size : value.shape) {
      if (size > fuzz::kMostElements) return false;  // a zero beside it does not make its products small
    }
    const int64_t count = NumElements(value.shape);
    if (count > fuzz::kMostElements) return false;
    elements += count;
  }
  return graph.nodes().size() <= kMostNodes && elements <= 8 * fuzz::kMostElements;
}

void RequireNoBug(const Status& status) { THRESHER_FUZZ_REQUIRE(status.code() != Code::kInternal, status.message()); }

}  // namespace

THRESHER_FUZZ_TARGET(compiled_graph, (fuzz::MemoryLimit{size_t{192} << 20, 4096})) {
  if (bytes.empty()) return;
  const auto choice = static_cast<unsigned char>(bytes.front());
  const Result<Graph> graph = ParseGraph(bytes.substr(1), fuzz::Resolve);
  if (!graph.ok() || !IsSmall(graph.value())) return;
  CompileOptions options;
  options.level = "O" + std::to_string(choice % 4);
  const size_t precision = choice / 4 % (std::size(kPrecisionNames) + 1);
  if (precision < std::size(kPrecisionNames)) options.precision.precision = kPrecisionNames[precision];
  options.precision.max_weight_error = 0;
  options.plan.recorded = false;  // profiles remember every plan, and here there are millions
  WeightStore weights;
  const Result<std::unique_ptr<Session>> compiled = Compile(graph.value(), weights, options);
  if (!compiled.ok()) return RequireNoBug(compiled.status());
  Session& session = *compiled.value();
  std::vector<View> inputs;
  for (const PortType& port : session.plan().inputs) {
    // Kernels read inputs only.
    inputs.push_back(MakeView(const_cast<void*>(fuzz::Contents(port.dtype)), port.dtype, port.shape));
  }
  std::vector<std::vector<std::byte>> results;
  std::vector<View> outputs;
  for (const PortType& port : session.plan().outputs) {
    results.emplace_back(static_cast<size_t>(NumElements(port.shape)) * SizeOf(port.dtype));
    outputs.push_back(MakeView(results.back().data(), port.dtype, port.shape));
  }
  RequireNoBug(session.Run(inputs, outputs));
}

}  // namespace thresher
