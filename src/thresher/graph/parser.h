// Reads the text form of graph/printer.h. Fit for hostile input: every size is limited and every line checked.
//
// Beyond what the printer writes, values may have any name ("%scores"), types of results and names of inputs may be
// left out, and "#" starts a comment: what one wants when writing graphs by hand.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "thresher/graph/graph.h"

namespace thresher {

// A constant whose contents are not in the text.
struct ConstantRequest {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  bool is_weight = false;
  std::optional<Encoding> blocks = {};
};

// Finds the contents: row-major bytes of that dtype and shape, in blocks where it says so. A digest in the text is
// checked against them.
using ConstantResolver = std::function<Result<Constant>(const ConstantRequest&)>;

// Limits on the text; what exceeds them is an error.
inline constexpr size_t kMaxGraphText = size_t{64} << 20;    // bytes
inline constexpr size_t kMaxGraphValues = size_t{1} << 20;   // inputs, constants and results together
inline constexpr size_t kMaxListLength = size_t{1} << 12;    // operands, outputs of a node, integers in an attribute
inline constexpr size_t kMaxStringLength = size_t{1} << 12;  // bytes of a name, source or string attribute

// Errors give line and column, what was wanted and what was found. Without a resolver, a constant whose contents are
// not in the text is an error.
Result<Graph> ParseGraph(std::string_view text, const ConstantResolver& resolver = {});

}  // namespace thresher
