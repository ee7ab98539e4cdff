// The engine's side of the device interface, over the emulated device.
#include "thresher/run/device_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cuda/emulated_library.h"
#include "kernels/float_testing.h"
#include "thresher/base/clock.h"
#include "thresher/kernels/softmax.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/profiler.h"
#include "thresher/pti.h"
#include "thresher/run/compile.h"
#include "thresher/run/cpu_device.h"

namespace thresher {
namespace {

using cuda::testing::EmulatedApi;
using cuda::testing::EmulatedObjects;
using ::testing::HasSubstr;

std::shared_ptr<DeviceLibrary> Library() {
  Result<std::shared_ptr<DeviceLibrary>> library = DeviceLibrary::FromTable(EmulatedApi(), "test");
  EXPECT_TRUE(library.ok()) << library.status().message();
  return std::move(library).value();
}

template <class T>
T Take(Result<T> result) {
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

void ExpectOk(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

// Rows of numbers through a softmax.
void RunSoftmax(const std::shared_ptr<Device>& device) {
  Graph graph;
  graph.SetOutputs({Take(graph.Add1("softmax", {graph.AddInput("x", DType::kF32, {3, 100})}))});
  WeightStore weights;
  CompileOptions options;
  options.device = device;
  const std::unique_ptr<Session> session = Take(Compile(graph, weights, options));
  std::vector<float> x = kernels::testing::RandomFloats(300, 1, -3, 3);
  std::vector<float> expected(300), actual(300);
  kernels::SoftmaxReference(x.data(), expected.data(), 3, 100, 1, false);
  const View in = MakeView(x.data(), DType::kF32, {3, 100}), out = MakeView(actual.data(), DType::kF32, {3, 100});
  ExpectOk(session->Run({&in, 1}, {&out, 1}));
  kernels::testing::ExpectClose(actual, expected, 3e-7f, 4e-6f);
}

TEST(DeviceLibrary, OneInterfaceForBothKinds) {
  const int before = EmulatedObjects();
  for (const std::shared_ptr<Device>& device : {CpuDevice(), Take(Library()->OpenDevice(1))}) {
    SCOPED_TRACE(device->info().kind);
    RunSoftmax(device);
    EXPECT_EQ(device->Allocate(0).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(EmulatedObjects(), before);  // nothing is left behind
}

TEST(DeviceLibrary, Info) {
  const std::shared_ptr<DeviceLibrary> library = Library();
  EXPECT_EQ(Take(library->Count()), 2);
  const DeviceInfo info = Take(library->Info(1));
  EXPECT_EQ(info.kind, "cuda");
  EXPECT_EQ(info.index, 1);
  EXPECT_EQ(info.compute_capability, "9.0");
  EXPECT_THAT(library->OpenDevice(2).status().message(), HasSubstr("expected a cuda device from 0 to 1, got 2"));
}

TEST(DeviceLibrary, AnotherVersionIsRefused) {
  thresher_device_api other = EmulatedApi();
  other.engine_version = "0.0.7";
  const Status status = DeviceLibrary::FromTable(other, "lib.so").status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("got 0.0.7; pip install thresher-cuda=="));
  EXPECT_THAT(DeviceLibrary::Open("/nonexistent.so").status().message(), HasSubstr("cannot be opened"));
  EXPECT_THAT(DeviceLibrary::Open("libm.so.6").status().message(), HasSubstr("got another library"));
}

TEST(DeviceLibrary, ErrorsAreTheLibrarysOwnWords) {
  const std::shared_ptr<Device> device = Take(Library()->OpenDevice(0));
  const Status memory = device->Allocate(size_t{1} << 40).status();
  EXPECT_EQ(memory.code(), Code::kResourceExhausted);
  EXPECT_EQ(memory.message(), "the emulator has 1 GiB");
  const std::unique_ptr<DeviceStream> stream = Take(device->CreateStream());
  const DeviceMemory bytes = Take(device->Allocate(16));
  cuda::testing::FailNext();
  const Status failed = stream->Fill(bytes.data(), 1, 16);
  EXPECT_EQ(failed.code(), Code::kInternal);
  EXPECT_EQ(failed.message(), "a planted fault");
  ExpectOk(stream->Fill(bytes.data(), 1, 16));
}

TEST(DeviceLibrary, NothingHappensWhereThereIsNothing) {
  for (const std::shared_ptr<Device>& device : {CpuDevice(), Take(Library()->OpenDevice(0))}) {
    const std::unique_ptr<DeviceStream> stream = Take(device->CreateStream());
    cuda::testing::FailNext();  // whatever reaches the library
    ExpectOk(stream->CopyToDevice(nullptr, nullptr, 0));
    ExpectOk(stream->Fill(nullptr, 0, 0));
  }
  const std::shared_ptr<Device> device = Take(Library()->OpenDevice(0));
  const DeviceMemory bytes = Take(device->Allocate(1));
  EXPECT_FALSE(Take(device->CreateStream())->Fill(bytes.data(), 0, 1).ok());  // the fault is still there
}

std::vector<profile::PlacedRecord> RecordsSince(int64_t start) {
  std::vector<profile::PlacedRecord> records = profile::Records();
  std::erase_if(records, [&](const profile::PlacedRecord& r) { return r.record.end_ns < start; });
  return records;
}

TEST(DeviceLibrary, RecordsOfLaunchesAndOfWhatTheyLaunched) {
  const std::shared_ptr<Device> device = Take(Library()->OpenDevice(1));
  const int64_t held = profile::AllocatedBytes(profile::CudaDevice(1));
  profile::Start();
  const int64_t start = NowNs();
  profile::PushExternalId(profile::IdKind::kOperator, 77);
  RunSoftmax(device);
  profile::PopExternalId(profile::IdKind::kOperator);
  const std::vector<profile::PlacedRecord> records = RecordsSince(start);
  profile::Stop();
  EXPECT_EQ(profile::AllocatedBytes(profile::CudaDevice(1)), held);

  std::vector<std::string> work;
  std::vector<int64_t> memory;
  bool calibrated = false;
  for (const auto& [r, site] : records) {
    if (r.event == profile::kClockCalibrationEvent) calibrated = true;
    if (r.kind == profile::Kind::kMemory && r.device != 0) {  // else what is sent from and received in
      EXPECT_EQ(r.device, 2);
      EXPECT_EQ(site.name, "cuda:1");
      memory.push_back(r.value);
      const int64_t change = std::accumulate(memory.begin(), memory.end(), int64_t{0});
      EXPECT_EQ(r.correlation, static_cast<uint64_t>(held + change));
    }
    if (r.kind != profile::Kind::kDevice) continue;
    work.push_back(site.kernel);
    EXPECT_EQ(r.device, 2);
    EXPECT_EQ(r.lane, 1);
    EXPECT_EQ(r.external, 77u);
    const auto launch = std::find_if(records.begin(), records.end(), [&](const profile::PlacedRecord& l) {
      return l.record.kind == profile::Kind::kRuntime && l.record.correlation == r.correlation;
    });
    ASSERT_NE(launch, records.end());
    EXPECT_EQ(launch->record.site, r.site);
    EXPECT_EQ(launch->record.thread, r.thread);
    EXPECT_EQ(r.value, launch->record.start_ns);
    EXPECT_GE(r.start_ns, launch->record.start_ns);
    EXPECT_LT(r.start_ns, launch->record.end_ns + 1'000'000'000);
    EXPECT_GE(r.end_ns, r.start_ns);
    const bool copies = r.event == profile::kMemcpyEvent;
    EXPECT_EQ(r.section, copies ? profile::Section::kReshape : profile::Section::kForward);
    EXPECT_EQ(launch->record.event, site.name == "Memcpy HtoD"   ? profile::kTransferToDeviceEvent
                                    : site.name == "Memcpy DtoH" ? profile::kTransferToHostEvent
                                                                 : profile::kLaunchStreamEvent);
    EXPECT_EQ(site.bytes, copies ? 1200 : 2400);
  }
  EXPECT_THAT(work, ::testing::ElementsAre("Memcpy HtoD", "softmax fp32 cuda sm_90", "Memcpy DtoH"));
  EXPECT_THAT(memory, ::testing::ElementsAre(1200, 1200, -1200, -1200));
  EXPECT_TRUE(calibrated);
}

// A tool behind pti.h sees two records joined by their correlation.
TEST(DeviceLibrary, ToolsSeeLaunchesAndKernels) {
  const thresher_pti_api* const pti = thresher_pti_get_api(THRESHER_PTI_VERSION);
  static std::vector<thresher_pti_kernel> kernels;
  static std::vector<thresher_pti_runtime> launches;
  static std::vector<thresher_pti_memory> changes;
  kernels.clear(), launches.clear(), changes.clear();
  ASSERT_EQ(pti->register_callbacks(
                [](uint8_t** buffer, size_t* size, void*) {
                  *size = 1 << 16;
                  *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, *size));
                },
                [](uint8_t* buffer, size_t, size_t valid, void*) {
                  const thresher_pti_api* const api = thresher_pti_get_api(THRESHER_PTI_VERSION);
                  const thresher_pti_record* record = nullptr;
                  while (api->next_record(buffer, valid, &record) == THRESHER_PTI_OK) {
                    const auto* const address = reinterpret_cast<const void*>(record);
                    if (record->kind == THRESHER_PTI_KIND_KERNEL || record->kind == THRESHER_PTI_KIND_COPY) {
                      kernels.push_back(*static_cast<const thresher_pti_kernel*>(address));
                    } else if (record->kind == THRESHER_PTI_KIND_RUNTIME) {
                      launches.push_back(*static_cast<const thresher_pti_runtime*>(address));
                    } else {
                      changes.push_back(*static_cast<const thresher_pti_memory*>(address));
                    }
                  }
                  std::free(buffer);
                },
                nullptr),
            THRESHER_PTI_OK);
  const uint32_t kinds[] = {THRESHER_PTI_KIND_KERNEL, THRESHER_PTI_KIND_COPY, THRESHER_PTI_KIND_RUNTIME,
                            THRESHER_PTI_KIND_MEMORY};
  for (const uint32_t kind : kinds) ASSERT_EQ(pti->enable(kind), THRESHER_PTI_OK);
  RunSoftmax(Take(Library()->OpenDevice(0)));
  ASSERT_EQ(pti->flush_all(), THRESHER_PTI_OK);
  for (const uint32_t kind : kinds) ASSERT_EQ(pti->disable(kind), THRESHER_PTI_OK);
  ASSERT_EQ(pti->register_callbacks(nullptr, nullptr, nullptr), THRESHER_PTI_OK);

  ASSERT_EQ(kernels.size(), 3u);
  for (const thresher_pti_kernel& kernel : kernels) {
    EXPECT_EQ(kernel.device, 1);
    EXPECT_EQ(kernel.stream, 1u);
    EXPECT_LE(kernel.submitted_ns, kernel.start_ns);
    EXPECT_EQ(std::count_if(launches.begin(), launches.end(),
                            [&](const thresher_pti_runtime& l) { return l.correlation == kernel.correlation; }),
              1);
  }
  EXPECT_STREQ(kernels[1].name, "softmax fp32 cuda sm_90");
  EXPECT_EQ(kernels[1].header.kind, static_cast<uint32_t>(THRESHER_PTI_KIND_KERNEL));
  std::erase_if(changes, [](const thresher_pti_memory& change) { return change.device == 0; });
  ASSERT_EQ(changes.size(), 4u);
  EXPECT_EQ(changes[0].device, 1);
}

}  // namespace
}  // namespace thresher
