#include "thresher/kernels/weight_gradient.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"
#include "thresher/kernels/plane_gradient.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/weight_gradient.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/pack-inl.h"
#include "thresher/kernels/tile-inl.h"

#undef THRESHER_GRADIENT_STEP
#undef THRESHER_GRADIENT_TAPS
#define THRESHER_GRADIENT_TAPS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

// Output positions that are summed at a time, from copies of what they meet: of x, lines with zeros around them.
constexpr int64_t kMostPositions = 256;
constexpr size_t kMostLines = 512;        // that are copied, and
constexpr int64_t kMostKernelLines = 64;  // that a window covers
// Floats of the copies, which stay in L2 together.
constexpr size_t kLineFloats = size_t{96} * 1024;
constexpr size_t kGradientFloats = size_t{96} * 1024;
// Of a tile's rows of the gradient at one position: a whole number of cache lines, or half of one.
constexpr size_t kRowFloats = kTileRows > 8 ? 16 : 8;
// Tiles whose rows of the gradient are copied at a time: more would push what else the block meets out of L2.
constexpr size_t kTilesAtATime = 16;
// Shorter pieces of a line are not worth copies of whole windows.
constexpr int64_t kLeastPiece = 32;
// Rows of the gradient are multiplied where they lie if so many positions are beside one another.
constexpr int64_t kLeastInPlace = 128;
constexpr size_t kMostPassChannels = 256;

// Few channels a group fill no tiles: lanes are output channels, and each meets its own inputs, plane by plane.
constexpr int64_t kMostPlanes = 4;
constexpr int64_t kMostLaneOutputs = 15;
constexpr int64_t kMostLaneTaps = 512;  // times planes
constexpr size_t kMostTaps = 9;         // whose sums are in registers
constexpr size_t kChunkVectors = 4;
constexpr size_t kSumFloats = static_cast<size_t>(kMostLaneTaps) * kChunkVectors * hn::MaxLanes(TileTag());

bool SumsInLanes(const WeightGradientArgs& args) {
  return args.groups > 1 && args.windows.channels <= kMostPlanes && args.outputs / args.groups <= kMostLaneOutputs &&
         args.windows.taps() * args.windows.channels <= kMostLaneTaps;
}

// Output positions beside one another in a line.
struct Piece {
  int64_t batch, at[3];
  int64_t count;
  int64_t begin;  // position in the block
};

// A copy of what the pieces from `first` on of one line cover of a line of x.
struct Line {
  ptrdiff_t x;
  int64_t first;
};

// Neighbouring positions of a tile.
struct Run {
  size_t x;  // positions in the copies of x, and
  size_t gradient;
  size_t count;
};

struct Tables {
  Piece pieces[kMostPositions];
  Line lines[kMostLines];
  int16_t line_of[kMostPositions * kMostKernelLines];  // of a piece and a line of the kernel; -1: zeros alone
  Run runs[kMostPositions];
};

constexpr size_t WholeLines(size_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr size_t kTableFloats = WholeLines(sizeof(Tables)) / sizeof(float);
// Vectors reach over the ends of the last copies.
constexpr size_t kSlack = kMaxPanelWidth;
constexpr size_t kScratchFloats = kTableFloats + kLineFloats + kSlack + kGradientFloats + kSumFloats;

// out[i * ld + j] = in[i * position + j * channel], for positions i and channels j. Where that is faster, channels
// behind these are copied, too: as far as the `readable` ones and `ld` reach, to whole vectors.
void CopyPositions(const float* in, ptrdiff_t position, ptrdiff_t channel, size_t positions, size_t channels,
                   size_t readable, float* out, size_t ld) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const auto reached = [&](size_t step) {
    const size_t rounded = (channels + step - 1) / step * step;
    return rounded <= std::min(readable, ld) ? rounded : channels;
  };
  size_t done = 0;
  if (channel == 1) {
    if (ld == channels && position == static_cast<ptrdiff_t>(ld)) {
      std::copy_n(in, positions * channels, out);
      return;
    }
    const size_t all = reached(lanes), whole = all / lanes * lanes;
    for (size_t i = 0; i < positions; ++i, in += position, out += ld) {
      for (size_t j = 0; j < whole; j += lanes) hn::StoreU(hn::LoadU(d, in + j), d, out + j);
      if (HWY_UNLIKELY(whole < all)) hn::StoreN(hn::LoadN(d, in + whole, all - whole), d, out + whole, all - whole);
    }
    return;
  }
  if (position == 1 && channel > 0 && positions >= 4 && reached(4) >= 4) {
    const size_t all = reached(4);
    for (; done < all; done += 4) {
      const size_t j = std::min(done, all - 4);
      const float* const from = in + static_cast<ptrdiff_t>(j) * channel;
      // The last square may cover some of the one before.
      for (size_t i = 0; i < positions; i += 4) {
        const size_t at = std::min(i, positions - 4);
        Transpose4x4(from + at, static_cast<size_t>(channel), out + at * ld + j, ld);
      }
    }
  }
  for (size_t i = 0; i < positions; ++i) {
    for (size_t j = done; j < channels; ++j) {
      out[i * ld + j] = in[static_cast<ptrdiff_t>(i) * position + static_cast<ptrdiff_t>(j) * channel];
    }
  }
}

