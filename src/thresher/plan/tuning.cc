#include "thresher/plan/tuning.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace thresher {
namespace {

// How many times as many rows a product was measured with, or the inverse.
double Distance(int64_t m, int64_t other) {
  return static_cast<double>(std::max(m, other)) / static_cast<double>(std::max<int64_t>(std::min(m, other), 1));
}

constexpr double kFarthest = 2;

}  // namespace

Status TuningTable::Replace(const std::vector<TunedProduct>& products) {
  std::map<ProductKey, kernels::Blocking> blockings;
  for (const TunedProduct& product : products) {
    const ProductKey& key = product.key;
    if (key.m < 1 || key.n < 1 || key.k < 1 || key.num_threads < 1) {
      return InvalidArgument("a tuned product: expected m, n, k and num_threads of at least 1, got " +
                             std::to_string(key.m) + ", " + std::to_string(key.n) + ", " + std::to_string(key.k) +
                             " and " + std::to_string(key.num_threads));
    }
    THRESHER_TRY(kernels::CheckBlocking(product.blocking));
    blockings[key] = product.blocking;
  }
  const std::lock_guard lock(mutex_);
  blockings_ = std::move(blockings);
  return Status::Ok();
}

std::vector<TunedProduct> TuningTable::Entries() const {
  const std::lock_guard lock(mutex_);
  std::vector<TunedProduct> entries;
  entries.reserve(blockings_.size());
  for (const auto& [key, blocking] : blockings_) entries.push_back({key, blocking});
  return entries;
}

std::optional<TunedProduct> TuningTable::Find(const ProductKey& key) const {
  const std::lock_guard lock(mutex_);
  const auto at = blockings_.lower_bound(key);
  std::optional<TunedProduct> found;
  double nearest = kFarthest;
  const auto consider = [&](const std::pair<const ProductKey, kernels::Blocking>& entry) {
    ProductKey same = entry.first;
    same.m = key.m;
    const double distance = Distance(key.m, entry.first.m);
    if (same != key || distance > nearest) return;
    nearest = distance;
    found = TunedProduct{entry.first, entry.second};
  };
  // The last one wins a tie: the smaller number of rows, whose blocks are sure to fit.
  if (at != blockings_.end()) consider(*at);
  if (at != blockings_.begin() && nearest > 1) consider(*std::prev(at));
  return found;
}

TuningTable& TuningTable::Global() {
  static TuningTable table;
  return table;
}

}  // namespace thresher
