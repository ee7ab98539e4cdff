// Which sizes are tried to find one plan for many.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "thresher/plan/extent.h"
#include "thresher/profile/runtime_interval.h"
#include "thresher/run/compile.h"

namespace thresher {
namespace {

// Sizes less a few may follow other rules, too, where those are computed with.
constexpr int64_t kLeast = GraphFamily::kLeastSize;
constexpr int64_t kHigherLeast[] = {4, 8};
constexpr size_t kMostPlans = 80;  // that are made before the search is given up
constexpr int64_t kLevels = 3;     // values of a size that tell a polynomial of second degree

bool IsPrime(int64_t n) {
  for (int64_t d = 2; d * d <= n; ++d) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

// The largest prime up to n, if it is above `above`; else n. Sizes of a model are rarely prime, so that no two sizes of
// a sample are equal by chance and no structure is peculiar to it.
int64_t PrimeUpTo(int64_t n, int64_t above) {
  for (int64_t p = n; p > above; --p) {
    if (IsPrime(p)) return p;
  }
  return n;
}

// Values of a size from all over its range.
Dims BroadLevels(int64_t least, int64_t capacity, int64_t shift) {
  const int64_t high = PrimeUpTo(capacity - shift, least + 1);
  return {least, high, PrimeUpTo((least + high) / 2 + shift, least)};
}

// At most `count` values from around `seed`.
Dims NearLevels(int64_t least, int64_t capacity, int64_t seed, size_t count) {
  Dims levels;
  for (const int64_t more : {0, 1, -1, 2, -2}) {
    const int64_t size = seed + more;
    if (size >= least && size <= capacity && levels.size() < count) levels.push_back(size);
  }
  return levels;
}

// Where a plan is made, in order: a grid of three values a size and some more as a check, which are `wanted`; then, as
// few rows may be computed in another way than many, grids of values near the seed.
std::vector<Dims> Samples(const Dims& least, const Dims& seed, const Dims& capacity, size_t* wanted) {
  const size_t n = seed.size();
  std::vector<Dims> samples = {seed};
  const auto add = [&](Dims sizes) {
    for (size_t i = 0; i < n; ++i) {
      sizes[i] = std::clamp(sizes[i], least[i], capacity[i]);
      // Sizes that are equal by chance may look alike to a pass.
      const auto own = sizes.begin() + static_cast<std::ptrdiff_t>(i);
      while (std::find(sizes.begin(), own, *own) != own && *own < capacity[i]) ++*own;
    }
    if (std::find(samples.begin(), samples.end(), sizes) == samples.end()) samples.push_back(std::move(sizes));
  };
  const auto add_grid = [&](const std::vector<Dims>& levels) {
    std::vector<size_t> at(n, 0);
    while (true) {
      Dims sizes(n);
      for (size_t i = 0; i < n; ++i) sizes[i] = levels[i][at[i]];
      add(std::move(sizes));
      size_t v = 0;
      while (v < n && at[v] + 1 == levels[v].size()) at[v++] = 0;
      if (v == n) break;
      ++at[v];
    }
  };
  std::vector<Dims> broad(n), near(n);
  for (size_t i = 0; i < n; ++i) {
    broad[i] = BroadLevels(least[i], capacity[i], static_cast<int64_t>(i));
    near[i] = NearLevels(least[i], capacity[i], seed[i], n == 1 ? kLevels + 2 : kLevels);
  }
  add_grid(broad);
  for (size_t turn = 0; turn < n + 1; ++turn) {
    Dims sizes(n);
    for (size_t i = 0; i < n; ++i) {
      const int64_t span = capacity[i] - least[i];
      sizes[i] = least[i] + span * static_cast<int64_t>((turn + i) % 3 + 1) / 4 + 1;
    }
    add(std::move(sizes));
  }
  *wanted = samples.size();
  for (size_t i = 0; i < n; ++i) {
    std::vector<Dims> levels = broad;
    levels[i] = near[i];
    add_grid(levels);
  }
  if (n > 1) add_grid(near);
  return samples;
}

// The least sizes to try, one set after the other.
std::vector<Dims> LeastSizes(size_t n) {
  std::vector<Dims> sets = {Dims(n, kLeast)};
  for (const int64_t higher : kHigherLeast) {
    for (size_t i = 0; n > 1 && i < n; ++i) {
      sets.emplace_back(n, kLeast);
      sets.back()[i] = higher;
    }
    sets.emplace_back(n, higher);
  }
  return sets;
}

}  // namespace

Result<std::unique_ptr<Session>> CompileExtent(const GraphFamily& family, WeightStore& weights,
                                               const CompileOptions& options, const Dims& seed, const Dims& capacity) {
  const profile::RuntimeInterval interval(profile::kCompileGraphEvent, options.plan.name);
  const size_t n = family.names().size();
  if (seed.size() != n || capacity.size() != n) {
    return InvalidArgument("expected " + std::to_string(n) + " sizes, got " + std::to_string(seed.size()) + " and " +
                           std::to_string(capacity.size()));
  }
  CompileOptions own = options;
  own.plan.recorded = false;
  own.plan.cache.bytes = 0;  // how many lines there are follows from the sizes
  std::shared_ptr<TuningTable> tuning;
  if (options.plan.tuning != nullptr) {
    // A copy: what is measured later must not change how this plan computes.
    if (const std::vector<TunedProduct> entries = options.plan.tuning->Entries(); !entries.empty()) {
      tuning = std::make_shared<TuningTable>();
      THRESHER_TRY(tuning->Replace(entries));
    }
  }
  own.plan.tuning = tuning.get();
  std::map<Dims, CompiledPlan> made;  // without a plan where none can be made
  const auto make = [&](const Dims& sizes) -> const CompiledPlan& {
    const auto [at, added] = made.try_emplace(sizes);
    if (!added) return at->second;
    const Result<Graph> graph = family.At(sizes);
    if (!graph.ok()) return at->second;
    if (Result<CompiledPlan> compiled = CompilePlan(graph.value(), weights, own); compiled.ok()) {
      at->second = std::move(compiled).value();
    }
    own.dump = nullptr;  // the graph at `seed`, which comes first, stands for all
    return at->second;
  };
  const CompiledPlan& first = make(seed);
  if (first.plan == nullptr) return Unsupported("no plan can be made at the sizes of the call");
  Status status;
  for (const Dims& least : LeastSizes(n)) {
    bool possible = true;
    for (size_t i = 0; i < n; ++i) possible &= seed[i] >= least[i] && capacity[i] >= std::max(seed[i], least[i] + 4);
    if (!possible) continue;
    if (made.size() > kMostPlans) break;
    std::vector<ExtentSample> samples;
    std::vector<std::pair<Dims, Status>> others;
    size_t wanted;
    for (const Dims& sizes : Samples(least, seed, capacity, &wanted)) {
      if (samples.size() == wanted) break;
      const CompiledPlan& sample = make(sizes);
      const Status same =
          sample.plan == nullptr ? Unsupported("no plan can be made") : CheckSameStructure(*first.plan, *sample.plan);
      if (same.ok()) {
        samples.push_back({sizes, sample.plan});
      } else {
        others.emplace_back(sizes, same);
      }
    }
    Result<std::shared_ptr<Plan>> found =
        FitPlan(family.names(), least, capacity, samples, tuning, options.plan.share_memory);
    status = found.status();
    if (!found.ok()) {
      if (!others.empty()) status = others.front().second;
      continue;
    }
    const std::shared_ptr<Plan> plan = std::move(found).value();
    // Sizes at which plans look different must be refused.
    for (const auto& [sizes, reason] : others) {
      if (status.ok() && CheckSizes(*plan, sizes).ok()) status = reason;
    }
    if (!status.ok()) continue;
    plan->recorded = options.plan.recorded;
    if (plan->recorded) AssignSites(*plan);
    return Session::Create(options.device, plan, weights, first.decisions, options.graphs);
  }
  if (status.ok()) return InvalidArgument("the sizes of the call are too small for a plan for many");
  return status;
}

}  // namespace thresher
