#include "thresher/torch_shim/json.h"

namespace thresher::torch_shim {

std::string JsonSafe(std::string_view text) {
  std::string safe(text);
  for (char& c : safe) {
    if (c == '"') {
      c = '\'';
    } else if (c == '\\') {
      c = '/';
    } else if (static_cast<unsigned char>(c) < 0x20) {
      c = ' ';
    }
  }
  return safe;
}

}  // namespace thresher::torch_shim
