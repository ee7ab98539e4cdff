// Memory of the caller's that outlives a run.
#include <gtest/gtest.h>

#include <cstring>

#include "run/test_graphs.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/parser.h"
#include "thresher/graph/printer.h"
#include "thresher/passes/passes.h"
#include "thresher/run/compile.h"
#include "thresher/run/model_file.h"

namespace thresher {
namespace {

constexpr int64_t kTokens = 3;

struct Layer {
  Graph graph;
  ValueId state, q, k, v, slots, starts, lengths, tables;
};

// One head of 16 elements, pages of 16 tokens.
Layer MakeLayer(DType cache = DType::kF32) {
  Layer made;
  Graph& g = made.graph;
  made.state = g.AddInput("kv", cache, {4, 1, 2, 16, 16}, Value::Kind::kState);
  made.q = g.AddInput("q", DType::kF32, {kTokens, 2, 16});
  made.k = g.AddInput("k", DType::kF32, {kTokens, 1, 16});
  made.v = g.AddInput("v", DType::kF32, {kTokens, 1, 16});
  made.slots = g.AddInput("slots", DType::kI32, {kTokens});
  made.starts = g.AddInput("starts", DType::kI32, {2});
  made.lengths = g.AddInput("lengths", DType::kI32, {1});
  made.tables = g.AddInput("tables", DType::kI32, {1, 2});
  return made;
}

ValueId Attend(Layer& layer, ValueId state) {
  return Must(layer.graph.Add1("paged_attention", {state, layer.q, layer.starts, layer.lengths, layer.tables},
                               {{"scale", 0.25}}));
}

Layer MakeWhole(DType cache = DType::kF32) {
  Layer layer = MakeLayer(cache);
  const ValueId written = Must(layer.graph.Add1("kv_write", {layer.state, layer.k, layer.v, layer.slots}));
  layer.graph.SetOutputs({Attend(layer, written)});
  return layer;
}

// What a layer reads, in the order of its inputs.
struct Told {
  std::vector<float> q = RandomFloats(kTokens * 2 * 16, 1), k = RandomFloats(kTokens * 16, 2),
                     v = RandomFloats(kTokens * 16, 3);
  std::vector<int32_t> slots = {32, 33, 34}, starts = {0, 3}, lengths = {3}, tables = {2, 0};

