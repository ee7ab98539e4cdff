#include "thresher/plan/weight_store.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "thresher/base/function_ref.h"
#include "thresher/base/half.h"
#include "thresher/base/isa.h"
#include "thresher/base/thread_pool.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/weight_error.h"

namespace thresher {
namespace {

// A share of less than so many bytes is not worth waking a thread for.
constexpr int64_t kLeastShare = int64_t{128} << 10;

void RunParts(int64_t bytes, int num_threads, FunctionRef<void(int part, int num_parts)> work) {
  const int64_t most = std::clamp<int64_t>(bytes / kLeastShare, 1, std::max(num_threads, 1));
  ThreadPool::Global().Run(work, static_cast<int>(most));
}

// Column j of the matrix as a row in the encoding; `numbers` has room for it.
Status StoreRow(const Weight& weight, int64_t j, Encoding encoding, int64_t group, std::vector<float>& numbers,
                std::byte* to) {
  const auto size = static_cast<int64_t>(numbers.size());
  const bool dense = weight.stride_k == 1 && (weight.taps == 1 || weight.stride_tap * weight.taps == weight.k);
  if (dense && encoding == weight.encoding) {
    std::memcpy(to, weight.At(0, j), static_cast<size_t>(EncodedBytes(encoding, size)));
    return Status::Ok();
  }
  if (dense) {
    kernels::DecodeNumbers(weight.encoding, weight.At(0, j), size, numbers.data());
  } else {
    for (int64_t i = 0; i < size; ++i) {
      kernels::DecodeNumbers(weight.encoding, weight.At(i, j), 1, &numbers[static_cast<size_t>(i)]);
    }
  }
  if (IsBlocked(encoding)) return kernels::EncodeNumbers(encoding, numbers.data(), size, group, to);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (encoding == Encoding::kF32) reinterpret_cast<float*>(to)[i] = numbers[i];
    if (encoding == Encoding::kBf16) reinterpret_cast<BF16*>(to)[i] = ToBF16(numbers[i]);
    if (encoding == Encoding::kF16) reinterpret_cast<F16*>(to)[i] = ToF16(numbers[i]);
  }
  return Status::Ok();
}

}  // namespace

WeightStore::Identity WeightStore::IdentityOf(const Matrix& matrix, int64_t k) {
  const Constant& constant = matrix.constant;
  if (constant.is_weight) return {constant.data, Digest{}, matrix.encoding};
  const auto bytes = static_cast<size_t>(EncodedBytes(matrix.encoding, k * matrix.n));
  return {nullptr, HashBytes(constant.data, bytes), matrix.encoding};
}

Result<WeightStore::Packed> WeightStore::GetPacked(std::span<const Matrix> matrices, int64_t k, bool transposed,
                                                   Precision precision, int num_threads) {
  Key key{{}, k, transposed, precision, std::string(isa::Name(isa::Current()))};
  for (const Matrix& matrix : matrices) std::get<0>(key).emplace_back(IdentityOf(matrix, k), matrix.n);
  const auto pack = [&]() -> Result<Entry> {
    Entry entry;
    for (const Matrix& matrix : matrices) {
      if (matrix.constant.is_weight) entry.sources.push_back(matrix.constant.owner);
    }
    if (named_) {
      THRESHER_ASSIGN(entry.name, NameOf(matrices, key));
      int64_t bytes = 0;
      for (const Matrix& matrix : matrices) bytes += kernels::PackedBytes(precision, k, matrix.n);
      if (const std::optional<Packed> found = FindPart(*entry.name, bytes)) {
        entry.packed = *found;
        entry.given = true;
        return entry;
      }
    }
    std::vector<Weight> weights;
    std::vector<std::shared_ptr<const void>> held;
    for (const Matrix& matrix : matrices) {
      THRESHER_ASSIGN(held.emplace_back(), Hold(matrix.constant));
      weights.push_back(DenseWeight(matrix.constant.data, k, matrix.n, transposed, matrix.encoding));
    }
    entry.packed = Pack(weights, precision, num_threads);
    return entry;
  };
  THRESHER_ASSIGN(const Entry entry, entries_.Get(key, pack));
  return entry.packed;
}

