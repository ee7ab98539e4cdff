// The frozen result of compiling a graph: steps that call kernels on windows of planned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/base/tensor.h"
#include "thresher/base/view.h"
#include "thresher/graph/operator.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/kernel_id.h"
#include "thresher/plan/bands.h"
#include "thresher/plan/step_params.h"
#include "thresher/plan/target.h"
#include "thresher/plan/tuning.h"

namespace thresher {

// A window on one of the plan's buffers. `view.data` is null in the plan; the executor fills in its own copy.
struct TensorRef {
  int buffer = -1;
  int64_t offset = 0;  // elements from the start of the buffer
  View view;
};

// A piece of memory the plan names but, unless constant, does not own.
struct Buffer {
  enum class Kind : uint8_t {
    kArena,     // inside the run's arena, at arena_offset
    kInput,     // the caller's, number `index`
    kState,     // the caller's input number `index`, which steps write to
    kOutput,    // the caller's, number `index`
    kConstant,  // at `data`, kept alive by `owner`
    kBand,      // in the scratch memory of whoever computes a band (plan/bands.h)
  };
  Kind kind = Kind::kArena;
  // Whose bytes a constant is: the caller's (a model's weight), a value the engine copied or computed, packed panels.
  enum class Origin : uint8_t { kCaller, kEngine, kPacked };
  Origin origin = Origin::kEngine;  // kConstant only
  bool blocked = false;             // a constant in blocks, which is only read as a whole
  int index = 0;
  int64_t bytes = 0;
  int64_t arena_offset = 0;
  int first_step = -1;  // first and last step that touch it; -1: none
  int last_step = -1;
  int replaces = -1;  // the buffer whose place in the arena it takes, which nobody reads any longer
  const void* data = nullptr;
  std::shared_ptr<const void> owner;
};

// What the profiler shows of a step.
struct StepShown {
  std::vector<Dims> inputs;  // shapes, as the graph has them
  std::vector<Dims> outputs;
  std::string dtypes;     // of the inputs: "f32, i64"
  std::string precision;  // of the arithmetic
  std::string kernel;     // "mul+add+gelu fp32"
};

struct Step {
  std::string name;    // the operator's name, or "copy"
  std::string behind;  // the operators of other nodes that it computes behind its own: "silu+mul"
  std::string source;
  std::string module;
  Section section = Section::kForward;
  uint32_t site = 0;  // profile::NumberOf()
  KernelId kernel = KernelId::kCopy;
  std::vector<TensorRef> operands;  // inputs, then outputs
  int num_inputs = 0;
  std::vector<std::max_align_t> params;
  const ParamsType* params_type = nullptr;
  int product = -1;           // the plan's product whose blocking is among the params
  size_t scratch_bytes = 0;   // per part
  int parts = 1;              // that it is done in, by as many threads or fewer; 1: one thread does it whole
  bool data_decides = false;  // how much work it is follows from what is in its operands: as many parts as threads
  double flops = -1;          // < 0: not modelled
  double bytes = 0;
  StepShown shown;
};

// A product of the plan and how it is blocked.
struct PlannedProduct {
  ProductKey key;
  kernels::Blocking blocking;
  int64_t tuned_m = 0;  // the number of rows that this blocking was measured with; 0: the default, not measured
  kernels::RowForm form = kernels::RowForm::kF32;  // of its rows, which precision, rows and blocking decide
};

struct Extent;  // plan/extent.h

// With an extent the plan is for all sizes within it, and its numbers are those at its capacity.
struct Plan {
  std::string name;                                    // of the graph, for profiles
  uint32_t site = 0;                                   // of a whole run
  bool recorded = true;                                // whether the profiler sees its runs
  std::shared_ptr<const Target> target = CpuTarget();  // what it runs on
  std::vector<PortType> inputs;
  std::vector<PortType> outputs;
  std::vector<Buffer> buffers;
  std::vector<Step> steps;
  std::vector<PlannedProduct> products;
  std::vector<Bands> bands;  // in the order of their steps
  int num_threads = 1;
  int64_t arena_bytes = 0;      // without scratch
  int64_t scratch_bytes = 0;    // of one part, the largest of all steps, a multiple of 64
  int64_t unplanned_bytes = 0;  // what the arena would take if no two buffers shared memory
  std::string graph_text;
  std::shared_ptr<const Extent> extent;  // null: the plan is for the sizes of its inputs alone
};

}  // namespace thresher
