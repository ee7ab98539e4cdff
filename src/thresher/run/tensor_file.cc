#include "thresher/run/tensor_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "thresher/base/arena.h"
#include "thresher/base/thread_pool.h"

namespace thresher {
namespace {

constexpr size_t kMostInPlace = size_t{32} << 20;  // of a spare place
constexpr size_t kPiece =
    size_t{256} << 10;  // bytes that a thread reads at a time, and hashes while it has them in its cache

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

Status Unreadable(const std::string& found) {
  return InvalidArgument("expected a model file of thresher.export, got: " + found);
}

// Moves pages to another address of ours; both stay reserved. Nothing is moved where the system cannot.
bool MovePages(std::byte* from, std::byte* to, size_t bytes) {
  constexpr int kHow = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if (mremap(from, bytes, bytes, kHow, to) != MAP_FAILED) return true;
  // A failure may have cost the new address its reservation.
  constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
  const void* const reserved = mmap(to, bytes, PROT_NONE, kReserved, -1, 0);
  static_cast<void>(reserved);  // refused where it has not
  return false;
}

// A tensor on its way into memory: every thread reads pieces, and whoever has read one adds those that are there to the
// digest, which takes them in their order.
class Reading {
 public:
  Reading(const TensorFile& file, uint64_t offset, std::byte* to, size_t bytes)
      : file_(file), offset_(offset), to_(to), bytes_(bytes), read_(new std::atomic<bool>[pieces()] {}) {}

  size_t pieces() const { return (bytes_ + kPiece - 1) / kPiece; }

  // What each of the threads does.
  void Work() {
    for (size_t i = next_++; i < pieces() && !failed_; i = next_++) {
      if (!file_.Read(offset_ + i * kPiece, to_ + i * kPiece, BytesOf(i)).ok()) {
        failed_ = true;
        return;
      }
      read_[i] = true;
      if (const std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) Hash();
    }
    const std::lock_guard lock(mutex_);
    Hash();
  }

  bool failed() const { return failed_; }
  Digest digest() const { return hasher_.Finish(); }

 private:
  size_t BytesOf(size_t piece) const { return std::min(kPiece, bytes_ - piece * kPiece); }
  void Hash() {
    for (; hashed_ < pieces() && read_[hashed_]; ++hashed_) hasher_.Add(to_ + hashed_ * kPiece, BytesOf(hashed_));
  }

  const TensorFile& file_;
  const uint64_t offset_;
  std::byte* const to_;
  const size_t bytes_;
  const std::unique_ptr<std::atomic<bool>[]> read_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  size_t hashed_ = 0;
  Hasher hasher_;
};

Status CheckDigest(const std::string& what, const Digest& wanted, const Digest& found) {
  if (found == wanted) return Status::Ok();
  return InvalidArgument(what + ": expected contents of digest " + ToHex(wanted) + ", got " + ToHex(found) +
                         kDamagedFile);
}

}  // namespace

Status CheckDigest(const std::string& what, const Digest& wanted, const void* data, size_t size) {
  return CheckDigest(what, wanted, HashBytes(data, size));
}

Result<std::shared_ptr<TensorFile>> TensorFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Unreadable(std::generic_category().message(errno));
  struct stat about = {};
  std::string problem;
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    problem = "no regular file";
  } else if (about.st_size == 0) {
    problem = "an empty file";
  }
  if (!problem.empty()) {
    close(fd);
    return Unreadable(problem);
  }
  return std::shared_ptr<TensorFile>(new TensorFile(fd, static_cast<size_t>(about.st_size)));
}

TensorFile::TensorFile(int fd, size_t size) : fd_(fd), size_(size) {
  constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  reserved_ = mmap(nullptr, kSpares * kMostInPlace + kLargePage, PROT_NONE, kReserved, -1, 0);
  if (reserved_ == MAP_FAILED) return;  // then none are kept
  const auto address = reinterpret_cast<uintptr_t>(reserved_);
  auto* place = static_cast<std::byte*>(reserved_) + (RoundUp(address, kLargePage) - address);
  for (Spare& spare : spares_) spare.place = std::exchange(place, place + kMostInPlace);
}

TensorFile::~TensorFile() {
  for (const auto& [data, tensor] : tensors_) munmap(tensor->reserved, tensor->reserved_bytes);
  if (reserved_ != MAP_FAILED) munmap(reserved_, kSpares * kMostInPlace + kLargePage);
  close(fd_);
}

