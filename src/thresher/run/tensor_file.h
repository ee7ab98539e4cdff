// The tensors of a model file, read when they are wanted and given back when they are not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "thresher/base/status.h"
#include "thresher/graph/constant_source.h"
#include "thresher/graph/hash.h"

namespace thresher {

// What every message about contents ends with: there is one cure.
inline constexpr const char* kDamagedFile = "; the file is damaged: copy or export it again";

// Errors with both digests unless the bytes are those wanted.
Status CheckDigest(const std::string& what, const Digest& wanted, const void* data, size_t size);

// Files are read, never mapped: a page of a mapping whose file was cut short ends the process that touches it, and one
// that was written to changes a model that runs. Every tensor has an address of its own from the beginning, by which it
// is known, and is readable there while it is held; each time it is read anew its digest is compared. The pages of one
// that is no longer held are moved to the next: clearing new ones takes the system longer than reading into them.
class TensorFile final : public ConstantSource, public std::enable_shared_from_this<TensorFile> {
 public:
  static Result<std::shared_ptr<TensorFile>> Open(const std::string& path);
  ~TensorFile() override;
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  // Of the file when it was opened.
  size_t size() const { return size_; }
  // Reads bytes of the file. An error where there are fewer.
  Status Read(uint64_t offset, void* to, size_t bytes) const;
  // The address of a tensor; not while others call Hold().
  Result<const std::byte*> Add(std::string what, uint64_t offset, size_t bytes, const Digest& digest);

  Result<std::shared_ptr<const void>> Hold(const void* data) override;
  void Trim() override;

 private:
  struct Tensor {
    std::string what;  // for messages
    uint64_t offset = 0;
    size_t bytes = 0;
    Digest digest;
    void* reserved = nullptr;  // address space; memory only while it is held
    size_t reserved_bytes = 0;
    std::mutex mutex;
    int holders = 0;
  };

  // Pages without a tensor, from the beginning of a place of their own.
  struct Spare {
    std::byte* place = nullptr;
    size_t bytes = 0;
  };
  static constexpr size_t kSpares = 4;

  TensorFile(int fd, size_t size);
  Status Load(std::byte* data, const Tensor& tensor);
  void Drop(std::byte* data, const Tensor& tensor);
  // Moves pages that are spare to the address, or those there to where they are.
  void TakeSpare(std::byte* data, size_t pages);
  void KeepSpare(std::byte* data, size_t pages);

  const int fd_;
  const size_t size_;
  std::map<std::byte*, std::unique_ptr<Tensor>> tensors_;
  void* reserved_;  // address space for spare pages
  std::mutex spare_mutex_;
  Spare spares_[kSpares];
  size_t spare_bytes_ = 0;
  size_t most_spare_ = 0;  // the largest that was dropped so far, so that no more than one is in memory for nothing
};

}  // namespace thresher
