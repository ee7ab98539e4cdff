#include "thresher/plan/bands.h"

#include <optional>
#include <ranges>
#include <utility>

#include "thresher/base/cpu.h"
#include "thresher/base/rounds.h"
#include "thresher/kernels/gemm.h"
#include "thresher/plan/memory_planner.h"
#include "thresher/plan/plan.h"
#include "thresher/plan/uses.h"

namespace thresher {
namespace {

// Of a thread's second cache, what a band may take. Measured on an Intel Xeon with 2 MiB (docs/performance.md): 0.3 to
// 0.7 is as good.
constexpr double kShareOfBand = 0.4;
// A core computes two vectors a cycle so fast, for each of their columns.
constexpr double kFlopsPerNsOfColumn = 5.5;
// Of the time that reading a result takes, at least so much is not hidden behind what is computed with it.
constexpr double kLeastExposed = 0.25;

// Whether rows follow one another from the begin on, gaps behind each of them or not.
bool InRows(const TensorRef& ref) {
  const View& v = ref.view;
  const bool gaps = v.rank == 2 && v.strides[1] == 1 && v.strides[0] >= v.shape[1];
  return ref.offset == 0 && (gaps || v.contiguous());
}

// Finds bands in a plan, whose uses of buffers are known.
class Finder {
 public:
  Finder(Plan& plan, const NearCache& cache)
      : plan_(plan), cache_(cache), uses_(UsesOf(plan)), lines_(plan.steps.size()) {
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      const Step& step = plan.steps[s];
      const auto inputs = static_cast<size_t>(step.num_inputs);
      const auto results = std::count_if(step.operands.begin() + step.num_inputs, step.operands.end(),
                                         [](const TensorRef& ref) { return ref.buffer >= 0; });
      const bool one = results == 1 && step.operands[inputs].buffer >= 0;
      const bool small = step.operands.size() <= Bands::kMostOperands && step.params_type->bytes <= Bands::kMostParams;
      StepLines lines;
      if (one && small && plan.target->LinesOf(step, lines)) lines_[s] = lines;
    }
  }

  // Steps may be joined in many ways: takes what gains most in all.
  void Find() {
    std::vector<Best> best(plan_.steps.size() + 1);
    for (size_t end = 1; end < best.size(); ++end) {
      best[end].gain = best[end - 1].gain;
      if (lines_[end - 1].positions == 0 || lines_[end - 1].result_inside) continue;
      for (size_t first = end - 1;
           first > 0 && end - first < Bands::kMostSteps && lines_[first - 1].positions > 0 && Leaves(first - 1);) {
        --first;
        Best found = Try(first, end);
        found.gain += best[first].gain;
        if (found.last && found.gain > best[end].gain) best[end] = std::move(found);
      }
    }
    for (size_t end = plan_.steps.size(); end > 0;) {
      std::optional<Bands>& last = best[end].last;
      if (!last) {
        --end;
        continue;
      }
      Bands& bands = *last;
      for (size_t i = 0; i + 1 < bands.steps.size(); ++i) {
        plan_.buffers[ResultOf(bands.first + i)].kind = Buffer::Kind::kBand;
      }
      plan_.steps[bands.first].parts = static_cast<int>(bands.count());
      end = bands.first;
      plan_.bands.insert(plan_.bands.begin(), std::move(bands));
    }
  }

 private:
  // What bands of the first steps gain, in nanoseconds, and the last of them.
  struct Best {
    double gain = 0;
    std::optional<Bands> last = std::nullopt;  // none: the last step is in no band
  };

  const TensorRef& Result(size_t s) const {
    return plan_.steps[s].operands[static_cast<size_t>(plan_.steps[s].num_inputs)];
  }
  size_t ResultOf(size_t s) const { return static_cast<size_t>(Result(s).buffer); }

