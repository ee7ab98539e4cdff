#include <map>
#include <utility>

#include "thresher/graph/operator.h"
#include "thresher/graph/printer.h"
#include "thresher/graph/rewriter.h"
#include "thresher/passes/passes.h"

namespace thresher::passes {
namespace {

// A string of parts that equals another one only when all parts do.
class Key {
 public:
  void Add(const void* bytes, size_t size) {
    text_.append(reinterpret_cast<const char*>(&size), sizeof(size));
    text_.append(static_cast<const char*>(bytes), size);
  }
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_pointer_v<T>
  void Add(T number) {
    Add(static_cast<const void*>(&number), sizeof(number));
  }
  void Add(std::string_view text) { Add(text.data(), text.size()); }
  void Add(const Dims& ints) { Add(ints.data(), ints.size() * sizeof(int64_t)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Constants are equal when they are the same memory, or small and the same bytes.
std::string ConstantKey(const Value& constant) {
  Key key;
  key.Add(static_cast<int>(constant.dtype));
  key.Add(constant.shape);
  const int64_t elements = NumElements(constant.shape);
  if (!constant.constant.is_weight && elements <= kMaxInlineElements) {
    key.Add(constant.constant.data, static_cast<size_t>(ConstantBytes(constant)));
  } else {
    key.Add(constant.constant.is_weight);
    key.Add(constant.constant.data);
    if (constant.constant.blocks) key.Add(Name(*constant.constant.blocks));
  }
  return key.text();
}

std::string NodeKey(const Node& node, const std::vector<ValueId>& inputs) {
  Key key;
  key.Add(node.op->name);
  key.Add(inputs.data(), inputs.size() * sizeof(ValueId));
  for (const auto& [name, attr] : node.attrs) {
    key.Add(std::string_view(name));
    key.Add(attr.index());
    std::visit([&key](const auto& held) { key.Add(held); }, attr);
  }
  return key.text();
}

// Nodes of which all users are barriers. Two that are equal at some sizes need not be at others; those that are at all
// have been made one (GraphFamily::At).
std::vector<bool> Hidden(const Graph& graph) {
  std::vector<bool> hidden(graph.values().size(), false), seen(graph.values().size(), false);
  for (const Node& node : graph.nodes()) {
    for (const ValueId id : node.inputs) {
      if (id != kNoValue) (node.op->name == "barrier" ? hidden : seen)[static_cast<size_t>(id)] = true;
    }
  }
  for (const ValueId id : graph.outputs()) seen[static_cast<size_t>(id)] = true;
  for (size_t id = 0; id < hidden.size(); ++id) hidden[id] = hidden[id] && !seen[id];
  return hidden;
}

}  // namespace

Result<Graph> CommonSubexpressions(const Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  const std::vector<bool> hidden = Hidden(graph);
  std::map<std::string, ValueId> constants;
  std::map<std::string, std::vector<ValueId>> nodes;
  for (ValueId id = 0; id < static_cast<ValueId>(graph.values().size()); ++id) {
    if (!graph.is_constant(id)) continue;
    const auto [first, added] = constants.emplace(ConstantKey(graph.value(id)), id);
    if (!added) rewriter.Replace(id, rewriter.Map(first->second));
  }
  for (const Node& node : graph.nodes()) {
    if (hidden[static_cast<size_t>(node.outputs[0])]) {
      THRESHER_TRY(rewriter.Copy(node));
      continue;
    }
    const auto [first, added] = nodes.try_emplace(NodeKey(node, rewriter.MapAll(node.inputs)));
    if (added) {
      THRESHER_TRY(rewriter.Copy(node));
      first->second = rewriter.MapAll(node.outputs);
    } else {
      for (size_t i = 0; i < node.outputs.size(); ++i) rewriter.Replace(node.outputs[i], first->second[i]);
    }
  }
  return rewriter.Finish();
}

}  // namespace thresher::passes
