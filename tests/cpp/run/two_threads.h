// What graphs give on two threads, and how many steps of a name a plan has.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/plan/builder.h"
#include "thresher/run/session.h"

namespace thresher {

// The results of a graph on two threads, as they are stored, and the steps of its plan.
inline std::vector<std::vector<float>> RunOnTwoThreads(const Graph& g, const std::vector<View>& inputs,
                                                       std::vector<Step>* steps) {
  PlanOptions options;
  options.num_threads = 2;
  WeightStore weights;
  Session session(Must(BuildPlan(g, weights, options)));
  *steps = session.plan().steps;
  std::vector<std::vector<float>> out;
  std::vector<View> outputs;
  for (const ValueId id : g.outputs()) {
    const Value& value = g.value(id);
    out.emplace_back(static_cast<size_t>(NumElements(value.shape)));
    outputs.push_back(MakeView(out.back().data(), value.dtype, value.shape));
  }
  const Status status = session.Run(inputs, outputs);
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

inline ValueId AddWeight(Graph& g, const Dims& shape, uint32_t seed) {
  return AddF32(g, "w" + std::to_string(seed), shape,
                RandomFloats(static_cast<size_t>(NumElements(shape)), seed, 0.2f));
}

inline int64_t CountSteps(const std::vector<Step>& steps, const std::string& name) {
  return std::count_if(steps.begin(), steps.end(), [&](const Step& step) { return step.name == name; });
}

}  // namespace thresher
