#include "thresher/run/cpu_device.h"

#include <concepts>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "thresher/base/arena.h"
#include "thresher/base/clock.h"
#include "thresher/base/cpu.h"
#include "thresher/base/isa.h"
#include "thresher/base/thread_pool.h"
#include "thresher/cuda/gemm_layout.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/norm.h"
#include "thresher/kernels/softmax.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/device_sites.h"

namespace thresher {
namespace {

// Records what the calling thread and the pool do from one brace to the other as one operator.
class OpRecord {
 public:
  template <class MakeSite>
    requires std::invocable<MakeSite>
  explicit OpRecord(MakeSite&& make_site) : on_(profile::Enabled()) {
    if (!on_) return;
    profile::Site site = make_site();
    section_ = site.section;
    site_ = profile::NumberOf(std::move(site));
    start_ = NowNs();
  }
  ~OpRecord() {
    if (!on_) return;
    profile::Record record;
    record.end_ns = NowNs();
    record.start_ns = record.value = start_;
    record.kind = profile::Kind::kOp;
    record.section = section_;
    record.site = site_;
    record.correlation = profile::NextCorrelations(1);
    profile::Add(record);
  }
  OpRecord(const OpRecord&) = delete;
  OpRecord& operator=(const OpRecord&) = delete;

 private:
  const bool on_;
  profile::Section section_ = profile::Section::kForward;
  uint32_t site_ = 0;
  int64_t start_ = 0;
};

std::string_view Variant() { return isa::Name(isa::Current()); }

class CpuEvent : public DeviceEvent {
 public:
  Status Synchronize() override { return Status::Ok(); }
  Result<double> NsSince(DeviceEvent& earlier) override {
    return static_cast<double>(time_ns_ - static_cast<CpuEvent&>(earlier).time_ns_);
  }
  void Record() { time_ns_ = NowNs(); }

 private:
  int64_t time_ns_ = 0;
};

float FromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// Rows that lie `stride` apart, as floats without holes.
std::vector<float> Widen(const void* data, int64_t rows, int64_t cols, int64_t stride) {
  std::vector<float> out(static_cast<size_t>(rows * cols));
  const auto* from = static_cast<const uint16_t*>(data);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) out[static_cast<size_t>(i * cols + j)] = FromBf16(from[i * stride + j]);
  }
  return out;
}

class CpuStream : public DeviceStream {
 public:
  Status CopyToDevice(void* to, const void* host, size_t bytes) override { return Copy("HtoD", to, host, bytes); }
  Status CopyToHost(void* host, const void* from, size_t bytes) override { return Copy("DtoH", host, from, bytes); }
  Status CopyOnDevice(void* to, const void* from, size_t bytes) override { return Copy("DtoD", to, from, bytes); }

  Status Fill(void* to, uint8_t value, size_t bytes) override {
    if (bytes == 0) return Status::Ok();
    const OpRecord record([&] { return SiteOfFill(bytes); });
    std::memset(to, value, bytes);
    return Status::Ok();
  }

  Status RunChain(const kernels::Chain& chain, std::span<const View> operands, const View& out) override {
    if (out.size() == 0) return Status::Ok();
    kernels::Chain assigned = chain;
    kernels::AssignSlots(assigned);
    const size_t scratch_bytes = AlignUp(kernels::ChainScratchBytes(assigned));
    ThreadPool& pool = ThreadPool::Global();
    const int parts = pool.num_threads();
    THRESHER_ASSIGN(const Arena scratch, Arena::Allocate(scratch_bytes * static_cast<size_t>(parts)));
    const OpRecord record([&] { return SiteOfChain(chain, out, Variant()); });
    pool.Run(
        [&](int part, int num_parts) {
          kernels::RunChain(assigned, operands.data(), out, scratch.data() + scratch_bytes * static_cast<size_t>(part),
                            part, num_parts);
        },
        parts);
    return Status::Ok();
  }

  Status Norm(const thresher_norm& norm) override {
    if (norm.rows <= 0 || norm.cols <= 0) return Status::Ok();
    const kernels::NormArgs args{.x = norm.x,
                                 .row_stride = norm.x_stride,
                                 .residual = norm.residual,
                                 .residual_row_stride = norm.residual_stride,
                                 .weight = norm.weight,
                                 .bias = norm.bias,
                                 .eps = norm.eps,
                                 .out = norm.out,
                                 .out_row_stride = norm.out_stride,
                                 .sum = norm.sum,
                                 .sum_row_stride = norm.sum_stride,
                                 .rows = norm.rows,
                                 .cols = norm.cols};
    const OpRecord record([&] { return SiteOf(norm, Variant()); });
    ThreadPool::Global().Run([&](int part, int num_parts) {
      norm.rms != 0 ? kernels::RmsNorm(args, part, num_parts) : kernels::LayerNorm(args, part, num_parts);
    });
    return Status::Ok();
  }

