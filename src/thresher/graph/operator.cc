#include "thresher/graph/operator.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

namespace thresher {
namespace {

bool IsBefore(const OpDef* a, const OpDef* b) { return a->name < b->name; }

std::vector<const OpDef*> CollectOps() {
  std::vector<const OpDef*> all;
  for (const auto family :
       {LinearOps(), LinearsOps(), GroupedLinearOps(), ConvolutionOps(), ResampleOps(), AttentionOps(),
        PagedAttentionOps(), RotaryOps(), NormOps(), PointwiseOps(), PointwiseChainOps(), ReduceOps(), IndexOps(),
        SortOps(), ShapeOps(), CreateOps(), CommunicationOps()}) {
    for (const OpDef& op : family) all.push_back(&op);
  }
  std::sort(all.begin(), all.end(), IsBefore);
  return all;
}

// The rows as they are now. Lists that were handed out are kept, since nodes and readers hold what they have seen.
struct Table {
  std::mutex mutex;
  std::deque<std::vector<const OpDef*>> lists{CollectOps()};
  std::deque<std::vector<OpDef>> added;
  std::atomic<const std::vector<const OpDef*>*> current{&lists.back()};
};

Table& TheTable() {
  static auto* const table = new Table;
  return *table;
}

}  // namespace

NodeTypes::NodeTypes(const Graph& graph, const Node& node) {
  inputs.resize(node.inputs.size());
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] == kNoValue) continue;
    const Value& value = graph.value(node.inputs[i]);
    inputs[i].dtype = value.dtype;
    inputs[i].shape = value.shape;
    inputs[i].present = true;
    inputs[i].blocks = value.constant.blocks;
  }
  for (const ValueId id : node.outputs) outputs.push_back({graph.value(id).dtype, graph.value(id).shape});
}

bool IsConstantWeight(const Graph& graph, const Node& node, size_t operand) {
  if (node.op->weights == nullptr) return false;
  const auto [first, last] = node.op->weights(node.attrs, node.inputs.size());
  return operand >= first && operand < last && graph.is_constant(node.inputs[operand]);
}

std::span<const OpDef* const> AllOps() { return *TheTable().current.load(std::memory_order_acquire); }

Status AddOps(std::vector<OpDef> rows) {
  Table& table = TheTable();
  const std::lock_guard lock(table.mutex);
  std::vector<const OpDef*> all = table.lists.back();
  const std::vector<OpDef>& kept = table.added.emplace_back(std::move(rows));
  for (const OpDef& op : kept) all.push_back(&op);
  std::sort(all.begin(), all.end(), IsBefore);
  const auto twice =
      std::adjacent_find(all.begin(), all.end(), [](const OpDef* a, const OpDef* b) { return a->name == b->name; });
  if (twice != all.end()) {
    const std::string name((*twice)->name);
    table.added.pop_back();
    return InvalidArgument("expected operators with names of their own, got '" + name + "', which there is already");
  }
  table.current.store(&table.lists.emplace_back(std::move(all)), std::memory_order_release);
  return Status::Ok();
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