Status TensorFile::Read(uint64_t offset, void* to, size_t bytes) const {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t read = pread(fd_, at, std::min<size_t>(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return Unreadable(std::generic_category().message(errno));
    if (read == 0) {
      return InvalidArgument("expected " + std::to_string(bytes) + " more bytes at " + std::to_string(offset) +
                             ", got the end of the file; it was cut short while it was used: copy or export it again");
    }
    at += read;
    offset += static_cast<uint64_t>(read);
    bytes -= static_cast<size_t>(read);
  }
  return Status::Ok();
}

Result<const std::byte*> TensorFile::Add(std::string what, uint64_t offset, size_t bytes, const Digest& digest) {
  auto tensor = std::make_unique<Tensor>();
  const size_t alignment = bytes >= kLargePage ? kLargePage : PageSize();
  tensor->what = std::move(what);
  tensor->offset = offset;
  tensor->bytes = bytes;
  tensor->digest = digest;
  tensor->reserved_bytes = RoundUp(bytes, PageSize()) + (alignment > PageSize() ? alignment : 0);
  tensor->reserved =
      mmap(nullptr, tensor->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (tensor->reserved == MAP_FAILED) {
    return ResourceExhausted(tensor->what + ": expected an address for " + std::to_string(bytes) +
                             " bytes, got: " + std::generic_category().message(errno) + "; raise the process's limits");
  }
  const auto address = reinterpret_cast<uintptr_t>(tensor->reserved);
  auto* const data = static_cast<std::byte*>(tensor->reserved) + (RoundUp(address, alignment) - address);
  if (alignment == kLargePage) WantLargePages(data, bytes);
  tensors_.emplace(data, std::move(tensor));
  return data;
}

void TensorFile::TakeSpare(std::byte* data, size_t pages) {
  const std::lock_guard lock(spare_mutex_);
  for (Spare& spare : spares_) {
    const size_t bytes = std::min(spare.bytes, pages);
    if (bytes == 0 || !MovePages(spare.place + spare.bytes - bytes, data, bytes)) continue;
    spare.bytes -= bytes;
    spare_bytes_ -= bytes;
    data += bytes;
    pages -= bytes;
  }
}

void TensorFile::KeepSpare(std::byte* data, size_t pages) {
  const std::lock_guard lock(spare_mutex_);
  most_spare_ = std::max(most_spare_, pages);
  const size_t bytes = std::min({pages, kMostInPlace, most_spare_ - spare_bytes_});
  for (Spare& spare : spares_) {
    if (spare.place == nullptr || spare.bytes > 0 || bytes == 0) continue;
    if (!MovePages(data, spare.place, bytes)) return;
    spare.bytes = bytes;
    spare_bytes_ += bytes;
    return;
  }
}

void TensorFile::Trim() {
  const std::lock_guard lock(spare_mutex_);
  for (Spare& spare : spares_) {
    if (spare.bytes > 0) madvise(spare.place, spare.bytes, MADV_DONTNEED);
    spare.bytes = 0;
  }
  spare_bytes_ = 0;
}

Status TensorFile::Load(std::byte* data, const Tensor& tensor) {
  const size_t pages = RoundUp(tensor.bytes, PageSize());
  TakeSpare(data, pages);
  if (mprotect(data, pages, PROT_READ | PROT_WRITE) != 0) {
    return ResourceExhausted(tensor.what + ": expected memory for " + std::to_string(tensor.bytes) +
                             " bytes, got: " + std::generic_category().message(errno));
  }
  Reading reading(*this, tensor.offset, data, tensor.bytes);
  ThreadPool::Global().Run([&](int, int) { reading.Work(); },
                           static_cast<int>(std::min<size_t>(reading.pieces(), 1024)));
  if (reading.failed()) {  // once more, for the message
    THRESHER_TRY(Read(tensor.offset, data, tensor.bytes));
    THRESHER_TRY(CheckDigest(tensor.what, tensor.digest, data, tensor.bytes));
  } else {
    THRESHER_TRY(CheckDigest(tensor.what, tensor.digest, reading.digest()));
  }
  mprotect(data, pages, PROT_READ);  // a refusal leaves it writable, which nobody makes use of
  return Status::Ok();
}

void TensorFile::Drop(std::byte* data, const Tensor& tensor) {
  const size_t pages = RoundUp(tensor.bytes, PageSize());
  KeepSpare(data, pages);
  madvise(data, pages, MADV_DONTNEED);
  mprotect(data, pages, PROT_NONE);
}

Result<std::shared_ptr<const void>> TensorFile::Hold(const void* data) {
  const auto after = tensors_.upper_bound(static_cast<std::byte*>(const_cast<void*>(data)));
  if (after == tensors_.begin()) return Internal("expected a tensor of the file, got another address");
  const auto found = std::prev(after);
  std::byte* const begin = found->first;
  Tensor& tensor = *found->second;
  const std::lock_guard lock(tensor.mutex);
  if (tensor.holders == 0) {
    if (const Status status = Load(begin, tensor); !status.ok()) {
      Drop(begin, tensor);
      return status;
    }
  }
  ++tensor.holders;
  return std::shared_ptr<const void>(begin, [this, self = shared_from_this(), &tensor](const void* held) {
    const std::lock_guard released(tensor.mutex);
    if (--tensor.holders == 0) Drop(static_cast<std::byte*>(const_cast<void*>(held)), tensor);
  });
}

}  // namespace thresher
