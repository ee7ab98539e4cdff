// How a product of matrices is cut into blocks that fit the caches, and shared between threads. None of it changes what
// is computed, up to the order of sums; which choice is fastest depends on the shape and the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "thresher/base/status.h"

namespace thresher::kernels {

// What the parts of a product share.
enum class Split : uint8_t {
  kAuto,    // what balances better
  kRows,    // each part has some rows of a and reads all of b
  kPanels,  // each part has some panels of b and reads all of a
};

// How rows meet panels whose numbers are stored in fewer bits than those of the rows.
enum class Variant : uint8_t {
  kAuto,     // few rows kDirect, more kWidened
  kDirect,   // the panel as it is: widened in registers; 4-bit numbers times rows rounded to 16 bits
  kWidened,  // a block of the panel is widened to floats once for all rows
};

// "auto", "rows", "panels"; "auto", "direct", "widened".
std::string_view Name(Split split);
std::string_view Name(Variant variant);
std::optional<Split> ParseSplit(std::string_view name);
std::optional<Variant> ParseVariant(std::string_view name);

struct Blocking {
  int32_t panel_kib = 0;  // of a panel that stays in a cache while rows pass by; 0: what fits this machine
  int32_t most_rows = 0;  // that stay in L2 from one panel to the next; 0: as many as fit this machine
  Split split = Split::kAuto;
  Variant variant = Variant::kAuto;  // for panels of smaller numbers only

  friend bool operator==(const Blocking&, const Blocking&) = default;
};

// Bounds of the two sizes, which bound scratch memory.
inline constexpr int32_t kLeastPanelKib = 1;
inline constexpr int32_t kMostPanelKib = 64;
inline constexpr int32_t kMostBlockRows = 288;

// Errors: a size that is neither 0 nor within the bounds.
Status CheckBlocking(const Blocking& blocking);

// Bytes of a block of a panel, for tiles of up to `tile_rows` rows.
size_t PanelBlockBytes(const Blocking& blocking, int tile_rows);

// Rows of `row_bytes` bytes that pass by such a block.
size_t BlockRows(const Blocking& blocking, size_t row_bytes);

}  // namespace thresher::kernels
