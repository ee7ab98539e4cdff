// Plans whose steps are launched as one graph of the device, the emulated one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/emulated_library.h"
#include "run/test_graphs.h"
#include "thresher/graph/graph_family.h"
#include "thresher/run/compile.h"
#include "thresher/run/device_library.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

using cuda::testing::EmulatedCopies;
using cuda::testing::EmulatedGraphLaunches;
using cuda::testing::EmulatedObjects;
using cuda::testing::EmulatedWaits;
using cuda::testing::ForeignStream;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 24;
constexpr int kLayers = 6;  // steps enough for a graph to pay

std::shared_ptr<Device> EmulatedDevice() {
  return Must(Must(DeviceLibrary::FromTable(cuda::testing::EmulatedApi(), "test"))->OpenDevice(0));
}

Graph MakeLayers(int64_t rows) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {rows, kWidth});
  ValueId h = x;
  for (int i = 0; i < kLayers; ++i) {
    const ValueId w = AddF32(g, "w", {kWidth, kWidth}, RandomFloats(kWidth * kWidth, static_cast<uint32_t>(i), 0.2f));
    h = Must(g.Add1("linear", {h, w, kNoValue, x}, {{"activation", std::string("gelu")}}));
    h = Must(g.Add1("softmax", {h}));
  }
  g.SetOutputs({h});
  return g;
}

std::unique_ptr<Session> MakeSession(const Graph& graph, const std::shared_ptr<Device>& device, bool graphs = true) {
  WeightStore weights;
  CompileOptions options;
  options.device = device;
  options.graphs = graphs;
  return Must(Compile(graph, weights, options));
}

// Of up to 100 rows.
std::unique_ptr<Session> MakeManySizes(const std::shared_ptr<Device>& device) {
  std::vector<Graph> graphs;
  std::vector<GraphFamily::Sample> samples;
  const std::vector<int64_t> sizes = {3, 5, 7, 11, 13};
  for (const int64_t rows : sizes) graphs.push_back(MakeLayers(rows));
  for (size_t i = 0; i < sizes.size(); ++i) samples.push_back({{sizes[i]}, &graphs[i]});
  const GraphFamily family = Must(GraphFamily::Fit({"rows"}, 1, samples));
  WeightStore weights;
  CompileOptions options;
  options.device = device;
  options.graphs = true;
  return Must(CompileExtent(family, weights, options, {5}, {100}));
}

// A call with tensors of the device's.
class OnDevice {
 public:
  OnDevice(std::shared_ptr<Device> device, int64_t rows)
      : device_(std::move(device)), rows_(rows), stream_(Must(device_->CreateStream())) {}

  std::vector<float> operator()(Session& session, uint32_t seed, const Dims& sizes = {}) {
    const std::vector<float> numbers = RandomFloats(rows_ * kWidth, seed);
    const size_t bytes = numbers.size() * sizeof(float);
    // Elsewhere in each call.
    memory_.push_back(Must(device_->Allocate(bytes)));
    const DeviceMemory& in = memory_.back();
    const DeviceMemory out = Must(device_->Allocate(bytes));
    const View x = MakeView(in.data(), DType::kF32, {rows_, kWidth});
    const View y = MakeView(out.data(), DType::kF32, {rows_, kWidth});
    EXPECT_TRUE(stream_->CopyToDevice(in.data(), numbers.data(), bytes).ok());
    const Status status = session.Launch(*stream_, {&x, 1}, {&y, 1}, sizes);
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> result(numbers.size());
    EXPECT_TRUE(stream_->CopyToHost(result.data(), out.data(), bytes).ok());
    return result;
  }

 private:
  const std::shared_ptr<Device> device_;
  const int64_t rows_;
  const std::unique_ptr<DeviceStream> stream_;
  std::vector<DeviceMemory> memory_;
};

TEST(DeviceGraph, FromTheSecondCallOnTheStepsAreOneGraph) {
  const int objects = EmulatedObjects();
  {
    const std::shared_ptr<Device> device = EmulatedDevice();
    const auto plain = MakeSession(MakeLayers(5), device, false), session = MakeSession(MakeLayers(5), device);
    OnDevice run(device, 5);
    const int before = EmulatedGraphLaunches();
    for (const uint32_t seed : {1u, 2u, 1u, 3u}) EXPECT_EQ(run(*session, seed), run(*plain, seed));
    EXPECT_EQ(EmulatedGraphLaunches() - before, 3);
  }
  EXPECT_EQ(EmulatedObjects(), objects);
}

