#include "thresher/kernels/window_image.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

#define THRESHER_DOT_TARGETS
#include "thresher/base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/window_image.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/dot_tile-inl.h"
#include "thresher/kernels/row_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

// The ranges of lines [begin, end) of x, which is of type T.
template <class T>
void FindRangesOf(const ConvertWindowsArgs& args, int64_t begin, int64_t end) {
  const Windows& w = args.windows;
  const bool dense = w.x_strides[2] == args.channels;
  for (int64_t line = begin; line < end; ++line) {
    const T* x = reinterpret_cast<const T*>(args.x) + line / (w.in[0] * w.in[1]) * w.x_batch +
                 line / w.in[1] % w.in[0] * w.x_strides[0] + line % w.in[1] * w.x_strides[1];
    CodeRange range;
    if (dense) {
      range = RangeOf(x, static_cast<size_t>(w.in[2] * args.channels));
    } else {
      for (int64_t i = 0; i < w.in[2]; ++i, x += w.x_strides[2]) {
        range.Include(RangeOf(x, static_cast<size_t>(args.channels)));
      }
    }
    args.ranges[2 * line] = range.low;
    args.ranges[2 * line + 1] = range.high;
  }
}

void FindLineRanges(const ConvertWindowsArgs& args, int64_t begin, int64_t end) {
  (args.x_bf16 ? &FindRangesOf<hwy::bfloat16_t> : &FindRangesOf<float>)(args, begin, end);
}

// Elements of x that are bf16.
class StoredElements {
 public:
  using Stored = uint16_t;
  StoredElements(const ConvertWindowsArgs&, int64_t, bool) {}
  void Convert(const uint16_t* x, size_t count, uint8_t* out) const { std::memcpy(out, x, count * sizeof(uint16_t)); }
  void Zeros(uint8_t* out, size_t bytes) const { std::memset(out, 0, bytes); }
};

// Elements as bf16.
class Bf16Elements {
 public:
  using Stored = float;
  Bf16Elements(const ConvertWindowsArgs&, int64_t, bool) {}
  void Convert(const float* x, size_t count, uint8_t* out) const {
    RowToBf16(x, count, reinterpret_cast<hwy::bfloat16_t*>(out));
  }
  void Zeros(uint8_t* out, size_t bytes) const { std::memset(out, 0, bytes); }
};

CodeRange PictureRange(const ConvertWindowsArgs& args, int64_t picture) {
  const int64_t lines = RangesOf(args.windows, 1);
  CodeRange range;
  for (int64_t line = picture * lines; line < (picture + 1) * lines; ++line) {
    range.Include({args.ranges[2 * line], args.ranges[2 * line + 1]});
  }
  return range;
}

// Elements of one picture as fp16.
class F16Elements {
 public:
  using Stored = float;
  // `store`: the scale as well.
  F16Elements(const ConvertWindowsArgs& args, int64_t picture, bool store) {
    const float scale = F16Scale(PictureRange(args, picture));
    if (store) args.scale[picture] = scale;
    factor_ = 1.0f / scale;
  }
  void Convert(const float* x, size_t count, uint8_t* out) const {
    RowToF16(x, count, factor_, reinterpret_cast<uint16_t*>(out));
  }
  void Zeros(uint8_t* out, size_t bytes) const { std::memset(out, 0, bytes); }

 private:
  float factor_;
};

// Elements of one picture as codes.
template <class T>
class CodedElements {
 public:
  using Stored = T;
  // `store`: scale and zero point as well.
  CodedElements(const ConvertWindowsArgs& args, int64_t picture, bool store) : codes_(PictureRange(args, picture)) {
    if (!store) return;
    args.scale[picture] = codes_.finite ? codes_.scale : std::numeric_limits<float>::quiet_NaN();
    args.zero[picture] = codes_.StoredZero();
  }
  void Convert(const T* x, size_t count, uint8_t* out) const {
    if (!codes_.finite) return Zeros(out, count * Int8Dot::kRowBytes);
    StoreRow(x, count, codes_, out);
  }
  void Zeros(uint8_t* out, size_t bytes) const {
    std::memset(out, Int8Dot::kRowBytes == 1 ? static_cast<uint8_t>(codes_.StoredZero()) : 0, bytes);
  }

 private:
  RowCodes codes_;
};

// Positions of few channels, with zeros up to kPaddedChannels. T: float, or bf16 as uint16_t.
template <class T>
class FewChannels {
 public:
  using Stored = T;
  FewChannels(const ConvertWindowsArgs& args, int64_t, bool)
      : channels_(static_cast<size_t>(args.x_channels)), apart_(args.x_channel) {}
  // `count`: of the image's elements.
  void Convert(const T* x, size_t count, uint8_t* out) const {
    auto* const to = reinterpret_cast<uint16_t*>(out);
    apart_ == 1 ? ConvertPositions(x, count / kPaddedChannels, to) : ConvertPlanes(x, count / kPaddedChannels, to);
  }
  void Zeros(uint8_t* out, size_t bytes) const { std::memset(out, 0, bytes); }

