// Giving up and taking the interpreter's lock, also while the interpreter ends.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace thresher::bindings {

// Until Python 3.14, taking the lock once the interpreter has begun to end calls pthread_exit(), which unwinds the
// thread's stack. That may not pass our frames: destructors must not throw, and objects of Python must not be released
// without the lock. Like Python 3.14, this stops the thread for good instead; the process ends without it.
template <class Take>
void TakeGilOrStop(Take take) {
  try {
    take();
  } catch (...) {  // abi::__forced_unwind: Python throws nothing here
    for (;;) pause();
  }
}

// Lets other threads run Python while it lives. The calling thread has the lock.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    TakeGilOrStop([this] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const state_;
};

// Has the lock while it lives.
class GilAcquire {
 public:
  GilAcquire() {
    TakeGilOrStop([this] { state_ = PyGILState_Ensure(); });
  }
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace thresher::bindings
