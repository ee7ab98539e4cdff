#include "thresher/base/rounds.h"

#include <algorithm>
#include <utility>

#include "thresher/base/read_ahead.h"
#include "thresher/base/spin.h"

namespace thresher {
namespace {

// A state: its number, whom the round is for, and in how many parts it comes; for nobody: no job is in progress.
constexpr int kPartBits = 12;
constexpr int kThreadBits = 11;
constexpr uint64_t kFixed = uint64_t{1} << (kPartBits + kThreadBits);
constexpr int kNumberShift = kPartBits + kThreadBits + 1;
static_assert(Rounds::kMostParts < 1 << kPartBits && Rounds::kMostThreads < 1 << kThreadBits);

int PartsOf(uint64_t state) { return static_cast<int>(state & ((1 << kPartBits) - 1)); }
int ThreadsOf(uint64_t state) { return static_cast<int>(state >> kPartBits & ((1 << kThreadBits) - 1)); }
uint64_t NumberOf(uint64_t state) { return state >> kNumberShift; }

// Looks at the state before a thread that has run out of parts takes those of others: about a microsecond. Most rounds
// end before, and a look at others' parts costs both of them a miss.
constexpr int kGrace = 24;

// Of this thread, and no part of a job, which may be over while the thread still waits.
thread_local ReadAhead read_ahead;

}  // namespace

struct Rounds::Round {
  explicit Round(uint64_t state)
      : number(NumberOf(state)),
        parts(PartsOf(state)),
        threads(ThreadsOf(state)),
        owners(std::min(parts, threads)),
        fixed((state & kFixed) != 0) {}

  int First(int owner) const { return parts * owner / owners; }

