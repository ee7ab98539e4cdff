#include "thresher/profile/trace_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "thresher/base/crc32.h"
#include "thresher/profile/profiler.h"

namespace thresher::profile {
namespace {

struct Block {
  std::string tag;
  std::string payload;
};

// What a reader finds, written down without the writer's code.
struct Content {
  std::vector<Block> blocks;
  bool whole = false;

  explicit Content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    uint32_t version = 0;
    uint32_t record = 0;
    if (bytes.size() < 16 || bytes.compare(0, 8, "THRTRACE") != 0) return;
    std::memcpy(&version, bytes.data() + 8, 4);
    std::memcpy(&record, bytes.data() + 12, 4);
    EXPECT_EQ(version, 1u);
    EXPECT_EQ(record, 64u);
    size_t at = 16;
    while (at + 16 <= bytes.size()) {
      uint32_t crc = 0;
      uint64_t size = 0;
      std::memcpy(&crc, bytes.data() + at + 4, 4);
      std::memcpy(&size, bytes.data() + at + 8, 8);
      if (size > bytes.size() - at - 16 || Crc32(bytes.data() + at + 16, size) != crc) return;
      blocks.push_back({bytes.substr(at, 4), bytes.substr(at + 16, size)});
      at += 16 + (size + 7) / 8 * 8;
    }
    whole = at == bytes.size();
  }

