// Operator rows: shapes, messages, and that each lowers to steps that compute the right thing.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "run/test_graphs.h"
#include "thresher/graph/operator.h"
#include "thresher/graph/parser.h"
#include "thresher/kernels/pointwise.h"
#include "thresher/plan/builder.h"
#include "thresher/plan/weight_store.h"

namespace thresher {
namespace {

using Ints = std::vector<int64_t>;

std::string ErrorOf(Graph& g, const std::string& op, std::vector<ValueId> inputs, Attrs attrs = {}) {
  const auto result = g.Add(op, std::move(inputs), std::move(attrs));
  return result.ok() ? "" : result.status().message();
}

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

ValueId Filled(Graph& g, Ints shape, const std::string& dtype = "f32") {
  return Must(g.Add1("full", {}, {{"shape", std::move(shape)}, {"value", 1.0}, {"dtype", dtype}}));
}

std::vector<float> Iota(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i);
  return values;
}

std::vector<float> Row(const std::vector<float>& matrix, int64_t row, int64_t columns) {
  return {matrix.begin() + row * columns, matrix.begin() + (row + 1) * columns};
}

TEST(Ops, EveryRowIsWhole) {
  EXPECT_GE(AllOps().size(), 60u);
  for (const OpDef* op : AllOps()) {
    EXPECT_FALSE(op->doc.empty()) << op->name;
    EXPECT_NE(op->infer, nullptr) << op->name;
    EXPECT_NE(op->lower, nullptr) << op->name;
    EXPECT_EQ(FindOp(op->name), op);
    // Only windows, whose copies state their own cost, have no model.
    if (op->section == Section::kForward) {
      EXPECT_NE(op->cost, nullptr) << op->name;
    }
  }
  EXPECT_EQ(FindOp("no such operator"), nullptr);
}

// Passes ask traits: an element-wise kernel without them would be left out of chains.
TEST(Ops, TraitsFollowFromWhatAnOperatorDoes) {
  for (const kernels::UnaryOp op : kernels::AllUnaryOps()) {
    EXPECT_TRUE(HasTrait(Name(op), Trait::kUnary) && HasTrait(Name(op), Trait::kFuses)) << Name(op);
  }
  for (const kernels::BinaryOp op : kernels::AllBinaryOps()) {
    EXPECT_TRUE(HasTrait(Name(op), Trait::kBinary) && HasTrait(Name(op), Trait::kFuses)) << Name(op);
  }
  std::vector<std::string> views, products;
  for (const OpDef* op : AllOps()) {
    if (op->Has(Trait::kView)) views.emplace_back(op->name);
    if (op->Has(Trait::kProduct)) products.emplace_back(op->name);
    EXPECT_FALSE(op->Has(Trait::kUnary) && op->operands.size() != 1) << op->name;
  }
  EXPECT_EQ(views, (std::vector<std::string>{"expand", "permute", "reshape", "select", "slice"}));
  EXPECT_EQ(products, (std::vector<std::string>{"convolution", "grouped_linear", "linear", "linears", "matmul",
                                                "paged_attention", "sdpa"}));
  EXPECT_TRUE(HasTrait("where", Trait::kFuses) && HasTrait("cast", Trait::kUnary));
  EXPECT_FALSE(HasTrait("cast", Trait::kFuses) || HasTrait("no such operator", Trait::kView));
}

// What rows say of copies is what lowering does: each reads a window of a matrix, and then the matrix.
TEST(Ops, RowsThatLieApartAreCopiedByThoseThatSaySo) {
  const auto copies = [](const std::string& x, const std::string& node) {
    const Result<Graph> graph =
        ParseGraph("graph 1\ninput %w : f32[5, 12]\n" + x + "%x2 = permute(%x) {dims = [1, 0]}\n" + node +
                   "\n%z = neg(%y)\nreturn %z\n");
    EXPECT_TRUE(graph.ok()) << graph.status().message();
    WeightStore weights;
    const auto plan = BuildPlan(graph.value(), weights, PlanOptions{});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    const std::vector<Step>& steps = plan.value()->steps;
    const bool copied = std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.name == "copy"; });
    const Node& last = graph.value().nodes()[graph.value().nodes().size() - 2];
    const NodeTypes types(graph.value(), last);
    const bool says =
        last.op->copies_rows != nullptr && last.op->copies_rows({types.inputs, last.attrs}, types.outputs);
    return std::pair(copied, says);
  };
  size_t copied = 0;
  for (const std::string node : {"%y = neg(%x)",
                                 "%y = add(%x, %x)",
                                 "%y = softmax(%x)",
                                 "%y = log_softmax(%x) {dim = 0}",
                                 "%y = layer_norm(%x)",
                                 "%y = layer_norm(%x) {dims = 2}",
                                 "%y = rms_norm(%x)",
                                 "%y = rms_norm(%x) {dims = 2}",
                                 "%y = linear(%x, %w)",
                                 "%y = matmul(%x, %x2)",
                                 "%y = sum(%x) {dims = [1]}",
                                 "%y = cumsum(%x) {dim = 1}",
                                 "%y, %i = sort(%x) {dim = 1}",
                                 "%y = cat(%x, %x) {dim = 0}",
                                 "%y = reshape(%x) {shape = [72]}",
                                 "%y = reshape(%x) {shape = [2, 3, 12]}",
                                 "%y = reshape(%x) {shape = [6, 3, 4]}",
                                 "%y = reshape(%x) {shape = [2, 3, 3, 4]}",
                                 "%y = reshape(%x) {shape = [9, 8]}",
                                 "%y = permute(%x) {dims = [1, 0]}",
                                 "%y = expand(%x) {shape = [2, 6, 12]}",
                                 "%y = slice(%x) {dim = 0, start = 1, end = 3}",
                                 "%y = select(%x) {dim = 0, index = 1}"}) {
    SCOPED_TRACE(node);
    const auto [of_window, says] =
        copies("input %m : f32[6, 24]\n%x = slice(%m) {dim = 1, start = 12, end = 24}\n", node);
    EXPECT_EQ(of_window, says);
    EXPECT_FALSE(copies("input %m : f32[6, 12]\n%x = reshape(%m) {shape = [6, 12]}\n", node).first);
    copied += of_window ? 1 : 0;
  }
  EXPECT_EQ(copied, 6u);
}