  // Whether the next step is the one reader of the result of step s, which is too large to wait for it.
  bool Leaves(size_t s) const {
    const TensorRef& result = Result(s);
    if (s + 1 == plan_.steps.size() || result.buffer < 0) return false;
    const Buffer& buffer = plan_.buffers[ResultOf(s)];
    const Uses& uses = uses_[ResultOf(s)];
    const bool between = buffer.kind == Buffer::Kind::kArena && uses.writers == std::vector<size_t>{s} &&
                         uses.readers == std::vector<size_t>{s + 1};
    if (!between) return false;
    const Step& next = plan_.steps[s + 1];
    const TensorRef& x = next.operands[0];
    const auto reads = std::count_if(next.operands.begin(), next.operands.end(),
                                     [&](const TensorRef& ref) { return ref.buffer == result.buffer; });
    const bool whole = InRows(result) && x.buffer == result.buffer && InRows(x) && reads == 1;
    return whole && static_cast<double>(buffer.bytes) / plan_.num_threads >
                        cache_.share_of_result * static_cast<double>(cache_.bytes);
  }

  // The lines of steps [first, end), if they fit each other.
  std::optional<Bands> Join(size_t first, size_t end) const {
    if (lines_[first].x_inside) return std::nullopt;
    Bands bands;
    bands.first = first;
    size_t known = end;
    for (size_t s = first; s < end; ++s) {
      bands.steps.push_back({lines_[s]});
      if (lines_[s].pictures > 0 && known == end) known = s;
    }
    if (known == end) {  // they all take rows
      StepLines& rows = bands.steps[0].lines;
      rows.pictures = 1;
      rows.lines = rows.x_lines = rows.positions;
      rows.positions = 1;
      known = first;
    }
    const auto spread = [&](BandedStep& step, int64_t pictures, int64_t lines) {
      StepLines& rows = step.lines;
      if (rows.pictures > 0) return rows.pictures == pictures;
      if (rows.positions % (pictures * lines) != 0) return false;
      rows.pictures = pictures;
      rows.lines = rows.x_lines = lines;
      rows.positions /= pictures * lines;
      for (int64_t* const line : {&rows.x_line, &rows.added_line, &rows.line}) *line *= rows.positions;
      rows.x_picture = rows.x_line * lines;
      return true;
    };
    for (size_t i = known - first; i > 0; --i) {
      const StepLines& next = bands.steps[i].lines;
      if (!spread(bands.steps[i - 1], next.pictures, next.x_lines)) return std::nullopt;
    }
    for (size_t i = 1; i < bands.steps.size(); ++i) {
      const StepLines& before = bands.steps[i - 1].lines;
      if (!spread(bands.steps[i], before.pictures, before.lines)) return std::nullopt;
      const StepLines& step = bands.steps[i].lines;
      if (step.x_lines != before.lines || step.x_line != before.line) return std::nullopt;
    }
    for (const auto& [step, place] : bands.steps) {
      const bool reads = step.padding < step.reach && (step.lines - 1) * step.stride - step.padding < step.x_lines;
      if (!reads) return std::nullopt;  // a line that lies in the padding
    }
    return bands;
  }

  // The bytes of weights, which every band reads.
  int64_t WeightsOf(const Bands& bands) const {
    int64_t bytes = 0;
    for (size_t s = bands.first; s < bands.end(); ++s) {
      for (const TensorRef& ref : plan_.steps[s].operands) {
        if (ref.buffer < 0) continue;
        const Buffer& buffer = plan_.buffers[static_cast<size_t>(ref.buffer)];
        if (buffer.kind == Buffer::Kind::kConstant) bytes += buffer.bytes;
      }
    }
    return bytes;
  }

  // Of what step s computes.
  double Ns(size_t s) const {
    const double flops_per_ns = kFlopsPerNsOfColumn * static_cast<double>(kernels::PackedColumns());
    return std::max(plan_.steps[s].flops, 0.0) / (flops_per_ns * lines_[s].speed);
  }

