#include "thresher/run/band_runner.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "thresher/base/clock.h"

namespace thresher {
namespace {

void Advance(View& view, int64_t bytes) {
  if (view.data != nullptr) view.data = static_cast<std::byte*>(view.data) + bytes;
}

}  // namespace

Status RunBand(const SizedPlan& sized, const Bands& bands, int part, const StepContext& context,
               std::atomic<int64_t>* took) {
  const Plan& plan = sized.plan();
  const std::span<const CpuKernel> kernels = CpuKernels();
  const int64_t picture = part / bands.in_picture;
  std::array<LineRange, Bands::kMostSteps> ranges;
  bands.Ranges(part % bands.in_picture, ranges.data());
  int64_t start = took == nullptr ? 0 : NowNs();
  for (size_t i = 0; i < bands.steps.size(); ++i) {
    const size_t s = bands.first + i;
    const Step& step = plan.steps[s];
    const CpuKernel& kernel = kernels[static_cast<size_t>(step.kernel)];
    const StepLines& lines = bands.steps[i].lines;
    const LineRange range = ranges[i], read = LinesRead(lines, range);
    alignas(std::max_align_t) std::byte params[Bands::kMostParams];
    std::memcpy(params, sized.params[s], step.params_type->bytes);
    kernel.cut(params, {.positions = range.size() * lines.positions,
                        .lines = range.size(),
                        .x_lines = read.size(),
                        .padding = read.begin - (range.begin * lines.stride - lines.padding)});
    std::array<View, Bands::kMostOperands> operands;
    std::copy_n(sized.operands.begin() + static_cast<std::ptrdiff_t>(sized.first_operand[s]), step.operands.size(),
                operands.begin());
    if (i > 0) {
      operands[0].data = context.scratch + bands.steps[i - 1].place;
    } else {
      Advance(operands[0], picture * lines.x_picture + read.begin * lines.x_line);
    }
    const int64_t before = picture * lines.lines + range.begin;
    const auto result = static_cast<size_t>(step.num_inputs);
    if (lines.added > 0) Advance(operands[lines.added], before * lines.added_line);
    if (bands.steps[i].place >= 0) {
      operands[result].data = context.scratch + bands.steps[i].place;
    } else {
      Advance(operands[result], before * lines.line);
    }
    StepContext c = context;
    c.operands = operands.data();
    c.num_inputs = step.num_inputs;
    c.params = params;
    if (i + 1 < bands.steps.size()) c.ahead = {};
    THRESHER_TRY(kernel.run(c));
    if (took != nullptr) {
      const int64_t end = NowNs();
      took[s].fetch_add(end - start, std::memory_order_relaxed);
      start = end;
    }
  }
  return Status::Ok();
}

}  // namespace thresher
