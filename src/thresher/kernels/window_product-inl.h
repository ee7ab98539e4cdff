// Products whose rows are windows, read from whole lines of positions: from x itself or, where windows reach over the
// ends of a line, from copies with zeros around them. Each element is copied once for all taps it meets.

#if defined(THRESHER_KERNELS_WINDOW_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef THRESHER_KERNELS_WINDOW_PRODUCT_INL_H_
#undef THRESHER_KERNELS_WINDOW_PRODUCT_INL_H_
#else
#define THRESHER_KERNELS_WINDOW_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "thresher/base/cpu.h"
#include "thresher/kernels/epilogue-inl.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/window_tile-inl.h"
#include "thresher/kernels/windows.h"

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {

// Floats of the copies, which stay in L2 while panels pass.
inline constexpr size_t kLineFloats = size_t{64} * 1024;
// A block of rows ends where a table is full.
inline constexpr size_t kMostLineRows = 512;
inline constexpr size_t kMostLines = 256;
inline constexpr size_t kMostPieces = 128;
inline constexpr size_t kMostRuns = 1024;
// Narrower pieces of a line are left to copies of rows: their tiles would have too few.
inline constexpr int64_t kLeastPiece = 4;
inline constexpr int64_t kLeastPartOfLine = 24;

// Output positions of one line, up to as many as a copy has room for.
struct WindowPiece {
  size_t row;
  size_t count;
  size_t runs;  // the first of num_runs
  size_t num_runs;
  bool like_next;     // the piece after it has the same runs ...
  ptrdiff_t to_next;  // ... so much further
};

// A copy of a part of a line of x.
struct LineCopy {
  ptrdiff_t line;  // its first element in x
  int64_t first;   // output position
  int64_t positions;
};

struct WindowTile {
  size_t row;
  size_t first, second;  // rows of its groups
  size_t runs, num_runs;
  ptrdiff_t a, to_second;
};

// What a block's rows are made of, in scratch memory.
struct WindowTables {
  WindowRun runs[kMostRuns];
  WindowPiece pieces[kMostPieces];
  LineCopy lines[kMostLines];
  WindowTile tiles[kMostLineRows];
};

// How windows are read from lines.
struct LineReading {
  bool copies;
  bool joined;         // taps beside one another are one run
  size_t position;     // floats from one position of a line to the next
  size_t run;          // elements
  size_t runs;         // of a row at most
  int64_t piece;       // output positions at a time; 0: lines are not worth it
  size_t copy_floats;  // of a piece's line

  explicit LineReading(const Windows& w) {
    const int64_t reach = (w.kernel[2] - 1) * w.dilation[2];
    const size_t channels = static_cast<size_t>(w.channels);
    // Rows a multiple of 4 KiB apart push each other out of L1.
    const auto share_sets = [&](size_t distance) {
      return static_cast<size_t>(w.stride[2]) * distance * sizeof(float) % 4096 == 0;
    };
    position = static_cast<size_t>(w.x_strides[2]);
    copies = w.padding[2] > 0 || w.spread[2] != 1 || share_sets(position) ||
             (w.out[2] - 1) * w.stride[2] - w.padding[2] + reach >= w.in[2];
    if (copies) position = share_sets(channels) ? channels + 16 : channels;
    joined = w.dilation[2] == 1 && position == channels;
    run = static_cast<size_t>(joined ? w.kernel[2] : 1) * channels;
    runs = static_cast<size_t>(w.kernel[0] * w.kernel[1] * (joined ? 1 : w.kernel[2]));
    piece = w.out[2];
    copy_floats = 0;
    const size_t lines = static_cast<size_t>(w.kernel[0] * w.kernel[1]);
    if (piece < kLeastPiece || runs > kMostRuns || lines > kMostLines) piece = 0;
    if (!copies || piece == 0) return;
    const int64_t fitting = (static_cast<int64_t>(kLineFloats / lines / position) - reach - 1) / w.stride[2] + 1;
    if (fitting < std::min(piece, kLeastPartOfLine)) {
      piece = 0;
      return;
    }
    // Pieces of nearly equal length.
    if (fitting < piece) piece = (piece + (piece + fitting - 1) / fitting - 1) / ((piece + fitting - 1) / fitting);
    copy_floats = static_cast<size_t>((piece - 1) * w.stride[2] + reach + 1) * position;
  }

  // Whether a product of these rows is best read so. A panel must stay in L2 as a whole; one of smaller numbers is
  // widened by every tile, which pays where a tile has many rows.
  template <class Panel>
  bool Suits(size_t k) const {
    constexpr bool kLoads = std::is_same_v<Panel, FloatPanel> || kTileRows >= 12;
    return kLoads && piece > 0 && run % kRowsTogether<Panel> == 0 &&
           Panel::Bytes(k) <= static_cast<size_t>(Caches().l2) / 2;
  }
};

constexpr size_t kWindowTableFloats = (sizeof(WindowTables) + 63) / 64 * 16;
constexpr size_t kWindowStripFloats = size_t{kTileRows} * kMaxPanelWidth;
constexpr size_t kWindowScratchFloats = kWindowTableFloats + kWindowStripFloats + kLineFloats;
static_assert(kWindowScratchFloats * sizeof(float) <= kMostGemmScratchBytes);

// panel_stride: bytes from one panel to the next; where there are scales of columns, they are at a panel's end.
template <class Panel>
class WindowProduct {
 public:
  WindowProduct(const GemmArgs& args, size_t panel_stride, bool column_scale, float* scratch)
      : args_(args),
        panel_stride_(panel_stride),
        column_scale_(column_scale),
        w_(*args.windows),
        reading_(w_),
        tables_(*reinterpret_cast<WindowTables*>(scratch)),
        strip_(scratch + kWindowTableFloats),
        copies_(strip_ + kWindowStripFloats) {}

  void Run(const PanelRange& range) {
    for (size_t row = range.row_begin; row < range.row_end;) {
      row = Block(row, range.row_end);
      Pair();
      for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) Multiply(panel);
    }
  }

 private:
  // The pieces of as many rows from `row` on as the tables have room for; returns the row behind the last.
  size_t Block(size_t row, size_t end) {
    const size_t begin = row;
    const size_t wanted = args_.blocking.most_rows > 0 ? static_cast<size_t>(args_.blocking.most_rows) : kMostLineRows;
    const size_t most_rows = std::min(wanted, kMostLineRows);
    num_pieces_ = num_runs_ = num_lines_ = 0;
    while (row < end && num_pieces_ < kMostPieces && num_runs_ + reading_.runs <= kMostRuns) {
      const WindowPosition at(w_, static_cast<int64_t>(row));
      // Pieces of lines begin at the same positions in every line.
      const int64_t in_piece = reading_.piece - at.at[2] % reading_.piece;
      const size_t count =
          std::min({static_cast<size_t>(std::min(in_piece, w_.out[2] - at.at[2])), end - row, begin + most_rows - row});
      if (count == 0) break;
      if (!AddPiece(at, row, count)) break;
      row += count;
    }
    return row;
  }

  // False where there is no room for its copies.
  bool AddPiece(const WindowPosition& at, size_t row, size_t count) {
    const size_t lines_before = num_lines_;
    WindowPiece piece{row, count, num_runs_, 0, false, 0};
    for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
      const int64_t d = w_.At(0, at.at[0], kd);
      for (int64_t kh = 0; d >= 0 && kh < w_.kernel[1]; ++kh) {
        const int64_t h = w_.At(1, at.at[1], kh);
        if (h < 0) continue;
        const ptrdiff_t line = at.batch * w_.x_batch + d * w_.x_strides[0] + h * w_.x_strides[1];
        ptrdiff_t a;
        if (reading_.copies) {
          const size_t copy = Copy(line, at.at[2], static_cast<int64_t>(count));
          if (copy == kMostLines) {
            num_lines_ = lines_before;
            num_runs_ = piece.runs;
            return false;
          }
          a = static_cast<ptrdiff_t>(copy * reading_.copy_floats);
        } else {
          a = line + (at.at[2] * w_.stride[2] - w_.padding[2]) * w_.x_strides[2];
        }
        const size_t b = static_cast<size_t>((kd * w_.kernel[1] + kh) * w_.kernel[2] * w_.channels);
        for (int64_t kw = 0; kw < (reading_.joined ? 1 : w_.kernel[2]); ++kw) {
          tables_.runs[num_runs_++] = {a + static_cast<ptrdiff_t>(reading_.position) * kw * w_.dilation[2],
                                       b + static_cast<size_t>(kw * w_.channels)};
        }
      }
    }
    piece.num_runs = num_runs_ - piece.runs;
    if (num_pieces_ > 0) Compare(tables_.pieces[num_pieces_ - 1], piece);
    tables_.pieces[num_pieces_++] = piece;
    return true;
  }

  void Compare(WindowPiece& piece, const WindowPiece& next) {
    if (piece.num_runs != next.num_runs) return;
    const WindowRun* const one = tables_.runs + piece.runs;
    const WindowRun* const other = tables_.runs + next.runs;
    piece.to_next = piece.num_runs == 0 ? 0 : other[0].a - one[0].a;
    piece.like_next = std::equal(one, one + piece.num_runs, other, [&](const WindowRun& x, const WindowRun& y) {
      return x.b == y.b && y.a - x.a == piece.to_next;
    });
  }

  // The copy of what `count` windows from output position `first` on cover of a line of x; kMostLines where it has no
  // room.
  size_t Copy(ptrdiff_t line, int64_t first, int64_t count) {
    const int64_t positions = (count - 1) * w_.stride[2] + (w_.kernel[2] - 1) * w_.dilation[2] + 1;
    // Lines that share something of x follow one another.
    for (size_t i = num_lines_; i > 0; --i) {
      const LineCopy& copy = tables_.lines[i - 1];
      if (copy.line == line && copy.first == first && copy.positions >= positions) return i - 1;
    }
    if (num_lines_ == kMostLines || (num_lines_ + 1) * reading_.copy_floats > kLineFloats) return kMostLines;
    tables_.lines[num_lines_] = {line, first, positions};
    float* const out = copies_ + num_lines_ * reading_.copy_floats;
    CopyLine(args_.a + line, first * w_.stride[2] - w_.padding[2], positions, out);
    return num_lines_++;
  }

  void CopyLine(const float* HWY_RESTRICT x, int64_t begin, int64_t positions, float* HWY_RESTRICT out) const {
    const int64_t distance = static_cast<int64_t>(reading_.position);
    const int64_t channels = w_.channels;
    if (w_.spread[2] != 1) {
      for (int64_t i = 0; i < positions; ++i, out += distance) {
        const int64_t at = begin + i;
        const bool inside = at >= 0 && at % w_.spread[2] == 0 && at / w_.spread[2] < w_.in[2];
        if (inside) {
          std::copy_n(x + at / w_.spread[2] * w_.x_strides[2], channels, out);
        } else {
          std::fill_n(out, channels, 0.0f);
        }
      }
      return;
    }
    const int64_t low = std::clamp<int64_t>(-begin, 0, positions);
    const int64_t high = std::clamp<int64_t>(w_.in[2] - begin, low, positions);
    std::fill_n(out, low * distance, 0.0f);
    const float* const from = x + (begin + low) * w_.x_strides[2];
    if (distance == channels && w_.x_strides[2] == channels) {
      std::copy_n(from, (high - low) * channels, out + low * distance);
    } else {
      for (int64_t i = 0; i < high - low; ++i) {
        std::copy_n(from + i * w_.x_strides[2], channels, out + (low + i) * distance);
      }
    }
    std::fill_n(out + high * distance, (positions - high) * distance, 0.0f);
  }

  // Groups of neighbouring positions, two a tile where they have the same runs.
  void Pair() {
    num_tiles_ = 0;
    bool open = false;  // the last tile has room for another group
    const ptrdiff_t lda = static_cast<ptrdiff_t>(Lda());
    for (size_t i = 0; i < num_pieces_; ++i) {
      const WindowPiece& piece = tables_.pieces[i];
      const RowTiles groups(piece.count, static_cast<size_t>(kGroupRows));
      size_t done = 0;
      for (size_t g = 0; g < groups.count; ++g) {
        const size_t height = groups.Height(g);
        WindowTile* const last = tables_.tiles + num_tiles_ - 1;
        const ptrdiff_t a = static_cast<ptrdiff_t>(done) * lda;
        if (open && (g > 0 || tables_.pieces[i - 1].like_next) &&
            (last->first == height || last->first == height + 1)) {
          last->second = height;
          last->to_second = a - last->a + (g > 0 ? 0 : tables_.pieces[i - 1].to_next);
          open = false;
        } else {
          tables_.tiles[num_tiles_++] = {piece.row + done, height, 0, piece.runs, piece.num_runs, a, 0};
          open = true;
        }
        done += height;
      }
    }
  }

  size_t Lda() const { return static_cast<size_t>(w_.stride[2]) * reading_.position; }

  void Multiply(size_t panel) {
    const size_t width = PanelWidth();
    const size_t column = panel * width;
    const size_t columns = std::min(width, static_cast<size_t>(args_.n) - column);
    const Ending<float> ending(args_, column_scale_);
    const bool one_vector = columns <= hn::Lanes(TileTag());
    alignas(64) float padded_bias[kMaxPanelWidth];
    const float* const a = reading_.copies ? copies_ : args_.a;
    WindowTileArgs tile;
    tile.lda = Lda();
    const uint8_t* const b = static_cast<const uint8_t*>(args_.packed_b) + panel * panel_stride_;
    const float* const bias = PanelBias(args_.bias, column, columns, padded_bias);
    tile.b = b;
    tile.k = reading_.run;
    tile.init = column_scale_ ? nullptr : bias;
    const uint8_t* const scales = column_scale_ ? b + Panel::Bytes(static_cast<size_t>(args_.k)) : nullptr;
    for (size_t i = 0; i < num_tiles_; ++i) {
      const WindowTile& t = tables_.tiles[i];
      const TileResult to = ResultAt(args_, t.row, column, t.first + t.second, columns);
      if (!ending.in_tile()) FetchResult(to);
      tile.a = a + t.a;
      tile.second = t.to_second;
      tile.runs = tables_.runs + t.runs;
      tile.num_runs = t.num_runs;
      static_cast<TileEnd&>(tile) = ending.Of(to, strip_);
      WindowTileFunction run = WindowTileFor<Panel>(t.first, t.second);
      if constexpr (std::is_same_v<Panel, FloatPanel>) {
        if (one_vector) run = WindowTileFor<Panel, 1>(t.first, t.second);
      }
      run(tile);
      if (!ending.in_tile()) ending.finish()(ending.Rest(to, strip_, bias, scales));
    }
  }

  const GemmArgs& args_;
  const size_t panel_stride_;
  const bool column_scale_;
  const Windows& w_;
  const LineReading reading_;
  WindowTables& tables_;
  float* const strip_;
  float* const copies_;
  size_t num_pieces_ = 0, num_runs_ = 0, num_lines_ = 0, num_tiles_ = 0;
};

}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
