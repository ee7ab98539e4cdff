// Values that are made on first use, once, while other threads use what is there.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "thresher/base/fork_mutex.h"
#include "thresher/base/status.h"

namespace thresher {

// Thread safe. The mutex is held to find and to publish alone: threads that want a value which another one is making
// wait for that value. A child made by fork() makes those itself that were being made.
template <class Key, class Value>
class OnceMap {
 public:
  explicit OnceMap(ForkMutex& mutex) : mutex_(mutex) {}

  // The value of `key`: that of make(), which gives a Result, unless there is one. An error, or what make() throws,
  // reaches its caller; others try themselves.
  template <class Make>
  Result<Value> Get(const Key& key, const Make& make) {
    for (;;) {
      std::shared_ptr<Slot> slot;
      bool mine = false;
      {
        const std::lock_guard lock(mutex_);
        std::shared_ptr<Slot>& found = slots_[key];
        if (found == nullptr || found->Abandoned()) {
          found = std::make_shared<Slot>();
          mine = true;
        }
        slot = found;
      }
      if (mine) return Fill(key, *slot, make);
      if (slot->Wait()) return slot->value;
    }
  }

  // Calls visit(value) for those that are there.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, slot] : slots_) {
      if (slot != nullptr && slot->state.load(std::memory_order_acquire) == Slot::kReady) visit(slot->value);
    }
  }

 private:
  struct Slot {
    static constexpr uint32_t kMaking = 0, kReady = 1, kFailed = 2;

    // Whether the thread that was to make it is of the process that this one was forked from.
    bool Abandoned() const { return state.load(std::memory_order_acquire) == kMaking && process != getpid(); }
    bool Wait() {
      state.wait(kMaking, std::memory_order_acquire);
      return state.load(std::memory_order_acquire) == kReady;
    }
    void Finish(uint32_t result) {
      state.store(result, std::memory_order_release);
      state.notify_all();
    }

    const pid_t process = getpid();
    std::atomic<uint32_t> state{kMaking};
    Value value{};
  };

  template <class Make>
  Result<Value> Fill(const Key& key, Slot& slot, const Make& make) {
    // Gives the slot up unless it was filled.
    struct Outcome {
      ~Outcome() {
        if (result == Slot::kFailed) {
          const std::lock_guard lock(map.mutex_);
          map.slots_.erase(key);
        }
        slot.Finish(result);
      }
      OnceMap& map;
      const Key& key;
      Slot& slot;
      uint32_t result = Slot::kFailed;
    } outcome{*this, key, slot};
    THRESHER_ASSIGN(slot.value, make());
    outcome.result = Slot::kReady;
    return slot.value;
  }

  ForkMutex& mutex_;
  std::map<Key, std::shared_ptr<Slot>> slots_;
};

}  // namespace thresher