// Channels [channels, ld) of each position: what lanes meet that are not stored must not be numbers that are slow.
void ClearRest(size_t positions, size_t channels, float* out, size_t ld) {
  if (channels == ld) return;
  for (size_t i = 0; i < positions; ++i) std::fill(out + i * ld + channels, out + (i + 1) * ld, 0.0f);
}

// How the lines of x are copied for a block of positions.
struct Copies {
  int64_t step_in_x;      // positions of x from one copied to the next
  int64_t step;           // copied positions from one output position to the next
  int64_t piece = 0;      // output positions at a time; 0: the copies have no room
  int64_t positions = 0;  // that are copied of a line for a piece
  size_t lines = 0;       // that there is room for

  // `floats` a position of x.
  Copies(const Windows& w, size_t floats, int64_t least) {
    const int64_t kernel_lines = w.kernel[0] * w.kernel[1];
    const int64_t reach = (w.kernel[2] - 1) * w.dilation[2];
    step_in_x = w.kernel[2] == 1 ? w.stride[2] : 1;
    step = w.stride[2] / step_in_x;
    // One more, of zeros.
    const int64_t room = static_cast<int64_t>(kLineFloats / floats) / (kernel_lines + 1);
    if (kernel_lines > kMostKernelLines || room <= reach) return;
    const int64_t most = std::min({(room - reach - 1) / step + 1, kMostPositions, w.out[2]});
    if (most < std::min(least, w.out[2])) return;
    // Pieces of nearly equal length.
    const int64_t pieces = (w.out[2] + most - 1) / most;
    piece = (w.out[2] + pieces - 1) / pieces;
    positions = (piece - 1) * step + reach + 1;
    lines = std::min(kLineFloats / (static_cast<size_t>(positions) * floats), kMostLines);
  }
};

// The pieces of a block of positions, and which lines of x they meet.
class Block {
 public:
  Block(const WeightGradientArgs& args, const Windows& w, const Copies& copies, Tables& tables)
      : args_(args), w_(w), copies_(copies), tables_(tables) {}

  // From position `row` on, as many as there is room for; returns the one behind the last.
  int64_t Find(int64_t row, int64_t end) {
    num_pieces_ = num_lines_ = 0;
    positions_ = 0;
    while (row < end) {
      const WindowPosition at(w_, row);
      const int64_t in_piece = copies_.piece - at.at[2] % copies_.piece;
      Piece piece{at.batch, {at.at[0], at.at[1], at.at[2]}, 0, positions_};
      piece.count = std::min({in_piece, w_.out[2] - at.at[2], end - row});
      if (positions_ + piece.count > kMostPositions || !FindLines(piece)) break;
      tables_.pieces[num_pieces_++] = piece;
      positions_ += piece.count;
      row += piece.count;
    }
    return row;
  }

  // Channels [begin, begin + count) of the lines, those of a position `ld` floats apart.
  void CopyLines(int64_t begin, size_t count, float* out, size_t ld) const {
    for (size_t i = 0; i < num_lines_; ++i) CopyLine(i, begin, count, out + i * LineFloats(ld), ld);
  }

  void CopyLine(size_t number, int64_t begin, size_t count, float* out, size_t ld) const {
    const Line& line = tables_.lines[number];
    const int64_t from = line.first * w_.stride[2] - w_.padding[2];
    const int64_t step = copies_.step_in_x;
    const auto positions_before = [&](int64_t at) { return at <= from ? 0 : (at - from + step - 1) / step; };
    const int64_t low = std::min(positions_before(0), copies_.positions);
    const int64_t high = std::clamp(positions_before(w_.in[2]), low, copies_.positions);
    const auto at = [&](int64_t position) { return out + static_cast<size_t>(position) * ld; };
    std::fill(out, at(low), 0.0f);
    CopyPositions(args_.x + line.x + (from + low * step) * w_.x_strides[2] + begin * args_.x_channel,
                  step * w_.x_strides[2], args_.x_channel, static_cast<size_t>(high - low), count,
                  static_cast<size_t>(args_.groups * w_.channels - begin), at(low), ld);
    ClearRest(static_cast<size_t>(high - low), count, at(low), ld);
    std::fill(at(high), at(copies_.positions), 0.0f);
  }

  // Of a piece's first position.
  const float* Gradient(size_t number, int64_t output) const {
    const Piece& piece = tables_.pieces[number];
    const float* from = args_.gradient + piece.batch * args_.gradient_batch + output * args_.gradient_channel;
    for (int d = 0; d < 3; ++d) from += piece.at[d] * strides()[d];
    return from;
  }

  // Channels [begin, begin + count) of the gradient.
  void CopyGradient(int64_t begin, size_t count, float* out, size_t ld) const {
    for (size_t i = 0; i < num_pieces_; ++i) {
      const Piece& piece = tables_.pieces[i];
      float* const to = out + static_cast<size_t>(piece.begin) * ld;
      CopyPositions(Gradient(i, begin), strides()[2], args_.gradient_channel, static_cast<size_t>(piece.count), count,
                    static_cast<size_t>(args_.outputs - begin), to, ld);
    }
  }

