#include "thresher/plan/weight_store.h"

#include <new>

#include "thresher/base/isa.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/weight_error.h"

namespace thresher {
namespace {

constexpr std::align_val_t kPackAlignment{64};

}  // namespace

WeightStore::Packed WeightStore::GetPacked(const Constant& constant, int64_t k, int64_t n, bool transposed) {
  const std::lock_guard lock(mutex_);
  const Key key{constant.data, k, n, transposed, std::string(isa::Name(isa::Current()))};
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second.packed;
  const int64_t bytes = kernels::PackedSize(k, n) * static_cast<int64_t>(sizeof(float));
  float* data = static_cast<float*>(::operator new(static_cast<size_t>(bytes), kPackAlignment));
  std::shared_ptr<const void> owner(data, [](void* p) { ::operator delete(p, kPackAlignment); });
  kernels::PackB(static_cast<const float*>(constant.data), k, n, transposed ? 1 : n, transposed ? k : 1, data);
  const Packed packed{std::move(owner), data, bytes};
  entries_.emplace(key, Entry{packed, constant.owner});
  return packed;
}

WeightError WeightStore::GetError(const Constant& constant, int64_t k, int64_t n, bool transposed,
                                  Precision precision) {
  const std::lock_guard lock(mutex_);
  const ErrorKey key{constant.data, k, n, transposed, precision};
  const auto found = errors_.find(key);
  if (found != errors_.end()) return found->second.error;
  const WeightError error =
      kernels::MeasureWeightError(static_cast<const float*>(constant.data), k, n, transposed, precision);
  errors_.emplace(key, ErrorEntry{error, constant.owner});
  return error;
}

int64_t WeightStore::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const auto& [key, entry] : entries_) total += entry.packed.bytes;
  return total;
}

}  // namespace thresher
