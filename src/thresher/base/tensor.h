// Tensors as a program hands them over: what one is called and holds, and one that owns its bytes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "thresher/base/dtype.h"
#include "thresher/base/view.h"

namespace thresher {

// An input or output of a plan.
struct PortType {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  bool state = false;  // an input that runs write to, row-major
};

// A tensor that owns its bytes, row-major.
struct OwnedTensor {
  DType dtype = DType::kF32;
  Dims shape;
  std::shared_ptr<std::vector<std::byte>> bytes;
};

// "f32[2, 3]".
inline std::string ToString(DType dtype, const Dims& shape) { return std::string(Name(dtype)) + ToString(shape); }

}  // namespace thresher
