#include "thresher/run/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "run/test_graphs.h"
#include "run/two_threads.h"
#include "thresher/base/isa.h"
#include "thresher/base/thread_pool.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/compile.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void* CountedAllocate(size_t size, size_t alignment) noexcept {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
  return alignment > alignof(std::max_align_t)
             ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
             : std::malloc(size == 0 ? 1 : size);
}

void* Required(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

// Not inlined, because the compiler knows operator new by name and would warn of the call of free().
[[gnu::noinline]] void Release(void* p) noexcept { std::free(p); }

size_t Number(std::align_val_t alignment) { return static_cast<size_t>(alignment); }

}  // namespace

// Every allocation of the test program in C++ passes through here, those of the engine's threads too. All forms are
// replaced: AddressSanitizer has its own for those that are not, and then finds them freed by the wrong function.
void* operator new(size_t size) { return Required(CountedAllocate(size, 0)); }
void* operator new[](size_t size) { return Required(CountedAllocate(size, 0)); }
void* operator new(size_t size, std::align_val_t a) { return Required(CountedAllocate(size, Number(a))); }
void* operator new[](size_t size, std::align_val_t a) { return Required(CountedAllocate(size, Number(a))); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return CountedAllocate(size, 0); }
void* operator new[](size_t size, const std::nothrow_t&) noexcept { return CountedAllocate(size, 0); }
void* operator new(size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return CountedAllocate(size, Number(a));
}
void* operator new[](size_t size, std::align_val_t a, const std::nothrow_t&) noexcept {
  return CountedAllocate(size, Number(a));
}
void operator delete(void* p) noexcept { Release(p); }
void operator delete[](void* p) noexcept { Release(p); }
void operator delete(void* p, size_t) noexcept { Release(p); }
void operator delete[](void* p, size_t) noexcept { Release(p); }
void operator delete(void* p, std::align_val_t) noexcept { Release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { Release(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { Release(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { Release(p); }

namespace thresher {
namespace {

constexpr int64_t kRows = 48;
constexpr int64_t kWidth = 64;

// One encoder-like block: embedding, linear, attention, residual, norm, and a mean.
Graph MakeBlock(int64_t rows = kRows) {
  Graph g;
  const ValueId ids = g.AddInput("ids", DType::kI64, {2, rows});
  const ValueId table = AddF32(g, "table", {100, kWidth}, RandomFloats(100 * kWidth, 1));
  const ValueId w = AddF32(g, "w", {kWidth, kWidth}, RandomFloats(kWidth * kWidth, 2, 0.1f));
  const ValueId w2 = AddF32(g, "w2", {kWidth, kWidth}, RandomFloats(kWidth * kWidth, 5, 0.1f));
  const ValueId b = AddF32(g, "b", {kWidth}, RandomFloats(kWidth, 3));
  const ValueId x = Must(g.Add1("embedding", {table, ids}));
  const ValueId h = Must(g.Add1("linear", {x, w, b}, {{"activation", std::string("gelu")}}));
  const ValueId heads = Must(g.Add1("reshape", {h}, {{"shape", std::vector<int64_t>{2, rows, 4, 16}}}));
  const ValueId q = Must(g.Add1("permute", {heads}, {{"dims", std::vector<int64_t>{0, 2, 1, 3}}}));
  const ValueId a = Must(g.Add1("sdpa", {q, q, q}, {{"scale", 0.25}}));
  const ValueId back = Must(g.Add1("permute", {a}, {{"dims", std::vector<int64_t>{0, 2, 1, 3}}}));
  const ValueId merged = Must(g.Add1("reshape", {back}, {{"shape", std::vector<int64_t>{2, rows, kWidth}}}));
  const ValueId y = Must(g.Add1("linear", {merged, w2, b, x}));
  const ValueId n = Must(g.Add1("layer_norm", {y, b, b}));
  const ValueId mean = Must(g.Add1("mean", {n}, {{"dims", std::vector<int64_t>{1}}}));
  g.SetOutputs({n, mean});
  return g;
}

struct Call {
  std::vector<int64_t> ids;
  std::vector<float> hidden = std::vector<float>(2 * kRows * kWidth);
  std::vector<float> mean = std::vector<float>(2 * kWidth);
  std::vector<View> inputs, outputs;

  explicit Call(int64_t seed) {
    for (int64_t i = 0; i < 2 * kRows; ++i) ids.push_back((i * 7 + seed * 13) % 100);
    inputs = {MakeView(ids.data(), DType::kI64, {2, kRows})};
    outputs = {MakeView(hidden.data(), DType::kF32, {2, kRows, kWidth}),
               MakeView(mean.data(), DType::kF32, {2, kWidth})};
  }
};

std::unique_ptr<Session> MakeSession(int num_threads, bool share = true) {
  const Graph graph = MakeBlock();
  WeightStore weights;
  PlanOptions options;
  options.num_threads = num_threads;
  options.share_memory = share;
  return std::make_unique<Session>(Must(BuildPlan(graph, weights, options)));
}

class PoolSize {
 public:
  explicit PoolSize(int n) : before_(ThreadPool::Global().num_threads()) { ThreadPool::SetGlobalSize(n); }
  ~PoolSize() { ThreadPool::SetGlobalSize(before_); }

 private:
  int before_;
};

TEST(Session, SharedMemoryChangesNothing) {
  Call a(1), b(1);
  ASSERT_TRUE(MakeSession(1, true)->Run(a.inputs, a.outputs).ok());
  ASSERT_TRUE(MakeSession(1, false)->Run(b.inputs, b.outputs).ok());
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.mean, b.mean);
}

TEST(Session, SharesMemoryBetweenSteps) {
  const auto session = MakeSession(1);
  EXPECT_LT(session->plan().arena_bytes, session->plan().unplanned_bytes);
}

// Whoever does which part: of one number of threads the bits are the same, however few of them come.
TEST(Session, ThreadsChangeNothingBeyondRounding) {
  Call one(1);
  ASSERT_TRUE(MakeSession(1)->Run(one.inputs, one.outputs).ok());
  for (const int threads : {2, 3, 7, 64}) {
    const auto session = MakeSession(threads);
    Call first(1);
    ASSERT_TRUE(session->Run(first.inputs, first.outputs).ok());
    ExpectNear(first.hidden, one.hidden, 2e-5);
    for (const int present : {threads, threads / 2}) {
      const PoolSize pool(present);
      for (int round = 0; round < 10; ++round) {
        Call many(1);
        ASSERT_TRUE(session->Run(many.inputs, many.outputs).ok());
        ASSERT_EQ(many.hidden, first.hidden) << threads << " threads, of which there are " << present;
      }
    }
  }
}

// From weights packed for the tiles of a matrix unit to rows in the form that these want.
TEST(Session, ProductsRunOnTiles) {
  if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmxFp16";
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  const std::vector<float> numbers = RandomFloats(kRows * kWidth, 1), weight = RandomFloats(kWidth * kWidth, 2, 0.1f);
  const std::vector<float> bias = RandomFloats(kWidth, 3);
  const auto run = [&](const std::string& precision, const std::string& first_step) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {kRows, kWidth});
    const ValueId w = AddF32(g, "w", {kWidth, kWidth}, weight), b = AddF32(g, "b", {kWidth}, bias);
    const ValueId y =
        Must(g.Add1("linear", {x, w, b}, {{"precision", precision}, {"activation", std::string("gelu")}}));
    g.SetOutputs({Must(g.Add1("linear", {y, w, b, x}, {{"precision", precision}}))});
    PlanOptions options;
    options.num_threads = 2;
    WeightStore weights;
    Session session(Must(BuildPlan(g, weights, options)));
    EXPECT_EQ(session.plan().steps[0].name, first_step);
    std::vector<float> in = numbers, out(numbers.size());
    const std::vector<View> inputs = {MakeView(in.data(), DType::kF32, {kRows, kWidth})};
    const std::vector<View> outputs = {MakeView(out.data(), DType::kF32, {kRows, kWidth})};
    const Status status = session.Run(inputs, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const std::vector<float> wanted = run("fp32", "linear");
  ExpectNear(run("fp16", "to_fp16"), wanted, 5e-3);
  ExpectNear(run("bf16", "to_bf16"), wanted, 4e-2);
  ExpectNear(run("int8", "quantize"), wanted, 8e-2);
  unsetenv("THRESHER_SMALL_PRODUCTS");
  ASSERT_TRUE(isa::Select().ok());
}

// Small groups, which are multiplied together, give what each of them gives in fp32.
TEST(Session, SmallGroupsAreMultipliedTogether) {
  if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmxFp16";
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  const auto run = [&](int64_t width, int64_t groups, bool transposed, const char* precision, std::string* kernel) {
    const int64_t channels = width * groups;
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {2, 7, 11, channels});
    const ValueId w =
        AddF32(g, "w", {channels, width, 3, 2}, RandomFloats(static_cast<size_t>(channels * width * 6), 2));
    const ValueId b = AddF32(g, "b", {channels}, RandomFloats(static_cast<size_t>(channels), 3));
    const ValueId y = Must(g.Add1("convolution", {x, w, b},
                                  {{"precision", std::string(precision)},
                                   {"groups", groups},
                                   {"transposed", transposed},
                                   {"stride", std::vector<int64_t>{2, 1}},
                                   {"padding", std::vector<int64_t>{1, 0}}}));
    g.SetOutputs({y});
    std::vector<float> in = RandomFloats(static_cast<size_t>(2 * 7 * 11 * channels), 1);
    std::vector<Step> steps;
    const auto out = RunOnTwoThreads(g, {MakeView(in.data(), DType::kF32, {2, 7, 11, channels})}, &steps);
    *kernel = Name(steps.back().kernel);
    return out[0];
  };
  for (const int64_t width : {2, 4, 8, 16}) {
    for (const bool transposed : {false, true}) {
      SCOPED_TRACE(std::to_string(width) + (transposed ? " transposed" : ""));
      std::string fp32, bf16, odd;
      const std::vector<float> expected = run(width, 64 / width, transposed, "fp32", &fp32);
      const std::vector<float> actual = run(width, 64 / width, transposed, "bf16", &bf16);
      const float limit = 0.02f * std::sqrt(static_cast<float>(6 * width));
      for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], limit) << i;
      EXPECT_NE(bf16, fp32);
      // Groups that do not fill a panel stay what they are.
      run(width, 3, transposed, "bf16", &odd);
      if (width < 8) {
        EXPECT_NE(odd, bf16);
      }
    }
  }
  unsetenv("THRESHER_SMALL_PRODUCTS");
  ASSERT_TRUE(isa::Select().ok());
}

// Zeros that fill up few channels meet nothing but zeros: windows that do not cover a NaN have none. Tiles of a matrix
// unit take lines of eight taps, and with them what lies right of a window.
TEST(Session, ANaNStaysInTheWindowsOfFewChannels) {
  if (!isa::Force("avx512_bf16").ok()) GTEST_SKIP() << "this machine cannot run kAvx512Bf16";
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  constexpr int64_t kLines = 12, kPositions = 23, kOutputs = 32, kLine = 5, kAt = 11;
  for (const int64_t taps : {3, 5, 7, 8}) {
    Graph g;
    const Dims shape = {1, kLines, kPositions, 3};
    const ValueId x = g.AddInput("x", DType::kF32, shape);
    g.SetOutputs({Must(
        g.Add1("convolution", {x, AddWeight(g, {kOutputs, 3, 3, taps}, 2)}, {{"precision", std::string("bf16")}}))});
    std::vector<float> in = RandomFloats(kLines * kPositions * 3, 1);
    in[(kLine * kPositions + kAt) * 3 + 1] = std::nanf("");
    std::vector<Step> steps;
    const auto out = RunOnTwoThreads(g, {MakeView(in.data(), DType::kF32, shape)}, &steps)[0];
    EXPECT_EQ(CountSteps(steps, "to_bf16"), 1);
    const int64_t width = kPositions - taps + 1;
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      const int64_t line = i / kOutputs / width, at = i / kOutputs % width;
      const bool covers = line <= kLine && kLine < line + 3 && at <= kAt && kAt < at + taps;
      ASSERT_EQ(std::isnan(out[static_cast<size_t>(i)]), covers) << taps << " taps, element " << i;
    }
  }
  unsetenv("THRESHER_SMALL_PRODUCTS");
  ASSERT_TRUE(isa::Select().ok());
}

// Few channels are read as they lie, planes or side by side, floats or bf16: one step makes the image of them.
TEST(Session, FirstConvolutionsReadXAsItLies) {
  if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmxFp16";
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  constexpr int64_t kBatch = 2, kLines = 9, kPositions = 37, kOutputs = 32;
  const auto run = [&](int64_t channels, bool planes, bool narrow, std::vector<Step>* steps) {
    Graph g;
    const Dims shape = planes ? Dims{kBatch, channels, kLines, kPositions} : Dims{kBatch, kLines, kPositions, channels};
    ValueId x = g.AddInput("x", narrow ? DType::kBF16 : DType::kF32, shape);
    if (narrow) x = Must(g.Add1("cast", {x}, {{"dtype", std::string("f32")}}));
    if (planes) x = Must(g.Add1("permute", {x}, {{"dims", std::vector<int64_t>{0, 2, 3, 1}}}));
    g.SetOutputs({Must(g.Add1("convolution", {x, AddWeight(g, {kOutputs, channels, 3, 3}, 2)},
                              {{"precision", std::string("bf16")}, {"padding", std::vector<int64_t>{1, 1}}}))});
    // The same numbers however they lie; bf16 holds them.
    std::vector<float> floats;
    std::vector<uint16_t> halves;
    for (int64_t i = 0; i < NumElements(shape); ++i) {
      const int64_t plane = kLines * kPositions, in_picture = i % (plane * channels), picture = i / (plane * channels);
      const int64_t channel = planes ? in_picture / plane : in_picture % channels;
      const int64_t position = planes ? in_picture % plane : in_picture / channels;
      const auto number = static_cast<float>((picture * 31 + channel * 17 + position * 7) % 23 - 11);
      floats.push_back(number);
      halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(number) >> 16));
    }
    const View view =
        narrow ? MakeView(halves.data(), DType::kBF16, shape) : MakeView(floats.data(), DType::kF32, shape);
    return RunOnTwoThreads(g, {view}, steps)[0];
  };
  for (const int64_t channels : {1, 3, 4}) {
    std::vector<Step> steps;
    const std::vector<float> expected = run(channels, false, false, &steps);
    for (const bool planes : {false, true}) {
      for (const bool narrow : {false, true}) {
        SCOPED_TRACE(std::to_string(channels) + (planes ? " planes" : " channels") + (narrow ? " of bf16" : ""));
        EXPECT_EQ(run(channels, planes, narrow, &steps), expected);
        EXPECT_EQ(steps.size(), 2u);
        EXPECT_EQ(CountSteps(steps, "to_bf16"), 1);
      }
    }
  }
  unsetenv("THRESHER_SMALL_PRODUCTS");
  ASSERT_TRUE(isa::Select().ok());
}

