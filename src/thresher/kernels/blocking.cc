#include "thresher/kernels/blocking.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "thresher/base/cpu.h"

namespace thresher::kernels {
namespace {

constexpr std::string_view kSplitNames[] = {"auto", "rows", "panels"};
constexpr std::string_view kVariantNames[] = {"auto", "direct", "widened"};

// By default no fewer rows, since each block of rows reads all panels again, and no more, since their sums pass through
// L1, too.
constexpr size_t kFewestDefaultRows = 96;
constexpr size_t kMostDefaultRows = 144;
constexpr int kManyTileRows = 6;
constexpr size_t kLeastDefaultPanelBytes = size_t{8} * 1024;

template <class Enum, size_t kCount>
std::optional<Enum> Parse(const std::string_view (&names)[kCount], std::string_view name) {
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) return std::nullopt;
  return static_cast<Enum>(found - std::begin(names));
}

}  // namespace

std::string_view Name(Split split) { return kSplitNames[static_cast<size_t>(split)]; }
std::string_view Name(Variant variant) { return kVariantNames[static_cast<size_t>(variant)]; }
std::optional<Split> ParseSplit(std::string_view name) { return Parse<Split>(kSplitNames, name); }
std::optional<Variant> ParseVariant(std::string_view name) { return Parse<Variant>(kVariantNames, name); }

Status CheckBlocking(const Blocking& blocking) {
  if (blocking.panel_kib != 0 && (blocking.panel_kib < kLeastPanelKib || blocking.panel_kib > kMostPanelKib)) {
    return InvalidArgument("panel_kib: expected 0 or " + std::to_string(kLeastPanelKib) + " to " +
                           std::to_string(kMostPanelKib) + ", got " + std::to_string(blocking.panel_kib));
  }
  if (blocking.most_rows < 0 || blocking.most_rows > kMostBlockRows) {
    return InvalidArgument("most_rows: expected 0 to " + std::to_string(kMostBlockRows) + ", got " +
                           std::to_string(blocking.most_rows));
  }
  return Status::Ok();
}

size_t PanelBlockBytes(const Blocking& blocking, int tile_rows) {
  constexpr size_t kMost = size_t{kMostPanelKib} * 1024;
  if (blocking.panel_kib > 0) return std::min(static_cast<size_t>(blocking.panel_kib) * 1024, kMost);
  // Next to the rows that pass by. For tiles of many rows L2 delivers panels as fast as they are used; then longer
  // blocks, whose sums are stored less often, matter more than L1.
  const size_t quarters = tile_rows >= kManyTileRows ? 6 : 3;
  return std::clamp(static_cast<size_t>(Caches().l1) / 4 * quarters, kLeastDefaultPanelBytes, kMost);
}

size_t BlockRows(const Blocking& blocking, size_t row_bytes) {
  if (blocking.most_rows > 0) return static_cast<size_t>(std::min(blocking.most_rows, kMostBlockRows));
  // Next to the panels that pass by.
  const size_t fitting = static_cast<size_t>(Caches().l2) / 2 / std::max<size_t>(row_bytes, 1);
  return std::clamp(fitting, kFewestDefaultRows, kMostDefaultRows);
}

}  // namespace thresher::kernels
