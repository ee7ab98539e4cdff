#include "thresher/graph/operator.h"

#include <algorithm>

namespace thresher {
namespace {

std::vector<const OpDef*> CollectOps() {
  std::vector<const OpDef*> all;
  for (const auto family : {LinearOps(), LinearsOps(), GroupedLinearOps(), AttentionOps(), NormOps(), PointwiseOps(),
                            PointwiseChainOps(), ReduceOps(), IndexOps(), SortOps(), ShapeOps(), CreateOps()}) {
    for (const OpDef& op : family) all.push_back(&op);
  }
  std::sort(all.begin(), all.end(), [](const OpDef* a, const OpDef* b) { return a->name < b->name; });
  return all;
}

}  // namespace

std::span<const OpDef* const> AllOps() {
  static const std::vector<const OpDef*> all = CollectOps();
  return all;
}

const OpDef* FindOp(std::string_view name) {
  const auto all = AllOps();
  const auto it =
      std::lower_bound(all.begin(), all.end(), name, [](const OpDef* op, std::string_view n) { return op->name < n; });
  return it != all.end() && (*it)->name == name ? *it : nullptr;
}

bool HasTrait(std::string_view op, Trait trait) {
  const OpDef* row = FindOp(op);
  return row != nullptr && row->Has(trait);
}

}  // namespace thresher
