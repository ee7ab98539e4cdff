// The check of longjmp knows one stack only.
#undef _FORTIFY_SOURCE

#include "cuda/emulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
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
constexpr int kWordsPerRow = 4;  // of a matrix, and of what CopyFour copies
constexpr int kBankRows = 8;     // rows of a matrix that the banks hold side by side
constexpr int64_t kMostGridBlocks = 0x7fffffff;
constexpr size_t kMostParameterBytes = 4096;

thread_local int64_t matrix_operations = 0;

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
        exchanges_(static_cast<size_t>(size())),
        copies_(static_cast<size_t>(size())),
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
      if (all_ended) WantAllWaited();
      if (!problem_.empty() || all_ended) return problem_;
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

  // For accesses of four words at once.
  void WantMultiple(int thread, int64_t index) {
    if (index % kWordsPerRow != 0) Problem(thread, index, "uses four words from there, no multiple of 4");
  }

  // What a thread shows to its warp.
  using Shown = std::array<uint32_t, 6>;

  // Gives what each lane of the warp shows, until the thread exchanges again.
  const Shown* Exchange(int thread, const Shown& shown) {
    // Two places in turns: who writes to one again has met all that wanted to read it.
    Shown* const half = exchange_.data() + exchanges_[static_cast<size_t>(thread)]++ % 2 * size();
    half[thread] = shown;
    SyncWarp(thread);
    return half + thread / kWarp * kWarp;
  }

  float ShuffleXor(int thread, float v, int mask) {
    return std::bit_cast<float>(Exchange(thread, {std::bit_cast<uint32_t>(v)})[(thread % kWarp) ^ mask][0]);
  }

  bool Any(int thread, bool v) {
    const Shown* const all = Exchange(thread, {v ? 1u : 0u});
    return std::any_of(all, all + kWarp, [](const Shown& one) { return one[0] != 0; });
  }

  void LoadMatrices(int thread, int at, bool turned, uint32_t (&m)[4]) {
    const Shown* const rows = Exchange(thread, {static_cast<uint32_t>(at)});
    const int lane = thread % kWarp;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const auto row = [&](int i) { return static_cast<int64_t>(rows[matrix * kBankRows + i][0]); };
      unsigned banks = 0;
      for (int i = 0; i < kBankRows; ++i) {
        WantMultiple(thread, row(i));
        banks |= 1u << row(i) / kWordsPerRow % kBankRows;
      }
      if (banks != 0xffu) Problem(thread, row(0), "loads a matrix from there of which several rows lie in one bank");
      const auto half = [&](int i, int col) { return Load(thread, row(i) + col / 2) >> (col % 2 * 16) & 0xffffu; };
      const int outer = lane / 4, inner = lane % 4 * 2;
      m[matrix] = turned ? half(inner, outer) | half(inner + 1, outer) << 16
                         : half(outer, inner) | half(outer, inner + 1) << 16;
    }
  }

  void MultiplyAdd(int thread, float (*widen)(uint16_t), const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                   float (&c)[4]) {
    const Shown* const lanes = Exchange(thread, {a[0], a[1], a[2], a[3], b0, b1});
    if (thread % kWarp == 0) ++matrix_operations;
    const auto half = [&](uint32_t word, int k) { return widen(static_cast<uint16_t>(word >> (k % 2 * 16))); };
    for (int i = 0; i < 4; ++i) {
      const int row = thread % kWarp / 4, col = thread % kWarp % 4 * 2 + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) {
        const float x = half(lanes[row * 4 + k % 8 / 2][static_cast<size_t>(i / 2 + k / 8 * 2)], k);
        sum += x * half(lanes[col * 4 + k % 8 / 2][static_cast<size_t>(4 + k / 8)], k);
      }
      c[i] += sum;
    }
  }

  void CopyFour(int thread, int at, const void* from, int bytes) {
    WantMultiple(thread, at);
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0)
      Problem(thread, at, "copies from an address that is no multiple of 16");
    if (bytes < 0 || bytes > 16) Problem(thread, at, "copies " + std::to_string(bytes) + " of 16 bytes to it");
    uint32_t words[kWordsPerRow] = {};
    std::memcpy(words, from, static_cast<size_t>(bytes));
    for (int i = 0; i < kWordsPerRow; ++i) {
      Cell* const cell = WantUnused(thread, at + i);
      if (cell == nullptr) return;
      cell->copied_by = thread;
      copies_[static_cast<size_t>(thread)].open.push_back({at + i, words[i]});
    }
  }

  void CommitCopies(int thread) {
    Copies& copies = copies_[static_cast<size_t>(thread)];
    copies.groups.push_back(std::move(copies.open));
    copies.open.clear();
  }

  void WaitCopies(int thread, int but) {
    Copies& copies = copies_[static_cast<size_t>(thread)];
    while (copies.groups.size() > static_cast<size_t>(but)) {
      for (const auto& [index, word] : copies.groups.front()) {
        Cell& cell = shared_[static_cast<size_t>(index)];
        cell.copied_by = -1;
        Written(cell, thread, word);
      }
      copies.groups.pop_front();
    }
  }

  uint32_t Load(int thread, int64_t index) {
    Cell* const cell = CellAt(thread, index);
    if (cell == nullptr) return 0;
    WantNoCopy(*cell, thread, index);
    if (cell->written_by < 0) Problem(thread, index, "reads it before anybody has written it");
    if (cell->write_epoch == epoch_ && cell->written_by != thread) {
      Problem(thread, index, "reads what thread " + std::to_string(cell->written_by) + " writes without a barrier");
    }
    if (cell->read_epoch != epoch_) cell->read_by = thread;
    if (cell->read_by != thread) cell->read_by = kSeveral;
    cell->read_epoch = epoch_;
    return cell->word;
  }

  void Store(int thread, int64_t index, uint32_t word) {
    Cell* const cell = WantUnused(thread, index);
    if (cell != nullptr) Written(*cell, thread, word);
  }

 private:
  enum class Wait : uint8_t { kNone, kWarp, kBlock };
  static constexpr int kSeveral = -2;
  struct Cell {
    uint32_t word = 0x7fc00000;  // a NaN
    int written_by = -1;
    int read_by = -1;
    int copied_by = -1;  // who has not waited for it yet
    int64_t write_epoch = -1;
    int64_t read_epoch = -1;
  };
  // Words that a thread copies, and where to.
  struct Copies {
    using Group = std::vector<std::pair<int64_t, uint32_t>>;
    Group open;
    std::deque<Group> groups;
  };

  void Written(Cell& cell, int thread, uint32_t word) const {
    cell.word = word;
    cell.written_by = thread;
    cell.write_epoch = epoch_;
  }

  void WantNoCopy(const Cell& cell, int thread, int64_t index) {
    if (cell.copied_by < 0) return;
    Problem(thread, index, "uses it while thread " + std::to_string(cell.copied_by) + " copies to it");
  }

  // A word that the thread may write.
  Cell* WantUnused(int thread, int64_t index) {
    Cell* const cell = CellAt(thread, index);
    if (cell == nullptr) return nullptr;
    WantNoCopy(*cell, thread, index);
    if (cell->write_epoch == epoch_ && cell->written_by != thread) {
      Problem(thread, index, "writes what thread " + std::to_string(cell->written_by) + " writes without a barrier");
    }
    if (cell->read_epoch == epoch_ && cell->read_by != thread) {
      Problem(thread, index, "writes what another thread reads without a barrier");
    }
    return cell;
  }

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
    problem_ = "block " + std::to_string(number_) + ", shared word " + std::to_string(index) + ": thread " +
               std::to_string(thread) + " " + what;
  }

  void WantAllWaited() {
    for (int i = 0; i < size(); ++i) {
      const Copies& copies = copies_[static_cast<size_t>(i)];
      const auto is_empty = [](const Copies::Group& group) { return group.empty(); };
      if (is_empty(copies.open) && std::all_of(copies.groups.begin(), copies.groups.end(), is_empty)) continue;
      Problem(i, -1, "ends without having waited for what it copies");
    }
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
  std::vector<Shown> exchange_;
  std::vector<int> exchanges_;  // of each thread
  std::vector<Copies> copies_;  // of each thread
  std::vector<int> warp_arrivals_;
  int block_arrivals_ = 0;
  int64_t epoch_ = 0;  // barriers passed
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Wait> waits_;
  std::string problem_;
};

