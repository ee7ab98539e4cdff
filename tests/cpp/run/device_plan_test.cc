// Plans on a device with memory and kernels of its own, the emulated one, against the same graphs on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/emulated_library.h"
#include "run/test_graphs.h"
#include "thresher/base/half.h"
#include "thresher/graph/graph_family.h"
#include "thresher/plan/extent.h"
#include "thresher/run/compile.h"
#include "thresher/run/device_library.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

using cuda::testing::EmulatedObjects;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRows = 5;
constexpr int64_t kWidth = 48;

std::shared_ptr<Device> EmulatedDevice(int index = 0) {
  return Must(Must(DeviceLibrary::FromTable(cuda::testing::EmulatedApi(), "test"))->OpenDevice(index));
}

std::unique_ptr<Session> MakeSession(const Graph& graph, const std::shared_ptr<Device>& device,
                                     const std::string& level = "O2", const std::string& precision = "model") {
  WeightStore weights;
  CompileOptions options;
  options.device = device;
  options.level = level;
  options.precision.precision = precision;
  return Must(Compile(graph, weights, options));
}

// What the device has kernels for: products with every epilogue, norms, softmax, chains on windows, copies.
Graph MakeBlock(int64_t rows = kRows) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {rows, kWidth});
  const ValueId mask = g.AddInput("mask", DType::kF32, {kWidth});
  const ValueId w = AddF32(g, "w", {kWidth, kWidth}, RandomFloats(kWidth * kWidth, 2, 0.1f));
  const ValueId b = AddF32(g, "b", {kWidth}, RandomFloats(kWidth, 3));
  const ValueId h = Must(g.Add1("linear", {x, w, b, x}, {{"activation", std::string("gelu_tanh")}}));
  const ValueId n = Must(g.Add1("layer_norm", {h, b, b, x}, {{"eps", 1e-5}}));
  const ValueId k = Must(g.Add1("linear", {n, w}, {{"layout", std::string("kn")}}));
  const ValueId r = Must(g.Add1("rms_norm", {k, b}));
  const ValueId m = Must(g.Add1("mul", {r, mask}));
  const ValueId s = Must(g.Add1("silu", {m}));
  const ValueId p = Must(g.Add1("log_softmax", {s}, {{"dim", int64_t{0}}}));
  const ValueId turned = Must(g.Add1("permute", {p}, {{"dims", std::vector<int64_t>{1, 0}}}));
  const ValueId part = Must(g.Add1("slice", {turned}, {{"start", int64_t{8}}, {"end", int64_t{24}}}));
  g.SetOutputs({turned, Must(g.Add1("softmax", {part})), n});
  return g;
}

std::vector<std::vector<float>> RunBlock(Session& session, int64_t rows = kRows, const Dims& sizes = {}) {
  std::vector<float> x = RandomFloats(rows * kWidth, 7), mask = RandomFloats(kWidth, 8);
  std::vector<std::vector<float>> results = {std::vector<float>(static_cast<size_t>(rows * kWidth)),
                                             std::vector<float>(static_cast<size_t>(rows * 16)),
                                             std::vector<float>(static_cast<size_t>(rows * kWidth))};
  const std::vector<View> inputs = {MakeView(x.data(), DType::kF32, {rows, kWidth}),
                                    MakeView(mask.data(), DType::kF32, {kWidth})};
  const std::vector<View> outputs = {MakeView(results[0].data(), DType::kF32, {kWidth, rows}),
                                     MakeView(results[1].data(), DType::kF32, {16, rows}),
                                     MakeView(results[2].data(), DType::kF32, {rows, kWidth})};
  const Status status = session.Run(inputs, outputs, sizes);
  EXPECT_TRUE(status.ok()) << status.message();
  return results;
}

void ExpectSame(const std::vector<std::vector<float>>& found, const std::vector<std::vector<float>>& wanted,
                double tolerance = 2e-5) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) ExpectNear(found[i], wanted[i], tolerance);
}

