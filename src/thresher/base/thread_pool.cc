#include "thresher/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "thresher/base/cpu.h"
#include "thresher/base/env.h"
#include "thresher/base/spin.h"
#include "thresher/base/topology.h"
#include "thresher/base/waking_place.h"

namespace thresher {

struct alignas(64) ThreadPool::Worker {
  std::atomic<uint32_t> asleep{0};
  std::atomic<uint32_t> ticket{0};  // what it sleeps on
  WakingPlace place;
  std::thread thread;
};

namespace {

thread_local bool inside_work = false;

std::atomic<const OpenMp*> open_mp{nullptr};
thread_local bool borrowing = false;

// Address space that threads must leave: under a limit on memory their stacks would else take what their work needs,
// and the C library's heaps, of which threads may take several with 64 MiB each.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() {
    if (start_ != MAP_FAILED) munmap(start_, kBytes);
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 20;
  void* start_ = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
};

// Keeps the calling thread on a core, if there is one of that number. The system may refuse: then it runs anywhere.
void Pin(int number) {
  const std::vector<Core>& cores = UsableTopology().cores;
  if (number >= static_cast<int>(cores.size())) return;
  const std::vector<int>& cpus = cores[static_cast<size_t>(number)].cpus;
  cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpus.back()) + 1);
  if (set == nullptr) return;
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(cpus.back()) + 1);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  (void)sched_setaffinity(0, bytes, set);
  CPU_FREE(set);
}

struct InsideWork {
  InsideWork() { inside_work = true; }
  ~InsideWork() { inside_work = false; }
};

// The shared pool. Neither is ever destroyed: threads may still call after static destructors have begun.
std::atomic<ThreadPool*> global_pool{nullptr};
alignas(std::mutex) unsigned char global_mutex_storage[sizeof(std::mutex)];

std::mutex& GlobalMutex() { return *std::launder(reinterpret_cast<std::mutex*>(global_mutex_storage)); }

std::atomic<int> global_size{0};  // what was set; 0: the default

// The pools of all teams, the shared one first; never given up either, as nothing of it.
using Teams = std::vector<ThreadPool*>;
std::atomic<const Teams*> global_teams{nullptr};
thread_local size_t last_team = 0;

// The first of the numbers in OMP_NUM_THREADS, which has one for each level of nesting; 0: none. What OpenMP's
// libraries do not understand they ignore, and so does this.
int OpenMpSize() {
  const std::string value = env::Raw("OMP_NUM_THREADS");
  const size_t begin = std::min(value.find_first_not_of(" \t"), value.size());
  const char* const end = value.data() + value.size();
  int number = 0;
  const auto [rest, error] = std::from_chars(value.data() + begin, end, number);
  const bool whole = rest == end || *rest == ',' || *rest == ' ' || *rest == '\t';
  return error == std::errc() && whole && number > 0 ? number : 0;
}

void EndWorkersAtExit() {
  // Later calls find a pool of one and run on their own thread.
  if (const Teams* teams = global_teams.load(std::memory_order_acquire)) {
    for (ThreadPool* team : *teams) team->Resize(1);
  }
}

void LockBeforeFork() { GlobalMutex().lock(); }
void UnlockInParent() { GlobalMutex().unlock(); }
void ForgetInChild() {
  // The workers did not survive the fork, and the pool's locks may be held by threads that did not either: the memory
  // is given up and the next call makes a new pool. The mutex belongs to this thread, which locked it before the fork.
  GlobalMutex().unlock();
  global_pool.store(nullptr, std::memory_order_release);
  global_teams.store(nullptr, std::memory_order_release);
  open_mp.store(nullptr, std::memory_order_release);
  borrowing = false;
  inside_work = false;
}

// Runs when the library is loaded, before any thread can fork or call.
const bool hooks_installed = []() noexcept {
  new (global_mutex_storage) std::mutex;
  pthread_atfork(LockBeforeFork, UnlockInParent, ForgetInChild);
  std::atexit(EndWorkersAtExit);
  return true;
}();

}  // namespace

ThreadPool::ThreadPool(int num_threads) : ThreadPool(num_threads, Place{}) {}
ThreadPool::ThreadPool(int num_threads, Place place) : place_(place) { Start(num_threads); }

ThreadPool::~ThreadPool() { Resize(1); }

