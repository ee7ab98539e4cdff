#include "thresher/graph/parser.h"

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>

#include "thresher/base/half.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/printer.h"

namespace thresher {
namespace {

enum class TokenKind : uint8_t { kEnd, kWord, kValue, kString, kSymbol };

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // strings: unescaped; values: without "%"
  int line = 1;
  int column = 1;
};

bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '+' || c == '-';
}

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the text";
    case TokenKind::kString:
      return "a string";
    case TokenKind::kValue:
      return "%" + token.text;
    default:
      return "'" + token.text + "'";
  }
}

Status Error(const Token& at, const std::string& message) {
  return InvalidArgument("graph text, line " + std::to_string(at.line) + ", column " + std::to_string(at.column) +
                         ": " + message);
}

template <class T>
std::optional<T> ParseNumber(std::string_view text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, number);
  if (text.empty() || result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return number;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Result<Token> Next() {
    SkipBlank();
    Token token;
    token.line = line_;
    token.column = static_cast<int>(at_ - line_start_) + 1;
    if (at_ == text_.size()) return token;
    const char c = text_[at_];
    if (c == '"') return String(std::move(token));
    if (c == '%' || IsWordChar(c)) {
      token.kind = c == '%' ? TokenKind::kValue : TokenKind::kWord;
      if (c == '%') ++at_;
      const size_t begin = at_;
      while (at_ < text_.size() && IsWordChar(text_[at_])) ++at_;
      token.text = std::string(text_.substr(begin, at_ - begin));
      if (token.text.empty()) return Error(token, "expected a value name after '%'");
      if (token.text.size() > kMaxStringLength) return Error(token, TooLong("word"));
      return token;
    }
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      return Error(token, "found byte " + std::to_string(static_cast<unsigned char>(c)) + " outside a string");
    }
    token.kind = TokenKind::kSymbol;
    token.text = c;
    ++at_;
    return token;
  }

 private:
  static std::string TooLong(const char* what) {
    return std::string("a ") + what + " is longer than " + std::to_string(kMaxStringLength) + " bytes";
  }

  void SkipBlank() {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n') ++at_;
      } else if (c == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }

  Result<Token> String(Token token) {
    token.kind = TokenKind::kString;
    for (++at_; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == '"') {
        ++at_;
        return token;
      }
      if (c == '\n') break;
      if (c == '\\') {
        if (++at_ == text_.size()) break;
        c = text_[at_];
        if (c == 'n') {
          c = '\n';
        } else if (c == 'x') {
          unsigned byte = 0;
          const std::string_view digits = text_.substr(at_ + 1, 2);
          const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
          if (digits.size() != 2 || result.ptr != digits.data() + 2)
            return Error(token, "expected two hex digits after \\x");
          c = static_cast<char>(byte);
          at_ += 2;
        } else if (c != '"' && c != '\\') {
          return Error(token, std::string("unknown escape \\") + c + " in a string");
        }
      }
      token.text += c;
      if (token.text.size() > kMaxStringLength) return Error(token, TooLong("string"));
    }
    return Error(token, "the string has no closing quote on its line");
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t line_start_ = 0;
  int line_ = 1;
};

struct ParsedType {
  DType dtype = DType::kF32;
  Dims shape;
};

class Parser {
 public:
  Parser(std::string_view text, const ConstantResolver& resolver) : lexer_(text), resolver_(resolver) {}

  Result<Graph> Run() {
    THRESHER_TRY(Advance());
    THRESHER_TRY(Word("graph"));
    if (token_.text != "1") return Wanted("format version 1, the only one there is");
    THRESHER_TRY(Advance());
    while (true) {
      if (graph_.values().size() > kMaxGraphValues) {
        return Error(token_, "more than " + std::to_string(kMaxGraphValues) + " values");
      }
      if (token_.kind == TokenKind::kValue) {
        THRESHER_TRY(ParseNode());
      } else if (token_.kind == TokenKind::kWord && (token_.text == "input" || token_.text == "state")) {
        THRESHER_TRY(ParseInput());
      } else if (token_.kind == TokenKind::kWord && (token_.text == "const" || token_.text == "weight")) {
        THRESHER_TRY(ParseConstant());
      } else {
        break;
      }
    }
    if (token_.kind != TokenKind::kWord || token_.text != "return") {
      return Wanted("'input', 'state', 'const', 'weight', a node such as '%2 = add(%0, %1)', or 'return'");
    }
    THRESHER_TRY(ParseReturn());
    return std::move(graph_);
  }

