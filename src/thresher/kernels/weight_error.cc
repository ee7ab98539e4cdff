#include "thresher/kernels/weight_error.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "thresher/kernels/block_format.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/iterate.h"

namespace thresher::kernels {
namespace {

constexpr int32_t kInfinityBits = 0x7f800000;
constexpr float kFp16Limit = 65520.0f;          // rounds to infinity, as does all beyond
constexpr int32_t kBf16LimitBits = 0x7f7f8000;  // likewise
constexpr float kRoundToInt = 12582912.0f;      // 1.5 * 2^23: adding it leaves no bits for a fraction

// ---- numbers as they are stored ----

float WidenBf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

float WidenF16(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = x & 0x7c00u, fraction = x & 0x3ffu;
  const uint32_t normal = ((exponent | fraction) << 13) + ((127u - 15u) << 23);
  const uint32_t infinite = fraction << 13 | static_cast<uint32_t>(kInfinityBits);
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(fraction)) * 0x1p-24f);
  return std::bit_cast<float>(sign | (exponent == 0 ? subnormal : exponent == 0x7c00u ? infinite : normal));
}

template <class T, class Widen>
void WidenLine(const void* from, int64_t count, int64_t stride, const Widen& widen, float* out) {
  const T* const in = static_cast<const T*>(from);
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = widen(in[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = widen(in[i * stride]);
  }
}

// The columns of a weight, or its rows, as floats.
class Lines {
 public:
  Lines(const Weight& weight, bool columns)
      : weight_(weight),
        columns_(columns),
        stride_(columns ? weight.stride_k : weight.stride_n),
        in_place_(weight.encoding == Encoding::kF32 && stride_ == 1),
        widened_(in_place_ ? 0 : static_cast<size_t>(length())) {}

  int64_t count() const { return columns_ ? weight_.n : weight_.k; }
  int64_t length() const { return columns_ ? weight_.k : weight_.n; }

  // Valid until the next call.
  const float* operator[](int64_t line) {
    const void* const first = columns_ ? weight_.At(0, line) : weight_.At(line, 0);
    if (in_place_) return static_cast<const float*>(first);
    switch (weight_.encoding) {
      case Encoding::kF32:
        WidenLine<float>(first, length(), stride_, [](float x) { return x; }, widened_.data());
        break;
      case Encoding::kBf16:
        WidenLine<uint16_t>(first, length(), stride_, WidenBf16, widened_.data());
        break;
      case Encoding::kF16:
        WidenLine<uint16_t>(first, length(), stride_, WidenF16, widened_.data());
        break;
      default:  // blocks run along k, and so do lines
        DecodeNumbers(weight_.encoding, first, length(), widened_.data());
        break;
    }
    return widened_.data();
  }

 private:
  const Weight& weight_;
  bool columns_;
  int64_t stride_;
  bool in_place_;
  std::vector<float> widened_;
};

// ---- what a format makes of them ----

// Everything below is written so that compilers vectorise it: no branches, several chains of sums, magnitudes compared
// as integers (which also finds what is not finite).

int32_t MagnitudeBits(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

int32_t MaxBits(const float* w, int64_t count) {
  int32_t top = 0;
  for (int64_t i = 0; i < count; ++i) top = std::max(top, MagnitudeBits(w[i]));
  return top;
}

// The sum of term(i)^2.
template <class Term>
double SumSquares(int64_t count, Term term) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) {
      const double t = term(i + l);
      lanes[l] += t * t;
    }
  }
  for (; i < count; ++i) {
    const double t = term(i);
    lanes[0] += t * t;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

float RoundBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
}

// To a multiple of 2^(exponent - 10), and of 2^-24 where numbers are subnormal. What is far beyond fp16 becomes
// anything.
float RoundFp16(float x) {
  const int32_t exponent = std::max(std::bit_cast<int32_t>(x) & kInfinityBits, (127 - 14) << 23);
  const float magic = std::bit_cast<float>((static_cast<uint32_t>(exponent) + (13u << 23)) | 0x400000u);
  return (x + magic) - magic;
}

struct Scale {
  float scale;
  float inverse;
};

struct Format {
  float limit;              // largest integer; 0: a floating-point format
  int64_t group;            // elements along k that share a scale
  bool coarse = false;      // whether scales are stored in bf16
  bool short_sums = false;  // whether sums of four bound the scale as well (gemm_dot.h)
};

Format FormatOf(Precision precision, int64_t k) {
  switch (precision) {
    case Precision::kInt8:
      return {127.0f, k, false, Int8SumsAreShort()};
    case Precision::kInt8Weight:
      return {127.0f, k};
    case Precision::kInt4Weight:
      return {7.0f, kInt4Group, true};
    case Precision::kFp32:
    case Precision::kBf16:
    case Precision::kFp16:
    case Precision::kBlocks:
      break;
  }
  return {0.0f, k};
}

