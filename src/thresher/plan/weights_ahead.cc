#include "thresher/plan/weights_ahead.h"

#include <algorithm>

#include "thresher/base/cpu.h"

namespace thresher {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kShareOfCache = 4;

// What a step multiplies with, if that does not follow from data.
std::span<const std::byte> WeightsOf(const Plan& plan, const Step& step) {
  if (step.data_decides) return {};
  for (const TensorRef& operand : step.operands) {
    if (operand.buffer < 0) continue;
    const Buffer& buffer = plan.buffers[static_cast<size_t>(operand.buffer)];
    if (buffer.kind == Buffer::Kind::kConstant && buffer.origin == Buffer::Origin::kPacked) {
      return {static_cast<const std::byte*>(buffer.data), static_cast<size_t>(buffer.bytes)};
    }
  }
  return {};
}

}  // namespace

WeightsAhead::WeightsAhead(const Plan& plan) : num_threads_(plan.num_threads), next_(plan.steps.size()) {
  std::span<const std::byte> next;
  for (size_t s = plan.steps.size(); s-- > 0;) {
    next_[s] = next;
    const std::span<const std::byte> own = WeightsOf(plan, plan.steps[s]);
    if (!own.empty()) next = own;
  }
}

std::span<const std::byte> WeightsAhead::Behind(size_t step, int thread) const {
  if (thread >= num_threads_) return {};
  const std::span<const std::byte> weights = next_[step];
  const size_t begin = weights.size() / static_cast<size_t>(num_threads_) * static_cast<size_t>(thread);
  const std::span<const std::byte> share = weights.subspan(begin / kLineBytes * kLineBytes);
  return share.first(std::min(share.size(), static_cast<size_t>(Caches().l2) / kShareOfCache));
}

}  // namespace thresher