 private:
  Status Advance() {
    THRESHER_ASSIGN(token_, lexer_.Next());
    return Status::Ok();
  }
  Status Wanted(const std::string& what) const {
    return Error(token_, "expected " + what + ", got " + Describe(token_));
  }
  bool Is(char symbol) const { return token_.kind == TokenKind::kSymbol && token_.text[0] == symbol; }
  Status Symbol(char symbol) {
    if (!Is(symbol)) return Wanted(std::string("'") + symbol + "'");
    return Advance();
  }
  Status Word(const char* word) {
    if (token_.kind != TokenKind::kWord || token_.text != word) return Wanted(std::string("'") + word + "'");
    return Advance();
  }
  Status TooMany(const char* what) const {
    return Error(token_, "more than " + std::to_string(kMaxListLength) + " " + what);
  }

  // "a, b, c" up to `close`, which is consumed.
  template <class ItemFn>
  Status List(char close, const char* what, ItemFn item) {
    for (size_t count = 0; !Is(close); ++count) {
      if (count == kMaxListLength) return TooMany(what);
      if (count > 0) THRESHER_TRY(Symbol(','));
      THRESHER_TRY(item());
    }
    return Advance();
  }

  template <class T>
  Status Number(const char* what, T* number) {
    const auto parsed = token_.kind == TokenKind::kWord ? ParseNumber<T>(token_.text) : std::nullopt;
    if (!parsed) return Wanted(what);
    *number = *parsed;
    return Advance();
  }

  // "f32[2, 3]".
  Status Type(ParsedType* type) {
    const auto dtype = token_.kind == TokenKind::kWord ? ParseDType(token_.text) : std::nullopt;
    if (!dtype) return Wanted("a type such as f32[2, 3] (f32, i64, i32 or bool)");
    type->dtype = *dtype;
    THRESHER_TRY(Advance());
    THRESHER_TRY(Symbol('['));
    int64_t room = kMaxTensorBytes / static_cast<int64_t>(SizeOf(*dtype));
    return List(']', "dimensions", [&]() -> Status {
      const Token at = token_;
      int64_t size = 0;
      THRESHER_TRY(Number("a size", &size));
      if (size < 0) return Error(at, "expected a size of 0 or more, got " + std::to_string(size));
      if (size > room) return Error(at, "the tensor is larger than " + std::to_string(kMaxTensorBytes) + " bytes");
      if (size > 0) room /= size;  // zeros shrink the tensor, not the limit on the other sizes
      if (type->shape.size() == kMaxRank) return Error(at, "more than " + std::to_string(kMaxRank) + " dimensions");
      type->shape.push_back(size);
      return Status::Ok();
    });
  }

  Status Define(const Token& name, ValueId id) {
    if (!ids_.emplace(name.text, id).second) return Error(name, "%" + name.text + " is defined twice");
    return Status::Ok();
  }

  Status Lookup(ValueId* id) {
    if (token_.kind != TokenKind::kValue) return Wanted("a value such as %0");
    const auto it = ids_.find(token_.text);
    if (it == ids_.end()) return Error(token_, "%" + token_.text + " is used before it is defined");
    *id = it->second;
    return Advance();
  }

