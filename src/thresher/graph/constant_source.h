// Constants that are in memory only while somebody reads them.
#pragma once

#include <memory>

#include "thresher/base/status.h"

namespace thresher {

class Target;

// Thread safe.
class ConstantSource {
 public:
  virtual ~ConstantSource() = default;

  // Makes the constant readable that `data` points into, for as long as the result lives. Errors: its bytes cannot be
  // read, or are not those that it had.
  virtual Result<std::shared_ptr<const void>> Hold(const void* data) = 0;

  // Gives back what it keeps for the next Hold(): nobody is about to call it.
  virtual void Trim() = 0;

  // What the device that has the constant in its own memory makes plans for: those read it there, and need not hold it.
  // Null where it is the host's.
  virtual const Target* placed_for() const { return nullptr; }
};

}  // namespace thresher
