// Packed weights, shared between all plans of one model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "thresher/base/fork_mutex.h"
#include "thresher/base/function_ref.h"
#include "thresher/base/precision.h"
#include "thresher/graph/graph.h"
#include "thresher/graph/hash.h"
#include "thresher/kernels/weight.h"
#include "thresher/plan/once_map.h"
#include "thresher/plan/packed_memory.h"
#include "thresher/plan/plan.h"

namespace thresher {

// Thread safe, and no lock is held while weights are packed: threads wait for the weight they want, fork() for none.
// Entries live as long as the store or a plan that uses them. A store assumes that the bytes behind a constant never
// change: when they do, plans are rebuilt with a new store.
class WeightStore {
 public:
  // `named`: matrices that GetPacked() packs get names, for parts().
  explicit WeightStore(bool named = false) : named_(named) {}

  struct Packed {
    std::shared_ptr<const void> owner;
    const void* data = nullptr;
    int64_t bytes = 0;
  };

  struct Matrix {
    Constant constant;
    int64_t n = 0;
    Encoding encoding = Encoding::kF32;
  };

  // A constant of two dimensions and floats, [n, k] if `transposed`, else [k, n].
  static Matrix MatrixOf(const Value& value, bool transposed) {
    return {value.constant, value.shape[transposed ? 0 : 1], StoredAs(value)};
  }

  // Panels of k x n matrices in a precision, those of one after those of another, each beginning with a panel of its
  // own; `transposed` says they are stored [n, k]. Packs on first use, once, with up to num_threads threads, of which
  // each packs the panels that it multiplies where a product is split by panels.
  Result<Packed> GetPacked(std::span<const Matrix> matrices, int64_t k, bool transposed,
                           Precision precision = Precision::kFp32, int num_threads = 1);

  // The same for matrices within one constant: they lie as `layout` says, its data aside, each so many elements from
  // the constant's first. A convolution has one for each of its groups.
  Result<Packed> GetPackedParts(const Value& value, std::span<const int64_t> offsets, Weight layout,
                                Precision precision = Precision::kFp32, int num_threads = 1);

  // The same matrices as the rows [n, k] of one, in an encoding, for products that take weights as they are stored. In
  // blocks, `group` numbers share a scale. Errors: EncodeNumbers() cannot store the numbers so.
  Result<Packed> GetRows(std::span<const Matrix> matrices, int64_t k, bool transposed, Encoding encoding, int64_t group,
                         int num_threads = 1);

  // The same for matrices within one constant, as GetPackedParts() has them, in an encoding without blocks. Rows are
  // row_numbers apart, with zeros behind their own.
  Result<Packed> GetRowsOfParts(const Value& value, std::span<const int64_t> offsets, Weight layout, Encoding encoding,
                                int64_t row_numbers, int num_threads = 1);

  // What a k x n matrix would lose in another precision. Measured on first use, once.
  Result<WeightError> GetError(const Matrix& matrix, int64_t k, bool transposed, Precision precision,
                               int num_threads = 1);

  // Where a plan's constant is in the memory of `device`: with `copy` copied there on first use, once for all constants
  // of the same bytes. The memory lives as long as what is given here, or the store.
  Result<std::shared_ptr<const void>> GetPlaced(const Buffer& constant, const void* device,
                                                FunctionRef<Result<std::shared_ptr<const void>>()> copy);
  // What lies at `host` lies at `placed` in the device's memory as well, as long as the store or a plan lives: the
  // caller keeps it there.
  void AddPlaced(const void* device, const void* host, int64_t bytes, std::shared_ptr<const void> placed);

  // Panels, and what they are called in every process: the name follows from the bytes of the weights, not from where
  // these lie, and from all that packing depends on but the code of the kernels (plan/packed_layout.h).
  struct Part {
    Digest name;
    Packed packed;
    bool given = false;  // by AddPart()
  };
  // All these bytes have this digest: what lies among them is called by its place there and need not be read. They
  // stay as long as the owner.
  void AddSource(const void* host, int64_t bytes, const Digest& digest, std::shared_ptr<const void> owner);
  // Panels of parts() of another process, which are taken where a matrix of that name and size is to be packed.
  void AddPart(const Digest& name, const Packed& packed);
  // What was packed or taken, of a store that names; in the order of the weights in memory.
  std::vector<Part> parts() const;

  // Bytes of all packed weights.
  int64_t bytes() const;

 private:
  // A weight is known by its address, since it would take long to read; a constant that the engine owns by its digest,
  // so that its bytes need not be kept beside the panels, and so that plans which computed it anew share them.
  using Identity = std::tuple<const void*, Digest, Encoding>;
  static Identity IdentityOf(const Matrix& matrix, int64_t k);
  // The instruction set is part of the key because it sets the panel width; of rows there is "rows".
  using Key = std::tuple<std::vector<std::pair<Identity, int64_t>>, int64_t, bool, Precision, std::string>;
  struct Entry {
    Packed packed;
    std::vector<std::shared_ptr<const void>> sources;  // so that no address in the key is reused for other data
    std::optional<Digest> name = {};
    bool given = false;
  };
  // What the matrices of a key, packed so, are called.
  Result<Digest> NameOf(std::span<const Matrix> matrices, const Key& key) const;
  std::optional<Packed> FindPart(const Digest& name, int64_t bytes) const;
  // What make(matrices) gives for matrices within one constant; `text` is what else it depends on.
  template <class Make>
  Result<Packed> GetParts(const Value& value, std::span<const int64_t> offsets, Weight layout, Precision precision,
                          std::string text, Make&& make);
  // The panels of the matrices, one after the other.
  Packed Pack(std::span<const Weight> weights, Precision precision, int num_threads);
  // The columns of the matrices as rows of so many numbers.
  Result<Packed> StoreRows(std::span<const Weight> weights, Encoding encoding, int64_t group, int64_t row_numbers,
                           int num_threads);
  using ErrorKey = std::tuple<Identity, int64_t, int64_t, bool, Precision>;
  struct ErrorEntry {
    WeightError error;
    std::shared_ptr<const void> source;
  };
  // By device, address or digest, and bytes.
  using PlacedKey = std::tuple<const void*, const void*, Digest, int64_t>;
  struct PlacedEntry {
    std::shared_ptr<const void> memory;
    std::shared_ptr<const void> source;  // so that its address is not reused for other data
  };
  struct GivenRange {
    int64_t bytes = 0;
    std::shared_ptr<const void> memory;
  };
  struct Source {
    int64_t bytes = 0;
    Digest digest;
    std::shared_ptr<const void> owner;
  };
  const bool named_;
  mutable ForkMutex mutex_{LockRank::kWeights};
  PackedMemory memory_;
  OnceMap<Key, Entry> entries_{mutex_};
  OnceMap<ErrorKey, ErrorEntry> errors_{mutex_};
  OnceMap<PlacedKey, PlacedEntry> placed_{mutex_};
  std::map<std::pair<const void*, const std::byte*>, GivenRange> given_;  // by device and where it begins
  std::map<const std::byte*, Source> sources_;                            // by where they begin
  std::map<Digest, Packed> parts_;
};

}  // namespace thresher
