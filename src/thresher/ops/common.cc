#include "thresher/ops/common.h"

#include <algorithm>

namespace thresher::ops {

std::string ToString(const TensorType& type) { return std::string(Name(type.dtype)) + thresher::ToString(type.shape); }

Result<Dims> Broadcast(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t da = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t db = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (da != db && da != 1 && db != 1) {
      return InvalidArgument("expected shapes that broadcast together, got " + thresher::ToString(a) + " and " +
                             thresher::ToString(b));
    }
    out[out.size() - 1 - i] = da == 1 ? db : da;
  }
  return out;
}

Result<int> NormalizeDim(int64_t dim, int rank, const char* what) {
  const int64_t limit = std::max(rank, 1);
  if (dim < -limit || dim >= limit) {
    return InvalidArgument(std::string("expected ") + what + " in [" + std::to_string(-limit) + ", " +
                           std::to_string(limit) + "), got " + std::to_string(dim));
  }
  return static_cast<int>(dim < 0 ? dim + limit : dim);
}

TensorRef ExpandTo(const TensorRef& ref, const Dims& shape) {
  TensorRef out = ref;
  out.view.rank = static_cast<int>(shape.size());
  const int offset = out.view.rank - ref.view.rank;
  for (int i = 0; i < out.view.rank; ++i) {
    const int from = i - offset;
    out.view.shape[i] = shape[static_cast<size_t>(i)];
    out.view.strides[i] = from >= 0 && ref.view.shape[from] == out.view.shape[i] ? ref.view.strides[from] : 0;
  }
  return out;
}

TensorRef RowsOrCopy(const TensorRef& ref, Lowering& lowering) {
  int64_t rows, cols, stride;
  return AsRows(ref.view, &rows, &cols, &stride) ? ref : lowering.Contiguous(ref);
}

Cost ElementwiseCost(const InferContext& c, std::span<const TensorType> outputs, double flops_per_output) {
  Cost cost;
  cost.flops = 0;
  for (const OperandType& input : c.inputs) {
    if (input.present) cost.bytes_read += static_cast<double>(Bytes(input));
  }
  for (const TensorType& output : outputs) {
    cost.bytes_written += static_cast<double>(Bytes(output));
    cost.flops += flops_per_output * static_cast<double>(NumElements(output.shape));
  }
  return cost;
}

Cost MoveCost(const InferContext&, std::span<const TensorType> outputs) {
  Cost cost;
  cost.flops = 0;
  for (const TensorType& output : outputs) cost.bytes_written += static_cast<double>(Bytes(output));
  cost.bytes_read = cost.bytes_written;
  return cost;
}

Status WantF32(const InferContext& c, size_t index, const char* name) {
  if (index >= c.inputs.size() || !c.inputs[index].present || c.inputs[index].dtype == DType::kF32) return Status::Ok();
  return Unsupported(std::string("expected ") + name + " as f32, got " + ToString(c.inputs[index]));
}

Status WantFloat(const InferContext& c, size_t index, const char* name) {
  if (index >= c.inputs.size() || !c.inputs[index].present || IsFloat(c.inputs[index].dtype)) return Status::Ok();
  return Unsupported(std::string("expected ") + name + " as f32, bf16 or f16, got " + ToString(c.inputs[index]));
}

Status WantFloatLike0(const InferContext& c, size_t index, const char* name) {
  THRESHER_TRY(WantFloat(c, index, name));
  if (index >= c.inputs.size() || !c.inputs[index].present || c.inputs[index].dtype == c.inputs[0].dtype) {
    return Status::Ok();
  }
  return InvalidArgument(std::string("expected ") + name + " as " + std::string(Name(c.inputs[0].dtype)) +
                         ", the type of the first operand, got " + ToString(c.inputs[index]) + "; insert a cast");
}

}  // namespace thresher::ops
