#include "thresher/base/kept_memory.h"

#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/env.h"

namespace thresher {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMebibyte = size_t{1024} * 1024;

// A block may be larger than what is wanted by so many parts of that.
constexpr size_t kParts = 4;

}  // namespace

struct alignas(kAlignment) KeptMemory::Block {
  size_t bytes;  // with this
  uint64_t since = 0;
  Block* next = nullptr;

  static Block* Of(void* data) { return static_cast<Block*>(data) - 1; }
  void* data() { return this + 1; }
};

KeptMemory& KeptMemory::OfResults() {
  static auto* const memory = [] {
    const Result<int64_t> mebibytes = env::GetInteger("THRESHER_KEPT_RESULTS");
    // An invalid value is reported by env::Validate().
    return new KeptMemory(mebibytes.ok() ? static_cast<size_t>(mebibytes.value()) * kMebibyte : 0);
  }();
  return *memory;
}

void* KeptMemory::Take(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) return nullptr;
  const size_t whole = (sizeof(Block) + bytes + kPage - 1) / kPage * kPage;
  Block* old = nullptr;
  {
    const std::lock_guard lock(mutex_);
    ++taken_;
    if (Block* const found = Find(whole); found != nullptr) {
      ++again_;
      return found->data();
    }
    old = Cut();
  }
  Free(old);
  void* const made = std::aligned_alloc(kAlignment, whole);
  return made == nullptr ? nullptr : (new (made) Block{whole})->data();
}

void KeptMemory::Give(void* data) {
  if (data == nullptr) return;
  Block* block = Block::Of(data);
  if (block->bytes >= kLeastBytes && block->bytes <= most_bytes_) {
    const std::lock_guard lock(mutex_);
    block->since = taken_;
    block->next = std::exchange(newest_, block);
    block = Cut();
  }
  Free(block);
}

void KeptMemory::Clear() {
  Block* all = nullptr;
  {
    const std::lock_guard lock(mutex_);
    std::swap(all, newest_);
  }
  Free(all);
}

KeptMemory::Stats KeptMemory::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats;
  for (const Block* block = newest_; block != nullptr; block = block->next) {
    stats.bytes += block->bytes;
    ++stats.blocks;
  }
  stats.taken = taken_;
  stats.again = again_;
  return stats;
}

void KeptMemory::Free(Block* list) {
  while (list != nullptr) std::free(std::exchange(list, list->next));
}

// What was used last is in the caches.
KeptMemory::Block* KeptMemory::Find(size_t bytes) {
  for (Block** at = &newest_; *at != nullptr; at = &(*at)->next) {
    Block* const block = *at;
    if (block->bytes < bytes || block->bytes - bytes > bytes / kParts) continue;
    *at = std::exchange(block->next, nullptr);
    return block;
  }
  return nullptr;
}

KeptMemory::Block* KeptMemory::Cut() {
  size_t room = most_bytes_;
  Block** at = &newest_;
  while (*at != nullptr && (*at)->bytes <= room && taken_ - (*at)->since <= kMostAge) {
    room -= (*at)->bytes;
    at = &(*at)->next;
  }
  return std::exchange(*at, nullptr);
}

}  // namespace thresher
