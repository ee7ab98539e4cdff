// What attention leaves of a row: its result, or sums of some of the keys, which MergeKernel then puts together.
#pragma once

#include <cstdint>

#include "thresher/cuda/attention_source.h"
#include "thresher/cuda/reduce.h"
#include "thresher/cuda/rows.h"
#include "thresher/cuda/thread.h"

namespace thresher::cuda {

template <class Source>
class RowWriter {
 public:
  // `most` and `sum`: the largest score and the sum of the weights relative to it. One for a row behind the last writes
  // nothing: the last one is another thread's.
  THRESHER_DEVICE RowWriter(const Source& source, const Place& place, int row, float most, float sum)
      : width_(source.width) {
    const bool exists = row < place.rows;
    row = Least(row, place.rows - 1);
    const float weight = place.broken ? kNotANumber : sum;
    if (source.partials.splits > 1) {
      float* const line = source.partials.Row(place.split, source.RowNumber(place, row), source.width);
      if (exists) {
        line[width_] = most;
        line[width_ + 1] = weight;
      }
      to_ = line;
      dtype_ = DType::kF32;
      pairs_ = false;
      factor_ = 1.0f;
    } else {
      to_ = source.Out(place, row);
      dtype_ = source.out.dtype;
      pairs_ = source.out.vectors;
      factor_ = weight == 0.0f ? 0.0f : 1.0f / weight;  // a row that sees no key gets zeros
    }
  }

  // Columns `column`, which is even, and the next, as far as there are such.
  THRESHER_DEVICE void Two(int column, float first, float second) const {
    first *= factor_;
    second *= factor_;
    if (pairs_ && column + 1 < width_ && dtype_ != DType::kF32) {
      const uint32_t both = dtype_ == DType::kBF16 ? Bf16::RoundTwo(first, second) : Fp16::RoundTwo(first, second);
      static_cast<uint32_t*>(to_)[column / 2] = both;
      return;
    }
    One(column, first, 1.0f);
    One(column + 1, second, 1.0f);
  }
  THRESHER_DEVICE void One(int column, float x) const { One(column, x, factor_); }

  // Whether the row is of halves that can be written four at a time, as words that Round() makes.
  template <class Half>
  THRESHER_DEVICE bool TakesFour() const {
    return pairs_ && dtype_ == Half::kDType;
  }
  template <class Half>
  THRESHER_DEVICE uint32_t Round(float first, float second) const {
    return Half::RoundTwo(first * factor_, second * factor_);
  }
  THRESHER_DEVICE void Four(int column, uint32_t first, uint32_t second) const {
    if (column < width_) static_cast<Words<2>*>(to_)[column / 4] = {{first, second}};
  }

 private:
  THRESHER_DEVICE void One(int column, float x, float factor) const {
    if (column < width_) StoreElement(to_, dtype_, column, x * factor);
  }

  void* to_;
  int width_;
  DType dtype_;
  bool pairs_;
  float factor_;
};

// A warp for each row.
template <class Source>
struct MergeKernel {
  static constexpr int kMostThreads = kWarp * kRowsPerBlock;
  Source source;

  template <class T>
  THRESHER_DEVICE void operator()(T& t) const {
    ForEachRow<true>(t, source.partials.rows, [&](int64_t number) {
      const int width = source.width, splits = source.partials.splits;
      float most = kNoKey;
      for (int i = t.x(); i < splits; i += kWarp) most = fmaxf(most, source.partials.Row(i, number, width)[width]);
      most = ReduceWarp<Max>(t, most);
      const float level = source.scores.Level(BaseOf(most));
      float sum = 0.0f;
      for (int i = t.x(); i < splits; i += kWarp) {
        const float* const line = source.partials.Row(i, number, width);
        sum = fmaf(source.scores.Kept(line[width], level), line[width + 1], sum);
      }
      sum = ReduceWarp<Sum>(t, sum);
      const float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
      void* const to = source.OutNumber(number);
      for (int column = t.x(); column < width; column += kWarp) {
        float value = 0.0f;
        for (int i = 0; i < splits; ++i) {
          const float* const line = source.partials.Row(i, number, width);
          value = fmaf(source.scores.Kept(line[width], level), line[column], value);
        }
        StoreElement(to, source.out.dtype, column, value * factor);
      }
    });
  }
};

template <class Source, class Launch>
auto LaunchMerge(Launch&& launch, const Source& source) {
  Shape shape;
  shape.height = kRowsPerBlock;
  shape.blocks = AtMostBlocks(DivideUp(source.partials.rows, kRowsPerBlock));
  return launch(shape, MergeKernel<Source>{source});
}

}  // namespace thresher::cuda
