// The check of longjmp knows one stack only.
#undef _FORTIFY_SOURCE

#include "cuda/emulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace thresher::cuda::testing {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr int kMostThreads = 1024;
constexpr int kMostSharedFloats = 48 * 1024 / 4;  // without asking for more
constexpr int64_t kMostGridBlocks = 0x7fffffff;
constexpr size_t kMostParameterBytes = 4096;

// Memory of stacks, kept for later blocks and launches.
class Stacks {
 public:
  Stacks() = default;
  ~Stacks() {
    for (void* stack : stacks_) munmap(stack, kStackBytes);
  }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  void* operator[](size_t number) {
    while (stacks_.size() <= number) {
      void* const stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (stack == MAP_FAILED) std::abort();
      stacks_.push_back(stack);
    }
    return stacks_[number];
  }

 private:
  std::vector<void*> stacks_;
};

// Saves where the caller is and goes on in the other context. swapcontext asks the system for the signal mask each
// time, which takes most of a test's time; a jump does not, but the sanitizers do not understand it.
struct Context {
  ucontext_t whole;  // where it begins
  jmp_buf point;
  bool begun = false;

  static void Switch(Context& from, Context& to) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    swapcontext(&from.whole, &to.whole);
#else
    from.begun = true;
    if (_setjmp(from.point) != 0) return;
    if (to.begun) _longjmp(to.point, 1);
    setcontext(&to.whole);
#endif
  }
};

// Switches between the scheduler and fibers, and tells the sanitizers.
class Fiber {
 public:
  Fiber(void* stack, std::function<void()> body) : stack_(stack), body_(std::move(body)) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, kStackBytes);  // what a fiber left that did not come to its end
#endif
    getcontext(&own_.whole);
    own_.whole.uc_stack.ss_sp = stack;
    own_.whole.uc_stack.ss_size = kStackBytes;
    own_.whole.uc_link = nullptr;
    const auto address = reinterpret_cast<uintptr_t>(this);
    makecontext(&own_.whole, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(address >> 32),
                static_cast<unsigned>(address & 0xffffffffu));
#if defined(__SANITIZE_THREAD__)
    own_fiber_ = __tsan_create_fiber(0);
#endif
  }
  ~Fiber() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(own_fiber_);
#endif
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From the scheduler: runs the fiber until it yields or ends.
  void Resume() {
#if defined(__SANITIZE_THREAD__)
    caller_fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(own_fiber_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_, kStackBytes);
#endif
    Context::Switch(caller_, own_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  }

  // From the fiber.
  void Yield() { Leave(false); }

  bool ended() const { return ended_; }

 private:
  static void Enter(unsigned high, unsigned low) {
    auto* const fiber = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &fiber->caller_stack_, &fiber->caller_stack_bytes_);
#endif
    fiber->body_();
    fiber->ended_ = true;
    fiber->Leave(true);
  }

  void Leave([[maybe_unused]] bool for_good) {
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(caller_fiber_, 0);
#endif
#if defined(__SANITIZE_ADDRESS__)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, caller_stack_, caller_stack_bytes_);
#endif
    Context::Switch(own_, caller_);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, &caller_stack_, &caller_stack_bytes_);
#endif
  }

  void* const stack_;
  const std::function<void()> body_;
  Context own_;
  Context caller_;
  bool ended_ = false;
#if defined(__SANITIZE_ADDRESS__)
  const void* caller_stack_ = nullptr;
  size_t caller_stack_bytes_ = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void* own_fiber_ = nullptr;
  void* caller_fiber_ = nullptr;
#endif
};

}  // namespace

class Block {
 public:
  Block(const Shape& shape, int64_t number, Order order, const std::function<void(Thread&)>& kernel, Stacks& stacks)
      : shape_(shape),
        number_(number),
        order_(order),
        shared_(static_cast<size_t>(shape.shared_floats)),
        exchange_(2 * static_cast<size_t>(size())),
        shuffles_(static_cast<size_t>(size())),
        warp_arrivals_(static_cast<size_t>((size() + kWarp - 1) / kWarp)) {
    for (int i = 0; i < size(); ++i) {
      fibers_.push_back(std::make_unique<Fiber>(stacks[static_cast<size_t>(i)], [this, i, &kernel] {
        Thread thread(*this, i);
        kernel(thread);
      }));
      waits_.push_back(Wait::kNone);
    }
  }

  std::string Run() {
    for (;;) {
      bool all_ended = true;
      bool any_ran = false;
      for (int k = 0; k < size(); ++k) {
        const int i = order_ == Order::kForward ? k : size() - 1 - k;
        Fiber& fiber = *fibers_[static_cast<size_t>(i)];
        if (fiber.ended()) continue;
        all_ended = false;
        if (waits_[static_cast<size_t>(i)] != Wait::kNone) continue;
        any_ran = true;
        fiber.Resume();
      }
      // Fibers that have not ended are left where they are: their stacks hold nothing that must be destroyed.
      if (!problem_.empty()) return problem_;
      if (all_ended) return {};
      if (!any_ran) return Stuck();
    }
  }

  int size() const { return shape_.width * shape_.height; }
  const Shape& shape() const { return shape_; }
  int64_t number() const { return number_; }

  void Sync(int thread) {
    if (++block_arrivals_ == size()) {
      block_arrivals_ = 0;
      ++epoch_;
      for (Wait& wait : waits_) wait = Wait::kNone;
      return;
    }
    WaitFor(thread, Wait::kBlock);
  }

  float ShuffleXor(int thread, float v, int mask) {
    // Two places in turns: who writes to one again has met all that wanted to read it.
    const int half = shuffles_[static_cast<size_t>(thread)]++ % 2 * size();
    exchange_[static_cast<size_t>(half + thread)] = v;
    SyncWarp(thread);
    return exchange_[static_cast<size_t>(half + (thread ^ mask))];
  }