  // What the positions meet at a tap; with `trimmed` those alone that meet x.
  size_t FindRuns(int64_t kernel_line, int64_t column, bool trimmed) {
    size_t count = 0;
    for (size_t i = 0; i < num_pieces_; ++i) {
      const Piece& piece = tables_.pieces[i];
      const int16_t line = tables_.line_of[i * kMostKernelLines + static_cast<size_t>(kernel_line)];
      if (line < 0) continue;
      int64_t low = 0, high = piece.count;
      if (trimmed) {
        const int64_t at = piece.at[2] * w_.stride[2] - w_.padding[2] + column * w_.dilation[2];
        const int64_t stride = w_.stride[2];
        if (at < 0) low = std::min((-at + stride - 1) / stride, high);
        high = w_.in[2] <= at ? low : std::clamp((w_.in[2] - at + stride - 1) / stride, low, high);
        if (low == high) continue;
      }
      const Run run{static_cast<size_t>(line * copies_.positions + low * copies_.step + column * w_.dilation[2]),
                    static_cast<size_t>(piece.begin + low), static_cast<size_t>(high - low)};
      if (count > 0) {
        Run& last = tables_.runs[count - 1];
        if (last.gradient + last.count == run.gradient &&
            last.x + last.count * static_cast<size_t>(copies_.step) == run.x) {
          last.count += run.count;
          continue;
        }
      }
      tables_.runs[count++] = run;
    }
    return count;
  }

  size_t LineFloats(size_t ld) const { return static_cast<size_t>(copies_.positions) * ld; }
  size_t num_pieces() const { return num_pieces_; }
  size_t num_lines() const { return num_lines_; }
  const Piece& piece(size_t i) const { return tables_.pieces[i]; }
  int16_t line_of(size_t piece, size_t kernel_line) const {
    return tables_.line_of[piece * kMostKernelLines + kernel_line];
  }

 private:
  const int64_t* strides() const { return args_.gradient_strides; }

  // The lines of x that a piece meets; false where there is no room for them.
  bool FindLines(const Piece& piece) {
    int16_t* const line_of = tables_.line_of + num_pieces_ * kMostKernelLines;
    const size_t before = num_lines_;
    for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
      const int64_t d = w_.At(0, piece.at[0], kd);
      for (int64_t kh = 0; kh < w_.kernel[1]; ++kh) {
        const int64_t h = w_.At(1, piece.at[1], kh);
        int16_t& number = line_of[kd * w_.kernel[1] + kh];
        number = -1;
        if (d < 0 || h < 0) continue;
        const ptrdiff_t x = piece.batch * w_.x_batch + d * w_.x_strides[0] + h * w_.x_strides[1];
        // Lines that are met again were met a little before.
        size_t i = num_lines_;
        while (i > 0 && (tables_.lines[i - 1].x != x || tables_.lines[i - 1].first != piece.at[2])) --i;
        if (i == 0) {
          if (num_lines_ + 1 >= copies_.lines) {
            num_lines_ = before;
            return false;
          }
          tables_.lines[num_lines_] = {x, piece.at[2]};
          i = ++num_lines_;
        }
        number = static_cast<int16_t>(i - 1);
      }
    }
    return true;
  }

  const WeightGradientArgs& args_;
  const Windows& w_;
  const Copies& copies_;
  Tables& tables_;
  size_t num_pieces_ = 0, num_lines_ = 0;
  int64_t positions_ = 0;
};

// Rows of the gradient times columns of x, summed over positions; what was there before is the residual.
struct GradientTileArgs : TileEnd {
  const float* x;
  size_t ld;    // floats from one copied position of x to the next
  size_t step;  // and from one that is met to the next
  const float* gradient;
  const Run* runs;
  size_t num_runs;
};

template <int kRows, int kVectors>
HWY_NOINLINE void RunGradientTile(const GradientTileArgs& args) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
#define THRESHER_GRADIENT_SUM(i) \
  V c##i##a = hn::Zero(d);       \
  V c##i##b = hn::Zero(d);
  THRESHER_TILE_ROWS(THRESHER_GRADIENT_SUM)