  // `%0 "name" : f32[2]`, where the name defaults to what follows "%".
  Status Declaration(Token* id, std::string* name, ParsedType* type) {
    THRESHER_TRY(Advance());
    *id = token_;
    if (id->kind != TokenKind::kValue) return Wanted("a value such as %0");
    THRESHER_TRY(Advance());
    *name = id->text;
    if (token_.kind == TokenKind::kString) {
      *name = token_.text;
      THRESHER_TRY(Advance());
    }
    THRESHER_TRY(Symbol(':'));
    return Type(type);
  }

  Status ParseInput() {
    const Value::Kind kind = token_.text == "state" ? Value::Kind::kState : Value::Kind::kInput;
    Token id;
    std::string name;
    ParsedType type;
    THRESHER_TRY(Declaration(&id, &name, &type));
    std::optional<Encoding> blocks;
    if (kind == Value::Kind::kState) THRESHER_TRY(Blocks(&blocks));
    return Define(id, graph_.AddInput(std::move(name), type.dtype, std::move(type.shape), kind, blocks));
  }

  // "as q8_0", or nothing.
  Status Blocks(std::optional<Encoding>* blocks) {
    if (token_.kind != TokenKind::kWord || token_.text != "as") return Status::Ok();
    THRESHER_TRY(Advance());
    if (token_.kind == TokenKind::kWord) *blocks = ParseEncoding(token_.text);
    if (!*blocks || !IsBlocked(**blocks)) return Wanted("a format of blocks such as q8_0");
    return Advance();
  }

  Status ParseConstant() {
    const bool is_weight = token_.text == "weight";
    Token id;
    std::string name;
    ParsedType type;
    THRESHER_TRY(Declaration(&id, &name, &type));
    std::optional<Encoding> blocks;
    if (is_weight) THRESHER_TRY(Blocks(&blocks));
    if (blocks) {
      if (Status fits = CheckBlocks(type.dtype, type.shape, *blocks); !fits.ok()) return Error(id, fits.message());
    }
    if (Is('=')) {
      if (is_weight) return Error(token_, "the contents of a weight do not stand in the text: use 'const'");
      const int64_t elements = NumElements(type.shape);
      if (elements > kMaxInlineElements) {
        return Error(token_, "expected at most " + std::to_string(kMaxInlineElements) +
                                 " elements in the text, got a shape of " + std::to_string(elements));
      }
      THRESHER_TRY(Advance());
      std::string bytes;
      THRESHER_TRY(Elements(type.dtype, elements, &bytes));
      return Define(id, graph_.AddOwnedConstant(std::move(name), type.dtype, std::move(type.shape), bytes.data()));
    }
    std::optional<Digest> digest;
    if (token_.kind == TokenKind::kWord && token_.text == "digest") {
      THRESHER_TRY(Advance());
      digest = ParseDigest(token_.text);
      if (token_.kind != TokenKind::kWord || !digest) return Wanted("32 hexadecimal digits");
      THRESHER_TRY(Advance());
    }
    if (!resolver_) {
      return Error(id, "the contents of constant '" + name + "' are not in the text: pass a resolver that finds them");
    }
    Result<Constant> found = resolver_({name, type.dtype, type.shape, is_weight, blocks});
    if (!found.ok()) return Error(id, "constant '" + name + "': " + found.status().message());
    Constant constant = std::move(found).value();
    constant.is_weight = is_weight;
    constant.blocks = blocks;
    if (constant.data == nullptr && NumElements(type.shape) > 0) {
      return Error(id, "the resolver gave no bytes for constant '" + name + "'");
    }
    const ValueId value = graph_.AddConstant(name, type.dtype, std::move(type.shape), std::move(constant));
    if (digest) {
      const Digest actual = HashConstant(graph_.value(value));
      if (actual != *digest) {
        return Error(id, "constant '" + name + "': expected contents of digest " + ToHex(*digest) + ", got " +
                             ToHex(actual) + "; the graph was written with other weights");
      }
    }
    return Define(id, value);
  }

  template <class T>
  static void Append(T element, std::string* bytes) {
    bytes->append(reinterpret_cast<const char*>(&element), sizeof(element));
  }

