// Scaled dot-product attention: softmax(q * k^T * scale + mask) * v, without ever holding the whole score matrix.
#pragma once

#include <cstddef>

#include "thresher/base/precision.h"
#include "thresher/base/view.h"

namespace thresher::kernels {

struct SdpaArgs {
  View q;  // [B, Hq, Sq, D]    f32; or all three bf16, with even D, Dv and strides, where that is the precision
  View k;  // [B, Hkv, Skv, D]  and StoresRows() (gemm_dot.h); Hq % Hkv == 0, query head h reads key head h / (Hq / Hkv)
  View v;  // [B, Hkv, Skv, Dv]
  View out;   // [B, Hq, Sq, Dv]   f32, or bf16 likewise; must not overlap the inputs
  View mask;  // data == nullptr: none; else [B, Hq, Sq, Skv] by strides of 0: f32 is added, bool keeps where true
  float scale = 1.0f;
  bool causal = false;  // query i sees keys 0..i, also where Sq != Skv
  // kBf16, kFp16: q, k, v and the weights of the keys are rounded to it and their products summed in fp32. bf16 is
  // only worth it where the processor multiplies it, fp16 wants tiles of it (RowsFor in gemm_dot.h). What reaches
  // beyond 65504 is scaled down for fp16, a query by itself, the keys and values of a head together.
  Precision precision = Precision::kFp32;
};
// All of rank 4 with any strides, but the innermost dimension of q, k, v and out contiguous (stride 1, or size 1);
// the innermost stride of the mask is 0 or 1. A query row that sees no key (bool mask all false, or additive mask all
// -infinity) yields zeros, as in torch.nn.functional.scaled_dot_product_attention.

// Bytes of scratch one part needs; `scratch` is 64-byte aligned and never shared between parts.
size_t SdpaScratchBytes(const SdpaArgs& args);

// Computes part `part` of `num_parts`: a range of (batch, head, block of queries).
void Sdpa(const SdpaArgs& args, void* scratch, int part = 0, int num_parts = 1);

// The same in scalar code with float64 accumulation. Allocates.
void SdpaReference(const SdpaArgs& args);

}  // namespace thresher::kernels
