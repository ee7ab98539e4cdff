#include "thresher/ops/conv_geometry.h"

namespace thresher::ops {

Result<Dims> PerDimension(const Attrs& attrs, const std::string& name, size_t rank, int64_t fallback, int64_t least) {
  Dims values = GetAttr<Dims>(attrs, name, Dims(rank, fallback));
  const bool sides = name == "padding";
  if (values.size() != rank && !(sides && values.size() == 2 * rank)) {
    return InvalidArgument("expected " + name + " with " + std::to_string(rank) +
                           (sides ? " numbers or twice as many" : " numbers") +
                           ", one for each spatial dimension of x, got " + ToString(values));
  }
  for (const int64_t value : values) {
    if (value < least || value > kMostAttr) {
      return InvalidArgument("expected " + name + " from " + std::to_string(least) + " to " +
                             std::to_string(kMostAttr) + ", got " + ToString(values));
    }
  }
  return values;
}

Result<Geometry> GeometryOf(const Attrs& attrs, size_t rank) {
  Geometry g;
  THRESHER_ASSIGN(g.stride, PerDimension(attrs, "stride", rank, 1, 1));
  THRESHER_ASSIGN(g.before, PerDimension(attrs, "padding", rank, 0, 0));
  THRESHER_ASSIGN(g.dilation, PerDimension(attrs, "dilation", rank, 1, 1));
  THRESHER_ASSIGN(g.output_padding, PerDimension(attrs, "output_padding", rank, 0, 0));
  g.after.assign(g.before.end() - static_cast<std::ptrdiff_t>(rank), g.before.end());
  g.before.resize(rank);
  g.groups = GetAttr<int64_t>(attrs, "groups", 1);
  g.transposed = GetAttr<bool>(attrs, "transposed", false);
  return g;
}

}  // namespace thresher::ops