TEST(Ops, WrongOperandsOfProductsAreExplained) {
  Graph g;
  const ValueId x = Filled(g, {2, 3});
  const ValueId w = Filled(g, {5, 3});
  const ValueId v = Filled(g, {4});
  ExpectContains(ErrorOf(g, "linear", {x, w, v}), "expected bias [5], got [4]");
  ExpectContains(ErrorOf(g, "linear", {x, w, kNoValue, v}), "expected residual of the output's shape [2, 5], got [4]");
  ExpectContains(ErrorOf(g, "linear", {x, w}, {{"layout", std::string("km")}}), "or \"kn\", got \"km\"");
  ExpectContains(ErrorOf(g, "linear", {x, w}, {{"activation", std::string("mish")}}), "activation \"mish\"");
  ExpectContains(ErrorOf(g, "linear", {x, w}, {{"precision", std::string("fp8")}}), "precision \"fp8\"");
  ExpectContains(ErrorOf(g, "linears", {x, w, w, Filled(g, {5}), v}, {{"weights", int64_t{2}}}),
                 "expected bias [5], got [4]");
  ExpectContains(ErrorOf(g, "matmul", {x, w}), "b [..., K, N], got [2, 3] and [5, 3]");
  const ValueId ends = Filled(g, {2}, "i32");
  ExpectContains(ErrorOf(g, "grouped_linear", {x, ends, w}), "expected ends i32 or i64 [1], one a weight, got i32[2]");
  ExpectContains(ErrorOf(g, "grouped_linear", {x, ends, w, Filled(g, {5, 4})}), "one shape [N, K] for x [2, 3], got");
  ExpectContains(ErrorOf(g, "grouped_linear", {x, ends}), "at least one weight, got x [2, 3] and 0 weights");
}