uint32_t LoadShared(Block& block, int thread, int64_t index) { return block.Load(thread, index); }
void StoreShared(Block& block, int thread, int64_t index, uint32_t word) { block.Store(thread, index, word); }

int Thread::x() const { return number_ % block_.shape().width; }
int Thread::y() const { return number_ / block_.shape().width; }
int Thread::width() const { return block_.shape().width; }
int Thread::height() const { return block_.shape().height; }
int64_t Thread::block() const { return block_.number(); }
int64_t Thread::num_blocks() const { return block_.shape().blocks; }
void Thread::Sync() { block_.Sync(number_); }
float Thread::ShuffleXor(float v, int mask) { return block_.ShuffleXor(number_, v, mask); }
bool Thread::Any(bool v) { return block_.Any(number_, v); }
Four Thread::LoadFour(int at) {
  block_.WantMultiple(number_, at);
  const SharedMemory<float> from = shared();
  return {from[at], from[at + 1], from[at + 2], from[at + 3]};
}
void Thread::StoreFour(int at, const Four& v) {
  block_.WantMultiple(number_, at);
  const SharedMemory<float> to = shared();
  const float values[] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < kWordsPerRow; ++i) to[at + i] = values[i];
}
void Thread::CopyFour(int at, const void* from, int bytes) { block_.CopyFour(number_, at, from, bytes); }
void Thread::CommitCopies() { block_.CommitCopies(number_); }
void Thread::WaitCopies(int but) { block_.WaitCopies(number_, but); }
void Thread::LoadMatrices(int at, bool turned, uint32_t (&m)[4]) { block_.LoadMatrices(number_, at, turned, m); }
void Thread::MultiplyAdd(float (*widen)(uint16_t), const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&c)[4]) {
  block_.MultiplyAdd(number_, widen, a, b0, b1, c);
}

int64_t MatrixOperations() { return matrix_operations; }

std::string RunBlocks(const Shape& shape, size_t parameter_bytes, Order order,
                      const std::function<void(Thread&)>& kernel) {
  const int threads = shape.width * shape.height;
  if (shape.width <= 0 || shape.width % kWarp != 0 || threads <= 0 || threads > kMostThreads) {
    return "a block of " + std::to_string(shape.width) + " x " + std::to_string(shape.height) + " threads";
  }
  if (shape.blocks <= 0 || shape.blocks > kMostGridBlocks) return "a grid of " + std::to_string(shape.blocks);
  if (shape.shared_floats < 0 || shape.shared_floats > kMostSharedBytes / 4) {
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