TEST(Session, ConvolutionsAndAttentionRunOnTiles) {
  if (!isa::ForcePlainTiles()) GTEST_SKIP() << "this machine cannot run the rest of kAmxFp16";
  setenv("THRESHER_SMALL_PRODUCTS", "always", 1);
  constexpr int64_t kLines = 2, kPositions = 19, kChannels = 16;
  const Dims image = {1, kLines, kPositions, kChannels};
  const std::vector<float> numbers = RandomFloats(kLines * kPositions * kChannels, 1);
  const std::vector<float> weight = RandomFloats(kChannels * kChannels * 9, 2, 0.1f);
  const auto run = [&](const std::string& precision, const std::string& step) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, image);
    const ValueId w = AddF32(g, "w", {kChannels, kChannels, 3, 3}, weight);
    const ValueId y =
        Must(g.Add1("convolution", {x, w}, {{"precision", precision}, {"padding", std::vector<int64_t>{1, 1}}}));
    const ValueId z = Must(g.Add1("sdpa", {y, y, y}, {{"scale", 0.25}, {"precision", precision}}));
    g.SetOutputs({z});
    PlanOptions options;
    options.num_threads = 2;
    WeightStore weights;
    Session session(Must(BuildPlan(g, weights, options)));
    const auto& steps = session.plan().steps;
    EXPECT_TRUE(std::any_of(steps.begin(), steps.end(), [&](const Step& s) { return s.name == step; })) << step;
    std::vector<float> in = numbers, out(numbers.size());
    const std::vector<View> inputs = {MakeView(in.data(), DType::kF32, image)};
    const std::vector<View> outputs = {MakeView(out.data(), DType::kF32, image)};
    const Status status = session.Run(inputs, outputs);
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const std::vector<float> wanted = run("fp32", "convolution");
  ExpectNear(run("fp16", "to_fp16"), wanted, 2e-3);
  ExpectNear(run("bf16", "to_bf16"), wanted, 2e-2);
  unsetenv("THRESHER_SMALL_PRODUCTS");
  ASSERT_TRUE(isa::Select().ok());
}