TEST(Ops, WrongOperandsOfAttentionAreExplained) {
  Graph g;
  const Attrs scale = {{"scale", 0.5}};
  const auto with = [&](ValueId q, ValueId k, ValueId v, ValueId mask) {
    return ErrorOf(g, "sdpa", {q, k, v, mask}, scale);
  };
  const ValueId q = Filled(g, {1, 4, 6, 8});
  ExpectContains(with(q, Filled(g, {4, 6, 8}), q, kNoValue), "expected k [batch, heads, sequence, head size]");
  ExpectContains(with(q, Filled(g, {1, 3, 6, 8}), Filled(g, {1, 3, 6, 8}), kNoValue), "Hq a multiple of Hkv");
  ExpectContains(with(q, q, q, Filled(g, {6}, "i64")), "expected a mask of a float type or bool, got i64[6]");
  ExpectContains(with(q, q, q, Filled(g, {5})), "broadcasts to the scores [1, 4, 6, 6], got [5]");
  ExpectContains(with(q, q, q, Filled(g, {2, 1, 6, 6})), "broadcasts to the scores [1, 4, 6, 6], got [2, 1, 6, 6]");
  ExpectContains(ErrorOf(g, "sdpa", {q, q, q}, {{"scale", 0.5}, {"precision", std::string("int8")}}),
                 "expected precision fp32, bf16 or fp16, got \"int8\"");
}

TEST(Ops, WrongOperandsOfOtherOperatorsAreExplained) {
  Graph g;
  const ValueId x = Filled(g, {2, 3});
  const ValueId i = Filled(g, {2}, "i64");
  const ValueId b = Filled(g, {2}, "bool");
  ExpectContains(ErrorOf(g, "embedding", {x, x}), "expected indices of i64 or i32, got f32[2, 3]");
  ExpectContains(ErrorOf(g, "gather", {x, i}, {{"dim", int64_t{0}}}), "expected indices of x's rank");
  ExpectContains(ErrorOf(g, "gather", {x, Filled(g, {1, 4}, "i64")}, {{"dim", int64_t{0}}}), "indices [1, 4]");
  ExpectContains(ErrorOf(g, "index", {x}), "expected 1 to 2 index tensors for x [2, 3], got 0");
  ExpectContains(ErrorOf(g, "index", {x, i, i, i}), "got 3");
  ExpectContains(ErrorOf(g, "layer_norm", {x}, {{"dims", int64_t{3}}}), "expected dims in [1, 2], got 3");
  ExpectContains(ErrorOf(g, "where", {b, i, Filled(g, {2})}), "got i64[2] and f32[2]; insert a cast");
  ExpectContains(ErrorOf(g, "mean", {i}), "type i64 is not supported; cast first");
  ExpectContains(ErrorOf(g, "cumsum", {b}, {{"dim", int64_t{0}}}), "type bool is not supported; cast first");
  ExpectContains(ErrorOf(g, "cat", {x, Filled(g, {2})}), "got f32[2, 3] and f32[2]");
  ExpectContains(ErrorOf(g, "cat", {x, Filled(g, {2, 3}, "i64")}), "got f32[2, 3] and i64[2, 3]");
  ExpectContains(ErrorOf(g, "full", {}, {{"shape", Ints(9, 1)}}), "expected at most 8 dimensions");
}