  // A number, or the bits of one in hex.
  template <class Bits, class Encode>
  Status Float(const char* what, Bits nan, Encode encode, std::string* bytes) {
    if (token_.kind == TokenKind::kWord && token_.text.starts_with("0x")) {
      Bits bits = 0;
      const char* end = token_.text.data() + token_.text.size();
      const auto result = std::from_chars(token_.text.data() + 2, end, bits, 16);
      if (result.ec != std::errc() || result.ptr != end) return Wanted(std::string("the bits of ") + what + " in hex");
      Append(bits, bytes);
      return Advance();
    }
    float number = 0;
    THRESHER_TRY(Number(what, &number));
    Append(std::isnan(number) ? nan : encode(number), bytes);
    return Status::Ok();
  }

  Status Element(DType dtype, std::string* bytes) {
    switch (dtype) {
      case DType::kF32:
        return Float<uint32_t>("an f32", 0x7fc00000u, [](float x) { return std::bit_cast<uint32_t>(x); }, bytes);
      case DType::kBF16:
        return Float<uint16_t>("a bf16", 0x7fc0u, [](float x) { return ToBF16(x).bits; }, bytes);
      case DType::kF16:
        return Float<uint16_t>("an f16", 0x7e00u, [](float x) { return ToF16(x).bits; }, bytes);
      case DType::kI64: {
        int64_t number = 0;
        THRESHER_TRY(Number("an i64", &number));
        Append(number, bytes);
        return Status::Ok();
      }
      case DType::kI32: {
        int32_t number = 0;
        THRESHER_TRY(Number("an i32", &number));
        Append(number, bytes);
        return Status::Ok();
      }
      case DType::kBool: {
        if (token_.kind != TokenKind::kWord || (token_.text != "true" && token_.text != "false")) {
          return Wanted("'true' or 'false'");
        }
        Append(static_cast<uint8_t>(token_.text == "true"), bytes);
        return Advance();
      }
    }
    return Status::Ok();
  }

  // "[1, 2]" with exactly `count` elements.
  Status Elements(DType dtype, int64_t count, std::string* bytes) {
    THRESHER_TRY(Symbol('['));
    int64_t found = 0;
    const Token at = token_;
    THRESHER_TRY(List(']', "elements", [&]() -> Status {
      ++found;
      return Element(dtype, bytes);
    }));
    if (found != count) {
      return Error(at, "expected " + std::to_string(count) + " elements, got " + std::to_string(found));
    }
    return Status::Ok();
  }

  Status ParseAttr(Attrs* attrs) {
    const Token name = token_;
    if (name.kind != TokenKind::kWord) return Wanted("an attribute's name");
    THRESHER_TRY(Advance());
    THRESHER_TRY(Symbol('='));
    Attr attr;
    if (token_.kind == TokenKind::kString) {
      attr = token_.text;
      THRESHER_TRY(Advance());
    } else if (Is('[')) {
      THRESHER_TRY(Advance());
      std::vector<int64_t> ints;
      THRESHER_TRY(List(']', "integers", [&]() -> Status { return Number("an integer", &ints.emplace_back()); }));
      attr = std::move(ints);
    } else if (token_.kind == TokenKind::kWord && (token_.text == "true" || token_.text == "false")) {
      attr = token_.text == "true";
      THRESHER_TRY(Advance());
    } else if (token_.kind == TokenKind::kWord && token_.text.find_first_not_of("-0123456789") == std::string::npos) {
      int64_t number = 0;
      THRESHER_TRY(Number("an integer", &number));
      attr = number;
    } else {
      double number = 0;
      THRESHER_TRY(Number("an attribute: true, 1, 0.5, \"text\" or [1, 2]", &number));
      attr = number;
    }
    if (!attrs->emplace(name.text, std::move(attr)).second)
      return Error(name, "attribute '" + name.text + "' stands twice");
    return Status::Ok();
  }

