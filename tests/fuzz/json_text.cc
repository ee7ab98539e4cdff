// What the engine writes as JSON: any bytes become a string, any number a number.
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "fuzz/target.h"
#include "thresher/base/json.h"

namespace thresher {
namespace {

// Whether the text is valid UTF-8: decodes each character and compares it with the shortest way to write it.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 0x3f);
    }
    const size_t shortest = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (shortest != length || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return false;
    i += length;
  }
  return true;
}

}  // namespace

THRESHER_FUZZ_TARGET(json_text, fuzz::MemoryLimit{}) {
  const std::string quoted = json::Quote(bytes);
  THRESHER_FUZZ_REQUIRE(quoted.size() >= 2 && quoted.front() == '"' && quoted.back() == '"', quoted);
  THRESHER_FUZZ_REQUIRE(IsUtf8(quoted), quoted);
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    THRESHER_FUZZ_REQUIRE(static_cast<unsigned char>(quoted[i]) >= 0x20 && quoted[i] != '"', quoted);
    if (quoted[i] != '\\') continue;
    ++i;
    THRESHER_FUZZ_REQUIRE(i + 1 < quoted.size(), quoted);
    THRESHER_FUZZ_REQUIRE(std::strchr("\"\\u", quoted[i]) != nullptr, quoted);
  }
  double number = 0;
  bytes.copy(reinterpret_cast<char*>(&number), sizeof(number));
  const std::string text = json::Number(number);
  if (!std::isfinite(number)) {
    THRESHER_FUZZ_REQUIRE(text == "null", text);
    return;
  }
  THRESHER_FUZZ_REQUIRE(std::strtod(text.c_str(), nullptr) == number, text);
}

}  // namespace thresher
