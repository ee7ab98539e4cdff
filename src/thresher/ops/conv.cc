// Convolution over one to three dimensions, channels last: products whose rows are windows, or, channel by channel,
// sums of windows.
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "thresher/base/phases.h"
#include "thresher/kernels/arithmetic.h"
#include "thresher/kernels/block_format.h"
#include "thresher/kernels/convolution_params.h"
#include "thresher/kernels/depthwise.h"
#include "thresher/kernels/depthwise_rows.h"
#include "thresher/kernels/gemm.h"
#include "thresher/kernels/gemm_dot.h"
#include "thresher/kernels/planes.h"
#include "thresher/kernels/window_image.h"
#include "thresher/kernels/winograd.h"
#include "thresher/ops/common.h"
#include "thresher/ops/conv_geometry.h"
#include "thresher/ops/conv_weight.h"
#include "thresher/ops/conv_weight_gradient.h"
#include "thresher/ops/linear.h"

namespace thresher {
namespace {

using kernels::ConvolutionParams;
using kernels::Windows;
using kernels::WindowsOf;
using ops::Empty;
using ops::Geometry;
using ops::GeometryOf;
using ops::kMostAttr;
using ops::kMostSize;

enum ConvolutionOperand { kX, kWeight, kBias, kResidual };

Result<std::vector<TensorType>> InferConvolution(const InferContext& c) {
  for (size_t i = 0; i < 4; ++i) {
    static constexpr const char* kNames[] = {"x", "weight", "bias", "residual"};
    THRESHER_TRY(ops::WantFloat(c, i, kNames[i]));
  }
  THRESHER_TRY(ops::WantFloatLike0(c, kResidual, "residual"));
  const Dims& x = c.inputs[kX].shape;
  const Dims& w = c.inputs[kWeight].shape;
  if (x.size() < 3 || x.size() > 5 || w.size() != x.size()) {
    return InvalidArgument(
        "expected x [N, spatial..., C] with one to three spatial dimensions and weight [K, C / groups, kernel...] of "
        "the "
        "same rank, got x " +
        ToString(x) + " and weight " + ToString(w));
  }
  const size_t rank = x.size() - 2;
  THRESHER_ASSIGN(const Geometry g, GeometryOf(c.attrs, rank));
  const auto large = [](int64_t size) { return size >= kMostSize; };
  if (std::any_of(x.begin(), x.end(), large) || std::any_of(w.begin(), w.end(), large)) {
    return InvalidArgument("expected sizes below 2^31, got x " + ToString(x) + " and weight " + ToString(w));
  }
  const int64_t channels = x.back();
  const int64_t wanted = g.transposed ? w[0] : w[1] * std::clamp<int64_t>(g.groups, 1, kMostSize);
  if (g.groups < 1 || g.groups > kMostSize || w[0] % g.groups != 0 || wanted != channels || channels == 0) {
    return InvalidArgument("expected x [N, spatial..., C] and weight " +
                           std::string(g.transposed ? "[C, K / groups, kernel...]" : "[K, C / groups, kernel...]") +
                           " with " + (g.transposed ? "C" : "K") + " a multiple of groups, got x " + ToString(x) +
                           ", weight " + ToString(w) + " and groups " + std::to_string(g.groups));
  }
  const int64_t k = g.transposed ? w[1] * g.groups : w[0];
  TensorType out{c.inputs[kX].dtype, {x[0]}};
  int64_t taps = 1;
  for (size_t d = 0; d < rank; ++d) {
    taps = std::min(taps * std::min(w[d + 2], kMostAttr), kMostAttr);
    const int64_t reach = g.dilation[d] * (w[d + 2] - 1);
    const int64_t pad = g.before[d] + g.after[d];
    int64_t size;
    if (g.transposed) {
      if (g.output_padding[d] >= std::max(g.stride[d], g.dilation[d])) {
        return InvalidArgument("expected output_padding below stride or dilation, got " + ToString(g.output_padding));
      }
      size = (x[d + 1] - 1) * g.stride[d] - pad + reach + 1 + g.output_padding[d];
    } else {
      const int64_t room = x[d + 1] + pad - reach - 1;
      size = room < 0 ? 0 : room / g.stride[d] + 1;
    }
    if (w[d + 2] < 1 || size < 1) {
      return InvalidArgument("expected a kernel that fits into the padded x, got x " + ToString(x) + ", weight " +
                             ToString(w) + ", padding " + ToString(g.before) + " and dilation " + ToString(g.dilation));
    }
    out.shape.push_back(size);
  }
  out.shape.push_back(k);
  if (c.inputs[kBias].present && c.inputs[kBias].shape != Dims{k}) {
    return InvalidArgument("expected bias [" + std::to_string(k) + "], got " + ToString(c.inputs[kBias].shape));
  }
  if (c.inputs[kResidual].present && c.inputs[kResidual].shape != out.shape) {
    return InvalidArgument("expected residual of the output's shape " + ToString(out.shape) + ", got " +
                           ToString(c.inputs[kResidual].shape));
  }
  if (std::any_of(out.shape.begin(), out.shape.end(), large)) {
    return InvalidArgument("expected an output of sizes below 2^31, got " + ToString(out.shape));
  }
  THRESHER_TRY(ops::CheckProductAttrs(c.attrs));
  if (GetAttr<std::string>(c.attrs, "precision", "fp32") == "int8" &&
      (channels / g.groups % kernels::kImageChannels != 0 || taps > kernels::kMostImageTaps)) {
    return Unsupported("expected a multiple of " + std::to_string(kernels::kImageChannels) +
                       " channels a group and at most " + std::to_string(kernels::kMostImageTaps) +
                       " taps for int8, got x " + ToString(x) + ", weight " + ToString(w) + " and groups " +
                       std::to_string(g.groups) + "; use int8_weight");
  }
  return std::vector<TensorType>{std::move(out)};
}

Cost CostConvolution(const InferContext& c, std::span<const TensorType> outputs) {
  const Dims& w = c.inputs[kWeight].shape;
  double products = 1;
  for (size_t i = 1; i < w.size(); ++i) products *= static_cast<double>(w[i]);
  const double added = (c.inputs[kBias].present ? 1 : 0) + (c.inputs[kResidual].present ? 1 : 0) +
                       (GetAttr<std::string>(c.attrs, "activation", "none") != "none" ? 1 : 0);
  if (!GetAttr<bool>(c.attrs, "transposed", false)) return ops::ElementwiseCost(c, outputs, 2 * products + added);
  // Each element of x meets each of its weights once, wherever it goes.
  Cost cost = ops::ElementwiseCost(c, outputs, added);
  cost.flops += 2 * products * static_cast<double>(NumElements(c.inputs[kX].shape));
  return cost;
}

// What both forms of a group's product take alike; operands are x, the packed weights, bias and residual.
template <class Args>
Args ProductArgs(const StepContext& c) {
  const auto& p = c.as<ConvolutionParams>();
  Args args;
  args.m = p.m;
  args.n = p.n;
  args.k = p.k;
  args.precision = p.shape.precision;
  args.packed_b = c.in(kWeight).data;
  args.c = c.out().as<float>();
  args.ldc = p.n * p.shape.groups;
  args.bias = c.in(kBias).as<const float>();
  args.residual = c.in(kResidual).as<const float>();
  args.ldr = p.ldr;
  args.activation = p.shape.activation;
  args.residual_first = p.shape.residual_first;
  args.blocking = p.blocking;
  return args;
}

// Calls multiply(args) for one group after the other; it moves what it reads of x on by itself.
template <class Args, class Multiply>
void ForGroups(const ConvolutionParams& p, Args args, const Multiply& multiply) {
  const int64_t packed = kernels::PackedBytes(p.shape.precision, p.k, p.n);
  for (int64_t g = 0; g < p.shape.groups; ++g) {
    multiply(args);
    args.packed_b = static_cast<const std::byte*>(args.packed_b) + packed;
    int64_t columns = p.n, added = p.n;
    if constexpr (requires { args.stores_bf16; }) {
      if (args.stores_bf16) columns /= 2;
      if (args.residual_bf16) added /= 2;
    }
    args.c += columns;
    if (args.bias != nullptr) args.bias += p.n;
    if (args.residual != nullptr) args.residual += added;
  }
}

kernels::GemmArgs GroupArgs(const StepContext& c, const Windows& windows) {
  const auto& p = c.as<ConvolutionParams>();
  auto args = ProductArgs<kernels::GemmArgs>(c);
  args.a = c.in(kX).as<const float>();
  args.lda = p.x_w;
  if (!p.shape.plain) args.windows = &windows;
  return args;
}

Status ConvolutionStep(const StepContext& c) {
  const auto& p = c.as<ConvolutionParams>();
  const Windows windows = WindowsOf(p);
  ForGroups(p, GroupArgs(c, windows), [&](kernels::GemmArgs& args) {
    kernels::Gemm(args, c.scratch, c.part, c.num_parts);
    args.a += p.shape.channels;
  });
  return Status::Ok();
}

size_t ConvolutionScratch(const StepContext& c) {
  const Windows windows = WindowsOf(c.as<ConvolutionParams>());
  return kernels::GemmScratchBytes(GroupArgs(c, windows));
}

Status WinogradStep(const StepContext& c) {
  const auto& p = c.as<ConvolutionParams>();
  const Windows windows = WindowsOf(p);
  ForGroups(p, GroupArgs(c, windows), [&](kernels::GemmArgs& args) {
    kernels::Winograd(args, c.scratch, c.part, c.num_parts);
    args.a += p.shape.channels;
  });
  return Status::Ok();
}

size_t WinogradScratch(const StepContext& c) {
  const Windows windows = WindowsOf(c.as<ConvolutionParams>());
  return kernels::WinogradScratchBytes(GroupArgs(c, windows));
}

int64_t BatchOf(const ConvolutionParams& p) { return p.m / (p.out_d * p.out_h * p.out_w); }

kernels::ImageLayout LayoutOf(const ConvolutionParams& p) {
  return {p.shape.form, WindowsOf(p), p.shape.channels * p.shape.groups};
}

// x as an image in one piece of memory: the image, then a scale and a zero point a picture.
struct ImageMemory {
  ImageMemory(const View& view, const ConvolutionParams& p)
      : image(static_cast<std::byte*>(view.data)),
        scale(reinterpret_cast<float*>(image + BatchOf(p) * LayoutOf(p).picture)),
        zero(reinterpret_cast<int32_t*>(scale + BatchOf(p))) {}