TEST(Session, APlanForMoreThreadsThanThePoolHasStillRuns) {
  const PoolSize pool(1);
  Call one(1), many(1);
  ASSERT_TRUE(MakeSession(1)->Run(one.inputs, one.outputs).ok());
  ASSERT_TRUE(MakeSession(4)->Run(many.inputs, many.outputs).ok());
  ExpectNear(many.hidden, one.hidden, 2e-5);
}

TEST(Session, NothingIsAllocatedWhileAPlanRuns) {
  for (const int threads : {1, 2}) {
    for (const bool profiled : {false, true}) {
      const PoolSize pool(threads);
      const auto session = MakeSession(threads);
      Call call(1);
      if (profiled) profile::Start();
      ASSERT_TRUE(session->Run(call.inputs, call.outputs).ok());  // makes the arena
      allocations = 0;
      counting = true;
      for (int round = 0; round < 10; ++round) ASSERT_TRUE(session->Run(call.inputs, call.outputs).ok());
      counting = false;
      if (profiled) profile::Stop();
      EXPECT_EQ(allocations.load(), 0) << threads << " threads, profiled " << profiled;
    }
  }
  profile::Reset();
}

TEST(Session, NothingIsAllocatedWhereStepsAreBanded) {
  Graph graph;
  const ValueId x = graph.AddInput("x", DType::kF32, {300, 16});
  const ValueId up = AddF32(graph, "up", {64, 16}, RandomFloats(64 * 16, 1));
  const ValueId down = AddF32(graph, "down", {16, 64}, RandomFloats(64 * 16, 2));
  graph.SetOutputs({Must(graph.Add1("linear", {Must(graph.Add1("linear", {x, up})), down}))});
  PlanOptions options;
  options.num_threads = 2;
  options.cache = {.bytes = 96 << 10};
  WeightStore weights;
  Session session(Must(BuildPlan(graph, weights, options)));
  ASSERT_EQ(session.plan().bands.size(), 1u);
  std::vector<float> in(300 * 16, 1.0f), out(300 * 16);
  const std::vector<View> inputs = {MakeView(in.data(), DType::kF32, {300, 16})};
  const std::vector<View> outputs = {MakeView(out.data(), DType::kF32, {300, 16})};
  const PoolSize pool(2);
  for (const bool profiled : {false, true}) {
    if (profiled) profile::Start();
    ASSERT_TRUE(session.Run(inputs, outputs).ok());
    allocations = 0;
    counting = true;
    for (int round = 0; round < 10; ++round) ASSERT_TRUE(session.Run(inputs, outputs).ok());
    counting = false;
    if (profiled) profile::Stop();
    EXPECT_EQ(allocations.load(), 0) << "profiled " << profiled;
  }
  profile::Reset();
}

