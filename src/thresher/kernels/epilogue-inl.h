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
#include "thresher/kernels/bf16_rows-inl.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
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
  // Whether these are rows of kBF16 (gemm_dot.h), pointers and distances in pairs. What lies behind the columns is
  // zeros where rows begin whole lines apart, and the next row else.
  bool bf16 = false;
  bool residual_bf16 = false;

  // Of results in float of a whole panel: those of the panel behind it.
  HWY_INLINE TileResult Second() const {
    TileResult second = *this;
    second.c += PanelWidth();
    if (residual != nullptr) second.residual += PanelWidth();
    return second;
  }
};

// Of the arguments of either product, from `row` and `column` on.
template <class Args>
HWY_INLINE TileResult ResultAt(const Args& args, size_t row, size_t column, size_t rows, size_t columns) {
  const size_t ldc = static_cast<size_t>(args.ldc);
  const size_t ldr = static_cast<size_t>(args.ldr);
  TileResult to{args.c + row * ldc, ldc, nullptr, ldr, rows, columns};
  if constexpr (requires { args.stores_bf16; }) {
    to.bf16 = args.stores_bf16;
    to.residual_bf16 = args.residual_bf16;
  }
  to.c += to.bf16 ? column / 2 : column;
  if (args.residual != nullptr) to.residual = args.residual + row * ldr + (to.residual_bf16 ? column / 2 : column);
  return to;
}

// The stores come at once at a tile's end, more lines than the processor can have under way: this fetches them before.
HWY_INLINE void FetchResult(const TileResult& to) {
  constexpr size_t kLine = 64 / sizeof(float);
  const size_t columns = to.bf16 ? to.columns / 2 : to.columns;
  const size_t added = to.residual == nullptr ? 0 : to.residual_bf16 ? to.columns / 2 : to.columns;
  for (size_t i = 0; i < to.rows; ++i) {
    for (size_t j = 0; j < columns; j += kLine) __builtin_prefetch(to.c + i * to.ldc + j, 1, 3);
    for (size_t j = 0; j < added; j += kLine) __builtin_prefetch(to.residual + i * to.ldr + j, 0, 3);
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
  // Of FinishGated: as the sums, and how far rows of both lie apart.
  const float* gate = nullptr;
  size_t sums_ld = 0;
};

// What the columns from `column` on have in common, a vector of them.
HWY_INLINE hn::Vec<TileTag> ColumnBias(const FinishArgs& args, size_t column) {
  const TileTag d;
  return args.bias == nullptr ? hn::Zero(d) : hn::LoadU(d, args.bias + column);
}
HWY_INLINE hn::Vec<TileTag> ColumnScale(const FinishArgs& args, size_t column) {
  const TileTag d;
  return args.column_scale == nullptr ? hn::Set(d, 1.0f) : hn::LoadU(d, args.column_scale + column);
}
// As floats, which hold them exactly: a column of up to 2^17 numbers has less than 2^24.
template <class Sum>
HWY_INLINE hn::Vec<TileTag> ColumnSum(const FinishArgs& args, size_t column) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const bool any = std::is_same_v<Sum, int32_t> && args.column_sum != nullptr;
  return any ? hn::ConvertTo(d, hn::LoadU(di, args.column_sum + column)) : hn::Zero(d);
}

// The sums at `sums`, of row i, scaled and with the bias, by the members of FinishArgs that sums of this type may use:
// float has bias and column_scale, int32_t has all, and both scales always.
template <class Sum, class V = hn::Vec<TileTag>>
HWY_INLINE V Scaled(const FinishArgs& args, const Sum* sums, size_t i, V bias, V scale, V column_sum) {
  const TileTag d;
  if constexpr (std::is_same_v<Sum, int32_t>) {
    const hn::RebindToSigned<TileTag> di;
    auto sum = hn::ConvertTo(d, hn::Load(di, sums));
    // One multiply-add: multiplying integers takes several times as long.
    if (args.row_zero != nullptr) {
      sum = hn::NegMulAdd(hn::Set(d, static_cast<float>(args.row_zero[i])), column_sum, sum);
    }
    return hn::MulAdd(sum, hn::Mul(scale, hn::Set(d, args.row_scale[i])), bias);
  } else {
    return hn::MulAdd(hn::Load(d, sums), scale, bias);
  }
}

// What becomes of finished sums. As rows of bf16: of whole panels, kAddedAsBf16 to a residual that is such rows too; of
// any panel, with any residual or none.
enum class Finished : uint8_t { kStored, kAdded, kStoredAsBf16, kAddedAsBf16, kAnyAsBf16 };

