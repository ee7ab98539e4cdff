// Attention over keys and values in pages of a state, and what writes them there.
#include "thresher/kernels/paged_attention.h"

#include <algorithm>

#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

Status WantState(const InferContext& c) {
  const OperandType& state = c.inputs[0];
  const Dims& s = state.shape;
  const bool fits = IsFloat(state.dtype) && s.size() == 5 && s[1] > 0 && s[2] == 2 && s[3] > 0 &&
                    s[3] % kernels::kPanelTokens == 0 && s[4] > 0 && s[4] % kernels::kPanelTokens == 0 &&
                    s[4] <= kernels::kMostHeadSize;
  if (fits && state.blocks && (state.dtype != DType::kF32 || !kernels::KeepsBlocks(*state.blocks, s[4]))) {
    return Unsupported("expected a state in q8_0 or q4_0 with a head size of a multiple of 32, got " +
                       ops::ToString(state) + " in " + std::string(Name(*state.blocks)) +
                       "; keep it as f32, bf16 or f16");
  }
  if (fits) return Status::Ok();
  return InvalidArgument(
      "expected a state of floats [pages, heads, 2, tokens of a page, head size] with the last two multiples of 16 and "
      "heads of at most 1024, got " +
      ops::ToString(state));
}

std::pair<size_t, size_t> BlockedState(const Attrs&, size_t) { return {0, 1}; }

Status WantInts(const InferContext& c, size_t index, const char* name, const Dims& shape) {
  if (c.inputs[index].dtype == DType::kI32 && c.inputs[index].shape == shape) return Status::Ok();
  return InvalidArgument(std::string("expected ") + name + " i32" + ToString(shape) + ", got " +
                         ops::ToString(c.inputs[index]));
}

// ---- kv_write ----

constexpr size_t kCos = 4, kSin = 5;

Result<std::vector<TensorType>> InferKvWrite(const InferContext& c) {
  THRESHER_TRY(WantState(c));
  const Dims& state = c.inputs[0].shape;
  for (const size_t i : {1, 2}) {
    THRESHER_TRY(ops::WantFloat(c, i, i == 1 ? "k" : "v"));
    const Dims& x = c.inputs[i].shape;
    if (x.size() != 3 || x != c.inputs[1].shape || x[1] != state[1] || x[2] != state[4]) {
      return InvalidArgument("expected k and v [tokens, " + std::to_string(state[1]) + ", " + std::to_string(state[4]) +
                             "], got " + ToString(c.inputs[1].shape) + " and " + ToString(c.inputs[2].shape));
    }
  }
  THRESHER_TRY(WantInts(c, 3, "slots", {c.inputs[1].shape[0]}));
  if (c.inputs[kCos].present != c.inputs[kSin].present) return InvalidArgument("expected cos and sin, or neither");
  if (c.inputs[kCos].present) {
    THRESHER_TRY(ops::WantFloat(c, kCos, "cos"));
    THRESHER_TRY(ops::WantFloat(c, kSin, "sin"));
    const Dims &cos = c.inputs[kCos].shape, &k = c.inputs[1].shape;
    if (cos.size() != 2 || cos != c.inputs[kSin].shape || cos[0] != k[0] || cos[1] < 1 || 2 * cos[1] > k[2]) {
      return InvalidArgument("expected cos and sin [" + std::to_string(k[0]) +
                             ", pairs], at most head size / 2 of them, got " + ToString(cos) + " and " +
                             ToString(c.inputs[kSin].shape));
    }
  }
  return ops::One(c.inputs[0].dtype, state);
}

// What is written is what is read.
Cost CostKvWrite(const InferContext& c, std::span<const TensorType>) {
  const double bytes = static_cast<double>(ops::Bytes(c.inputs[1]) + ops::Bytes(c.inputs[2]));
  const Encoding kept = c.inputs[0].blocks.value_or(EncodingOf(c.inputs[0].dtype).value_or(Encoding::kF32));
  const int64_t numbers = NumElements(c.inputs[1].shape) + NumElements(c.inputs[2].shape);
  return {0, bytes, static_cast<double>(EncodedBytes(kept, numbers))};
}

using kernels::KvWriteParams;

Status KvWriteStep(const StepContext& c) {
  const auto& p = c.as<KvWriteParams>();
  return kernels::KvWrite({c.in(0), c.in(1), c.in(2), c.in(3).as<const int32_t>(), p.blocks}, c.part, c.num_parts);
}

// Blocks that a state is kept in; kF32: its type says it.
Encoding StateBlocks(const Graph& graph, ValueId state) {
  return graph.value(state).constant.blocks.value_or(Encoding::kF32);
}

