// What lowering asks of the device that a plan is for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "thresher/base/precision.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/kernels/blocking.h"
#include "thresher/kernels/gemm_dot.h"

namespace thresher {

struct Step;

// How much of a step's work another one takes over; of kAll nothing is left to do.
enum class Absorbed : uint8_t { kNothing, kSome, kAll };

class Target {
 public:
  virtual ~Target() = default;

  // What the names of its kernels end with in profiles: "avx2", "cuda sm_90".
  virtual std::string variant() const = 0;
  // Whether products take their weights in panels (kernels/gemm.h), else as they are stored.
  virtual bool packs_weights() const = 0;
  // Whether operators take floats of 16 bits as they are stored and store such results, those that value_narrowing
  // names; else they are f32, and widened and rounded by steps of their own.
  virtual bool takes_halves() const = 0;
  // Whether chains of element-wise operators read and store elements of 16 bits, else f32 alone.
  virtual bool chains_take_halves() const = 0;
  // The form in which a product with packed weights takes its `m` rows.
  virtual kernels::RowForm RowsFor(Precision precision, int64_t m, kernels::Variant variant) const = 0;
  // Into how many parts at most a step may be cut, where `num_threads` threads of the CPU would be there.
  virtual int Parts(int num_threads) const = 0;
  // Bytes of scratch memory that each part of a step wants with these operands, which have no data yet, and params.
  // Unsupported, with the kernel's name, where there is none for them.
  virtual Result<size_t> ScratchBytes(const Step& step, const View* operands, const void* params) const = 0;
  // What `writer`, which writes the first operand of `reader` and is the only other step to use it, can do of what
  // `reader` does with it: changes both so.
  virtual Absorbed Absorb(Step& /*reader*/, Step& /*writer*/) const { return Absorbed::kNothing; }
};

std::shared_ptr<const Target> CpuTarget();

}  // namespace thresher