// Finish of whole panels, or kAnyAsBf16, row by row: what the columns have in common and the constants of an activation
// are loaded once for few rows, and what is the same for all rows is not asked for each. Sums that are not kScaled have
// their bias already.
template <class Sum, Activation kActivation, Finished kFinished, bool kScaled = true>
HWY_INLINE void FinishPanel(const FinishArgs& args) {
  using V = hn::Vec<TileTag>;
  constexpr bool kFloats = kFinished == Finished::kStored || kFinished == Finished::kAdded;
  constexpr bool kAny = kFinished == Finished::kAnyAsBf16;
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto bias_a = ColumnBias(args, 0), bias_b = ColumnBias(args, lanes);
  const auto scale_a = ColumnScale(args, 0), scale_b = ColumnScale(args, lanes);
  const auto sum_a = ColumnSum<Sum>(args, 0), sum_b = ColumnSum<Sum>(args, lanes);
  const Sum* HWY_RESTRICT sums = static_cast<const Sum*>(args.sums);
  const float* residual = args.to.residual;
  float* c = args.to.c;
  const size_t rows = args.to.rows, ldc = args.to.ldc, ldr = args.to.ldr;
  const size_t columns = kAny ? args.to.columns : 2 * lanes;
  [[maybe_unused]] const size_t count_a = std::min(lanes, columns), count_b = columns - count_a;
  [[maybe_unused]] const bool added = kAny ? residual != nullptr : kFinished == Finished::kAddedAsBf16;
  [[maybe_unused]] const bool halves = kAny ? args.to.residual_bf16 : true;
  [[maybe_unused]] const bool first = args.residual_first;
  for (size_t i = 0; i < rows; ++i, sums += PanelWidth(), c += ldc) {
    V a, b;
    if constexpr (kScaled) {
      a = Scaled(args, sums, i, bias_a, scale_a, sum_a);
      b = Scaled(args, sums + lanes, i, bias_b, scale_b, sum_b);
    } else {
      a = hn::Load(d, sums), b = hn::Load(d, sums + lanes);
    }
    if constexpr (kFloats) {
      a = Activate<kActivation>(d, a), b = Activate<kActivation>(d, b);
      if constexpr (kFinished == Finished::kAdded) {
        a = hn::Add(a, hn::LoadU(d, residual));
        b = hn::Add(b, hn::LoadU(d, residual + lanes));
        residual += ldr;
      }
      hn::StoreU(a, d, c);
      hn::StoreU(b, d, c + lanes);
    } else {
      V added_a = hn::Zero(d), added_b = hn::Zero(d);
      if (added) {
        added_a = LoadResidual(halves, residual, 0, count_a), added_b = LoadResidual(halves, residual, lanes, count_b);
        residual += ldr;
        if (first) a = hn::Add(a, added_a), b = hn::Add(b, added_b);
      }
      if constexpr (kActivation == Activation::kGelu) {
        a = GeluForBf16(d, a), b = GeluForBf16(d, b);
      } else {
        a = Activate<kActivation>(d, a), b = Activate<kActivation>(d, b);
      }
      if (added && !first) a = hn::Add(a, added_a), b = hn::Add(b, added_b);
      StoreAsBf16(a, b, columns, ldc, c);
    }
  }
}

template <class Sum, Activation kActivation>
HWY_NOINLINE void Finish(const FinishArgs& args) {
  const TileResult& to = args.to;
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t width = PanelWidth();
  if (to.columns == width && width == 2 * lanes && !args.residual_first && !to.residual_bf16) {
    return to.residual == nullptr ? FinishPanel<Sum, kActivation, Finished::kStored>(args)
                                  : FinishPanel<Sum, kActivation, Finished::kAdded>(args);
  }
  for (size_t j = 0; j < to.columns; j += lanes) {
    const auto bias = ColumnBias(args, j);
    const auto scale = ColumnScale(args, j);
    const auto column_sum = ColumnSum<Sum>(args, j);
    const size_t count = std::min(lanes, to.columns - j);
    const Sum* HWY_RESTRICT sums = static_cast<const Sum*>(args.sums) + j;
    const float* residual = to.residual;
    float* c = to.c + j;
    for (size_t i = 0; i < to.rows; ++i) {
      auto v = Scaled(args, sums + i * width, i, bias, scale, column_sum);
      const auto added =
          residual == nullptr ? hn::Zero(d) : LoadResidual(to.residual_bf16, residual + i * to.ldr, j, count);
      if (residual != nullptr && args.residual_first) v = hn::Add(v, added);
      v = Activate<kActivation>(d, v);
      if (residual != nullptr && !args.residual_first) v = hn::Add(v, added);
      hn::StoreN(v, d, c + i * to.ldc, count);
    }
  }
}

using FinishFunction = void (*)(const FinishArgs&);

// Of::For<activation>().
template <class Of>
FinishFunction FunctionFor(Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return Of::template For<Activation::kNone>();
    case Activation::kRelu:
      return Of::template For<Activation::kRelu>();
    case Activation::kGelu:
      return Of::template For<Activation::kGelu>();
    case Activation::kGeluTanh:
      return Of::template For<Activation::kGeluTanh>();
    case Activation::kSilu:
      return Of::template For<Activation::kSilu>();
    case Activation::kTanh:
      return Of::template For<Activation::kTanh>();
    case Activation::kSigmoid:
      return Of::template For<Activation::kSigmoid>();
    case Activation::kRelu6:
      return Of::template For<Activation::kRelu6>();
    case Activation::kHardSwish:
      return Of::template For<Activation::kHardSwish>();
  }
  return Of::template For<Activation::kNone>();
}

