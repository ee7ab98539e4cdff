#include "thresher/run/model_format.h"

#include <set>

#include "thresher/base/tensor.h"

namespace thresher {
namespace {

std::string Signature(const Graph& graph) {
  std::string text;
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    text += (text.empty() ? "" : ", ") + input.name + ": " + ToString(input.dtype, input.shape);
  }
  return text.empty() ? "no inputs" : text;
}

Status CheckNames(const char* what, const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      return InvalidArgument(std::string("expected names of ") + what + "s that differ, got '" + name + "' twice");
    }
  }
  return Status::Ok();
}

std::vector<std::string> InputNames(const Graph& graph) {
  std::vector<std::string> names;
  for (const ValueId id : graph.inputs()) names.push_back(graph.value(id).name);
  return names;
}

}  // namespace

Status CheckModel(const ModelContents& model) {
  if (model.graphs.empty()) return InvalidArgument("expected a graph, got none");
  const ModelGraph& first = model.graphs.front();
  THRESHER_TRY(CheckNames("input", InputNames(first.graph)));
  THRESHER_TRY(CheckNames("output", first.output_names));
  std::set<std::string> signatures;
  for (const ModelGraph& entry : model.graphs) {
    const size_t outputs = entry.graph.outputs().size();
    if (outputs == 0 || outputs != entry.output_names.size()) {
      return InvalidArgument("expected one name for each output, got " + std::to_string(outputs) + " outputs and " +
                             std::to_string(entry.output_names.size()) + " names");
    }
    if (InputNames(entry.graph) != InputNames(first.graph) || entry.output_names != first.output_names) {
      return InvalidArgument("expected the same inputs and outputs in every graph, got (" + Signature(first.graph) +
                             ") and (" + Signature(entry.graph) + ")");
    }
    if (entry.family && entry.capacity.size() != entry.family->names().size()) {
      return InvalidArgument("expected a largest one of each size, got " + std::to_string(entry.capacity.size()));
    }
    const std::string signature = Signature(entry.graph);
    if (!signatures.insert(signature).second) {
      return InvalidArgument("expected graphs of different input shapes, got (" + signature + ") twice");
    }
  }
  return Status::Ok();
}

}  // namespace thresher