  static int64_t Floats(const ConvolutionParams& p) {
    return BatchOf(p) * (LayoutOf(p).picture / static_cast<int64_t>(sizeof(float)) + 2);
  }

  std::byte* image;
  float* scale;
  int32_t* zero;
};

kernels::ConvertWindowsArgs ImageArgs(const StepContext& c) {
  const auto& p = c.as<ConvolutionParams>();
  kernels::ConvertWindowsArgs args;
  args.form = p.shape.form;
  args.windows = WindowsOf(p);
  args.batch = BatchOf(p);
  args.channels = p.shape.channels * p.shape.groups;
  args.x = c.in(0).as<const float>();
  args.x_bf16 = c.in(0).dtype == DType::kBF16;
  args.x_channels = p.shape.x_channels;
  if (args.x_channels != 0) args.x_channel = p.x_channel;
  return args;
}

// Operand: x.
Status RangesStep(const StepContext& c) {
  kernels::ConvertWindowsArgs args = ImageArgs(c);
  args.ranges = c.out().as<float>();
  kernels::FindRanges(args, c.part, c.num_parts);
  return Status::Ok();
}

// Operands: x, and its ranges where pictures have scales.
Status ImageStep(const StepContext& c) {
  const ImageMemory memory(c.out(), c.as<ConvolutionParams>());
  kernels::ConvertWindowsArgs args = ImageArgs(c);
  args.ranges = const_cast<float*>(c.in(1).as<const float>());
  args.image = memory.image;
  args.scale = memory.scale;
  args.zero = memory.zero;
  kernels::ConvertWindows(args, c.part, c.num_parts);
  return Status::Ok();
}

// As GroupArgs, without what lies in the image, which is the first operand.
kernels::GemmDotArgs DotGroupArgs(const StepContext& c, const Windows& windows) {
  const auto& p = c.as<ConvolutionParams>();
  auto args = ProductArgs<kernels::GemmDotArgs>(c);
  args.form = p.shape.form;
  args.windows = &windows;
  args.channels = p.shape.channels * p.shape.groups;
  ops::SetRows(c, args);
  return args;
}

Status DotConvolutionStep(const StepContext& c) {
  const auto& p = c.as<ConvolutionParams>();
  const Windows windows = WindowsOf(p);
  const ImageMemory memory(c.in(kX), p);
  kernels::GemmDotArgs args = DotGroupArgs(c, windows);
  args.rows = memory.image;
  args.scale = memory.scale;
  args.zero = memory.zero;
  if (p.shape.groups == 1) args.ahead = c.ahead;
  const int64_t channels = p.shape.channels * kernels::ElementBytes(p.shape.form);
  ForGroups(p, args, [&](kernels::GemmDotArgs& group) {
    kernels::GemmDot(group, c.scratch, c.part, c.num_parts);
    group.rows = static_cast<const std::byte*>(group.rows) + channels;
  });
  return Status::Ok();
}

// TakeRowsFn for x alone, where it lies without gaps.
Taken TakesX(Step& step, ConvolutionParams& p, StoredRows& rows) {
  const int64_t channels = p.shape.channels * p.shape.groups;
  if (rows.place != nullptr) {
    step.operands[kX] = *rows.place;
    for (int64_t* const stride : {&p.x_batch, &p.x_d, &p.x_h, &p.x_w}) *stride = *stride / channels * rows.stride;
    return Taken::kRead;
  }
  const int64_t line = p.in_w * channels, plane = p.in_h * line;
  const bool dense = p.x_channel == 1 && (p.in_w == 1 || p.x_w == channels) && (p.in_h == 1 || p.x_h == line) &&
                     (p.in_d == 1 || p.x_d == plane) && (BatchOf(p) == 1 || p.x_batch == p.in_d * plane) &&
                     step.operands[kX].offset == 0;
  const bool same =
      BatchOf(p) * p.in_d * p.in_h * p.in_w == rows.rows && channels == rows.columns && rows.stride % 2 == 0;
  return dense && same ? Taken::kRead : Taken::kNot;
}

// Of the image and of its ranges.
Taken ImageTakesRows(Step& image, int, StoredRows& rows) {
  auto& p = ops::ParamsOf<ConvolutionParams>(image);
  if (!ops::HasStoredRows(p.shape.form)) return Taken::kNot;
  if (p.shape.x_channels == 0) return TakesX(image, p, rows);
  // Few channels are read however they lie, given ones as the floats would be.
  if (rows.place != nullptr) {
    TensorRef& x = image.operands[kX];
    x.buffer = rows.place->buffer;
    x.offset += rows.place->offset;
    x.view.dtype = DType::kBF16;
  }
  return rows.given ? Taken::kRead : Taken::kNot;
}

// Whether rows of bf16 of the result are pieces that each group writes by itself.
bool HasWholeRows(const ConvolutionParams& p) {
  return ops::HasStoredRows(p.shape.form) && (p.shape.groups == 1 || p.n % kernels::kStoredColumns == 0);
}

bool DotConvolutionStoresRows(Step& product, StoredRows& rows) {
  const auto& p = ops::ParamsOf<ConvolutionParams>(product);
  return HasWholeRows(p) && ops::StoresResultAsRows(product, p.m, p.n * p.shape.groups, rows);
}

Taken DotConvolutionTakesRows(Step& product, int buffer, StoredRows& rows) {
  auto& p = ops::ParamsOf<ConvolutionParams>(product);
  const bool same = HasWholeRows(p) && p.m == rows.rows && p.n * p.shape.groups == rows.columns;
  return same ? ops::TakesResidualAsRows(product, buffer, p.ldr, rows) : Taken::kNot;
}

size_t DotConvolutionScratch(const StepContext& c) {
  const Windows windows = WindowsOf(c.as<ConvolutionParams>());
  return kernels::GemmDotScratchBytes(DotGroupArgs(c, windows));
}

Status DepthwiseStep(const StepContext& c) {
  const auto& p = c.as<ConvolutionParams>();
  kernels::DepthwiseArgs args;
  args.windows = WindowsOf(p);
  args.outputs = p.n * p.shape.groups;
  args.group_inputs = p.shape.channels;
  args.group_outputs = p.n;
  args.batch = p.m / args.windows.positions();
  args.x = c.in(kX).as<const float>();
  args.weight = c.in(kWeight).as<const float>();
  args.bias = c.in(kBias).as<const float>();
  args.residual = c.in(kResidual).as<const float>();
  args.ldr = p.ldr;
  args.activation = p.shape.activation;
  args.residual_first = p.shape.residual_first;
  args.out = c.out().as<float>();
  args.ldc = args.outputs;
  if (p.shape.planes) {
    kernels::Planes({args, p.x_channel}, c.scratch, c.part, c.num_parts);
  } else if (c.in(kX).dtype == DType::kBF16) {
    const bool out_bf16 = c.out().dtype == DType::kBF16;
    if (out_bf16) args.ldc = c.out().strides[0];
    kernels::DepthwiseRows(args, out_bf16, c.part, c.num_parts);
  } else {
    kernels::Depthwise(args, c.part, c.num_parts);
  }
  return Status::Ok();
}

// Whether whole vectors can be read.
bool FillVectors(const StoredRows& rows) {
  return rows.columns >= kernels::kStoredColumns || rows.stride % kernels::kStoredColumns == 0;
}

Taken DepthwiseTakesRows(Step& depthwise, int, StoredRows& rows) {
  auto& p = ops::ParamsOf<ConvolutionParams>(depthwise);
  const bool suits = FillVectors(rows) && !p.shape.planes && p.shape.channels == 1 && p.n == 1 &&
                     depthwise.operands[kResidual].buffer < 0 &&
                     kernels::SuitsDepthwiseRows(WindowsOf(p), p.shape.activation);
  return suits ? TakesX(depthwise, p, rows) : Taken::kNot;
}

// Where it takes such rows already.
bool DepthwiseStoresRows(Step& depthwise, StoredRows& rows) {
  const auto& p = ops::ParamsOf<ConvolutionParams>(depthwise);
  const bool stores = depthwise.operands[kX].view.dtype == DType::kBF16 &&
                      ops::StoresResultAsRows(depthwise, p.m, p.n * p.shape.groups, rows);
  rows.dense &= rows.columns >= kernels::kStoredColumns;
  return stores;
}

size_t DepthwiseScratch(const StepContext& c) {
  return c.as<ConvolutionParams>().shape.planes ? kernels::PlanesScratchBytes() : 0;
}

bool ConvolutionLines(const Step& convolution, StepLines& lines) {
  const auto& p = ops::ParamsOf<ConvolutionParams>(convolution);
  const kernels::ConvolutionShape& s = p.shape;
  const View& out = convolution.operands.back().view;
  const auto element = static_cast<int64_t>(SizeOf(convolution.operands[kX].view.dtype));
  const bool flat = p.in_d == 1 && p.out_d == 1 && s.kernel[0] == 1;
  if (!flat || s.planes || s.form != kernels::RowForm::kF32 || s.spread[1] != 1 || s.spread[2] != 1) {
    return false;
  }
  lines.pictures = BatchOf(p);
  lines.lines = p.out_h;
  lines.positions = p.out_w;
  lines.x_lines = p.in_h;
  lines.stride = s.stride[1];
  lines.padding = s.padding[1];
  lines.reach = (s.kernel[1] - 1) * s.dilation[1] + 1;
  lines.x_picture = p.x_batch * element;
  lines.x_line = p.x_h * element;
  lines.added = kResidual;
  lines.added_line = p.out_w * p.ldr * static_cast<int64_t>(sizeof(float));
  lines.line = p.out_w * ops::ResultRowBytes(out, p.n * s.groups);
  return true;
}

void CutConvolution(void* params, const LineCut& cut) {
  auto& p = *static_cast<ConvolutionParams*>(params);
  p.m = cut.positions;
  p.out_h = cut.lines;
  p.in_h = cut.x_lines;
  p.shape.padding[1] = cut.padding;
}

ConvolutionParams ParamsOf(const View& x, const Dims& w, const View& out, const Geometry& g) {
  ConvolutionParams p{};
  const int rank = x.rank - 2;
  kernels::ConvolutionShape& s = p.shape;
  s.groups = g.groups;
  s.channels = x.shape[x.rank - 1] / g.groups;
  s.plain = true;
  int64_t x_strides[3] = {}, in[3] = {1, 1, 1}, positions[3] = {1, 1, 1};
  int64_t taps = 1;
  for (int d = 0; d < 3; ++d) {
    s.kernel[d] = s.stride[d] = s.dilation[d] = s.spread[d] = 1;
    const int from = d - (3 - rank);
    if (from < 0) continue;
    const auto i = static_cast<size_t>(from);
    in[d] = x.shape[1 + from];
    x_strides[d] = x.strides[1 + from];
    positions[d] = out.shape[1 + from];
    s.kernel[d] = w[i + 2];
    s.dilation[d] = g.dilation[i];
    if (g.transposed) {
      s.spread[d] = g.stride[i];
      s.padding[d] = g.dilation[i] * (w[i + 2] - 1) - g.before[i];
    } else {
      s.stride[d] = g.stride[i];
      s.padding[d] = g.before[i];
    }
    taps *= s.kernel[d];
    s.plain &= s.kernel[d] == 1 && s.stride[d] == 1 && s.spread[d] == 1 && s.padding[d] == 0 && positions[d] == in[d];
  }
  int64_t rows, cols, stride;
  s.plain &= AsRows(x, &rows, &cols, &stride);
  p.m = out.shape[0] * positions[0] * positions[1] * positions[2];
  p.n = out.shape[out.rank - 1] / g.groups;
  p.k = taps * s.channels;
  p.x_batch = x.strides[0];
  p.x_channel = x.strides[x.rank - 1];
  p.x_d = x_strides[0], p.x_h = x_strides[1], p.x_w = s.plain ? stride : x_strides[2];
  p.in_d = in[0], p.in_h = in[1], p.in_w = in[2];
  p.out_d = positions[0], p.out_h = positions[1], p.out_w = positions[2];
  return p;
}

// x in the form p.shape.form.
TensorRef AddImage(const TensorRef& x, const ConvolutionParams& p, Lowering& lowering) {
  TensorRef ranges;
  if (kernels::HasRowScales(p.shape.form)) {
    ranges = lowering.AllocateTemporary(DType::kF32, {2 * kernels::RangesOf(WindowsOf(p), BatchOf(p))});
    Step& step = lowering.AddStep(KernelId::kRanges, {x}, {ranges}, p);
    step.name = "ranges";
    step.section = Section::kReshape;
    step.flops = 0;
    step.bytes = static_cast<double>(sizeof(float)) * static_cast<double>(x.view.size());
  }
  const int64_t floats = ImageMemory::Floats(p);
  const TensorRef image = lowering.AllocateTemporary(DType::kF32, {floats});
  Step& step = lowering.AddStep(KernelId::kImage, {x, ranges}, {image}, p);
  step.name = p.shape.form == kernels::RowForm::kBF16  ? "to_bf16"
              : p.shape.form == kernels::RowForm::kF16 ? "to_fp16"
                                                       : "quantize";
  step.section = Section::kReshape;
  step.flops = 0;
  step.bytes = static_cast<double>(sizeof(float)) * static_cast<double>(floats + x.view.size());
  return image;
}

// The form of x that a product of this precision wants.
kernels::RowForm FormFor(const ConvolutionParams& p, const Lowering& lowering) {
  const kernels::RowForm form = lowering.target().RowsFor(p.shape.precision, p.m, kernels::Variant::kAuto);
  const bool dot = form == kernels::RowForm::kInt8 || form == kernels::RowForm::kBF16 || form == kernels::RowForm::kF16;
  return dot && kernels::SuitsImage(WindowsOf(p)) ? form : kernels::RowForm::kF32;
}

// Whether a product in this precision is one of bf16.
bool IsOfBf16(Precision precision, int64_t m, const Lowering& lowering) {
  return precision == Precision::kBf16 &&
         lowering.target().RowsFor(precision, m, kernels::Variant::kAuto) == kernels::RowForm::kBF16;
}

// How many small groups are one product of a matrix unit, in which each output has zeros for the channels of the
// others: a tile takes no longer for them. 1: none.
int64_t GroupsTogether(const ConvolutionParams& p, Precision precision, const Lowering& lowering) {
  const kernels::ConvolutionShape& s = p.shape;
  if (s.channels < 2 || s.channels != p.n || kernels::kStoredColumns % p.n != 0) return 1;
  const int64_t together = kernels::kStoredColumns / p.n;
  const bool whole = s.groups % together == 0 && p.k / s.channels <= kernels::kMostImageTaps;
  return whole && kernels::HasBf16Tiles() && IsOfBf16(precision, p.m, lowering) ? together : 1;
}

bool IsSpread(const kernels::ConvolutionShape& s) { return s.spread[0] > 1 || s.spread[1] > 1 || s.spread[2] > 1; }

// Whether windows of few channels, filled up with zeros, are multiplied as bf16.
bool SuitsPadding(const ConvolutionParams& p, const Lowering& lowering) {
  const kernels::ConvolutionShape& s = p.shape;
  const bool few = p.k / s.channels <= kernels::kMostImageTaps;
  return kernels::FillsChannels(s.channels) && s.groups == 1 && !s.plain && !IsSpread(s) && few && s.dilation[2] == 1 &&
         IsOfBf16(s.precision, p.m, lowering);
}

// The residual in the type, as rows p.ldr apart.
TensorRef ResidualRows(const Node& node, DType dtype, ConvolutionParams& p, Lowering& lowering) {
  const ValueId id = node.inputs[kResidual];
  TensorRef residual = ops::AsType(dtype, lowering.Ref(id), id, lowering);
  if (residual.buffer < 0) return residual;
  int64_t rows, cols;
  residual = ops::RowsOrCopy(residual, lowering);
  AsRows(residual.view, &rows, &cols, &p.ldr);
  return residual;
}

// Whether no result lies behind those that phases have: output_padding may want more.
bool FillsResult(const ConvolutionParams& p, const Geometry& g) {
  const size_t rank = g.stride.size();
  const int64_t in[] = {p.in_d, p.in_h, p.in_w}, out[] = {p.out_d, p.out_h, p.out_w};
  for (size_t d = 0; d < rank; ++d) {
    const size_t i = d + 3 - rank;
    if (g.before[d] + out[i] > g.stride[d] * (in[i] + PhaseTaps(p.shape.kernel[i], g.stride[d]) - 1)) return false;
  }
  return true;
}

// Whether a transposed convolution becomes one of all its phases.
bool SuitsPhases(const Graph& graph, const Node& node, const Dims& weight, const Geometry& g,
                 const ConvolutionParams& p) {
  const bool constants = graph.is_constant(node.inputs[kWeight]) &&
                         (node.inputs[kBias] == kNoValue || graph.is_constant(node.inputs[kBias]));
  return g.transposed && g.groups == 1 && constants && node.inputs[kResidual] == kNoValue &&
         PhasesPay(std::span(weight).subspan(2), g.stride, g.dilation) && FillsResult(p, g);
}

// All phases are outputs of one convolution, then each goes where it belongs. `p` tells of the transposed one.
Status LowerPhases(const Node& node, const TensorRef& x, const ops::WeightLayout& layout, const Geometry& g,
                   ConvolutionParams p, const TensorRef& out, Lowering& lowering) {
  const Graph& graph = lowering.graph();
  const int64_t outputs = p.n;
  THRESHER_ASSIGN(const TensorRef weight, ops::PhaseWeight(graph.value(node.inputs[kWeight]), layout, p, lowering));
  const int64_t phases = p.n / outputs;
  TensorRef bias;
  if (node.inputs[kBias] != kNoValue) {
    THRESHER_ASSIGN(bias, ops::RepeatedBias(graph.value(node.inputs[kBias]), phases, lowering));
  }
  const int product = lowering.AddProduct(p.shape.precision, p.m, p.n, p.k);
  p.blocking = lowering.product(product).blocking;
  const TensorRef image = AddImage(x, p, lowering);
  const int rank = x.view.rank - 2;
  const int64_t positions[] = {p.out_d, p.out_h, p.out_w};
  Dims shape = {x.view.shape[0]};
  shape.insert(shape.end(), positions + 3 - rank, positions + 3);
  shape.push_back(p.n);
  const TensorRef together = lowering.AllocateTemporary(DType::kF32, shape);
  lowering.AddStep(KernelId::kDotConvolution, {image, weight, bias, {}}, {together}, p).product = product;
  for (int64_t phase = 0; phase < phases; ++phase) {
    TensorRef from = together, to = out;
    from.offset += phase * outputs;
    from.view.shape[rank + 1] = outputs;
    int64_t left = phase;
    bool some = true;  // of its positions are results
    for (int d = rank; d > 0; --d) {
      const auto i = static_cast<size_t>(d - 1);
      const int64_t stride = g.stride[i], at = left % stride;
      left /= stride;
      // Position q of a phase is result stride q + at of all, of which the first `before` are none.
      const int64_t first = std::max<int64_t>(0, (g.before[i] - at + stride - 1) / stride);
      const int64_t place = stride * first + at - g.before[i];
      const int64_t count = std::min(from.view.shape[d] - first, (out.view.shape[d] - place + stride - 1) / stride);
      some &= count > 0;
      from.offset += first * from.view.strides[d];
      to.offset += place * to.view.strides[d];
      to.view.strides[d] *= stride;
      from.view.shape[d] = to.view.shape[d] = count;
    }
    if (some) lowering.AddCopy(from, to);
  }
  return Status::Ok();
}

// For targets that take weights as they are stored.
Status LowerStored(const Node& node, const TensorRef& x, const TensorRef& raw, const ops::WeightLayout& layout,
                   const Geometry& g, ConvolutionParams p, const TensorRef& out, Lowering& lowering) {
  const Graph& graph = lowering.graph();
  const ValueId id = node.inputs[kWeight];
  DType dtype = raw.view.dtype;  // of both factors
  if (graph.is_constant(id)) {
    const std::string stored(Name(StoredPrecision(StoredAs(graph.value(id)))));
    const Precision precision = ParsePrecision(GetAttr<std::string>(node.attrs, "precision", stored)).value();
    if (precision != Precision::kFp32 && precision != Precision::kBf16 && precision != Precision::kFp16) {
      return Unsupported("expected a convolution in fp32, bf16 or fp16 on this device, got " +
                         std::string(Name(precision)));
    }
    dtype = precision == Precision::kBf16 ? DType::kBF16 : precision == Precision::kFp16 ? DType::kF16 : DType::kF32;
  }
  const Encoding encoding = EncodingOf(dtype).value_or(Encoding::kF32);
  const Weight& matrix = layout.matrix;
  const int64_t groups = p.shape.groups;
  TensorRef weight;
  if (graph.is_constant(id)) {
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<size_t>(groups));
    for (int64_t group = 0; group < groups; ++group) offsets.push_back(layout.first + group * layout.to_group);
    weight = lowering.StoredParts(id, offsets, matrix, encoding);
  } else {
    weight = raw;
    weight.offset += layout.first;
    const Dims shape = {groups, p.n, matrix.taps, p.shape.channels};
    const Dims strides = {layout.to_group, matrix.stride_n, matrix.stride_tap, matrix.stride_k};
    weight.view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), weight.view.shape);
    std::copy(strides.begin(), strides.end(), weight.view.strides);
    weight = lowering.Contiguous(weight);
    weight.view = MakeView(nullptr, dtype, {groups * p.n, p.k});
  }
  const TensorRef rows = ops::AsType(dtype, x, node.inputs[kX], lowering);
  const kernels::ConvolutionShape shape = p.shape;
  p = ParamsOf(rows.view, graph.value(id).shape, out.view, g);
  p.shape.activation = shape.activation;
  p.shape.residual_first = shape.residual_first;
  if (p.shape.plain && groups == 1) {
    kernels::StoredProductParams product{};
    product.m = p.m, product.n = p.n, product.k = p.k;
    int64_t count, cols;
    AsRows(rows.view, &count, &cols, &product.lda);
    product.ldb = weight.view.strides[0];
    product.ldc = p.n;
    product.batch = 1;
    product.activation = p.shape.activation;
    product.residual_first = p.shape.residual_first;
    product.encoding = encoding;
    product.transpose_b = true;
    product.allow_tf32 = lowering.allow_tf32();
    ops::Product operands{node.inputs[kX], {id}, {}, node.inputs[kResidual]};
    if (node.inputs[kBias] != kNoValue) operands.biases = {node.inputs[kBias]};
    return ops::AddStoredProduct(operands, product, rows, weight, out, lowering);
  }
  const bool direct = out.view.dtype == dtype || out.view.dtype == DType::kF32;
  const TensorRef c = direct ? out : lowering.AllocateTemporary(DType::kF32, ops::ShapeOf(out.view));
  const TensorRef bias = lowering.Contiguous(lowering.Ref(node.inputs[kBias]));
  const TensorRef residual = ResidualRows(node, c.view.dtype, p, lowering);
  lowering.AddStep(KernelId::kConvolution, {rows, weight, bias, residual}, {c}, p);
  if (!direct) lowering.AddStep(KernelId::kCast, {c}, {out});
  return Status::Ok();
}

