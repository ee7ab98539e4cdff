// Random graphs before and after passes. The operators are those that rules look at, drawn so that patterns arise
// often.
#include <random>

#include "passes/pass_testing.h"

namespace thresher::pass_testing {
namespace {

class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed) : random_(seed) {}

  Graph Make() {
    for (int i = 0; i < 2; ++i) pool_.push_back(graph_.AddInput("x" + std::to_string(i), DType::kF32, {2, 3, 4}));
    pool_.push_back(graph_.AddInput("row", DType::kF32, {4}));
    for (int i = 0; i < 14; ++i) Step();
    std::vector<ValueId> outputs = {pool_.back()};
    for (int i = 0; i < 2; ++i) outputs.push_back(Any());
    graph_.SetOutputs(std::move(outputs));
    return std::move(graph_);
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  // Mostly recent values, so that chains grow.
  ValueId Any() { return pool_[pool_.size() - 1 - std::min(Below(pool_.size()), Below(pool_.size()))]; }
  const Dims& Shape(ValueId id) const { return graph_.value(id).shape; }

  void Try(const std::string& op, std::vector<ValueId> inputs, Attrs attrs = {}) {
    const Result<ValueId> value = graph_.Add1(op, std::move(inputs), std::move(attrs), op);
    if (value.ok() && NumElements(Shape(value.value())) <= 512) pool_.push_back(value.value());
  }

  ValueId Constant(Dims shape, bool weight) {
    const std::string name = "c" + std::to_string(random_());
    auto bytes = std::make_shared<std::vector<std::byte>>(RandomBytes(name, DType::kF32, shape, 3));
    thresher::Constant constant;
    constant.data = bytes->data();
    constant.owner = bytes;
    constant.is_weight = weight;
    return graph_.AddConstant(name, DType::kF32, std::move(shape), std::move(constant));
  }

  ValueId Scalar() {
    static constexpr float kScalars[] = {1.0f, 0.0f, -0.0f, 0.5f};
    return graph_.AddOwnedConstant("s", DType::kF32, {}, &kScalars[Below(4)]);
  }

  // The same elements in another shape: neighbours merged, one cut, or a 1 put in.
  Dims OtherShape(Dims shape) {
    const size_t at = Below(shape.size() + 1);
    if (at + 1 < shape.size() && Below(2) == 0) {
      shape[at] *= shape[at + 1];
      shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    } else if (at < shape.size() && shape[at] % 2 == 0 && Below(2) == 0) {
      shape[at] /= 2;
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(at), 2);
    } else if (shape.size() < 5) {
      shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(at), 1);
    }
    return shape;
  }

  void Step() {
    static const std::vector<std::string> kUnary = {"gelu", "relu", "tanh", "sigmoid", "silu", "neg"};
    static const std::vector<std::string> kBinary = {"add", "sub", "mul", "add", "maximum"};
    const ValueId x = Any();
    const Dims shape = Shape(x);
    const size_t rank = shape.size();
    switch (Below(15)) {
      case 0:
        Try(kUnary[Below(kUnary.size())], {x});
        break;
      case 1:
        Try(kBinary[Below(kBinary.size())], {x, Any()});
        break;
      case 2:
        Try(kBinary[Below(kBinary.size())], {x, Scalar()});
        break;
      case 3:
        if (rank > 0) Try("add", {x, Constant({shape.back()}, true)});
        break;
      case 4:
      case 5:
        Try("reshape", {x}, {{"shape", OtherShape(shape)}});
        break;
      case 6:
      case 7: {
        Dims dims;
        for (size_t i = 0; i < rank; ++i) dims.push_back(static_cast<int64_t>(i));
        std::shuffle(dims.begin(), dims.end(), random_);
        Try("permute", {x}, {{"dims", dims}});
        break;
      }
      case 8: {
        if (rank == 0) break;
        ValueId y = graph_.Add1("linear", {x, Constant({4, shape.back()}, true)}).value();
        if (Below(3) == 0) y = graph_.Add1("reshape", {y}, {{"shape", OtherShape(Shape(y))}}).value();
        if (Below(2) == 0) y = graph_.Add1("add", {y, Constant({Shape(y).back()}, true)}).value();
        Try(kUnary[Below(kUnary.size())], {y});
        break;
      }
      case 9:
        if (rank > 1) Try("matmul", {x, Constant({shape.back(), 4}, true)});
        break;
      case 10:
        if (rank > 0) Try(Below(2) ? "softmax" : "layer_norm", {x});
        break;
      case 13: {
        if (rank == 0) break;
        // Norms of sums, which others may read too, written out in part.
        const ValueId sum = graph_.Add1("add", {x, Below(2) ? x : graph_.Add1("neg", {x}).value()}).value();
        if (Below(2)) pool_.push_back(sum);
        if (Below(2)) {
          Try("layer_norm", {sum, Constant({shape.back()}, true)});
          break;
        }
        const ValueId squares = graph_.Add1("mul", {sum, sum}).value();
        const ValueId mean = graph_.Add1("mean", {squares}, {{"dims", Dims{-1}}, {"keepdim", true}}).value();
        const float eps = 0.01f;
        const ValueId shifted =
            graph_.Add1("add", {mean, graph_.AddOwnedConstant("eps", DType::kF32, {}, &eps)}).value();
        const ValueId scaled = graph_.Add1("mul", {sum, graph_.Add1("rsqrt", {shifted}).value()}).value();
        Try("mul", {scaled, Constant({shape.back()}, true)});
        break;
      }
      case 12: {
        // Projections of one operand.
        if (rank == 0) break;
        std::vector<ValueId> parts;
        for (int i = 0; i < 3; ++i) {
          const ValueId w = Constant({shape.back() % 2 == 0 ? shape.back() : 3, shape.back()}, true);
          std::vector<ValueId> inputs = {x, w};
          if (Below(2)) inputs.push_back(Constant({Shape(w)[0]}, true));
          parts.push_back(graph_.Add1("linear", std::move(inputs)).value());
        }
        if (Below(4) == 0) pool_.push_back(parts[0]);
        if (Below(2)) parts[1] = graph_.Add1("reshape", {parts[1]}, {{"shape", Shape(parts[0])}}).value();
        Try("mul", {graph_.Add1(Below(2) ? "add" : "sub", {parts[0], parts[1]}).value(), parts[2]});
        break;
      }
      case 11: {
        if (rank == 0) break;
        const auto dim = static_cast<int64_t>(Below(rank));
        const int64_t size = shape[static_cast<size_t>(dim)];
        if (Below(2) == 0) {
          Try("select", {x}, {{"dim", dim}, {"index", size - 1}});
        } else {
          Try("slice", {x}, {{"dim", dim}, {"start", int64_t{Below(2) == 0}}, {"end", size}});
        }
        break;
      }
      default: {
        // Attention over what there is.
        if (rank < 2 || rank > 4) break;
        Dims swap;
        for (size_t i = 0; i < rank; ++i) swap.push_back(static_cast<int64_t>(i));
        std::swap(swap[rank - 1], swap[rank - 2]);
        const ValueId keys = graph_.Add1("permute", {x}, {{"dims", swap}}).value();
        ValueId scores = graph_.Add1("matmul", {x, keys}).value();
        if (Below(2)) scores = graph_.Add1("mul", {scores, Scalar()}).value();
        if (Below(2)) scores = graph_.Add1("add", {scores, Constant({Shape(scores).back()}, false)}).value();
        const ValueId weights = graph_.Add1("softmax", {scores}).value();
        Try("matmul", {weights, x});
        break;
      }
    }
  }

  std::mt19937 random_;
  Graph graph_;
  std::vector<ValueId> pool_;
};

