// Which numbers this machine multiplies fastest.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/base/precision.h"

namespace thresher::kernels {

// Instructions for smaller numbers may be slower than those for fp32: of some processors they take twice as long. What
// is slower is therefore widened and multiplied in fp32. The rates are measured at the first question in a process and
// for an instruction set, in about a millisecond; THRESHER_SMALL_PRODUCTS overrides them. Thread safe.
bool MultipliesBf16();
bool MultipliesInt8();

// Where there are tiles of fp16: as fast as those of bf16, eight times as fast as fp32.
bool MultipliesF16();

// Whether a matrix unit multiplies bf16.
bool HasBf16Tiles();

// Whether windows of so few channels are filled up with zeros and multiplied as bf16: wherever a matrix unit does,
// which takes no longer for them; by vectors where they cost less than bf16 saves.
bool FillsChannels(int64_t channels);

// Whether products of int8 save more time over those of bf16 than it takes to quantise a number of x, which meets so
// many outputs, and to scale a result, a sum of k products. Always, but where bf16 is multiplied and StoresRows().
bool Int8Pays(int64_t outputs, int64_t k);

// Whether that saves time over products of floats, of which a multiplication takes `floats` of one of a plain sum.
// Always, but where bf16 is not multiplied.
bool Int8BeatsFloats(int64_t outputs, int64_t k, double floats);

// What a precision is computed as, and why where that is not what its name says.
struct Arithmetic {
  Precision precision;
  std::string why;
};
Arithmetic ArithmeticFor(Precision wanted);

}  // namespace thresher::kernels