TEST(DevicePlan, GivesWhatTheCpuGives) {
  const int before = EmulatedObjects();
  for (const char* level : {"O0", "O1", "O2", "O3"}) {
    SCOPED_TRACE(level);
    const auto cpu = MakeSession(MakeBlock(), CpuDevice(), level);
    const auto device = MakeSession(MakeBlock(), EmulatedDevice(), level);
    const std::vector<std::vector<float>> wanted = RunBlock(*cpu);
    ExpectSame(RunBlock(*device), wanted);
    EXPECT_EQ(RunBlock(*device), RunBlock(*device));
  }
  EXPECT_EQ(EmulatedObjects(), before);  // nothing is left behind
}

TEST(DevicePlan, ProductsInBf16RoundTheirFactors) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {kRows, kWidth});
  const ValueId w = AddF32(g, "w", {kWidth, kWidth}, RandomFloats(kWidth * kWidth, 2, 0.1f));
  const ValueId y = Must(g.Add1("linear", {x, w}, {{"precision", std::string("bf16")}}));
  const ValueId z = Must(g.Add1("linear", {x, w, kNoValue, y}, {{"precision", std::string("bf16")}}));
  g.SetOutputs({z});
  const auto session = MakeSession(g, EmulatedDevice(), "O0");
  std::vector<std::string> steps;
  for (const Step& step : session->plan().steps) steps.push_back(step.name);
  // The rows are rounded once for both.
  EXPECT_THAT(steps, ElementsAre("to_bf16", "linear", "linear"));
  const std::vector<float> numbers = RandomFloats(kRows * kWidth, 7);
  const std::vector<float> weight = RandomFloats(kWidth * kWidth, 2, 0.1f);
  std::vector<float> found(kRows * kWidth), wanted(kRows * kWidth);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kWidth; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) {
        sum += double{Rounded(numbers[static_cast<size_t>(i * kWidth + k)], DType::kBF16)} *
               Rounded(weight[static_cast<size_t>(j * kWidth + k)], DType::kBF16);
      }
      wanted[static_cast<size_t>(i * kWidth + j)] = static_cast<float>(2 * sum);
    }
  }
  std::vector<float> x_data = numbers;
  const View in = MakeView(x_data.data(), DType::kF32, {kRows, kWidth});
  const View out = MakeView(found.data(), DType::kF32, {kRows, kWidth});
  ASSERT_TRUE(session->Run({&in, 1}, {&out, 1}).ok());
  ExpectNear(found, wanted, 1e-5);
}

// What is stored in 16 bits is widened as it is read and rounded as it is stored.
TEST(DevicePlan, ChainsOfValuesOfSixteenBits) {
  Graph g;
  const ValueId h = g.AddInput("h", DType::kBF16, {kRows, kWidth});
  const ValueId x = Must(g.Add1("exp", {h}));
  g.SetOutputs({Must(g.Add1("mul", {x, h}))});
  std::vector<BF16> numbers(kRows * kWidth);
  const std::vector<float> wide = RandomFloats(kRows * kWidth, 7);
  for (size_t i = 0; i < wide.size(); ++i) numbers[i] = ToBF16(wide[i]);
  const View in = MakeView(numbers.data(), DType::kBF16, {kRows, kWidth});
  std::vector<BF16> results[2] = {std::vector<BF16>(wide.size()), std::vector<BF16>(wide.size())};
  for (const bool on_device : {false, true}) {
    const auto session = MakeSession(g, on_device ? EmulatedDevice() : CpuDevice());
    std::vector<std::string> steps;
    for (const Step& step : session->plan().steps) steps.push_back(step.name);
    EXPECT_EQ(steps.size(), 1u);
    const View out = MakeView(results[on_device].data(), DType::kBF16, {kRows, kWidth});
    ASSERT_TRUE(session->Run({&in, 1}, {&out, 1}).ok());
  }
  for (size_t i = 0; i < wide.size(); ++i) {
    const float x_i = ToFloat(numbers[i]);
    const double want = std::exp(double{x_i}) * x_i;
    for (const std::vector<BF16>& result : results) EXPECT_NEAR(ToFloat(result[i]), want, std::abs(want) / 250 + 1e-30);
  }
}

