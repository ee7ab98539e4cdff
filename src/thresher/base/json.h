// Writing JSON.
#pragma once

#include <string>
#include <string_view>

namespace thresher::json {

// The text as a JSON string, with its quotation marks. Bytes that are not UTF-8 become U+FFFD.
std::string Quote(std::string_view text);

// The shortest decimal that reads back as the same number; null for what JSON cannot hold (infinities, NaN).
std::string Number(double value);

}  // namespace thresher::json
