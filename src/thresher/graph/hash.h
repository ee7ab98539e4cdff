// Content hashes: bytes, constants and whole graphs.
//
// The hash is 128 bits wide, non-cryptographic (it guards caches against accidents, not against attackers) and a
// function of the bytes alone: the same in every process, on every machine and instruction set (all supported ones are
// little-endian).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thresher/graph/graph.h"

namespace thresher {

struct Digest {
  uint64_t hi = 0;
  uint64_t lo = 0;
  friend auto operator<=>(const Digest&, const Digest&) = default;
};

// 32 lower-case hexadecimal digits.
std::string ToHex(const Digest& digest);
// The inverse; nullopt unless `text` is exactly 32 hexadecimal digits.
std::optional<Digest> ParseDigest(std::string_view text);

// Runs at memory speed: four independent multiply chains over blocks of 64 bytes.
Digest HashBytes(const void* data, size_t size);

// The same of bytes that come in pieces, of which all but the last are of a multiple of 64 bytes.
class Hasher {
 public:
  Hasher();
  void Add(const void* data, size_t size);
  Digest Finish() const;

 private:
  uint64_t lanes_[4];
  uint64_t size_ = 0;
};

// Remembers the digests of constants, so that weights are read once however often they are printed or hashed.
//
// An entry holds as long as the constant's owner lives; the holder of the cache must Clear() it when it changes
// constants in place. Safe to use from several threads.
class DigestCache {
 public:
  // Digest of the bytes of a constant.
  Digest Of(const Value& constant);
  void Clear();

 private:
  struct Entry {
    std::weak_ptr<const void> owner;
    Digest digest;
  };
  std::mutex mutex_;
  std::map<std::pair<const void*, size_t>, Entry> entries_;
};

// Digest of a constant's bytes, through `cache` where there is one. Zero where they cannot be read.
Digest HashConstant(const Value& constant, DigestCache* cache = nullptr);

// Digest of structure, operators, attributes, dtypes, shapes and contents of the constants that are used. Names and
// sources do not count, nor does the order in which constants were added.
Digest HashGraph(const Graph& graph, DigestCache* cache = nullptr);

// The order printing and hashing number values in: inputs, constants by first use (the unused ones last), results.
struct CanonicalOrder {
  std::vector<ValueId> constants;
  size_t used_constants = 0;     // how many of them some node or the outputs use
  std::vector<int32_t> numbers;  // per ValueId
};
CanonicalOrder MakeCanonicalOrder(const Graph& graph);

}  // namespace thresher