TEST(Session, NothingIsAllocatedWhereSizesChange) {
  std::vector<Graph> graphs;
  std::vector<GraphFamily::Sample> samples;
  for (const int64_t rows : {5, 13, 31}) graphs.push_back(MakeBlock(rows));
  samples = {{{5}, graphs.data()}, {{13}, &graphs[1]}, {{31}, &graphs[2]}};
  WeightStore weights;
  CompileOptions options;
  options.plan.num_threads = 2;
  const auto session =
      Must(CompileExtent(Must(GraphFamily::Fit({"rows"}, 1, samples)), weights, options, {kRows}, {kRows}));
  const PoolSize pool(2);
  Call call(1);
  const auto run = [&](int64_t rows) {
    call.inputs[0].shape[1] = call.inputs[0].strides[0] = rows;
    call.outputs[0].shape[1] = rows;
    call.outputs[0].strides[0] = rows * kWidth;
    return session->Run(call.inputs, call.outputs, std::span(&rows, 1));
  };
  ASSERT_TRUE(run(kRows).ok());
  allocations = 0;
  counting = true;
  for (const int64_t rows : {7, 48, 2, 33, 33, 47}) ASSERT_TRUE(run(rows).ok());
  counting = false;
  EXPECT_EQ(allocations.load(), 0);
}