TEST(RandomGraphs, EveryPassKeepsTheResults) {
  for (const Pass& pass : AllPasses()) {
    for (uint32_t seed = 0; seed < 60; ++seed) {
      const Graph before = RandomGraph(seed).Make();
      SCOPED_TRACE(std::string(pass.name) + ", seed " + std::to_string(seed));
      ASSERT_NO_FATAL_FAILURE(ExpectSameResults(before, After(before, {std::string(pass.name)}), 1e-4));
    }
  }
}

TEST(RandomGraphs, ChainsKeepTheBits) {
  int chains = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const Graph before = RandomGraph(seed).Make();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph after = After(before, {"pointwise_fusion"});
    ASSERT_NO_FATAL_FAILURE(ExpectSameResults(before, after, 0));
    chains += Count(after, "pointwise");
  }
  EXPECT_GT(chains, 50);
}

TEST(RandomGraphs, LevelsKeepTheResults) {
  int fused = 0, recognized = 0, merged = 0, norms = 0, chains = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const Graph before = RandomGraph(seed).Make();
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph after = After(before, PassesForLevel(Level::kO2));
    ASSERT_NO_FATAL_FAILURE(ExpectSameResults(before, after, 1e-4));
    EXPECT_LE(after.nodes().size(), before.nodes().size() + 2);
    recognized += Count(after, "sdpa");
    merged += Count(after, "linears");
    norms += Count(after, "rms_norm");
    chains += Count(after, "pointwise");
    for (const Node& node : after.nodes()) {
      fused += node.op->name == "linear" && (node.inputs[2] != kNoValue || node.inputs[3] != kNoValue);
    }
    const std::string text = PrintGraph(after);
    const Result<Graph> back = ParseGraph(text, RandomConstant);
    if (back.ok()) {
      EXPECT_EQ(PrintGraph(back.value()), text);
    }
  }
  // Else the graphs do not test what they are for.
  EXPECT_GT(fused, 50);
  EXPECT_GT(recognized, 50);
  EXPECT_GT(merged, 50);
  EXPECT_GT(norms, 50);
  EXPECT_GT(chains, 50);
}

}  // namespace
}  // namespace thresher::pass_testing