TEST(DevicePlan, StridedInputsAndWeightsOfOtherLayouts) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {kWidth, 7});
  const ValueId w = g.AddInput("w", DType::kF32, {kWidth, 9});
  const ValueId wide = g.AddInput("wide", DType::kF32, {9, 2 * kWidth});
  const ValueId turned = Must(g.Add1("permute", {x}, {{"dims", std::vector<int64_t>{1, 0}}}));
  const ValueId w_turned = Must(g.Add1("permute", {w}, {{"dims", std::vector<int64_t>{1, 0}}}));
  const ValueId holes = Must(g.Add1("slice", {wide}, {{"dim", int64_t{1}}, {"step", int64_t{2}}}));
  const ValueId row = Must(g.Add1("slice", {turned}, {{"end", int64_t{1}}}));
  const ValueId repeated = Must(g.Add1("expand", {row}, {{"shape", std::vector<int64_t>{7, kWidth}}}));
  g.SetOutputs({Must(g.Add1("linear", {turned, w_turned})),
                Must(g.Add1("linear", {turned, w}, {{"layout", std::string("kn")}})),
                Must(g.Add1("linear", {repeated, holes})), Must(g.Add1("linear", {row, w_turned}))});
  std::vector<std::vector<float>> results[2];
  for (const bool on_device : {false, true}) {
    const auto session = MakeSession(g, on_device ? EmulatedDevice() : CpuDevice());
    std::vector<float> a = RandomFloats(2 * 7 * kWidth, 1), b = RandomFloats(9 * kWidth, 2),
                       c = RandomFloats(18 * kWidth, 3);
    std::vector<View> inputs = {MakeView(a.data(), DType::kF32, {kWidth, 7}),
                                MakeView(b.data(), DType::kF32, {kWidth, 9}),
                                MakeView(c.data(), DType::kF32, {9, 2 * kWidth})};
    inputs[0].strides[0] = 14, inputs[0].strides[1] = 2;  // the caller's tensor has holes
    std::vector<View> outputs;
    for (const int64_t size : {63, 63, 63, 9}) results[on_device].emplace_back(static_cast<size_t>(size));
    for (std::vector<float>& result : results[on_device]) {
      outputs.push_back(MakeView(result.data(), DType::kF32, {static_cast<int64_t>(result.size()) / 9, 9}));
    }
    const Status status = session->Run(inputs, outputs);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ExpectSame(results[1], results[0], 1e-4);
}

TEST(DevicePlan, KernelsThatAreMissingAreNamed) {
  Graph ranks;
  ranks.SetOutputs(Must(ranks.Add("all_reduce", {ranks.AddInput("x", DType::kF32, {4, 8})})));
  WeightStore none;
  CompileOptions there;
  there.device = EmulatedDevice();
  const Status missing = Compile(ranks, none, there).status();
  EXPECT_EQ(missing.code(), Code::kUnsupported);
  EXPECT_THAT(missing.message(), HasSubstr("all_reduce: expected a kernel all_reduce on this device, got copy, "));
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {4, 40});
  const ValueId w = AddF32(g, "w", {8, 40}, RandomFloats(320, 1));
  g.SetOutputs({Must(g.Add1("linear", {x, w}, {{"precision", std::string("int8")}}))});
  WeightStore weights;
  CompileOptions options;
  options.device = EmulatedDevice();
  EXPECT_THAT(Compile(g, weights, options).status().message(),
              HasSubstr("linear: expected K of a multiple of 32 in int8 on this device, got 40"));
}

TEST(DevicePlan, APlanRunsOnTheDeviceItWasMadeForOnly) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  const auto session = MakeSession(MakeBlock(), device);
  const auto plan = std::make_shared<const Plan>(session->plan());
  WeightStore weights;
  EXPECT_THAT(Session::Create(CpuDevice(), plan, weights).status().message(), HasSubstr("got one made for cuda sm_90"));
  EXPECT_FALSE(Session::Create(EmulatedDevice(1), plan, weights).ok());
  EXPECT_TRUE(Session::Create(device, plan, weights).ok());
}

