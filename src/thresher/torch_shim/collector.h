// Receives the engine's records while a session runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace thresher::torch_shim {

// Memory that the engine has filled with whole records.
struct Buffer {
  std::unique_ptr<uint8_t[]> bytes;
  size_t valid_size = 0;
};

// What one session received.
struct Collected {
  std::vector<Buffer> buffers;
  uint64_t dropped = 0;
};

// There is one collector in a process, as the engine serves one tool at a time.
namespace collector {

// Begins to record. Returns what went wrong, empty if nothing did.
std::string Start();

// Ends it and hands over everything recorded until now. Does nothing unless Start succeeded in this process.
Collected Stop();

// Whether records are being collected.
bool Running();

}  // namespace collector
}  // namespace thresher::torch_shim
