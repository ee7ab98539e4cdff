// A chain of element-wise operators as one.
#include "thresher/kernels/pointwise_chain.h"

#include <algorithm>

#include "thresher/graph/program.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

using Kind = ProgramArg::Kind;

Result<Program> ProgramOf(const Attrs& attrs) { return ParseProgram(GetAttr<std::string>(attrs, "program", "")); }

// What the steps see of the operands: floats of 16 bits are widened as they are read.
std::vector<OperandType> Widened(std::span<const OperandType> operands) {
  std::vector<OperandType> wide(operands.begin(), operands.end());
  for (OperandType& operand : wide) {
    if (IsFloat(operand.dtype)) operand.dtype = DType::kF32;
  }
  return wide;
}

// What a step's operator sees.
std::vector<OperandType> ArgTypes(const ProgramStep& step, std::span<const OperandType> operands,
                                  const std::vector<TensorType>& results) {
  std::vector<OperandType> types(step.args.size());
  for (size_t a = 0; a < types.size(); ++a) {
    const ProgramArg& arg = step.args[a];
    const auto index = static_cast<size_t>(arg.index);
    if (arg.kind == Kind::kOperand) static_cast<TensorType&>(types[a]) = operands[index];
    if (arg.kind == Kind::kStep) static_cast<TensorType&>(types[a]) = results[index];
    types[a].present = true;
  }
  return types;
}

bool IsChainOp(const std::string& op) {
  return kernels::ParseUnary(op).has_value() || kernels::ParseBinary(op).has_value() || op == "where";
}

Status CheckArgs(const ProgramStep& step, size_t num_operands) {
  if (!IsChainOp(step.op)) return Unsupported("expected an element-wise operator; `thresher ops` lists them");
  const size_t wanted = FindOp(step.op)->operands.size();
  if (step.args.size() != wanted) {
    return InvalidArgument("expected " + std::to_string(wanted) + " arguments, got " +
                           std::to_string(step.args.size()));
  }
  size_t numbers = 0;
  for (const ProgramArg& arg : step.args) {
    if (arg.kind == Kind::kOperand && static_cast<size_t>(arg.index) >= num_operands) {
      return InvalidArgument("expected an argument below in" + std::to_string(num_operands) + ", got in" +
                             std::to_string(arg.index));
    }
    numbers += arg.kind == Kind::kNumber;
  }
  const bool first_is_tensor = step.op == "where" || step.op == "pow" || wanted == 1;
  if (numbers > 1 || (first_is_tensor && step.args[0].kind == Kind::kNumber)) {
    return InvalidArgument(
        "expected at most one number, none as condition, base of a power or single argument; pass it as an operand of "
        "shape []");
  }
  return Status::Ok();
}

// Types of all steps' results.
Result<std::vector<TensorType>> InferSteps(const Program& program, std::span<const OperandType> operands) {
  std::vector<TensorType> results;
  for (size_t s = 0; s < program.size(); ++s) {
    const auto fail = [&](const Status& status) {
      return Status(status.code(), StepName(s, program[s]) + status.message());
    };
    if (const Status status = CheckArgs(program[s], operands.size()); !status.ok()) return fail(status);
    const std::vector<OperandType> types = ArgTypes(program[s], operands, results);
    Result<std::vector<TensorType>> inferred = FindOp(program[s].op)->infer(InferContext{types, {}});
    if (!inferred.ok()) return fail(inferred.status());
    results.push_back(std::move(inferred).value().front());
  }
  return results;
}

Result<std::vector<TensorType>> InferPointwise(const InferContext& c) {
  THRESHER_ASSIGN(const Program program, ProgramOf(c.attrs));
  if (program.size() > static_cast<size_t>(kernels::kMaxChainSteps) ||
      c.inputs.size() > static_cast<size_t>(kernels::kMaxChainOperands)) {
    return InvalidArgument("expected at most " + std::to_string(kernels::kMaxChainSteps) + " steps and " +
                           std::to_string(kernels::kMaxChainOperands) + " operands, got " +
                           std::to_string(program.size()) + " and " + std::to_string(c.inputs.size()) +
                           "; use several operators");
  }
  for (size_t i = 0; i < c.inputs.size(); ++i) THRESHER_TRY(ops::WantFloat(c, i, "every operand"));
  const std::string name = GetAttr<std::string>(c.attrs, "dtype", "f32");
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype || !IsFloat(*dtype)) return Unsupported("expected dtype f32, bf16 or f16, got \"" + name + "\"");
  THRESHER_ASSIGN(std::vector<TensorType> results, InferSteps(program, Widened(c.inputs)));
  TensorType& result = results.back();
  if (result.dtype != DType::kF32) {
    return Unsupported(StepName(program.size() - 1, program.back()) + "expected the result as f32, got " +
                       ops::ToString(result));
  }
  std::vector<bool> operand_read(c.inputs.size(), false);
  std::vector<bool> step_read(program.size(), false);
  step_read.back() = true;
  for (const ProgramStep& step : program) {
    for (const ProgramArg& arg : step.args) {
      if (arg.kind == Kind::kOperand) operand_read[static_cast<size_t>(arg.index)] = true;
      if (arg.kind == Kind::kStep) step_read[static_cast<size_t>(arg.index)] = true;
    }
  }
  for (size_t s = 0; s < program.size(); ++s) {
    if (results[s].shape != result.shape) {
      return InvalidArgument(StepName(s, program[s]) + "expected the shape of the last step, " +
                             ToString(result.shape) + ", got " + ToString(results[s].shape) +
                             "; compute it by an operator of its own");
    }
    if (!step_read[s]) return InvalidArgument(StepName(s, program[s]) + "expected a later step to read it, got none");
  }
  const auto unread = std::find(operand_read.begin(), operand_read.end(), false);
  if (unread != operand_read.end()) {
    return InvalidArgument("expected every operand to be read, got none for in" +
                           std::to_string(unread - operand_read.begin()));
  }
  return ops::One(*dtype, std::move(result.shape));
}

