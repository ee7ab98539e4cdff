#include "thresher/plan/weights_ahead.h"

#include <algorithm>

#include "thresher/base/cpu.h"
#include "thresher/kernels/gemm.h"

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

// What the thread begins with of the step's weights. Threads may share its rows or have bands of them, and all of them
// begin with the first weights; of other steps each takes its share of the weights in order.
std::span<const std::byte> ShareOf(const Plan& plan, const Step& step, bool banded, std::span<const std::byte> weights,
                                   int thread) {
  const auto parts = static_cast<size_t>(plan.num_threads);
  size_t begin = banded ? 0 : weights.size() / parts * static_cast<size_t>(thread);
  if (step.product >= 0 && !banded) {
    const int owners = std::min(step.parts, plan.num_threads);
    if (thread >= owners) return {};
    const PlannedProduct& product = plan.products[static_cast<size_t>(step.product)];
    const auto panels = [&](int part) {
      return kernels::ShareOfProduct(product.key.m, product.key.n, part, step.parts, product.blocking.split)
          .panel_begin;
    };
    const auto all = static_cast<size_t>((product.key.n + kernels::PackedColumns() - 1) / kernels::PackedColumns());
    begin = weights.size() / std::max<size_t>(all, 1) * panels(step.parts * thread / owners);
  }
  const std::span<const std::byte> share = weights.subspan(std::min(begin, weights.size()) / kLineBytes * kLineBytes);
  return share.first(std::min(share.size(), static_cast<size_t>(Caches().l2) / kShareOfCache));
}

}  // namespace

WeightsAhead::WeightsAhead(const Plan& plan) : num_threads_(plan.num_threads) {
  const auto threads = static_cast<size_t>(num_threads_);
  next_.resize(plan.steps.size() * threads);
  std::vector<std::span<const std::byte>> next(threads);
  const std::vector<bool> banded = BandedSteps(plan);
  for (size_t s = plan.steps.size(); s-- > 0;) {
    std::ranges::copy(next, next_.begin() + static_cast<std::ptrdiff_t>(s * threads));
    const std::span<const std::byte> own = WeightsOf(plan, plan.steps[s]);
    if (own.empty()) continue;
    for (int thread = 0; thread < num_threads_; ++thread) {
      next[static_cast<size_t>(thread)] = ShareOf(plan, plan.steps[s], banded[s], own, thread);
    }
  }
}

std::span<const std::byte> WeightsAhead::Behind(size_t step, int thread) const {
  if (thread >= num_threads_) return {};
  return next_[step * static_cast<size_t>(num_threads_) + static_cast<size_t>(thread)];
}

std::span<const std::byte> WeightsAhead::During(size_t step, int part, int num_parts, int thread) const {
  const int owners = std::min(num_parts, num_threads_);
  if (thread >= owners) return {};
  const int first = num_parts * thread / owners, count = num_parts * (thread + 1) / owners - first;
  if (part < first || part >= first + count) return {};
  const std::span<const std::byte> all = Behind(step, thread);
  const auto line = [&](int share) {
    return all.size() * static_cast<size_t>(share) / static_cast<size_t>(count) / kLineBytes * kLineBytes;
  };
  const size_t begin = line(part - first);
  return all.subspan(begin, (part - first + 1 < count ? line(part - first + 1) : all.size()) - begin);
}

}  // namespace thresher
