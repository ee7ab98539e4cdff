#include "thresher/plan/weight_store.h"

#include <cstddef>
#include <mutex>
#include <utility>

#include "thresher/base/isa.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/weight_error.h"

namespace thresher {

WeightStore::Identity WeightStore::IdentityOf(const Matrix& matrix, int64_t k) {
  const Constant& constant = matrix.constant;
  if (constant.is_weight) return {constant.data, Digest{}, matrix.encoding};
  const auto bytes = static_cast<size_t>(EncodedBytes(matrix.encoding, k * matrix.n));
  return {nullptr, HashBytes(constant.data, bytes), matrix.encoding};
}

WeightStore::Packed WeightStore::GetPacked(std::span<const Matrix> matrices, int64_t k, bool transposed,
                                           Precision precision) {
  Key key{{}, k, transposed, precision, std::string(isa::Name(isa::Current()))};
  int64_t bytes = 0;
  for (const Matrix& matrix : matrices) {
    std::get<0>(key).emplace_back(IdentityOf(matrix, k), matrix.n);
    bytes += kernels::PackedBytes(precision, k, matrix.n);
  }
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end()) return found->second.packed;
  std::shared_ptr<void> owner = memory_.Allocate(bytes);
  auto* data = static_cast<std::byte*>(owner.get());
  Entry entry;
  entry.packed = {std::move(owner), data, bytes};
  for (const Matrix& matrix : matrices) {
    const int64_t n = matrix.n;
    kernels::PackWeight(precision, DenseWeight(matrix.constant.data, k, n, transposed, matrix.encoding), data);
    data += kernels::PackedBytes(precision, k, n);
    if (matrix.constant.is_weight) entry.sources.push_back(matrix.constant.owner);
  }
  return entries_.emplace(std::move(key), std::move(entry)).first->second.packed;
}

WeightError WeightStore::GetError(const Matrix& matrix, int64_t k, bool transposed, Precision precision) {
  const Constant& constant = matrix.constant;
  const ErrorKey key{IdentityOf(matrix, k), k, matrix.n, transposed, precision};
  const std::lock_guard lock(mutex_);
  const auto found = errors_.find(key);
  if (found != errors_.end()) return found->second.error;
  const Weight weight = DenseWeight(constant.data, k, matrix.n, transposed, matrix.encoding);
  const WeightError error = kernels::MeasureWeightError(weight, precision);
  errors_.emplace(key, ErrorEntry{error, constant.is_weight ? constant.owner : nullptr});
  return error;
}

int64_t WeightStore::bytes() const {
  const std::lock_guard lock(mutex_);
  int64_t total = 0;
  for (const auto& [key, entry] : entries_) total += entry.packed.bytes;
  return total;
}

}  // namespace thresher
