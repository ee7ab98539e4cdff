// What an operator's row sees while its node becomes steps of a plan.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "thresher/base/arena.h"
#include "thresher/base/precision.h"
#include "thresher/base/status.h"
#include "thresher/base/view.h"
#include "thresher/graph/graph.h"
#include "thresher/graph/operator.h"
#include "thresher/kernels/kernel_params.h"
#include "thresher/plan/plan.h"
#include "thresher/plan/tuning.h"
#include "thresher/plan/weight_store.h"

namespace thresher {

struct LoweringOptions {
  std::shared_ptr<const Target> target = CpuTarget();
  int num_threads = 1;
  const TuningTable* tuning = nullptr;
  bool allow_tf32 = false;
};

// Sets the blocking of the product its key describes, and the form of the rows that follows from it.
void ChooseBlocking(const Target& target, const TuningTable* tuning, PlannedProduct& product);

// Collects the steps of one plan, node by node. Values live in TensorRefs: windows on buffers, so that operators
// which only rearrange (permute, slice, expand, most reshapes) cost nothing.
class Lowering {
 public:
  Lowering(const Graph& graph, WeightStore& weights, LoweringOptions options);

  // Where the value lives. A constant becomes a constant buffer on first use.
  TensorRef Ref(ValueId id);
  // Binds a node's output to a window that exists already.
  void Bind(ValueId id, TensorRef ref) { refs_[static_cast<size_t>(id)] = ref; }
  // A new row-major buffer for the node's output, bound to it.
  TensorRef Allocate(ValueId id);
  // A new row-major buffer that is no value of the graph.
  TensorRef AllocateTemporary(DType dtype, const Dims& shape);
  // `ref` itself when row-major, else a copy made by a "copy" step.
  TensorRef Contiguous(const TensorRef& ref);
  // `ref` itself when the innermost stride is 1, else a copy.
  TensorRef InnerContiguous(const TensorRef& ref);
  // A step that copies `from` to `to` (same shape).
  void AddCopy(const TensorRef& from, const TensorRef& to);

  // Appends a step of the node being lowered. `params` is a plain struct, copied into the plan.
  template <class Params>
  Step& AddStep(KernelId kernel, std::vector<TensorRef> inputs, const std::vector<TensorRef>& outputs,
                const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params>);
    Step& step = AddStepBytes(kernel, std::move(inputs), outputs, &params, sizeof(Params));
    step.params_type = &TypeOfParams<Params>();
    return step;
  }
  Step& AddStep(KernelId kernel, std::vector<TensorRef> inputs, const std::vector<TensorRef>& outputs) {
    return AddStep(kernel, std::move(inputs), outputs, NoParams{});
  }

  // A row-major constant that is no value of the graph.
  template <class T>
  TensorRef AddConstant(DType dtype, const Dims& shape, const std::vector<T>& elements) {
    return AddConstantBytes(dtype, shape, AlignedCopy(std::as_bytes(std::span(elements))));
  }
  // Packed panels of constant K x N matrices side by side, as WeightStore::GetPacked lays them out; `transposed` says
  // they are stored [N, K]. Shared between plans.
  TensorRef PackedWeight(const std::vector<ValueId>& ids, bool transposed, Precision precision = Precision::kFp32);
  // The same for the groups of a convolution: WeightStore::GetPackedParts.
  TensorRef PackedParts(ValueId id, const std::vector<int64_t>& offsets, const Weight& layout,
                        Precision precision = Precision::kFp32);
  // Matrices [count, n, k] that lowering has made, packed.
  TensorRef PackedNumbers(std::vector<float> numbers, int64_t k, int64_t n, int64_t count, Precision precision);
  // Constant matrices, stored [N, K] if `transposed` and else [K, N], as the rows [N, K] of one in the encoding: the
  // constant itself where it is that. `group` numbers share a scale where that is one of blocks. Shared between plans.
  TensorRef StoredWeight(const std::vector<ValueId>& ids, bool transposed, Encoding encoding, int64_t group);
  // The same for the groups of a convolution, in an encoding without blocks: WeightStore::GetRowsOfParts. Rows are so
  // far apart that each begins at a multiple of 16 bytes.
  TensorRef StoredParts(ValueId id, const std::vector<int64_t>& offsets, const Weight& layout, Encoding encoding);
  // What another node made of `id` in the form that `tag` names, and keeps for all that want the same; no buffer if
  // there is none yet.
  TensorRef& Derived(ValueId id, int tag) { return derived_[{id, tag}]; }

  // A product of this plan and its blocking: the tuned one, else the default. Noted in the plan; returns its number.
  int AddProduct(Precision precision, int64_t m, int64_t n, int64_t k);
  const PlannedProduct& product(int number) const { return products_[static_cast<size_t>(number)]; }

  // The first error of what gives no Result: a constant that could not be read.
  const Status& status() const { return status_; }

  const Graph& graph() const { return graph_; }
  const Target& target() const { return *options_.target; }
  int num_threads() const { return options_.num_threads; }
  bool allow_tf32() const { return options_.allow_tf32; }
  Plan Take(std::vector<TensorRef> outputs);
  void set_node(const Node* node) { node_ = node; }

 private:
  friend class PlanBuilder;
  TensorRef AddRows(const Result<WeightStore::Packed>& result, Encoding encoding, const Dims& shape);
  TensorRef AddPacked(const Result<WeightStore::Packed>& result);
  TensorRef AddConstantBytes(DType dtype, const Dims& shape, std::shared_ptr<const void> data);
  Step& AddStepBytes(KernelId kernel, std::vector<TensorRef> inputs, const std::vector<TensorRef>& outputs,
                     const void* params, size_t size);
  int NewBuffer(Buffer::Kind kind, int64_t bytes);

  const Graph& graph_;
  WeightStore& weights_;
  const LoweringOptions options_;
  std::vector<PlannedProduct> products_;
  const Node* node_ = nullptr;
  Status status_;
  std::vector<TensorRef> refs_;  // per value
  std::map<std::pair<ValueId, int>, TensorRef> derived_;
  std::vector<Buffer> buffers_;
  std::vector<Step> steps_;
};

}  // namespace thresher
