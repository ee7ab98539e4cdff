// Text inside JSON strings: Kineto writes names and metadata as it gets them.
#pragma once

#include <string>
#include <string_view>

namespace thresher::torch_shim {

// What stands between the quotation marks.
std::string EscapeJson(std::string_view text);

}  // namespace thresher::torch_shim
