// What PyTorch gets to know of us.
#pragma once

namespace thresher::torch_shim {

// Registers the profiler, the functions of the older profiler and a device of which there are none. Done once; later
// calls do nothing. Returns what is in the way, null for nothing.
const char* RegisterAll();

// Device guard and hooks of the backend that carries our name, so that PyTorch finds what it looks for and sees that
// there is no such device to compute on. Leaves alone what is registered.
void RegisterDevice();

// For torch.autograd.profiler.profile(use_device=...), which has no time line.
void RegisterStubs();

}  // namespace thresher::torch_shim
