// The CPU's kernels as steps call them, one row a KernelId, in the files of ops/ beside the operators that use them.
#pragma once

#include <cstddef>
#include <span>

#include "thresher/base/communicator.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/kernels/kernel_id.h"

namespace thresher {

struct Step;
struct StoredRows;
struct GatedResult;
struct StepLines;
struct LineCut;
enum class Taken : uint8_t;

// What a step's function sees. Operands are the inputs (absent optional ones have data == nullptr), then the outputs.
struct StepContext {
  const View* operands = nullptr;
  int num_inputs = 0;
  const void* params = nullptr;
  std::byte* scratch = nullptr;  // 64-byte aligned, this thread's own
  int part = 0;
  int num_parts = 1;
  Communicator* communicator = nullptr;  // with the other ranks; null: there are none
  std::span<const std::byte> ahead;      // of weights: read next by this thread, fetched meanwhile if that pays

  const View& in(int i) const { return operands[i]; }
  const View& out(int i = 0) const { return operands[num_inputs + i]; }
  template <class Params>
  const Params& as() const {
    return *static_cast<const Params*>(params);
  }
};

// Does one part of a step's work. An error must not depend on the part alone: all parts of a step may run at once.
using StepFn = Status (*)(const StepContext&);
// Bytes of scratch memory that a part of a step wants; the operands of the context have no data yet.
using ScratchFn = size_t (*)(const StepContext&);

// As Target::StoresRows and Target::TakesRows.
using StoreRowsFn = bool (*)(Step& writer, StoredRows& rows);
using TakeRowsFn = Taken (*)(Step& reader, int buffer, StoredRows& rows);
// As Target::TakesGate and Target::TakesConversion.
using TakeGateFn = bool (*)(Step& product, const GatedResult& gated);
using TakeConversionFn = bool (*)(Step& product, const Step& conversion);
// As Target::LinesOf. Whoever has one takes parameters that a CutFn has changed.
using LinesFn = bool (*)(const Step& step, StepLines& lines);
// Makes a step's parameters those of some lines of one picture, with which its operands then begin.
using CutFn = void (*)(void* params, const LineCut& cut);

struct CpuKernel {
  KernelId id = KernelId::kCopy;
  StepFn run = nullptr;         // null: the CPU has another kernel for this
  ScratchFn scratch = nullptr;  // null: none
  // Null: it cannot.
  TakeRowsFn takes_rows = nullptr;
  StoreRowsFn stores_rows = nullptr;
  TakeGateFn takes_gate = nullptr;
  TakeConversionFn takes_conversion = nullptr;
  int replaced = -1;  // as Target::ReplacedOperand
  LinesFn lines = nullptr;
  CutFn cut = nullptr;
};

// All of them, by their numbers.
std::span<const CpuKernel> CpuKernels();
inline const CpuKernel& CpuKernelOf(KernelId id) { return CpuKernels()[static_cast<size_t>(id)]; }

// One function per family file in src/thresher/ops/.
std::span<const CpuKernel> LinearKernels();
std::span<const CpuKernel> GroupedLinearKernels();
std::span<const CpuKernel> ConvolutionKernels();
std::span<const CpuKernel> ResampleKernels();
std::span<const CpuKernel> AttentionKernels();
std::span<const CpuKernel> PagedAttentionKernels();
std::span<const CpuKernel> RotaryKernels();
std::span<const CpuKernel> NormKernels();
std::span<const CpuKernel> PointwiseKernels();
std::span<const CpuKernel> PointwiseChainKernels();
std::span<const CpuKernel> ReduceKernels();
std::span<const CpuKernel> IndexKernels();
std::span<const CpuKernel> SortKernels();
std::span<const CpuKernel> ShapeKernels();
std::span<const CpuKernel> CreateKernels();
std::span<const CpuKernel> CommunicationKernels();
std::span<const CpuKernel> OutsideKernels();

}  // namespace thresher
