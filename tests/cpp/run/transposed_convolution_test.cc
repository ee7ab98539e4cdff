// Transposed convolutions in small numbers, whose phases are the outputs of one convolution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/float_testing.h"
#include "run/test_graphs.h"
#include "run/two_threads.h"
#include "thresher/base/isa.h"
#include "thresher/base/phases.h"

namespace thresher {
namespace {

using kernels::testing::ForEachIsaAndPlainTiles;

struct Case {
  Dims sizes;  // of x, and as many of all others
  Dims kernel, stride, padding, dilation, more;
  int64_t channels = 16;
  bool phases = true;  // whether they are split where small numbers are multiplied
};

class TransposedConvolution : public testing::Test {
 protected:
  void SetUp() override { setenv("THRESHER_SMALL_PRODUCTS", "always", 1); }
  void TearDown() override { unsetenv("THRESHER_SMALL_PRODUCTS"); }
};

TEST_F(TransposedConvolution, PhasesAreWhatThePlainSumIs) {
  constexpr int64_t kBatch = 2, kOutputs = 20;
  const std::vector<Case> cases = {
      {{5, 7}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, {0, 0}},
      {{5, 7}, {4, 4}, {2, 2}, {1, 1}, {1, 1}, {0, 0}},
      {{5, 6}, {4, 3}, {4, 1}, {2, 1}, {1, 1}, {1, 0}},
      {{4, 5}, {3, 6}, {3, 3}, {0, 5}, {1, 1}, {0, 2}},
      {{23}, {16}, {8}, {4}, {1}, {0}},
      {{9}, {5}, {2}, {2}, {1}, {1}, 24},        // a phase meets two taps, the other three
      {{6}, {3}, {7}, {0}, {1}, {0}, 8, false},  // most results meet no tap
      {{3, 4, 5}, {2, 2, 2}, {2, 2, 2}, {0, 1, 0}, {1, 1, 1}, {0, 1, 0}},
      {{2, 3, 4}, {1, 4, 4}, {1, 2, 2}, {0, 1, 3}, {1, 1, 1}, {0, 0, 0}, 32},
      {{5, 7}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, {1, 1}, 16, false},  // zeros would be most of it
      {{5, 7}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, {1, 0}, 16, false},  // a line that meets no tap
      {{5, 7}, {2, 2}, {2, 2}, {0, 0}, {2, 2}, {0, 0}, 16, false},
  };
  for (const Case& c : cases) {
    const auto run = [&](const char* precision, std::vector<Step>* steps) {
      Graph g;
      Dims shape = {kBatch};
      shape.insert(shape.end(), c.sizes.begin(), c.sizes.end());
      shape.push_back(c.channels);
      Dims weight = {c.channels, kOutputs};
      weight.insert(weight.end(), c.kernel.begin(), c.kernel.end());
      const ValueId x = g.AddInput("x", DType::kF32, shape);
      const ValueId bias = AddF32(g, "b", {kOutputs}, RandomFloats(kOutputs, 3));
      g.SetOutputs({Must(g.Add1("convolution", {x, AddWeight(g, weight, 2), bias},
                                {{"transposed", true},
                                 {"stride", c.stride},
                                 {"padding", c.padding},
                                 {"dilation", c.dilation},
                                 {"output_padding", c.more},

                                 {"activation", std::string("silu")},
                                 {"precision", std::string(precision)}}))});
      std::vector<float> in = RandomFloats(static_cast<size_t>(NumElements(shape)), 1);
      return RunOnTwoThreads(g, {MakeView(in.data(), DType::kF32, shape)}, steps)[0];
    };
    SCOPED_TRACE("kernel " + ToString(c.kernel) + " stride " + ToString(c.stride) + " padding " + ToString(c.padding));
    std::vector<Step> steps;
    const std::vector<float> expected = run("fp32", &steps);
    ForEachIsaAndPlainTiles([&] {
      for (const char* precision : {"bf16", "int8", "fp16"}) {
        const std::vector<float> actual = run(precision, &steps);
        ASSERT_EQ(actual.size(), expected.size());
        double depth = static_cast<double>(c.channels);
        for (size_t d = 0; d < c.kernel.size(); ++d) depth *= static_cast<double>(PhaseTaps(c.kernel[d], c.stride[d]));
        const double limit = (precision == std::string("int8") ? 0.02 : 0.006) * std::sqrt(depth);
        for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], limit) << precision << " " << i;
        const bool small =
            CountSteps(steps, "to_bf16") + CountSteps(steps, "to_fp16") + CountSteps(steps, "quantize") > 0;
        if (small) {
          EXPECT_EQ(CountSteps(steps, "copy") > 0, c.phases) << precision;
        }
      }
    });
  }
}

}  // namespace
}  // namespace thresher
