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

// Floats of the copies, which stay in L2 while panels pass: every block of rows reads all panels again.
inline constexpr size_t kMostLineFloats = size_t{128} * 1024;
HWY_INLINE size_t LineFloats() {
  return std::clamp(static_cast<size_t>(Caches().l2) / 4 / sizeof(float), kMostLineFloats / 2, kMostLineFloats);
}
// A block of rows ends where a table is full.
inline constexpr size_t kMostLineRows = 512;
inline constexpr size_t kMostLines = 256;
inline constexpr size_t kMostPieces = 128;
inline constexpr size_t kMostRuns = 1024;
// Narrower pieces of a line are left to copies of rows: their tiles would have too few.
inline constexpr int64_t kLeastPiece = 4;
inline constexpr int64_t kLeastPartOfLine = 24;
inline constexpr int64_t kMostSpread = 8;
// Shorter pieces of a line that are cut where taps leave it would lose in low tiles what they save in multiplications.
inline constexpr int64_t kLeastCutPiece = 6;
// Panels of no more bytes, or an eighth of L2, pass the rows whole, others in parts of so many, unless what a window
// covers of one line is more.
inline constexpr size_t kWholePanelBytes = size_t{192} * 1024;
inline constexpr size_t kPartBytes = size_t{64} * 1024;

// Output positions of one line, up to as many as a copy has room for. Where x is spread, those that meet the same taps,
// which lie as far apart.
struct WindowPiece {
  size_t row;  // of the first
  size_t count;
  size_t runs;  // the first of num_runs
  size_t num_runs;
  bool like_next;     // the piece after it has the same runs ...
  ptrdiff_t to_next;  // ... so much further
};

// A copy of a part of a line of x.
struct LineCopy {
  ptrdiff_t line;  // its first element in x
  int64_t first;   // position of x
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

// Whether windows of lines meet such panels: one of smaller numbers is widened by every tile, which pays where a tile
// has many rows.
template <class Panel>
inline constexpr bool kWindowsOfLines = std::is_same_v<Panel, FloatPanel> || (Panel::kGroup == 0 && kTileRows >= 12);

// How windows are read from lines.
struct LineReading {
  bool copies;
  bool cut;            // pieces end where a tap enters or leaves a line, so that each lies within it or is left out
  bool joined;         // taps beside one another are one run
  int64_t step;        // positions of x from one row of a piece to the next
  int64_t before;      // positions of x that the first window reaches back, and
  int64_t reach;       // that all windows of neighbouring rows reach over, less one
  size_t position;     // floats from one position of a line to the next
  size_t run;          // elements
  size_t runs;         // of the rows of a piece, or of the pieces side by side where x is spread, at most
  int64_t piece;       // rows at a time; 0: lines are not worth it
  size_t copy_floats;  // of a piece's line

  explicit LineReading(const Windows& w) {
    // Where x is spread, every spread[2]-th position meets x as neighbouring positions of one that is not.
    const int64_t spread = w.spread[2];
    const int64_t line = (w.out[2] + spread - 1) / spread;
    step = w.stride[2];
    before = FloorDiv(w.padding[2], spread);
    reach = before + FloorDiv(spread - 1 - w.padding[2] + (w.kernel[2] - 1) * w.dilation[2], spread);
    const size_t channels = static_cast<size_t>(w.channels);
    // Rows a multiple of 4 KiB apart push each other out of L1.
    const auto share_sets = [&](size_t distance) {
      return static_cast<size_t>(step) * distance * sizeof(float) % 4096 == 0;
    };
    position = static_cast<size_t>(w.x_strides[2]);
    copies = before > 0 || share_sets(position) || (line - 1) * step - before + reach >= w.in[2];
    cut = copies && !share_sets(position) && CutsWell(w);
    copies = copies && !cut;
    if (copies) position = share_sets(channels) ? channels + 16 : channels;
    joined = w.dilation[2] == 1 && position == channels && spread == 1;
    run = static_cast<size_t>(joined ? w.kernel[2] : 1) * channels;
    runs = static_cast<size_t>(w.kernel[0] * w.kernel[1] * (joined ? 1 : w.kernel[2]));
    piece = line;
    copy_floats = 0;
    const size_t lines = static_cast<size_t>(w.kernel[0] * w.kernel[1]);
    if (piece < kLeastPiece || runs > kMostRuns || lines > kMostLines || spread > kMostSpread ||
        (spread > 1 && step > 1)) {
      piece = 0;
    }
    if (!copies || piece == 0) return;
    const int64_t fitting = (static_cast<int64_t>(LineFloats() / lines / position) - reach - 1) / step + 1;
    if (fitting < std::min(piece, kLeastPartOfLine)) {
      piece = 0;
      return;
    }
    // Pieces of nearly equal length.
    if (fitting < piece) piece = (piece + (piece + fitting - 1) / fitting - 1) / ((piece + fitting - 1) / fitting);
    copy_floats = static_cast<size_t>((piece - 1) * step + reach + 1) * position;
  }

