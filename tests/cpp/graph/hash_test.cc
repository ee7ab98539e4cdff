#include "thresher/graph/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace thresher {
namespace {

Graph Sample(float scale, const std::string& activation = "relu", bool extra_constant = false) {
  Graph graph;
  if (extra_constant) graph.AddOwnedConstant("unused", DType::kF32, {}, &scale);
  const ValueId x = graph.AddInput("x", DType::kF32, {2, 3});
  const std::vector<float> w(12, scale);
  const ValueId weight = graph.AddOwnedConstant("w", DType::kF32, {4, 3}, w.data());
  const ValueId y = graph.Add1("linear", {x, weight}, {{"activation", activation}}, "a source").value();
  graph.SetOutputs({y});
  return graph;
}

TEST(HashBytes, IsTheSameEverywhere) {
  // Written down once: a change would silently orphan every cache.
  const std::string text = "thresher separates the kernels from the chaff; this sentence has more than 64 bytes";
  EXPECT_EQ(ToHex(HashBytes(text.data(), text.size())), "4a8d93feb10fd11eee60033d8c42001b");
  EXPECT_EQ(ToHex(HashBytes(nullptr, 0)), "0dec22030cde35083dcaf064db17e4eb");
}

TEST(HashBytes, SeesEveryByteAndTheLength) {
  for (const size_t size : {1, 7, 8, 63, 64, 65, 128, 200}) {
    std::vector<uint8_t> bytes(size, 0);
    std::set<Digest> seen = {HashBytes(bytes.data(), size)};
    for (size_t i = 0; i < size; ++i) {
      for (const uint8_t bit : {1, 128}) {
        bytes[i] = bit;
        EXPECT_TRUE(seen.insert(HashBytes(bytes.data(), size)).second) << size << " " << i;
        bytes[i] = 0;
      }
    }
  }
  const std::vector<uint8_t> zeros(300, 0);
  std::set<Digest> seen;
  for (size_t size = 0; size <= zeros.size(); ++size) EXPECT_TRUE(seen.insert(HashBytes(zeros.data(), size)).second);
}

TEST(Hasher, PiecesGiveWhatTheWholeGives) {
  std::vector<uint8_t> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 256);
  for (const size_t piece : {64, 128, 448, 1024}) {
    Hasher hasher;
    for (size_t i = 0; i < bytes.size(); i += piece) hasher.Add(&bytes[i], std::min(piece, bytes.size() - i));
    EXPECT_EQ(hasher.Finish(), HashBytes(bytes.data(), bytes.size())) << piece;
  }
  EXPECT_EQ(Hasher().Finish(), HashBytes(nullptr, 0));
}

TEST(HashBytes, NoBlockHidesItsNeighbour) {
  // Words equal to the hash's own keys make a factor zero; the rest of the block must count all the same.
  std::vector<uint64_t> words(8, 0);
  for (const uint64_t key :
       {0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full, 0x165667b19e3779f9ull, 0xd6e8feb86659fd93ull}) {
    std::set<Digest> seen;
    for (size_t fixed = 0; fixed < 8; ++fixed) {
      for (uint64_t other = 1; other < 50; ++other) {
        std::fill(words.begin(), words.end(), 0);
        words[fixed] = key;
        words[fixed ^ 1] = other;
        EXPECT_TRUE(seen.insert(HashBytes(words.data(), 64)).second);
      }
    }
  }
}

TEST(Digest, TextRoundTrips) {
  const Digest digest{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(ToHex(digest), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(ParseDigest(ToHex(digest)), digest);
  EXPECT_FALSE(ParseDigest("0123"));
  EXPECT_FALSE(ParseDigest(std::string(32, 'g')));
  EXPECT_FALSE(ParseDigest(std::string(33, '0')));
}

TEST(HashGraph, DependsOnContentsAttributesAndTypes) {
  const Digest base = HashGraph(Sample(1));
  EXPECT_EQ(HashGraph(Sample(1)), base);
  EXPECT_NE(HashGraph(Sample(2)), base);
  EXPECT_NE(HashGraph(Sample(1, "gelu")), base);

  Graph other_shape;
  const ValueId x = other_shape.AddInput("x", DType::kF32, {5, 3});
  const std::vector<float> w(12, 1);
  const ValueId weight = other_shape.AddOwnedConstant("w", DType::kF32, {4, 3}, w.data());
  other_shape.SetOutputs({other_shape.Add1("linear", {x, weight}, {{"activation", "relu"}}).value()});
  EXPECT_NE(HashGraph(other_shape), base);
}

TEST(HashGraph, IgnoresNamesSourcesAndUnusedConstants) {
  const Digest base = HashGraph(Sample(1));
  EXPECT_EQ(HashGraph(Sample(1, "relu", true)), base);
  Graph renamed;
  const ValueId x = renamed.AddInput("another", DType::kF32, {2, 3});
  const std::vector<float> w(12, 1);
  const ValueId weight = renamed.AddOwnedConstant("name", DType::kF32, {4, 3}, w.data());
  renamed.SetOutputs({renamed.Add1("linear", {x, weight}, {{"activation", "relu"}}, "elsewhere").value()});
  EXPECT_EQ(HashGraph(renamed), base);
}

TEST(HashGraph, DependsOnWhichOutputsInWhichOrder) {
  Graph graph;
  const ValueId x = graph.AddInput("x", DType::kF32, {2});
  const ValueId a = graph.Add1("relu", {x}).value();
  const ValueId b = graph.Add1("neg", {x}).value();
  graph.SetOutputs({a, b});
  const Digest ab = HashGraph(graph);
  graph.SetOutputs({b, a});
  EXPECT_NE(HashGraph(graph), ab);
  graph.SetOutputs({a});
  EXPECT_NE(HashGraph(graph), ab);
}

TEST(DigestCache, ReadsConstantsOnceUntilCleared) {
  auto bytes = std::make_shared<std::vector<float>>(100, 1.0f);
  Value value;
  value.shape = {100};
  value.kind = Value::Kind::kConstant;
  value.constant.data = bytes->data();
  value.constant.owner = bytes;
  DigestCache cache;
  const Digest first = cache.Of(value);
  EXPECT_EQ(first, HashConstant(value));
  (*bytes)[0] = 2;
  EXPECT_EQ(cache.Of(value), first);  // the holder was told to clear it
  cache.Clear();
  EXPECT_NE(cache.Of(value), first);
}

TEST(DigestCache, AnotherOwnerAtTheSameAddressIsAnotherConstant) {
  float memory[16] = {};
  Value value;
  value.shape = {16};
  value.kind = Value::Kind::kConstant;
  value.constant.data = memory;
  value.constant.owner = std::make_shared<int>(1);
  DigestCache cache;
  const Digest first = cache.Of(value);
  memory[3] = 1;
  value.constant.owner = std::make_shared<int>(2);
  EXPECT_NE(cache.Of(value), first);
}

}  // namespace
}  // namespace thresher