// What lies between the steps is neither read from memory nor written to it.
Cost CostPointwise(const InferContext& c, std::span<const TensorType> outputs) {
  Cost cost = ops::ElementwiseCost(c, outputs, 0);
  const Result<Program> program = ProgramOf(c.attrs);
  if (!program.ok()) return cost;
  const std::vector<OperandType> operands = Widened(c.inputs);
  const Result<std::vector<TensorType>> results = InferSteps(program.value(), operands);
  if (!results.ok()) return cost;
  for (size_t s = 0; s < program.value().size(); ++s) {
    const ProgramStep& step = program.value()[s];
    const std::vector<OperandType> types = ArgTypes(step, operands, results.value());
    cost.flops += FindOp(step.op)->cost(InferContext{types, {}}, std::span(&results.value()[s], 1)).flops;
  }
  return cost;
}

Status PointwiseStep(const StepContext& c) {
  kernels::RunChain(c.as<kernels::Chain>(), c.operands, c.out(), c.scratch, c.part, c.num_parts);
  return Status::Ok();
}

size_t PointwiseScratch(const StepContext& c) { return kernels::ChainScratchBytes(c.as<kernels::Chain>()); }

kernels::ChainArg ToKernel(const ProgramArg& arg) {
  static_assert(static_cast<int>(Kind::kNumber) == static_cast<int>(kernels::ChainArg::Kind::kNumber));
  return {static_cast<kernels::ChainArg::Kind>(arg.kind), static_cast<uint8_t>(arg.index), arg.number};
}

Result<kernels::Chain> ToKernel(const Program& program, std::span<const OperandType> operands) {
  THRESHER_ASSIGN(const std::vector<TensorType> results, InferSteps(program, operands));
  kernels::Chain chain;
  chain.num_operands = static_cast<int>(operands.size());
  chain.num_steps = static_cast<int>(program.size());
  for (size_t s = 0; s < program.size(); ++s) {
    const ProgramStep& step = program[s];
    kernels::ChainStep& to = chain.steps[s];
    if (const auto unary = kernels::ParseUnary(step.op)) {
      to.kind = kernels::ChainStep::Kind::kUnary;
      to.unary = *unary;
    } else if (const auto binary = kernels::ParseBinary(step.op)) {
      to.kind = kernels::ChainStep::Kind::kBinary;
      to.binary = *binary;
    } else {
      to.kind = kernels::ChainStep::Kind::kWhere;
    }
    for (size_t a = 0; a < step.args.size(); ++a) to.args[a] = ToKernel(step.args[a]);
    to.operand_dtype = ArgTypes(step, operands, results).back().dtype;
    to.dtype = results[s].dtype;
  }
  kernels::AssignSlots(chain);
  return chain;
}

// An operand as the device's chains take it.
TensorRef Taken(const TensorRef& operand, const Dims& shape, Lowering& lowering) {
  if (!IsHalf(operand.view.dtype) || lowering.target().chains_take_halves()) return operand;
  const TensorRef wide = lowering.AllocateTemporary(DType::kF32, shape);
  lowering.AddStep(KernelId::kCast, {operand}, {wide});
  return wide;
}

Status LowerPointwise(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  THRESHER_ASSIGN(const Program program, ProgramOf(node.attrs));
  std::vector<OperandType> types(node.inputs.size());
  std::vector<TensorRef> inputs;
  for (size_t i = 0; i < types.size(); ++i) {
    types[i].dtype = DType::kF32;
    types[i].shape = graph.value(node.inputs[i]).shape;
    types[i].present = true;
    const TensorRef input = Taken(lowering.Ref(node.inputs[i]), types[i].shape, lowering);
    inputs.push_back(ops::ExpandTo(input, graph.value(node.outputs[0]).shape));
  }
  THRESHER_ASSIGN(const kernels::Chain chain, ToKernel(program, types));
  const bool stored = lowering.target().chains_take_halves() || !IsHalf(out.view.dtype);
  const TensorRef to = stored ? out : lowering.AllocateTemporary(DType::kF32, graph.value(node.outputs[0]).shape);
  lowering.AddStep(KernelId::kPointwise, std::move(inputs), {to}, chain);
  if (!stored) lowering.AddStep(KernelId::kCast, {to}, {out});
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> PointwiseChainKernels() {
  static const CpuKernel kernels[] = {{KernelId::kPointwise, PointwiseStep, PointwiseScratch}};
  return kernels;
}

std::span<const OpDef> PointwiseChainOps() {
  static const std::vector<OpDef> rows = {
      {"pointwise",
       "Several element-wise operators, one after the other on tiles that stay in the cache; in f32, whatever is "
       "stored.",
       {"xs*"},
       {{"program", AttrType::kString, true, "s0=mul(in0,in1); s1=add(s0,0.5): operators, arguments in*, s*, numbers"},
        {"dtype", AttrType::kString, false, "of the result: f32 (default), bf16 or f16"}},
       Section::kForward,
       InferPointwise,
       CostPointwise,
       LowerPointwise},
  };
  return rows;
}

}  // namespace thresher
