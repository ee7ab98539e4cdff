// Pooling and resizing over one to three dimensions, channels last.
#include "thresher/kernels/resample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "thresher/ops/common.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

using kernels::ResampleParams;

// Larger sizes and attributes are refused, so that arithmetic with them cannot overflow.
constexpr int64_t kMostSize = int64_t{1} << 24;
constexpr int64_t kMostTaps = int64_t{1} << 24;  // of one dimension

// What one coordinate of the output takes along its dimension of x.
struct Tap {
  int64_t index;
  float weight;
};

// The sizes of the output's spatial dimensions, and their taps.
struct Resampling {
  Dims size;
  std::function<std::vector<Tap>(size_t dimension, int64_t at)> taps;
};

Result<size_t> SpatialRank(const OperandType& x) {
  if (x.shape.size() < 3 || x.shape.size() > 5) {
    return InvalidArgument("expected x [N, spatial..., C] with one to three spatial dimensions, got " +
                           ToString(x.shape));
  }
  for (size_t d = 1; d + 1 < x.shape.size(); ++d) {
    if (x.shape[d] < 1 || x.shape[d] > kMostSize) {
      return InvalidArgument("expected spatial sizes of 1 to 2^24, got " + ToString(x.shape));
    }
  }
  return x.shape.size() - 2;
}

Result<Dims> Numbers(const Attrs& attrs, const std::string& name, const Dims& fallback, int64_t least) {
  Dims values = GetAttr<Dims>(attrs, name, fallback);
  if (values.size() != fallback.size() ||
      std::any_of(values.begin(), values.end(), [&](int64_t v) { return v < least || v > kMostSize; })) {
    return InvalidArgument("expected " + name + " with " + std::to_string(fallback.size()) +
                           " numbers, one for each spatial dimension of x, from " + std::to_string(least) +
                           " to 2^24, got " + ToString(values));
  }
  return values;
}

// max_pool and avg_pool.
template <bool kMax>
Result<Resampling> Pool(const Attrs& attrs, const Dims& x) {
  const size_t rank = x.size() - 2;
  THRESHER_ASSIGN(const Dims kernel, Numbers(attrs, "kernel", Dims(rank, 0), 1));
  THRESHER_ASSIGN(const Dims stride, Numbers(attrs, "stride", kernel, 1));
  THRESHER_ASSIGN(const Dims padding, Numbers(attrs, "padding", Dims(rank, 0), 0));
  THRESHER_ASSIGN(const Dims dilation, Numbers(attrs, "dilation", Dims(rank, 1), 1));
  const bool ceil_mode = GetAttr<bool>(attrs, "ceil_mode", false);
  const bool padded = GetAttr<bool>(attrs, "count_include_pad", true);
  const int64_t divisor = GetAttr<int64_t>(attrs, "divisor", 0);
  Resampling made;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t in = x[d + 1];
    const int64_t room = in + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
    const int64_t last = room + (ceil_mode ? stride[d] - 1 : 0);
    if (last < 0 || 2 * padding[d] > kernel[d]) {
      return InvalidArgument("expected a kernel that fits into the padded x and padding of half of it at most, got x " +
                             ToString(x) + ", kernel " + ToString(kernel) + " and padding " + ToString(padding));
    }
    int64_t size = last / stride[d] + 1;
    // The last window begins within x or the padding before it.
    if (ceil_mode && (size - 1) * stride[d] >= in + padding[d]) --size;
    made.size.push_back(size);
  }
  made.taps = [=](size_t d, int64_t at) {
    const int64_t in = x[d + 1], begin = at * stride[d] - padding[d];
    std::vector<Tap> taps;
    for (int64_t k = 0; k < kernel[d]; ++k) {
      const int64_t index = begin + k * dilation[d];
      if (index >= 0 && index < in) taps.push_back({index, 1.0f});
    }
    if (kMax) return taps;
    const int64_t covered = std::min(begin + kernel[d], in + padding[d]) - begin;
    double count = static_cast<double>(padded ? covered : static_cast<int64_t>(taps.size()));
    if (divisor != 0) count = d == 0 ? static_cast<double>(divisor) : 1.0;
    for (Tap& tap : taps) tap.weight = static_cast<float>(1.0 / count);
    return taps;
  };
  return made;
}

Result<Resampling> AdaptivePool(const Attrs& attrs, const Dims& x) {
  Resampling made;
  THRESHER_ASSIGN(made.size, Numbers(attrs, "size", Dims(x.size() - 2, 0), 1));
  made.taps = [x, size = made.size](size_t d, int64_t at) {
    const int64_t in = x[d + 1];
    const int64_t begin = at * in / size[d], end = ((at + 1) * in + size[d] - 1) / size[d];
    std::vector<Tap> taps;
    for (int64_t i = begin; i < end; ++i) taps.push_back({i, 1.0f / static_cast<float>(end - begin)});
    return taps;
  };
  return made;
}

