#include "thresher/run/initialize.h"

#include <mutex>

#include "thresher/base/env.h"
#include "thresher/base/isa.h"
#include "thresher/profile/nvtx.h"
#include "thresher/profile/profiler.h"

namespace thresher {
namespace {

std::mutex mutex;
bool done = false;

}  // namespace

Status Initialize() {
  const std::lock_guard lock(mutex);
  if (done) return Status::Ok();
  THRESHER_TRY(env::Validate());
  THRESHER_TRY(isa::Select().status());
  THRESHER_TRY(profile::StartFromEnvironment());
  profile::nvtx::Connect();
  done = true;
  return Status::Ok();
}

}  // namespace thresher
