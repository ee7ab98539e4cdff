#include "thresher/plan/builder.h"

#include <algorithm>
#include <utility>

#include "thresher/base/rounds.h"
#include "thresher/graph/printer.h"
#include "thresher/plan/gated_products.h"
#include "thresher/plan/in_place.h"
#include "thresher/plan/lowering.h"
#include "thresher/plan/memory_planner.h"
#include "thresher/plan/narrow_copies.h"
#include "thresher/plan/sites.h"
#include "thresher/plan/stored_rows.h"
#include "thresher/profile/profiler.h"

namespace thresher {
namespace {

// The rates are those of one slow core: the decisions below only have to be right to a factor of a few.
constexpr double kFlopsPerNs = 40;
constexpr double kBytesPerNs = 10;
// A thread that has less to do than this costs more than it saves.
constexpr double kLeastShareNs = 2000;
// Shares longer than this are cut further, into parts that whoever is free takes, so that a thread whose core is slow,
// or has been taken away, holds up one part and not its whole share.
constexpr double kLeastPartNs = 25000;
constexpr int kMostPartsPerThread = 4;

constexpr int64_t kMaxArenaBytes = int64_t{1} << 40;

// Bands begin with their first step again after the last one: what any of them touches lives through all.
void MarkLifetimes(Plan& plan) {
  for (const StepRange& round : RoundsOf(plan)) {
    for (size_t s = round.first; s < round.end; ++s) {
      for (const TensorRef& ref : plan.steps[s].operands) {
        if (ref.buffer < 0) continue;
        Buffer& buffer = plan.buffers[static_cast<size_t>(ref.buffer)];
        if (buffer.first_step < 0) buffer.first_step = static_cast<int>(round.first);
        buffer.last_step = static_cast<int>(round.end) - 1;
      }
    }
  }
}

// A constant that lowering looked at but no step reads, because the steps use something made from it.
void ReleaseUnread(Plan& plan) {
  for (Buffer& buffer : plan.buffers) {
    if (buffer.kind != Buffer::Kind::kConstant || buffer.first_step >= 0) continue;
    buffer.data = nullptr;
    buffer.owner.reset();
  }
}

}  // namespace

Status PlanMemory(Plan& plan, bool share) {
  plan.arena_bytes = plan.scratch_bytes = plan.unplanned_bytes = 0;
  const std::vector<Lifetime> places = LifetimesOfPlaces(plan);
  std::vector<Lifetime> lifetimes;
  std::vector<size_t> owners;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    if (buffer.kind != Buffer::Kind::kArena || buffer.first_step < 0) continue;
    if (buffer.replaces < 0) {
      const int last = static_cast<int>(plan.steps.size());
      lifetimes.push_back(share ? places[b] : Lifetime{places[b].bytes, 0, last});
      owners.push_back(b);
    }
    plan.unplanned_bytes += buffer.bytes;
    if (plan.unplanned_bytes > kMaxArenaBytes) {
      return ResourceExhausted("the plan wants more than " + std::to_string(kMaxArenaBytes) +
                               " bytes of intermediate memory; use smaller inputs");
    }
  }
  const Placement placement = PlaceBuffers(lifetimes);
  for (size_t i = 0; i < owners.size(); ++i) plan.buffers[owners[i]].arena_offset = placement.offsets[i];
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    const auto place = static_cast<size_t>(PlaceOf(plan, static_cast<int>(b)));
    plan.buffers[b].arena_offset = plan.buffers[place].arena_offset;
  }
  plan.arena_bytes = placement.total;
  for (const Step& step : plan.steps) {
    plan.scratch_bytes = std::max(plan.scratch_bytes, AlignUp(static_cast<int64_t>(step.scratch_bytes)));
  }
  for (const Bands& bands : plan.bands) plan.scratch_bytes = std::max(plan.scratch_bytes, bands.bytes);
  return Status::Ok();
}

void AssignSites(Plan& plan) {
  profile::Site run;
  run.name = plan.name.empty() ? "execution" : plan.name;
  run.graph = plan.name;
  run.section = profile::Section::kCall;
  plan.site = profile::NumberOf(std::move(run));
  const std::string variant = plan.target->variant();
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    plan.steps[s].site = profile::NumberOf(SiteOfStep(plan.steps[s], plan.name, static_cast<int>(s), variant));
  }
}