void ThreadPool::Start(int num_threads) {
  num_threads = std::max(num_threads, 1);
  // With more threads than CPUs, a spinning thread keeps the one it waits for from running.
  spin_ns_ = num_threads * place_.teams <= UsableCpus() ? kSpinNs : 0;
  ending_.store(false);
  rounds_ = std::make_unique<Rounds>(num_threads, spin_ns_);
  if (num_threads > 1) {
    const Room room;
    workers_ = std::make_unique<Worker[]>(static_cast<size_t>(num_threads - 1));
    for (int thread = 1; thread < num_threads; ++thread) {
      Worker& worker = workers_[static_cast<size_t>(thread - 1)];
      try {
        worker.thread = std::thread([this, &worker, thread] { Loop(worker, thread); });
      } catch (const std::system_error&) {
        num_threads = thread;  // the system gives no more threads: work with those there are
      }
    }
  }
  num_threads_.store(num_threads, std::memory_order_release);
}

void ThreadPool::Stop() {
  const int num_threads = this->num_threads();
  num_threads_.store(1, std::memory_order_release);
  ending_.store(true);
  for (int thread = 1; thread < num_threads; ++thread) Wake(thread);
  for (int i = 0; i < num_threads - 1; ++i) workers_[static_cast<size_t>(i)].thread.join();
  workers_.reset();
}

bool ThreadPool::Wake(int thread) {
  Worker& worker = workers_[static_cast<size_t>(thread - 1)];
  // One that does not sleep yet will look once more before it does.
  if (worker.asleep.load() == 0) return false;
  worker.place.Avoid(leader_cpu_.load(std::memory_order_relaxed));
  worker.ticket.fetch_add(1);
  worker.ticket.notify_one();
  return true;
}

void ThreadPool::WakeGroup(int second, int end) {
  for (int thread = second; thread < std::min(second + Rounds::kGroup - 1, end); ++thread) Wake(thread);
}

void ThreadPool::Loop(Worker& worker, int thread) {
  inside_work = true;
  if (place_.pinned) Pin(place_.team * static_cast<int>(UsableTopology().cores.size()) / place_.teams + thread);
  for (;;) {
    if (!rounds_->SpinUntilOpen(thread)) {
      // It is most often woken from where it was last. A thread that is pinned, or one of more than there are CPUs for,
      // has no place of its own to wake up at.
      const bool placed = !place_.pinned && spin_ns_ > 0;
      if (placed) worker.place.LieDown(leader_cpu_.load(std::memory_order_relaxed));
      const uint32_t ticket = worker.ticket.load();
      worker.asleep.store(1);
      if (!ending_.load() && !rounds_->OpenFor(thread)) worker.ticket.wait(ticket);
      worker.asleep.store(0);
      if (placed) worker.place.GetUp();
      // The first of a group wakes the others.
      if (thread % Rounds::kGroup == 0) WakeGroup(thread + 1, woken_.load(std::memory_order_relaxed));
    }
    if (ending_.load()) return;
    rounds_->Join(thread);
  }
}

void ThreadPool::Run(FunctionRef<void(int part, int num_parts)> work, int max_parts) {
  if (inside_work || max_parts <= 1 || num_threads() == 1) {
    work(0, 1);
    return;
  }
  const std::lock_guard lock(run_mutex_);
  int num_parts = std::min(num_threads(), max_parts);  // read again: Resize may have come first
  if (borrowing) {
    // Rounds are for any number of threads; here each must have its part.
    struct Call {
      FunctionRef<void(int, int)>& work;
      const OpenMp& library;
      std::exception_ptr thrown;
      std::atomic<bool> failed{false};
    } call{work, *open_mp.load(std::memory_order_acquire), nullptr};
    constexpr auto kBody = [](void* data) {
      Call& call = *static_cast<Call*>(data);
      const InsideWork inside;
      try {
        call.work(call.library.thread_number(), call.library.team_size());
      } catch (...) {
        if (!call.failed.exchange(true)) call.thrown = std::current_exception();
      }
    };
    call.library.parallel(kBody, &call, static_cast<unsigned>(num_parts), 0);
    if (call.failed) std::rethrow_exception(call.thrown);
    return;
  }
  Share({.num_rounds = 1,
         .parts = [&](int) { return num_parts; },
         .work = [&](int, int part, int) { work(part, num_parts); },
         .ended = [](int) {},
         .fixed = true},
        num_parts);
}

void ThreadPool::RunRounds(const Rounds::Job& job, int max_threads) {
  if (inside_work || max_threads <= 1 || num_threads() == 1) {
    for (int round = 0; round < job.num_rounds && job.goes_on(round); ++round) {
      const int num_parts = job.parts(round);
      for (int part = 0; part < num_parts; ++part) job.work(round, part, 0);
      job.ended(round);
    }
    return;
  }
  const std::lock_guard lock(run_mutex_);
  Share(job, std::min(num_threads(), max_threads));
}