TEST(DevicePlan, LaunchTakesMemoryOfTheDevice) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {3, 4});
  g.SetOutputs({Must(g.Add1("neg", {Must(g.Add1("softmax", {x}))}))});
  const auto session = MakeSession(g, device);
  const std::vector<float> numbers = RandomFloats(12, 1);
  std::vector<float> first(12), second(12);
  const DeviceMemory in = Must(device->Allocate(48)), out = Must(device->Allocate(48));
  std::vector<View> inputs = {MakeView(in.data(), DType::kF32, {3, 4})};
  const std::vector<View> outputs = {MakeView(out.data(), DType::kF32, {3, 4})};
  for (std::vector<float>* result : {&first, &second}) {  // a stream each, and one context between them
    const auto stream = Must(device->CreateStream());
    ASSERT_TRUE(stream->CopyToDevice(in.data(), numbers.data(), 48).ok());
    ASSERT_TRUE(session->Launch(*stream, inputs, outputs).ok());
    ASSERT_TRUE(stream->CopyToHost(result->data(), out.data(), 48).ok());
  }
  EXPECT_LT(first[0], 0);
  EXPECT_EQ(first, second);
  const auto stream = Must(device->CreateStream());
  inputs[0].strides[0] = 1, inputs[0].strides[1] = 3;
  EXPECT_THAT(session->Launch(*stream, inputs, outputs).message(), HasSubstr("expected a row-major tensor"));
}

TEST(DevicePlan, AFaultOnTheDeviceFailsThatCallOnly) {
  const auto session = MakeSession(MakeBlock(), EmulatedDevice());
  const std::vector<std::vector<float>> wanted = RunBlock(*session);
  std::vector<float> x(kRows * kWidth), mask(kWidth), out(kRows * kWidth), part(kRows * 16), norm(kRows * kWidth);
  const std::vector<View> inputs = {MakeView(x.data(), DType::kF32, {kRows, kWidth}),
                                    MakeView(mask.data(), DType::kF32, {kWidth})};
  const std::vector<View> outputs = {MakeView(out.data(), DType::kF32, {kWidth, kRows}),
                                     MakeView(part.data(), DType::kF32, {16, kRows}),
                                     MakeView(norm.data(), DType::kF32, {kRows, kWidth})};
  cuda::testing::FailNext();
  EXPECT_EQ(session->Run(inputs, outputs).message(), "a planted fault");
  EXPECT_EQ(RunBlock(*session), wanted);
}

TEST(DevicePlan, RunsAtTheSameTimeHaveMemoryOfTheirOwn) {
  const auto session = MakeSession(MakeBlock(), EmulatedDevice());
  const std::vector<std::vector<float>> wanted = RunBlock(*session);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 3; ++i) EXPECT_EQ(RunBlock(*session), wanted);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DevicePlan, OnePlanServesManySizes) {
  std::vector<Graph> graphs;
  std::vector<GraphFamily::Sample> samples;
  const std::vector<int64_t> sizes = {3, 5, 7, 11, 13};
  for (const int64_t rows : sizes) graphs.push_back(MakeBlock(rows));
  for (size_t i = 0; i < sizes.size(); ++i) samples.push_back({{sizes[i]}, &graphs[i]});
  const GraphFamily family = Must(GraphFamily::Fit({"rows"}, 1, samples));
  WeightStore weights;
  CompileOptions options;
  options.device = EmulatedDevice();
  const auto session = Must(CompileExtent(family, weights, options, {5}, {40}));
  for (const int64_t rows : {4, 9, 40, 9}) {
    SCOPED_TRACE(rows);
    ExpectSame(RunBlock(*session, rows, {rows}), RunBlock(*MakeSession(MakeBlock(rows), CpuDevice()), rows));
  }
}

}  // namespace
}  // namespace thresher
