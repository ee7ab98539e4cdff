// What happens to the sums of a tile before they are stored: scales, bias, activation, residual.

#if defined(THRESHER_KERNELS_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_EPILOGUE_INL_H_
#undef THRESHER_KERNELS_EPILOGUE_INL_H_
#else
#define THRESHER_KERNELS_EPILOGUE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/math-inl.h"
#include "thresher/kernels/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

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
  } else if constexpr (kActivation == Activation::kRelu6) {
    return AtMost(d, hn::Set(d, 6.0f), AtLeast(d, hn::Zero(d), x));
  } else if constexpr (kActivation == Activation::kHardSwish) {
    const V gate = AtMost(d, hn::Set(d, 6.0f), AtLeast(d, hn::Zero(d), hn::Add(x, hn::Set(d, 3.0f))));
    return hn::Div(hn::Mul(x, gate), hn::Set(d, 6.0f));
  } else {
    return x;
  }
}

// The bias of `columns` columns from `column` on as a whole panel: where it lies, or, for the last panel, with zeros
// behind it in `padded` (PanelWidth() floats). Null without a bias.
HWY_INLINE const float* PanelBias(const float* bias, size_t column, size_t columns, float* padded) {
  if (bias == nullptr || columns == PanelWidth()) return bias == nullptr ? nullptr : bias + column;
  std::copy_n(bias + column, columns, padded);
  std::fill(padded + columns, padded + PanelWidth(), 0.0f);
  return padded;
}

// Whether an activation does nothing but keep results within bounds, if that, and within which.
HWY_INLINE bool IsBounds(Activation activation, Bounds* bounds) {
  *bounds = {activation != Activation::kNone, 0.0f,
             activation == Activation::kRelu6 ? 6.0f : std::numeric_limits<float>::infinity()};
  return activation == Activation::kNone || activation == Activation::kRelu || activation == Activation::kRelu6;
}

// Where the results of a tile go, and the residual that joins them.
struct TileResult {
  float* c;
  size_t ldc;
  const float* residual;  // or null
  size_t ldr;
  size_t rows;
  size_t columns;
};

// Of the arguments of either product, from `row` and `column` on.
template <class Args>
HWY_INLINE TileResult ResultAt(const Args& args, size_t row, size_t column, size_t rows, size_t columns) {
  const size_t ldc = static_cast<size_t>(args.ldc);
  const size_t ldr = static_cast<size_t>(args.ldr);
  const float* residual = args.residual == nullptr ? nullptr : args.residual + row * ldr + column;
  return {args.c + row * ldc + column, ldc, residual, ldr, rows, columns};
}

// The stores come at once at a tile's end, more lines than the processor can have under way: this fetches them before.
HWY_INLINE void FetchResult(const TileResult& to) {
  constexpr size_t kLine = 64 / sizeof(float);
  for (size_t i = 0; i < to.rows; ++i) {
    for (size_t j = 0; j < to.columns; j += kLine) {
      __builtin_prefetch(to.c + i * to.ldc + j, 1, 3);
      if (to.residual != nullptr) __builtin_prefetch(to.residual + i * to.ldr + j, 0, 3);
    }
  }
}

// Sums of to.rows rows, PanelWidth() apart, and what becomes of them:
// c = act((sums - row_zero * column_sum) * column_scale * row_scale + bias) + residual, or with the residual inside of
// act.
struct FinishArgs {
  const void* sums;  // float or int32_t
  TileResult to;
  // Null, or one value a column for a whole panel:
  const float* bias;
  const float* column_scale;
  const int32_t* column_sum;
  // Null, or one value a row:
  const float* row_scale;
  const int32_t* row_zero;
  bool residual_first;
};

