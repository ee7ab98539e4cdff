#include "thresher/kernels/gemm.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/gemm.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// One block of a panel stays in L1 while the rows pass by, next to the rows themselves (32 KiB being the smallest L1 we
// meet).
constexpr size_t kPanelBlockBytes = 24 * 1024;
// The rows of A that pass by stay in L2 from one panel to the next.
constexpr size_t kRowBlockBytes = 256 * 1024;
constexpr size_t kMinBlockRows = 96;
constexpr size_t kMaxBlockRows = 144;

template <Activation kActivation, class D, class V = hn::Vec<D>>
HWY_INLINE V Activate(D d, V x) {
  if constexpr (kActivation == Activation::kRelu) {
    return AtLeast(d, hn::Zero(d), x);
  } else if constexpr (kActivation == Activation::kGelu) {
    return Gelu(d, x);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    return GeluTanh(d, x);
  } else if constexpr (kActivation == Activation::kSilu) {
    return Silu(d, x);
  } else if constexpr (kActivation == Activation::kTanh) {
    return Tanh(d, x);
  } else if constexpr (kActivation == Activation::kSigmoid) {
    return Sigmoid(d, x);
  } else {
    return x;
  }
}

// c = act(tile) + residual for `rows` rows of `columns` columns, the tile's rows being PanelWidth() apart.
template <Activation kActivation>
HWY_NOINLINE void Finish(const float* HWY_RESTRICT tile, size_t rows, size_t columns, float* c, size_t ldc,
                         const float* residual, size_t ldr) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = PanelWidth();
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; j += lanes) {
      auto v = Activate<kActivation>(d, hn::Load(d, tile + i * width + j));
      const size_t count = columns - j;
      if (count >= lanes) {
        if (residual != nullptr) v = hn::Add(v, hn::LoadU(d, residual + i * ldr + j));
        hn::StoreU(v, d, c + i * ldc + j);
      } else {
        if (residual != nullptr) v = hn::Add(v, hn::LoadN(d, residual + i * ldr + j, count));
        hn::StoreN(v, d, c + i * ldc + j, count);
      }
    }
  }
}

using FinishFunction = void (*)(const float*, size_t, size_t, float*, size_t, const float*, size_t);

FinishFunction FinishFor(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return &Finish<Activation::kNone>;
    case Activation::kRelu:
      return &Finish<Activation::kRelu>;
    case Activation::kGelu:
      return &Finish<Activation::kGelu>;
    case Activation::kGeluTanh:
      return &Finish<Activation::kGeluTanh>;
    case Activation::kSilu:
      return &Finish<Activation::kSilu>;
    case Activation::kTanh:
      return &Finish<Activation::kTanh>;
    case Activation::kSigmoid:
      return &Finish<Activation::kSigmoid>;
  }
  return &Finish<Activation::kNone>;
}

// Rows [row_begin, row_end) of panels [panel_begin, panel_end).
void GemmRange(const GemmArgs& args, size_t row_begin, size_t row_end, size_t panel_begin, size_t panel_end) {
  const size_t n = static_cast<size_t>(args.n);
  const size_t k = static_cast<size_t>(args.k);
  const size_t lda = static_cast<size_t>(args.lda);
  const size_t ldc = static_cast<size_t>(args.ldc);
  const size_t ldr = static_cast<size_t>(args.ldr);
  const size_t width = PanelWidth();
  const size_t rows = row_end - row_begin;
  const FinishFunction finish = FinishFor(args.activation);

  const size_t most_rows =
      std::clamp(kRowBlockBytes / (sizeof(float) * std::max<size_t>(k, 1)), kMinBlockRows, kMaxBlockRows);
  const size_t row_blocks = (rows + most_rows - 1) / most_rows;

  alignas(64) float strip[kMaxBlockRows * kMaxPanelWidth];
  alignas(64) float padded_bias[kMaxPanelWidth];

  for (size_t block = 0; block < row_blocks; ++block) {
    const size_t block_begin = row_begin + rows * block / row_blocks;
    const size_t block_end = row_begin + rows * (block + 1) / row_blocks;
    const RowTiles tiles(block_end - block_begin);
    // With a single tile nothing is reused, and cutting k would only add stores.
    const size_t most_k = tiles.count == 1 ? std::max<size_t>(k, 1) : kPanelBlockBytes / (sizeof(float) * width);
    const size_t k_blocks = std::max<size_t>(1, (k + most_k - 1) / most_k);
    const size_t k_step = ((k + k_blocks - 1) / k_blocks + 3) / 4 * 4;

    for (size_t panel = panel_begin; panel < panel_end; ++panel) {
      const float* panel_b = args.packed_b + panel * k * width;
      const size_t column = panel * width;
      const size_t columns = std::min(width, n - column);
      const float* bias = args.bias == nullptr ? nullptr : args.bias + column;
      if (bias != nullptr && columns < width) {
        std::copy_n(bias, columns, padded_bias);
        std::fill(padded_bias + columns, padded_bias + width, 0.0f);
        bias = padded_bias;
      }
      const bool direct = columns == width && args.activation == Activation::kNone;

      for (size_t k_block = 0; k_block < k_blocks; ++k_block) {
        const size_t k_begin = std::min(k, k_block * k_step);
        const size_t k_end = std::min(k, k_begin + k_step);
        const bool first = k_block == 0;
        const bool last = k_block + 1 == k_blocks;
        const size_t block_floats = (k_end - k_begin) * width;
        TileArgs tile;
        tile.lda = lda;
        tile.b = panel_b + k_begin * width;
        tile.k = k_end - k_begin;
        size_t row = block_begin;
        for (size_t t = 0; t < tiles.count; ++t) {
          const size_t height = tiles.Height(t);
          // Partial sums wait in the strip. A tile that is finished at once always uses its beginning, to stay in L1.
          float* wait = strip + (k_blocks == 1 ? 0 : (row - block_begin) * width);
          tile.a = args.a + row * lda + k_begin;
          tile.init = first ? bias : wait;
          tile.init_ld = first ? 0 : width;
          // Four tiles fetch the whole block that follows.
          tile.next_b = t * tile.k * 4 < block_floats ? tile.b + block_floats + t * tile.k * 4 : tile.b;
          if (last && direct) {
            tile.out = args.c + row * ldc + column;
            tile.out_ld = ldc;
            tile.residual = args.residual == nullptr ? nullptr : args.residual + row * ldr + column;
            tile.residual_ld = ldr;
          } else {
            tile.out = wait;
            tile.out_ld = width;
            tile.residual = nullptr;
            tile.residual_ld = 0;
          }
          TileForRows(height)(tile);
          if (last && !direct) {
            finish(wait, height, columns, args.c + row * ldc + column, ldc,
                   args.residual == nullptr ? nullptr : args.residual + row * ldr + column, ldr);
          }
          row += height;
        }
      }
    }
  }
}