// Of a group whose largest magnitude is `bits`. What is too small to divide by becomes 0.
Scale ScaleFor(int32_t bits, Format format) {
  const float exact = std::bit_cast<float>(bits) * (1.0f / format.limit);
  const float scale = format.coarse ? RoundBf16(exact) : exact;
  const float inverse = 1.0f / scale;
  if (!(inverse <= std::numeric_limits<float>::max())) return {0.0f, 0.0f};
  return {scale, inverse};
}

// The larger of the sums of positive and of negative numbers among four of a channel from row `first` on; `at` gives
// its element in a row.
template <class At>
float ShortSum(int64_t first, int64_t end, const At& at) {
  float positive = 0.0f, negative = 0.0f;
  for (const int64_t row : kShortSumRows) {
    if (first + row >= end) break;
    const float x = at(first + row);
    positive += std::max(x, 0.0f);
    negative -= std::min(x, 0.0f);
  }
  return std::max(positive, negative);
}

// The magnitude that decides the scale of a channel: `top`, or more to make room for its sums.
int32_t WithShortSums(int32_t top, float most, float limit) {
  return std::max(top, std::bit_cast<int32_t>(most * (limit / kMostShortSum)));
}

float Quantize(float x, Scale s, float limit) {
  const float q = (x * s.inverse + kRoundToInt) - kRoundToInt;
  return std::min(std::max(q, -limit), limit) * s.scale;
}

// Channels are lines, and so are their groups.
double ErrorOfColumns(Lines& lines, Format format) {
  double sum = 0;
  for (int64_t line = 0; line < lines.count(); ++line) {
    const float* const channel = lines[line];
    for (int64_t begin = 0; begin < lines.length(); begin += format.group) {
      const float* group = channel + begin;
      const int64_t count = std::min(format.group, lines.length() - begin);
      int32_t top = MaxBits(group, count);
      if (format.short_sums) {
        float most = 0.0f;
        for (int64_t i = 0; i < count; i += kShortSumPeriod) {
          for (const int64_t start : kShortSumStarts) {
            most = std::max(most, ShortSum(i + start, count, [&](int64_t at) { return group[at]; }));
          }
        }
        top = WithShortSums(top, most, format.limit);
      }
      const Scale s = ScaleFor(top, format);
      sum += SumSquares(count, [&](int64_t i) { return Quantize(group[i], s, format.limit) - group[i]; });
    }
  }
  return sum;
}

// WithShortSums for each column.
void WidenForShortSums(Lines& rows, float limit, std::vector<int32_t>& top) {
  const auto columns = static_cast<size_t>(rows.length());
  std::vector<float> positive(columns), negative(columns), most(columns);
  for (int64_t i = 0; i < rows.count(); i += kShortSumPeriod) {
    for (const int64_t start : kShortSumStarts) {
      std::fill(positive.begin(), positive.end(), 0.0f);
      std::fill(negative.begin(), negative.end(), 0.0f);
      for (const int64_t step : kShortSumRows) {
        if (i + start + step >= rows.count()) break;
        const float* row = rows[i + start + step];
        for (size_t j = 0; j < columns; ++j) {
          positive[j] += std::max(row[j], 0.0f);
          negative[j] -= std::min(row[j], 0.0f);
        }
      }
      for (size_t j = 0; j < columns; ++j) most[j] = std::max(most[j], std::max(positive[j], negative[j]));
    }
  }
  for (size_t j = 0; j < columns; ++j) top[j] = WithShortSums(top[j], most[j], limit);
}

// Channels lie across the lines: a whole row of scales at a time.
double ErrorOfRows(Lines& rows, Format format) {
  const auto columns = static_cast<size_t>(rows.length());
  std::vector<int32_t> top(columns);
  std::vector<float> scale(columns), inverse(columns);
  double sum = 0;
  for (int64_t begin = 0; begin < rows.count(); begin += format.group) {
    const int64_t end = std::min(begin + format.group, rows.count());
    std::fill(top.begin(), top.end(), 0);
    for (int64_t i = begin; i < end; ++i) {
      const float* row = rows[i];
      for (size_t j = 0; j < columns; ++j) top[j] = std::max(top[j], MagnitudeBits(row[j]));
    }
    if (format.short_sums) WidenForShortSums(rows, format.limit, top);
    for (size_t j = 0; j < columns; ++j) {
      const Scale s = ScaleFor(top[j], format);
      scale[j] = s.scale;
      inverse[j] = s.inverse;
    }
    for (int64_t i = begin; i < end; ++i) {
      const float* row = rows[i];
      sum += SumSquares(rows.length(), [&](int64_t j) {
        const auto column = static_cast<size_t>(j);
        return Quantize(row[j], {scale[column], inverse[column]}, format.limit) - row[j];
      });
    }
  }
  return sum;
}

}  // namespace