  Status ParseNode() {
    std::vector<Token> names;
    while (true) {
      if (names.size() == kMaxListLength) return TooMany("outputs");
      if (token_.kind != TokenKind::kValue) return Wanted("a value such as %0");
      names.push_back(token_);
      THRESHER_TRY(Advance());
      if (!Is(',')) break;
      THRESHER_TRY(Advance());
    }
    THRESHER_TRY(Symbol('='));
    const Token op = token_;
    if (op.kind != TokenKind::kWord) return Wanted("an operator's name");
    THRESHER_TRY(Advance());
    THRESHER_TRY(Symbol('('));
    std::vector<ValueId> inputs;
    THRESHER_TRY(List(')', "operands", [&]() -> Status {
      inputs.push_back(kNoValue);
      if (token_.kind == TokenKind::kWord && token_.text == "_") return Advance();
      return Lookup(&inputs.back());
    }));
    Attrs attrs;
    if (Is('{')) {
      THRESHER_TRY(Advance());
      THRESHER_TRY(List('}', "attributes", [&]() -> Status { return ParseAttr(&attrs); }));
    }
    std::vector<ParsedType> types;
    const Token types_at = token_;
    if (Is(':')) {
      do {
        THRESHER_TRY(Advance());
        if (types.size() == kMaxListLength) return TooMany("types");
        THRESHER_TRY(Type(&types.emplace_back()));
      } while (Is(','));
    }
    std::string source;
    if (Is('@')) {
      THRESHER_TRY(Advance());
      if (token_.kind != TokenKind::kString) return Wanted("the source as a string");
      source = token_.text;
      THRESHER_TRY(Advance());
    }
    std::string module;
    if (token_.kind == TokenKind::kWord && token_.text == "in") {
      THRESHER_TRY(Advance());
      if (token_.kind != TokenKind::kString) return Wanted("the module as a string");
      module = token_.text;
      THRESHER_TRY(Advance());
    }
    Result<std::vector<ValueId>> added =
        graph_.Add(op.text, std::move(inputs), std::move(attrs), std::move(source), std::move(module));
    if (!added.ok()) return Error(op, added.status().message());
    const std::vector<ValueId>& outputs = added.value();
    if (outputs.size() != names.size() || (!types.empty() && types.size() != names.size())) {
      return Error(op, op.text + " has " + std::to_string(outputs.size()) + " outputs, got " +
                           std::to_string(names.size()) + " names and " + std::to_string(types.size()) + " types");
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Value& value = graph_.value(outputs[i]);
      if (!types.empty() && (types[i].dtype != value.dtype || types[i].shape != value.shape)) {
        return Error(types_at, op.text + " gives " + std::string(Name(value.dtype)) + ToString(value.shape) +
                                   ", but the text says " + std::string(Name(types[i].dtype)) +
                                   ToString(types[i].shape));
      }
      THRESHER_TRY(Define(names[i], outputs[i]));
    }
    return Status::Ok();
  }

  Status ParseReturn() {
    THRESHER_TRY(Advance());
    std::vector<ValueId> outputs;
    while (token_.kind == TokenKind::kValue) {
      if (outputs.size() == kMaxListLength) return TooMany("outputs");
      THRESHER_TRY(Lookup(&outputs.emplace_back()));
      if (!Is(',')) break;
      THRESHER_TRY(Advance());
      if (token_.kind != TokenKind::kValue) return Wanted("a value such as %0");
    }
    if (token_.kind != TokenKind::kEnd) return Wanted("the end of the text");
    graph_.SetOutputs(std::move(outputs));
    return Status::Ok();
  }

  Lexer lexer_;
  const ConstantResolver& resolver_;
  Token token_;
  Graph graph_;
  std::map<std::string, ValueId, std::less<>> ids_;
};

}  // namespace

Result<Graph> ParseGraph(std::string_view text, const ConstantResolver& resolver) {
  if (text.size() > kMaxGraphText) {
    return InvalidArgument("graph text: expected at most " + std::to_string(kMaxGraphText) + " bytes, got " +
                           std::to_string(text.size()));
  }
  return Parser(text, resolver).Run();
}

}  // namespace thresher