#undef THRESHER_GRADIENT_SUM
#define THRESHER_GRADIENT_STEP(i)                                    \
  if constexpr (i < kRows) {                                         \
    const V row = hn::Set(d, gradient[i]);                           \
    THRESHER_TILE_FMA(row, xa, c##i##a);                             \
    if constexpr (kVectors > 1) THRESHER_TILE_FMA(row, xb, c##i##b); \
  }
  const ResultLines result(args, kRows, 0);
  const size_t step = args.step;
  for (const Run* run = args.runs; run != args.runs + args.num_runs; ++run) {
    const float* HWY_RESTRICT x = args.x + run->x * args.ld;
    const float* HWY_RESTRICT gradient = args.gradient + run->gradient * kRowFloats;
#define THRESHER_GRADIENT_POSITION()                          \
  {                                                           \
    const V xa = hn::LoadU(d, x);                             \
    const V xb = kVectors > 1 ? hn::LoadU(d, x + lanes) : xa; \
    THRESHER_TILE_ROWS(THRESHER_GRADIENT_STEP)                \
    x += step;                                                \
    gradient += kRowFloats;                                   \
  }
    size_t n = run->count;
    for (; n >= 2; n -= 2) {
      THRESHER_GRADIENT_POSITION()
      THRESHER_GRADIENT_POSITION()
    }
    if (n > 0) THRESHER_GRADIENT_POSITION()
#undef THRESHER_GRADIENT_POSITION
  }
  THRESHER_TILE_END(args)
}

using GradientTileFunction = void (*)(const GradientTileArgs&);

template <int kVectors, size_t... I>
GradientTileFunction GradientTileAt(size_t rows, std::index_sequence<I...>) {
  static constexpr GradientTileFunction table[] = {&RunGradientTile<static_cast<int>(I) + 1, kVectors>...};
  return table[rows - 1];
}

GradientTileFunction GradientTileFor(size_t rows, bool one_vector) {
  const auto all = std::make_index_sequence<static_cast<size_t>(kTileRows)>();
  return one_vector ? GradientTileAt<1>(rows, all) : GradientTileAt<2>(rows, all);
}

// Sums of a vector of channels at several taps.
struct TapSumsArgs {
  const float* x[kMostTaps];  // of each tap
  size_t step;
  const float* gradient;
  size_t gradient_step;
  size_t count;
  float* sums;  // one tap's behind the other's, sums_step apart
  size_t sums_step;
};

template <int kTaps>
HWY_NOINLINE void RunTapSums(const TapSumsArgs& args) {
  const TileTag d;
#define THRESHER_GRADIENT_DECLARE(i)                                               \
  V s##i = i < kTaps ? hn::LoadU(d, args.sums + i * args.sums_step) : hn::Zero(d); \
  const float* HWY_RESTRICT x##i = args.x[i];
  THRESHER_GRADIENT_TAPS(THRESHER_GRADIENT_DECLARE)
#undef THRESHER_GRADIENT_DECLARE
  const float* HWY_RESTRICT gradient = args.gradient;
  size_t at = 0;
  for (size_t n = args.count; n > 0; --n) {
    const V g = hn::LoadU(d, gradient);
#define THRESHER_GRADIENT_ADD(i) \
  if constexpr (i < kTaps) s##i = hn::MulAdd(g, hn::LoadU(d, x##i + at), s##i);
    THRESHER_GRADIENT_TAPS(THRESHER_GRADIENT_ADD)
#undef THRESHER_GRADIENT_ADD
    at += args.step;
    gradient += args.gradient_step;
  }
#define THRESHER_GRADIENT_STORE(i) \
  if constexpr (i < kTaps) hn::StoreU(s##i, d, args.sums + i * args.sums_step);
  THRESHER_GRADIENT_TAPS(THRESHER_GRADIENT_STORE)
#undef THRESHER_GRADIENT_STORE
}

using TapSumsFunction = void (*)(const TapSumsArgs&);

template <size_t... I>
TapSumsFunction TapSumsAt(size_t taps, std::index_sequence<I...>) {
  static constexpr TapSumsFunction table[] = {&RunTapSums<static_cast<int>(I) + 1>...};
  return table[taps - 1];
}

// A window of one tap is that tap of another.
Windows OneTap(const Windows& windows, int64_t tap) {
  Windows w = windows;
  for (int d = 2; d >= 0; --d) {
    w.padding[d] -= tap % w.kernel[d] * w.dilation[d];
    tap /= w.kernel[d];
    w.kernel[d] = 1;
  }
  return w;
}

// A slab's sums for a range of outputs.
class WeightSums {
 public:
  WeightSums(const WeightGradientArgs& args, float* scratch, Range positions, float* out)
      : args_(args),
        tables_(*reinterpret_cast<Tables*>(scratch)),
        lines_(scratch + kTableFloats),
        gradient_(lines_ + kLineFloats + kSlack),
        sums_(gradient_ + kGradientFloats),
        positions_(positions),
        out_(out) {}

  void Run(Range outputs) {
    if (SumsInLanes(args_)) {
      const size_t lanes = hn::Lanes(TileTag());
      size_t width = kChunkVectors * lanes;
      const auto copies = [&] { return Copies(args_.windows, width * Channels(), kLeastPiece); };
      while (width > lanes && copies().piece == 0) width /= 2;
      const Copies fitting = copies();
      if (fitting.piece > 0 && static_cast<size_t>(fitting.positions) * InputsOf(width) <= kGradientFloats / 2) {
        const auto step = static_cast<int64_t>(width);
        for (int64_t first = outputs.begin; first < outputs.end; first += step) {
          SumInLanes(fitting, first, std::min(first + step, outputs.end), width);
        }
        return;
      }
    }
    const int64_t group_outputs = args_.outputs / args_.groups;
    for (int64_t group = outputs.begin / group_outputs; group * group_outputs < outputs.end; ++group) {
      Multiply(group,
               {std::max(outputs.begin, group * group_outputs), std::min(outputs.end, (group + 1) * group_outputs)});
    }
  }

 private:
  size_t Channels() const { return static_cast<size_t>(args_.windows.channels); }
  size_t RowLength() const { return static_cast<size_t>(args_.windows.taps()) * Channels(); }
  static size_t WholeVectors(size_t floats) {
    const size_t lanes = hn::Lanes(TileTag());
    return (floats + lanes - 1) / lanes * lanes;
  }

  // ---- products ----

  // Channels that a pass takes, a multiple of a vector's; those of a panel lie behind one another.
  struct Pass {
    Windows w;
    Copies copies;
    bool joined;  // taps beside one another are one run of columns
    size_t channels;
    int64_t tap;  // of the first column

    size_t Room() const { return copies.lines * static_cast<size_t>(copies.positions); }  // for a channel's copies
  };
  struct SomeTiles {
    const RowTiles& all;
    size_t begin, end;
  };

  void Multiply(int64_t group, Range rows) {
    const Windows& w = args_.windows;
    const size_t lanes = hn::Lanes(TileTag());
    const size_t whole = WholeVectors(Channels());
    if (w.dilation[2] == 1 && w.kernel[2] > 1 && (whole != Channels() || whole < PanelWidth())) {
      const Copies copies(w, Channels(), kLeastPiece);
      if (copies.piece > 0) return MultiplyPass({w, copies, true, Channels(), 0}, group, rows);
    }
    // Passes of nearly equal size.
    const auto cut = [&](size_t most) {
      const size_t passes = (whole + most - 1) / most;
      return (whole / lanes + passes - 1) / passes * lanes;
    };
    for (size_t channels = cut(kMostPassChannels); channels > 0; channels = channels / 2 / lanes * lanes) {
      const Copies copies(w, channels, kLeastPiece);
      if (copies.piece > 0) return MultiplyPass({w, copies, false, channels, 0}, group, rows);
    }
    // Windows that are too large to be copied, tap by tap.
    for (int64_t tap = 0; tap < w.taps(); ++tap) {
      const Windows one = OneTap(w, tap);
      const size_t channels = std::min(whole, PanelWidth());
      MultiplyPass({one, Copies(one, channels, 1), false, channels, tap}, group, rows);
    }
  }

  void MultiplyPass(const Pass& pass, int64_t group, Range rows) {
    const auto step = static_cast<int64_t>(pass.channels);
    for (int64_t channel = 0; channel < args_.windows.channels; channel += step) {
      MultiplyBlocks(pass, group, rows, {channel, std::min(channel + step, args_.windows.channels)});
    }
  }

  void MultiplyBlocks(const Pass& pass, int64_t group, Range rows, Range channels) {
    const size_t panel = pass.joined ? Channels() : PanelWidth();
    const size_t count = static_cast<size_t>(channels.size());
    const bool in_place = ReadsInPlace(pass, count);
    const RowTiles tiles(static_cast<size_t>(rows.size()));
    Block block(args_, pass.w, pass.copies, tables_);
    for (int64_t row = positions_.begin; row < positions_.end;) {
      const bool first = row == positions_.begin;
      row = block.Find(row, positions_.end);
      // A panel's copies of all lines, then the next one's.
      for (size_t c = 0; c < count; c += panel) {
        const size_t in_panel = std::min(panel, count - c);
        block.CopyLines(group * args_.windows.channels + channels.begin + static_cast<int64_t>(c), in_panel,
                        lines_ + c * pass.Room(), pass.joined ? panel : WholeVectors(in_panel));
      }
      if (pass.joined) std::fill_n(lines_ + block.num_lines() * block.LineFloats(panel), kSlack, 0.0f);
      int64_t output = rows.begin;
      for (size_t t = 0; t < tiles.count; t += kTilesAtATime) {
        const SomeTiles some{tiles, t, std::min(t + kTilesAtATime, tiles.count)};
        const int64_t first_output = output;
        for (size_t i = some.begin; i < some.end; ++i) {
          if (!in_place) {
            block.CopyGradient(output, tiles.Height(i), gradient_ + (i - t) * kMostPositions * kRowFloats, kRowFloats);
          }
          output += static_cast<int64_t>(tiles.Height(i));
        }
        float* const out = out_ + static_cast<size_t>(first_output) * RowLength();
        if (in_place) {
          MultiplyInPlace(pass, block, channels, some, first_output, out, first);
        } else {
          MultiplyBlock(pass, block, channels, some, out, first);
        }
      }
    }
  }

  // Whether the gradient's rows are multiplied where they lie: each piece's positions are beside one another there, as
  // they are in whole panels of copies.
  bool ReadsInPlace(const Pass& pass, size_t channels) const {
    return pass.w.taps() == 1 && args_.gradient_strides[2] == 1 && pass.copies.piece >= kLeastInPlace &&
           WholeVectors(channels) % PanelWidth() == 0 && !RowsShareSets(static_cast<size_t>(args_.gradient_channel));
  }

  // Tiles from the one of `output` on, to which `out` belongs.
  void MultiplyInPlace(const Pass& pass, const Block& block, Range channels, const SomeTiles& tiles, int64_t output,
                       float* out, bool first) {
    const size_t width = PanelWidth(), count = static_cast<size_t>(channels.size());
    out += static_cast<size_t>(pass.tap) * Channels() + static_cast<size_t>(channels.begin);
    bool begins = first;
    for (size_t i = 0; i < block.num_pieces(); ++i) {
      const int16_t line = block.line_of(i, 0);
      const bool meets = line >= 0;
      // What lies outside of x adds nothing, but sums begin somewhere.
      if (!meets && !begins) continue;
      const float* const x = lines_ + (meets ? static_cast<size_t>(line) * block.LineFloats(width) : 0);
      const size_t positions = meets ? static_cast<size_t>(block.piece(i).count) : 0;
      for (size_t c = 0; c < count; c += width) {
        RunRows(tiles, block.Gradient(i, output), x + c * pass.Room(), positions, std::min(width, count - c), out + c,
                begins);
      }
      begins = false;
    }
  }

  void RunRows(const SomeTiles& tiles, const float* gradient, const float* x, size_t positions, size_t columns,
               float* out, bool first) {
    const size_t row = RowLength();
    TileArgs tile{};
    tile.lda = static_cast<size_t>(args_.gradient_channel);
    tile.b = x;
    tile.k = positions;
    for (size_t t = tiles.begin; t < tiles.end; t += tile.tiles) {
      const size_t rows = tiles.all.Height(t);
      tile.tiles = std::min(tiles.all.Alike(t), tiles.end - t);
      tile.a = gradient;
      // A line at a time, whichever, lets tiles take turns in twos.
      tile.fetch = {static_cast<const uint8_t*>(tile.b), 1, MayFetchIntoL1(rows)};
      static_cast<TileEnd&>(tile) = {out, row, first ? nullptr : out, row};
      tile.columns = columns;
      tile.fetched = tile;
      tile.fetched.fetches = true;
      TileForRows(rows)(tile);
      gradient += tile.tiles * rows * tile.lda;
      out += tile.tiles * rows * row;
    }
  }

  // Tiles from the one on that `out` belongs to, whose rows of the gradient were copied.
  void MultiplyBlock(const Pass& pass, Block& block, Range channels, const SomeTiles& tiles, float* out, bool first) {
    const size_t width = PanelWidth(), count = static_cast<size_t>(channels.size());
    const Windows& w = pass.w;
    for (int64_t line = 0; line < w.kernel[0] * w.kernel[1]; ++line) {
      if (pass.joined) {
        const size_t num_runs = block.FindRuns(line, 0, false);
        const size_t columns = static_cast<size_t>(w.kernel[2]) * Channels();
        for (size_t j = 0; j < columns; j += width) {
          RunTiles(tiles, pass, lines_ + j, Channels(), num_runs, std::min(width, columns - j),
                   out + static_cast<size_t>(line) * columns + j, first);
        }
        continue;
      }
      for (int64_t column = 0; column < w.kernel[2]; ++column) {
        const size_t num_runs = block.FindRuns(line, column, true);
        const size_t tap = static_cast<size_t>(pass.tap + line * w.kernel[2] + column);
        for (size_t c = 0; c < count; c += width) {
          const size_t columns = std::min(width, count - c);
          RunTiles(tiles, pass, lines_ + c * pass.Room(), WholeVectors(columns), num_runs, columns,
                   out + tap * Channels() + static_cast<size_t>(channels.begin) + c, first);
        }
      }
    }
  }

  void RunTiles(const SomeTiles& tiles, const Pass& pass, const float* x, size_t ld, size_t num_runs, size_t columns,
                float* out, bool first) {
    if (num_runs == 0 && !first) return;
    GradientTileArgs tile{};
    tile.x = x;
    tile.ld = ld;
    tile.step = static_cast<size_t>(pass.copies.step) * ld;
    tile.runs = tables_.runs;
    tile.num_runs = num_runs;
    tile.out_ld = tile.residual_ld = RowLength();
    tile.columns = columns;
    tile.fetches = true;
    const bool one_vector = columns <= hn::Lanes(TileTag());
    for (size_t t = tiles.begin; t < tiles.end; ++t) {
      const size_t rows = tiles.all.Height(t);
      tile.gradient = gradient_ + (t - tiles.begin) * kMostPositions * kRowFloats;
      tile.out = out;
      tile.residual = first ? nullptr : out;
      GradientTileFor(rows, one_vector)(tile);
      out += rows * RowLength();
    }
  }

  // ---- lanes ----

  // Channels of x that so many outputs meet at most.
  size_t InputsOf(size_t outputs) const {
    return (outputs / static_cast<size_t>(args_.outputs / args_.groups) + 2) * Channels();
  }

  void SumInLanes(const Copies& copies, int64_t begin, int64_t end, size_t width) {
    const size_t lanes = hn::Lanes(TileTag());
    const Windows& w = args_.windows;
    const size_t planes = Channels();
    const size_t columns = static_cast<size_t>(w.kernel[2]);
    const size_t taps = RowLength();
    const size_t outputs = static_cast<size_t>(end - begin);
    const RowTiles tap_groups(taps, kMostTaps);
    // Whether the gradient's channels are whole vectors where they lie.
    const bool in_place = args_.gradient_channel == 1 && outputs % lanes == 0;
    std::fill_n(sums_, taps * width, 0.0f);
    Block block(args_, w, copies, tables_);
    for (int64_t row = positions_.begin; row < positions_.end;) {
      row = block.Find(row, positions_.end);
      const size_t plane = copies.lines * block.LineFloats(width);
      CopyPlanes(block, copies, begin, end, width);
      // What lies outside of x is met as zeros.
      for (size_t i = 0; i < planes; ++i) {
        std::fill_n(lines_ + i * plane + block.num_lines() * block.LineFloats(width), block.LineFloats(width), 0.0f);
      }
      if (!in_place) {
        block.CopyGradient(begin, outputs, gradient_, width);
        if (outputs < width) {
          const Piece& last = block.piece(block.num_pieces() - 1);
          ClearRest(static_cast<size_t>(last.begin + last.count), outputs, gradient_, width);
        }
      }
      TapSumsArgs sums{};
      sums.step = static_cast<size_t>(copies.step) * width;
      sums.gradient_step = in_place ? static_cast<size_t>(args_.gradient_strides[2]) : width;
      sums.sums_step = width;
      for (size_t vector = 0; vector < outputs; vector += lanes) {
        size_t tap = 0;
        for (size_t group = 0; group < tap_groups.count; ++group) {
          const size_t count = tap_groups.Height(group);
          const TapSumsFunction run = TapSumsAt(count, std::make_index_sequence<kMostTaps>());
          sums.sums = sums_ + tap * width + vector;
          for (size_t i = 0; i < block.num_pieces(); ++i) {
            const Piece& piece = block.piece(i);
            for (size_t t = 0; t < count; ++t) {
              const size_t kernel_line = (tap + t) / planes / columns, column = (tap + t) / planes % columns;
              const int16_t line = block.line_of(i, kernel_line);
              const size_t number = line < 0 ? block.num_lines() : static_cast<size_t>(line);
              sums.x[t] = lines_ + (tap + t) % planes * plane + number * block.LineFloats(width) +
                          column * static_cast<size_t>(w.dilation[2]) * width + vector;
            }
            sums.gradient =
                (in_place ? block.Gradient(i, begin) : gradient_ + static_cast<size_t>(piece.begin) * width) + vector;
            sums.count = static_cast<size_t>(piece.count);
            run(sums);
          }
          tap += count;
        }
      }
    }
    for (size_t i = 0; i < outputs; ++i) {
      for (size_t tap = 0; tap < taps; ++tap) {
        out_[(static_cast<size_t>(begin) + i) * taps + tap] = sums_[tap * width + i];
      }
    }
  }

  // Of each output channel the inputs of its group, the first ones, the second ones ...
  void CopyPlanes(const Block& block, const Copies& copies, int64_t begin, int64_t end, size_t width) {
    const size_t planes = Channels();
    const int64_t group_outputs = args_.outputs / args_.groups;
    const size_t outputs = static_cast<size_t>(end - begin);
    if (planes == 1 && group_outputs == 1) return block.CopyLines(begin, outputs, lines_, width);
    const size_t plane = copies.lines * block.LineFloats(width);
    const int64_t first = begin / group_outputs;
    const size_t inputs = static_cast<size_t>((end - 1) / group_outputs - first + 1) * planes;
    float* const line_inputs = gradient_ + kGradientFloats / 2;
    const TileTag d;
    const hn::RebindToSigned<TileTag> di;
    const size_t lanes = hn::Lanes(d);
    HWY_ALIGN int32_t at[kChunkVectors * hn::MaxLanes(di)];
    for (size_t i = 0; i < width; ++i) {
      const int64_t output = std::min(begin + static_cast<int64_t>(i), end - 1);
      at[i] = static_cast<int32_t>((output / group_outputs - first) * args_.windows.channels);
    }
    for (size_t number = 0; number < block.num_lines(); ++number) {
      block.CopyLine(number, first * args_.windows.channels, inputs, line_inputs, inputs);
      for (size_t vector = 0; vector < width; vector += lanes) {
        const int32_t base = at[vector];
        const size_t reached = static_cast<size_t>(at[vector + lanes - 1] - base) + planes;
        const auto own = hn::Sub(hn::Load(di, at + vector), hn::Set(di, base));
        for (size_t i = 0; i < planes; ++i) {
          const auto lane = hn::Add(own, hn::Set(di, static_cast<int32_t>(i)));
          const float* from = line_inputs + base;
          float* to = lines_ + i * plane + number * block.LineFloats(width) + vector;
          if (reached <= lanes) {
            const auto indices = hn::IndicesFromVec(d, lane);
            for (int64_t p = 0; p < copies.positions; ++p, from += inputs, to += width) {
              hn::StoreU(hn::TableLookupLanes(hn::LoadN(d, from, reached), indices), d, to);
            }
          } else {
            for (int64_t p = 0; p < copies.positions; ++p, from += inputs, to += width) {
              hn::StoreU(hn::GatherIndex(d, from, lane), d, to);
            }
          }
        }
      }
    }
  }

  const WeightGradientArgs& args_;
  Tables& tables_;
  float* const lines_;
  float* const gradient_;
  float* const sums_;
  const Range positions_;
  float* const out_;
};

// Whether dimensions d and 2 are one, whose positions are those of x.
bool IsOneLine(const WeightGradientArgs& args, int d) {
  const Windows& w = args.windows;
  for (const int i : {d, 2}) {
    if (w.kernel[i] != 1 || w.stride[i] != 1 || w.padding[i] != 0 || w.in[i] != w.out[i]) return false;
  }
  return w.x_strides[d] == w.in[2] * w.x_strides[2] && args.gradient_strides[d] == w.out[2] * args.gradient_strides[2];
}

// With lines as long as can be: lines of one position are columns of one line, and lines that follow one another are
// one.
WeightGradientArgs WithLongLines(const WeightGradientArgs& args) {
  WeightGradientArgs turned = args;
  Windows& w = turned.windows;
  for (int i = 0; i < 2 && w.in[2] == 1 && w.out[2] == 1 && w.kernel[2] == 1 && w.padding[2] == 0; ++i) {
    for (int d = 2; d > 0; --d) {
      for (int64_t* const numbers :
           {w.x_strides, w.in, w.out, w.kernel, w.stride, w.padding, w.dilation, turned.gradient_strides}) {
        numbers[d] = numbers[d - 1];
      }
    }
    w.in[0] = w.out[0] = w.kernel[0] = w.stride[0] = w.dilation[0] = 1;
    w.padding[0] = 0;
  }
  for (const int d : {1, 0}) {
    if (!IsOneLine(turned, d)) break;
    w.in[2] *= w.in[d];
    w.out[2] *= w.out[d];
    w.in[d] = w.out[d] = 1;
  }
  return turned;
}

void WeightGradientUnits(const WeightGradientArgs& given, float* scratch, Range units) {
  const WeightGradientArgs args = WithLongLines(given);
  const int64_t positions = args.batch * args.windows.positions();
  const int64_t size = args.outputs * args.windows.taps() * args.windows.channels;
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int slab = static_cast<int>(unit) / args.cuts, cut = static_cast<int>(unit) % args.cuts;
    const Range summed = PartRange(positions, slab, args.slabs), outputs = PartRange(args.outputs, cut, args.cuts);
    float* const out = args.out + slab * size;
    if (summed.size() == 0) {
      const int64_t row = size / args.outputs;
      std::fill(out + outputs.begin * row, out + outputs.end * row, 0.0f);
    } else {
      WeightSums(args, scratch, summed, out).Run(outputs);
    }
  }
}

size_t ScratchFloats() { return kScratchFloats; }
bool InLanes(const WeightGradientArgs& args) { return SumsInLanes(args); }

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(WeightGradientUnits);
HWY_EXPORT(ScratchFloats);
HWY_EXPORT(InLanes);

// A piece of a slab must sum so many positions and outputs times taps, or what it copies takes longer than its sums.
constexpr int64_t kLeastPositions = 256;
constexpr int64_t kLeastRows = 192;
constexpr int64_t kLeastOutputs = 8;

}  // namespace