WeightErrorSums& WeightErrorSums::operator+=(const WeightErrorSums& other) {
  error += other.error;
  norm += other.norm;
  finite = finite && other.finite;
  overflows = overflows || other.overflows;
  return *this;
}

WeightError WeightErrorSums::Relative() const {
  WeightError result;
  result.finite = finite;
  result.overflows = overflows;
  if (finite && !overflows && norm > 0) result.relative = std::sqrt(error / norm);
  return result;
}

WeightErrorSums SumWeightError(const Weight& weight, Precision precision, int part, int num_parts) {
  const Range range = PartRange(weight.n, part, num_parts);
  const Weight share = weight.Columns(range.begin, range.size());
  WeightErrorSums sums;
  if (share.k == 0 || share.n == 0) return sums;
  const bool columns = weight.stride_k == 1;
  Lines lines(share, columns);
  int32_t top = 0;
  for (int64_t line = 0; line < lines.count(); ++line) {
    const float* w = lines[line];
    top = std::max(top, MaxBits(w, lines.length()));
    sums.norm += SumSquares(lines.length(), [&](int64_t i) { return w[i]; });
    if (precision == Precision::kBf16) {
      sums.error += SumSquares(lines.length(), [&](int64_t i) { return RoundBf16(w[i]) - w[i]; });
    } else if (precision == Precision::kFp16) {
      sums.error += SumSquares(lines.length(), [&](int64_t i) { return RoundFp16(w[i]) - w[i]; });
    }
  }
  sums.finite = top < kInfinityBits;
  sums.overflows = (precision == Precision::kFp16 && top >= std::bit_cast<int32_t>(kFp16Limit)) ||
                   (precision == Precision::kBf16 && top >= kBf16LimitBits);
  const Format format = FormatOf(precision, weight.k);
  if (!sums.finite || format.limit == 0) return sums;
  sums.error = columns ? ErrorOfColumns(lines, format) : ErrorOfRows(lines, format);
  return sums;
}

WeightError MeasureWeightErrorReference(const Weight& weight, Precision precision) {
  const int64_t k = weight.k, n = weight.n;
  Lines rows(weight, false);
  std::vector<double> numbers;
  for (int64_t i = 0; i < k; ++i) {
    const float* const row = rows[i];
    numbers.insert(numbers.end(), row, row + n);
  }
  const auto at = [&](int64_t i, int64_t j) { return numbers[static_cast<size_t>(i * n + j)]; };
  // The nearest number with `digits` binary digits after the leading one, none below 2^(least - digits).
  const auto round = [](double x, int digits, int least) {
    if (x == 0) return 0.0;
    const int exponent = std::max(std::ilogb(x), least) - digits;
    return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  };
  WeightError result;
  double error = 0, norm = 0;
  const Format format = FormatOf(precision, k);
  for (int64_t j = 0; j < n; ++j) {
    double top = 0;
    for (int64_t i = 0; i < k; ++i) {
      const double x = at(i, j);
      if (!std::isfinite(x)) result.finite = false;
      double q = x;
      if (precision == Precision::kBf16) {
        q = round(x, 7, -126);
        if (std::abs(q) > std::numeric_limits<float>::max()) result.overflows = true;
      } else if (precision == Precision::kFp16) {
        q = round(x, 10, -14);
        if (std::abs(q) > 65504.0) result.overflows = true;
      } else if (precision != Precision::kFp32) {
        if (i % format.group == 0) {
          top = 0;
          for (int64_t g = i; g < std::min(i + format.group, k); ++g) top = std::max(top, std::abs(at(g, j)));
          for (int64_t first = 0; format.short_sums && first < k; ++first) {
            if (first % kShortSumPeriod != 0 && first % kShortSumPeriod != 2) continue;
            double positive = 0, negative = 0;
            for (const int64_t row : kShortSumRows) {
              const double w = first + row < k ? at(first + row, j) : 0.0;
              (w > 0 ? positive : negative) += std::abs(w);
            }
            top = std::max(top, std::max(positive, negative) * 127.0 / kMostShortSum);
          }
        }
        const double limit = format.limit;
        const double scale = format.coarse ? round(top / limit, 7, -126) : top / limit;
        q = scale == 0 ? 0.0 : std::clamp(std::nearbyint(x / scale), -limit, limit) * scale;
      }
      error += (q - x) * (q - x);
      norm += x * x;
    }
  }
  if (result.finite && !result.overflows && norm > 0) result.relative = std::sqrt(error / norm);
  return result;
}

}  // namespace thresher::kernels
