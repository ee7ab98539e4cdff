// What processes that run one model together exchange.
#include "thresher/base/communicator.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

// One thread speaks with the other ranks, once a step: that of the first part.
Result<Communicator*> CommunicatorOf(const StepContext& c) {
  if (c.communicator != nullptr) return c.communicator;
  return InvalidArgument("expected a device of one rank among several, got one that runs alone; see Device.of_rank");
}

// What is sent and received counts as read and written; how often a number travels is the library's affair.
Cost CostOfExchange(const InferContext& c, std::span<const TensorType> outputs) { return ops::MoveCost(c, outputs); }

// ---- all_reduce ----

Result<std::vector<TensorType>> InferAllReduce(const InferContext& c) {
  THRESHER_TRY(ops::WantF32(c, 0, "x"));
  return ops::One(DType::kF32, c.inputs[0].shape);
}

Status AllReduceStep(const StepContext& c) {
  if (c.part != 0) return Status::Ok();
  THRESHER_ASSIGN(Communicator* const ranks, CommunicatorOf(c));
  return ranks->AllReduce(c.in(0).as<const float>(), c.out().as<float>(), c.in(0).size());
}

// ---- all_gather ----

Result<std::vector<TensorType>> InferAllGather(const InferContext& c) {
  THRESHER_TRY(ops::WantF32(c, 0, "x"));
  const int64_t ranks = GetAttr<int64_t>(c.attrs, "ranks", 0);
  if (ranks < 1) return InvalidArgument("ranks: expected 1 or more, got " + std::to_string(ranks));
  Dims shape = c.inputs[0].shape;
  shape.insert(shape.begin(), ranks);
  return ops::One(DType::kF32, std::move(shape));
}

Status AllGatherStep(const StepContext& c) {
  if (c.part != 0) return Status::Ok();
  THRESHER_ASSIGN(Communicator* const ranks, CommunicatorOf(c));
  if (c.out().shape[0] != ranks->size()) {
    return InvalidArgument("expected a graph of " + std::to_string(ranks->size()) + " ranks, got one of " +
                           std::to_string(c.out().shape[0]));
  }
  return ranks->AllGather(c.in(0).as<const float>(), c.out().as<float>(), c.in(0).size());
}

template <KernelId kKernel>
Status Lower(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  lowering.AddStep(kKernel, {lowering.Contiguous(lowering.Ref(node.inputs[0]))}, {out});
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> CommunicationKernels() {
  static const CpuKernel kernels[] = {{KernelId::kAllReduce, AllReduceStep}, {KernelId::kAllGather, AllGatherStep}};
  return kernels;
}

std::span<const OpDef> CommunicationOps() {
  static const std::vector<OpDef> rows = {
      {"all_gather",
       "x of every rank, one behind the other in a new first dimension. All ranks have to get here in the same order.",
       {"x"},
       {{"ranks", AttrType::kInt, true, "how many there are"}},
       Section::kForward,
       InferAllGather,
       CostOfExchange,
       Lower<KernelId::kAllGather>},
      {"all_reduce",
       "The sum of x over the ranks that run the model together. All of them have to get here in the same order.",
       {"x"},
       {},
       Section::kForward,
       InferAllReduce,
       CostOfExchange,
       Lower<KernelId::kAllReduce>},
  };
  return rows;
}

}  // namespace thresher
