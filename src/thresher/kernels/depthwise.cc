#include "thresher/kernels/depthwise.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "thresher/base/simd_targets.h"
#include "thresher/kernels/iterate.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thresher/kernels/depthwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// foreach_target.h must come first.
#include "hwy/highway.h"
#include "thresher/kernels/epilogue-inl.h"

#undef THRESHER_DEPTHWISE_SUMS
#define THRESHER_DEPTHWISE_SUMS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

HWY_BEFORE_NAMESPACE();
namespace thresher::kernels::HWY_NAMESPACE {
namespace {

using V = hn::Vec<TileTag>;

constexpr size_t kMostSums = 8;
// Lines of output positions that pass by the same piece of x, so that what they share of it is in L1.
constexpr size_t kMostLines = 64;
constexpr size_t kTableTaps = 1024;
static_assert(kTableTaps >= static_cast<size_t>(kMostDepthwiseTaps));
constexpr size_t kPieceBytes = size_t{24} * 1024;
constexpr size_t kWeightFloats = size_t{5} * 1024;
// Fewer weights of a channel find room in any few sets of L1.
constexpr size_t kLeastPackedWeights = 17;

// A tap of a line that lies in x, by elements.
struct Tap {
  ptrdiff_t x;  // from the first of the line's positions
  size_t weight;
  size_t column;  // among the taps of the kernel's last dimension
};

// Which of a tile's sums a tap of some column meets: all, where x does not end before.
struct Meeting {
  ptrdiff_t begin, end;
  bool all;
};

// How the lanes of a vector of output channels meet the input channels of their groups.
enum class Lanes : uint8_t {
  kOwn,       // each its own: one channel a group
  kPermuted,  // whole groups, whose inputs fill no more than a vector
  kTwos,      // the same of two inputs and as many outputs
  kFours,     // of four
  kEights,    // of eight
  kShared,    // all the same: a vector is a part of a group
  kGathered,  // anything else
};

// Sums of neighbouring positions, x_step and out_step apart.
struct SumsArgs {
  const Tap* taps;
  size_t num_taps;
  const Meeting* meetings;  // one a column of taps
  const float* x;
  const float* weight;  // of the first vector of channels
  const float* bias;
  float* out;
  size_t x_step, out_step;
  size_t before, after;  // positions of x that windows of the sums reach over the ends of the line
  size_t channel;        // of the first sum
  size_t count;          // of channels; whole vectors, or less than one
  size_t group_inputs, group_outputs;
  size_t term;         // from the weights of an input channel of the group to those of the next one
  size_t vector;       // from the weights of a vector of channels to those of the next one
  Bounds bounds = {};  // of the result
  // What the next line of positions will read first of all: lines of x, and positions of each for every sum.
  ptrdiff_t next_line, fetched_line;
  size_t fetched_lines, fetched_positions;
  size_t fetched_step;
};

// Inputs of a group that are known when this is compiled, or 0: then a vector of x is loaded once for all of them.
constexpr size_t KnownInputs(Lanes lanes) {
  return lanes == Lanes::kTwos ? 2 : lanes == Lanes::kFours ? 4 : lanes == Lanes::kEights ? 8 : 0;
}

// Of a vector of the inputs of groups: the input of each lane's group that a term is.
template <Lanes kLanes, int kTerm, class Indices>
HWY_INLINE V InputOfGroup(V inputs, Indices at) {
  // Within 128 bits, lanes are sooner there than by a permutation of all.
  if constexpr (kLanes == Lanes::kTwos) {
    return kTerm % 2 == 0 ? hn::DupEven(inputs) : hn::DupOdd(inputs);
  } else if constexpr (kLanes == Lanes::kFours) {
    return hn::Broadcast<kTerm % 4>(inputs);
  } else {
    return hn::TableLookupLanes(inputs, at);
  }
}

// Where a line has kColumns taps (an odd number, else 0) and one sum's window begins kStride positions behind the one
// before, taps are written out, and sums share what is loaded of x. What reaches over the ends of a line is left out,
// up to half a window; more is left to kColumns 0. Taps one by one took twice as long on Zen 5.
template <int kSums, Lanes kLanes, bool kWhole, int kColumns = 0, int kStride = 1>
HWY_NOINLINE void RunSums(const SumsArgs& args) {
  if constexpr (kColumns > 0) {
    if (std::max(args.before, args.after) > kColumns / 2) return RunSums<kSums, kLanes, kWhole>(args);
  }
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const size_t lanes = hn::Lanes(d);
  const size_t step = args.x_step;
  constexpr size_t kInputs = KnownInputs(kLanes);
  const size_t terms = kLanes == Lanes::kOwn ? 1 : args.group_inputs;
  const auto load = [&](const float* from)
                        HWY_ATTR { return kWhole ? hn::LoadU(d, from) : hn::LoadN(d, from, args.count); };
  const float* HWY_RESTRICT weights = args.weight;
  for (size_t c = 0; c < args.count; c += lanes, weights += args.vector) {
    const V bias = args.bias == nullptr ? hn::Zero(d) : load(args.bias + c);
    // The first input channel that the vector meets, and where those of its lanes lie behind it.
    const size_t group = kLanes == Lanes::kOwn ? 0 : (args.channel + c) / args.group_outputs;
    const float* HWY_RESTRICT const first =
        args.x + (kLanes == Lanes::kOwn ? args.channel + c : group * args.group_inputs);
    HWY_ALIGN int32_t inputs[hn::MaxLanes(di)] = {};
    if constexpr (kLanes == Lanes::kPermuted || kLanes == Lanes::kGathered) {
      for (size_t i = 0; i < std::min(lanes, args.count - c); ++i) {
        inputs[i] = static_cast<int32_t>(((args.channel + c + i) / args.group_outputs - group) * args.group_inputs);
      }
    }
    const auto first_inputs = hn::Load(di, inputs);
    const size_t loaded = kLanes == Lanes::kPermuted ? args.count / args.group_outputs * args.group_inputs : 0;
#define THRESHER_DECLARE(i) V s##i = bias;
    THRESHER_DEPTHWISE_SUMS(THRESHER_DECLARE)
#undef THRESHER_DECLARE
    if constexpr (kInputs > 0) {
      const auto group_of_lane = hn::AndNot(hn::Set(di, static_cast<int32_t>(kInputs - 1)), hn::Iota(di, 0));
      // Of each lane's inputs, the one that a term is.
#define THRESHER_TERM(t) \
  const auto at##t = hn::IndicesFromVec(d, hn::Add(group_of_lane, hn::Set(di, static_cast<int32_t>(t % kInputs))));
      THRESHER_DEPTHWISE_SUMS(THRESHER_TERM)
#undef THRESHER_TERM
      for (size_t t = 0; t < args.num_taps; ++t) {
        const Tap& tap = args.taps[t];
        const Meeting& meets = args.meetings[tap.column];
        const float* HWY_RESTRICT const weight = weights + tap.weight;
        const float* HWY_RESTRICT const x0 = first + tap.x;
        const float* HWY_RESTRICT const x1 = x0 + 3 * step;
        const float* HWY_RESTRICT const x2 = x1 + 3 * step;
#define THRESHER_ADD(i, t) s##i = hn::MulAdd(InputOfGroup<kLanes, t>(v##i, at##t), w, s##i);
        if (meets.all) {
#define THRESHER_LOAD(i) const V v##i = hn::LoadU(d, (i < 3 ? x0 : i < 6 ? x1 : x2) + (i < kSums ? i % 3 * step : 0));
          THRESHER_DEPTHWISE_SUMS(THRESHER_LOAD)
#undef THRESHER_LOAD
#define THRESHER_TERM(t)                              \
  if constexpr (t < kInputs) {                        \
    const V w = hn::LoadU(d, weight + t * args.term); \
    if constexpr (0 < kSums) THRESHER_ADD(0, t)       \
    if constexpr (1 < kSums) THRESHER_ADD(1, t)       \
    if constexpr (2 < kSums) THRESHER_ADD(2, t)       \
    if constexpr (3 < kSums) THRESHER_ADD(3, t)       \
    if constexpr (4 < kSums) THRESHER_ADD(4, t)       \
    if constexpr (5 < kSums) THRESHER_ADD(5, t)       \
    if constexpr (6 < kSums) THRESHER_ADD(6, t)       \
    if constexpr (7 < kSums) THRESHER_ADD(7, t)       \
  }
          THRESHER_DEPTHWISE_SUMS(THRESHER_TERM)
#undef THRESHER_TERM
          continue;
        }
#define THRESHER_TERM(i, t)                           \
  if constexpr (t < kInputs) {                        \
    const V w = hn::LoadU(d, weight + t * args.term); \
    THRESHER_ADD(i, t)                                \
  }
#define THRESHER_ADD_IF_MET(i)                                                    \
  if constexpr (i < kSums) {                                                      \
    if (i >= meets.begin && i < meets.end) {                                      \
      const V v##i = hn::LoadU(d, (i < 3 ? x0 : i < 6 ? x1 : x2) + i % 3 * step); \
      THRESHER_TERM(i, 0)                                                         \
      THRESHER_TERM(i, 1)                                                         \
      THRESHER_TERM(i, 2)                                                         \
      THRESHER_TERM(i, 3)                                                         \
      THRESHER_TERM(i, 4)                                                         \
      THRESHER_TERM(i, 5)                                                         \
      THRESHER_TERM(i, 6)                                                         \
      THRESHER_TERM(i, 7)                                                         \
    }                                                                             \
  }
        THRESHER_DEPTHWISE_SUMS(THRESHER_ADD_IF_MET)
#undef THRESHER_ADD_IF_MET
#undef THRESHER_TERM
#undef THRESHER_ADD
      }
    }
    if constexpr (kColumns > 0 && kLanes == Lanes::kShared) {
      constexpr size_t kHalf = kColumns / 2;
      constexpr size_t kPositions = (kSums - 1) * kStride + kColumns;
      const size_t before = args.before, behind = kPositions - args.after;
      const size_t position = step / kStride;
      for (size_t t = 0; t < args.num_taps; t += kColumns) {
        const float* HWY_RESTRICT x0 = first + args.taps[t].x;
        const float* HWY_RESTRICT weight = weights + args.taps[t].weight;
        const size_t column = args.taps[t + 1].weight - args.taps[t].weight;
        for (size_t term = 0; term < terms; ++term, ++x0, weight += args.term) {
          const V w0 = hn::LoadU(d, weight);
          const V w1 = hn::LoadU(d, weight + column);
          const V w2 = hn::LoadU(d, weight + 2 * column);
          // An input of one position meets each sum whose window has it, at the tap that it lies at there.
#define THRESHER_ADD(i, p)                                                     \
  if constexpr (i < kSums && p >= i * kStride && p < i * kStride + kColumns) { \
    constexpr int kTap = static_cast<int>(p) - i * kStride;                    \
    s##i = hn::MulAdd(v, kTap == 0 ? w0 : kTap == 1 ? w1 : w2, s##i);          \
  }
#define THRESHER_POSITION(p)                                                       \
  if constexpr (p < kPositions) {                                                  \
    if (!(p < kHalf && p < before) && !(p + kHalf >= kPositions && p >= behind)) { \
      const V v = hn::Set(d, x0[p * position]);                                    \
      THRESHER_ADD(0, p)                                                           \
      THRESHER_ADD(1, p)                                                           \
      THRESHER_ADD(2, p)                                                           \
      THRESHER_ADD(3, p)                                                           \
      THRESHER_ADD(4, p)                                                           \
      THRESHER_ADD(5, p)                                                           \
      THRESHER_ADD(6, p)                                                           \
      THRESHER_ADD(7, p)                                                           \
    }                                                                              \
  }
          THRESHER_POSITION(0)
          THRESHER_POSITION(1)
          THRESHER_POSITION(2)
          THRESHER_POSITION(3)
          THRESHER_POSITION(4)
          THRESHER_POSITION(5)
          THRESHER_POSITION(6)
          THRESHER_POSITION(7)
          THRESHER_POSITION(8)
          THRESHER_POSITION(9)
          THRESHER_POSITION(10)
          THRESHER_POSITION(11)
          THRESHER_POSITION(12)
          THRESHER_POSITION(13)
          THRESHER_POSITION(14)
          THRESHER_POSITION(15)
          THRESHER_POSITION(16)
#undef THRESHER_POSITION
#undef THRESHER_ADD
        }
      }
    }
    if constexpr (kColumns > 0 && kLanes != Lanes::kShared) {
      constexpr size_t kHalf = kColumns / 2;
      constexpr size_t kPositions = (kSums - 1) * kStride + kColumns;
      const size_t before = args.before, behind = kPositions - args.after;
      const size_t position = step / kStride;
      for (size_t t = 0; t < args.num_taps; t += kColumns) {
        const float* HWY_RESTRICT const x0 = first + args.taps[t].x;
#define THRESHER_ADD(i, k)                                                                 \
  if constexpr (i < kSums && k < kColumns) {                                               \
    constexpr size_t kAt = i * kStride + k;                                                \
    if (!(kAt < kHalf && kAt < before) && !(kAt + kHalf >= kPositions && kAt >= behind)) { \
      s##i = hn::MulAdd(load(x0 + kAt * position), w, s##i);                               \
    }                                                                                      \
  }
#define THRESHER_COLUMN(k)                               \
  if constexpr (k < kColumns) {                          \
    const V w = load(weights + args.taps[t + k].weight); \
    THRESHER_ADD(0, k)                                   \
    THRESHER_ADD(1, k)                                   \
    THRESHER_ADD(2, k)                                   \
    THRESHER_ADD(3, k)                                   \
    THRESHER_ADD(4, k)                                   \
    THRESHER_ADD(5, k)                                   \
    THRESHER_ADD(6, k)                                   \
    THRESHER_ADD(7, k)                                   \
  }
        THRESHER_COLUMN(0)
        THRESHER_COLUMN(1)
        THRESHER_COLUMN(2)
        THRESHER_COLUMN(3)
        THRESHER_COLUMN(4)
        THRESHER_COLUMN(5)
        THRESHER_COLUMN(6)
#undef THRESHER_COLUMN
#undef THRESHER_ADD
      }
    }
    if constexpr (kColumns == 0 && kLanes == Lanes::kShared) {
      for (size_t t = 0; t < args.num_taps; ++t) {
        const Tap& tap = args.taps[t];
        const Meeting& meets = args.meetings[tap.column];
        const float* HWY_RESTRICT weight = weights + tap.weight;
        const float* HWY_RESTRICT x0 = first + tap.x;
        const float* HWY_RESTRICT x1 = x0 + 3 * step;
        const float* HWY_RESTRICT x2 = x1 + 3 * step;
        for (size_t term = 0; term < terms; ++term, ++x0, ++x1, ++x2, weight += args.term) {
          const V w = hn::LoadU(d, weight);
#define THRESHER_ADD(i) \
  if constexpr (i < kSums) s##i = hn::MulAdd(hn::Set(d, (i < 3 ? x0 : i < 6 ? x1 : x2)[i % 3 * step]), w, s##i);
          if (meets.all) {
            THRESHER_DEPTHWISE_SUMS(THRESHER_ADD)
            continue;
          }
#define THRESHER_ADD_IF_MET(i)             \
  if (i >= meets.begin && i < meets.end) { \
    THRESHER_ADD(i)                        \
  }
          THRESHER_DEPTHWISE_SUMS(THRESHER_ADD_IF_MET)
#undef THRESHER_ADD_IF_MET
#undef THRESHER_ADD
        }
      }
    }
    constexpr bool kOneByOne = kInputs + kColumns == 0 && kLanes != Lanes::kShared;
    for (size_t term = 0; kOneByOne && term < terms; ++term) {
      const auto at = hn::Add(first_inputs, hn::Set(di, static_cast<int32_t>(term)));
      const auto indices = hn::IndicesFromVec(d, kLanes == Lanes::kPermuted ? at : hn::Zero(di));
      const auto meet = [&](const float* from) HWY_ATTR {
        if constexpr (kLanes == Lanes::kOwn) {
          return load(from);
        } else if constexpr (kLanes == Lanes::kPermuted) {
          return hn::TableLookupLanes(kWhole ? hn::LoadU(d, from) : hn::LoadN(d, from, loaded), indices);
        } else {
          return hn::GatherIndex(d, from, at);
        }
      };
      const float* HWY_RESTRICT const weight = weights + term * args.term;
      for (size_t t = 0; t < args.num_taps; ++t) {
        const Tap& tap = args.taps[t];
        const Meeting& meets = args.meetings[tap.column];
        const V w = load(weight + tap.weight);
        // Three positions a pointer: the multiples of `step` are addressing modes.
        const float* HWY_RESTRICT const x0 = first + tap.x;
        const float* HWY_RESTRICT const x1 = x0 + 3 * step;
        const float* HWY_RESTRICT const x2 = x1 + 3 * step;
#define THRESHER_ADD(i) \
  if constexpr (i < kSums) s##i = hn::MulAdd(meet((i < 3 ? x0 : i < 6 ? x1 : x2) + i % 3 * step), w, s##i);
        if (meets.all) {
          THRESHER_DEPTHWISE_SUMS(THRESHER_ADD)
          continue;
        }
#define THRESHER_ADD_IF_MET(i)             \
  if (i >= meets.begin && i < meets.end) { \
    THRESHER_ADD(i)                        \
  }
        THRESHER_DEPTHWISE_SUMS(THRESHER_ADD_IF_MET)
#undef THRESHER_ADD_IF_MET
#undef THRESHER_ADD
      }
    }
    for (size_t line = 0; line < args.fetched_lines; ++line) {
      const float* const next = first + args.next_line + static_cast<ptrdiff_t>(line) * args.fetched_line;
      for (size_t i = 0; i < kSums * args.fetched_positions; ++i)
        __builtin_prefetch(next + i * args.fetched_step, 0, 3);
    }
    if (args.bounds.any) {
      const V least = hn::Set(d, args.bounds.least), greatest = hn::Set(d, args.bounds.greatest);
#define THRESHER_BOUND(i) s##i = AtMost(d, greatest, AtLeast(d, least, s##i));
      THRESHER_DEPTHWISE_SUMS(THRESHER_BOUND)
#undef THRESHER_BOUND
    }
    float* HWY_RESTRICT const out = args.out + c;
#define THRESHER_STORE(i)                                       \
  if constexpr (i < kSums) {                                    \
    if constexpr (kWhole) {                                     \
      hn::StoreU(s##i, d, out + i * args.out_step);             \
    } else {                                                    \
      hn::StoreN(s##i, d, out + i * args.out_step, args.count); \
    }                                                           \
  }
    THRESHER_DEPTHWISE_SUMS(THRESHER_STORE)
#undef THRESHER_STORE
  }
}

using SumsFunction = void (*)(const SumsArgs&);

template <Lanes kLanes, bool kWhole, int kColumns = 0, int kStride = 1, size_t... I>
SumsFunction SumsAt(size_t sums, std::index_sequence<I...>) {
  static constexpr SumsFunction table[] = {&RunSums<static_cast<int>(I) + 1, kLanes, kWhole, kColumns, kStride>...};
  return table[sums - 1];
}

// Taps of a line that lie side by side, with the stride between neighbouring sums; or 0 and anything.
struct Columns {
  int64_t taps, stride;
  bool are(int64_t some, int64_t apart) const { return taps == some && stride == apart; }
};

SumsFunction SumsFor(size_t sums, Lanes lanes, bool whole, Columns columns) {
  constexpr size_t kMostLanes = hn::MaxLanes(TileTag());
  const auto all = std::make_index_sequence<kMostSums>();
  switch (lanes) {
    case Lanes::kOwn:
      if (whole && columns.are(3, 1)) return SumsAt<Lanes::kOwn, true, 3>(sums, all);
      if (whole && columns.are(5, 1)) return SumsAt<Lanes::kOwn, true, 5>(sums, all);
      if (whole && columns.are(7, 1)) return SumsAt<Lanes::kOwn, true, 7>(sums, all);
      if (whole && columns.are(3, 2)) return SumsAt<Lanes::kOwn, true, 3, 2>(sums, all);
      if (whole && columns.are(5, 2)) return SumsAt<Lanes::kOwn, true, 5, 2>(sums, all);
      return whole ? SumsAt<Lanes::kOwn, true>(sums, all) : SumsAt<Lanes::kOwn, false>(sums, all);
    case Lanes::kPermuted:
      return whole ? SumsAt<Lanes::kPermuted, true>(sums, all) : SumsAt<Lanes::kPermuted, false>(sums, all);
    case Lanes::kTwos:
    case Lanes::kFours:
    case Lanes::kEights:
      if (!whole) return SumsAt<Lanes::kPermuted, false>(sums, all);
      // Where a vector has no more lanes than a group, LanesOf says kShared.
      if constexpr (kMostLanes > 8) {
        if (lanes == Lanes::kEights) return SumsAt<Lanes::kEights, true>(sums, all);
      }
      if constexpr (kMostLanes > 4) {
        if (lanes == Lanes::kFours) return SumsAt<Lanes::kFours, true>(sums, all);
      }
      return SumsAt<Lanes::kTwos, true>(sums, all);
    case Lanes::kShared:
      if (columns.are(3, 1)) return SumsAt<Lanes::kShared, true, 3>(sums, all);
      if (columns.are(3, 2)) return SumsAt<Lanes::kShared, true, 3, 2>(sums, all);
      return SumsAt<Lanes::kShared, true>(sums, all);
    case Lanes::kGathered:
      break;
  }
  return SumsAt<Lanes::kGathered, false>(sums, all);
}

Lanes LanesOf(const DepthwiseArgs& args) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(TileTag()));
  if (args.group_inputs == 1 && args.group_outputs == 1) return Lanes::kOwn;
  if (args.group_outputs % lanes == 0) return Lanes::kShared;
  const bool fits = lanes % args.group_outputs == 0 && args.group_inputs <= args.group_outputs;
  if (fits && args.group_inputs == args.group_outputs) {
    if (args.group_inputs == 2) return Lanes::kTwos;
    if (args.group_inputs == 4) return Lanes::kFours;
    if (args.group_inputs == 8) return Lanes::kEights;
  }
  return fits ? Lanes::kPermuted : Lanes::kGathered;
}

int64_t CeilDiv(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

// Where x is spread, positions of a line that are `spread` apart meet the same taps: those positions are a phase of it.
struct Phase {
  int64_t first;  // position
  int64_t count;
  int64_t kernel;                     // taps of the last dimension
  int64_t at[kMostDepthwiseTaps];     // where each lies in x for the first position, or
  bool inside[kMostDepthwiseTaps];    // among the zeros of the spread, for every position
  int64_t begin[kMostDepthwiseTaps];  // the positions, by number in the phase, for which it lies within x
  int64_t end[kMostDepthwiseTaps];

  Phase(const Windows& w, int64_t number)
      : first(number), count(CeilDiv(w.out[2] - number, w.spread[2])), kernel(w.kernel[2]) {
    for (int64_t k = 0; k < kernel; ++k) {
      const int64_t from = number * w.stride[2] - w.padding[2] + k * w.dilation[2];
      inside[k] = from % w.spread[2] == 0;
      at[k] = from / w.spread[2];
      begin[k] = std::max<int64_t>(CeilDiv(-at[k], w.stride[2]), 0);
      end[k] = std::min(CeilDiv(w.in[2] - at[k], w.stride[2]), count);
    }
  }

  // Of the tile of `sums` positions from `position` on.
  void Meet(int64_t position, int64_t sums, Meeting* meetings) const {
    for (int64_t k = 0; k < kernel; ++k) {
      const ptrdiff_t from = static_cast<ptrdiff_t>(begin[k] - position);
      const ptrdiff_t to = static_cast<ptrdiff_t>(end[k] - position);
      meetings[k] = {from, to, from <= 0 && to >= sums};
    }
  }
};

// The taps of a line's positions in a phase, all columns of those lines of x that there are.
size_t FindTaps(const Windows& w, const WindowPosition& position, const Phase& phase, size_t tap_weights, Tap* taps) {
  size_t count = 0;
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
    const int64_t at_d = w.At(0, position.at[0], kd);
    if (at_d < 0) continue;
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
      const int64_t at_h = w.At(1, position.at[1], kh);
      if (at_h < 0) continue;
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        if (!phase.inside[kw]) continue;
        taps[count++] = {at_d * w.x_strides[0] + at_h * w.x_strides[1] + phase.at[kw] * w.x_strides[2],
                         static_cast<size_t>((kd * w.kernel[1] + kh) * w.kernel[2] + kw) * tap_weights,
                         static_cast<size_t>(kw)};
      }
    }
  }
  return count;
}

