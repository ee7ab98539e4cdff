// Runs a model that thresher.export wrote to a file. Needs neither Python nor PyTorch.
//
//   thresher::Result<thresher::Model> model = thresher::LoadModel("encoder.thrmodel");
//   if (!model.ok()) return Complain(model.status().message());
//   thresher::Result<std::vector<thresher::OwnedTensor>> outputs = model.value().Run(inputs);
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "thresher/base/status.h"
#include "thresher/base/tensor.h"
#include "thresher/base/view.h"

namespace thresher {

class Session;
class WeightStore;

// Chosen when a file is loaded, since they depend on the machine and on what the application can bear.
struct LoadOptions {
  std::string optimization_level = "O2";  // "O0" to "O3"
  // How weights are stored and multiplied: "model" (as in the file), "fp32", "bf16", "fp16", "int8", "int8_weight" or
  // "int4_weight", and which stay in fp32 (docs/torch_compile.md). Without a value as the file says.
  std::optional<std::string> precision;
  std::optional<std::vector<std::string>> precision_exclude;
  std::optional<double> max_weight_error;
  int num_threads = 0;     // that share one operator's work; 0: THRESHER_NUM_THREADS, else every usable core
  bool use_tuning = true;  // choose blockings by what this process was told of `thresher tune`
};

// Has all that it needs in memory: what becomes of the file is nothing to it. Thread safe.
class Model {
 public:
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  const std::string& name() const;
  // The version of the engine that wrote the file.
  const std::string& engine() const;
  const std::string& precision() const;

  // A file holds the model for one or several combinations of input shapes, each of which may be one for many sizes;
  // names and order are the same in each. Shapes of many sizes are given at the largest.
  size_t num_shapes() const;
  const std::vector<PortType>& inputs(size_t shape = 0) const;
  const std::vector<PortType>& outputs(size_t shape = 0) const;
  // The sizes that a combination is for, in their order; none where it is for one.
  struct Size {
    std::string name;
    int64_t least = 0;
    int64_t largest = 0;
  };
  const std::vector<Size>& sizes(size_t shape = 0) const;

  // Which combination a call's inputs have, and at which sizes.
  struct Call {
    size_t shape = 0;
    Dims sizes;
  };
  // Errors: the file holds no such shapes; the message lists those it holds.
  Result<Call> Find(std::span<const View> inputs) const;
  // What such a call takes. Error: these are no sizes of the combination.
  Result<std::vector<PortType>> InputsOf(const Call& call) const;
  // What it gives. Error: no plan can be made for the sizes.
  Result<std::vector<PortType>> OutputsOf(const Call& call) const;

  // Inputs may have any strides; outputs are row-major and overlap nothing. Errors are those of Find, and what
  // the data causes: OutOfRange from indices, ResourceExhausted. The next call works all the same.
  Status Run(std::span<const View> inputs, std::span<const View> outputs) const;
  // With outputs of its own.
  Result<std::vector<OwnedTensor>> Run(std::span<const View> inputs) const;

  // The engine's own, for tools inside it; of many sizes the session for the largest.
  Session& session(size_t shape = 0) const;
  const WeightStore& weights() const;

 private:
  friend Result<Model> LoadModel(const std::string& path, const LoadOptions& options);
  struct Shape;
  struct State;
  explicit Model(std::unique_ptr<State> state);

  Result<std::shared_ptr<Session>> SessionFor(const Call& call) const;
  Status RunCall(const Call& call, std::span<const View> inputs, std::span<const View> outputs) const;

  std::unique_ptr<State> state_;
};

// Reads, checks and compiles a file for this machine's instruction set. The first call in a process applies the
// THRESHER_* variables. Errors name the file, what was wanted and found.
Result<Model> LoadModel(const std::string& path, const LoadOptions& options = {});

}  // namespace thresher
