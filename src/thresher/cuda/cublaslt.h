// Matrix products. cuBLASLt is opened at the first that needs it: it is a library of 400 MB that not everybody has.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "thresher/cuda/choices.h"
#include "thresher/cuda/cublaslt_constants.h"
#include "thresher/cuda/gemm_layout.h"
#include "thresher/device_api.h"

namespace thresher::cuda {

struct CublasLt;  // its functions

// Products on one device. Thread safe.
class Products {
 public:
  explicit Products(Choices& choices);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // The caller has made the device current. Nothing else uses `workspace` until the product is done; behind its bytes
  // are UnpackedBytes() more. The first product
  // of a shape chooses its algorithm: the fastest of some that it tries, unless THRESHER_CUDA_PRODUCTS is "first" or
  // the stream is being captured, where nothing may be waited for.
  thresher_device_result Run(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& gemm);

 private:
  struct Known;  // descriptors and the algorithm of one kind of product
  // Sizes, distances, strides, then types, options and alignments.
  using Key = std::array<int64_t, 12>;

  thresher_device_result Open();
  thresher_device_result Choose(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& gemm,
                                const uint32_t (&alignments)[4], Known& known);
  thresher_device_result Fastest(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& gemm,
                                 const Known& known, const HeuristicResult* candidates, int count, int& fastest,
                                 std::string& remark);
  int Multiply(cudaStream_t stream, void* workspace, size_t workspace_bytes, const Gemm& gemm, const Known& known,
               const uint64_t* algorithm, void* to) const;

  std::mutex mutex_;
  Choices& choices_;
  const CublasLt* library_ = nullptr;
  void* handle_ = nullptr;
  const bool measures_;
  std::map<Key, std::unique_ptr<Known>> known_;
};

}  // namespace thresher::cuda
