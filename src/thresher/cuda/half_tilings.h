// Which tiling a product of halves on the matrix units gets: of windows (convolution.h) or of plain rows
// (tile_product.h).
#pragma once

#include <cstdint>

#include "thresher/cuda/convolution_kernel.h"
#include "thresher/cuda/rows.h"

namespace thresher::cuda {

// With fewer tiles than this a device has processors left.
inline constexpr int64_t kEnoughTiles = 128;

// How many rows and columns of the result a block computes.
struct HalfTiling {
  int rows;
  int cols;
  friend bool operator==(const HalfTiling&, const HalfTiling&) = default;
};
inline constexpr HalfTiling kWideTiling = {128, 128};
inline constexpr HalfTiling kTallTiling = {128, 64};
inline constexpr HalfTiling kSmallTiling = {64, 64};
inline constexpr HalfTiling kNarrowTiling = {128, 32};

template <class Rows>
int64_t TilesOf(const TileWork<Rows>& work, const HalfTiling& tiling) {
  return work.Tiles(tiling.rows, tiling.cols);
}

// Of work whose sums are not split.
template <class Rows>
HalfTiling HalfTilingOf(const TileWork<Rows>& work) {
  if (work.n <= kNarrowTiling.cols) return kNarrowTiling;
  if (work.n > kTallTiling.cols && TilesOf(work, kWideTiling) >= kEnoughTiles) return kWideTiling;
  return TilesOf(work, kTallTiling) >= kEnoughTiles ? kTallTiling : kSmallTiling;
}

template <class Kernel, class Launcher, class Rows>
auto LaunchTiles(Launcher&& launch, const TileWork<Rows>& work) {
  Shape shape;
  shape.width = Kernel::kMostThreads;
  shape.shared_floats = Kernel::kSharedWords;
  shape.blocks = AtMostBlocks(work.Tiles(Kernel::kRows, Kernel::kCols));
  return launch(shape, Kernel{work});
}

// Kernel<Half, row tiles, column tiles, row warps, column warps>: as the last parameters of ConvolutionKernel.
template <template <class, int, int, int, int> class Kernel, class Half, class Launcher, class Rows>
auto LaunchHalfTiles(Launcher&& launch, const TileWork<Rows>& work) {
  using Wide = Kernel<Half, 4, 4, 2, 4>;
  using Tall = Kernel<Half, 4, 4, 2, 2>;
  using Small = Kernel<Half, 2, 4, 2, 2>;
  using Narrow = Kernel<Half, 2, 4, 4, 1>;
  static_assert(HalfTiling{Wide::kRows, Wide::kCols} == kWideTiling);
  static_assert(HalfTiling{Tall::kRows, Tall::kCols} == kTallTiling);
  static_assert(HalfTiling{Small::kRows, Small::kCols} == kSmallTiling);
  static_assert(HalfTiling{Narrow::kRows, Narrow::kCols} == kNarrowTiling);
  TileWork<Rows> whole = work;
  whole.splits = 1;
  const HalfTiling tiling = HalfTilingOf(whole);
  if (tiling == kWideTiling) return LaunchTiles<Wide>(launch, work);
  if (tiling == kTallTiling) return LaunchTiles<Tall>(launch, work);
  if (tiling == kSmallTiling) return LaunchTiles<Small>(launch, work);
  return LaunchTiles<Narrow>(launch, work);
}

}  // namespace thresher::cuda