  // Cuts pictures into so many bands, and gives each step's result its place. Returns the nanoseconds that bands
  // compute more than pictures.
  double Cut(Bands& bands, int64_t in_picture) const {
    const int64_t lines = bands.steps.back().lines.lines;
    bands.lines = (lines + in_picture - 1) / in_picture;
    bands.in_picture = (lines + bands.lines - 1) / bands.lines;
    std::vector<LineRange> ranges(bands.steps.size());
    std::vector<int64_t> most(bands.steps.size(), 0), all(bands.steps.size(), 0);
    for (int64_t band = 0; band < bands.in_picture; ++band) {
      bands.Ranges(band, ranges.data());
      for (size_t i = 0; i < ranges.size(); ++i) {
        most[i] = std::max(most[i], ranges[i].size());
        all[i] += ranges[i].size();
      }
    }
    bands.kernel_bytes = 0;
    double more = 0;
    for (size_t i = 0; i < bands.steps.size(); ++i) {
      const Step& step = plan_.steps[bands.first + i];
      bands.kernel_bytes = std::max(bands.kernel_bytes, AlignUp(static_cast<int64_t>(step.scratch_bytes)));
      const double share = static_cast<double>(all[i]) / static_cast<double>(bands.steps[i].lines.lines);
      more += Ns(bands.first + i) * (share - 1);
    }
    bands.bytes = bands.kernel_bytes;
    for (size_t i = 0; i + 1 < bands.steps.size(); ++i) {
      bands.steps[i].place = bands.bytes;
      bands.bytes += AlignUp(most[i] * bands.steps[i].lines.line);
    }
    return more;
  }

  // Bands of steps [first, end), if they gain anything.
  Best Try(size_t first, size_t end) const {
    std::optional<Bands> bands = Join(first, end);
    if (!bands) return {};
    const double room = kShareOfBand * static_cast<double>(cache_.bytes) - static_cast<double>(WeightsOf(*bands));
    if (room <= 0) return {};
    const StepLines& last = bands->steps.back().lines;
    double saved = 0;
    for (size_t s = first; s + 1 < end; ++s) {
      const double reading = static_cast<double>(plan_.buffers[ResultOf(s)].bytes) / cache_.far_bytes_per_ns;
      saved += std::max(reading - Ns(s + 1), kLeastExposed * reading);
    }
    // More bands want less memory and compute more twice.
    const auto too_few = [&](int64_t in_picture) {
      Cut(*bands, in_picture);
      return static_cast<double>(bands->bytes - bands->kernel_bytes) > room;
    };
    const auto counts = std::views::iota(int64_t{1}, last.lines + 1);
    auto in_picture = std::ranges::partition_point(counts, too_few);
    while (in_picture != counts.end() && *in_picture * last.pictures % plan_.num_threads != 0) ++in_picture;
    if (in_picture == counts.end()) return {};
    const double more = Cut(*bands, *in_picture);
    const double gain = saved - cache_.price * more;
    if (bands->count() > Rounds::kMostParts || gain <= 0) return {};
    return {gain, std::move(bands)};
  }

  Plan& plan_;
  const NearCache cache_;
  const std::vector<Uses> uses_;
  std::vector<StepLines> lines_;  // per step; without positions: it cannot be cut
};

}  // namespace

NearCache NearCache::OfCore() {
  // Intel's were measured beside others that compute (Xeon: 17 GB/s); where nothing was, as there. A core of AMD reads
  // 60 to 120 GB/s of its third cache (Zen 5), which fewer bands pay for.
  NearCache cache = {.bytes = Caches().l2};
#if defined(__x86_64__)
  if (!IsIntel()) cache = {.bytes = cache.bytes, .share_of_result = 0.5, .far_bytes_per_ns = 60, .price = 1};
#endif
  return cache;
}

void FindBands(Plan& plan, const NearCache& cache) { Finder(plan, cache).Find(); }

std::vector<StepRange> RoundsOf(const Plan& plan) {
  std::vector<StepRange> rounds;
  auto bands = plan.bands.begin();
  for (size_t s = 0; s < plan.steps.size(); s = rounds.back().end) {
    if (bands != plan.bands.end() && bands->first == s) {
      rounds.push_back({s, bands->end(), &*bands});
      ++bands;
    } else {
      rounds.push_back({s, s + 1});
    }
  }
  return rounds;
}

std::vector<bool> BandedSteps(const Plan& plan) {
  std::vector<bool> banded(plan.steps.size(), false);
  for (const Bands& bands : plan.bands) {
    std::fill_n(banded.begin() + static_cast<std::ptrdiff_t>(bands.first), bands.steps.size(), true);
  }
  return banded;
}

}  // namespace thresher