// Whether the elements of a line of x [N, spatial..., C] lie side by side, and those of a position do not.
bool LiesInPlanes(const View& x) { return x.strides[x.rank - 1] != 1 && x.strides[x.rank - 2] == 1; }

// Where the result goes, [N, positions..., K] as a view of memory [N, K, positions...].
TensorRef AllocatePlanes(ValueId id, Lowering& lowering) {
  const Value& value = lowering.graph().value(id);
  Dims shape = value.shape;
  std::rotate(shape.begin() + 1, shape.end() - 1, shape.end());
  const TensorRef planes = lowering.AllocateTemporary(value.dtype, shape);
  TensorRef out = planes;
  int64_t* const strides = out.view.strides;
  std::rotate(strides + 1, strides + 2, strides + out.view.rank);
  std::copy(value.shape.begin(), value.shape.end(), out.view.shape);
  lowering.Bind(id, out);
  return planes;
}

Status LowerConvolution(const Graph& graph, const Node& node, Lowering& lowering) {
  const Value& result = graph.value(node.outputs[0]);
  const View positions = MakeView(nullptr, result.dtype, result.shape);
  if (positions.size() == 0) {
    lowering.Allocate(node.outputs[0]);
    return Status::Ok();
  }
  TensorRef x = lowering.Ref(node.inputs[kX]);
  TensorRef raw = lowering.Ref(node.inputs[kWeight]);
  const Value& weight = graph.value(node.inputs[kWeight]);
  const bool constant = graph.is_constant(node.inputs[kWeight]);
  THRESHER_ASSIGN(const Geometry g, GeometryOf(node.attrs, static_cast<size_t>(x.view.rank) - 2));
  ConvolutionParams p = ParamsOf(x.view, weight.shape, positions, g);
  const Precision stored = constant ? StoredPrecision(StoredAs(weight)) : Precision::kFp32;
  Precision precision = stored;
  if (constant) {
    precision = ParsePrecision(GetAttr<std::string>(node.attrs, "precision", std::string(Name(stored)))).value();
  }
  const bool packs = lowering.target().packs_weights();
  const int64_t together = constant && packs ? GroupsTogether(p, precision, lowering) : 1;
  const bool depthwise = together == 1 && g.groups > 1 && kernels::SuitsDepthwise(p.shape.channels, p.n) &&
                         p.k / p.shape.channels <= kernels::kMostDepthwiseTaps &&
                         (constant || raw.view.dtype == DType::kF32);
  p.shape.precision = precision;
  const bool few = constant && packs && !depthwise && together == 1 && SuitsPadding(p, lowering);
  p.shape.planes = depthwise && packs && LiesInPlanes(x.view) && node.inputs[kResidual] == kNoValue &&
                   kernels::SuitsPlanes(WindowsOf(p), p.shape.channels);
  if (!p.shape.planes && !(few && LiesInPlanes(x.view))) {
    x = lowering.InnerContiguous(x);
    p = ParamsOf(x.view, weight.shape, positions, g);
  }
  kernels::ConvolutionShape& s = p.shape;
  s.activation = kernels::ParseActivation(GetAttr<std::string>(node.attrs, "activation", "none")).value();
  s.residual_first = GetAttr<bool>(node.attrs, "residual_first", false);
  int64_t tap_stride;
  if (!ops::TapStride(raw.view, &tap_stride)) {
    raw = lowering.Contiguous(raw);
    ops::TapStride(raw.view, &tap_stride);
  }
  const ops::WeightLayout layout = ops::LayoutOf(raw.view, tap_stride, p, g.transposed);
  const TensorRef out = s.planes ? AllocatePlanes(node.outputs[0], lowering) : lowering.Allocate(node.outputs[0]);
  if (!packs && !depthwise) {
    return LowerStored(node, x, raw, layout, g, p, out, lowering);
  }
  const TensorRef bias = lowering.Contiguous(lowering.Ref(node.inputs[kBias]));
  const TensorRef residual = ResidualRows(node, out.view.dtype, p, lowering);
  if (depthwise) {
    THRESHER_ASSIGN(const TensorRef turned, ops::DepthwiseWeight(node.inputs[kWeight], raw, layout, p, lowering));
    lowering.AddStep(KernelId::kDepthwise, {x, turned, bias, residual}, {out}, p);
    return Status::Ok();
  }
  s.precision = precision;
  if (together > 1 || few) {
    THRESHER_ASSIGN(const TensorRef made, together > 1 ? ops::JoinGroups(weight, layout, together, p, lowering)
                                                       : ops::PadWeight(weight, layout, p, lowering));
    s.form = kernels::RowForm::kBF16;
    const int product = lowering.AddProduct(s.precision, p.m, p.n, p.k);
    p.blocking = lowering.product(product).blocking;
    const TensorRef image = AddImage(x, p, lowering);
    lowering.AddStep(KernelId::kDotConvolution, {image, made, bias, residual}, {out}, p).product = product;
    return Status::Ok();
  }
  s.form = FormFor(p, lowering);
  if (IsSpread(s) && s.form != kernels::RowForm::kF32) {
    if (SuitsPhases(graph, node, weight.shape, g, p)) {
      return LowerPhases(node, x, layout, g, p, out, lowering);
    }
    // Zeros between the positions of x would be multiplied, but those of floats are not.
    if (!kernels::HasBf16Tiles()) {
      s.form = kernels::RowForm::kF32;
      if (s.precision == Precision::kInt8) s.precision = Precision::kFp32;
    }
  }
  Weight matrix = layout.matrix;
  const bool half = s.precision == Precision::kBf16 || s.precision == Precision::kFp16;
  if (constant && half && s.form == kernels::RowForm::kF32) {
    // Windows meet a weight at so many positions that widening it once is worth twice the memory.
    if (s.precision != stored) matrix.rounding = s.precision == Precision::kBf16 ? Encoding::kBf16 : Encoding::kF16;
    s.precision = Precision::kFp32;
  }
  const bool as_is = s.form == kernels::RowForm::kF32;
  if (as_is && s.precision == Precision::kFp32) {
    matrix.winograd = kernels::SuitableWinogradTile(WindowsOf(p), p.n, constant);
  }
  int number = -1;
  const bool winograd = matrix.winograd != WinogradTile::kNone;
  if (winograd) {
    matrix.taps = WinogradMatrices(matrix.winograd) * s.kernel[0];
    matrix.k = p.k = matrix.taps * s.channels;
  } else {
    number = lowering.AddProduct(s.precision, p.m, p.n, p.k);
    p.blocking = lowering.product(number).blocking;
  }
  TensorRef packed;
  if (constant) {
    std::vector<int64_t> offsets;
    offsets.reserve(static_cast<size_t>(g.groups));
    for (int64_t group = 0; group < g.groups; ++group) offsets.push_back(layout.first + group * layout.to_group);
    packed = lowering.PackedParts(node.inputs[kWeight], offsets, matrix, s.precision);
  } else {
    packed = ops::AddPack(raw,
                          {p.k, p.n, matrix.stride_k, matrix.stride_n, g.groups, layout.to_group, matrix.taps,
                           matrix.stride_tap, layout.first, matrix.winograd},
                          lowering);
  }
  const TensorRef rows = as_is ? x : AddImage(x, p, lowering);
  KernelId kernel = KernelId::kDotConvolution;
  if (as_is) kernel = winograd ? KernelId::kWinograd : KernelId::kConvolution;
  lowering.AddStep(kernel, {rows, packed, bias, residual}, {out}, p).product = number;
  return Status::Ok();
}

}  // namespace