 private:
  static constexpr bool kStored = std::is_same_v<T, uint16_t>;
  using Tag = hn::ScalableTag<T>;
  using BitsTag = hn::RebindToUnsigned<TileTag>;

  static uint16_t Bits(T number) {
    if constexpr (kStored) return number;
    return hwy::BitCastScalar<uint16_t>(hwy::BF16FromF32(number));
  }

  // The channels of a position lie side by side.
  void ConvertPositions(const T* x, size_t positions, uint16_t* out) const {
    constexpr size_t kAll = kPaddedChannels;
    if constexpr (hn::MaxLanes(Tag()) >= kAll) {
      const Tag d;
      const hn::RebindToUnsigned<Tag> du;
      using Lane = hn::TFromD<decltype(du)>;
      const size_t lanes = hn::Lanes(d);
      const auto channel = hn::And(hn::Iota(du, 0), hn::Set(du, Lane{kAll - 1}));
      const auto mask = hn::RebindMask(d, hn::Lt(channel, hn::Set(du, static_cast<Lane>(channels_))));
      // A vector is loaded whole, whatever it takes of it.
      for (; positions * channels_ >= lanes; positions -= lanes / kAll, out += lanes) {
        const auto numbers = hn::LoadExpand(mask, d, x);
        if constexpr (kStored) {
          hn::StoreU(numbers, d, out);
        } else {
          const hn::Rebind<hwy::bfloat16_t, Tag> d16;
          hn::StoreU(hn::DemoteTo(d16, numbers), d16, reinterpret_cast<hwy::bfloat16_t*>(out));
        }
        x += lanes / kAll * channels_;
      }
    }
    for (; positions > 0; --positions, x += channels_) {
      for (size_t i = 0; i < kAll; ++i) *out++ = i < channels_ ? Bits(x[i]) : uint16_t{0};
    }
  }

  // Each channel is a plane. Of 16 bits in a lane, those of two channels are a vector.
  void ConvertPlanes(const T* x, size_t positions, uint16_t* out) const {
    const BitsTag d;
    const hn::Rebind<uint16_t, BitsTag> d16;
    const size_t lanes = hn::Lanes(d);
    const auto load = [&](size_t channel) HWY_ATTR {
      if (channel >= channels_) return hn::Zero(d);
      const T* const from = x + static_cast<ptrdiff_t>(channel) * apart_;
      if constexpr (kStored) {
        return hn::PromoteTo(d, hn::LoadU(d16, from));
      } else {
        const hn::Rebind<hwy::bfloat16_t, BitsTag> half;
        return hn::PromoteTo(d, hn::BitCast(d16, hn::DemoteTo(half, hn::LoadU(TileTag(), from))));
      }
    };
    for (; positions >= lanes; positions -= lanes, x += lanes, out += lanes * kPaddedChannels) {
      const auto first = hn::Or(load(0), hn::ShiftLeft<16>(load(1)));
      const auto second = hn::Or(load(2), hn::ShiftLeft<16>(load(3)));
      auto* const to = reinterpret_cast<uint32_t*>(out);
      hn::StoreU(hn::InterleaveWholeLower(d, first, second), d, to);
      hn::StoreU(hn::InterleaveWholeUpper(d, first, second), d, to + lanes);
    }
    for (; positions > 0; --positions, ++x) {
      for (size_t i = 0; i < kPaddedChannels; ++i) {
        *out++ = i < channels_ ? Bits(x[static_cast<ptrdiff_t>(i) * apart_]) : uint16_t{0};
      }
    }
  }

  size_t channels_;
  int64_t apart_;
};