namespace {

// The cost of the node goes to its last step of that name, unless the operator's row gave it one; others (packing, say)
// keep what they have.
void AssignCost(const Graph& graph, const Node& node, std::vector<Step>& steps, size_t first) {
  if (steps.size() == first || node.op->cost == nullptr) return;
  Step* step = &steps.back();
  for (size_t s = first; s < steps.size(); ++s) {
    if (steps[s].name == node.op->name) step = &steps[s];
  }
  if (step->name == node.op->name && step->flops >= 0) return;
  const NodeTypes types(graph, node);
  const Cost cost = node.op->cost(InferContext{types.inputs, node.attrs, node.op}, types.outputs);
  step->flops = cost.flops;
  step->bytes = cost.bytes_read + cost.bytes_written;
}

// Sets the step's scratch memory. Refuses what the target has no kernel for.
Status AssignScratch(const Target& target, Step& step) {
  std::vector<View> operands;
  operands.reserve(step.operands.size());
  for (const TensorRef& ref : step.operands) operands.push_back(ref.view);
  THRESHER_ASSIGN(step.scratch_bytes, target.ScratchBytes(step, operands.data(), step.params.data()));
  return Status::Ok();
}

// Kernels of the CPU compute with f32. Floats of 16 bits are moved, cast, made, and taken as the weights of products;
// chains of element-wise operators widen them as they are read.
Status WantWide(const Graph& graph, const Node& node) {
  const std::string_view op = node.op->name;
  if (node.op->Has(Trait::kMoves) || op == "cast" || op == "full" || op == "arange" || op == "pointwise") {
    return Status::Ok();
  }
  const auto refused = [&](ValueId id) {
    return id != kNoValue && IsHalf(graph.value(id).dtype) && !graph.is_state(id);
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    if (refused(node.inputs[i]) && !IsConstantWeight(graph, node, i)) {
      return Unsupported("expected operand " + std::to_string(i) + " as f32, got " +
                         std::string(Name(graph.value(node.inputs[i]).dtype)) + "; run the pass value_widening first");
    }
  }
  return Status::Ok();
}

}  // namespace

class PlanBuilder {
 public:
  static Result<std::shared_ptr<const Plan>> Build(const Graph& graph, WeightStore& weights,
                                                   const PlanOptions& options) {
    const int num_threads = options.target->Parts(options.num_threads);
    Lowering lowering(graph, weights, {options.target, num_threads, options.tuning, options.allow_tf32});
    std::vector<const Node*> origins;  // per step
    for (const Node& node : graph.nodes()) {
      lowering.set_node(&node);
      const size_t first = lowering.steps_.size();
      Status status = options.target->takes_halves() ? Status::Ok() : WantWide(graph, node);
      if (status.ok()) status = node.op->lower(graph, node, lowering);
      if (status.ok()) status = lowering.status();
      // The last one first: where it is the node's own kernel that is missing, this says so.
      for (size_t s = lowering.steps_.size(); s > first && status.ok(); --s) {
        status = AssignScratch(*options.target, lowering.steps_[s - 1]);
      }
      if (!status.ok()) return Status(status.code(), std::string(node.op->name) + ": " + status.message());
      AssignCost(graph, node, lowering.steps_, first);
      origins.resize(lowering.steps_.size(), &node);
    }
    lowering.set_node(nullptr);
    std::vector<TensorRef> outputs;
    for (const ValueId id : graph.outputs()) {
      if (graph.is_state(id)) {
        return InvalidArgument("expected values that are no states as outputs, got a state; the caller has its memory");
      }
      const auto& blocks = graph.value(id).constant.blocks;
      if (blocks) {
        return Unsupported("expected results whose numbers lie one by one, got the constant '" + graph.value(id).name +
                           "' in " + std::string(Name(*blocks)) + "; dequantise it");
      }
      outputs.push_back(lowering.Ref(id));
    }
    THRESHER_TRY(lowering.status());
    auto plan = std::make_shared<Plan>(lowering.Take(std::move(outputs)));
    GateProducts(*plan, origins);
    CopyBeforeWidening(*plan);
    StoreRows(*plan, origins);
    for (Step& step : plan->steps) THRESHER_TRY(AssignScratch(*options.target, step));
    plan->name = options.name;
    plan->recorded = options.recorded;
    for (size_t s = 0; s < plan->steps.size(); ++s) {
      Step& step = plan->steps[s];
      // The copies into the graph's outputs come after the nodes' steps.
      step.shown = ShownOf(graph, s < origins.size() ? origins[s] : nullptr, step, *plan);
      step.parts = PartsOf(step, step.flops, step.bytes, num_threads);
    }
    if (options.recorded) AssignSites(*plan);
    if (options.cache.bytes > 0 && options.share_memory) FindBands(*plan, options.cache);
    MarkLifetimes(*plan);
    ReleaseUnread(*plan);
    if (options.share_memory) {
      const std::vector<int> replaced = ReplacedBuffers(*plan);
      for (size_t b = 0; b < replaced.size(); ++b) plan->buffers[b].replaces = replaced[b];
    }
    THRESHER_TRY(PlanMemory(*plan, options.share_memory));
    plan->graph_text = PrintGraph(graph, {.digests = false});
    return std::shared_ptr<const Plan>(std::move(plan));
  }
};

int PartsFor(double flops, double bytes, int num_threads) {
  if (num_threads < 2) return 1;
  const double ns = std::max(flops, 0.0) / kFlopsPerNs + bytes / kBytesPerNs;
  const double threads = num_threads;
  if (ns < kLeastShareNs * threads) return std::max(static_cast<int>(ns / kLeastShareNs), 1);
  const double most = std::min<double>(kMostPartsPerThread, Rounds::kMostParts / threads);
  return num_threads * static_cast<int>(std::clamp(ns / threads / kLeastPartNs, 1.0, std::max(most, 1.0)));
}

Result<std::shared_ptr<const Plan>> BuildPlan(const Graph& graph, WeightStore& weights, const PlanOptions& options) {
  return PlanBuilder::Build(graph, weights, options);
}

}  // namespace thresher
