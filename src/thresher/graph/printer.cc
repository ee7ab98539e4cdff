#include "thresher/graph/printer.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#include "thresher/base/half.h"
#include "thresher/graph/operator.h"

namespace thresher {
namespace {

template <class T>
std::string Shortest(T number) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number).ptr;
  return std::string(buffer, end);
}

// `text` in double quotes, with escapes for quotes, backslashes and control characters.
std::string Quote(std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      quoted += "\\x";
      quoted += kDigits[byte >> 4];
      quoted += kDigits[byte & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// Always recognisable as a floating-point number, and exact.
std::string Text(double number) {
  std::string text = Shortest(number);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

std::string Text(const Dims& ints) { return ToString(ints); }

std::string Text(bool flag) { return flag ? "true" : "false"; }
std::string Text(int64_t number) { return std::to_string(number); }
std::string Text(const std::string& text) { return Quote(text); }

template <class T>
T Element(const void* data, int64_t i) {
  T element;
  std::memcpy(&element, static_cast<const char*>(data) + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return element;
}

// NaNs but the usual one stand as their bits: the text must give back the same constant.
std::string FloatText(float number, uint32_t bits, uint32_t usual_nan) {
  if (!std::isnan(number)) return Shortest(number);
  if (bits == usual_nan) return "nan";
  char buffer[16];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), bits, 16).ptr;
  return "0x" + std::string(buffer, end);
}

std::string ElementText(const Value& constant, int64_t i) {
  const void* data = constant.constant.data;
  switch (constant.dtype) {
    case DType::kF32: {
      const float number = Element<float>(data, i);
      return FloatText(number, std::bit_cast<uint32_t>(number), 0x7fc00000);
    }
    case DType::kI64:
      return std::to_string(Element<int64_t>(data, i));
    case DType::kI32:
      return std::to_string(Element<int32_t>(data, i));
    case DType::kBool:
      return Element<uint8_t>(data, i) != 0 ? "true" : "false";
    case DType::kBF16: {
      const BF16 number = Element<BF16>(data, i);
      return FloatText(ToFloat(number), number.bits, 0x7fc0);
    }
    case DType::kF16: {
      const F16 number = Element<F16>(data, i);
      return FloatText(ToFloat(number), number.bits, 0x7e00);
    }
  }
  return {};
}

std::string TypeText(const Value& value) { return std::string(Name(value.dtype)) + ToString(value.shape); }

std::string BlocksText(const Value& value) {
  return value.constant.blocks ? " as " + std::string(Name(*value.constant.blocks)) : "";
}

}  // namespace

std::string PrintGraph(const Graph& graph, const PrintOptions& options) {
  const CanonicalOrder order = MakeCanonicalOrder(graph);
  const auto reference = [&order](ValueId id) {
    return id == kNoValue ? std::string("_") : "%" + std::to_string(order.numbers[static_cast<size_t>(id)]);
  };
  std::string text = "graph 1\n";
  for (const ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    text += (graph.is_state(id) ? "state " : "input ") + reference(id) + " " + Quote(input.name) + " : " +
            TypeText(input) + BlocksText(input) + "\n";
  }
  for (const ValueId id : order.constants) {
    const Value& constant = graph.value(id);
    text += constant.constant.is_weight ? "weight " : "const ";
    text += reference(id) + " " + Quote(constant.name) + " : " + TypeText(constant);
    text += BlocksText(constant);
    const int64_t elements = NumElements(constant.shape);
    if (!constant.constant.is_weight && elements <= kMaxInlineElements) {
      text += " = [";
      for (int64_t i = 0; i < elements; ++i) text += (i ? ", " : "") + ElementText(constant, i);
      text += ']';
    } else if (options.digests) {
      text += " digest " + ToHex(HashConstant(constant, options.digest_cache));
    }
    text += '\n';
  }
  for (const Node& node : graph.nodes()) {
    std::string types;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      text += (i ? ", " : "") + reference(node.outputs[i]);
      types += (i ? ", " : " : ") + TypeText(graph.value(node.outputs[i]));
    }
    text += " = " + std::string(node.op->name) + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i) text += (i ? ", " : "") + reference(node.inputs[i]);
    text += ')';
    const char* separator = " {";
    for (const auto& [name, attr] : node.attrs) {
      text += separator + name + " = " + std::visit([](const auto& held) { return Text(held); }, attr);
      separator = ", ";
    }
    if (!node.attrs.empty()) text += '}';
    text += types;
    if (!node.source.empty()) text += " @ " + Quote(node.source);
    if (!node.module.empty()) text += " in " + Quote(node.module);
    text += '\n';
  }
  text += "return";
  for (size_t i = 0; i < graph.outputs().size(); ++i) text += (i ? ", " : " ") + reference(graph.outputs()[i]);
  return text + "\n";
}

}  // namespace thresher
