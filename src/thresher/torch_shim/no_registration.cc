// In place of registration.cc for a PyTorch whose profiler takes no records of others, before 2.13.
#include "thresher/torch_shim/registration.h"

namespace thresher::torch_shim {

const char* RegisterAll() { return "PyTorch before 2.13 has no place for others' records; pip install 'torch>=2.13'"; }

}  // namespace thresher::torch_shim
