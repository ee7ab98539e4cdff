// What measuring found to be the fastest blocking of products, by shape.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "thresher/base/fork_mutex.h"
#include "thresher/base/isa.h"
#include "thresher/base/precision.h"
#include "thresher/base/status.h"
#include "thresher/kernels/blocking.h"

namespace thresher {

// A product of m rows with a k x n matrix of weights.
struct ProductKey {
  isa::Isa isa = isa::Isa::kSse2;
  Precision precision = Precision::kFp32;
  int64_t n = 0;
  int64_t k = 0;
  int num_threads = 1;
  int64_t m = 0;

  // Those that differ in m only are neighbours.
  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

struct TunedProduct {
  ProductKey key;
  kernels::Blocking blocking;
};

// Thread safe.
class TuningTable {
 public:
  // Errors: a blocking out of bounds, a size below 1; then nothing changes.
  Status Replace(const std::vector<TunedProduct>& products);

  std::vector<TunedProduct> Entries() const;

  // What was measured for this product; else for the nearest number of rows that is at most twice as many or half as
  // many, the rest being equal.
  std::optional<TunedProduct> Find(const ProductKey& key) const;

  // The one that the plans of this process use.
  static TuningTable& Global();

 private:
  mutable ForkMutex mutex_{LockRank::kTuning};
  std::map<ProductKey, kernels::Blocking> blockings_;
};

}  // namespace thresher
