// A file that appears whole or not at all.
#pragma once

#include <cstdint>
#include <string>

namespace thresher {

// Written beside its place under another name until Commit(). A process that is killed leaves only that other file,
// which the next writer of the same file removes. Where the path is a symbolic link, the file it names is written.
class NewFile {
 public:
  explicit NewFile(const std::string& path);
  // Removes what was not committed.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  // Does nothing after an error.
  void Write(const void* data, uint64_t size);
  // Fails with an error number that the caller met.
  void Fail(int error);

  // Puts the file into its place; without `replace` only if nothing is there. Returns the first error number; 0: done.
  int Commit(bool replace);

  uint64_t size() const { return size_; }
  int error() const { return error_; }

 private:
  bool Create();
  void RemoveLeftovers() const;

  std::string path_;
  std::string partial_;
  int fd_ = -1;
  int error_ = 0;
  uint64_t size_ = 0;
};

}  // namespace thresher
