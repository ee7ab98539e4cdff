#include "thresher/plan/weight_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "thresher/base/thread_pool.h"
#include "thresher/graph/constant_source.h"
#include "thresher/plan/builder.h"
#include "thresher/plan/packed_layout.h"

namespace thresher {
namespace {

constexpr int64_t kRows = 5, kColumns = 7;

struct Held {
  Constant constant;
  std::weak_ptr<const void> alive;
};

Held MakeConstant(bool weight, float first = 1) {
  auto values = std::make_shared<std::vector<float>>(kRows * kColumns, 2.0F);
  values->front() = first;
  Held held;
  held.constant.data = values->data();
  held.constant.owner = values;
  held.constant.is_weight = weight;
  held.alive = held.constant.owner;
  return held;
}

WeightStore::Packed Pack(WeightStore& store, const Constant& constant, int64_t k, int64_t n, bool transposed) {
  const WeightStore::Matrix matrix{constant, n};
  return store.GetPacked({&matrix, 1}, k, transposed, Precision::kFp32).value();
}

TEST(WeightStore, ConstantsOfTheEngineAreFreedOnceTheyArePacked) {
  WeightStore store;
  Held held = MakeConstant(false);
  const WeightStore::Packed packed = Pack(store, held.constant, kRows, kColumns, false);
  held.constant = {};
  EXPECT_TRUE(held.alive.expired());
  EXPECT_EQ(store.bytes(), packed.bytes);
}

TEST(WeightStore, EqualConstantsOfTheEngineShareTheirPanels) {
  WeightStore store;
  const Held one = MakeConstant(false), equal = MakeConstant(false), other = MakeConstant(false, 3);
  const auto* data = Pack(store, one.constant, kRows, kColumns, false).data;
  EXPECT_EQ(Pack(store, equal.constant, kRows, kColumns, false).data, data);
  EXPECT_NE(Pack(store, other.constant, kRows, kColumns, false).data, data);
  EXPECT_NE(Pack(store, one.constant, kColumns, kRows, false).data, data);
  EXPECT_NE(Pack(store, one.constant, kRows, kColumns, true).data, data);
}

TEST(WeightStore, EncodingsAreToldApart) {
  WeightStore store;
  for (const bool weight : {false, true}) {
    const Held held = MakeConstant(weight, 1.2345F);
    const auto pack = [&](Encoding encoding, Precision precision) {
      const WeightStore::Matrix matrix{held.constant, kColumns, encoding};
      return store.GetPacked({&matrix, 1}, kRows, false, precision).value().data;
    };
    EXPECT_NE(pack(Encoding::kF16, Precision::kFp32), pack(Encoding::kBf16, Precision::kFp32));
    EXPECT_EQ(pack(Encoding::kF16, Precision::kFp32), pack(Encoding::kF16, Precision::kFp32));
    EXPECT_NE(pack(Encoding::kF16, Precision::kFp32), pack(Encoding::kF16, Precision::kFp16));
    const auto error = [&](Encoding encoding) {
      return store.GetError({held.constant, kColumns, encoding}, kRows, false, Precision::kBf16).value().relative;
    };
    EXPECT_EQ(error(Encoding::kBf16), 0);
    EXPECT_NE(error(Encoding::kF16), 0);
  }
}

TEST(WeightStore, RoundingsAreToldApart) {
  WeightStore store;
  const Held held = MakeConstant(true, 1.23F);
  Value value;
  value.kind = Value::Kind::kConstant;
  value.shape = {kRows, kColumns};
  value.constant = held.constant;
  const auto pack = [&](Encoding rounding) {
    Weight layout = DenseWeight(nullptr, kRows, kColumns, false);
    layout.rounding = rounding;
    const std::vector<int64_t> offsets = {0};
    return static_cast<const float*>(store.GetPackedParts(value, offsets, layout, Precision::kFp32).value().data);
  };
  EXPECT_EQ(*pack(Encoding::kF32), 1.23F);
  EXPECT_EQ(*pack(Encoding::kBf16), 1.2265625F);
  EXPECT_EQ(*pack(Encoding::kF16), 1.23046875F);
  EXPECT_EQ(pack(Encoding::kBf16), pack(Encoding::kBf16));
  EXPECT_NE(pack(Encoding::kBf16), pack(Encoding::kF16));
}

TEST(WeightStore, OnlyTheBytesOfTheEncodingAreRead) {
  WeightStore store;
  auto halves = std::make_shared<std::vector<uint16_t>>(kRows * kColumns, uint16_t{0x3c00});
  auto longer = std::make_shared<std::vector<uint16_t>>(*halves);
  longer->resize(3 * kRows * kColumns, uint16_t{7});
  const auto pack = [&](const auto& owner) {
    const WeightStore::Matrix matrix{{owner->data(), owner, false}, kColumns, Encoding::kF16};
    return store.GetPacked({&matrix, 1}, kRows, true).value().data;
  };
  EXPECT_EQ(pack(halves), pack(longer));
}

TEST(WeightStore, WeightsAreKnownByTheirAddressAndStay) {
  WeightStore store;
  Held held = MakeConstant(true);
  const Held equal = MakeConstant(true);
  const auto* data = Pack(store, held.constant, kRows, kColumns, false).data;
  EXPECT_EQ(Pack(store, held.constant, kRows, kColumns, false).data, data);
  EXPECT_NE(Pack(store, equal.constant, kRows, kColumns, false).data, data);
  held.constant = {};
  EXPECT_FALSE(held.alive.expired());  // or another tensor could come to lie at the address of the key
}

TEST(WeightStore, MeasuringKeepsNoConstantOfTheEngine) {
  WeightStore store;
  Held held = MakeConstant(false, 3);
  const Held equal = MakeConstant(false, 3);
  const double error = store.GetError({held.constant, kColumns}, kRows, false, Precision::kInt4Weight).value().relative;
  held.constant = {};
  EXPECT_TRUE(held.alive.expired());
  EXPECT_EQ(store.GetError({equal.constant, kColumns}, kRows, false, Precision::kInt4Weight).value().relative, error);
}

// Large enough to be shared out.
TEST(WeightStore, ThreadsPackWhatOneWouldAndOnce) {
  constexpr int64_t k = 300, n = 701;
  auto numbers = std::make_shared<std::vector<float>>(k * n);
  for (size_t i = 0; i < numbers->size(); ++i) (*numbers)[i] = static_cast<float>(i * 7919 % 2003) - 1000;
  const Constant constant{numbers->data(), numbers, true};
  const int before = ThreadPool::Global().num_threads();
  ThreadPool::SetGlobalSize(3);
  for (const bool transposed : {false, true}) {
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kInt8, Precision::kInt4Weight}) {
      const WeightStore::Matrix matrices[] = {{constant, n}, {constant, 5}, {constant, n}};
      WeightStore alone, shared;
      const WeightStore::Packed wanted = alone.GetPacked(matrices, k, transposed, precision, 1).value();
      std::vector<const void*> found(4);
      {
        std::vector<std::jthread> threads;
        for (const void*& data : found) {
          threads.emplace_back([&] { data = shared.GetPacked(matrices, k, transposed, precision, 3).value().data; });
        }
      }
      for (const void* data : found) EXPECT_EQ(data, found[0]);
      EXPECT_EQ(std::memcmp(found[0], wanted.data, static_cast<size_t>(wanted.bytes)), 0) << Name(precision);
      EXPECT_EQ(shared.bytes(), wanted.bytes);
      EXPECT_EQ(shared.GetError(matrices[0], k, transposed, precision, 3).value().relative,
                shared.GetError(matrices[2], k, transposed, precision, 1).value().relative);
      EXPECT_NEAR(shared.GetError(matrices[0], k, transposed, precision, 3).value().relative,
                  alone.GetError(matrices[0], k, transposed, precision, 1).value().relative, 1e-9);
    }
  }
  ThreadPool::SetGlobalSize(before);
}

