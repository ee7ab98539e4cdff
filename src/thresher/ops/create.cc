// Operators without operands: arange, full.
#include <cmath>

#include "thresher/kernels/copy.h"
#include "thresher/ops/common.h"

namespace thresher {
namespace {

using kernels::ArangeParams;
using kernels::FillParams;

constexpr int64_t kMaxElements = int64_t{1} << 40;

Result<DType> WantDType(const Attrs& attrs) {
  const std::string name = GetAttr<std::string>(attrs, "dtype", "f32");
  const std::optional<DType> dtype = ParseDType(name);
  if (!dtype) return Unsupported("expected dtype f32, bf16, f16, i64, i32 or bool, got \"" + name + "\"");
  return *dtype;
}

// ---- arange ----

Result<std::vector<TensorType>> InferArange(const InferContext& c) {
  THRESHER_ASSIGN(const DType dtype, WantDType(c.attrs));
  if (dtype == DType::kBool) return Unsupported("expected a float or an integer type, got bool");
  const double start = GetAttr<double>(c.attrs, "start", 0);
  const double end = GetAttr<double>(c.attrs, "end", 0);
  const double step = GetAttr<double>(c.attrs, "step", 1);
  const double count = std::ceil((end - start) / step);
  if (step == 0 || !(count >= 0) || count > static_cast<double>(kMaxElements)) {
    return InvalidArgument("expected a finite range whose step leads from start to end, got start " +
                           std::to_string(start) + ", end " + std::to_string(end) + ", step " + std::to_string(step));
  }
  return ops::One(dtype, {static_cast<int64_t>(count)});
}

Status ArangeStep(const StepContext& c) {
  const auto& p = c.as<ArangeParams>();
  kernels::Arange(c.out(), p.start, p.step, c.part, c.num_parts);
  return Status::Ok();
}

Status LowerArange(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  lowering.AddStep(KernelId::kArange, {}, {out},
                   ArangeParams{GetAttr<double>(node.attrs, "start", 0), GetAttr<double>(node.attrs, "step", 1)});
  return Status::Ok();
}

// ---- full ----

Result<std::vector<TensorType>> InferFull(const InferContext& c) {
  THRESHER_ASSIGN(const DType dtype, WantDType(c.attrs));
  Dims shape = GetAttr<std::vector<int64_t>>(c.attrs, "shape", {});
  int64_t left = kMaxElements;
  for (const int64_t d : shape) {
    if (d < 0 || d > left) {
      return InvalidArgument("expected sizes of 0 or more and at most " + std::to_string(kMaxElements) +
                             " elements, got " + ToString(shape));
    }
    if (d > 0) left /= d;
  }
  return ops::One(dtype, std::move(shape));
}

Status FillStep(const StepContext& c) {
  kernels::Fill(c.out(), static_cast<uint64_t>(c.as<FillParams>().bits), c.part, c.num_parts);
  return Status::Ok();
}

Status LowerFull(const Graph&, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  // An i64 value beyond 2^53 comes as "value_int", because a float would round it.
  const bool integral = node.attrs.contains("value_int");
  const uint64_t bits = integral ? kernels::BitsOf(GetAttr<int64_t>(node.attrs, "value_int", 0), out.view.dtype)
                                 : kernels::BitsOf(GetAttr<double>(node.attrs, "value", 0), out.view.dtype);
  lowering.AddStep(KernelId::kFill, {}, {out}, FillParams{static_cast<int64_t>(bits)});
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> CreateKernels() {
  static const CpuKernel kernels[] = {{KernelId::kArange, ArangeStep}, {KernelId::kFill, FillStep}};
  return kernels;
}

std::span<const OpDef> CreateOps() {
  static const std::vector<OpDef> rows = {
      {"arange",
       "start, start + step, ... up to but without end.",
       {},
       {{"start", AttrType::kFloat, false, "default 0"},
        {"end", AttrType::kFloat, true, "not included"},
        {"step", AttrType::kFloat, false, "default 1"},
        {"dtype", AttrType::kString, false, "f32 (default), bf16, f16, i64 or i32"}},
       Section::kForward,
       InferArange,
       ops::MoveCost,
       LowerArange},
      {"full",
       "A tensor of one value.",
       {},
       {{"shape", AttrType::kInts, true, "sizes"},
        {"value", AttrType::kFloat, false, "default 0"},
        {"value_int", AttrType::kInt, false, "instead of value, where a float would round it"},
        {"dtype", AttrType::kString, false, "f32 (default), bf16, f16, i64, i32 or bool"}},
       Section::kForward,
       InferFull,
       ops::MoveCost,
       LowerFull},
  };
  return rows;
}

}  // namespace thresher
