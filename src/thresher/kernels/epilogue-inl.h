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

// Sums of `rows` rows of `columns` columns, PanelWidth() apart, and where they go:
// c = act((sums - row_zero * column_sum) * column_scale * row_scale + bias) + residual.
struct FinishArgs {
  const void* sums;  // float or int32_t
  size_t rows;
  size_t columns;
  float* c;
  size_t ldc;
  const float* residual;  // or null
  size_t ldr;
  // Null, or one value a column for a whole panel:
  const float* bias;
  const float* column_scale;
  const int32_t* column_sum;
  // Null, or one value a row:
  const float* row_scale;
  const int32_t* row_zero;
};

// The members of FinishArgs that sums of this type may use: float has bias and column_scale, int32_t has all, and both
// scales always.
template <class Sum, Activation kActivation>
HWY_NOINLINE void Finish(const FinishArgs& args) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const size_t lanes = hn::Lanes(d);
  const size_t width = PanelWidth();
  const Sum* HWY_RESTRICT sums = static_cast<const Sum*>(args.sums);
  for (size_t i = 0; i < args.rows; ++i) {
    for (size_t j = 0; j < args.columns; j += lanes) {
      auto v = hn::Zero(d);
      if constexpr (std::is_same_v<Sum, int32_t>) {
        auto sum = hn::Load(di, sums + i * width + j);
        if (args.column_sum != nullptr) {
          sum = hn::Sub(sum, hn::Mul(hn::Set(di, args.row_zero[i]), hn::LoadU(di, args.column_sum + j)));
        }
        const auto scale = hn::Mul(hn::LoadU(d, args.column_scale + j), hn::Set(d, args.row_scale[i]));
        v = args.bias == nullptr ? hn::Mul(hn::ConvertTo(d, sum), scale)
                                 : hn::MulAdd(hn::ConvertTo(d, sum), scale, hn::LoadU(d, args.bias + j));
      } else {
        v = hn::Load(d, sums + i * width + j);
        if (args.column_scale != nullptr) v = hn::Mul(v, hn::LoadU(d, args.column_scale + j));
        if (args.bias != nullptr) v = hn::Add(v, hn::LoadU(d, args.bias + j));
      }
      v = Activate<kActivation>(d, v);
      const size_t count = args.columns - j;
      if (count >= lanes) {
        if (args.residual != nullptr) v = hn::Add(v, hn::LoadU(d, args.residual + i * args.ldr + j));
        hn::StoreU(v, d, args.c + i * args.ldc + j);
      } else {
        if (args.residual != nullptr) v = hn::Add(v, hn::LoadN(d, args.residual + i * args.ldr + j, count));
        hn::StoreN(v, d, args.c + i * args.ldc + j, count);
      }
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
  }
  return &Finish<Sum, Activation::kNone>;
}

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