  uint64_t number;
  int parts;
  int threads;
  int owners;  // the first of the threads
  bool fixed;
};

Rounds::Rounds(int num_threads, int64_t spin_ns)
    : spin_ns_(spin_ns),
      slots_(std::make_unique<Slot[]>(static_cast<size_t>(num_threads))),
      groups_(std::make_unique<Group[]>(static_cast<size_t>((num_threads + kGroup - 1) / kGroup))) {}

void Rounds::Begin(const Job& job, int num_threads) {
  job_ = &job;
  job_threads_ = num_threads;
  failed_.store(false, std::memory_order_relaxed);
  Publish(num_threads, 0);
}

bool Rounds::OpenFor(int thread) const {
  return thread < ThreadsOf(groups_[static_cast<size_t>(thread / kGroup)].state.load());
}

bool Rounds::SpinUntilOpen(int thread) const {
  return SpinUntil(spin_ns_, [&] { return OpenFor(thread); });
}

void Rounds::Publish(int num_threads, int num_parts) {
  const uint64_t state = ++number_ << kNumberShift | (job_->fixed ? kFixed : 0) |
                         static_cast<uint64_t>(num_threads) << kPartBits | static_cast<uint64_t>(num_parts);
  const int num_groups = (job_threads_ + kGroup - 1) / kGroup;
  // From the first store on others may go on, to the end of the job and into the next one, and publish before this
  // thread is through: what is newer stays.
  for (int g = 0; g < num_groups; ++g) {
    Group& group = groups_[static_cast<size_t>(g)];
    uint64_t seen = group.state.load(std::memory_order_relaxed);
    while (seen < state && !group.state.compare_exchange_weak(seen, state)) {
    }
    group.changes.fetch_add(1);
    group.changes.notify_all();
  }
}

void Rounds::Advance(int round, int thread) {
  for (; round < job_->num_rounds && job_->goes_on(round); ++round) {
    const int parts = job_->parts(round);
    if (parts > 1) {
      job_round_ = round;
      Publish(job_threads_, parts);
      return;
    }
    if (parts == 1) Do(round, 0, thread);
    job_->ended(round);
  }
  Publish(0, 0);
}

void Rounds::Do(int round, int part, int thread) {
  if (failed_.load(std::memory_order_relaxed)) return;
  try {
    read_ahead.Want(job_->ahead(round, thread));
    job_->work(round, part, thread);
  } catch (...) {
    if (!failed_.exchange(true)) thrown_ = std::current_exception();
  }
}

void Rounds::Take(const Round& round, int owner, int thread) {
  Slot& slot = slots_[static_cast<size_t>(owner)];
  const int first = round.First(owner);
  const auto count = static_cast<uint32_t>(round.First(owner + 1) - first);
  uint32_t done = 0;
  uint64_t seen = slot.taken.load(std::memory_order_acquire);
  for (;;) {
    // Taken of an older round: none of this one's are yet. Of a newer one: this one is over.
    const uint64_t number = seen >> kNumberShift;
    const uint64_t next = number == round.number ? seen & ((uint64_t{1} << kNumberShift) - 1) : 0;
    if (number > round.number || next >= count) break;
    const uint64_t wanted = round.number << kNumberShift | (next + 1);
    if (!slot.taken.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    Do(job_round_, first + static_cast<int>(next), thread);
    ++done;
    seen = slot.taken.load(std::memory_order_acquire);
  }
  if (done > 0 && slot.finished.fetch_add(done, std::memory_order_acq_rel) + done == count) {
    slot.finished.store(0, std::memory_order_relaxed);
    Arrive(round, owner, thread);
  }
}

void Rounds::Arrive(const Round& round, int owner, int thread) {
  const int g = owner / kGroup;
  const auto owners = static_cast<uint32_t>(std::min(round.owners - g * kGroup, kGroup));
  Group& group = groups_[static_cast<size_t>(g)];
  if (owners > 1) {
    if (group.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < owners) return;
    group.arrived.store(0, std::memory_order_relaxed);
  }
  const auto num_groups = static_cast<uint32_t>((round.owners + kGroup - 1) / kGroup);
  if (num_groups > 1) {
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_groups) return;
    arrived_.store(0, std::memory_order_relaxed);
  }
  job_->ended(job_round_);
  Advance(job_round_ + 1, thread);
}

void Rounds::TakeFromOthers(const Round& round, int thread) {
  for (int i = 1; i <= round.owners; ++i) {
    const int owner = (thread + i) % round.owners;
    if (owner != thread) Take(round, owner, thread);
  }
}

void Rounds::WaitWhile(Group& group, uint64_t state, const Round* open, int thread) {
  const auto changed = [&] { return group.state.load(std::memory_order_acquire) != state; };
  if (spin_ns_ > 0) {
    for (int i = 0; i < kGrace; ++i) {
      if (changed()) return;
      if (!read_ahead.ReadSome()) CpuRelax();
    }
  }
  if (open != nullptr && !open->fixed) {
    TakeFromOthers(*open, thread);
    if (changed()) return;
  }
  const auto changed_or_read = [&] {
    if (changed()) return true;
    read_ahead.ReadSome();
    return false;
  };
  if (SpinUntil(spin_ns_, changed_or_read)) return;
  for (;;) {
    const uint32_t changes = group.changes.load(std::memory_order_acquire);
    if (changed()) return;
    group.changes.wait(changes, std::memory_order_acquire);
  }
}

void Rounds::Join(int thread) {
  Group& group = groups_[static_cast<size_t>(thread / kGroup)];
  for (;;) {
    const uint64_t state = group.state.load(std::memory_order_acquire);
    if (thread >= ThreadsOf(state)) return;
    if (PartsOf(state) == 0) {
      WaitWhile(group, state, nullptr, thread);
      continue;
    }
    const Round round(state);
    if (thread < round.owners) Take(round, thread, thread);
    WaitWhile(group, state, &round, thread);
  }
}

void Rounds::Lead() {
  Advance(0, 0);
  Join(0);
  job_ = nullptr;
  if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

}  // namespace thresher
