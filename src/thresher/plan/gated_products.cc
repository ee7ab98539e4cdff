#include "thresher/plan/gated_products.h"

#include <algorithm>
#include <optional>

#include "thresher/kernels/pointwise_chain.h"
#include "thresher/plan/sites.h"
#include "thresher/plan/uses.h"

namespace thresher {
namespace {

using kernels::Chain;
using kernels::ChainArg;
using kernels::ChainStep;

constexpr double kFloatBytes = sizeof(float);

bool IsOperand(const ChainArg& arg, int index) {
  return arg.kind == ChainArg::Kind::kOperand && static_cast<int>(arg.index) == index;
}

// The activation of operand `opened` that the chain multiplies operand 1 - `opened` by, if that is what it does.
std::optional<kernels::Activation> GateOf(const Chain& chain, int opened) {
  if (chain.num_operands != 2 || chain.num_steps != 2) return std::nullopt;
  const ChainStep &open = chain.steps[0], &times = chain.steps[1];
  if (open.kind != ChainStep::Kind::kUnary || !IsOperand(open.args[0], opened)) return std::nullopt;
  if (times.kind != ChainStep::Kind::kBinary || times.binary != kernels::BinaryOp::kMul) return std::nullopt;
  const auto both = [&](const ChainArg& a, const ChainArg& b) {
    return a.kind == ChainArg::Kind::kStep && IsOperand(b, 1 - opened);
  };
  if (!both(times.args[0], times.args[1]) && !both(times.args[1], times.args[0])) return std::nullopt;
  return kernels::ParseActivation(kernels::Name(open.unary));
}

// Rows of floats in a buffer.
struct RowsAt {
  int64_t rows = 1, columns = 0, stride = 0;  // from one row to the next
};

std::optional<RowsAt> RowsOf(const View& view) {
  if (view.dtype != DType::kF32 || view.rank == 0) return std::nullopt;
  RowsAt at;
  return AsRows(view, &at.rows, &at.columns, &at.stride) ? std::optional(at) : std::nullopt;
}

// What `chain` asks of the step that wrote both of its operands, into one buffer.
std::optional<GatedResult> GatedBy(const Step& chain) {
  const Chain& params = *reinterpret_cast<const Chain*>(chain.params.data());
  const TensorRef &a = chain.operands[0], &b = chain.operands[1], &out = chain.operands.back();
  const auto first = RowsOf(a.view), second = RowsOf(b.view), result = RowsOf(out.view);
  if (!first || !second || !result || a.buffer != b.buffer || out.offset != 0) return std::nullopt;
  const auto same = [&](const RowsAt& rows) {
    return rows.rows == result->rows && rows.columns == result->columns &&
           (rows.rows == 1 || rows.stride == first->stride);
  };
  if (!same(*first) || !same(*second) || (result->rows > 1 && result->stride != result->columns)) return std::nullopt;
  GatedResult gated;
  gated.rows = result->rows;
  gated.columns = result->columns;
  gated.second = std::max(a.offset, b.offset);
  if (std::min(a.offset, b.offset) != 0 || gated.second < gated.columns) return std::nullopt;
  for (const int opened : {0, 1}) {
    const auto activation = GateOf(params, opened);
    if (!activation) continue;
    gated.activation = *activation;
    gated.gate =
        chain.operands[static_cast<size_t>(opened)].offset == 0 ? kernels::Gate::kFirst : kernels::Gate::kSecond;
    return gated;
  }
  return std::nullopt;
}

}  // namespace

void GateProducts(Plan& plan, std::vector<const Node*>& origins) {
  const Target& target = *plan.target;
  const std::vector<Uses> uses = UsesOf(plan);
  std::vector<bool> gone(plan.steps.size(), false);
  // The uses of what only steps of this plan see.
  const auto inner = [&](int buffer) -> const Uses* {
    if (buffer < 0 || plan.buffers[static_cast<size_t>(buffer)].kind != Buffer::Kind::kArena) return nullptr;
    const Uses& use = uses[static_cast<size_t>(buffer)];
    return use.writers.size() == 1 ? &use : nullptr;
  };
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    Step& chain = plan.steps[s];
    if (chain.kernel != KernelId::kPointwise || chain.operands.size() != 3) continue;
    const Uses *const halves = inner(chain.operands[0].buffer), *const result = inner(chain.operands.back().buffer);
    if (halves == nullptr || result == nullptr || halves->readers.size() != 1) continue;
    Step& product = plan.steps[halves->writers[0]];
    std::optional<GatedResult> gated = GatedBy(chain);
    if (!gated || !target.TakesGate(product, *gated)) continue;
    gated->place = &chain.operands.back();
    target.TakesGate(product, *gated);
    gone[s] = true;
    product.behind = OperatorsOf(*origins[s]);
    const double numbers = static_cast<double>(gated->rows * gated->columns);
    if (product.flops >= 0) product.flops += std::max(chain.flops, 0.0);
    product.bytes += chain.bytes - 4 * kFloatBytes * numbers;
    if (result->readers.size() != 1) continue;
    const Step& conversion = plan.steps[result->readers[0]];
    if (inner(conversion.operands.back().buffer) == nullptr || !target.TakesConversion(product, conversion)) continue;
    gone[result->readers[0]] = true;
    product.bytes += conversion.bytes - 2 * kFloatBytes * numbers;
  }
  LeaveOut(gone, plan.steps);
  LeaveOut(gone, origins);
}

}  // namespace thresher