std::span<const CpuKernel> ConvolutionKernels() {
  static const CpuKernel kernels[] = {{.id = KernelId::kConvolution,
                                       .run = ConvolutionStep,
                                       .scratch = ConvolutionScratch,
                                       .lines = ConvolutionLines,
                                       .cut = CutConvolution},
                                      {KernelId::kWinograd, WinogradStep, WinogradScratch},
                                      {KernelId::kRanges, RangesStep, nullptr, ImageTakesRows},
                                      {KernelId::kImage, ImageStep, nullptr, ImageTakesRows},
                                      {KernelId::kDotConvolution, DotConvolutionStep, DotConvolutionScratch,
                                       DotConvolutionTakesRows, DotConvolutionStoresRows, nullptr, nullptr, kResidual},
                                      {.id = KernelId::kDepthwise,
                                       .run = DepthwiseStep,
                                       .scratch = DepthwiseScratch,
                                       .takes_rows = DepthwiseTakesRows,
                                       .stores_rows = DepthwiseStoresRows,
                                       .lines = ConvolutionLines,
                                       .cut = CutConvolution},
                                      ops::WeightGradientKernel()};
  return kernels;
}

std::span<const OpDef> ConvolutionOps() {
  static const std::vector<OpDef> rows = {
      {"convolution",
       "act(x * weight + bias) + residual, channels last: x [N, spatial..., C], weight [K, C / groups, kernel...], "
       "result [N, spatial..., K].",
       {"x", "weight", "bias?", "residual?"},
       {{"stride", AttrType::kInts, false, "one number a spatial dimension; default 1"},
        {"padding", AttrType::kInts, false,
         "zeros before and after each spatial dimension, or first all those before, then all those after; default 0"},
        {"dilation", AttrType::kInts, false, "positions of x from one tap to the next; default 1"},
        {"groups", AttrType::kInt, false, "of channels, each with outputs of its own; default 1"},
        {"transposed", AttrType::kBool, false,
         "the gradient of a convolution as to its x; weight [C, K / groups, kernel...]; default false"},
        {"output_padding", AttrType::kInts, false, "positions added behind the result, where transposed; default 0"},
        {"activation", AttrType::kString, false,
         "none, relu, gelu, gelu_tanh, silu, tanh, sigmoid, relu6 or hardswish"},
        {"residual_first", AttrType::kBool, false, "the residual is added before the activation; default false"},
        {"precision", AttrType::kString, false,
         "of weights and arithmetic: fp32, bf16, fp16, int8 (of a multiple of 8 channels a group), int8_weight or "
         "int4_weight; default: as the weight is stored"}},
       Section::kForward,
       InferConvolution,
       CostConvolution,
       LowerConvolution,
       Trait::kProduct,
       nullptr,
       [](const Attrs&, size_t) { return std::pair<size_t, size_t>(kWeight, kBias); }},
      ops::WeightGradientOp(),
  };
  return rows;
}

}  // namespace thresher