Result<Digest> WeightStore::NameOf(std::span<const Matrix> matrices, const Key& key) const {
  const auto& [identities, k, transposed, precision, isa] = key;
  std::string text = std::to_string(k) + (transposed ? " transposed " : " ") + std::string(Name(precision)) + " " + isa;
  for (const Matrix& matrix : matrices) {
    const auto* const data = static_cast<const std::byte*>(matrix.constant.data);
    const int64_t bytes = EncodedBytes(matrix.encoding, k * matrix.n);
    text += "; " + std::to_string(matrix.n) + " " + std::string(Name(matrix.encoding)) + " ";
    {
      const std::lock_guard lock(mutex_);
      // The last that begins at or before the matrix.
      auto source = sources_.upper_bound(data);
      if (source != sources_.begin() && data + bytes <= std::prev(source)->first + std::prev(source)->second.bytes) {
        --source;
        text += ToHex(source->second.digest) + " " + std::to_string(data - source->first);
        continue;
      }
    }
    THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(matrix.constant));
    text += ToHex(HashBytes(data, static_cast<size_t>(bytes)));
  }
  return HashBytes(text.data(), text.size());
}

std::optional<WeightStore::Packed> WeightStore::FindPart(const Digest& name, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto found = parts_.find(name);
  if (found == parts_.end() || found->second.bytes != bytes) return std::nullopt;
  return found->second;
}

void WeightStore::AddSource(const void* host, int64_t bytes, const Digest& digest, std::shared_ptr<const void> owner) {
  const std::lock_guard lock(mutex_);
  sources_[static_cast<const std::byte*>(host)] = {bytes, digest, std::move(owner)};
}

void WeightStore::AddPart(const Digest& name, const Packed& packed) {
  const std::lock_guard lock(mutex_);
  parts_[name] = packed;
}

std::vector<WeightStore::Part> WeightStore::parts() const {
  std::vector<Part> found;
  entries_.ForEach([&](const Entry& entry) {
    if (entry.name) found.push_back({*entry.name, entry.packed, entry.given});
  });
  return found;
}

template <class Make>
Result<WeightStore::Packed> WeightStore::GetParts(const Value& value, std::span<const int64_t> offsets, Weight layout,
                                                  Precision precision, std::string text, Make&& make) {
  layout.encoding = StoredAs(value);
  for (const int64_t number :
       {layout.stride_k, layout.stride_n, layout.taps, layout.stride_tap, WinogradMatrices(layout.winograd)}) {
    text += " " + std::to_string(number);
  }
  const Matrix whole{value.constant, NumElements(value.shape), layout.encoding};
  Key key{{{IdentityOf(whole, 1), layout.n}}, layout.k, false, precision, text};
  for (const int64_t offset : offsets) std::get<0>(key).emplace_back(Identity{}, offset);
  const auto make_entry = [&]() -> Result<Entry> {
    THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(value.constant));
    std::vector<Weight> weights;
    for (const int64_t offset : offsets) {
      layout.data = static_cast<const std::byte*>(value.constant.data) + EncodedBytes(layout.encoding, offset);
      weights.push_back(layout);
    }
    Entry entry;
    THRESHER_ASSIGN(entry.packed, make(weights));
    if (value.constant.is_weight) entry.sources.push_back(value.constant.owner);
    return entry;
  };
  THRESHER_ASSIGN(const Entry entry, entries_.Get(key, make_entry));
  return entry.packed;
}

Result<WeightStore::Packed> WeightStore::GetPackedParts(const Value& value, std::span<const int64_t> offsets,
                                                        Weight layout, Precision precision, int num_threads) {
  return GetParts(
      value, offsets, layout, precision,
      std::string(isa::Name(isa::Current())) + " " + std::string(Name(layout.rounding)),
      [&](std::span<const Weight> weights) -> Result<Packed> { return Pack(weights, precision, num_threads); });
}