TEST(Ops, WrongCallsAreExplained) {
  Graph g;
  const ValueId x = AddF32(g, "x", {2, 3}, Iota(6));
  const ValueId y = AddF32(g, "y", {4}, Iota(4));
  ExpectContains(ErrorOf(g, "frobnicate", {x}), "'frobnicate' is not one of this engine's");
  ExpectContains(ErrorOf(g, "add", {x}), "operand 'b' is required, got none");
  ExpectContains(ErrorOf(g, "add", {x, x, x}), "got 3");
  ExpectContains(ErrorOf(g, "add", {x, 99}), "names value 99");
  ExpectContains(ErrorOf(g, "add", {x, y}), "got [2, 3] and [4]");
  ExpectContains(ErrorOf(g, "linear", {x, y}), "got x [2, 3] and weight [4]");
  ExpectContains(ErrorOf(g, "permute", {x}), "expected attribute 'dims'");
  ExpectContains(ErrorOf(g, "permute", {x}, {{"dims", Ints{0, 0}}}), "each dimension of x [2, 3] once");
  ExpectContains(ErrorOf(g, "permute", {x}, {{"dims", int64_t{1}}}),
                 "expected attribute 'dims' as list of ints, got int");
  ExpectContains(ErrorOf(g, "softmax", {x}, {{"dimm", int64_t{1}}}), "unknown attribute 'dimm'; known are dim");
  ExpectContains(ErrorOf(g, "softmax", {x}, {{"dim", int64_t{2}}}), "in [-2, 2), got 2");
  ExpectContains(ErrorOf(g, "reshape", {x}, {{"shape", Ints{4, -1}}}), "6 elements");
  ExpectContains(ErrorOf(g, "reshape", {x}, {{"shape", Ints{-1, -1}}}), "got [-1, -1]");
  ExpectContains(ErrorOf(g, "reshape", {x}, {{"shape", Ints{int64_t{1} << 62, 4}}}), "6 elements");
  ExpectContains(ErrorOf(g, "full", {}, {{"shape", Ints{int64_t{1} << 40, int64_t{1} << 40}}}), "at most");
  ExpectContains(ErrorOf(g, "arange", {}, {{"end", 5.0}, {"step", 0.0}}), "step 0");
  ExpectContains(ErrorOf(g, "amax", {AddF32(g, "e", {0}, {})}), "size 0");
  ExpectContains(ErrorOf(g, "select", {x}, {{"dim", int64_t{0}}, {"index", int64_t{2}}}), "outside dimension 0");
}

TEST(Ops, LinearWithBothLayoutsAndEpilogue) {
  const std::vector<float> x = RandomFloats(3 * 5 * 7, 1), w = RandomFloats(11 * 7, 2), b = RandomFloats(11, 3),
                           r = RandomFloats(3 * 5 * 11, 4);
  std::vector<float> wt(7 * 11), wanted(3 * 5 * 11);
  for (size_t n = 0; n < 11; ++n) {
    for (size_t k = 0; k < 7; ++k) wt[k * 11 + n] = w[n * 7 + k];
  }
  for (size_t m = 0; m < 15; ++m) {
    for (size_t n = 0; n < 11; ++n) {
      double sum = b[n];
      for (size_t k = 0; k < 7; ++k) sum += static_cast<double>(x[m * 7 + k]) * w[n * 7 + k];
      wanted[m * 11 + n] = static_cast<float>(std::max(sum, 0.0)) + r[m * 11 + n];
    }
  }
  for (const std::string layout : {"nk", "kn"}) {
    for (const bool constant : {true, false}) {
      Graph g;
      const Dims shape = layout == "nk" ? Dims{11, 7} : Dims{7, 11};
      std::vector<float> weight = layout == "nk" ? w : wt;
      const ValueId xs = AddF32(g, "x", {3, 5, 7}, x);
      const ValueId ws = constant ? AddF32(g, "w", shape, weight) : g.AddInput("w", DType::kF32, shape);
      g.SetOutputs({Must(g.Add1("linear", {xs, ws, AddF32(g, "b", {11}, b), AddF32(g, "r", {3, 5, 11}, r)},
                                {{"layout", layout}, {"activation", std::string("relu")}}))});
      std::vector<View> inputs;
      if (!constant) inputs.push_back(MakeView(weight.data(), DType::kF32, shape));
      ExpectNear(Elements<float>(Must(Evaluate(g, inputs))[0]), wanted, 1e-5);
    }
  }
}

TEST(Ops, LinearReadsATransposedAndAnExpandedX) {
  Graph g;
  const std::vector<float> x = RandomFloats(7 * 5, 1), w = RandomFloats(3 * 7, 2);
  const ValueId w_id = AddF32(g, "w", {3, 7}, w);
  const ValueId t = Must(g.Add1("permute", {AddF32(g, "x", {7, 5}, x)}, {{"dims", Ints{1, 0}}}));
  const ValueId row = Must(g.Add1("expand", {AddF32(g, "row", {7}, Iota(7))}, {{"shape", Ints{2, 4, 7}}}));
  g.SetOutputs({Must(g.Add1("linear", {t, w_id})), Must(g.Add1("linear", {row, w_id}))});
  const std::vector<OwnedTensor> out = Must(Evaluate(g));
  std::vector<float> wanted(5 * 3), wanted_row(8 * 3);
  for (size_t n = 0; n < 3; ++n) {
    for (size_t m = 0; m < 5; ++m) {
      for (size_t k = 0; k < 7; ++k) wanted[m * 3 + n] += x[k * 5 + m] * w[n * 7 + k];
    }
    for (size_t m = 0; m < 8; ++m) {
      for (size_t k = 0; k < 7; ++k) wanted_row[m * 3 + n] += static_cast<float>(k) * w[n * 7 + k];
    }
  }
  ExpectNear(Elements<float>(out[0]), wanted, 1e-5);
  ExpectNear(Elements<float>(out[1]), wanted_row, 1e-4);
}

