// Helpers for tests of passes: graphs from text, random contents, and the results of two graphs compared.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "thresher/base/half.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/parser.h"
#include "thresher/graph/printer.h"
#include "thresher/passes/pass_manager.h"
#include "thresher/run/compile.h"

namespace thresher::pass_testing {

// Contents that depend on the name and the seed alone. Floats lie in [-1, 1], integers in [0, 3].
inline std::vector<std::byte> RandomBytes(const std::string& name, DType dtype, const Dims& shape, uint32_t seed) {
  std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)) ^ seed);
  std::uniform_real_distribution<float> real(-1.0f, 1.0f);
  const auto elements = static_cast<size_t>(NumElements(shape));
  std::vector<std::byte> bytes(elements * SizeOf(dtype));
  for (size_t i = 0; i < elements; ++i) {
    const float number = real(random);
    const int64_t integer = static_cast<int64_t>(random() % 4);
    const int32_t small = static_cast<int32_t>(integer);
    const uint8_t flag = integer % 2 == 0;
    const uint16_t half = dtype == DType::kBF16 ? ToBF16(number).bits : ToF16(number).bits;
    const void* element = dtype == DType::kF32   ? static_cast<const void*>(&number)
                          : IsHalf(dtype)        ? static_cast<const void*>(&half)
                          : dtype == DType::kI64 ? static_cast<const void*>(&integer)
                          : dtype == DType::kI32 ? static_cast<const void*>(&small)
                                                 : static_cast<const void*>(&flag);
    std::memcpy(bytes.data() + i * SizeOf(dtype), element, SizeOf(dtype));
  }
  return bytes;
}

// Constants without contents in the text get random ones.
inline Result<Constant> RandomConstant(const ConstantRequest& request) {
  auto bytes = std::make_shared<std::vector<std::byte>>(RandomBytes(request.name, request.dtype, request.shape, 1));
  Constant constant;
  constant.data = bytes->data();
  constant.owner = std::move(bytes);
  return constant;
}

inline Graph FromText(const std::string& body) {
  Result<Graph> graph = ParseGraph("graph 1\n" + body, RandomConstant);
  EXPECT_TRUE(graph.ok()) << graph.status().message() << "\n" << body;
  return graph.ok() ? std::move(graph).value() : Graph();
}

inline Result<std::vector<Constant>> EvaluateForFolding(const Graph& graph) {
  THRESHER_ASSIGN(std::vector<OwnedTensor> tensors, Evaluate(graph));
  std::vector<Constant> constants;
  for (OwnedTensor& tensor : tensors) {
    Constant constant;
    constant.data = tensor.bytes->data();
    constant.owner = tensor.bytes;
    constants.push_back(std::move(constant));
  }
  return constants;
}

inline Graph After(const Graph& graph, const std::vector<std::string>& passes) {
  PassContext context;
  context.evaluate = EvaluateForFolding;
  Result<Graph> result = RunPasses(graph, passes, context);
  EXPECT_TRUE(result.ok()) << result.status().message() << "\n" << PrintGraph(graph);
  return result.ok() ? std::move(result).value() : Graph();
}

// The operators in order, separated by blanks.
inline std::string Ops(const Graph& graph) {
  std::string ops;
  for (const Node& node : graph.nodes()) ops += (ops.empty() ? "" : " ") + std::string(node.op->name);
  return ops;
}

inline int Count(const Graph& graph, std::string_view op) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += node.op->name == op;
  return count;
}

inline std::vector<OwnedTensor> Evaluated(const Graph& graph, uint32_t seed = 7) {
  std::vector<std::vector<std::byte>> bytes;
  std::vector<View> views;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Value& input = graph.value(graph.inputs()[i]);
    bytes.push_back(RandomBytes("input " + std::to_string(i), input.dtype, input.shape, seed));
    views.push_back(MakeView(bytes.back().data(), input.dtype, input.shape));
  }
  Result<std::vector<OwnedTensor>> results = Evaluate(graph, views);
  EXPECT_TRUE(results.ok()) << results.status().message() << "\n" << PrintGraph(graph);
  return results.ok() ? std::move(results).value() : std::vector<OwnedTensor>();
}

// Both graphs, run on the same random inputs, give the same dtypes, shapes and contents. f32 may differ by `tolerance`
// (absolute, and relative for large values); 0 wants the same bits.
inline void ExpectSameResults(const Graph& before, const Graph& after, double tolerance) {
  ASSERT_EQ(before.inputs().size(), after.inputs().size());
  const auto expected = Evaluated(before);
  const auto found = Evaluated(after);
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].dtype, found[i].dtype);
    ASSERT_EQ(expected[i].shape, found[i].shape);
    if (expected[i].dtype != DType::kF32 || tolerance == 0) {
      EXPECT_TRUE(*expected[i].bytes == *found[i].bytes) << PrintGraph(after);
      continue;
    }
    const auto* a = reinterpret_cast<const float*>(expected[i].bytes->data());
    const auto* b = reinterpret_cast<const float*>(found[i].bytes->data());
    for (int64_t j = 0; j < NumElements(expected[i].shape); ++j) {
      if (std::isnan(a[j]) && std::isnan(b[j])) continue;
      ASSERT_NEAR(a[j], b[j], tolerance * (1 + std::abs(static_cast<double>(a[j]))))
          << "output " << i << ", element " << j << "\n"
          << PrintGraph(before) << PrintGraph(after);
    }
  }
}

// Runs `pass`, expects these operators, and the same results as before.
inline void ExpectPass(const std::string& pass, const std::string& text, const std::string& ops,
                       double tolerance = 1e-5) {
  const Graph before = FromText(text);
  const Graph after = After(before, {pass});
  EXPECT_EQ(Ops(after), ops) << PrintGraph(after);
  ExpectSameResults(before, after, tolerance);
}

}  // namespace thresher::pass_testing