WeightStore::Packed WeightStore::Pack(std::span<const Weight> weights, Precision precision, int num_threads) {
  int64_t panels = 0, bytes = 0, source_bytes = 0;
  for (const Weight& weight : weights) {
    panels += kernels::PackedPanels(weight.n);
    bytes += kernels::PackedBytes(precision, weight.k, weight.n);
    source_bytes += EncodedBytes(weight.encoding, weight.k * weight.n);
  }
  const std::shared_ptr<void> memory = [&] {
    const std::lock_guard lock(mutex_);
    return memory_.Allocate(bytes);
  }();
  auto* const data = static_cast<std::byte*>(memory.get());
  RunParts(source_bytes + bytes, num_threads, [&](int part, int num_parts) {
    const int64_t begin = panels * part / num_parts, end = panels * (part + 1) / num_parts;
    int64_t first = 0;
    std::byte* to = data;
    for (const Weight& weight : weights) {
      const int64_t count = kernels::PackedPanels(weight.n);
      kernels::PackPanels(precision, weight, to, std::clamp<int64_t>(begin - first, 0, count),
                          std::clamp<int64_t>(end - first, 0, count));
      to += kernels::PackedBytes(precision, weight.k, weight.n);
      first += count;
    }
  });
  return {memory, data, bytes};
}

Result<WeightStore::Packed> WeightStore::GetRows(std::span<const Matrix> matrices, int64_t k, bool transposed,
                                                 Encoding encoding, int64_t group, int num_threads) {
  Key key{{}, k, transposed, StoredPrecision(encoding), "rows of " + std::to_string(group)};
  for (const Matrix& matrix : matrices) std::get<0>(key).emplace_back(IdentityOf(matrix, k), matrix.n);
  const auto join = [&]() -> Result<Entry> {
    std::vector<Weight> weights;
    std::vector<std::shared_ptr<const void>> held;
    for (const Matrix& matrix : matrices) {
      THRESHER_ASSIGN(held.emplace_back(), Hold(matrix.constant));
      weights.push_back(DenseWeight(matrix.constant.data, k, matrix.n, transposed, matrix.encoding));
    }
    Entry entry;
    THRESHER_ASSIGN(entry.packed, StoreRows(weights, encoding, group, k, num_threads));
    for (const Matrix& matrix : matrices) {
      if (matrix.constant.is_weight) entry.sources.push_back(matrix.constant.owner);
    }
    return entry;
  };
  THRESHER_ASSIGN(const Entry entry, entries_.Get(key, join));
  return entry.packed;
}

Result<WeightStore::Packed> WeightStore::GetRowsOfParts(const Value& value, std::span<const int64_t> offsets,
                                                        Weight layout, Encoding encoding, int64_t row_numbers,
                                                        int num_threads) {
  return GetParts(
      value, offsets, layout, StoredPrecision(encoding), "rows of " + std::to_string(row_numbers),
      [&](std::span<const Weight> weights) { return StoreRows(weights, encoding, 0, row_numbers, num_threads); });
}

