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
struct StepLines;
struct TensorRef;

// A result as rows of bf16 (kernels::RowForm::kBF16) in place of floats without gaps.
struct StoredRows {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // elements from one row to the next; where it is `columns`, nothing lies behind them
  bool given = false;  // they lie so already where the writer reads, whose work is then not needed
  bool whole = false;  // whether they are stored only if who reads them would make just that of floats
  bool dense = false;  // whether the writer can store them with nothing behind the columns
  const TensorRef* place = nullptr;  // where, as a view of two dimensions; null: nothing is decided yet
};

// What a product's result becomes where one half of its columns passes an activation and then times the other.
struct GatedResult {
  int64_t rows = 0;
  int64_t columns = 0;  // of each half
  int64_t second = 0;   // column that the second one begins with
  kernels::Gate gate = kernels::Gate::kFirst;
  kernels::Activation activation = kernels::Activation::kNone;
  const TensorRef* place = nullptr;  // where that goes, without gaps; null: nothing is decided yet
};

// What a step does with such rows: it does not take them, it reads them, or they are what it would make of them, where
// its own result lies.
enum class Taken : uint8_t { kNot, kRead, kWhole };

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
  // The operand in whose place the step may write its first result, which has the same type, shape and strides: each
  // element is read before what becomes of it is written, by the same part. -1: none.
  virtual int ReplacedOperand(const Step& /*step*/) const { return -1; }
  // Whether `writer` can store its result as rows of bf16, and then which, if their place is not decided; else makes it
  // store them there.
  virtual bool StoresRows(Step& /*writer*/, StoredRows& /*rows*/) const { return false; }
  // Whether `reader` can take all that it reads of `buffer` so, if their place is not decided; for kWhole it sets the
  // stride. Else makes it do so.
  virtual Taken TakesRows(Step& /*reader*/, int /*buffer*/, StoredRows& /*rows*/) const { return Taken::kNot; }
  // Whether `product` can store that in place of its result, if the place is not decided; else makes it do so.
  virtual bool TakesGate(Step& /*product*/, const GatedResult& /*gated*/) const { return false; }
  // Makes `product`, which has a gate, store what `conversion`, the only reader of its result, would make of that, if
  // it can.
  virtual bool TakesConversion(Step& /*product*/, const Step& /*conversion*/) const { return false; }
  // Whether some lines of the step's result can be computed by themselves, and then what they are.
  virtual bool LinesOf(const Step& /*step*/, StepLines& /*lines*/) const { return false; }
};

std::shared_ptr<const Target> CpuTarget();

}  // namespace thresher
