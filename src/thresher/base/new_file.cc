#include "thresher/base/new_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace thresher {
namespace {

constexpr std::string_view kInfix = ".partial-";
constexpr int kMostLinks = 40;  // as many as Linux follows

// What a path names, also where there is nothing yet. Empty where links go round in circles.
std::string Resolved(const std::string& path) {
  std::filesystem::path at = path;
  std::error_code ignored;
  for (int i = 0; i < kMostLinks; ++i) {
    const std::filesystem::path target = std::filesystem::read_symlink(at, ignored);
    if (ignored) return at.string();
    at = at.parent_path() / target;
  }
  return "";
}

}  // namespace

NewFile::NewFile(const std::string& path) : path_(Resolved(path)) {
  if (path_.empty()) Fail(ELOOP);
  struct stat about = {};
  if (stat(path_.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    Fail(S_ISDIR(about.st_mode) ? EISDIR : EINVAL);
  }
  while (error_ == 0 && !Create()) {
  }
  if (error_ == 0) RemoveLeftovers();
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  unlink(partial_.c_str());
  close(fd_);
}

// False: somebody took the file for a leftover before it was locked.
bool NewFile::Create() {
  static std::atomic<int> serial{0};
  partial_ = path_ + std::string(kInfix) + std::to_string(getpid()) + "-" + std::to_string(serial++);
  fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    if (errno == EEXIST) return false;  // of another process with the same number, in another container
    Fail(errno);
    return false;
  }
  flock(fd_, LOCK_EX);  // where there are no locks, nobody removes leftovers either
  struct stat about = {};
  if (fstat(fd_, &about) != 0 || about.st_nlink > 0) return true;
  close(fd_);
  fd_ = -1;
  return false;
}

// A writer that lives holds a lock on its file.
void NewFile::RemoveLeftovers() const {
  const std::filesystem::path path = path_;
  const std::string folder = path.has_parent_path() ? path.parent_path().string() : ".";
  const std::string start = path.filename().string() + std::string(kInfix);
  DIR* entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (!std::string_view(entry->d_name).starts_with(start)) continue;
    const std::string found = folder + "/" + entry->d_name;
    const int fd = open(found.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(found.c_str());
    close(fd);
  }
  closedir(entries);
}

void NewFile::Write(const void* data, uint64_t size) {
  const char* p = static_cast<const char*>(data);
  while (size > 0 && error_ == 0) {
    const ssize_t written = write(fd_, p, static_cast<size_t>(std::min<uint64_t>(size, 1 << 30)));
    if (written < 0) {
      if (errno != EINTR) Fail(errno);
      continue;
    }
    p += written;
    size -= static_cast<uint64_t>(written);
    size_ += static_cast<uint64_t>(written);
  }
}

void NewFile::Fail(int error) {
  if (error_ == 0) error_ = error;
}

int NewFile::Commit(bool replace) {
  if (error_ == 0 && fsync(fd_) != 0) Fail(errno);
  if (error_ != 0) return error_;
  if (replace) {
    if (rename(partial_.c_str(), path_.c_str()) != 0) Fail(errno);
  } else if (link(partial_.c_str(), path_.c_str()) == 0) {
    unlink(partial_.c_str());
  } else if (errno != EPERM && errno != EOPNOTSUPP) {
    Fail(errno);
  } else if (access(path_.c_str(), F_OK) == 0) {  // a file system without links
    Fail(EEXIST);
  } else if (rename(partial_.c_str(), path_.c_str()) != 0) {
    Fail(errno);
  }
  if (error_ != 0) return error_;
  close(fd_);
  fd_ = -1;
  return 0;
}

}  // namespace thresher
