#include "thresher/profile/trace_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "thresher/base/clock.h"
#include "thresher/base/cpu.h"
#include "thresher/base/crc32.h"
#include "thresher/base/fork_mutex.h"
#include "thresher/base/isa.h"
#include "thresher/base/json.h"
#include "thresher/base/new_file.h"
#include "thresher/base/thread_pool.h"
#include "thresher/base/version.h"
#include "thresher/profile/profiler.h"
#include "thresher/profile/rank.h"

namespace thresher::profile {
namespace {

constexpr std::string_view kMagic = "THRTRACE";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kPadding = 8;

struct BlockHeader {
  std::array<char, 4> tag;
  uint32_t crc;
  uint64_t bytes;
};
static_assert(sizeof(BlockHeader) == 16);

BlockHeader HeaderOf(std::string_view tag, const void* payload, size_t size) {
  return {{tag[0], tag[1], tag[2], tag[3]}, Crc32(payload, size), size};
}

constexpr char kZeros[kPadding] = {};
constexpr size_t PaddingOf(size_t size) { return (kPadding - size % kPadding) % kPadding; }

std::string Problem(const std::string& path, int error) {
  return (path.empty() ? "the trace in memory" : path) + ": " + std::generic_category().message(error);
}

// All of it, or the error number.
int WriteAll(int fd, const void* data, size_t size) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(fd, p, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    p += written;
    size -= static_cast<size_t>(written);
  }
  return 0;
}

// Appends blocks to a file. Not thread safe.
class BlockWriter {
 public:
  explicit BlockWriter(int fd) : fd_(fd) {}
  ~BlockWriter() {
    if (fd_ >= 0) close(fd_);
  }
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  int Begin() {
    const uint32_t numbers[] = {kFormatVersion, sizeof(Record)};
    if (const int error = WriteAll(fd_, kMagic.data(), kMagic.size()); error != 0) return error;
    if (const int error = WriteAll(fd_, numbers, sizeof numbers); error != 0) return error;
    bytes_ = static_cast<int64_t>(kMagic.size() + sizeof numbers);
    return 0;
  }

  // A block that does not fit leaves nothing behind.
  int Append(std::string_view tag, const void* payload, size_t size) {
    const BlockHeader header = HeaderOf(tag, payload, size);
    const size_t padding = PaddingOf(size);
    int error = WriteAll(fd_, &header, sizeof header);
    if (error == 0) error = WriteAll(fd_, payload, size);
    if (error == 0) error = WriteAll(fd_, kZeros, padding);
    if (error == 0) {
      bytes_ += static_cast<int64_t>(sizeof header + size + padding);
    } else if (ftruncate(fd_, bytes_) == 0) {
      lseek(fd_, bytes_, SEEK_SET);
    }
    return error;
  }
  int Append(std::string_view tag, std::string_view payload) { return Append(tag, payload.data(), payload.size()); }

  int fd() const { return fd_; }
  int64_t bytes() const { return bytes_; }

 private:
  const int fd_;
  int64_t bytes_ = 0;
};

struct Trace {
  Trace(int fd, TraceOptions wanted) : options(std::move(wanted)), writer(fd) {}

  const TraceOptions options;
  std::mutex mutex;  // guards all below
  BlockWriter writer;
  uint32_t sites = 0;  // written so far
  uint64_t records = 0;
  uint64_t dropped = 0;
  int64_t num_threads = 0;  // the most of a plan that ran
  std::string problem;
  bool finished = false;

  void Fail(int error) {
    if (problem.empty()) problem = Problem(options.path, error);
  }

  void Write(std::span<const Record> batch) {
    const std::lock_guard lock(mutex);
    const int64_t needed = static_cast<int64_t>(batch.size_bytes() + sizeof(BlockHeader));
    if (problem.empty() && writer.bytes() + needed > options.max_bytes) {
      problem = "the trace has reached its limit of " + std::to_string(options.max_bytes) + " bytes";
    }
    if (problem.empty()) WriteSites();
    if (problem.empty()) {
      if (const int error = writer.Append("RECS", batch.data(), batch.size_bytes()); error != 0) Fail(error);
    }
    (problem.empty() ? records : dropped) += batch.size();
    for (const Record& record : batch) {
      if (record.kind == Kind::kExecution) num_threads = std::max(num_threads, record.value);
    }
  }

  void WriteSites() {
    const std::vector<Site> fresh = SitesFrom(sites);
    if (fresh.empty()) return;
    std::string json = "[";
    for (size_t i = 0; i < fresh.size(); ++i) {
      json += (i == 0 ? "" : ",\n") + ToJson(fresh[i], sites + static_cast<uint32_t>(i));
    }
    if (const int error = writer.Append("SITE", json + "]"); error != 0) return Fail(error);
    sites += static_cast<uint32_t>(fresh.size());
  }

  std::string Tail() const {
    return "{\"stop_ns\": " + std::to_string(NowNs()) + ", \"records\": " + std::to_string(records) +
           ", \"dropped\": " + std::to_string(dropped) +
           (num_threads > 0 ? ", \"num_threads\": " + std::to_string(num_threads) : "") +
           (problem.empty() ? "" : ", \"problem\": " + json::Quote(problem)) + "}";
  }
};

struct State {
  ForkMutex mutex{LockRank::kTraceControl};  // one start, stop or question at a time
  std::shared_ptr<Trace> trace;
  bool running = false;
  pid_t owner = 0;
};

State& GetState() {
  static auto* const state = [] {
    Dropped();  // makes the profiler's mutex, while none is held (fork_mutex.h)
    return new State;
  }();
  return *state;
}

// Forgets, in a forked child, the trace of its parent, which may have been in any state at that time.
void LeaveParentsTrace(State& state) {
  if (state.trace == nullptr || state.owner == getpid()) return;
  new std::shared_ptr<Trace>(std::move(state.trace));  // not closed: the parent's thread may have held its lock
  state.trace = nullptr;
  state.running = false;
}

int OpenNew(const std::string& path) { return open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644); }

