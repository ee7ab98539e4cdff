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

#include "thresher/base/thread_pool.h"

namespace thresher {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;
constexpr size_t kLeastShare = size_t{1} << 20;  // bytes that a thread reads at least

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }
size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

Status Unreadable(const std::string& found) {
  return InvalidArgument("expected a model file of thresher.export, got: " + found);
}

}  // namespace

Status CheckDigest(const std::string& what, const Digest& wanted, const void* data, size_t size) {
  const Digest found = HashBytes(data, size);
  if (found == wanted) return Status::Ok();
  return InvalidArgument(what + ": expected contents of digest " + ToHex(wanted) + ", got " + ToHex(found) +
                         kDamagedFile);
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

TensorFile::~TensorFile() {
  for (const auto& [data, tensor] : tensors_) munmap(tensor->reserved, tensor->reserved_bytes);
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
  // Whole large pages only; advice, failing is no error.
  if (alignment == kLargePage) (void)madvise(data, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
  tensors_.emplace(data, std::move(tensor));
  return data;
}

Status TensorFile::Load(std::byte* data, const Tensor& tensor) const {
  const size_t pages = RoundUp(tensor.bytes, PageSize());
  if (mprotect(data, pages, PROT_READ | PROT_WRITE) != 0) {
    return ResourceExhausted(tensor.what + ": expected memory for " + std::to_string(tensor.bytes) +
                             " bytes, got: " + std::generic_category().message(errno));
  }
  const size_t most_parts = std::max<size_t>(tensor.bytes / kLeastShare, 1);
  std::atomic<bool> failed{false};
  ThreadPool::Global().Run(
      [&](int part, int num_parts) {
        const size_t pages_each = pages / PageSize();
        const auto share = [&](int p) {
          return std::min(pages_each * static_cast<size_t>(p) / static_cast<size_t>(num_parts) * PageSize(),
                          tensor.bytes);
        };
        const size_t begin = share(part), end = share(part + 1);
        if (!Read(tensor.offset + begin, data + begin, end - begin).ok()) failed = true;
      },
      static_cast<int>(std::min<size_t>(most_parts, 1024)));
  if (failed) {  // once more, for the message
    THRESHER_TRY(Read(tensor.offset, data, tensor.bytes));
  }
  THRESHER_TRY(CheckDigest(tensor.what, tensor.digest, data, tensor.bytes));
  mprotect(data, pages, PROT_READ);  // a refusal leaves it writable, which nobody makes use of
  return Status::Ok();
}

void TensorFile::Drop(std::byte* data, const Tensor& tensor) {
  const size_t pages = RoundUp(tensor.bytes, PageSize());
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
  return std::shared_ptr<const void>(begin, [self = shared_from_this(), &tensor](const void* held) {
    const std::lock_guard released(tensor.mutex);
    if (--tensor.holders == 0) Drop(static_cast<std::byte*>(const_cast<void*>(held)), tensor);
  });
}

}  // namespace thresher