// Where PyTorch looks, in its arithmetic: floats.
Result<Resampling> Resize(const Attrs& attrs, const Dims& x) {
  Resampling made;
  THRESHER_ASSIGN(made.size, Numbers(attrs, "size", Dims(x.size() - 2, 0), 1));
  const std::string mode = GetAttr<std::string>(attrs, "mode", "nearest");
  if (mode != "nearest" && mode != "nearest_exact" && mode != "linear" && mode != "cubic") {
    return InvalidArgument("expected mode nearest, nearest_exact, linear or cubic, got \"" + mode + "\"");
  }
  const bool corners = GetAttr<bool>(attrs, "align_corners", false);
  made.taps = [x, mode, corners, size = made.size](size_t d, int64_t at) -> std::vector<Tap> {
    const int64_t in = x[d + 1], out = size[d];
    const auto clamp = [in](int64_t i) { return std::clamp<int64_t>(i, 0, in - 1); };
    const float from = static_cast<float>(at);
    float scale = static_cast<float>(in) / static_cast<float>(out);
    if (mode == "nearest") return {{clamp(static_cast<int64_t>(std::floor(from * scale))), 1.0f}};
    if (mode == "nearest_exact") return {{clamp(static_cast<int64_t>(std::floor((from + 0.5f) * scale))), 1.0f}};
    if (corners) scale = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
    float source = corners ? from * scale : (from + 0.5f) * scale - 0.5f;
    if (mode == "linear") {
      source = std::max(source, 0.0f);
      const int64_t first = clamp(static_cast<int64_t>(source));
      const float part = source - static_cast<float>(first);
      return {{first, 1.0f - part}, {clamp(first + 1), part}};
    }
    const float whole = std::floor(source);
    const float t = source - whole;
    constexpr float kA = -0.75f;
    const auto near = [](float s) { return ((kA + 2) * s - (kA + 3)) * s * s + 1; };
    const auto far = [](float s) { return ((kA * s - 5 * kA) * s + 8 * kA) * s - 4 * kA; };
    const auto first = static_cast<int64_t>(whole);
    return {{clamp(first - 1), far(t + 1)},
            {clamp(first), near(t)},
            {clamp(first + 1), near(1 - t)},
            {clamp(first + 2), far(2 - t)}};
  };
  return made;
}

using Maker = Result<Resampling> (*)(const Attrs&, const Dims&);

template <Maker make>
Result<std::vector<TensorType>> InferResample(const InferContext& c) {
  THRESHER_TRY(ops::WantFloat(c, 0, "x"));
  THRESHER_TRY(SpatialRank(c.inputs[0]).status());
  const Dims& x = c.inputs[0].shape;
  THRESHER_ASSIGN(const Resampling made, make(c.attrs, x));
  Dims out = {x[0]};
  out.insert(out.end(), made.size.begin(), made.size.end());
  out.push_back(x.back());
  return ops::One(c.inputs[0].dtype, std::move(out));
}

Cost CostResample(const InferContext& c, std::span<const TensorType> outputs) {
  double taps = 1;
  for (const int64_t k : GetAttr<Dims>(c.attrs, "kernel", {})) taps *= static_cast<double>(k);
  return ops::ElementwiseCost(c, outputs, taps);
}

Status ResampleStep(const StepContext& c) {
  const auto& p = c.as<ResampleParams>();
  kernels::ResampleArgs args;
  args.greatest = p.greatest;
  args.batch = p.batch;
  args.channels = p.channels;
  args.x = c.in(0).as<const float>();
  args.x_batch = p.x_batch;
  const int64_t strides[] = {p.x_d, p.x_h, p.x_w}, out[] = {p.out_d, p.out_h, p.out_w};
  // Starts of all dimensions, then the taps of all.
  const auto* starts = c.in(1).as<const int32_t>();
  const int32_t* const index = starts + p.out_d + p.out_h + p.out_w + 3;
  for (int d = 0; d < 3; ++d) {
    args.x_strides[d] = strides[d];
    args.out[d] = out[d];
    args.axes[d] = {starts, index, c.in(2).as<const float>()};
    starts += out[d] + 1;
  }
  args.y = c.out().as<float>();
  args.x_bf16 = c.in(0).dtype == DType::kBF16;
  args.y_bf16 = c.out().dtype == DType::kBF16;
  if (args.y_bf16) args.y_position = c.out().strides[0];
  kernels::Resample(args, c.part, c.num_parts);
  return Status::Ok();
}

// As x.
Taken ResampleTakesRows(Step& resample, int, StoredRows& rows) {
  auto& p = ops::ParamsOf<ResampleParams>(resample);
  TensorRef& x = resample.operands[0];
  if (rows.place != nullptr) {
    x = *rows.place;
    for (int64_t* const stride : {&p.x_batch, &p.x_d, &p.x_h, &p.x_w}) *stride = *stride / p.channels * rows.stride;
    return Taken::kRead;
  }
  const bool suits = p.greatest && p.channels == rows.columns && p.channels % kernels::kHalfChannels == 0 &&
                     x.offset == 0 && x.view.contiguous() && x.view.size() == rows.rows * rows.columns;
  return suits ? Taken::kRead : Taken::kNot;
}

