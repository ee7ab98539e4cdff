#include "thresher/plan/in_place.h"

#include <algorithm>
#include <cstddef>

namespace thresher {
namespace {

// Whether both have each element at the same distance from their first.
bool SameElements(const View& a, const View& b) {
  if (a.dtype != b.dtype || a.size() != b.size()) return false;
  if (a.contiguous() && b.contiguous()) return true;
  return a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape) &&
         std::equal(a.strides, a.strides + a.rank, b.strides);
}

}  // namespace

std::vector<int> ReplacedBuffers(const Plan& plan) {
  std::vector<int> replaced(plan.buffers.size(), -1);
  const auto in_arena = [&](const TensorRef& ref) {
    return ref.buffer >= 0 && plan.buffers[static_cast<size_t>(ref.buffer)].kind == Buffer::Kind::kArena;
  };
  // Other bands may read lines that one writes.
  const std::vector<bool> banded = BandedSteps(plan);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    const int number = plan.target->ReplacedOperand(step);
    if (number < 0 || banded[s]) continue;
    const TensorRef& from = step.operands[static_cast<size_t>(number)];
    const TensorRef& to = step.operands[static_cast<size_t>(step.num_inputs)];
    if (!in_arena(from) || !in_arena(to) || from.buffer == to.buffer) continue;
    const auto uses = std::count_if(step.operands.begin(), step.operands.end(),
                                    [&](const TensorRef& ref) { return ref.buffer == from.buffer; });
    const bool last = plan.buffers[static_cast<size_t>(from.buffer)].last_step == static_cast<int>(s);
    const bool first = plan.buffers[static_cast<size_t>(to.buffer)].first_step == static_cast<int>(s);
    if (uses == 1 && last && first && from.offset == 0 && to.offset == 0 && SameElements(from.view, to.view)) {
      replaced[static_cast<size_t>(to.buffer)] = from.buffer;
    }
  }
  return replaced;
}

int PlaceOf(const Plan& plan, int buffer) {
  for (int next = buffer; next >= 0; next = plan.buffers[static_cast<size_t>(buffer)].replaces) buffer = next;
  return buffer;
}

std::vector<Lifetime> LifetimesOfPlaces(const Plan& plan) {
  std::vector<Lifetime> places;
  places.reserve(plan.buffers.size());
  for (const Buffer& buffer : plan.buffers) places.push_back({buffer.bytes, buffer.first_step, buffer.last_step});
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].replaces < 0) continue;
    Lifetime& place = places[static_cast<size_t>(PlaceOf(plan, static_cast<int>(b)))];
    place.first = std::min(place.first, plan.buffers[b].first_step);
    place.last = std::max(place.last, plan.buffers[b].last_step);
    place.bytes = std::max(place.bytes, plan.buffers[b].bytes);
  }
  return places;
}

}  // namespace thresher
