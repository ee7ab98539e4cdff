#include "thresher/passes/pass_manager.h"

#include <utility>

#include "thresher/base/dtype.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher {
namespace {

constexpr Pass kPasses[] = {
    {kWideningPass,
     "Computes with bf16 and f16 as f32: widens what is read, narrows what is handed out, and moves the rest as it is.",
     passes::ValueWidening},
    {"dead_code", "Drops nodes and constants that no output depends on.", passes::DeadCode},
    {"constant_folding", "Computes what depends on constants alone, within limits on growth.", passes::ConstantFolding},
    {"view_simplification",
     "Collapses chains of views, drops operators that do nothing, and computes broadcast operands before broadcasting "
     "them.",
     passes::ViewSimplification},
    {"common_subexpressions", "Computes equal operations on equal operands once.", passes::CommonSubexpressions},
    {"linear_recognition",
     "Turns products with a constant matrix, and convolutions of one tap, into linear, which packs its weight once.",
     passes::LinearRecognition},
    {"norm_recognition", "Turns x * rsqrt(mean(x^2) + eps) * weight into rms_norm.", passes::NormRecognition},
    {"epilogue_fusion",
     "Lets linear and convolution scale by known factors, add the bias, apply the activation and add the residual.",
     passes::EpilogueFusion},
    {"layout_motion", "Moves reshape and permute past operators that do not mind, so that they meet and cancel.",
     passes::LayoutMotion},
    {"attention_recognition", "Turns softmax(q k / scale + mask) v into sdpa.", passes::AttentionRecognition},
    {"rotary_recognition", "Turns x * cos + turned(x) * sin into rotary.", passes::RotaryRecognition},
    {"product_motion",
     "Multiplies before enlarging where that takes less, and once where a product follows a product then.",
     passes::ProductMotion},
    {"norm_fusion", "Lets layer_norm and rms_norm add the residual.", passes::NormFusion},
    {"precision_assignment", "Chooses the precision of every linear, where other than fp32 is asked for.",
     passes::PrecisionAssignment},
    {"projection_merge", "Computes linears of one operand, such as queries, keys and values, as one product.",
     passes::ProjectionMerge},
    {"pointwise_fusion", "Computes chains of element-wise operators tile by tile, in one loop.",
     passes::PointwiseFusion},
    {kNarrowingPass, "Stores results in bf16 and f16 where the model has them so; for devices that compute with them.",
     passes::ValueNarrowing},
};

constexpr std::string_view kLevels[] = {"O0", "O1", "O2", "O3"};

std::string TypeText(const Value& value) {
  std::string text(Name(value.dtype));
  text += '[';
  for (size_t i = 0; i < value.shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(value.shape[i]);
  return text + "]";
}

Status CheckPorts(const char* what, const Graph& before, const std::vector<ValueId>& wanted, const Graph& after,
                  const std::vector<ValueId>& found) {
  const std::string cure =
      std::string("; a pass keeps the number, the order and the types of ") + what + ", rewrite what stands between";
  if (wanted.size() != found.size()) {
    return InvalidArgument("expected " + std::to_string(wanted.size()) + " " + what + ", got " +
                           std::to_string(found.size()) + cure);
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Value& want = before.value(wanted[i]);
    const Value& have = after.value(found[i]);
    if (want.dtype == have.dtype && want.shape == have.shape) continue;
    return InvalidArgument("expected number " + std::to_string(i) + " of the " + what + " as " + TypeText(want) +
                           ", got " + TypeText(have) + cure);
  }
  return Status::Ok();
}

Result<Graph> RunCustom(const std::function<Result<Graph>(const Graph&)>& run, const Graph& before) {
  THRESHER_ASSIGN(const Graph after, run(before));
  THRESHER_TRY(CheckRewrite(before, after));
  return WithoutDeadNodes(after);
}

}  // namespace

std::span<const Pass> AllPasses() { return kPasses; }

const Pass* FindPass(std::string_view name) {
  for (const Pass& pass : kPasses) {
    if (pass.name == name) return &pass;
  }
  return nullptr;
}

Result<Level> ParseLevel(std::string_view name) {
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    if (kLevels[i] == name) return static_cast<Level>(i);
  }
  return InvalidArgument("expected an optimisation level O0, O1, O2 or O3, got '" + std::string(name) + "'");
}

std::vector<std::string> PassesForLevel(Level level) {
  switch (level) {
    case Level::kO0:
      return {std::string(kWideningPass)};
    case Level::kO1:
      return {std::string(kWideningPass), "dead_code", "constant_folding"};
    case Level::kO2:
    case Level::kO3:
      break;
  }
  // The bias joins its linear before layouts move: a permute that has to pass linear and add passes one node then.
  return {std::string(kWideningPass), "dead_code",
          "constant_folding",         "view_simplification",
          "constant_folding",         "common_subexpressions",
          "linear_recognition",       "norm_recognition",
          "epilogue_fusion",          "layout_motion",
          "attention_recognition",    "view_simplification",
          "epilogue_fusion",          "rotary_recognition",
          "product_motion",           "norm_fusion",
          "constant_folding",         "common_subexpressions",
          "precision_assignment",     "projection_merge",
          "pointwise_fusion"};
}

Status CheckRewrite(const Graph& before, const Graph& after) {
  THRESHER_TRY(CheckPorts("inputs", before, before.inputs(), after, after.inputs()));
  return CheckPorts("outputs", before, before.outputs(), after, after.outputs());
}

Result<Graph> RunPasses(const Graph& graph, std::span<const std::string> names, const PassContext& context,
                        const PassDump& dump, const CustomPasses& custom) {
  for (const std::string& name : names) {
    if (custom.contains(name) || FindPass(name) != nullptr) continue;
    std::string message = "there is no pass '" + name + "'; known are";
    for (const Pass& pass : kPasses) message += " " + std::string(pass.name);
    return InvalidArgument(std::move(message));
  }
  Graph current = graph;
  for (const std::string& name : names) {
    const auto own = custom.find(name);
    Result<Graph> next = own != custom.end() ? RunCustom(own->second, current) : FindPass(name)->run(current, context);
    if (!next.ok()) return Status(next.status().code(), "pass " + name + ": " + next.status().message());
    current = std::move(next).value();
    if (dump) dump(name, current);
  }
  return current;
}

}  // namespace thresher
