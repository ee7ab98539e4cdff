// A small pool of threads that share the work of one operator.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "thresher/base/function_ref.h"
#include "thresher/base/rounds.h"

namespace thresher {

// The threads of an OpenMP library that the calling program works with, by the ABI that GNU's has and others follow.
struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned num_threads, unsigned flags) = nullptr;  // GOMP_parallel
  int (*thread_number)() = nullptr;  // omp_get_thread_num
  int (*team_size)() = nullptr;      // omp_get_num_threads
  int (*max_threads)() = nullptr;    // omp_get_max_threads
};

// The caller is thread 0, workers are the others. Idle workers spin for kSpinNs and then sleep.
class ThreadPool {
 public:
  // `num_threads` counts the caller: 1 makes no worker.
  explicit ThreadPool(int num_threads);
  // One of `teams` pools of this size that work side by side. With `pinned`, its workers stay on the cores that are its
  // share of UsableTopology(), where there are enough; the caller is left where it is, and the first core to it.
  struct Place {
    int team = 0;
    int teams = 1;
    bool pinned = false;
  };
  ThreadPool(int num_threads, Place place);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_.load(std::memory_order_acquire); }

  // Calls work(part, num_parts) once for every part in [0, num_parts), part i always on thread i, and returns when all
  // are done. num_parts = min(num_threads(), max_parts); with one part the call is made directly, without any
  // synchronisation. Allocates nothing; throws the first of what parts have thrown. Calls from several threads take
  // turns; a call from inside `work` runs as one part on the spot.
  void Run(FunctionRef<void(int part, int num_parts)> work, int max_parts = 1 << 30);

  // Does the job's rounds one after the other, with at most `max_threads` threads, of which each takes the parts that
  // nobody has begun (rounds.h). Every part is done once, whatever the number of threads. As Run otherwise; where there
  // is one thread only it does all parts in order.
  void RunRounds(const Rounds::Job& job, int max_threads);

  // Replaces the workers, after waiting for a Run in progress. Not from inside `work`.
  void Resize(int num_threads);

  // Where both libraries work in turns, each one's threads spin for a while on the cores that the other wants. So from
  // here to GiveBack, what the calling thread runs is done by the OpenMP threads instead of the pool's. False, and
  // nothing changes, where there is no such library, where it would use another number of threads (it would end some
  // and start them again at every turn), and in a child of fork(), whose OpenMP threads are gone.
  static bool BorrowOpenMp();
  static void GiveBack();
  // Which library; for the life of the process.
  static void SetOpenMp(const OpenMp& library);

  // How many teams there are, each with threads of its own: THRESHER_TEAMS, else 1.
  static int NumTeams();
  // How many threads each of them starts with: THRESHER_NUM_THREADS, else OMP_NUM_THREADS or one for every usable core
  // of its share, whichever is less.
  static int DefaultSize();

  // As RunRounds on the shared pool, or on the threads of another team where its own are at work: on those of the team
  // that the calling thread had last if they are free, else on any that are, else when the former become free.
  static void RunOnATeam(const Rounds::Job& job, int max_threads);

  // The pool that all plans of this process share: of the size that was set last, else the default one.
  // A child made by fork() gets a pool of its own at its first call, so ask for it each time rather than keep it.
  static ThreadPool& Global();

  // Resizes the shared pool, and those of the other teams.
  static void SetGlobalSize(int num_threads);

 private:
  struct Worker;

  void Start(int num_threads);
  void Stop();
  void Loop(Worker& worker, int thread);
  bool Wake(int thread);                // whether it had to
  void WakeGroup(int second, int end);  // those after the first of a group
  // With run_mutex_ held: the job on `num_threads` threads, the pool's or OpenMP's.
  void Share(const Rounds::Job& job, int num_threads);
  void RunOnTeam(int num_threads);

  const Place place_;
  std::mutex run_mutex_;  // held during Run and Resize
  std::atomic<int> num_threads_{1};
  int64_t spin_ns_ = 0;
  std::unique_ptr<Worker[]> workers_;
  std::unique_ptr<Rounds> rounds_;
  std::atomic<int> woken_{0};        // threads of the job in progress, or of the last one
  std::atomic<int> leader_cpu_{-1};  // where it was begun
  std::atomic<bool> ending_{false};
};

}  // namespace thresher