Result<WeightStore::Packed> WeightStore::StoreRows(std::span<const Weight> weights, Encoding encoding, int64_t group,
                                                   int64_t row_numbers, int num_threads) {
  int64_t n = 0, source_bytes = 0;
  for (const Weight& weight : weights) {
    n += weight.n;
    source_bytes += EncodedBytes(weight.encoding, weight.k * weight.n);
  }
  const int64_t row_bytes = EncodedBytes(encoding, row_numbers);
  const std::shared_ptr<void> memory = [&] {
    const std::lock_guard lock(mutex_);
    return memory_.Allocate(n * row_bytes);
  }();
  auto* const data = static_cast<std::byte*>(memory.get());
  std::mutex failure;
  Status status;
  RunParts(source_bytes + n * row_bytes, num_threads, [&](int part, int num_parts) {
    std::byte* first = data;
    for (const Weight& weight : weights) {
      std::vector<float> numbers(static_cast<size_t>(weight.k));
      const int64_t used = EncodedBytes(encoding, weight.k);
      for (int64_t j = weight.n * part / num_parts; j < weight.n * (part + 1) / num_parts; ++j) {
        std::byte* const row = first + j * row_bytes;
        std::fill(row + used, row + row_bytes, std::byte{0});
        Status stored = StoreRow(weight, j, encoding, group, numbers, row);
        if (stored.ok()) continue;
        const std::lock_guard lock(failure);
        status = std::move(stored);
        return;
      }
      first += weight.n * row_bytes;
    }
  });
  THRESHER_TRY(status);
  return Packed{memory, data, n * row_bytes};
}

Result<WeightError> WeightStore::GetError(const Matrix& matrix, int64_t k, bool transposed, Precision precision,
                                          int num_threads) {
  const ErrorKey key{IdentityOf(matrix, k), k, matrix.n, transposed, precision};
  const auto measure = [&]() -> Result<ErrorEntry> {
    THRESHER_ASSIGN(const std::shared_ptr<const void> held, Hold(matrix.constant));
    const Weight weight = DenseWeight(matrix.constant.data, k, matrix.n, transposed, matrix.encoding);
    std::vector<kernels::WeightErrorSums> sums(static_cast<size_t>(std::max(num_threads, 1)));
    RunParts(EncodedBytes(matrix.encoding, k * matrix.n), num_threads, [&](int part, int num_parts) {
      sums[static_cast<size_t>(part)] = kernels::SumWeightError(weight, precision, part, num_parts);
    });
    kernels::WeightErrorSums total;
    for (const kernels::WeightErrorSums& part : sums) total += part;
    return ErrorEntry{total.Relative(), matrix.constant.is_weight ? matrix.constant.owner : nullptr};
  };
  THRESHER_ASSIGN(const ErrorEntry entry, errors_.Get(key, measure));
  return entry.error;
}

Result<std::shared_ptr<const void>> WeightStore::GetPlaced(const Buffer& constant, const void* device,
                                                           FunctionRef<Result<std::shared_ptr<const void>>()> copy) {
  const auto* const data = static_cast<const std::byte*>(constant.data);
  {
    const std::lock_guard lock(mutex_);
    // The last that begins at or before the constant.
    auto found = given_.upper_bound({device, data});
    const bool first = found == given_.begin();
    if (!first) --found;
    if (!first && found->first.first == device) {
      const auto offset = data - found->first.second;
      if (offset + constant.bytes <= found->second.bytes) {
        const auto* const placed = static_cast<const std::byte*>(found->second.memory.get());
        return std::shared_ptr<const void>(found->second.memory, placed + offset);
      }
    }
  }
  const bool weight = constant.origin == Buffer::Origin::kCaller;
  const PlacedKey key{device, weight ? constant.data : nullptr,
                      weight ? Digest{} : HashBytes(constant.data, static_cast<size_t>(constant.bytes)),
                      constant.bytes};
  const auto place = [&]() -> Result<PlacedEntry> {
    THRESHER_ASSIGN(std::shared_ptr<const void> memory, copy());
    return PlacedEntry{std::move(memory), weight ? constant.owner : nullptr};
  };
  THRESHER_ASSIGN(const PlacedEntry entry, placed_.Get(key, place));
  return entry.memory;
}

void WeightStore::AddPlaced(const void* device, const void* host, int64_t bytes, std::shared_ptr<const void> placed) {
  const std::lock_guard lock(mutex_);
  given_[{device, static_cast<const std::byte*>(host)}] = {bytes, std::move(placed)};
}

int64_t WeightStore::bytes() const {
  int64_t total = 0;
  entries_.ForEach([&](const Entry& entry) { total += entry.packed.bytes; });
  return total;
}

}  // namespace thresher