// Where it takes such rows already.
bool ResampleStoresRows(Step& resample, StoredRows& rows) {
  const auto& p = ops::ParamsOf<ResampleParams>(resample);
  return resample.operands[0].view.dtype == DType::kBF16 &&
         ops::StoresResultAsRows(resample, p.batch * p.out_d * p.out_h * p.out_w, p.channels, rows);
}

template <Maker make, bool kGreatest>
Status LowerResample(const Graph& graph, const Node& node, Lowering& lowering) {
  const TensorRef out = lowering.Allocate(node.outputs[0]);
  if (ops::Empty(out)) return Status::Ok();
  const TensorRef x = lowering.InnerContiguous(lowering.Ref(node.inputs[0]));
  const Dims& shape = graph.value(node.inputs[0]).shape;
  THRESHER_ASSIGN(const Resampling made, make(node.attrs, shape));
  const int rank = x.view.rank - 2;
  ResampleParams p{};
  p.greatest = kGreatest;
  p.batch = shape[0];
  p.channels = shape.back();
  p.x_batch = x.view.strides[0];
  int64_t* const strides[] = {&p.x_d, &p.x_h, &p.x_w};
  int64_t* const sizes[] = {&p.out_d, &p.out_h, &p.out_w};
  std::vector<int32_t> starts, index;
  std::vector<float> weight;
  for (int d = 0; d < 3; ++d) {
    const int from = d - (3 - rank);
    *strides[d] = from < 0 ? 0 : x.view.strides[1 + from];
    *sizes[d] = from < 0 ? 1 : made.size[static_cast<size_t>(from)];
    const size_t first = index.size();
    for (int64_t i = 0; i < *sizes[d]; ++i) {
      starts.push_back(static_cast<int32_t>(index.size()));
      const std::vector<Tap> taps = from < 0 ? std::vector<Tap>{{0, 1.0f}} : made.taps(static_cast<size_t>(from), i);
      for (const Tap& tap : taps) {
        index.push_back(static_cast<int32_t>(tap.index));
        weight.push_back(tap.weight);
      }
      if (static_cast<int64_t>(index.size() - first) > kMostTaps) {
        return Unsupported("expected at most 2^24 taps along a dimension, got more");
      }
    }
    starts.push_back(static_cast<int32_t>(index.size()));
  }
  starts.insert(starts.end(), index.begin(), index.end());
  const auto length = [](const auto& list) { return Dims{static_cast<int64_t>(list.size())}; };
  const Dims table = length(starts), taps = length(weight);
  lowering.AddStep(
      KernelId::kResample,
      {x, lowering.AddConstant(DType::kI32, table, starts), lowering.AddConstant(DType::kF32, taps, weight)}, {out}, p);
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> ResampleKernels() {
  static const CpuKernel kernels[] = {
      {KernelId::kResample, ResampleStep, nullptr, ResampleTakesRows, ResampleStoresRows}};
  return kernels;
}

std::span<const OpDef> ResampleOps() {
  static const AttrSpec kernel = {"kernel", AttrType::kInts, true,
                                  "positions of a window, one number a spatial dimension"};
  static const AttrSpec stride = {"stride", AttrType::kInts, false, "from one window to the next; default: kernel"};
  static const AttrSpec padding = {"padding", AttrType::kInts, false, "positions before and after; default 0"};
  static const AttrSpec dilation = {"dilation", AttrType::kInts, false,
                                    "positions from one tap to the next; default 1"};
  static const AttrSpec ceil_mode = {"ceil_mode", AttrType::kBool, false,
                                     "windows may reach over the end; default false"};
  static const AttrSpec size = {"size", AttrType::kInts, true, "of the result's spatial dimensions"};
  static const std::vector<OpDef> rows = {
      {"max_pool",
       "The greatest in each window, channels last: x [N, spatial..., C].",
       {"x"},
       {kernel, stride, padding, dilation, ceil_mode},
       Section::kForward,
       InferResample<Pool<true>>,
       CostResample,
       LowerResample<Pool<true>, true>},
      {"avg_pool",
       "The mean of each window, channels last: x [N, spatial..., C].",
       {"x"},
       {kernel,
        stride,
        padding,
        ceil_mode,
        {"count_include_pad", AttrType::kBool, false, "padding counts as zeros; default true"},
        {"divisor", AttrType::kInt, false, "instead of the number of positions; 0 (default): none"}},
       Section::kForward,
       InferResample<Pool<false>>,
       CostResample,
       LowerResample<Pool<false>, false>},
      {"adaptive_avg_pool",
       "The means of windows of about equal size that cover x [N, spatial..., C], channels last.",
       {"x"},
       {size},
       Section::kForward,
       InferResample<AdaptivePool>,
       CostResample,
       LowerResample<AdaptivePool, false>},
      {"resize",
       "x [N, spatial..., C] at other spatial sizes, interpolated as PyTorch does.",
       {"x"},
       {size,
        {"mode", AttrType::kString, false, "nearest (default), nearest_exact, linear or cubic"},
        {"align_corners", AttrType::kBool, false, "linear, cubic: the corners stay where they are; default false"}},
       Section::kForward,
       InferResample<Resize>,
       CostResample,
       LowerResample<Resize, false>},
  };
  return rows;
}

}  // namespace thresher