Status CannotOpen(const std::string& path, int error) {
  if (error == EEXIST) {
    return InvalidArgument("trace: expected a new file, got one at " + path + "; remove it or choose another name");
  }
  return InvalidArgument("trace: expected a file that can be written, got: " + Problem(path, error) +
                         "; choose another place");
}

std::string Head() {
  return "{\"engine_version\": " + json::Quote(kVersion) + ", \"isa\": " + json::Quote(isa::Name(isa::Current())) +
         ", \"cpu\": " + json::Quote(CpuModel()) +
         ", \"num_threads\": " + std::to_string(ThreadPool::Global().num_threads()) +
         ", \"pid\": " + std::to_string(getpid()) + ", \"rank\": " + std::to_string(Rank()) +
         ", \"world_size\": " + std::to_string(WorldSize()) + ", \"start_ns\": " + std::to_string(NowNs()) + "}";
}

TraceStatus StatusOf(const State& state) {
  TraceStatus status;
  if (state.trace == nullptr) return status;
  Trace& trace = *state.trace;
  const std::lock_guard lock(trace.mutex);
  status.running = state.running;
  status.path = trace.options.path;
  status.records = trace.records;
  status.dropped = trace.dropped + (state.running ? Lost(Outlet::kTrace) : 0);
  status.bytes = trace.writer.bytes();
  status.problem = trace.problem;
  return status;
}

}  // namespace

Status StartTrace(const TraceOptions& options) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  LeaveParentsTrace(state);
  if (state.running) {
    const std::string& path = state.trace->options.path;
    return InvalidArgument("trace: expected to start one, got one running" + (path.empty() ? "" : " into " + path) +
                           "; stop it first");
  }
  const int fd = options.path.empty() ? memfd_create("thresher-trace", MFD_CLOEXEC) : OpenNew(options.path);
  if (fd < 0) return CannotOpen(options.path, errno);
  auto trace = std::make_shared<Trace>(fd, options);
  int error = trace->writer.Begin();
  if (error == 0) error = trace->writer.Append("HEAD", Head());
  if (error != 0) {
    if (!options.path.empty()) unlink(options.path.c_str());
    return CannotOpen(options.path, error);
  }
  state.trace = trace;
  state.running = true;
  state.owner = getpid();
  Attach(Outlet::kTrace, [trace](std::span<const Record> batch) { trace->Write(batch); });
  return Status::Ok();
}

TraceStatus StopTrace() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  LeaveParentsTrace(state);
  if (state.running) {
    Detach(Outlet::kTrace);
    state.running = false;
    Trace& trace = *state.trace;
    const std::lock_guard trace_lock(trace.mutex);
    if (const uint64_t lost = Lost(Outlet::kTrace); lost > 0) {
      trace.dropped += lost;
      if (trace.problem.empty()) trace.problem = "records came faster than they could be written";
    }
    trace.finished = true;
    if (const int error = trace.writer.Append("TAIL", trace.Tail()); error != 0) trace.Fail(error);
  }
  return StatusOf(state);
}

TraceStatus GetTraceStatus() {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  LeaveParentsTrace(state);
  return StatusOf(state);
}

Status AnnotateTrace(const std::string& json_object) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  LeaveParentsTrace(state);
  if (!state.running) return InvalidArgument("trace: expected one that runs, to annotate it; got none");
  Trace& trace = *state.trace;
  const std::lock_guard trace_lock(trace.mutex);
  if (const int error = trace.writer.Append("DATA", json_object); error != 0) trace.Fail(error);
  return Status::Ok();
}

Status SaveTrace(const std::string& path) {
  State& state = GetState();
  const std::lock_guard lock(state.mutex);
  LeaveParentsTrace(state);
  if (state.trace == nullptr) {
    return InvalidArgument("trace: expected one to save, got none; start one with thresher.profiler.start(trace=True)");
  }
  if (access(path.c_str(), F_OK) == 0) return CannotOpen(path, EEXIST);  // before the work; Commit() asks again
  if (state.running) Deliver();
  Trace& trace = *state.trace;
  NewFile copy(path);
  const std::lock_guard trace_lock(trace.mutex);
  std::vector<char> buffer(size_t{1} << 20);
  for (int64_t at = 0; copy.error() == 0 && at < trace.writer.bytes();) {
    const int64_t wanted = std::min(static_cast<int64_t>(buffer.size()), trace.writer.bytes() - at);
    const ssize_t got = pread(trace.writer.fd(), buffer.data(), static_cast<size_t>(wanted), at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      copy.Fail(got < 0 ? errno : EIO);
      break;
    }
    copy.Write(buffer.data(), static_cast<uint64_t>(got));
    at += got;
  }
  if (!trace.finished) {
    const std::string tail = trace.Tail();
    const BlockHeader header = HeaderOf("TAIL", tail.data(), tail.size());
    copy.Write(&header, sizeof header);
    copy.Write(tail.data(), tail.size());
    copy.Write(kZeros, PaddingOf(tail.size()));
  }
  const int error = copy.Commit(/*replace=*/false);
  return error == 0 ? Status::Ok() : CannotOpen(path, error);
}

}  // namespace thresher::profile