TEST(Session, TheCounterCounts) {
  allocations = 0;
  counting = true;
  delete new std::vector<int>(100);
  counting = false;
  EXPECT_GE(allocations.load(), 2);
}

TEST(Session, RunsFromSeveralThreadsAtOnce) {
  const auto session = MakeSession(ThreadPool::Global().num_threads());
  std::vector<Call> wanted;
  for (int i = 0; i < 4; ++i) {
    wanted.emplace_back(i);
    Call& call = wanted.back();
    call.inputs = {MakeView(call.ids.data(), DType::kI64, {2, kRows})};
    call.outputs = {MakeView(call.hidden.data(), DType::kF32, {2, kRows, kWidth}),
                    MakeView(call.mean.data(), DType::kF32, {2, kWidth})};
    ASSERT_TRUE(session->Run(call.inputs, call.outputs).ok());
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 20; ++round) {
        Call call(i);
        if (!session->Run(call.inputs, call.outputs).ok() || call.hidden != wanted[static_cast<size_t>(i)].hidden)
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(Session, StridedInputsAreRead) {
  const auto session = MakeSession(1);
  Call wanted(3), call(3);
  ASSERT_TRUE(session->Run(wanted.inputs, wanted.outputs).ok());
  std::vector<int64_t> spread(static_cast<size_t>(2 * kRows * 3), -1);  // every third element counts
  for (size_t i = 0; i < call.ids.size(); ++i) spread[i * 3] = call.ids[i];
  View strided = MakeView(spread.data(), DType::kI64, {2, kRows});
  strided.strides[0] = kRows * 3;
  strided.strides[1] = 3;
  ASSERT_TRUE(session->Run(std::vector<View>{strided}, call.outputs).ok());
  EXPECT_EQ(call.hidden, wanted.hidden);
  // And plain ones again afterwards.
  Call again(3);
  ASSERT_TRUE(session->Run(again.inputs, again.outputs).ok());
  EXPECT_EQ(again.hidden, wanted.hidden);
}

TEST(Session, WrongInputsAreNamed) {
  const auto session = MakeSession(1);
  Call call(1);
  const std::vector<View> short_input = {MakeView(call.ids.data(), DType::kI64, {1, kRows})};
  const Status shape = session->Run(short_input, call.outputs);
  EXPECT_EQ(shape.code(), Code::kInvalidArgument);
  EXPECT_NE(shape.message().find("expected i64[2, 48], got i64[1, 48]"), std::string::npos) << shape.message();
  const std::vector<View> floats = {MakeView(call.hidden.data(), DType::kF32, {2, kRows})};
  EXPECT_NE(session->Run(floats, call.outputs).message().find("got f32[2, 48]"), std::string::npos);
  EXPECT_EQ(session->Run({}, call.outputs).code(), Code::kInvalidArgument);
  EXPECT_EQ(session->Run(call.inputs, {}).code(), Code::kInvalidArgument);
  std::vector<View> outputs = call.outputs;
  outputs[1] = MakeView(call.mean.data(), DType::kF32, {kWidth, 2});
  EXPECT_NE(session->Run(call.inputs, outputs).message().find("output 1: expected f32[2, 64], got f32[64, 2]"),
            std::string::npos);
  std::swap(outputs[1].shape[0], outputs[1].shape[1]);
  outputs[1].strides[0] = 1, outputs[1].strides[1] = 2;
  EXPECT_NE(session->Run(call.inputs, outputs).message().find("output 1: expected a row-major tensor"),
            std::string::npos);
}

TEST(Session, AnErrorInTheDataLeavesTheSessionGood) {
  for (const int threads : {1, 2}) {
    const PoolSize pool(threads);
    const auto session = MakeSession(threads);
    Call good(1), bad(1), after(1);
    ASSERT_TRUE(session->Run(good.inputs, good.outputs).ok());
    bad.ids[5] = 100;
    const Status status = session->Run(bad.inputs, bad.outputs);
    EXPECT_EQ(status.code(), Code::kOutOfRange);
    EXPECT_NE(status.message().find("100"), std::string::npos) << status.message();
    ASSERT_TRUE(session->Run(after.inputs, after.outputs).ok());
    EXPECT_EQ(after.hidden, good.hidden);
  }
}

TEST(Session, RecordsCoverEveryStep) {
  const auto session = MakeSession(1);
  Call call(1);
  profile::Reset();
  profile::Start();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(session->Run(call.inputs, call.outputs).ok());
  profile::Stop();
  const profile::Summary summary = profile::Summarize();
  uint64_t steps = 0;
  for (const profile::SummaryRow& row : summary.rows) {
    if (row.section != profile::Section::kAlloc) steps += row.count;
  }
  EXPECT_EQ(steps, 3 * session->plan().steps.size());
  EXPECT_EQ(summary.dropped, 0u);
  ASSERT_EQ(summary.phases.size(), 1u);
  EXPECT_EQ(summary.phases[0].executions, 3u);
  EXPECT_GT(summary.phases[0].wall_ns, 0);
  profile::Reset();
}

TEST(Session, OutputsThatAreInputsConstantsOrViews) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {2, 3});
  const ValueId c = AddF32(g, "c", {2}, {7, 8});
  const ValueId t = Must(g.Add1("permute", {x}, {{"dims", std::vector<int64_t>{1, 0}}}));
  const ValueId sum = Must(g.Add1("add", {x, x}));
  g.SetOutputs({x, c, t, sum, sum});
  WeightStore weights;
  Session session(Must(BuildPlan(g, weights, {})));
  std::vector<float> in = {1, 2, 3, 4, 5, 6}, o0(6), o1(2), o2(6), o3(6), o4(6);
  const std::vector<View> outputs = {MakeView(o0.data(), DType::kF32, {2, 3}), MakeView(o1.data(), DType::kF32, {2}),
                                     MakeView(o2.data(), DType::kF32, {3, 2}), MakeView(o3.data(), DType::kF32, {2, 3}),
                                     MakeView(o4.data(), DType::kF32, {2, 3})};
  ASSERT_TRUE(session.Run(std::vector<View>{MakeView(in.data(), DType::kF32, {2, 3})}, outputs).ok());
  EXPECT_EQ(o0, in);
  EXPECT_EQ(o1, (std::vector<float>{7, 8}));
  EXPECT_EQ(o2, (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(o3, (std::vector<float>{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(o4, o3);
}

}  // namespace
}  // namespace thresher