  std::vector<View> Inputs(void* state, DType cache) {
    return {MakeView(state, cache, {4, 1, 2, 16, 16}),         MakeView(q.data(), DType::kF32, {kTokens, 2, 16}),
            MakeView(k.data(), DType::kF32, {kTokens, 1, 16}), MakeView(v.data(), DType::kF32, {kTokens, 1, 16}),
            MakeView(slots.data(), DType::kI32, {3}),          MakeView(starts.data(), DType::kI32, {2}),
            MakeView(lengths.data(), DType::kI32, {1}),        MakeView(tables.data(), DType::kI32, {1, 2})};
  }
};

// Three tokens a run, twice: the second run sees the keys of the first.
TEST(State, OutlivesARun) {
  for (const DType cache : {DType::kF32, DType::kBF16}) {
    const Layer layer = MakeWhole(cache);
    WeightStore weights;
    CompileOptions options;
    options.plan.num_threads = 2;
    const std::unique_ptr<Session> session = Must(Compile(layer.graph, weights, options));
    EXPECT_TRUE(session->plan().inputs[0].state);
    std::vector<std::byte> state(4 * 2 * 16 * 16 * SizeOf(cache), std::byte{0xff});
    Told told;
    std::vector<float> out(told.q.size());
    for (int32_t run = 0; run < 2; ++run) {
      std::fill(told.v.begin(), told.v.end(), run == 0 ? 1.0f : 4.0f);
      const int32_t base = run * 3;
      told.slots = {32 + base, 33 + base, 34 + base};
      told.lengths = {base + 3};
      told.tables = {2, 9};
      const std::vector<View> in = told.Inputs(state.data(), cache);
      const std::vector<View> to = {MakeView(out.data(), DType::kF32, {kTokens, 2, 16})};
      const Status status = session->Run(in, to);
      ASSERT_TRUE(status.ok()) << status.message();
      for (const float x : out) {
        if (run == 0) {
          ASSERT_NEAR(x, 1.0f, 1e-5);
        } else {
          ASSERT_GT(x, 1.05f);  // between the values of the two runs
          ASSERT_LT(x, 3.95f);
        }
      }
      told.lengths[0] = 1000;
      EXPECT_EQ(session->Run(in, to).code(), Code::kOutOfRange);
    }
  }
}

// What one graph writes and does not read, another may: the last layer of a decoder is in two.
TEST(State, IsWrittenForOthersToRead) {
  Layer writer = MakeLayer();
  static_cast<void>(Must(writer.graph.Add1("kv_write", {writer.state, writer.k, writer.v, writer.slots})));
  const ValueId unused = Must(writer.graph.Add1("exp", {writer.k}));
  static_cast<void>(unused);
  writer.graph.SetOutputs({Must(writer.graph.Add1("neg", {writer.q}))});
  const Graph lean = Must(passes::DeadCode(writer.graph, {}));
  EXPECT_EQ(lean.nodes().size(), 2u);  // "exp" alone is gone
  Layer reader = MakeLayer();
  reader.graph.SetOutputs({Attend(reader, reader.state)});
  WeightStore weights;
  const std::unique_ptr<Session> writes = Must(Compile(writer.graph, weights, {}));
  const std::unique_ptr<Session> reads = Must(Compile(reader.graph, weights, {}));
  const std::unique_ptr<Session> both = Must(Compile(MakeWhole().graph, weights, {}));
  Told told;
  std::vector<float> out(told.q.size()), expected(out.size());
  const auto run = [&](Session& session, std::vector<float>& state, std::vector<float>& to) {
    const std::vector<View> in = told.Inputs(state.data(), DType::kF32);
    const Status status = session.Run(in, std::vector<View>{MakeView(to.data(), DType::kF32, {kTokens, 2, 16})});
    ASSERT_TRUE(status.ok()) << status.message();
  };
  std::vector<float> in_one(4 * 2 * 16 * 16), in_two(in_one.size());
  run(*both, in_one, expected);
  run(*writes, in_two, out);
  EXPECT_EQ(in_two, in_one);
  run(*reads, in_two, out);
  EXPECT_EQ(out, expected);
}

TEST(State, IsPartOfTextAndHash) {
  const Layer layer = MakeWhole();
  const std::string text = PrintGraph(layer.graph);
  EXPECT_NE(text.find("\nstate %0 \"kv\" : f32[4, 1, 2, 16, 16]"), std::string::npos) << text;
  const Graph parsed = Must(ParseGraph(text));
  EXPECT_TRUE(parsed.is_state(parsed.inputs()[0]));
  EXPECT_EQ(HashGraph(parsed), HashGraph(layer.graph));
  EXPECT_EQ(PrintGraph(parsed), text);
}

TEST(State, AnOldVersionIsNotReadOnceItIsWritten) {
  Layer layer = MakeLayer();
  const ValueId written = Must(layer.graph.Add1("kv_write", {layer.state, layer.k, layer.v, layer.slots}));
  const ValueId both = Must(layer.graph.Add1("add", {Attend(layer, written), Attend(layer, layer.state)}));
  layer.graph.SetOutputs({both});
  WeightStore weights;
  const auto refused = Compile(layer.graph, weights, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("expected no reader of a state after it is written"), std::string::npos)
      << refused.status().message();
  // Before it is written, it may be.
  Layer other = MakeLayer();
  const ValueId before = Attend(other, other.state);
  const ValueId next = Must(other.graph.Add1("kv_write", {other.state, other.k, other.v, other.slots}));
  other.graph.SetOutputs({Must(other.graph.Add1("add", {before, Attend(other, next)}))});
  EXPECT_TRUE(Compile(other.graph, weights, {}).ok());
}

TEST(State, IsNoOtherValue) {
  Layer layer = MakeLayer();
  EXPECT_NE(layer.graph.Add("neg", {layer.state}).status().message().find("got a state"), std::string::npos);
  const auto read = layer.graph.Add("kv_write", {layer.q, layer.k, layer.v, layer.slots});
  EXPECT_NE(read.status().message().find("expected a state as operand 'state'"), std::string::npos);
  layer.graph.SetOutputs({layer.state});
  WeightStore weights;
  EXPECT_NE(Compile(layer.graph, weights, {}).status().message().find("as outputs, got a state"), std::string::npos);
}

TEST(State, HasNoGaps) {
  const Layer layer = MakeWhole();
  WeightStore weights;
  const std::unique_ptr<Session> session = Must(Compile(layer.graph, weights, {}));
  std::vector<float> memory(1 << 14);
  std::vector<View> in;
  for (const PortType& port : session->plan().inputs) in.push_back(MakeView(memory.data(), port.dtype, port.shape));
  in[0].strides[0] *= 2;
  std::vector<float> out(kTokens * 2 * 16);
  const std::vector<View> to = {MakeView(out.data(), DType::kF32, {kTokens, 2, 16})};
  EXPECT_NE(session->Run(in, to).message().find("expected a row-major tensor, since runs write to it"),
            std::string::npos);
}

// A state in blocks is one by its text and its digest, and no operator takes it for floats.
TEST(State, InBlocks) {
  const auto text = [](const std::string& blocks, const std::string& size) {
    return "graph 1\nstate %0 \"kv\" : f32[4, 1, 2, 16, " + size + "]" + blocks + "\ninput %1 \"k\" : f32[3, 1, " +
           size + "]\ninput %2 \"slots\" : i32[3]\ninput %3 \"q\" : f32[3, 2, " + size +
           "]\ninput %4 \"starts\" : i32[2]\ninput %5 \"lengths\" : i32[1]\ninput %6 \"tables\" : i32[1, 2]\n"
           "%7 = kv_write(%0, %1, %1, %2)\n%8 = paged_attention(%7, %3, %4, %5, %6) {scale = 0.25}\nreturn %8\n";
  };
  const Graph plain = Must(ParseGraph(text("", "32"))), packed = Must(ParseGraph(text(" as q8_0", "32")));
  EXPECT_NE(PrintGraph(packed).find("\nstate %0 \"kv\" : f32[4, 1, 2, 16, 32] as q8_0\n"), std::string::npos);
  EXPECT_EQ(PrintGraph(Must(ParseGraph(PrintGraph(packed)))), PrintGraph(packed));
  EXPECT_NE(HashGraph(plain), HashGraph(packed));
  EXPECT_EQ(HashGraph(packed), HashGraph(Must(passes::DeadCode(packed, {}))));
  EXPECT_NE(ParseGraph(text(" as q8_0", "16")).status().message().find("head size of a multiple of 32"),
            std::string::npos);
  EXPECT_NE(ParseGraph(text(" as q6_k", "32")).status().message().find("q8_0 or q4_0"), std::string::npos);
  EXPECT_FALSE(ParseGraph(text(" as f16", "32")).ok());
}

}  // namespace
}  // namespace thresher
