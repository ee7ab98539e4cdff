// The kernels that a plan's steps name. What a number runs is told by a table for each kind of device: that of the CPU
// is in ops/cpu_kernels.cc, others come with libraries (device_api.h) of the engine's own release.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace thresher {

enum class KernelId : uint32_t {
  // Elements moved and made.
  kCopy,
  kCat,
  kFill,
  kArange,
  kCast,
  // Element by element.
  kUnary,
  kBinary,
  kWhere,
  kPointwise,
  // Along dimensions.
  kReduce,
  kCumSum,
  kSort,
  kArgExtreme,
  kLayerNorm,
  kRmsNorm,
  kSoftmax,
  kSdpa,
  // Language models: attention over pages, rotary positions.
  kKvWrite,
  kPagedAttention,
  kPagedAttentionMerge,
  kRotary,
  // Where integers say.
  kEmbedding,
  kGather,
  kIndex,
  kIndexPut,
  // Products with packed weights.
  kPack,
  kConvertRows,
  kPackedProduct,
  kDotProduct,
  kGroupedProduct,
  kBatchedProduct,
  kConvolution,
  kWinograd,
  kRanges,
  kImage,
  kDotConvolution,
  kDepthwise,
  kWeightGradient,
  kResample,
  // A product with both factors as they are stored.
  kStoredProduct,
  // Between processes that run one model together.
  kAllReduce,
  kAllGather,
  // What a package outside this repository brings (operator_package.h).
  kOutside,
};

inline constexpr std::array<std::string_view, 43> kKernelNames = {"copy",
                                                                  "cat",
                                                                  "fill",
                                                                  "arange",
                                                                  "cast",
                                                                  "unary",
                                                                  "binary",
                                                                  "where",
                                                                  "pointwise",
                                                                  "reduce",
                                                                  "cumsum",
                                                                  "sort",
                                                                  "arg_extreme",
                                                                  "layer_norm",
                                                                  "rms_norm",
                                                                  "softmax",
                                                                  "sdpa",
                                                                  "kv_write",
                                                                  "paged_attention",
                                                                  "paged_attention_merge",
                                                                  "rotary",
                                                                  "embedding",
                                                                  "gather",
                                                                  "index",
                                                                  "index_put",
                                                                  "pack",
                                                                  "convert_rows",
                                                                  "packed_product",
                                                                  "dot_product",
                                                                  "grouped_product",
                                                                  "batched_product",
                                                                  "convolution",
                                                                  "winograd",
                                                                  "ranges",
                                                                  "image",
                                                                  "dot_convolution",
                                                                  "depthwise",
                                                                  "weight_gradient",
                                                                  "resample",
                                                                  "stored_product",
                                                                  "all_reduce",
                                                                  "all_gather",
                                                                  "outside"};
static_assert(kKernelNames.size() == static_cast<size_t>(KernelId::kOutside) + 1);

constexpr std::string_view Name(KernelId kernel) { return kKernelNames[static_cast<size_t>(kernel)]; }

}  // namespace thresher