TEST(DeviceGraph, TensorsThatLieWhereOthersLayAreUsedInPlace) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  const auto plain = MakeSession(MakeLayers(5), device, false), session = MakeSession(MakeLayers(5), device);
  const auto stream = Must(device->CreateStream());
  const size_t bytes = 5 * kWidth * sizeof(float);
  const DeviceMemory memory[] = {Must(device->Allocate(bytes)), Must(device->Allocate(bytes)),
                                 Must(device->Allocate(bytes)), Must(device->Allocate(bytes))};
  // Copies and graphs of a call, and objects that are there after it and were not before.
  const auto call = [&](uint32_t seed, size_t in, size_t out) {
    const std::vector<float> numbers = RandomFloats(5 * kWidth, seed);
    const View x = MakeView(memory[in].data(), DType::kF32, {5, kWidth});
    const View y = MakeView(memory[out].data(), DType::kF32, {5, kWidth});
    std::vector<float> found(numbers.size()), wanted(numbers.size());
    EXPECT_TRUE(stream->CopyToDevice(x.data, numbers.data(), bytes).ok());
    EXPECT_TRUE(plain->Launch(*stream, {&x, 1}, {&y, 1}).ok());
    EXPECT_TRUE(stream->CopyToHost(wanted.data(), y.data, bytes).ok());
    EXPECT_TRUE(stream->Fill(y.data, 0xFF, bytes).ok());
    const int copies = EmulatedCopies(), graphs = EmulatedGraphLaunches(), objects = EmulatedObjects();
    EXPECT_TRUE(session->Launch(*stream, {&x, 1}, {&y, 1}).ok());
    const std::vector<int> cost = {EmulatedCopies() - copies, EmulatedGraphLaunches() - graphs,
                                   EmulatedObjects() - objects};
    EXPECT_TRUE(stream->CopyToHost(found.data(), y.data, bytes).ok());
    EXPECT_EQ(found, wanted);
    return cost;
  };
  const std::vector<int> in_place = {0, 1, 0}, staged = {2, 1, 0};
  call(1, 0, 1);
  call(2, 0, 1);
  EXPECT_THAT(call(3, 0, 1), ::testing::ElementsAre(0, 1, 1));  // its graph
  for (const uint32_t seed : {4u, 5u, 4u}) EXPECT_EQ(call(seed, 0, 1), in_place);
  EXPECT_EQ(call(6, 2, 1), staged);
  EXPECT_EQ(call(7, 0, 3), staged);
  EXPECT_EQ(call(8, 0, 1), in_place);
  // More places than there is room for, each of them once in a while: what is used most stays.
  for (int turn = 0; turn < 30; ++turn) {
    const DeviceMemory elsewhere = Must(device->Allocate(bytes + 256 * static_cast<size_t>(turn)));
    const View x = MakeView(elsewhere.data(), DType::kF32, {5, kWidth});
    const View y = MakeView(memory[1].data(), DType::kF32, {5, kWidth});
    EXPECT_TRUE(session->Launch(*stream, {&x, 1}, {&y, 1}).ok());
    EXPECT_EQ(call(9, 0, 1), in_place);
  }
}

TEST(DeviceGraph, TensorsOfTheHostTakeTheSameGraph) {
  const auto session = MakeSession(MakeLayers(5), EmulatedDevice()), plain = MakeSession(MakeLayers(5), CpuDevice());
  const int before = EmulatedGraphLaunches();
  for (const uint32_t seed : {1u, 2u, 3u}) {
    std::vector<float> numbers = RandomFloats(5 * kWidth, seed), found(numbers.size()), wanted(numbers.size());
    const View x = MakeView(numbers.data(), DType::kF32, {5, kWidth});
    const View a = MakeView(found.data(), DType::kF32, {5, kWidth}),
               b = MakeView(wanted.data(), DType::kF32, {5, kWidth});
    ASSERT_TRUE(session->Run({&x, 1}, {&a, 1}).ok());
    ASSERT_TRUE(plain->Run({&x, 1}, {&b, 1}).ok());
    ExpectNear(found, wanted, 2e-5);
  }
  EXPECT_EQ(EmulatedGraphLaunches() - before, 2);
}

TEST(DeviceGraph, EachCombinationOfSizesHasItsOwn) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  const auto session = MakeManySizes(device);
  const int before = EmulatedGraphLaunches();
  for (const int64_t rows : {4, 9, 4, 9, 30, 4, 9, 30}) {
    SCOPED_TRACE(rows);
    OnDevice run(device, rows);
    EXPECT_EQ(run(*session, 1, {rows}), run(*MakeSession(MakeLayers(rows), device, false), 1));
  }
  EXPECT_EQ(EmulatedGraphLaunches() - before, 5);
}

TEST(DeviceGraph, MoreSizesThanThereIsRoomForRunWithoutOne) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  const auto session = MakeManySizes(device);
  const int objects = EmulatedObjects();
  for (int turn = 0; turn < 2; ++turn) {
    for (int64_t rows = 3; rows < 73; ++rows) {
      OnDevice run(device, rows);
      run(*session, 1, {rows});
    }
  }
  const int staged = 4;  // a context's stream, event, arena, and so on
  EXPECT_LE(EmulatedObjects() - objects, 64 + staged + 1);
}