void ThreadPool::RunOnATeam(const Rounds::Job& job, int max_threads) {
  ThreadPool& shared = Global();
  const Teams* teams = global_teams.load(std::memory_order_acquire);
  if (inside_work || borrowing || teams == nullptr || teams->size() < 2) return shared.RunRounds(job, max_threads);
  for (size_t i = 0; i < teams->size(); ++i) {
    const size_t number = (last_team + i) % teams->size();
    ThreadPool& team = *(*teams)[number];
    if (max_threads <= 1 || team.num_threads() == 1) return team.RunRounds(job, max_threads);
    const std::unique_lock lock(team.run_mutex_, std::try_to_lock);
    if (!lock) continue;
    last_team = number;
    return team.Share(job, std::min(team.num_threads(), max_threads));
  }
  (*teams)[last_team % teams->size()]->RunRounds(job, max_threads);
}

void ThreadPool::Share(const Rounds::Job& job, int num_threads) {
  woken_.store(num_threads, std::memory_order_relaxed);
  leader_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
  rounds_->Begin(job, num_threads);
  if (borrowing) return RunOnTeam(num_threads);
  // A tree of two levels: this thread wakes its own group and the first of each other one that sleeps.
  for (int first = Rounds::kGroup; first < num_threads; first += Rounds::kGroup) {
    if (!Wake(first)) WakeGroup(first + 1, num_threads);
  }
  WakeGroup(1, num_threads);
  const InsideWork inside;
  rounds_->Lead();
}

void ThreadPool::RunOnTeam(int num_threads) {
  struct Team {
    Rounds& rounds;
    const OpenMp& library;
    std::exception_ptr thrown;
  } team{*rounds_, *open_mp.load(std::memory_order_acquire), nullptr};
  // The library may give fewer threads than it was asked for.
  constexpr auto kBody = [](void* data) {
    Team& team = *static_cast<Team*>(data);
    const InsideWork inside;
    const int thread = team.library.thread_number();
    if (thread > 0) return team.rounds.Join(thread);
    try {
      team.rounds.Lead();
    } catch (...) {  // not through the library's frames
      team.thrown = std::current_exception();
    }
  };
  team.library.parallel(kBody, &team, static_cast<unsigned>(num_threads), 0);
  if (team.thrown != nullptr) std::rethrow_exception(team.thrown);
}

bool ThreadPool::BorrowOpenMp() {
  const OpenMp* library = open_mp.load(std::memory_order_acquire);
  borrowing = library != nullptr && !inside_work && library->max_threads() == Global().num_threads();
  return borrowing;
}

void ThreadPool::GiveBack() { borrowing = false; }

void ThreadPool::SetOpenMp(const OpenMp& library) {
  // Never given up: threads may still call after static destructors have begun.
  open_mp.store(new OpenMp(library), std::memory_order_release);
}

void ThreadPool::Resize(int num_threads) {
  const std::lock_guard lock(run_mutex_);
  if (std::max(num_threads, 1) == this->num_threads()) return;
  Stop();
  Start(num_threads);
}

int ThreadPool::NumTeams() {
  const Result<int64_t> wanted = env::GetInteger("THRESHER_TEAMS");
  return wanted.ok() ? static_cast<int>(std::max<int64_t>(wanted.value(), 1)) : 1;
}

int ThreadPool::DefaultSize() {
  const Result<int64_t> wanted = env::GetInteger("THRESHER_NUM_THREADS");
  if (wanted.ok() && wanted.value() > 0) return static_cast<int>(wanted.value());
  const int cores = std::max(UsableCores() / NumTeams(), 1);  // an invalid value is reported by env::Validate()
  const int open_mp = OpenMpSize();
  return open_mp > 0 ? std::min(open_mp, cores) : cores;
}

ThreadPool& ThreadPool::Global() {
  if (ThreadPool* pool = global_pool.load(std::memory_order_acquire)) return *pool;
  const std::lock_guard lock(GlobalMutex());
  ThreadPool* pool = global_pool.load(std::memory_order_relaxed);
  if (pool == nullptr) {
    const int wanted = global_size.load(std::memory_order_relaxed);
    const int size = wanted > 0 ? wanted : DefaultSize();
    const Result<bool> pinned = env::GetSwitch("THRESHER_PIN");
    Place place{0, NumTeams(), pinned.ok() && pinned.value()};
    auto* const teams = new Teams;
    for (; place.team < place.teams; ++place.team) teams->push_back(new ThreadPool(size, place));
    pool = teams->front();
    global_teams.store(teams, std::memory_order_release);
    global_pool.store(pool, std::memory_order_release);
  }
  return *pool;
}

void ThreadPool::SetGlobalSize(int num_threads) {
  global_size.store(num_threads, std::memory_order_relaxed);
  Global();
  for (ThreadPool* team : *global_teams.load(std::memory_order_acquire)) team->Resize(num_threads);
}

}  // namespace thresher
