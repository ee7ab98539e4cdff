#include "thresher/plan/narrow_copies.h"

#include <utility>
#include <vector>

#include "thresher/plan/uses.h"

namespace thresher {
namespace {

// Whether the step makes floats of 16 bits, without gaps on both sides.
bool Widens(const Step& step) {
  if (step.kernel != KernelId::kCast || step.operands.size() != 2) return false;
  const TensorRef &from = step.operands[0], &to = step.operands[1];
  return SizeOf(from.view.dtype) == 2 && to.view.dtype == DType::kF32 && from.buffer >= 0 && to.buffer >= 0 &&
         from.view.contiguous() && to.view.contiguous() && to.offset == 0;
}

}  // namespace

void CopyBeforeWidening(Plan& plan) {
  const std::vector<Uses> uses = UsesOf(plan);
  const auto alone = [](const std::vector<size_t>& steps, size_t step) {
    return steps.size() == 1 && steps[0] == step;
  };
  const auto is_own = [&](int buffer, size_t writer) {
    return plan.buffers[static_cast<size_t>(buffer)].kind == Buffer::Kind::kArena &&
           alone(uses[static_cast<size_t>(buffer)].writers, writer);
  };
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    Step& widening = plan.steps[s];
    if (!Widens(widening)) continue;
    const int wide = widening.operands[1].buffer;
    const std::vector<size_t>& readers = uses[static_cast<size_t>(wide)].readers;
    if (!is_own(wide, s) || readers.size() != 1 || readers[0] < s) continue;
    Step& copy = plan.steps[readers[0]];
    if (copy.kernel != KernelId::kCopy || copy.operands.size() != 2) continue;
    const TensorRef &from = copy.operands[0], &to = copy.operands[1];
    if (from.view.contiguous() || !to.view.contiguous() || to.view.dtype != DType::kF32 || to.offset != 0 ||
        !is_own(to.buffer, readers[0])) {
      continue;
    }
    const DType narrow = widening.operands[0].view.dtype;
    TensorRef moved = to, source = from;
    moved.buffer = static_cast<int>(plan.buffers.size());
    moved.view.dtype = source.view.dtype = narrow;
    Buffer& buffer = plan.buffers.emplace_back();
    buffer.bytes = to.view.size() * static_cast<int64_t>(SizeOf(narrow));
    source.buffer = widening.operands[0].buffer;
    source.offset += widening.operands[0].offset;
    widening.operands = {moved, to};
    copy.operands = {source, moved};
    copy.bytes = 2 * static_cast<double>(buffer.bytes);
    std::swap(widening, copy);
    // Who has wanted each, and where it stands, stays.
    std::swap(widening.source, copy.source);
    std::swap(widening.module, copy.module);
  }
}

}  // namespace thresher