// The weights of channels [begin, end), vector by vector; a last one that is not full is filled with zeros. As they are
// stored, those that a vector meets may lie in the same few sets of L1.
void PackVectors(const DepthwiseArgs& args, size_t begin, size_t end, float* HWY_RESTRICT out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d), channels = static_cast<size_t>(args.outputs);
  const size_t terms = static_cast<size_t>(args.windows.taps() * args.group_inputs);
  for (size_t c = begin; c < end; c += lanes) {
    for (size_t term = 0; term < terms; ++term, out += lanes) {
      hn::StoreU(hn::LoadN(d, args.weight + term * channels + c, std::min(lanes, end - c)), d, out);
    }
  }
}

// One phase of the positions of `lines` lines.
void RunPhase(const DepthwiseArgs& args, Range lines, const Phase& phase) {
  const Windows& w = args.windows;
  const size_t lanes = hn::Lanes(TileTag());
  const size_t channels = static_cast<size_t>(args.outputs);
  const Lanes kind = LanesOf(args);
  const size_t num_taps = static_cast<size_t>(w.taps());
  const Columns columns{w.dilation[2] == 1 && w.spread[2] == 1 ? w.kernel[2] : 0, w.stride[2]};
  const int64_t most_lines = static_cast<int64_t>(std::min(kTableTaps / num_taps, kMostLines));
  const FinishFunction finish = FinishFor<float>(args.activation);
  Tap table[kTableTaps];
  size_t counts[kMostLines];
  ptrdiff_t images[kMostLines];
  ptrdiff_t next_lines[kMostLines];
  Meeting meetings[kMostDepthwiseTaps];
  alignas(64) float strip[kMostSums * kMaxPanelWidth];
  SumsArgs sums{};
  const bool direct = IsBounds(args.activation, &sums.bounds) && args.residual == nullptr;
  if (!direct) sums.bounds.any = false;
  const size_t out_step = static_cast<size_t>(w.spread[2] * args.ldc);
  sums.x_step = static_cast<size_t>(w.stride[2] * w.x_strides[2]);
  sums.out_step = direct ? out_step : PanelWidth();
  sums.fetched_line = static_cast<ptrdiff_t>(w.x_strides[1]);
  sums.fetched_lines = static_cast<size_t>(w.stride[1]);
  sums.fetched_positions = static_cast<size_t>(w.stride[2]);
  sums.fetched_step = static_cast<size_t>(w.x_strides[2]);
  sums.meetings = meetings;
  sums.group_inputs = static_cast<size_t>(args.group_inputs);
  sums.group_outputs = static_cast<size_t>(args.group_outputs);

  // What the tiles of one line after the other read, so many channels and positions of it, stays in L1.
  const RowTiles tiles(static_cast<size_t>(phase.count), kMostSums);
  const size_t line_bytes = sizeof(float) * static_cast<size_t>(w.kernel[0] * w.kernel[1]);
  const size_t reach = static_cast<size_t>((w.kernel[2] - 1) * w.dilation[2]);
  const auto piece_bytes = [&](size_t positions) {
    return line_bytes * (positions * static_cast<size_t>(w.stride[2]) + reach);
  };
  // Groups have more weights, which stay in L1 as well.
  const size_t fitting = kPieceBytes / piece_bytes(tiles.Height(0)) / (4 * lanes) * 4;
  const size_t most_weights = kWeightFloats / (num_taps * sums.group_inputs * lanes);
  const size_t most_channels = lanes * (kind == Lanes::kOwn ? std::max(fitting, size_t{4})
                                                            : std::max(std::min(fitting, most_weights), size_t{1}));
  const size_t pieces = (channels + most_channels - 1) / most_channels;
  const size_t piece = ((channels + pieces - 1) / pieces + lanes - 1) / lanes * lanes;
  const size_t terms = num_taps * sums.group_inputs;  // weights of an output channel
  const bool packs = terms >= kLeastPackedWeights && piece * terms <= kWeightFloats;
  sums.term = packs ? lanes : channels;
  sums.vector = packs ? terms * lanes : lanes;
  alignas(64) float packed[kWeightFloats];
  size_t strip_tiles = 1;
  while (strip_tiles < tiles.count && piece_bytes((strip_tiles + 1) * tiles.Height(0)) * piece <= kPieceBytes) {
    ++strip_tiles;
  }

  for (int64_t first = lines.begin; first < lines.end; first += most_lines) {
    const size_t count = static_cast<size_t>(std::min(first + most_lines, lines.end) - first);
    for (size_t i = 0; i < count; ++i) {
      const WindowPosition position(w, (first + static_cast<int64_t>(i)) * w.out[2]);
      counts[i] = FindTaps(w, position, phase, sums.group_inputs * sums.term, table + i * num_taps);
      images[i] = static_cast<ptrdiff_t>(position.batch * w.x_batch);
      const int64_t next = position.at[1] * w.stride[1] - w.padding[1] + (w.kernel[1] - 1) * w.dilation[1] + 1;
      next_lines[i] =
          std::max<int64_t>(w.At(0, position.at[0], 0), 0) * w.x_strides[0] + next / w.spread[1] * w.x_strides[1];
    }
    for (size_t channel = 0; channel < channels; channel += piece) {
      const size_t end = std::min(channel + piece, channels);
      if (packs) PackVectors(args, channel, end, packed);
      int64_t strip_begin = 0;
      for (size_t tile = 0; tile < tiles.count; tile += strip_tiles) {
        int64_t strip_end = strip_begin;
        for (size_t i = 0; i < count; ++i) {
          sums.taps = table + i * num_taps;
          sums.num_taps = counts[i];
          sums.next_line = next_lines[i];
          int64_t position = strip_begin;
          for (size_t t = tile; t < std::min(tile + strip_tiles, tiles.count); ++t) {
            const size_t height = tiles.Height(t);
            phase.Meet(position, static_cast<int64_t>(height), meetings);
            const int64_t begin = phase.at[0] + position * w.stride[2];
            const int64_t reaches = begin + (static_cast<int64_t>(height) - 1) * w.stride[2] + w.kernel[2];
            sums.before = static_cast<size_t>(std::max<int64_t>(-begin, 0));
            sums.after = static_cast<size_t>(std::max<int64_t>(reaches - w.in[2], 0));
            const int64_t row = (first + static_cast<int64_t>(i)) * w.out[2] + phase.first + position * w.spread[2];
            const auto run = [&](size_t c, size_t wide, bool whole) {
              sums.x = args.x + images[i] + position * static_cast<int64_t>(sums.x_step);
              sums.channel = c;
              sums.weight = packs ? packed + (c - channel) / lanes * sums.vector : args.weight + c;
              sums.bias = args.bias == nullptr ? nullptr : args.bias + c;
              sums.out = direct ? args.out + row * args.ldc + c : strip;
              sums.count = wide;
              SumsFor(height, kind, whole, columns)(sums);
              if (direct) return;
              FinishArgs to{};
              to.sums = strip;
              to.to = {args.out + row * args.ldc + c,
                       out_step,
                       args.residual == nullptr ? nullptr : args.residual + row * args.ldr + c,
                       static_cast<size_t>(w.spread[2] * args.ldr),
                       height,
                       wide};
              to.residual_first = args.residual_first;
              finish(to);
            };
            // Where a vector of inputs is not full, the next one's elements must not be read.
            const bool full = kind == Lanes::kOwn || kind == Lanes::kShared || KnownInputs(kind) > 0 ||
                              (kind == Lanes::kPermuted && args.group_inputs == args.group_outputs);
            const size_t whole = full ? channel + (end - channel) / lanes * lanes : channel;
            if (direct && whole > channel) {
              run(channel, whole - channel, true);
            } else {
              for (size_t c = channel; c < whole; c += lanes) run(c, lanes, true);
            }
            for (size_t c = whole; c < end; c += lanes) run(c, std::min(lanes, end - c), false);
            position += static_cast<int64_t>(height);
          }
          strip_end = position;
        }
        strip_begin = strip_end;
      }
    }
  }
}