  float Load(int thread, int64_t index) {
    Cell* const cell = CellAt(thread, index);
    if (cell == nullptr) return 0;
    if (cell->written_by < 0) Problem(thread, index, "reads it before anybody has written it");
    if (cell->write_epoch == epoch_ && cell->written_by != thread) {
      Problem(thread, index, "reads what thread " + std::to_string(cell->written_by) + " writes without a barrier");
    }
    if (cell->read_epoch != epoch_) cell->read_by = thread;
    if (cell->read_by != thread) cell->read_by = kSeveral;
    cell->read_epoch = epoch_;
    return cell->value;
  }

  void Store(int thread, int64_t index, float value) {
    Cell* const cell = CellAt(thread, index);
    if (cell == nullptr) return;
    if (cell->write_epoch == epoch_ && cell->written_by != thread) {
      Problem(thread, index, "writes what thread " + std::to_string(cell->written_by) + " writes without a barrier");
    }
    if (cell->read_epoch == epoch_ && cell->read_by != thread) {
      Problem(thread, index, "writes what another thread reads without a barrier");
    }
    cell->value = value;
    cell->written_by = thread;
    cell->write_epoch = epoch_;
  }

 private:
  enum class Wait : uint8_t { kNone, kWarp, kBlock };
  static constexpr int kSeveral = -2;
  struct Cell {
    float value = std::numeric_limits<float>::quiet_NaN();
    int written_by = -1;
    int read_by = -1;
    int64_t write_epoch = -1;
    int64_t read_epoch = -1;
  };

  void SyncWarp(int thread) {
    const int warp = thread / kWarp;
    int& arrivals = warp_arrivals_[static_cast<size_t>(warp)];
    if (++arrivals == kWarp) {
      arrivals = 0;
      for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i) waits_[static_cast<size_t>(i)] = Wait::kNone;
      return;
    }
    WaitFor(thread, Wait::kWarp);
  }

  void WaitFor(int thread, Wait wait) {
    waits_[static_cast<size_t>(thread)] = wait;
    do {
      fibers_[static_cast<size_t>(thread)]->Yield();
    } while (waits_[static_cast<size_t>(thread)] != Wait::kNone);
  }

  Cell* CellAt(int thread, int64_t index) {
    if (index >= 0 && index < static_cast<int64_t>(shared_.size())) return &shared_[static_cast<size_t>(index)];
    Problem(thread, index, "uses it, of " + std::to_string(shared_.size()) + " that the launch asked for");
    return nullptr;
  }

  void Problem(int thread, int64_t index, const std::string& what) {
    if (!problem_.empty()) return;
    problem_ = "block " + std::to_string(number_) + ", shared float " + std::to_string(index) + ": thread " +
               std::to_string(thread) + " " + what;
  }

  std::string Stuck() const {
    int counts[3] = {};
    for (int i = 0; i < size(); ++i) {
      if (!fibers_[static_cast<size_t>(i)]->ended()) ++counts[static_cast<int>(waits_[static_cast<size_t>(i)])];
    }
    return "block " + std::to_string(number_) + ": of " + std::to_string(size()) + " threads " +
           std::to_string(counts[2]) + " wait at a barrier and " + std::to_string(counts[1]) +
           " in a shuffle that the others do not reach";
  }

  const Shape& shape_;
  const int64_t number_;
  const Order order_;
  std::vector<Cell> shared_;
  std::vector<float> exchange_;
  std::vector<int> shuffles_;  // of each thread
  std::vector<int> warp_arrivals_;
  int block_arrivals_ = 0;
  int64_t epoch_ = 0;  // barriers passed
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Wait> waits_;
  std::string problem_;
};

SharedFloat::operator float() const { return block_.Load(thread_, index_); }

SharedFloat& SharedFloat::operator=(float value) {
  block_.Store(thread_, index_, value);
  return *this;
}

int Thread::x() const { return number_ % block_.shape().width; }
int Thread::y() const { return number_ / block_.shape().width; }
int Thread::width() const { return block_.shape().width; }
int Thread::height() const { return block_.shape().height; }
int64_t Thread::block() const { return block_.number(); }
int64_t Thread::num_blocks() const { return block_.shape().blocks; }
void Thread::Sync() { block_.Sync(number_); }
float Thread::ShuffleXor(float v, int mask) { return block_.ShuffleXor(number_, v, mask); }

std::string RunBlocks(const Shape& shape, size_t parameter_bytes, Order order,
                      const std::function<void(Thread&)>& kernel) {
  const int threads = shape.width * shape.height;
  if (shape.width <= 0 || shape.width % kWarp != 0 || threads <= 0 || threads > kMostThreads) {
    return "a block of " + std::to_string(shape.width) + " x " + std::to_string(shape.height) + " threads";
  }
  if (shape.blocks <= 0 || shape.blocks > kMostGridBlocks) return "a grid of " + std::to_string(shape.blocks);
  if (shape.shared_floats < 0 || shape.shared_floats > kMostSharedFloats) {
    return std::to_string(shape.shared_floats) + " floats of shared memory";
  }
  if (parameter_bytes > kMostParameterBytes) return std::to_string(parameter_bytes) + " bytes of parameters";
  thread_local Stacks stacks;
  for (int64_t k = 0; k < shape.blocks; ++k) {
    const int64_t number = order == Order::kForward ? k : shape.blocks - 1 - k;
    std::string problem = Block(shape, number, order, kernel, stacks).Run();
    if (!problem.empty()) return problem;
  }
  return {};
}

}  // namespace thresher::cuda::testing