TEST(WeightStore, PlansKeepOnlyWhatTheirStepsRead) {
  WeightStore store;
  Held packed = MakeConstant(false), read = MakeConstant(false);
  std::shared_ptr<const Plan> plan;
  {
    Graph graph;
    const ValueId x = graph.AddInput("x", DType::kF32, {2, kRows});
    const ValueId w = graph.AddConstant("w", DType::kF32, {kRows, kColumns}, std::move(packed.constant));
    const ValueId c = graph.AddConstant("c", DType::kF32, {kRows, kColumns}, std::move(read.constant));
    const ValueId y = graph.Add1("linear", {x, w}, {{"layout", std::string("kn")}}).value();
    graph.SetOutputs({y, graph.Add1("neg", {c}).value()});
    packed.constant = read.constant = {};
    plan = BuildPlan(graph, store, {}).value();
  }
  EXPECT_TRUE(packed.alive.expired());
  EXPECT_FALSE(read.alive.expired());
  plan.reset();
  EXPECT_TRUE(read.alive.expired());
}

TEST(WeightStore, NamesFollowFromBytesAndPartsAreTaken) {
  WeightStore first(true), second(true);
  const Held held = MakeConstant(true, 3), equal = MakeConstant(true, 3), other = MakeConstant(true, 4);
  const WeightStore::Packed packed = Pack(first, held.constant, kRows, kColumns, false);
  Pack(first, held.constant, kRows, kColumns, true);
  Pack(first, other.constant, kRows, kColumns, false);
  std::vector<WeightStore::Part> parts = first.parts();
  ASSERT_EQ(parts.size(), 3);
  EXPECT_NE(parts[0].name, parts[1].name);
  EXPECT_NE(parts[1].name, parts[2].name);
  EXPECT_NE(parts[0].name, parts[2].name);
  for (const WeightStore::Part& part : parts) {
    EXPECT_FALSE(part.given);
    second.AddPart(part.name, part.packed);
  }
  EXPECT_EQ(Pack(second, equal.constant, kRows, kColumns, false).data, packed.data);
  EXPECT_NE(Pack(second, MakeConstant(true, 5).constant, kRows, kColumns, false).data, packed.data);
  const std::vector<WeightStore::Part> found = second.parts();
  ASSERT_EQ(found.size(), 2);
  EXPECT_NE(found[0].given, found[1].given);
  EXPECT_EQ(second.bytes(), 2 * packed.bytes);
  // Without names there are none.
  WeightStore unnamed;
  Pack(unnamed, held.constant, kRows, kColumns, false);
  EXPECT_TRUE(unnamed.parts().empty());
}

