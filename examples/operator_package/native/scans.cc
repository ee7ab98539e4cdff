// torch.logcumsumexp: log(exp(x[0]) + ... + exp(x[i])) along a dimension, which the engine itself has not.
#include <cmath>
#include <limits>

#include "thresher/operator_package.h"

namespace {

using namespace thresher::operators;  // NOLINT(google-build-using-namespace): a row reads better
using thresher::DType;
using thresher::InvalidArgument;
using thresher::Result;
using thresher::Status;
using thresher::View;

constexpr Attribute kAttributes[] = {Int("dim", "the dimension; negative ones count from the last", -1)};
constexpr int kDim = 0;  // its place among the attributes

int DimOf(const Call& call) {
  const int64_t dim = call.integer(kDim);
  return static_cast<int>(dim < 0 ? dim + call.in(0).rank : dim);
}

// What the result is; what cannot be computed is refused here, before anything is.
Result<std::vector<Type>> InferTypes(const Call& call) {
  const View& x = call.in(0);
  if (x.dtype != DType::kF32) return InvalidArgument("expected x of floats, got " + std::string(Name(x.dtype)));
  const int dim = DimOf(call);
  if (dim < 0 || dim >= x.rank) {
    return InvalidArgument("expected dim from " + std::to_string(-x.rank) + " to " + std::to_string(x.rank - 1) +
                           ", got " + std::to_string(call.integer(kDim)));
  }
  return std::vector<Type>{TypeOf(x)};
}

// For profiles, and for how many threads share the work: exp, log and two additions an element count as four.
Cost CostOfElements(const Call& call) { return PerElement(call, 4); }

// Lines along the dimension do not depend on each other: each part of the work takes some of them.
Status Compute(const Call& call) {
  const View& x = call.in(0);
  const int dim = DimOf(call);
  const int64_t size = x.shape[dim];
  int64_t stride = 1;  // operands are row-major
  for (int i = dim + 1; i < x.rank; ++i) stride *= x.shape[i];
  const Range lines = PartOf(call, x.size() / size);
  for (int64_t line = lines.begin; line < lines.end; ++line) {
    const int64_t first = line / stride * stride * size + line % stride;
    const float* from = x.as<float>() + first;
    float* to = call.out().as<float>() + first;
    float sum = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < size; ++i, from += stride, to += stride) {
      const float low = std::fmin(sum, *from);
      const float high = std::fmax(sum, *from);
      // fmin and fmax leave NaN out; equal infinities have no difference.
      const bool special = std::isnan(sum) || std::isnan(*from);
      sum = special ? sum + *from : low == high ? high + 0.693147181F : high + std::log1p(std::exp(low - high));
      *to = sum;
    }
  }
  return Status::Ok();
}

constexpr Row kRows[] = {{
    .name = "scans.logcumsumexp",
    .doc = "log(exp(x[0]) + ... + exp(x[i])) along a dimension.",
    .operands = "x",
    .attributes = kAttributes,
    .num_attributes = 1,
    .infer = Infer<InferTypes>,
    .cost = CostOf<CostOfElements>,
    .run = Run<Compute>,
}};

}  // namespace

THRESHER_OPERATOR_PACKAGE("scans", "1.0", kRows)