template <class Sum>
struct Finishes {
  template <Activation kActivation>
  static FinishFunction For() {
    return &Finish<Sum, kActivation>;
  }
};

// Finish whose results are rows of kBF16.
template <class Sum, Activation kActivation>
HWY_NOINLINE void FinishAsBf16(const FinishArgs& args) {
  const TileResult& to = args.to;
  constexpr bool kScaled = std::is_same_v<Sum, int32_t>;
  const bool scaled = args.bias != nullptr || args.column_scale != nullptr;
  const bool plain = to.residual == nullptr;
  if (to.columns < PanelWidth() || scaled != kScaled || !(plain || to.residual_bf16)) {
    return FinishPanel<Sum, kActivation, Finished::kAnyAsBf16>(args);
  }
  return plain ? FinishPanel<Sum, kActivation, Finished::kStoredAsBf16, kScaled>(args)
               : FinishPanel<Sum, kActivation, Finished::kAddedAsBf16, kScaled>(args);
}

template <class Sum>
struct FinishesAsBf16 {
  template <Activation kActivation>
  static FinishFunction For() {
    return &FinishAsBf16<Sum, kActivation>;
  }
};

// c = act(gate) * sums, both with their bias, of float; c may be either. Rows of bf16 are those of one panel, else
// there may be any number of columns; either way rows of sums hold whole vectors.
template <Activation kActivation>
HWY_NOINLINE void FinishGated(const FinishArgs& args) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const float* sums = static_cast<const float*>(args.sums);
  const float* gate = args.gate;
  const TileResult& to = args.to;
  float* c = to.c;
  for (size_t i = 0; i < to.rows; ++i, sums += args.sums_ld, gate += args.sums_ld, c += to.ldc) {
    const auto at = [&](size_t j) HWY_ATTR {
      return hn::Mul(Activate<kActivation>(d, hn::Load(d, gate + j)), hn::Load(d, sums + j));
    };
    if (to.bf16) {
      StoreAsBf16(at(0), at(lanes), to.columns, to.ldc, c);
      continue;
    }
    for (size_t j = 0; j < to.columns; j += lanes) hn::StoreN(at(j), d, c + j, to.columns - j);
  }
}

struct GatedFinishes {
  template <Activation kActivation>
  static FinishFunction For() {
    return &FinishGated<kActivation>;
  }
};

template <class Sum>
FinishFunction FinishFor(Activation activation) {
  return FunctionFor<Finishes<Sum>>(activation);
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
    if constexpr (requires { args.stores_bf16; }) {
      in_tile_ &= args.stores_bf16 || !args.residual_bf16;
      if (args.stores_bf16) finish_ = FunctionFor<FinishesAsBf16<Sum>>(args.activation);
    }
  }

  bool in_tile() const { return in_tile_; }
  FinishFunction finish() const { return finish_; }

  // What a tile is told whose result goes to `to`, its sums to `sums` (PanelWidth() apart) if Finish wants them.
  // Members are set one by one: a copy of all would be a wide load of what narrow stores wrote just now, which waits
  // until the stores before them, the last tile's results, have reached L1.
  HWY_INLINE void Of(const TileResult& to, Sum* sums, TileEnd& end) const {
    end.out = in_tile_ ? static_cast<void*>(to.c) : sums;
    end.out_ld = in_tile_ ? to.ldc : PanelWidth();
    end.residual = in_tile_ ? to.residual : nullptr;
    end.residual_ld = in_tile_ ? to.ldr : 0;
    end.residual_first = in_tile_ && residual_first_;
    end.bounds.any = in_tile_ && bounds_.any;
    end.bounds.least = bounds_.least;
    end.bounds.greatest = bounds_.greatest;
    end.fetches = in_tile_;
    end.columns = in_tile_ ? to.columns : std::numeric_limits<size_t>::max();
    end.bf16 = in_tile_ && to.bf16;
    end.residual_bf16 = in_tile_ && to.residual_bf16;
  }

  // What Finish is told after it, members one by one as in Of: where sums are scaled, the bias is not in them yet.
  // `scales`: of the panel's columns, or null.
  HWY_INLINE void Rest(const TileResult& to, const Sum* sums, const float* bias, const uint8_t* scales,
                       FinishArgs& rest) const {
    rest.sums = sums;
    rest.to.c = to.c;
    rest.to.ldc = to.ldc;
    rest.to.residual = to.residual;
    rest.to.ldr = to.ldr;
    rest.to.rows = to.rows;
    rest.to.columns = to.columns;
    rest.to.bf16 = to.bf16;
    rest.to.residual_bf16 = to.residual_bf16;
    rest.bias = scales == nullptr ? nullptr : bias;
    rest.column_scale = reinterpret_cast<const float*>(scales);
    rest.column_sum = nullptr;
    rest.row_scale = nullptr;
    rest.row_zero = nullptr;
    rest.residual_first = residual_first_;
  }
  HWY_INLINE FinishArgs Rest(const TileResult& to, const Sum* sums, const float* bias, const uint8_t* scales) const {
    FinishArgs rest;
    Rest(to, sums, bias, scales, rest);
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