WeightGradientSplit SplitWeightGradient(const WeightGradientArgs& args, int threads) {
  if (SuitsPlaneGradient(args)) return {1, static_cast<int>(std::min<int64_t>(threads, args.groups))};
  const int64_t most_slabs = std::max<int64_t>(args.batch * args.windows.positions() / kLeastPositions, 1);
  if (HWY_DYNAMIC_DISPATCH(InLanes)(args)) return {static_cast<int>(std::min<int64_t>(threads, most_slabs)), 1};
  const int64_t most_cuts = std::max<int64_t>(args.outputs / kLeastOutputs, 1);
  int64_t cuts =
      std::clamp<int64_t>(args.outputs * args.windows.taps() / kLeastRows, 1, std::min<int64_t>(threads, most_cuts));
  const int64_t slabs = std::min((threads + cuts - 1) / cuts, most_slabs);
  if (slabs * cuts < threads) cuts = std::min((threads + slabs - 1) / slabs, most_cuts);
  return {static_cast<int>(slabs), static_cast<int>(cuts)};
}

size_t WeightGradientScratchBytes() {
  return std::max(HWY_DYNAMIC_DISPATCH(ScratchFloats)() * sizeof(float), PlaneGradientScratchBytes());
}

void WeightGradient(const WeightGradientArgs& args, void* scratch, int part, int num_parts) {
  const Range units = PartRange(int64_t{args.slabs} * args.cuts, part, num_parts);
  if (!SuitsPlaneGradient(args)) {
    if (units.size() > 0) HWY_DYNAMIC_DISPATCH(WeightGradientUnits)(args, static_cast<float*>(scratch), units);
    return;
  }
  const int64_t size = args.outputs * args.windows.taps() * args.windows.channels;
  for (int64_t unit = units.begin; unit < units.end; ++unit) {
    const int slab = static_cast<int>(unit) / args.cuts, cut = static_cast<int>(unit) % args.cuts;
    PlaneGradient(args, PartRange(args.batch, slab, args.slabs), PartRange(args.groups, cut, args.cuts),
                  args.out + slab * size, scratch);
  }
}

