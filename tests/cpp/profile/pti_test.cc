#include "thresher/pti.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "profile/pti_counter.h"
#include "thresher/plan/builder.h"
#include "thresher/profile/memory.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/session.h"

namespace thresher::profile {
namespace {

const thresher_pti_api& Api() { return *thresher_pti_get_api(THRESHER_PTI_VERSION); }

// x -> relu(x) -> transpose -> contiguous copy into the output.
std::unique_ptr<Session> MakeSession() {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {32, 48});
  const ValueId y = g.Add1("relu", {x}, {}, "model.py:3 in forward", "act").value();
  g.SetOutputs({g.Add1("permute", {y}, {{"dims", std::vector<int64_t>{1, 0}}}).value()});
  WeightStore weights;
  PlanOptions options;
  options.name = "graph_0";
  return std::make_unique<Session>(BuildPlan(g, weights, options).value());
}

class PtiTest : public ::testing::Test {
 protected:
  void Run(Session& session) {
    const std::vector<View> in = {MakeView(x_.data(), DType::kF32, {32, 48})};
    const std::vector<View> out = {MakeView(y_.data(), DType::kF32, {48, 32})};
    ASSERT_TRUE(session.Run(in, out).ok());
  }
  std::vector<float> x_ = std::vector<float>(32 * 48, 1.0f);
  std::vector<float> y_ = std::vector<float>(32 * 48);
};

TEST_F(PtiTest, AToolInCCountsWhatTheEngineDoes) {
  const auto session = MakeSession();
  Run(*session);  // before anybody listens
  pti_counter counter;
  ASSERT_EQ(pti_counter_start(&counter, &Api()), THRESHER_PTI_OK);
  counter.expected_id = 42;
  EXPECT_EQ(Api().push_external_id(THRESHER_PTI_ID_OPERATOR, 42), THRESHER_PTI_OK);
  constexpr uint64_t kRuns = 100;
  for (uint64_t i = 0; i < kRuns; ++i) Run(*session);
  EXPECT_EQ(Api().pop_external_id(THRESHER_PTI_ID_OPERATOR), THRESHER_PTI_OK);
  int block = 0;
  NoteAllocation(&block, 64);
  NoteRelease(&block, 64);
  ASSERT_EQ(pti_counter_stop(&counter), THRESHER_PTI_OK);
  Run(*session);  // after it
  EXPECT_EQ(counter.executions, kRuns);
  EXPECT_EQ(counter.kernels + counter.copies, kRuns * session->plan().steps.size());
  EXPECT_GT(counter.kernels, 0u);
  EXPECT_GT(counter.copies, 0u);
  EXPECT_EQ(counter.launches, counter.kernels + counter.copies) << "each kernel and copy has one launch";
  EXPECT_EQ(counter.linked, counter.kernels);
  EXPECT_EQ(counter.memory_changes, 2u);
  EXPECT_GT(counter.flops, 0);
  EXPECT_GT(counter.buffers, 1u);
  EXPECT_EQ(counter.unknown, 0u);
  EXPECT_EQ(counter.dropped, 0u);
  EXPECT_FALSE(Enabled());
}

struct Kept {
  std::vector<uint64_t> memory = std::vector<uint64_t>(1 << 17);
  std::vector<thresher_pti_kernel> kernels;
  std::vector<thresher_pti_runtime> runtimes;
};

TEST_F(PtiTest, RecordsSayWhatRanAndWhy) {
  const auto session = MakeSession();
  Run(*session);
  Kept kept;
  ASSERT_EQ(
      Api().register_callbacks(
          [](uint8_t** buffer, size_t* size, void* data) {
            auto& memory = static_cast<Kept*>(data)->memory;
            *buffer = reinterpret_cast<uint8_t*>(memory.data());
            *size = memory.size() * sizeof(memory[0]);
          },
          [](uint8_t* buffer, size_t, size_t valid, void* data) {
            const thresher_pti_record* record = nullptr;
            while (Api().next_record(buffer, valid, &record) == THRESHER_PTI_OK) {
              if (record->kind == THRESHER_PTI_KIND_RUNTIME) {
                static_cast<Kept*>(data)->runtimes.push_back(*reinterpret_cast<const thresher_pti_runtime*>(record));
              } else {
                static_cast<Kept*>(data)->kernels.push_back(*reinterpret_cast<const thresher_pti_kernel*>(record));
              }
            }
          },
          &kept),
      THRESHER_PTI_OK);
  for (const auto kind : {THRESHER_PTI_KIND_KERNEL, THRESHER_PTI_KIND_COPY, THRESHER_PTI_KIND_RUNTIME}) {
    ASSERT_EQ(Api().enable(kind), THRESHER_PTI_OK);
  }
  const int64_t before = Api().timestamp_ns();
  Run(*session);
  const int64_t after = Api().timestamp_ns();
  ASSERT_EQ(Api().flush_all(), THRESHER_PTI_OK);
  for (const auto kind : {THRESHER_PTI_KIND_KERNEL, THRESHER_PTI_KIND_COPY, THRESHER_PTI_KIND_RUNTIME}) {
    ASSERT_EQ(Api().disable(kind), THRESHER_PTI_OK);
  }
  ASSERT_EQ(Api().register_callbacks(nullptr, nullptr, nullptr), THRESHER_PTI_OK);
  ASSERT_FALSE(kept.kernels.empty());
  const thresher_pti_kernel& first = kept.kernels.front();
  EXPECT_EQ(std::string(first.module), "act");
  EXPECT_EQ(std::string(first.source), "model.py:3 in forward");
  EXPECT_EQ(std::string(first.shapes), "32x48");
  EXPECT_EQ(std::string(first.dtypes), "f32");
  EXPECT_NE(std::string(first.name).find("relu fp32 "), std::string::npos) << first.name;
  int64_t end = 0;
  for (const thresher_pti_kernel& kernel : kept.kernels) {
    EXPECT_LE(before, kernel.queued_ns);
    EXPECT_LE(kernel.queued_ns, kernel.submitted_ns);
    EXPECT_LE(kernel.submitted_ns, kernel.start_ns);
    EXPECT_LE(kernel.start_ns, kernel.end_ns);
    EXPECT_LE(end, kernel.start_ns) << "kernels of one stream follow each other";
    EXPECT_LE(kernel.end_ns, after);
    end = kernel.end_ns;
    EXPECT_EQ(std::count_if(kept.runtimes.begin(), kept.runtimes.end(),
                            [&](const auto& r) { return r.correlation == kernel.correlation; }),
              1);
    EXPECT_EQ(kernel.execution, first.execution);
  }
  const auto has = [&](const char* name, const char* detail) {
    return std::any_of(kept.runtimes.begin(), kept.runtimes.end(),
                       [&](const auto& r) { return std::string(r.name) == name && std::string(r.detail) == detail; });
  };
  EXPECT_TRUE(has("thresherGraphExecution", "graph_0"));
  EXPECT_TRUE(has("thresherLaunchKernels", "graph_0"));
  EXPECT_TRUE(has("thresherNodeCompute", "relu"));
}

TEST_F(PtiTest, RecordsWithoutABufferAreCounted) {
  const auto session = MakeSession();
  ASSERT_EQ(Api().register_callbacks([](uint8_t**, size_t*, void*) {}, [](uint8_t*, size_t, size_t, void*) {}, nullptr),
            THRESHER_PTI_OK);
  ASSERT_EQ(Api().enable(THRESHER_PTI_KIND_KERNEL), THRESHER_PTI_OK);
  Run(*session);
  ASSERT_EQ(Api().disable(THRESHER_PTI_KIND_KERNEL), THRESHER_PTI_OK);
  uint64_t dropped = 0;
  EXPECT_EQ(Api().dropped(&dropped), THRESHER_PTI_OK);
  EXPECT_GE(dropped, 1u);
  ASSERT_EQ(Api().register_callbacks(nullptr, nullptr, nullptr), THRESHER_PTI_OK);
}

TEST(Pti, WrongUseIsAnswered) {
  EXPECT_EQ(thresher_pti_get_api(0), nullptr);
  EXPECT_EQ(thresher_pti_get_api(THRESHER_PTI_VERSION + 1), nullptr);
  const thresher_pti_api& api = Api();
  EXPECT_EQ(api.struct_size, sizeof(thresher_pti_api));
  EXPECT_EQ(api.enable(THRESHER_PTI_KIND_KERNEL), THRESHER_PTI_NOT_REGISTERED);
  EXPECT_EQ(api.flush_all(), THRESHER_PTI_NOT_REGISTERED);
  EXPECT_EQ(api.disable(THRESHER_PTI_KIND_KERNEL), THRESHER_PTI_OK) << "stopping what does not run changes nothing";
  EXPECT_EQ(api.enable(99), THRESHER_PTI_INVALID_ARGUMENT);
  EXPECT_EQ(api.dropped(nullptr), THRESHER_PTI_INVALID_ARGUMENT);
  EXPECT_EQ(api.push_external_id(5, 1), THRESHER_PTI_INVALID_ARGUMENT);
  const auto request = [](uint8_t**, size_t*, void*) {};
  const auto complete = [](uint8_t*, size_t, size_t, void*) {};
  EXPECT_EQ(api.register_callbacks(request, nullptr, nullptr), THRESHER_PTI_INVALID_ARGUMENT);
  ASSERT_EQ(api.register_callbacks(request, complete, nullptr), THRESHER_PTI_OK);
  EXPECT_EQ(api.register_callbacks(request, complete, nullptr), THRESHER_PTI_BUSY) << "one tool at a time";
  ASSERT_EQ(api.enable(THRESHER_PTI_KIND_RUNTIME), THRESHER_PTI_OK);
  EXPECT_EQ(api.enable(THRESHER_PTI_KIND_RUNTIME), THRESHER_PTI_OK) << "twice is once";
  EXPECT_EQ(api.register_callbacks(nullptr, nullptr, nullptr), THRESHER_PTI_BUSY);
  ASSERT_EQ(api.disable(THRESHER_PTI_KIND_RUNTIME), THRESHER_PTI_OK);
  EXPECT_EQ(api.register_callbacks(nullptr, nullptr, nullptr), THRESHER_PTI_OK);
  for (uint32_t result = 0; result < 7; ++result) EXPECT_GT(std::strlen(api.result_name(result)), 1u);
  EXPECT_STREQ(api.event_name(9), "thresherNodeCompute");
  EXPECT_STREQ(api.event_name(4711), "Unknown event 4711");
  EXPECT_NE(std::string(api.device_properties()).find("\"isa\""), std::string::npos);
}

TEST(Pti, DamagedBuffersAreRefused) {
  const thresher_pti_api& api = Api();
  alignas(8) uint8_t buffer[64] = {};
  const thresher_pti_record* record = nullptr;
  EXPECT_EQ(api.next_record(buffer, 0, &record), THRESHER_PTI_END);
  EXPECT_EQ(api.next_record(nullptr, 0, &record), THRESHER_PTI_INVALID_ARGUMENT);
  EXPECT_EQ(api.next_record(buffer, sizeof buffer, nullptr), THRESHER_PTI_INVALID_ARGUMENT);
  EXPECT_EQ(api.next_record(buffer, sizeof buffer, &record), THRESHER_PTI_INVALID_ARGUMENT) << "size 0";
  thresher_pti_record header{128, THRESHER_PTI_KIND_KERNEL};
  std::memcpy(buffer, &header, sizeof header);
  EXPECT_EQ(api.next_record(buffer, sizeof buffer, &record), THRESHER_PTI_INVALID_ARGUMENT) << "beyond the end";
  header.struct_size = 64;
  std::memcpy(buffer, &header, sizeof header);
  ASSERT_EQ(api.next_record(buffer, sizeof buffer, &record), THRESHER_PTI_OK);
  EXPECT_EQ(api.next_record(buffer, sizeof buffer, &record), THRESHER_PTI_END);
}

}  // namespace
}  // namespace thresher::profile