  Status Softmax(const thresher_softmax& s) override {
    if (s.outer <= 0 || s.dim <= 0 || s.inner <= 0) return Status::Ok();
    const OpRecord record([&] { return SiteOf(s, Variant()); });
    ThreadPool::Global().Run([&](int part, int num_parts) {
      kernels::Softmax(s.x, s.out, s.outer, s.dim, s.inner, s.log != 0, part, num_parts);
    });
    return Status::Ok();
  }

  // Packs b each time: plans, which keep packed weights, do not come this way.
  Status Gemm(const thresher_gemm& g) override {
    if (const std::string problem = cuda::CheckGemm(g); !problem.empty()) return InvalidArgument(problem);
    const bool bf16 = g.type == THRESHER_GEMM_BF16;
    const int64_t b_rows = g.transpose_b != 0 ? g.n : g.k;
    const int64_t b_cols = g.transpose_b != 0 ? g.k : g.n;
    std::vector<float> wide_a, wide_b;
    if (bf16) {
      wide_a = Widen(g.a, g.m, g.k, g.lda);
      wide_b = Widen(g.b, b_rows, b_cols, g.ldb);
    }
    const float* const b = bf16 ? wide_b.data() : static_cast<const float*>(g.b);
    const int64_t ldb = bf16 ? b_cols : g.ldb;
    THRESHER_ASSIGN(const Arena packed,
                    Arena::Allocate(static_cast<size_t>(kernels::PackedBytes(Precision::kFp32, g.k, g.n))));
    const Weight weight{b, Encoding::kF32, g.k, g.n, g.transpose_b != 0 ? 1 : ldb, g.transpose_b != 0 ? ldb : 1};
    kernels::PackWeight(Precision::kFp32, weight, packed.data());
    kernels::GemmArgs args;
    args.m = g.m, args.n = g.n, args.k = g.k;
    args.a = bf16 ? wide_a.data() : static_cast<const float*>(g.a);
    args.lda = bf16 ? g.k : g.lda;
    args.packed_b = packed.data();
    args.c = g.c;
    args.ldc = g.ldc;
    args.bias = g.bias;
    ThreadPool& pool = ThreadPool::Global();
    const int parts = pool.num_threads();
    const size_t scratch_bytes = AlignUp(kernels::GemmScratchBytes(args));
    THRESHER_ASSIGN(const Arena scratch, Arena::Allocate(scratch_bytes * static_cast<size_t>(parts)));
    const OpRecord record([&] { return SiteOf(g, Variant()); });
    pool.Run(
        [&](int part, int num_parts) {
          kernels::Gemm(args, scratch.data() + scratch_bytes * static_cast<size_t>(part), part, num_parts);
        },
        parts);
    return Status::Ok();
  }

  Status Record(DeviceEvent& event) override {
    static_cast<CpuEvent&>(event).Record();
    return Status::Ok();
  }
  Status Wait(DeviceEvent&) override { return Status::Ok(); }
  Status Synchronize() override { return Status::Ok(); }

 private:
  static Status Copy(const char* direction, void* to, const void* from, size_t bytes) {
    if (bytes == 0) return Status::Ok();
    const OpRecord record([&] { return SiteOfCopy(std::string("Memcpy ") + direction, bytes); });
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }
};

class Cpu : public Device {
 public:
  explicit Cpu(DeviceInfo info) : Device(std::move(info)) {}

  Result<std::unique_ptr<DeviceStream>> CreateStream() override {
    return std::unique_ptr<DeviceStream>(std::make_unique<CpuStream>());
  }
  Result<std::unique_ptr<DeviceEvent>> CreateEvent() override {
    return std::unique_ptr<DeviceEvent>(std::make_unique<CpuEvent>());
  }

 private:
  Result<void*> AllocateBytes(size_t bytes) override {
    THRESHER_ASSIGN(Arena arena, Arena::Allocate(bytes));
    void* const address = arena.data();
    profile::NoteAllocation(address, static_cast<int64_t>(bytes));
    const std::lock_guard lock(mutex_);
    held_.emplace(address, std::move(arena));
    return address;
  }
  void ReleaseBytes(void* address, size_t bytes) override {
    profile::NoteRelease(address, static_cast<int64_t>(bytes));
    const std::lock_guard lock(mutex_);
    held_.erase(address);
  }

  std::mutex mutex_;
  std::map<void*, Arena> held_;
};

}  // namespace

std::shared_ptr<Device> CpuDevice() {
  DeviceInfo info;
  info.kind = "cpu";
  info.name = CpuModel();
  info.memory_bytes = static_cast<uint64_t>(AvailableMemory());
  info.multiprocessors = UsableCores();
  return std::make_shared<Cpu>(std::move(info));
}

}  // namespace thresher
