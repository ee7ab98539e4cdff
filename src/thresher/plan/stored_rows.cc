#include "thresher/plan/stored_rows.h"

#include <algorithm>
#include <span>

#include "thresher/plan/uses.h"

namespace thresher {
void StoreRows(Plan& plan, std::vector<const Node*>& origins) {
  const Target& target = *plan.target;
  const std::vector<Uses> uses = UsesOf(plan);
  std::vector<bool> gone(plan.steps.size(), false);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    Step& writer = plan.steps[s];
    const auto results = std::span(writer.operands).subspan(static_cast<size_t>(writer.num_inputs));
    const auto num_results =
        std::count_if(results.begin(), results.end(), [](const TensorRef& r) { return r.buffer >= 0; });
    if (gone[s] || num_results != 1 || results.front().buffer < 0) continue;
    const int number = results.front().buffer;
    const Buffer& buffer = plan.buffers[static_cast<size_t>(number)];
    const Uses& use = uses[static_cast<size_t>(number)];
    if (buffer.kind != Buffer::Kind::kArena || use.writers.size() != 1 || use.readers.empty()) continue;
    StoredRows rows;
    if (!target.StoresRows(writer, rows)) continue;
    size_t wholes = 0, whole = 0;
    const auto readers_of = [&](int of) -> const std::vector<size_t>& { return uses[static_cast<size_t>(of)].readers; };
    // Whether who reads what a conversion would make of given rows can read these.
    const auto replaced = [&](const Step& conversion) {
      const int made = conversion.operands.back().buffer;
      const auto reads = [&](size_t r) { return target.TakesRows(plan.steps[r], made, rows) == Taken::kRead; };
      return std::all_of(readers_of(made).begin(), readers_of(made).end(), reads);
    };
    const auto all_take = [&] {
      wholes = 0;
      return std::all_of(use.readers.begin(), use.readers.end(), [&](size_t r) {
        Taken taken = target.TakesRows(plan.steps[r], number, rows);
        if (taken == Taken::kWhole && rows.given && !replaced(plan.steps[r])) taken = Taken::kRead;
        if (taken == Taken::kWhole) ++wholes, whole = r;
        return r > s && (rows.whole ? taken == Taken::kWhole : taken != Taken::kNot);
      });
    };
    // Once more: a reader that takes them whole says how far apart they are.
    if (!all_take() || !all_take() || wholes > 1) continue;
    TensorRef place;
    place.buffer = number;
    if (wholes == 1) place = plan.steps[whole].operands.back();
    if (rows.given) place = writer.operands.front();
    gone[s] = rows.given;
    Buffer& to = plan.buffers[static_cast<size_t>(place.buffer)];
    const int64_t bytes = rows.rows * rows.stride * static_cast<int64_t>(sizeof(uint16_t));
    if (place.buffer == number && !rows.given) {
      to.bytes = bytes;
    } else if (to.kind == Buffer::Kind::kArena) {
      to.bytes = std::max(to.bytes, bytes);
    }
    place.view = MakeView(nullptr, DType::kBF16, {rows.rows, rows.columns});
    place.view.strides[0] = rows.stride;
    rows.place = &place;
    if (!rows.given) target.StoresRows(writer, rows);
    for (const size_t r : use.readers) {
      gone[r] = wholes == 1 && r == whole;
      if (!gone[r]) target.TakesRows(plan.steps[r], number, rows);
    }
    if (wholes == 0 || !rows.given) continue;
    const int made = plan.steps[whole].operands.back().buffer;
    for (const size_t r : readers_of(made)) target.TakesRows(plan.steps[r], made, rows);
  }
  LeaveOut(gone, plan.steps);
  LeaveOut(gone, origins);
}

}  // namespace thresher
