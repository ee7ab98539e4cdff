#include "thresher/run/device_sites.h"

#include <initializer_list>

namespace thresher {
namespace {

std::string Shape(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

profile::Site Make(std::string_view name, std::string_view precision, std::string_view variant) {
  profile::Site site;
  site.name = name;
  site.precision = precision;
  site.kernel = std::string(name) + " " + std::string(precision) + " " + std::string(variant);
  return site;
}

}  // namespace

profile::Site SiteOfChain(const kernels::Chain& chain, const View& out, std::string_view variant) {
  profile::Site site;
  site.name = "pointwise";
  site.precision = "fp32";
  const double size = static_cast<double>(out.size());
  site.flops = 0;
  for (int s = 0; s < chain.num_steps; ++s) {
    const kernels::ChainStep& step = chain.steps[s];
    std::string_view name = "where";
    if (step.kind == kernels::ChainStep::Kind::kUnary) {
      name = kernels::Name(step.unary);
      site.flops += size * kernels::FlopsPerElement(step.unary);
    } else if (step.kind == kernels::ChainStep::Kind::kBinary) {
      name = kernels::Name(step.binary);
      site.flops += size * kernels::FlopsPerElement(step.binary);
    }
    site.kernel += (s == 0 ? "" : "+") + std::string(name);
  }
  site.kernel += " fp32 " + std::string(variant);
  for (int d = 0; d < out.rank; ++d) site.outputs += (d == 0 ? "" : "x") + std::to_string(out.shape[d]);
  if (out.rank == 0) site.outputs = "scalar";
  for (int i = 0; i < chain.num_operands; ++i) {
    site.shapes += (i == 0 ? "" : ", ") + site.outputs;
    site.dtypes += i == 0 ? "f32" : ", f32";
  }
  return site;
}

profile::Site SiteOf(const thresher_norm& norm, std::string_view variant) {
  profile::Site site = Make(norm.rms != 0 ? "rms_norm" : "layer_norm", "fp32", variant);
  site.shapes = site.outputs = Shape({norm.rows, norm.cols});
  site.dtypes = "f32";
  const double size = static_cast<double>(norm.rows) * static_cast<double>(norm.cols);
  const int tensors = 2 + (norm.residual != nullptr) + (norm.sum != nullptr);
  const int vectors = (norm.weight != nullptr) + (norm.bias != nullptr);
  site.flops = size * ((norm.rms != 0 ? 4 : 7) + (norm.residual != nullptr));
  site.bytes = 4 * (size * tensors + static_cast<double>(norm.cols) * vectors);
  return site;
}

profile::Site SiteOf(const thresher_softmax& softmax, std::string_view variant) {
  profile::Site site = Make(softmax.log != 0 ? "log_softmax" : "softmax", "fp32", variant);
  site.shapes = site.outputs = Shape({softmax.outer, softmax.dim, softmax.inner});
  site.dtypes = "f32";
  const double size =
      static_cast<double>(softmax.outer) * static_cast<double>(softmax.dim) * static_cast<double>(softmax.inner);
  site.flops = 5 * size;
  site.bytes = 8 * size;
  return site;
}

profile::Site SiteOf(const thresher_gemm& gemm, std::string_view variant) {
  const bool bf16 = gemm.type == THRESHER_GEMM_BF16;
  profile::Site site = Make("gemm", bf16 ? "bf16" : gemm.allow_tf32 != 0 ? "tf32" : "fp32", variant);
  site.shapes =
      Shape({gemm.m, gemm.k}) + ", " + (gemm.transpose_b != 0 ? Shape({gemm.n, gemm.k}) : Shape({gemm.k, gemm.n}));
  site.dtypes = bf16 ? "bf16, bf16" : "f32, f32";
  site.outputs = Shape({gemm.m, gemm.n});
  const double m = static_cast<double>(gemm.m), n = static_cast<double>(gemm.n), k = static_cast<double>(gemm.k);
  site.flops = 2 * m * n * k + (gemm.bias != nullptr ? m * n : 0);
  site.bytes = (bf16 ? 2 : 4) * (m * k + k * n) + 4 * (m * n + (gemm.bias != nullptr ? n : 0));
  return site;
}

profile::Site SiteOfCopy(std::string_view name, size_t bytes) {
  profile::Site site;
  site.name = site.kernel = name;
  site.section = profile::Section::kReshape;
  site.hardware = profile::kMemcpyEvent;
  site.flops = 0;
  site.bytes = static_cast<double>(bytes);
  return site;
}

profile::Site SiteOfFill(size_t bytes) {
  profile::Site site = SiteOfCopy("Memset", bytes);
  site.hardware = profile::kMemsetEvent;
  return site;
}

}  // namespace thresher
