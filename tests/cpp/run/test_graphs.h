// Graph building and running for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "thresher/graph/graph.h"
#include "thresher/run/compile.h"

namespace thresher {

// The value of a Result, or a test failure with its message.
template <class T>
T Must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << result.status().message();
    std::abort();
  }
  return std::move(result).value();
}

inline std::vector<float> RandomFloats(int64_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

inline ValueId AddF32(Graph& graph, const std::string& name, const Dims& shape, const std::vector<float>& values) {
  return graph.AddOwnedConstant(name, DType::kF32, shape, values.data());
}

template <class T>
std::vector<T> Elements(const OwnedTensor& tensor) {
  std::vector<T> values(tensor.bytes->size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes->data(), tensor.bytes->size());
  return values;
}

// The one output of a graph without inputs.
template <class T = float>
std::vector<T> EvaluateOne(const Graph& graph) {
  return Elements<T>(Must(Evaluate(graph)).at(0));
}

inline void ExpectNear(const std::vector<float>& found, const std::vector<float>& wanted, double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], wanted[i], tolerance) << "element " << i;
}

}  // namespace thresher