TEST(Ops, MatmulBroadcastsLeadingDimensions) {
  struct Case {
    Dims a, b;
  };
  for (const Case& c : {Case{{4, 5}, {5, 6}},
                        {{2, 4, 5}, {5, 6}},
                        {{2, 4, 5}, {2, 5, 6}},
                        {{4, 5}, {3, 5, 6}},
                        {{2, 1, 4, 5}, {3, 5, 6}},
                        {{2, 3, 4, 5}, {2, 1, 5, 6}},
                        {{2, 3, 1, 5}, {2, 3, 5, 1}}}) {
    const std::vector<float> a = RandomFloats(NumElements(c.a), 1), b = RandomFloats(NumElements(c.b), 2);
    Graph g;
    const ValueId x = AddF32(g, "a", c.a, a);
    const ValueId y = g.AddInput("b", DType::kF32, c.b);
    const ValueId out = Must(g.Add1("matmul", {x, y}));
    g.SetOutputs({out});
    const Dims shape = g.value(out).shape;
    const int64_t m = shape[shape.size() - 2], n = shape.back(), k = c.a.back();
    std::vector<float> wanted;
    const auto index = [&](const Dims& s, int64_t batch, int64_t matrix) {  // where the batch's matrix starts
      int64_t at = 0, step = 1;
      for (size_t i = 0; i + 2 < shape.size(); ++i) {
        const size_t from_end = 2 + i;
        const int64_t extent = shape[shape.size() - 1 - from_end];
        const int64_t own = from_end < s.size() ? s[s.size() - 1 - from_end] : 1;
        at += (batch % extent) % own * step;
        step *= own;
        batch /= extent;
      }
      return at * matrix;
    };
    for (int64_t batch = 0; batch < NumElements(shape) / (m * n); ++batch) {
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) {
            sum += static_cast<double>(a[static_cast<size_t>(index(c.a, batch, m * k) + i * k + l)]) *
                   b[static_cast<size_t>(index(c.b, batch, k * n) + l * n + j)];
          }
          wanted.push_back(static_cast<float>(sum));
        }
      }
    }
    std::vector<float> storage = b;
    const auto found = Must(Evaluate(g, {MakeView(storage.data(), DType::kF32, c.b)}));
    ExpectNear(Elements<float>(found[0]), wanted, 1e-5);
  }
}