  size_t records() const {
    size_t count = 0;
    for (const Block& block : blocks) count += block.tag == "RECS" ? block.payload.size() / sizeof(Record) : 0;
    return count;
  }
  std::string Last() const { return blocks.empty() ? "" : blocks.back().tag; }
  std::string All(const std::string& tag) const {
    std::string text;
    for (const Block& block : blocks) text += block.tag == tag ? block.payload : "";
    return text;
  }
};

class TraceFile : public ::testing::Test {
 protected:
  TraceFile() : folder_(std::filesystem::temp_directory_path() / ("thresher-trace-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~TraceFile() override {
    StopTrace();
    std::filesystem::remove_all(folder_);
  }
  std::string Path(const std::string& name) const { return folder_ / name; }

  static Record Op(int64_t start) {
    Site site;
    site.name = "linear \"quoted\"";
    site.module = "encoder.0";
    site.flops = 10;
    Record record;
    record.site = NumberOf(std::move(site));
    record.start_ns = start;
    record.end_ns = start + 5;
    record.correlation = NextCorrelations(1);
    return record;
  }

  const std::filesystem::path folder_;
};

TEST_F(TraceFile, HoldsEveryRecordFromStartToStop) {
  Add(Op(0));  // nobody listens
  ASSERT_TRUE(StartTrace({.path = Path("a")}).ok());
  EXPECT_TRUE(GetTraceStatus().running);
  for (int i = 0; i < 1000; ++i) Add(Op(i));
  std::thread([] { Add(Op(77)); }).join();
  ASSERT_TRUE(AnnotateTrace("{\"script\": \"x.py\"}").ok());
  const TraceStatus status = StopTrace();
  Add(Op(0));
  EXPECT_FALSE(status.running);
  EXPECT_EQ(status.records, 1001u);
  EXPECT_EQ(status.dropped, 0u);
  EXPECT_EQ(status.problem, "");
  const Content content(Path("a"));
  EXPECT_TRUE(content.whole);
  EXPECT_EQ(content.records(), 1001u);
  ASSERT_FALSE(content.blocks.empty());
  EXPECT_EQ(content.blocks.front().tag, "HEAD");
  EXPECT_NE(content.blocks.front().payload.find("\"isa\""), std::string::npos);
  EXPECT_EQ(content.Last(), "TAIL");
  EXPECT_EQ(content.All("DATA"), "{\"script\": \"x.py\"}");
  EXPECT_NE(content.All("SITE").find("\"linear \\\"quoted\\\"\""), std::string::npos);
  EXPECT_NE(content.All("TAIL").find("\"records\": 1001, \"dropped\": 0"), std::string::npos);
  Record first;
  std::memcpy(&first, content.All("RECS").data(), sizeof first);
  EXPECT_EQ(first.end_ns - first.start_ns, 5);
  EXPECT_EQ(first.thread, static_cast<uint32_t>(gettid()));
}

TEST_F(TraceFile, SitesComeBeforeTheirRecordsAndOnce) {
  ASSERT_TRUE(StartTrace({.path = Path("a")}).ok());
  uint32_t last = 0;
  for (int i = 0; i < 3; ++i) {
    Site site;
    site.name = "late " + std::to_string(i);
    Record record;
    last = record.site = NumberOf(std::move(site));
    Add(record);
    Deliver();
  }
  StopTrace();
  const Content content(Path("a"));
  std::string known;
  for (const Block& block : content.blocks) {
    if (block.tag == "SITE") known += block.payload;
    for (size_t at = 0; block.tag == "RECS" && at < block.payload.size(); at += sizeof(Record)) {
      Record record;
      std::memcpy(&record, block.payload.data() + at, sizeof record);
      EXPECT_NE(known.find("{\"id\": " + std::to_string(record.site) + ","), std::string::npos);
    }
  }
  const std::string id = "{\"id\": " + std::to_string(last) + ",";
  EXPECT_EQ(known.find(id), known.rfind(id));
}

TEST_F(TraceFile, InMemoryUntilSaved) {
  EXPECT_EQ(SaveTrace("").code(), Code::kInvalidArgument);
  ASSERT_TRUE(StartTrace({}).ok());
  Add(Op(1));
  ASSERT_TRUE(SaveTrace(Path("early")).ok());
  Add(Op(2));
  StopTrace();
  ASSERT_TRUE(SaveTrace(Path("late")).ok());
  ASSERT_TRUE(SaveTrace(Path("again")).ok());
  const Content early(Path("early")), late(Path("late")), again(Path("again"));
  EXPECT_TRUE(early.whole && late.whole && again.whole);
  EXPECT_EQ(early.records(), 1u);
  EXPECT_EQ(early.Last(), "TAIL");
  EXPECT_EQ(late.records(), 2u);
  EXPECT_EQ(again.records(), 2u);
  EXPECT_EQ(SaveTrace(Path("late")).code(), Code::kInvalidArgument) << "never overwrites";
}

TEST_F(TraceFile, RefusesWhatItCannotDo) {
  EXPECT_FALSE(StopTrace().running) << "stopping without a start changes nothing";
  EXPECT_EQ(AnnotateTrace("{}").code(), Code::kInvalidArgument);
  std::ofstream(Path("there")) << "mine";
  EXPECT_NE(StartTrace({.path = Path("there")}).message().find("expected a new file"), std::string::npos);
  EXPECT_NE(StartTrace({.path = Path("no folder/a")}).message().find("No such file"), std::string::npos);
  EXPECT_EQ(std::filesystem::file_size(Path("there")), 4u);
  ASSERT_TRUE(StartTrace({.path = Path("a")}).ok());
  const Status twice = StartTrace({.path = Path("b")});
  EXPECT_NE(twice.message().find("got one running into " + Path("a")), std::string::npos) << twice.message();
  EXPECT_FALSE(std::filesystem::exists(Path("b")));
}

TEST_F(TraceFile, StopsAtItsLimitAndCounts) {
  ASSERT_TRUE(StartTrace({.path = Path("a"), .max_bytes = 200'000}).ok());
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 500; ++k) Add(Op(k));
    Deliver();
  }
  const TraceStatus status = StopTrace();
  EXPECT_EQ(status.records + status.dropped, 10'000u);
  EXPECT_GT(status.records, 0u);
  EXPECT_GT(status.dropped, 0u);
  EXPECT_NE(status.problem.find("limit"), std::string::npos);
  const Content content(Path("a"));
  EXPECT_TRUE(content.whole);
  EXPECT_EQ(content.records(), status.records);
  EXPECT_NE(content.All("TAIL").find("\"dropped\": " + std::to_string(status.dropped)), std::string::npos);
}

TEST_F(TraceFile, AFullDiskIsSaidAndWhatFittedStays) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  const std::string path = Path("full");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {  // a limit on file sizes fails a write half-way, as a full disk does
    alarm(20);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0 || !StartTrace({.path = path}).ok()) _exit(1);
    for (int i = 0; i < 10; ++i) {
      for (int k = 0; k < 300; ++k) Add(Op(k));
      Deliver();
    }
    const TraceStatus status = StopTrace();
    const bool counted = status.records > 0 && status.dropped > 0 && status.records + status.dropped == 3000;
    _exit(counted && status.problem.find("File too large") != std::string::npos ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  const Content content(path);
  EXPECT_TRUE(content.whole);
  EXPECT_GT(content.records(), 0u);
}

TEST_F(TraceFile, WhatAKilledProcessRecordedIsThere) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  const std::string path = Path("killed");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);
    if (!StartTrace({.path = path}).ok()) _exit(1);
    for (int i = 0; i < 5000; ++i) Add(Op(i));
    usleep(500'000);  // the carrier comes by several times
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  const Content content(path);
  EXPECT_EQ(content.records(), 5000u);
  EXPECT_NE(content.Last(), "TAIL");
}

TEST_F(TraceFile, AForkedChildLeavesTheParentsTraceAlone) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer allows no new threads after a fork";
#endif
  ASSERT_TRUE(StartTrace({.path = Path("parent")}).ok());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    Add(Op(1));
    if (GetTraceStatus().running || StopTrace().running) _exit(1);
    if (!StartTrace({.path = Path("child")}).ok()) _exit(2);
    Add(Op(2));
    _exit(StopTrace().records == 1 ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  Add(Op(3));
  EXPECT_EQ(StopTrace().records, 1u);
  EXPECT_EQ(Content(Path("parent")).records(), 1u);
  EXPECT_EQ(Content(Path("child")).records(), 1u);
}

}  // namespace
}  // namespace thresher::profile
