// One plan for many sizes: every number of it that depends on the sizes of a call is a polynomial in them, found from
// plans at a few sizes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thresher/base/polynomial.h"
#include "thresher/base/status.h"
#include "thresher/plan/plan.h"
#include "thresher/plan/tuning.h"

namespace thresher {

// The sizes that a plan is for, and what of it follows them.
struct Extent {
  // A number and the polynomial that gives it.
  struct Patch {
    uint32_t at = 0;
    uint32_t polynomial = 0;
  };
  struct ParamPatch {
    uint32_t step = 0;
    uint32_t offset = 0;  // of the number in the step's params
    uint32_t polynomial = 0;
    bool real = false;  // a double, not an int64_t
  };
  static constexpr int32_t kConstant = -1;

  std::vector<std::string> names;  // of the sizes
  Dims least;
  Dims capacity;                              // memory is planned for it
  std::shared_ptr<const TuningTable> tuning;  // what blockings are chosen from; null: the defaults
  bool chooses = false;                       // whether they, or the forms of rows, may differ between sizes
  Monomials monomials;
  std::vector<Polynomial> polynomials;  // each once
  std::vector<int32_t> numbers;         // of each number of the plan, in a fixed order; kConstant: it never changes
  // The same once more, as a run wants it.
  std::vector<Patch> views;    // at: bytes from the start of all steps' operands
  std::vector<Patch> offsets;  // at: number of the operand; the value counts elements
  std::vector<ParamPatch> params;
  std::vector<Patch> ports;     // at: number among the sizes of all inputs, then outputs
  std::vector<Patch> buffers;   // at: the buffer; the value is its bytes
  std::vector<Patch> costs;     // at: 2 * step for flops, 2 * step + 1 for bytes
  std::vector<Patch> products;  // at: 3 * product for m, + 1 for n, + 2 for k
  // The buffers of the arena from the lowest up, each with those that it lies on. At smaller sizes they move down as
  // far as these let them, so that a run touches as little memory as one of a plan for its sizes.
  struct Stacked {
    uint32_t buffer = 0;
    uint32_t end = 0;  // in `below`; its own begin where those of the one before end
  };
  std::vector<Stacked> stack;
  std::vector<uint32_t> below;
  // Buffers that lie where another lies.
  struct Replaced {
    uint32_t buffer = 0, place = 0;
  };
  std::vector<Replaced> replaced;
};

struct ExtentSample {
  Dims sizes;
  std::shared_ptr<const Plan> plan;
};

// Whether two plans differ in nothing but numbers that may follow sizes. The error names the difference.
Status CheckSameStructure(const Plan& a, const Plan& b);

// The plan for all sizes from `least` to `capacity`, with the structure of the samples, which serve as a check beyond
// those that the polynomials need.
// Errors: a number is no polynomial, too few samples, more memory than there can be.
Result<std::shared_ptr<Plan>> FitPlan(std::vector<std::string> names, Dims least, Dims capacity,
                                      std::span<const ExtentSample> samples, std::shared_ptr<const TuningTable> tuning,
                                      bool share_memory);

// Whether the plan is for these sizes; the error says what is wrong with them.
Status CheckSizes(const Plan& plan, std::span<const int64_t> sizes);

// What the plan's outputs are at these sizes, which are in range.
std::vector<PortType> OutputsAt(const Plan& plan, std::span<const int64_t> sizes);

// The plan for these sizes alone, without memory placed anew.
Result<Plan> PlanAt(const Plan& plan, std::span<const int64_t> sizes);

// All numbers of a plan that may follow sizes, in a fixed order: plans at equal sizes have equal ones.
std::vector<int64_t> NumbersOf(const Plan& plan);

// What a run reads of a plan, at the sizes of the last Set. Set takes no memory.
class SizedPlan {
 public:
  explicit SizedPlan(std::shared_ptr<const Plan> plan);

  // Wants a plan with an extent. Errors as CheckSizes gives them; then the sizes are unknown.
  Status Set(std::span<const int64_t> sizes);

  const Plan& plan() const { return *plan_; }
  const Dims& sizes() const { return sizes_; }  // empty: none set yet
  std::vector<View> operands;                   // of all steps, one after the other; their data is the caller's to set
  std::vector<size_t> first_operand;            // per step
  std::vector<int64_t> offsets;                 // per operand: bytes from the start of its buffer
  std::vector<int64_t> arena_offsets;           // per buffer: where it lies, if in the arena
  std::vector<const void*> params;              // per step
  std::vector<int> parts;                       // per step
  std::vector<PortType> inputs;
  std::vector<PortType> outputs;
  int64_t scratch_bytes = 0;  // of one part, a multiple of 64

 private:
  Status Check() const;
  void PlaceBuffers();

  const std::shared_ptr<const Plan> plan_;
  Dims sizes_;
  std::vector<std::max_align_t> param_memory_;
  std::vector<size_t> param_start_;    // per step, in param_memory_
  std::vector<int64_t> monomials_;     // at the sizes
  std::vector<int64_t> values_;        // of the polynomials
  std::vector<int64_t> buffer_bytes_;  // per buffer
  std::vector<int64_t> place_bytes_;   // the same with those that lie in its place
  std::vector<double> costs_;          // per step: flops, bytes
  std::vector<int64_t*> port_sizes_;
  std::vector<PlannedProduct> products_;
};

}  // namespace thresher