void WeightGradientReference(const WeightGradientArgs& args) {
  const Windows& w = args.windows;
  const int64_t group_outputs = args.outputs / args.groups;
  float* out = args.out;
  for (int64_t output = 0; output < args.outputs; ++output) {
    for (int64_t tap = 0; tap < w.taps(); ++tap) {
      const int64_t taps[3] = {tap / w.kernel[2] / w.kernel[1], tap / w.kernel[2] % w.kernel[1], tap % w.kernel[2]};
      for (int64_t channel = 0; channel < w.channels; ++channel) {
        double sum = 0.0;
        WindowPosition position(w, 0);
        for (int64_t row = 0; row < args.batch * w.positions(); ++row, position.Next(w)) {
          int64_t from = position.batch * args.gradient_batch + output * args.gradient_channel;
          int64_t x = position.batch * w.x_batch + (output / group_outputs * w.channels + channel) * args.x_channel;
          bool inside = true;
          for (int d = 0; d < 3; ++d) {
            const int64_t at = w.At(d, position.at[d], taps[d]);
            inside &= at >= 0;
            x += at * w.x_strides[d];
            from += position.at[d] * args.gradient_strides[d];
          }
          if (inside) sum += static_cast<double>(args.x[x]) * static_cast<double>(args.gradient[from]);
        }
        *out++ = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