// The version of the state before this node is gone once it has run.
Status WantNoLaterReader(const Graph& graph, const Node& node) {
  bool later = false;
  for (const Node& other : graph.nodes()) {
    if (later && std::find(other.inputs.begin(), other.inputs.end(), node.inputs[0]) != other.inputs.end()) {
      return InvalidArgument("expected no reader of a state after it is written, got " + std::string(other.op->name) +
                             "; let it read the result of " + std::string(node.op->name));
    }
    later |= &other == &node;
  }
  return Status::Ok();
}

Status LowerKvWrite(const Graph& graph, const Node& node, Lowering& lowering) {
  THRESHER_TRY(WantNoLaterReader(graph, node));
  const TensorRef state = lowering.Ref(node.inputs[0]);
  lowering.Bind(node.outputs[0], state);
  TensorRef k = lowering.InnerContiguous(lowering.Ref(node.inputs[1]));
  const TensorRef v = lowering.InnerContiguous(lowering.Ref(node.inputs[2]));
  if (ops::Empty(k) || ops::Empty(state)) return Status::Ok();
  const bool turned = node.inputs.size() > kSin && node.inputs[kSin] != kNoValue;
  TensorRef cos, sin;
  if (turned) {
    cos = lowering.InnerContiguous(lowering.Ref(node.inputs[kCos]));
    sin = lowering.InnerContiguous(lowering.Ref(node.inputs[kSin]));
  }
  const KvWriteParams p{StateBlocks(graph, node.inputs[0]), GetAttr<bool>(node.attrs, "interleaved", false)};
  const TensorRef slots = lowering.Contiguous(lowering.Ref(node.inputs[3]));
  if (!lowering.target().packs_weights()) {
    lowering.AddStep(KernelId::kKvWrite, {state, k, v, slots, cos, sin}, {}, p);
    return Status::Ok();
  }
  if (turned) {  // in the cache, which the write then reads
    const TensorRef keys = lowering.AllocateTemporary(k.view.dtype, graph.value(node.inputs[1]).shape);
    Step& turn = lowering.AddStep(KernelId::kRotary, {k, cos, sin}, {keys}, kernels::RotaryParams{p.interleaved});
    turn.name = "rotary";
    turn.flops = 3.0 * static_cast<double>(keys.view.size());
    turn.bytes = 2.0 * static_cast<double>(keys.view.size()) * static_cast<double>(SizeOf(keys.view.dtype));
    k = keys;
  }
  lowering.AddStep(KernelId::kKvWrite, {state, k, v, slots}, {}, p);
  return Status::Ok();
}

// ---- paged_attention ----

enum AttentionOperand { kState, kQ, kStarts, kLengths, kTables, kWideFrom };

Result<std::vector<TensorType>> InferPagedAttention(const InferContext& c) {
  THRESHER_TRY(WantState(c));
  THRESHER_TRY(ops::WantFloat(c, kQ, "q"));
  const Dims& state = c.inputs[kState].shape;
  const Dims& q = c.inputs[kQ].shape;
  if (q.size() != 3 || q[1] < state[1] || q[1] % state[1] != 0 || q[2] != state[4]) {
    return InvalidArgument("expected q [tokens, heads, " + std::to_string(state[4]) + "] with heads a multiple of " +
                           std::to_string(state[1]) + ", got " + ToString(q));
  }
  const Dims& tables = c.inputs[kTables].shape;
  if (tables.size() != 2 || tables[0] < 1) {
    return InvalidArgument("expected tables i32[sequences, pages], got " + ops::ToString(c.inputs[kTables]));
  }
  THRESHER_TRY(WantInts(c, kTables, "tables", tables));
  THRESHER_TRY(WantInts(c, kLengths, "lengths", {tables[0]}));
  THRESHER_TRY(WantInts(c, kStarts, "starts", {tables[0] + 1}));
  if (c.inputs[kWideFrom].present) THRESHER_TRY(ops::CheckWideFrom(c.inputs[kWideFrom]));
  if (GetAttr<int64_t>(c.attrs, "window", 0) < 0 || GetAttr<double>(c.attrs, "softcap", 0) < 0) {
    return InvalidArgument("expected window and softcap of 0 (none) or more");
  }
  return ops::One(c.inputs[kQ].dtype, q);
}

// How many keys are read follows from the lengths, which are data: only the queries are known.
Cost CostPagedAttention(const InferContext& c, std::span<const TensorType> outputs) {
  return {-1, static_cast<double>(ops::Bytes(c.inputs[kQ])), static_cast<double>(ops::Bytes(outputs[0]))};
}

using kernels::PagedAttentionParams;

kernels::PagedAttentionArgs MakeArgs(const StepContext& c) {
  const auto& p = c.as<PagedAttentionParams>();
  kernels::PagedAttentionArgs args;
  args.state = c.in(kState);
  args.q = c.in(kQ);
  args.out = c.out(0);
  args.starts = c.in(kStarts).as<const int32_t>();
  args.lengths = c.in(kLengths).as<const int32_t>();
  args.tables = c.in(kTables).as<const int32_t>();
  args.sequences = c.in(kTables).shape[0];
  args.table_width = c.in(kTables).shape[1];
  args.scale = p.scale;
  args.window = p.window;
  args.softcap = p.softcap;
  args.partial = c.out(1).as<float>();
  args.partial_rows = p.partial_rows;
  args.blocks = p.blocks;
  return args;
}