// Lines [begin, end) of all pictures of the image.
template <class Elements>
void ConvertLines(const ConvertWindowsArgs& args, int64_t begin, int64_t end) {
  const Windows& w = args.windows;
  const ImageLayout image(args.form, w, args.channels);
  const int64_t picture_lines = image.size[0] * image.size[1];
  const size_t channels = static_cast<size_t>(args.channels);
  const size_t position = static_cast<size_t>(image.strides[2]);
  const int64_t x_channels = args.x_channels == 0 ? args.channels : args.x_channels;
  // From one position to the next where they lie side by side, or the channels' planes do.
  const int64_t apart = args.x_channel == 1 ? x_channels : 1;
  const bool dense = image.step[2] == 1 && w.spread[2] == 1 && w.x_strides[2] == apart;
  for (int64_t line = begin; line < end;) {
    const int64_t picture = line / picture_lines;
    const Elements elements(args, picture, line % picture_lines == 0);
    for (const int64_t last = std::min(end, (picture + 1) * picture_lines); line < last; ++line) {
      uint8_t* out = static_cast<uint8_t*>(args.image) + line * image.strides[1];
      const int64_t d = image.Source(w, 0, line % picture_lines / image.size[1]);
      const int64_t h = image.Source(w, 1, line % image.size[1]);
      if (d < 0 || h < 0) {
        elements.Zeros(out, static_cast<size_t>(image.strides[1]));
        continue;
      }
      const auto* const x = reinterpret_cast<const typename Elements::Stored*>(args.x) + picture * w.x_batch +
                            d * w.x_strides[0] + h * w.x_strides[1];
      if (!dense) {
        for (int64_t p = 0; p < image.size[2]; ++p, out += position) {
          const int64_t at = image.Source(w, 2, p);
          if (at < 0) {
            elements.Zeros(out, position);
          } else {
            elements.Convert(x + at * w.x_strides[2], channels, out);
          }
        }
        continue;
      }
      // Positions of the line that lie in x.
      const int64_t low = std::clamp<int64_t>(w.padding[2], 0, image.size[2]);
      const int64_t high = std::clamp<int64_t>(w.in[2] + w.padding[2], low, image.size[2]);
      elements.Zeros(out, static_cast<size_t>(low) * position);
      elements.Convert(x + (low - w.padding[2]) * apart, static_cast<size_t>(high - low) * channels,
                       out + static_cast<size_t>(low) * position);
      elements.Zeros(out + static_cast<size_t>(high) * position, static_cast<size_t>(image.size[2] - high) * position);
    }
  }
}

void ConvertImage(const ConvertWindowsArgs& args, int64_t begin, int64_t end) {
  const bool bf16 = args.form == RowForm::kBF16;
  const bool few = args.x_channels != 0;
  (few && args.x_bf16           ? &ConvertLines<FewChannels<uint16_t>>
   : few                        ? &ConvertLines<FewChannels<float>>
   : bf16 && args.x_bf16        ? &ConvertLines<StoredElements>
   : bf16                       ? &ConvertLines<Bf16Elements>
   : args.form == RowForm::kF16 ? &ConvertLines<F16Elements>
   : args.x_bf16                ? &ConvertLines<CodedElements<hwy::bfloat16_t>>
                                : &ConvertLines<CodedElements<float>>)(args, begin, end);
}

float RestoreElement(const ConvertWindowsArgs& args, int64_t picture, int64_t index) {
  if (args.form == RowForm::kBF16) return hwy::F32FromBF16(static_cast<const hwy::bfloat16_t*>(args.image)[index]);
  if (args.form == RowForm::kF16) {
    return args.scale[picture] * ToFloat(static_cast<const F16*>(args.image)[index]);
  }
  int32_t code;
  if constexpr (Int8Dot::kRowBytes == 2) {
    code = static_cast<const int16_t*>(args.image)[index];
  } else {
    code = Int8Dot::kRowOffset == 0 ? static_cast<const uint8_t*>(args.image)[index]
                                    : static_cast<const int8_t*>(args.image)[index];
  }
  return args.scale[picture] * static_cast<float>(code - args.zero[picture]);
}

void RestoreImage(const ConvertWindowsArgs& args, float* x) {
  const int64_t picture = ImageLayout(args.form, args.windows, args.channels).picture / ElementBytes(args.form);
  for (int64_t i = 0; i < args.batch * picture; ++i) x[i] = RestoreElement(args, i / picture, i);
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(FindLineRanges);
HWY_EXPORT(ConvertImage);
HWY_EXPORT(RestoreImage);

}  // namespace

void FindRanges(const ConvertWindowsArgs& args, int part, int num_parts) {
  const int64_t lines = RangesOf(args.windows, args.batch);
  HWY_DYNAMIC_DISPATCH(FindLineRanges)(args, lines * part / num_parts, lines * (part + 1) / num_parts);
}

void ConvertWindows(const ConvertWindowsArgs& args, int part, int num_parts) {
  const ImageLayout image(args.form, args.windows, args.channels);
  const int64_t lines = args.batch * image.size[0] * image.size[1];
  HWY_DYNAMIC_DISPATCH(ConvertImage)(args, lines * part / num_parts, lines * (part + 1) / num_parts);
}

void RestoreWindows(const ConvertWindowsArgs& converted, float* x) { HWY_DYNAMIC_DISPATCH(RestoreImage)(converted, x); }

}  // namespace thresher::kernels

#endif  // HWY_ONCE