void DepthwiseRange(const DepthwiseArgs& args, Range lines) {
  for (int64_t phase = 0; phase < std::min(args.windows.spread[2], args.windows.out[2]); ++phase) {
    RunPhase(args, lines, Phase(args.windows, phase));
  }
}

}  // namespace
}  // namespace thresher::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace thresher::kernels {
namespace {

HWY_EXPORT(DepthwiseRange);

}  // namespace

void Depthwise(const DepthwiseArgs& args, int part, int num_parts) {
  const Windows& w = args.windows;
  const Range lines = PartRange(args.batch * w.out[0] * w.out[1], part, num_parts);
  if (lines.size() > 0 && args.outputs > 0) HWY_DYNAMIC_DISPATCH(DepthwiseRange)(args, lines);
}

void DepthwiseReference(const DepthwiseArgs& args) {
  const Windows& w = args.windows;
  for (int64_t row = 0; row < args.batch * w.positions(); ++row) {
    const WindowPosition position(w, row);
    for (int64_t c = 0; c < args.outputs; ++c) {
      double sum = args.bias == nullptr ? 0.0 : args.bias[c];
      for (int64_t tap = 0; tap < w.taps(); ++tap) {
        int64_t rest = tap, offset = position.batch * w.x_batch + c / args.group_outputs * args.group_inputs;
        bool inside = true;
        for (int d = 2; d >= 0; --d) {
          const int64_t at = w.At(d, position.at[d], rest % w.kernel[d]);
          inside &= at >= 0;
          offset += at * w.x_strides[d];
          rest /= w.kernel[d];
        }
        for (int64_t i = 0; inside && i < args.group_inputs; ++i) {
          sum += static_cast<double>(args.x[offset + i]) *
                 static_cast<double>(args.weight[(tap * args.group_inputs + i) * args.outputs + c]);
        }
      }
      const double added = args.residual == nullptr ? 0.0 : args.residual[row * args.ldr + c];
      sum = args.residual_first ? ActivateReference(args.activation, sum + added)
                                : ActivateReference(args.activation, sum) + added;
      args.out[row * args.ldc + c] = static_cast<float>(sum);
    }
  }
}

}  // namespace thresher::kernels

#endif  // HWY_ONCE
