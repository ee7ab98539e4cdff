// Steps that are computed band by band: a few lines of the last result, and of those before it what these lines read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace thresher {

struct Plan;

// How a step's only result follows from its first operand, pictures of lines of positions, channels last.
struct StepLines {
  // Of the result; 0 pictures: whole rows of both, wherever lines begin.
  int64_t pictures = 0;
  int64_t lines = 0;
  int64_t positions = 0;  // of a line, or in all
  int64_t x_lines = 0;
  // Result line y reads lines [y * stride - padding, y * stride - padding + reach) of those that x has.
  int64_t stride = 1, padding = 0, reach = 1;
  // Bytes from one line to the next, or from one row, of x, of what is added to the result, and of the result.
  int64_t x_picture = 0, x_line = 0, added_line = 0, line = 0;
  size_t added = 0;  // operand that is added, if it is present; 0: none
  // Behind all rows of x, or of the result, lies something of each, so that they can only be those of a band.
  bool x_inside = false, result_inside = false;
  double speed = 1;  // how many times as fast as floats are multiplied
};

// What becomes of a step that computes some lines of one picture.
struct LineCut {
  int64_t positions = 0;  // of the result
  int64_t lines = 0;
  int64_t x_lines = 0;
  int64_t padding = 0;  // lines of zeros before those of x
};

struct LineRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Those of x that these of the result read.
inline LineRange LinesRead(const StepLines& step, LineRange result) {
  const int64_t begin = std::max<int64_t>(result.begin * step.stride - step.padding, 0);
  const int64_t end = (result.end - 1) * step.stride - step.padding + step.reach;
  return {begin, std::clamp(end, begin, step.x_lines)};
}

// A step of a band.
struct BandedStep {
  StepLines lines;     // with pictures
  int64_t place = -1;  // of the result in the memory of a band, bytes; -1: it is the plan's
};

struct Bands {
  static constexpr size_t kMostSteps = 8;
  static constexpr size_t kMostOperands = 6;  // of a step
  static constexpr size_t kMostParams = 512;  // bytes

  size_t first = 0;  // of the plan's steps
  std::vector<BandedStep> steps;
  int64_t lines = 0;         // of the last result in a band; the last band of a picture may have fewer
  int64_t in_picture = 0;    // bands
  int64_t kernel_bytes = 0;  // of scratch memory, then come the places
  int64_t bytes = 0;         // of scratch memory in all

  size_t end() const { return first + steps.size(); }
  int64_t count() const { return steps.back().lines.pictures * in_picture; }
  // What band `band` of a picture computes of each step's result.
  void Ranges(int64_t band, LineRange* ranges) const {
    const size_t last = steps.size() - 1;
    ranges[last] = {band * lines, std::min((band + 1) * lines, steps[last].lines.lines)};
    for (size_t i = last; i > 0; --i) ranges[i - 1] = LinesRead(steps[i].lines, ranges[i]);
  }
};

// The second cache of a thread, and what it costs to read what has left it.
struct NearCache {
  int64_t bytes = 0;              // 0: no step is cut into bands
  double share_of_result = 0.25;  // what a result may take of it before it is better kept in bands
  double far_bytes_per_ns = 20;
  double price = 3;  // what must be saved for each nanosecond computed twice

  static NearCache OfCore();
};

// Which steps these are: where a result that only the next step reads would leave the cache before that does, and
// neither weights nor lines that two bands want cost more than staying there saves. Their results but the last become
// buffers of a band (Buffer::Kind::kBand).
void FindBands(Plan& plan, const NearCache& cache);

// Steps of a plan that a run does in one round.
struct StepRange {
  size_t first = 0, end = 0;
  const Bands* bands = nullptr;  // null: one step
};

// All of them, in order.
std::vector<StepRange> RoundsOf(const Plan& plan);

// Of each step, whether it is computed so.
std::vector<bool> BandedSteps(const Plan& plan);

}  // namespace thresher