TEST(WeightStore, WeightsOfASourceAreNamedWithoutBeingRead) {
  struct Unreadable : ConstantSource {
    Result<std::shared_ptr<const void>> Hold(const void*) override { return InvalidArgument("it was read"); }
    void Trim() override {}
  };
  const Held held = MakeConstant(true);
  const auto* const data = static_cast<const std::byte*>(held.constant.data);
  constexpr int64_t bytes = kRows * kColumns * sizeof(float);
  const Digest digest{1, 2};
  const auto name = [&](const std::byte* begin, int64_t size, const Digest& of) {
    WeightStore store(true);
    store.AddSource(begin, size, of, held.constant.owner);
    Pack(store, held.constant, kRows, kColumns, false);
    return store.parts().at(0).name;
  };
  EXPECT_EQ(name(data, bytes, digest), name(data, bytes, digest));
  EXPECT_NE(name(data, bytes, digest), name(data, bytes, {1, 3}));
  EXPECT_NE(name(data, bytes, digest), name(data - 8, bytes + 8, digest)) << "the place counts";
  EXPECT_EQ(name(data, bytes - 1, digest), name(data + 1, bytes, digest)) << "not whole within: named by its bytes";
  EXPECT_NE(name(data, bytes - 1, digest), name(data, bytes, digest));

  WeightStore packs(true), takes(true);
  packs.AddSource(data, bytes, digest, held.constant.owner);
  const WeightStore::Packed packed = Pack(packs, held.constant, kRows, kColumns, false);
  takes.AddSource(data, bytes, digest, held.constant.owner);
  takes.AddPart(packs.parts().at(0).name, packed);
  Constant unreadable = held.constant;
  unreadable.source = std::make_shared<Unreadable>();
  EXPECT_EQ(Pack(takes, unreadable, kRows, kColumns, false).data, packed.data);
}

TEST(WeightStore, PartsOfAnotherSizeAreNotTaken) {
  WeightStore first(true), second(true);
  const Held held = MakeConstant(true);
  const WeightStore::Packed packed = Pack(first, held.constant, kRows, kColumns, false);
  second.AddPart(first.parts().at(0).name, {packed.owner, packed.data, packed.bytes - 64});
  EXPECT_NE(Pack(second, held.constant, kRows, kColumns, false).data, packed.data);
}

TEST(PackedLayout, FollowsFromTheInstructionSetAlone) {
  const Digest digest = PackedLayout();
  EXPECT_EQ(PackedLayout(), digest);
  EXPECT_NE(digest, Digest{});
}

}  // namespace
}  // namespace thresher
