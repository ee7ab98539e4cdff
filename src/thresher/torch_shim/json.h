// Text inside JSON strings.
#pragma once

#include <string>
#include <string_view>

namespace thresher::torch_shim {

// The text without what would end a JSON string. Kineto writes names as it gets them and turns the backslashes of
// metadata into slashes, so that nothing can be escaped: quotation marks become apostrophes, backslashes slashes.
std::string JsonSafe(std::string_view text);

}  // namespace thresher::torch_shim