TEST(DeviceGraph, TheProgramsOwnCaptureRecordsTheSteps) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  const auto session = MakeSession(MakeLayers(5), device);
  OnDevice run(device, 5);
  const std::vector<float> numbers = RandomFloats(5 * kWidth, 1), others = run(*session, 2), wanted = run(*session, 1);
  const size_t bytes = numbers.size() * sizeof(float);
  const DeviceMemory in = Must(device->Allocate(bytes)), out = Must(device->Allocate(bytes));
  const View x = MakeView(in.data(), DType::kF32, {5, kWidth}), y = MakeView(out.data(), DType::kF32, {5, kWidth});
  const auto stream = Must(device->CreateStream());
  ASSERT_TRUE(stream->CopyToDevice(in.data(), numbers.data(), bytes).ok());
  ASSERT_TRUE(stream->Fill(out.data(), 0, bytes).ok());
  cuda::testing::ForeignStream foreign;
  foreign.capturing = true;
  const int before = EmulatedGraphLaunches();
  ASSERT_TRUE(session->LaunchOn(&foreign, {&x, 1}, {&y, 1}).ok());
  foreign.capturing = false;
  EXPECT_EQ(EmulatedGraphLaunches(), before);
  EXPECT_GE(foreign.recorded.size(), static_cast<size_t>(kLayers));
  std::vector<float> found(numbers.size());
  ASSERT_TRUE(stream->CopyToHost(found.data(), out.data(), bytes).ok());
  EXPECT_EQ(found, std::vector<float>(numbers.size(), 0));  // nothing has been done yet
  // Other calls of the session leave what was recorded alone.
  EXPECT_EQ(run(*session, 2), others);
  for (const auto& work : foreign.recorded) ASSERT_EQ(work(), THRESHER_DEVICE_OK);
  ASSERT_TRUE(stream->CopyToHost(found.data(), out.data(), bytes).ok());
  EXPECT_EQ(found, wanted);
}

TEST(DeviceGraph, OnlyAnotherStreamWaitsForTheLastRun) {
  for (const bool graphs : {false, true}) {
    const std::shared_ptr<Device> device = EmulatedDevice();
    const auto session = MakeSession(MakeLayers(5), device, graphs);
    const size_t bytes = 5 * kWidth * sizeof(float);
    const DeviceMemory in = Must(device->Allocate(bytes)), out = Must(device->Allocate(bytes));
    const View x = MakeView(in.data(), DType::kF32, {5, kWidth}), y = MakeView(out.data(), DType::kF32, {5, kWidth});
    const auto waits_of = [&](ForeignStream* stream) {
      const int before = EmulatedWaits();
      EXPECT_TRUE(session->LaunchOn(stream, {&x, 1}, {&y, 1}).ok());
      return EmulatedWaits() - before;
    };
    ForeignStream first;
    std::optional<ForeignStream> second(std::in_place);
    EXPECT_EQ(waits_of(&first), 1);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(waits_of(&first), 0);
    EXPECT_EQ(waits_of(&*second), 1);
    EXPECT_EQ(waits_of(&*second), 0);
    second.emplace();  // another one where the first was: its handle comes again
    EXPECT_EQ(waits_of(&*second), 1);
    EXPECT_EQ(waits_of(&first), 1);
    EXPECT_EQ(waits_of(nullptr), 1);
    EXPECT_EQ(waits_of(nullptr), 0);
    OnDevice(device, 5)(*session, 1);
    EXPECT_EQ(waits_of(nullptr), 1);
  }
}

TEST(DeviceGraph, AStreamOfAnotherDeviceIsRefused) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  cuda::testing::ForeignStream foreign;
  EXPECT_TRUE(device->WrapStream(&foreign).ok());
  foreign.device = 1;
  const Status refused = device->WrapStream(&foreign).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.message(), "expected a stream of cuda:0, got one of cuda:1");
}

TEST(DeviceGraph, AnErrorWhileCapturingIsTheCallsAlone) {
  const std::shared_ptr<Device> device = EmulatedDevice();
  const auto stream = Must(device->CreateStream());
  const auto refused = stream->Capture([&] { return device->Allocate(8).status(); });
  EXPECT_THAT(refused.status().message(), HasSubstr("an allocation while a graph is captured"));
  EXPECT_THAT(stream->Capture([&] { return stream->Synchronize(); }).status().message(),
              HasSubstr("a synchronisation"));
  const DeviceMemory memory = Must(device->Allocate(8));
  const auto graph = Must(stream->Capture([&] { return stream->Fill(memory.data(), 7, 8); }));
  uint64_t word = 0;
  ASSERT_TRUE(stream->Fill(memory.data(), 0, 8).ok());
  ASSERT_TRUE(stream->Launch(*graph).ok());
  ASSERT_TRUE(stream->CopyToHost(&word, memory.data(), 8).ok());
  EXPECT_EQ(word, 0x0707070707070707u);
}

}  // namespace
}  // namespace thresher
