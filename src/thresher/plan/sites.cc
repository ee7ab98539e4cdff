#include "thresher/plan/sites.h"

#include <optional>

#include "thresher/graph/operator.h"
#include "thresher/graph/program.h"

namespace thresher {
namespace {

std::string ShapeText(const Dims& shape) {
  std::string text;
  for (const int64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text.empty() ? "scalar" : text;
}

void Append(std::string& list, const std::string& item) { list += (list.empty() ? "" : ", ") + item; }

// What the arithmetic of a node is done in. `form`: of the rows of its product, if it is one.
std::string PrecisionOf(const Graph& graph, const Node& node, kernels::RowForm form) {
  std::string precision = GetAttr<std::string>(node.attrs, "precision", "");
  if (!precision.empty() || node.outputs.empty()) return precision;
  // The weight is stored so, and the processor multiplies it so.
  if (form == kernels::RowForm::kBF16) return std::string(Name(Precision::kBf16));
  if (form == kernels::RowForm::kF16) return std::string(Name(Precision::kFp16));
  for (const ValueId id : node.inputs) {
    if (id == kNoValue) continue;
    const std::optional<Encoding>& blocks = graph.value(id).constant.blocks;
    if (blocks) return std::string(Name(*blocks));
  }
  const DType dtype = graph.value(node.outputs.front()).dtype;
  return dtype == DType::kF32 ? "fp32" : std::string(Name(dtype));
}

}  // namespace

std::string OperatorsOf(const Node& node) {
  const std::string text = GetAttr<std::string>(node.attrs, "program", "");
  if (text.empty()) return std::string(node.op->name);
  const Result<Program> program = ParseProgram(text);
  if (!program.ok()) return std::string(node.op->name);
  std::string chain;
  for (const ProgramStep& step : program.value()) chain += (chain.empty() ? "" : "+") + step.op;
  return chain;
}

StepShown ShownOf(const Graph& graph, const Node* node, const Step& step, const Plan& plan) {
  StepShown shown;
  const bool product = step.product >= 0;
  const auto form = product ? plan.products[static_cast<size_t>(step.product)].form : kernels::RowForm::kF32;
  if (node != nullptr && step.name == node->op->name) {
    for (const ValueId id : node->inputs) {
      if (id == kNoValue) continue;
      shown.inputs.push_back(graph.value(id).shape);
      Append(shown.dtypes, std::string(Name(graph.value(id).dtype)));
    }
    for (const ValueId id : node->outputs) shown.outputs.push_back(graph.value(id).shape);
    shown.precision = PrecisionOf(graph, *node, form);
    const std::string behind = step.behind.empty() ? "" : "+" + step.behind;
    shown.kernel = OperatorsOf(*node) + behind + " " + shown.precision;
  } else {  // a step beside the node's own, such as a copy that makes an operand row-major
    for (size_t i = 0; i < step.operands.size(); ++i) {
      const View& view = step.operands[i].view;
      const bool output = i >= static_cast<size_t>(step.num_inputs);
      (output ? shown.outputs : shown.inputs).emplace_back(view.shape, view.shape + view.rank);
      if (!output) Append(shown.dtypes, std::string(Name(view.dtype)));
    }
    shown.kernel = step.name;
  }
  return shown;
}

profile::Site SiteOfStep(const Step& step, const std::string& graph_name, int number, std::string_view variant) {
  profile::Site site;
  site.name = step.name;
  site.section = static_cast<profile::Section>(step.section);
  site.module = step.module;
  site.source = step.source;
  site.graph = graph_name;
  site.step = number;
  site.flops = step.flops;
  site.bytes = step.bytes;
  for (const Dims& shape : step.shown.inputs) Append(site.shapes, ShapeText(shape));
  for (const Dims& shape : step.shown.outputs) Append(site.outputs, ShapeText(shape));
  site.dtypes = step.shown.dtypes;
  site.precision = step.shown.precision;
  site.kernel = step.shown.kernel + " " + std::string(variant);
  const bool copies = step.section == Section::kReshape;
  site.hardware = copies ? profile::kMemcpyEvent : profile::kKernelEvent;
  if (step.kernel == KernelId::kAllReduce || step.kernel == KernelId::kAllGather) {
    site.hardware = profile::kUpdateRemoteEvent;
  }
  if (copies) site.kernel = "Memcpy DtoD (" + site.kernel + ")";
  return site;
}

}  // namespace thresher