  // Where the piece ends that position `at` of a line belongs to, if lines are cut: no tap enters or leaves x before.
  static int64_t CutEnd(const Windows& w, int64_t at) {
    int64_t end = w.out[2];
    for (int64_t tap = 0; tap < w.kernel[2]; ++tap) {
      const int64_t offset = w.padding[2] - tap * w.dilation[2];
      // The first positions whose tap has come as far as x's beginning, and as far as its end.
      for (const int64_t reached : {offset, offset + w.in[2]}) {
        const int64_t position = -FloorDiv(-reached, w.stride[2]);
        if (position > at) end = std::min(end, position);
      }
    }
    return end;
  }

  // Where taps lie far apart, as dilated ones do, many of them meet nothing but padding for whole pieces.
  static bool CutsWell(const Windows& w) {
    if (w.spread[2] > 1 || w.dilation[2] < kLeastCutPiece) return false;
    for (int64_t at = 0, end; at < w.out[2]; at = end) {
      end = CutEnd(w, at);
      if (end - at < kLeastCutPiece) return false;
    }
    return true;
  }

  static int64_t FloorDiv(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

  // Whether a product of these rows is best read so. A panel must stay in L2 as a whole.
  template <class Panel>
  bool Suits(size_t k) const {
    return piece > 0 && run % kRowsTogether<Panel> == 0 && Panel::Bytes(k) <= static_cast<size_t>(Caches().l2) / 2;
  }
};

constexpr size_t kWindowTableFloats = (sizeof(WindowTables) + 63) / 64 * 16;
constexpr size_t kWindowStripFloats = kMostLineRows * kMaxPanelWidth;
constexpr size_t kWindowScratchFloats = kWindowTableFloats + kWindowStripFloats + kMostLineFloats;
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
      for (size_t panel = range.panel_begin; panel < range.panel_end; ++panel) {
        Multiply(panel, panel + 1 == range.panel_end);
      }
    }
  }

 private:
  // The pieces of as many rows from `row` on as the tables have room for; returns the row behind the last.
  size_t Block(size_t row, size_t end) {
    const size_t begin = row;
    const size_t wanted = args_.blocking.most_rows > 0 ? static_cast<size_t>(args_.blocking.most_rows) : kMostLineRows;
    const size_t most_rows = std::min(wanted, kMostLineRows);
    const int64_t together = reading_.piece * w_.spread[2];
    num_pieces_ = num_runs_ = num_lines_ = 0;
    while (row < end && num_pieces_ + static_cast<size_t>(w_.spread[2]) <= kMostPieces &&
           num_runs_ + reading_.runs <= kMostRuns) {
      const WindowPosition at(w_, static_cast<int64_t>(row));
      // Pieces of lines begin at the same positions in every line.
      const int64_t left = reading_.cut ? LineReading::CutEnd(w_, at.at[2]) - at.at[2]
                                        : std::min(together - at.at[2] % together, w_.out[2] - at.at[2]);
      const size_t count = std::min({static_cast<size_t>(left), end - row, begin + most_rows - row});
      if (count == 0 || !AddPieces(at, row, static_cast<int64_t>(count))) break;
      row += count;
    }
    return row;
  }

  // The pieces of `count` positions of a line; false where there is no room for its copies.
  bool AddPieces(const WindowPosition& at, size_t row, int64_t count) {
    const size_t lines_before = num_lines_, pieces_before = num_pieces_, runs_before = num_runs_;
    const int64_t spread = w_.spread[2];
    for (int64_t first = at.at[2]; first < at.at[2] + std::min(spread, count); ++first) {
      WindowPiece piece{row + static_cast<size_t>(first - at.at[2]),
                        static_cast<size_t>((at.at[2] + count - first + spread - 1) / spread),
                        num_runs_,
                        0,
                        false,
                        0};
      for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
        const int64_t d = w_.At(0, at.at[0], kd);
        for (int64_t kh = 0; d >= 0 && kh < w_.kernel[1]; ++kh) {
          const int64_t h = w_.At(1, at.at[1], kh);
          if (h < 0) continue;
          const ptrdiff_t line = at.batch * w_.x_batch + d * w_.x_strides[0] + h * w_.x_strides[1];
          // Of position 0 of x.
          ptrdiff_t a = line;
          if (reading_.copies) {
            const int64_t from = at.at[2] / spread * reading_.step - reading_.before;
            const size_t copy = Copy(line, from, (count - 1) / spread + 1);
            if (copy == kMostLines) {
              num_lines_ = lines_before;
              num_pieces_ = pieces_before;
              num_runs_ = runs_before;
              return false;
            }
            a = static_cast<ptrdiff_t>(copy * reading_.copy_floats) - from * Position();
          }
          const size_t b = static_cast<size_t>((kd * w_.kernel[1] + kh) * w_.kernel[2] * w_.channels);
          for (int64_t kw = 0; kw < (reading_.joined ? 1 : w_.kernel[2]); ++kw) {
            const int64_t meets = first * w_.stride[2] - w_.padding[2] + kw * w_.dilation[2];
            if (meets % spread != 0 || (reading_.cut && (meets < 0 || meets >= w_.in[2]))) continue;
            tables_.runs[num_runs_++] = {a + meets / spread * Position(), b + static_cast<size_t>(kw * w_.channels)};
          }
        }
      }
      piece.num_runs = num_runs_ - piece.runs;
      if (num_pieces_ > 0) Compare(tables_.pieces[num_pieces_ - 1], piece);
      tables_.pieces[num_pieces_++] = piece;
    }
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

  // The copy of what `rows` rows meet of a line of x from position `first` on; kMostLines where it has no room.
  size_t Copy(ptrdiff_t line, int64_t first, int64_t rows) {
    // Where pieces lie side by side, some may begin one position later than others.
    const int64_t more = w_.spread[2] > 1 && rows < reading_.piece ? 1 : 0;
    const int64_t positions = (rows + more - 1) * reading_.step + reading_.reach + 1;
    // Lines that share something of x follow one another.
    for (size_t i = num_lines_; i > 0; --i) {
      const LineCopy& copy = tables_.lines[i - 1];
      if (copy.line == line && copy.first == first && copy.positions >= positions) return i - 1;
    }
    if (num_lines_ == kMostLines || (num_lines_ + 1) * reading_.copy_floats > LineFloats()) return kMostLines;
    tables_.lines[num_lines_] = {line, first, positions};
    CopyLine(args_.a + line, first, positions, copies_ + num_lines_ * reading_.copy_floats);
    return num_lines_++;
  }

  void CopyLine(const float* HWY_RESTRICT x, int64_t begin, int64_t positions, float* HWY_RESTRICT out) const {
    const int64_t distance = Position();
    const int64_t channels = w_.channels;
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
        if (open && (g > 0 || (w_.spread[2] == 1 && tables_.pieces[i - 1].like_next)) &&
            (last->first == height || last->first == height + 1)) {
          last->second = height;
          last->to_second = a - last->a + (g > 0 ? 0 : tables_.pieces[i - 1].to_next);
          open = false;
        } else {
          const size_t row = piece.row + done * static_cast<size_t>(w_.spread[2]);
          tables_.tiles[num_tiles_++] = {row, height, 0, piece.runs, piece.num_runs, a, 0};
          open = true;
        }
        done += height;
      }
    }
  }

  size_t Lda() const { return static_cast<size_t>(reading_.step) * reading_.position; }
  ptrdiff_t Position() const { return static_cast<ptrdiff_t>(reading_.position); }

  // last: no other panel follows.
  void Multiply(size_t panel, bool last) {
    const size_t width = PanelWidth();
    const size_t column = panel * width;
    const size_t columns = std::min(width, static_cast<size_t>(args_.n) - column);
    const Ending<float> ending(args_, column_scale_);
    const bool one_vector = columns <= hn::Lanes(TileTag());
    alignas(64) float padded_bias[kMaxPanelWidth];
    const float* const a = reading_.copies ? copies_ : args_.a;
    const uint8_t* const b = static_cast<const uint8_t*>(args_.packed_b) + panel * panel_stride_;
    const float* const bias = PanelBias(args_.bias, column, columns, padded_bias);
    WindowTileArgs tile;
    tile.lda = Lda();
    tile.b = b;
    tile.k = reading_.run;
    const size_t bytes = Panel::Bytes(static_cast<size_t>(args_.k));
    const uint8_t* const scales = column_scale_ ? b + bytes : nullptr;
    const size_t parts = PanelParts(bytes);
    for (size_t part = 0; part < parts; ++part) {
      const bool last_part = part + 1 == parts;
      const size_t k_begin = reading_.runs * part / parts * reading_.run;
      const size_t k_end = reading_.runs * (part + 1) / parts * reading_.run;
      PanelAhead ahead(last_part ? b + panel_stride_ : b + Panel::Bytes(k_end), last && last_part ? 0 : bytes / parts,
                       Panel::Bytes(4), num_tiles_);
      float* wait = strip_;
      for (size_t i = 0; i < num_tiles_; ++i) {
        const WindowTile& t = tables_.tiles[i];
        const size_t rows = t.first + t.second;
        const WindowRun* const end = tables_.runs + t.runs + t.num_runs;
        const auto before = [](const WindowRun& run, size_t k) { return run.b < k; };
        const WindowRun* const first = tables_.runs + t.runs;
        tile.runs = std::lower_bound(first, end, k_begin, before);
        tile.num_runs = static_cast<size_t>(std::lower_bound(tile.runs, end, k_end, before) - tile.runs);
        tile.fetch = ahead.Next(tile.num_runs * (reading_.run / 4));
        tile.a = a + t.a;
        tile.second = t.to_second;
        tile.init = part > 0 ? wait : column_scale_ ? nullptr : bias;
        tile.init_ld = part > 0 ? width : 0;
        TileResult to = ResultAt(args_, t.row, column, rows, columns);
        to.ldc *= static_cast<size_t>(w_.spread[2]);
        to.ldr *= static_cast<size_t>(w_.spread[2]);
        if (last_part) {
          if (!ending.in_tile()) FetchResult(to);
          ending.Of(to, wait, tile);
        } else {
          tile.KeepSums(wait, width);
        }
        WindowTileFunction run = WindowTileFor<Panel>(t.first, t.second);
        if constexpr (std::is_same_v<Panel, FloatPanel>) {
          if (one_vector) run = WindowTileFor<Panel, 1>(t.first, t.second);
        }
        run(tile);
        if (last_part && !ending.in_tile()) ending.finish()(ending.Rest(to, wait, bias, scales));
        if (parts > 1) wait += rows * width;
      }
    }
  }

  // In how many parts, one behind the other, a panel of so many bytes passes the rows: a long one by a few taps at a
  // time, so that what is fetched of the next part is still in L2 when it is used.
  size_t PanelParts(size_t bytes) const {
    if (bytes <= std::max(static_cast<size_t>(Caches().l2) / 8, kWholePanelBytes)) return 1;
    const size_t together = std::max<size_t>(kPartBytes / Panel::Bytes(reading_.run), 1);
    return (reading_.runs + together - 1) / together;
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