Status PagedAttentionStep(const StepContext& c) {
  kernels::PagedAttentionArgs args = MakeArgs(c);
  if (c.as<PagedAttentionParams>().wide) args.wide_from = *c.in(kWideFrom).as<const int32_t>();
  return kernels::PagedAttention(args, c.scratch, c.part, c.num_parts);
}

Status PagedAttentionMergeStep(const StepContext& c) {
  return kernels::PagedAttentionMerge(MakeArgs(c), c.part, c.num_parts);
}

size_t PagedAttentionScratch(const StepContext& c) { return kernels::PagedAttentionScratchBytes(MakeArgs(c)); }

Status LowerPagedAttention(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const Dims& state = graph.value(node.inputs[kState]).shape;
  const Dims& tables = graph.value(node.inputs[kTables]).shape;
  PagedAttentionParams p{};
  p.blocks = StateBlocks(graph, node.inputs[kState]);
  p.window = GetAttr<int64_t>(node.attrs, "window", 0);
  p.scale = static_cast<float>(GetAttr<double>(node.attrs, "scale", 1.0));
  p.softcap = static_cast<float>(GetAttr<double>(node.attrs, "softcap", 0.0));
  p.partial_rows =
      kernels::PartialRows(out.view.shape[1], state[1], state[4], tables[1] * state[3], lowering.num_threads());
  const TensorRef partial =
      lowering.AllocateTemporary(DType::kF32, {std::max<int64_t>(p.partial_rows, 1), state[4] + 2});
  std::vector<TensorRef> operands = {lowering.Ref(node.inputs[kState]),
                                     lowering.InnerContiguous(lowering.Ref(node.inputs[kQ]))};
  for (const int i : {kStarts, kLengths, kTables}) {
    operands.push_back(lowering.Contiguous(lowering.Ref(node.inputs[static_cast<size_t>(i)])));
  }
  p.wide = node.inputs[kWideFrom] != kNoValue && lowering.target().packs_weights() &&
           kernels::RoundsToPages(graph.value(node.inputs[kState]).dtype);
  if (p.wide) operands.push_back(lowering.Ref(node.inputs[kWideFrom]));
  lowering.AddStep(KernelId::kPagedAttention, operands, {out, partial}, p).data_decides = true;
  if (p.partial_rows == 0) return Status::Ok();
  Step& merge = lowering.AddStep(KernelId::kPagedAttentionMerge, std::move(operands), {out, partial}, p);
  merge.name = "paged_attention_merge";
  merge.data_decides = true;
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> PagedAttentionKernels() {
  static const CpuKernel kernels[] = {{KernelId::kKvWrite, KvWriteStep},
                                      {KernelId::kPagedAttention, PagedAttentionStep, PagedAttentionScratch},
                                      {KernelId::kPagedAttentionMerge, PagedAttentionMergeStep}};
  return kernels;
}

std::span<const OpDef> PagedAttentionOps() {
  static const std::vector<OpDef> rows = {
      {"kv_write",
       "Keys and values of tokens, put into a state in place: token i into slots[i] (below 0: nowhere). With cos and "
       "sin "
       "keys are turned first, as by rotary.",
       {"state", "k", "v", "slots", "cos?", "sin?"},
       {{"interleaved", AttrType::kBool, false, "as of rotary"}},
       Section::kForward,
       InferKvWrite,
       CostKvWrite,
       LowerKvWrite,
       Trait::kWritesState,
       nullptr,
       nullptr,
       BlockedState},
      {"paged_attention",
       "Causal attention of the queries of several sequences over their pages of a state. Queries starts[s] to "
       "starts[s + 1] are the last of lengths[s] keys, which are in the pages tables[s]. Sequences from query "
       "wide_from "
       "(i32 [1]) on may be computed in the type of pages of 16 bits.",
       {"state", "q", "starts", "lengths", "tables", "wide_from?"},
       {{"scale", AttrType::kFloat, true, "factor on the scores, usually 1/sqrt(head size)"},
        {"window", AttrType::kInt, false, "how many keys a query sees, its own included; default 0: all before it"},
        {"softcap", AttrType::kFloat, false, "scores become softcap tanh(score / softcap); default 0: they stay"}},
       Section::kForward,
       InferPagedAttention,
       CostPagedAttention,
       LowerPagedAttention,
       Trait::kProduct,
       nullptr,
       nullptr,
       BlockedState},
  };
  return rows;
}

}  // namespace thresher