size_t GemmPanelWidth() { return PanelWidth(); }

void PackRange(const float* b, size_t k, size_t n, ptrdiff_t stride_k, ptrdiff_t stride_n, float* packed,
               size_t panel_begin, size_t panel_end) {
  const size_t width = PanelWidth();
  for (size_t panel = panel_begin; panel < panel_end; ++panel) {
    const size_t column = panel * width;
    PackPanel(b + static_cast<ptrdiff_t>(column) * stride_n, k, std::min(width, n - column), stride_k, stride_n,
              packed + panel * k * width);
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(GemmRange);
HWY_EXPORT(GemmPanelWidth);
HWY_EXPORT(PackRange);

constexpr std::string_view kActivationNames[] = {"none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"};

size_t CurrentPanelWidth() { return HWY_DYNAMIC_DISPATCH(GemmPanelWidth)(); }

size_t Share(size_t total, int part, int num_parts) {
  return total * static_cast<size_t>(part) / static_cast<size_t>(num_parts);
}

double ActivateReference(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return x < 0.0 ? 0.0 : x;
    case Activation::kGelu:
      return 0.5 * x * (1.0 + std::erf(x * 0.70710678118654752440));
    case Activation::kGeluTanh:
      return 0.5 * x * (1.0 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-x));
  }
  return x;
}

}  // namespace

std::string_view Name(Activation activation) { return kActivationNames[static_cast<size_t>(activation)]; }

std::optional<Activation> ParseActivation(std::string_view name) {
  for (size_t i = 0; i < std::size(kActivationNames); ++i) {
    if (kActivationNames[i] == name) return static_cast<Activation>(i);
  }
  return std::nullopt;
}

int64_t PackedSize(int64_t k, int64_t n) {
  const int64_t width = static_cast<int64_t>(CurrentPanelWidth());
  return (n + width - 1) / width * width * k;
}

void PackB(const float* b, int64_t k, int64_t n, int64_t stride_k, int64_t stride_n, float* packed, int part,
           int num_parts) {
  const size_t width = CurrentPanelWidth();
  const size_t panels = (static_cast<size_t>(n) + width - 1) / width;
  HWY_DYNAMIC_DISPATCH(PackRange)
  (b, static_cast<size_t>(k), static_cast<size_t>(n), static_cast<ptrdiff_t>(stride_k),
   static_cast<ptrdiff_t>(stride_n), packed, Share(panels, part, num_parts), Share(panels, part + 1, num_parts));
}

void Gemm(const GemmArgs& args, int part, int num_parts) {
  if (args.m <= 0 || args.n <= 0) return;
  const size_t m = static_cast<size_t>(args.m);
  const size_t width = CurrentPanelWidth();
  const size_t panels = (static_cast<size_t>(args.n) + width - 1) / width;
  const size_t parts = static_cast<size_t>(num_parts);
  // The cost of the slowest part. Fewer than four rows take as long as four: reading the panel sets the pace.
  const size_t by_rows = std::max<size_t>((m + parts - 1) / parts, 4) * panels;
  const size_t by_panels = std::max<size_t>(m, 4) * ((panels + parts - 1) / parts);
  // In a tie, let each part read only its share of the larger matrix.
  if (by_panels < by_rows || (by_panels == by_rows && args.n >= args.m)) {
    const size_t begin = Share(panels, part, num_parts);
    const size_t end = Share(panels, part + 1, num_parts);
    if (begin < end) HWY_DYNAMIC_DISPATCH(GemmRange)(args, 0, m, begin, end);
  } else {
    const size_t begin = Share(m, part, num_parts);
    const size_t end = Share(m, part + 1, num_parts);
    if (begin < end) HWY_DYNAMIC_DISPATCH(GemmRange)(args, begin, end, 0, panels);
  }
}

void GemmReference(const GemmArgs& args, const float* b, int64_t stride_k, int64_t stride_n) {
  for (int64_t i = 0; i < args.m; ++i) {
    for (int64_t j = 0; j < args.n; ++j) {
      double sum = args.bias == nullptr ? 0.0 : args.bias[j];
      for (int64_t l = 0; l < args.k; ++l) {
        sum += static_cast<double>(args.a[i * args.lda + l]) * static_cast<double>(b[l * stride_k + j * stride_n]);
      }
      sum = ActivateReference(args.activation, sum);
      if (args.residual != nullptr) sum += args.residual[i * args.ldr + j];
      args.c[i * args.ldc + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