// The members of FinishArgs that sums of this type may use: float has bias and column_scale, int32_t has all, and both
// scales always.
template <class Sum, Activation kActivation>
HWY_NOINLINE void Finish(const FinishArgs& args) {
  constexpr bool kIntegers = std::is_same_v<Sum, int32_t>;
  const TileResult& to = args.to;
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const size_t lanes = hn::Lanes(d);
  const size_t width = PanelWidth();
  for (size_t j = 0; j < to.columns; j += lanes) {
    // What belongs to the columns is loaded once for all rows.
    const auto bias = args.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, args.bias + j);
    const auto scale = args.column_scale == nullptr ? hn::Set(d, 1.0f) : hn::LoadU(d, args.column_scale + j);
    const auto column_sum = kIntegers && args.column_sum != nullptr ? hn::LoadU(di, args.column_sum + j) : hn::Zero(di);
    const Sum* HWY_RESTRICT sums = static_cast<const Sum*>(args.sums) + j;
    const auto scaled = [&](size_t i) HWY_ATTR {
      if constexpr (kIntegers) {
        auto sum = hn::Load(di, sums + i * width);
        if (args.row_zero != nullptr) sum = hn::Sub(sum, hn::Mul(hn::Set(di, args.row_zero[i]), column_sum));
        const auto row_scale = hn::Mul(scale, hn::Set(d, args.row_scale[i]));
        return hn::MulAdd(hn::ConvertTo(d, sum), row_scale, bias);
      } else {
        return hn::MulAdd(hn::Load(d, sums + i * width), scale, bias);
      }
    };
    const auto finished = [&](size_t i) HWY_ATTR { return Activate<kActivation>(d, scaled(i)); };
    float* c = to.c + j;
    const float* residual = to.residual == nullptr ? nullptr : to.residual + j;
    if (residual != nullptr && args.residual_first) {
      const size_t count = std::min(lanes, to.columns - j);
      for (size_t i = 0; i < to.rows; ++i) {
        const auto sum = hn::Add(scaled(i), hn::LoadN(d, residual + i * to.ldr, count));
        hn::StoreN(Activate<kActivation>(d, sum), d, c + i * to.ldc, count);
      }
    } else if (const size_t count = to.columns - j; count < lanes) {
      for (size_t i = 0; i < to.rows; ++i) {
        auto v = finished(i);
        if (residual != nullptr) v = hn::Add(v, hn::LoadN(d, residual + i * to.ldr, count));
        hn::StoreN(v, d, c + i * to.ldc, count);
      }
    } else if (residual != nullptr) {
      for (size_t i = 0; i < to.rows; ++i) {
        hn::StoreU(hn::Add(finished(i), hn::LoadU(d, residual + i * to.ldr)), d, c + i * to.ldc);
      }
    } else {
      for (size_t i = 0; i < to.rows; ++i) hn::StoreU(finished(i), d, c + i * to.ldc);
    }
  }
}

using FinishFunction = void (*)(const FinishArgs&);

template <class Sum>
FinishFunction FinishFor(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return &Finish<Sum, Activation::kNone>;
    case Activation::kRelu:
      return &Finish<Sum, Activation::kRelu>;
    case Activation::kGelu:
      return &Finish<Sum, Activation::kGelu>;
    case Activation::kGeluTanh:
      return &Finish<Sum, Activation::kGeluTanh>;
    case Activation::kSilu:
      return &Finish<Sum, Activation::kSilu>;
    case Activation::kTanh:
      return &Finish<Sum, Activation::kTanh>;
    case Activation::kSigmoid:
      return &Finish<Sum, Activation::kSigmoid>;
    case Activation::kRelu6:
      return &Finish<Sum, Activation::kRelu6>;
    case Activation::kHardSwish:
      return &Finish<Sum, Activation::kHardSwish>;
  }
  return &Finish<Sum, Activation::kNone>;
}

// How the tiles of a product end: what can be done while sums are in registers the tile does; Finish does the rest,
// from where the tile stored them.
template <class Sum>
class Ending {
 public:
  // Of the arguments of either product; where sums are `scaled`, tiles cannot end them.
  template <class Args>
  HWY_INLINE Ending(const Args& args, bool scaled)
      : finish_(FinishFor<Sum>(args.activation)), residual_first_(args.residual_first) {
    in_tile_ = IsBounds(args.activation, &bounds_) && !scaled && std::is_same_v<Sum, float>;
  }

  bool in_tile() const { return in_tile_; }
  FinishFunction finish() const { return finish_; }

  // What a tile is told whose result goes to `to`, its sums to `sums` (PanelWidth() apart) if Finish wants them.
  HWY_INLINE TileEnd Of(const TileResult& to, Sum* sums) const {
    if (!in_tile_) return {sums, PanelWidth(), nullptr, 0};
    return {to.c, to.ldc, to.residual, to.ldr, residual_first_, bounds_, true, to.columns};
  }

  // What Finish is told after it: where sums are scaled, the bias is not in them yet.
  // `scales`: of the panel's columns, or null.
  HWY_INLINE FinishArgs Rest(const TileResult& to, const Sum* sums, const float* bias, const uint8_t* scales) const {
    FinishArgs rest{};
    rest.sums = sums;
    rest.to = to;
    rest.residual_first = residual_first_;
    if (scales == nullptr) return rest;
    rest.bias = bias;
    rest.column_scale = reinterpret_cast<const float*>(scales);
    return rest;
  }

 private:
  FinishFunction finish_;
  Bounds bounds_;
  bool residual_first_;
  bool in_tile_;
};

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
