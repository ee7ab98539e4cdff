#include "thresher/run/tensor_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace thresher {
namespace {

namespace fs = std::filesystem;

// A file of tensors, none a multiple of a page or of what a thread reads at a time, one larger than a large page.
class TensorFileTest : public testing::Test {
 protected:
  static constexpr size_t kSizes[] = {70'000, 262'145, 1, 600'001, 2'500'003, 4'096, 900'007};

  void SetUp() override {
    path_ = (fs::path(testing::TempDir()) / "tensor_file_test.XXXXXX").string();
    const int fd = mkstemp(path_.data());
    ASSERT_GE(fd, 0);
    close(fd);
    std::ofstream file(path_, std::ios::binary);
    for (size_t i = 0; i < std::size(kSizes); ++i) {
      std::vector<std::byte> bytes(kSizes[i]);
      for (size_t b = 0; b < bytes.size(); ++b) bytes[b] = static_cast<std::byte>((b >> 8) * 31 + b * (2 * i + 1));
      file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      contents_.push_back(std::move(bytes));
    }
  }
  void TearDown() override { fs::remove(path_); }

  std::shared_ptr<TensorFile> Open() {
    Result<std::shared_ptr<TensorFile>> opened = TensorFile::Open(path_);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    const std::shared_ptr<TensorFile> file = std::move(opened).value();
    uint64_t offset = 0;
    for (const std::vector<std::byte>& bytes : contents_) {
      const Digest digest = HashBytes(bytes.data(), bytes.size());
      addresses_.push_back(file->Add("tensor " + std::to_string(offset), offset, bytes.size(), digest).value());
      offset += bytes.size();
    }
    return file;
  }
  bool IsRight(size_t i) const { return std::memcmp(addresses_[i], contents_[i].data(), kSizes[i]) == 0; }

  std::string path_;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<const std::byte*> addresses_;
};

TEST_F(TensorFileTest, ThreadsHoldWhatTheFileHolds) {
  const std::shared_ptr<TensorFile> file = Open();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<size_t, std::shared_ptr<const void>>> held;
      for (int turn = 0; turn < 60; ++turn) {
        const size_t i = random() % std::size(kSizes);
        Result<std::shared_ptr<const void>> found = file->Hold(addresses_[i]);
        wrong += !found.ok() || !IsRight(i);
        if (found.ok()) held.emplace_back(i, std::move(found).value());
        // Pages of those that go are given to those that come, while others stay as they are.
        if (held.size() > 3) held.erase(held.begin());
        for (const auto& [number, owner] : held) wrong += !IsRight(number);
        if (turn % 20 == 19) file->Trim();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST_F(TensorFileTest, WhatChangedInTheFileIsAnErrorEachTime) {
  const std::shared_ptr<TensorFile> file = Open();
  ASSERT_TRUE(file->Hold(addresses_[4]).ok());
  {
    std::fstream change(path_, std::ios::binary | std::ios::in | std::ios::out);
    change.seekp(static_cast<std::streamoff>(kSizes[0] + kSizes[1] + kSizes[2] + kSizes[3] + kSizes[4] - 1));
    change.put('?');
  }
  for (int turn = 0; turn < 2; ++turn) {
    const Status status = file->Hold(addresses_[4]).status();
    EXPECT_NE(status.message().find("digest"), std::string::npos) << status.message();
  }
  EXPECT_TRUE(file->Hold(addresses_[3]).ok());
  fs::resize_file(path_, kSizes[0] + 100);
  const Status status = file->Hold(addresses_[1]).status();
  EXPECT_NE(status.message().find("cut short"), std::string::npos) << status.message();
  EXPECT_TRUE(file->Hold(addresses_[0]).ok());
}

}  // namespace
}  // namespace thresher