TEST(Ops, ReshapeOfWindows) {
  struct Case {
    Ints permute;
    Ints shape;
  };
  // x is [2, 3, 4] before the permutation; some of these need a copy, others do not.
  for (const Case& c : {Case{{0, 1, 2}, {6, 4}},
                        {{0, 1, 2}, {24}},
                        {{1, 0, 2}, {3, 8}},
                        {{1, 0, 2}, {6, 4}},
                        {{2, 0, 1}, {4, 6}},
                        {{2, 1, 0}, {24}},
                        {{0, 2, 1}, {2, 1, 2, 2, 3}},
                        {{1, 2, 0}, {3, 2, 2, 2}}}) {
    Graph g;
    const ValueId x = AddF32(g, "x", {2, 3, 4}, Iota(24));
    const ValueId p = Must(g.Add1("permute", {x}, {{"dims", c.permute}}));
    g.SetOutputs({Must(g.Add1("reshape", {p}, {{"shape", c.shape}})), p});
    const auto out = Must(Evaluate(g));
    EXPECT_EQ(Elements<float>(out[0]), Elements<float>(out[1]));
    EXPECT_EQ(out[0].shape, c.shape);
  }
  Graph g;
  const ValueId row = Must(g.Add1("expand", {AddF32(g, "x", {1, 3}, Iota(3))}, {{"shape", Ints{2, 3}}}));
  g.SetOutputs({Must(g.Add1("reshape", {row}, {{"shape", Ints{6}}})),
                Must(g.Add1("reshape", {row}, {{"shape", Ints{2, 3, 1}}}))});
  const auto out = Must(Evaluate(g));
  EXPECT_EQ(Elements<float>(out[0]), (std::vector<float>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(Elements<float>(out[1]), (std::vector<float>{0, 1, 2, 0, 1, 2}));
}

TEST(Ops, ScalarsAndEmptyTensors) {
  Graph g;
  const float two = 2;
  const ValueId s = g.AddOwnedConstant("s", DType::kF32, {}, &two);
  const ValueId e = AddF32(g, "e", {0, 3}, {});
  const ValueId w = AddF32(g, "w", {5, 3}, Iota(15));
  const ValueId k0 = AddF32(g, "k0", {2, 0}, {});
  const ValueId w0 = AddF32(g, "w0", {4, 0}, {});
  g.SetOutputs({Must(g.Add1("mul", {s, s})), Must(g.Add1("add", {e, s})), Must(g.Add1("linear", {e, w})),
                Must(g.Add1("reshape", {s}, {{"shape", Ints{1, 1}}})), Must(g.Add1("sum", {e}, {{"dims", Ints{0}}})),
                Must(g.Add1("linear", {k0, w0, AddF32(g, "b", {4}, Iota(4))})),
                Must(g.Add1("cat", {e, AddF32(g, "f", {1, 3}, Iota(3))}, {{"dim", int64_t{0}}})),
                Must(g.Add1("reshape", {e}, {{"shape", Ints{3, 0}}}))});
  const auto out = Must(Evaluate(g));
  EXPECT_EQ(out[7].shape, (Dims{3, 0}));
  EXPECT_EQ(Elements<float>(out[0]), (std::vector<float>{4}));
  EXPECT_EQ(out[1].shape, (Dims{0, 3}));
  EXPECT_EQ(out[2].shape, (Dims{0, 5}));
  EXPECT_EQ(Elements<float>(out[3]), (std::vector<float>{2}));
  EXPECT_EQ(Elements<float>(out[4]), (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(Elements<float>(out[5]), (std::vector<float>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(Elements<float>(out[6]), (std::vector<float>{0, 1, 2}));
}

TEST(Ops, SliceSelectCat) {
  Graph g;
  const ValueId x = AddF32(g, "x", {3, 4}, Iota(12));
  const ValueId a = Must(
      g.Add1("slice", {x}, {{"dim", int64_t{1}}, {"start", int64_t{-3}}, {"end", int64_t{100}}, {"step", int64_t{2}}}));
  const ValueId b = Must(g.Add1("select", {x}, {{"dim", int64_t{0}}, {"index", int64_t{-1}}}));
  const ValueId c = Must(g.Add1("cat", {a, a, x}, {{"dim", int64_t{-1}}}));
  g.SetOutputs({a, b, c});
  const auto out = Must(Evaluate(g));
  EXPECT_EQ(Elements<float>(out[0]), (std::vector<float>{1, 3, 5, 7, 9, 11}));
  EXPECT_EQ(Elements<float>(out[1]), (std::vector<float>{8, 9, 10, 11}));
  EXPECT_EQ(out[2].shape, (Dims{3, 8}));
  EXPECT_EQ(Elements<float>(out[2])[0], 1);
  EXPECT_EQ(Elements<float>(out[2])[2], 1);
  EXPECT_EQ(Elements<float>(out[2])[4], 0);
}

TEST(Ops, IntegersAndMasks) {
  Graph g;
  const ValueId i = Must(g.Add1("arange", {}, {{"end", 6.0}, {"dtype", std::string("i64")}}));
  const ValueId three = Must(g.Add1("full", {}, {{"shape", Ints{}}, {"value", 3.0}, {"dtype", std::string("i64")}}));
  const ValueId big = Must(
      g.Add1("full", {}, {{"shape", Ints{1}}, {"value_int", (int64_t{1} << 62) + 1}, {"dtype", std::string("i64")}}));
  const ValueId m = Must(g.Add1("ge", {i, three}));
  const ValueId f = Must(g.Add1("cast", {i}, {{"dtype", std::string("f32")}}));
  const ValueId z = Must(g.Add1("full", {}, {{"shape", Ints{1}}, {"value", -1.0}}));
  const ValueId w = Must(g.Add1("where", {m, f, z}));
  const ValueId e = Must(g.Add1("embedding", {AddF32(g, "t", {6, 2}, Iota(12)), i}));
  const ValueId x = Must(g.Add1("index", {AddF32(g, "x", {6, 2}, Iota(12)), three}));
  const ValueId odd =
      Must(g.Add1("arange", {}, {{"start", 1.0}, {"end", 6.0}, {"step", int64_t{2}}, {"dtype", std::string("i32")}}));
  g.SetOutputs({w, m, e, x, big, odd});
  const auto out = Must(Evaluate(g));
  EXPECT_EQ(Elements<int32_t>(out[5]), (std::vector<int32_t>{1, 3, 5}));
  EXPECT_EQ(Elements<float>(out[0]), (std::vector<float>{-1, -1, -1, 3, 4, 5}));
  EXPECT_EQ(Elements<uint8_t>(out[1]), (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(Elements<float>(out[2]), Iota(12));
  EXPECT_EQ(Elements<float>(out[3]), (std::vector<float>{6, 7}));
  EXPECT_EQ(Elements<int64_t>(out[4]), (std::vector<int64_t>{(int64_t{1} << 62) + 1}));
}

TEST(Ops, SortArgmaxIndexPut) {
  Graph g;
  const ValueId x = AddF32(g, "x", {2, 3}, {3, 1, 2, -1, 5, 5});
  const auto sorted = Must(g.Add("sort", {x}, {{"descending", true}, {"k", int64_t{2}}}));
  const ValueId most = Must(g.Add1("argmax", {x}, {{"dim", int64_t{0}}}));
  const ValueId least = Must(g.Add1("argmin", {x}));
  const ValueId row = Must(g.Add1("full", {}, {{"shape", Ints{1}}, {"value", 1.0}, {"dtype", std::string("i64")}}));
  const ValueId put = Must(g.Add1("index_put", {x, Filled(g, {}), row}, {{"accumulate", true}}));
  g.SetOutputs({sorted[0], sorted[1], most, least, put});
  const auto out = Must(Evaluate(g));
  EXPECT_EQ(Elements<float>(out[0]), (std::vector<float>{3, 2, 5, 5}));
  EXPECT_EQ(Elements<int64_t>(out[1]), (std::vector<int64_t>{0, 2, 1, 2}));
  EXPECT_EQ(Elements<int64_t>(out[2]), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(Elements<int64_t>(out[3]), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(Elements<float>(out[4]), (std::vector<float>{3, 1, 2, 0, 6, 6}));
  ExpectContains(ErrorOf(g, "sort", {x}, {{"k", int64_t{4}}}), "expected k in [0, 3], got 4");
  ExpectContains(ErrorOf(g, "sort", {x}, {{"dim", int64_t{2}}}), "expected dim in [-2, 2), got 2");
  ExpectContains(ErrorOf(g, "argmax", {Filled(g, {0, 3})}, {{"dim", int64_t{0}}}), "cannot reduce over dimension 0");
  ExpectContains(ErrorOf(g, "index_put", {x, Filled(g, {2}), row}),
                 "expected shapes that broadcast together, got [1, 3] and [2]");
  ExpectContains(ErrorOf(g, "index_put", {x, x, Filled(g, {1})}), "expected indices of i64 or i32");
}

TEST(Ops, GroupedLinearIsOneProductAGroup) {
  const int64_t rows = 23, k = 40, n = 37;
  const std::vector<float> x = RandomFloats(rows * k, 1);
  for (const bool constant : {true, false}) {
    for (const bool nk : {true, false}) {
      Graph g;
      const ValueId v = AddF32(g, "x", {rows, k}, x);
      const Attrs attrs = {{"layout", std::string(nk ? "nk" : "kn")}};
      std::vector<ValueId> grouped = {v, kNoValue}, single;
      std::vector<int64_t> ends = {5, 5, 22};  // the second group is empty, the last row belongs to none
      for (size_t i = 0; i < ends.size(); ++i) {
        ValueId w = AddF32(g, "w", nk ? Ints{n, k} : Ints{k, n}, RandomFloats(n * k, static_cast<unsigned>(2 + i)));
        // What an operator computes is packed when it runs.
        if (!constant) w = Must(g.Add1("neg", {w}));
        grouped.push_back(w);
        single.push_back(Must(g.Add1("linear", {v, w}, attrs)));
      }
      grouped[1] = g.AddOwnedConstant("ends", DType::kI64, {3}, ends.data());
      std::vector<ValueId> outputs = {Must(g.Add1("grouped_linear", grouped, attrs))};
      outputs.insert(outputs.end(), single.begin(), single.end());
      g.SetOutputs(outputs);
      const auto out = Must(Evaluate(g));
      const std::vector<float> got = Elements<float>(out[0]);
      for (int64_t r = 0; r < rows; ++r) {
        const size_t group = r < 5 ? 0 : 2;
        const std::vector<float> want =
            r == 22 ? std::vector<float>(n, 0.0f) : Row(Elements<float>(out[1 + group]), r, n);
        ExpectNear(Row(got, r, n), want, 1e-5);
      }
    }
  }
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{3, 2}, {3, 24}, {-1, 3}}) {
    Graph g;
    const ValueId w = AddF32(g, "w", {n, k}, RandomFloats(n * k, 3));
    g.SetOutputs({Must(g.Add1("grouped_linear", {AddF32(g, "x", {rows, k}, x),
                                                 g.AddOwnedConstant("ends", DType::kI64, {2}, bad.data()), w, w}))});
    const auto out = Evaluate(g);
    ASSERT_FALSE(out.ok());
    ExpectContains(out.status().message(), "expected ends that do not fall, from 0 to 23");
  }
}

TEST(Ops, AttentionAndNormOnWindows) {
  // Heads taken out of one projection, as encoders do: no copy is needed for any of them.
  const int64_t s = 9, h = 3, d = 5;
  const std::vector<float> qkv = RandomFloats(s * 3 * h * d, 1);
  Graph g;
  const ValueId x = AddF32(g, "qkv", {1, s, 3, h, d}, qkv);
  ValueId part[3];
  for (int64_t i = 0; i < 3; ++i) {
    const ValueId one = Must(g.Add1("select", {x}, {{"dim", int64_t{2}}, {"index", i}}));
    part[i] = Must(g.Add1("permute", {one}, {{"dims", Ints{0, 2, 1, 3}}}));
  }
  const ValueId a = Must(g.Add1("sdpa", {part[0], part[1], part[2]}, {{"scale", 0.5}}));
  const ValueId kt = Must(g.Add1("permute", {part[1]}, {{"dims", Ints{0, 1, 3, 2}}}));
  const ValueId half = AddF32(g, "half", {}, {0.5f});
  const ValueId scores = Must(g.Add1("mul", {Must(g.Add1("matmul", {part[0], kt})), half}));
  const ValueId p = Must(g.Add1("softmax", {scores}, {{"dim", int64_t{-1}}}));
  g.SetOutputs({a, Must(g.Add1("matmul", {p, part[2]}))});
  const auto out = Must(Evaluate(g));
  ExpectNear(Elements<float>(out[0]), Elements<float>(out[1]), 1e-5);
}

TEST(Ops, CostsAreCounted) {
  Graph g;
  const ValueId x = g.AddInput("x", DType::kF32, {128, 384});
  const ValueId y = Must(g.Add1("linear", {x, AddF32(g, "w", {1536, 384}, RandomFloats(1536 * 384, 1))}));
  g.SetOutputs({Must(g.Add1("relu", {y}))});
  WeightStore weights;
  const auto plan = Must(BuildPlan(g, weights, {}));
  ASSERT_EQ(plan->steps.size(), 2u);
  EXPECT_EQ(plan->steps[0].flops, 2.0 * 128 * 384 * 1536);
  EXPECT_EQ(plan->steps[0].bytes, 4.0 * (128 * 384 + 384 * 1536 + 128 * 1536));
  EXPECT_EQ(plan->steps[1].flops, 128.0 * 1536);
  EXPECT_GE(weights.bytes(), 4 * 384 * 1536);
}

}  // namespace
}  // namespace thresher
