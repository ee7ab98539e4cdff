// cuBLASLt, opened at the first product: it is a library of 400 MB that not everybody needs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>

#include "thresher/cuda/gemm_layout.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

struct CublasLt;  // its functions

// Products on one device. Thread safe.
class Products {
 public:
  Products() = default;
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The caller has made the device current. Nothing else uses `workspace` until the product is done.
  thresher_device_result Run(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& gemm);

 private:
  struct Algorithm {  // what cuBLASLt says about how to compute a product: its own, we only keep it
    uint64_t data[8];
  };
  // m, n, k, lda, ldb, ldc, type and options, alignments
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint32_t, uint64_t>;

  thresher_device_result Open();

  std::mutex mutex_;
  const CublasLt* library_ = nullptr;
  void* handle_ = nullptr;
  std::map<Key, Algorithm> algorithms_;
};

}  // namespace thresher::cuda
