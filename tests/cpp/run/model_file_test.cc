#include "thresher/run/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <thread>

#include "run/test_graphs.h"
#include "thresher/base/version.h"
#include "thresher/graph/hash.h"
#include "thresher/graph/printer.h"
#include "thresher/plan/weight_store.h"
#include "thresher/run/compile.h"
#include "thresher/run/model_format.h"
#include "thresher/run/session.h"

namespace thresher {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kWidth = 24;

ValueId AddWeight(Graph& graph, const std::string& name, const Dims& shape, uint32_t seed) {
  // Each once, since weights are known by their address.
  static std::map<std::string, std::shared_ptr<std::vector<float>>> made;
  auto& values = made[name];
  if (values == nullptr) values = std::make_shared<std::vector<float>>(RandomFloats(NumElements(shape), seed, 0.2f));
  Constant constant{values->data(), values, true};
  return graph.AddConstant(name, DType::kF32, shape, std::move(constant));
}

// An embedding, a layer that is used twice, a norm; constants of all sorts.
ModelGraph MakeGraph(int64_t rows) {
  Graph g;
  const ValueId ids = g.AddInput("ids", DType::kI64, {rows});
  const ValueId scale = g.AddInput("scale", DType::kF32, {rows, 1});
  const ValueId table = AddWeight(g, "table", {50, kWidth}, 1);
  const ValueId w = AddWeight(g, "fc.weight", {kWidth, kWidth}, 2);
  const ValueId same = AddWeight(g, "tied.weight", {kWidth, kWidth}, 2);
  const ValueId bias = AddF32(g, "bias", {kWidth}, RandomFloats(kWidth, 3));
  const ValueId half = AddF32(g, "half", {}, {0.5f});
  ValueId x = Must(g.Add1("embedding", {table, ids}));
  x = Must(g.Add1("linear", {x, w, bias}, {}, "model.py:7 in forward", "fc"));
  x = Must(g.Add1("relu", {x}));
  x = Must(g.Add1("linear", {x, same}, {}, "model.py:9 in forward", "tied"));
  x = Must(g.Add1("mul", {Must(g.Add1("mul", {x, scale})), half}));
  const ValueId sum = Must(g.Add1("sum", {x}, {{"dims", std::vector<int64_t>{1}}, {"keepdim", false}}));
  g.SetOutputs({x, sum});
  return {std::move(g), {"states", "sum"}};
}

struct Inputs {
  explicit Inputs(int64_t rows) : ids(static_cast<size_t>(rows)), scale(RandomFloats(rows, 7)) {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 13 % 50);
  }
  std::vector<View> views() {
    const auto rows = static_cast<int64_t>(ids.size());
    return {MakeView(ids.data(), DType::kI64, {rows}), MakeView(scale.data(), DType::kF32, {rows, 1})};
  }
  std::vector<int64_t> ids;
  std::vector<float> scale;
};

class ModelFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("model_file_" + std::to_string(getpid()));
    fs::create_directories(folder_);
    path_ = folder_ / "block.thrmodel";
  }
  void TearDown() override { fs::remove_all(folder_); }

  static ModelContents Contents(const std::vector<int64_t>& rows = {5}) {
    ModelContents model;
    model.name = "block";
    for (const int64_t n : rows) model.graphs.push_back(MakeGraph(n));
    return model;
  }

  std::string Written(const ModelContents& model = Contents()) {
    const Status status = WriteModelFile(path_, model);
    EXPECT_TRUE(status.ok()) << status.message();
    std::ifstream file(path_, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  fs::path folder_;
  fs::path path_;
};

// Reads bytes from memory that begins where nothing else ends: a byte too far is a fault that sanitizers see.
Result<ModelContents> Read(const std::string& bytes) {
  void* place = nullptr;  // of exactly this size, unlike what aligned_alloc gives
  EXPECT_EQ(posix_memalign(&place, kWeightAlignment, std::max<size_t>(bytes.size(), 1)), 0);
  const std::shared_ptr<void> copy(place, std::free);
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  return ReadModel({static_cast<const std::byte*>(copy.get()), bytes.size()}, copy);
}

std::string ErrorOf(const std::string& bytes) {
  const Result<ModelContents> read = Read(bytes);
  EXPECT_FALSE(read.ok());
  return read.status().message();
}

SectionEntry* TableOf(std::string& bytes) { return reinterpret_cast<SectionEntry*>(bytes.data() + sizeof(FileHeader)); }
FileHeader* HeaderOf(std::string& bytes) { return reinterpret_cast<FileHeader*>(bytes.data()); }

// Makes the digests of header and sections right, so that what they cover is looked at.
void Sign(std::string& bytes) {
  FileHeader* header = HeaderOf(bytes);
  SectionEntry* table = TableOf(bytes);
  for (uint32_t i = 0; i < header->num_sections; ++i) {
    if (table[i].kind == SectionKind::kWeights || table[i].offset + table[i].bytes > bytes.size()) continue;
    const Digest digest = HashBytes(bytes.data() + table[i].offset, table[i].bytes);
    table[i].digest[0] = digest.hi;
    table[i].digest[1] = digest.lo;
  }
  header->digest[0] = header->digest[1] = 0;
  const Digest digest = HashBytes(bytes.data(), sizeof(FileHeader) + header->num_sections * sizeof(SectionEntry));
  header->digest[0] = digest.hi;
  header->digest[1] = digest.lo;
}

SectionEntry& SectionOf(std::string& bytes, SectionKind kind) {
  SectionEntry* entry = TableOf(bytes);
  while (entry->kind != kind) ++entry;
  return *entry;
}

template <class T>
std::string Patched(std::string bytes, SectionKind kind, size_t offset, T value) {
  std::memcpy(bytes.data() + SectionOf(bytes, kind).offset + offset, &value, sizeof(value));
  Sign(bytes);
  return bytes;
}

TEST_F(ModelFile, GivesBackTheGraphsAndComputesTheSameBits) {
  const ModelContents model = Contents();
  Written(model);
  const ModelContents read = Must(ReadModelFile(path_));
  EXPECT_EQ(read.name, "block");
  EXPECT_EQ(read.engine, kVersion);
  ASSERT_EQ(read.graphs.size(), 1u);
  EXPECT_EQ(PrintGraph(read.graphs[0].graph), PrintGraph(model.graphs[0].graph));
  EXPECT_EQ(read.graphs[0].output_names, model.graphs[0].output_names);

  Inputs inputs(5);
  LoadOptions options;
  options.optimization_level = "O0";
  const Model loaded = Must(LoadModel(path_, options));
  const std::vector<OwnedTensor> found = Must(loaded.Run(inputs.views()));
  const std::vector<OwnedTensor> wanted = Must(Evaluate(model.graphs[0].graph, inputs.views()));
  ASSERT_EQ(found.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(Elements<float>(found[i]), Elements<float>(wanted[i]));
  EXPECT_EQ(loaded.inputs()[1].name, "scale");
  EXPECT_EQ(loaded.outputs()[1].name, "sum");
  EXPECT_EQ(loaded.outputs()[1].shape, Dims{5});
}

TEST_F(ModelFile, WeightsAreStoredOnceAndKnownByOneAddress) {
  const std::string one = Written(Contents({5}));
  const std::string two = Written(Contents({5, 6}));
  const size_t weights = (50 + kWidth) * kWidth * sizeof(float);
  EXPECT_GT(one.size(), weights);
  EXPECT_LT(one.size(), weights + kWidth * kWidth * sizeof(float)) << "a tied weight is there twice";
  EXPECT_LT(two.size(), one.size() + weights / 2) << "the second graph brought its weights along";
  const ModelContents read = Must(ReadModelFile(path_));
  std::map<std::string, const void*> places;
  for (const ModelGraph& entry : read.graphs) {
    for (const Value& value : entry.graph.values()) {
      if (value.kind != Value::Kind::kConstant || !value.constant.is_weight) continue;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(value.constant.data) % kWeightAlignment, 0u) << value.name;
      const auto [known, is_new] = places.emplace(value.name, value.constant.data);
      EXPECT_EQ(known->second, value.constant.data) << value.name;
    }
  }
  EXPECT_EQ(places["fc.weight"], places["tied.weight"]);
  EXPECT_EQ(places.size(), 3u);
}

TEST_F(ModelFile, SeveralShapesArePickedByTheInputs) {
  Written(Contents({5, 6}));
  const Model model = Must(LoadModel(path_));
  ASSERT_EQ(model.num_shapes(), 2u);
  for (const int64_t rows : {6, 5}) {
    Inputs inputs(rows);
    const std::vector<OwnedTensor> wanted = Must(Evaluate(MakeGraph(rows).graph, inputs.views()));
    const std::vector<OwnedTensor> found = Must(model.Run(inputs.views()));
    ExpectNear(Elements<float>(found[0]), Elements<float>(wanted[0]), 1e-5);
  }
  Inputs other(7);
  const Result<Model::Call> none = model.Find(other.views());
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), HasSubstr("expected inputs (ids: i64[5], scale: f32[5, 1]) or (ids: i64[6], "));
  EXPECT_THAT(none.status().message(), HasSubstr("got (i64[7], f32[7, 1])"));
  EXPECT_FALSE(model.Run(std::vector<View>{}).ok());
}

// The model for all numbers of rows up to 40, and apart for one row.
ModelContents ManyRows() {
  ModelContents model;
  model.name = "block";
  const std::vector<int64_t> rows = {3, 11, 29, 40};
  std::vector<ModelGraph> samples;
  for (const int64_t n : rows) samples.push_back(MakeGraph(n));
  std::vector<GraphFamily::Sample> points;
  for (size_t i = 0; i < rows.size(); ++i) points.push_back({{rows[i]}, &samples[i].graph});
  const GraphFamily family = Must(GraphFamily::Fit({"rows"}, 1, points));
  model.graphs.push_back({family.graph(), samples[0].output_names, family, {40}});
  model.graphs.push_back(MakeGraph(1));
  return model;
}

TEST_F(ModelFile, OnePlanServesManySizes) {
  const std::string bytes = Written(ManyRows());
  const ModelContents read = Must(ReadModelFile(path_));
  ASSERT_EQ(read.graphs.size(), 2u);
  ASSERT_TRUE(read.graphs[0].family);
  EXPECT_FALSE(read.graphs[1].family);
  EXPECT_EQ(Written(read), bytes);
  const Model model = Must(LoadModel(path_));
  fs::remove(path_);
  ASSERT_EQ(model.sizes().size(), 1u);
  EXPECT_EQ(model.sizes()[0].name, "rows");
  EXPECT_EQ(model.sizes()[0].largest, 40);
  EXPECT_TRUE(model.sizes(1).empty());
  EXPECT_EQ(model.session().plan().extent, nullptr) << "what no call has asked for is not made when a file is loaded";
  for (const int64_t rows : {40, 2, 1, 7, 39, 2}) {
    Inputs inputs(rows);
    const std::vector<OwnedTensor> wanted = Must(Evaluate(MakeGraph(rows).graph, inputs.views()));
    const std::vector<OwnedTensor> found = Must(model.Run(inputs.views()));
    EXPECT_EQ(found[1].shape, Dims{rows});
    ExpectNear(Elements<float>(found[0]), Elements<float>(wanted[0]), 1e-5);
    const std::vector<PortType> outputs = Must(model.OutputsOf(Must(model.Find(inputs.views()))));
    EXPECT_EQ(outputs[0].shape, (Dims{rows, kWidth}));
    EXPECT_EQ(outputs[0].name, "states");
  }
  EXPECT_EQ(Must(model.InputsOf({0, {17}}))[1].shape, (Dims{17, 1}));
  EXPECT_FALSE(model.InputsOf({0, {41}}).ok());
  EXPECT_FALSE(model.InputsOf({0, {}}).ok());
  Inputs other(41);
  const Status status = model.Run(other.views()).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("rows 2 to 40"));
  // Sizes that contradict each other.
  Inputs ten(10);
  std::vector<View> views = ten.views();
  views[1].shape[0] = 9;
  EXPECT_FALSE(model.Run(views).ok());
}

TEST_F(ModelFile, ThreadsCallItAtManySizes) {
  Written(ManyRows());
  const Model model = Must(LoadModel(path_));
  std::vector<std::vector<OwnedTensor>> wanted(41);
  for (const int64_t rows : {1, 2, 7, 23, 39, 40}) {
    Inputs inputs(rows);
    wanted[static_cast<size_t>(rows)] = Must(Evaluate(MakeGraph(rows).graph, inputs.views()));
  }
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<int64_t> sizes = {40, 2, 7, 1, 39, 23};
      for (size_t i = 0; i < 2 * sizes.size(); ++i) {
        const int64_t rows = sizes[(t + i) % sizes.size()];
        Inputs inputs(rows);
        const std::vector<OwnedTensor> found = Must(model.Run(inputs.views()));
        ExpectNear(Elements<float>(found[0]), Elements<float>(wanted[static_cast<size_t>(rows)][0]), 1e-5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ModelFile, RulesThatFitNoGraphAreRefused) {
  const ModelContents good = ManyRows();
  const auto error = [&](const auto& change) {
    GraphFamily::Rules rules = good.graphs[0].family->rules();
    Dims largest = {40};
    change(rules, largest);
    return GraphFamily::Make(good.graphs[0].graph, rules, largest).status();
  };
  EXPECT_TRUE(error([](auto&, auto&) {}).ok());
  for (const Status& status : {
           error([](auto& rules, auto&) { rules.names = {}; }),
           error([](auto& rules, auto&) { rules.degree = 3; }),
           error([](auto&, auto& largest) { largest = {0}; }),
           error([](auto&, auto& largest) { largest = {INT64_MAX}; }),
           error([](auto& rules, auto&) { rules.inputs.pop_back(); }),
           error([](auto& rules, auto&) { rules.nodes.pop_back(); }),
           error([](auto& rules, auto&) { rules.inputs[0][0].terms[0].monomial = 2; }),
           error([](auto& rules, auto&) { rules.inputs[0][0].terms[0].factor = INT64_MIN; }),
           error([](auto& rules, auto&) { rules.inputs[0][0] = rules.inputs[1][0] = {{{0, 5}}}; }),
           error([](auto& rules, auto&) { rules.nodes[0].numbers.push_back({"none", 0, {{{0, 5}}}}); }),
           error([](auto& rules, auto&) { rules.nodes.back().numbers.push_back({"dims", 1, {{{0, 5}}}}); }),
       }) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("expected"));
  }
  GraphFamily::Rules rules = good.graphs[0].family->rules();
  rules.inputs[1][0] = {{{1, 1}, {0, -30}}};
  const GraphFamily family = Must(GraphFamily::Make(good.graphs[0].graph, rules, Dims{40}));
  EXPECT_EQ(family.At(Dims{30}).status().code(), Code::kInvalidArgument);
  EXPECT_FALSE(family.At(Dims{10}).ok());
}

TEST_F(ModelFile, AnErrorInTheDataFailsThatCallOnly) {
  Written();
  const Model model = Must(LoadModel(path_));
  Inputs inputs(5);
  const std::vector<float> wanted = Elements<float>(Must(model.Run(inputs.views())).at(0));
  inputs.ids[2] = 50;
  EXPECT_EQ(model.Run(inputs.views()).status().code(), Code::kOutOfRange);
  inputs.ids[2] = 2 * 13;
  EXPECT_EQ(Elements<float>(Must(model.Run(inputs.views())).at(0)), wanted);
}

TEST_F(ModelFile, TheModelLivesOnWhenTheFileIsGone) {
  Written();
  const Model model = Must(LoadModel(path_));
  fs::remove(path_);
  Inputs inputs(5);
  EXPECT_TRUE(model.Run(inputs.views()).ok());
}

TEST_F(ModelFile, PrecisionIsTheFilesUnlessOneIsChosen) {
  ModelContents contents = Contents();
  contents.precision = {"int8_weight", {"tied"}, 0.5};
  Written(contents);
  const auto precisions = [](const Model& model) {
    std::map<std::string, std::string> found;
    for (const PrecisionDecision& decision : model.session().precision_decisions()) {
      found[decision.module] = Name(decision.precision);
    }
    return found;
  };
  using Map = std::map<std::string, std::string>;
  EXPECT_EQ(precisions(Must(LoadModel(path_))), (Map{{"fc", "int8_weight"}, {"tied", "fp32"}}));
  LoadOptions options;
  options.precision = "bf16";
  options.precision_exclude = std::vector<std::string>{};
  const Model chosen = Must(LoadModel(path_, options));
  EXPECT_EQ(precisions(chosen), (Map{{"fc", "bf16"}, {"tied", "bf16"}}));
  EXPECT_EQ(chosen.precision(), "bf16");
  options.precision = "fp32";
  EXPECT_EQ(precisions(Must(LoadModel(path_, options))), Map{});
}

TEST_F(ModelFile, SettingsThatCannotWorkAreRefused) {
  Written();
  LoadOptions options;
  options.precision = "int7";
  EXPECT_THAT(LoadModel(path_, options).status().message(), HasSubstr("expected one of model, fp32, bf16"));
  options.precision = "bf16";
  options.optimization_level = "O1";
  EXPECT_THAT(LoadModel(path_, options).status().message(),
              HasSubstr("got O1, which multiplies weights as they are stored"));
  options = {};
  options.optimization_level = "O9";
  EXPECT_FALSE(LoadModel(path_, options).ok());
  options = {};
  options.num_threads = -1;
  EXPECT_THAT(LoadModel(path_, options).status().message(), HasSubstr("num_threads"));
}

TEST_F(ModelFile, TooManyShapesAreNotWritten) {
  ModelContents model;
  model.name = "block";
  for (int64_t rows = 1; rows < kMaxModelSections; ++rows) {
    Graph g;
    const ValueId x = g.AddInput("x", DType::kF32, {rows});
    g.SetOutputs({Must(g.Add1("relu", {x}))});
    model.graphs.push_back({std::move(g), {"y"}});
  }
  EXPECT_THAT(WriteModelFile(path_, model).message(), HasSubstr("expected at most 1021 combinations of shapes"));
  EXPECT_TRUE(fs::is_empty(folder_));
  model.graphs.resize(kMaxModelSections - 3);
  Written(model);
  EXPECT_EQ(Must(ReadModelFile(path_)).graphs.size(), kMaxModelSections - 3);
}

TEST_F(ModelFile, WhatIsNoModelFileIsNamed) {
  EXPECT_THAT(ReadModelFile(folder_ / "none").status().message(), HasSubstr("No such file"));
  EXPECT_THAT(ReadModelFile(folder_).status().message(), HasSubstr("no regular file"));
  std::ofstream(folder_ / "empty").flush();
  EXPECT_THAT(ReadModelFile(folder_ / "empty").status().message(), HasSubstr("an empty file"));
  EXPECT_THAT(ErrorOf("THRMODEL"), HasSubstr("got a file of 8;"));
  EXPECT_THAT(ErrorOf(std::string(500, 'x')), HasSubstr("got other bytes"));
}

TEST_F(ModelFile, ANewerFormatNamesItsEngine) {
  std::string bytes = Written();
  HeaderOf(bytes)->version = 3;
  std::strcpy(HeaderOf(bytes)->engine, "9.8.7");
  const Status status = Read(bytes).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr("expected format version 2, got 3; thresher 9.8.7 wrote the file"));
}

// What is read when it is wanted: a matrix of 256 KiB that is packed, and one of 128 KiB whose rows are taken.
ModelContents Large() {
  ModelGraph entry;
  std::vector<float> weight(256 * 256), table(128 * 256);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(i * 7919 % 2003) * 1e-3F - 1;
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i * 7907 % 1999) * 1e-3F - 1;
  const auto constant = [&](const char* name, const std::vector<float>& numbers, Dims shape) {
    const auto owner = std::make_shared<const std::vector<float>>(numbers);
    return entry.graph.AddConstant(name, DType::kF32, std::move(shape), {owner->data(), owner, true});
  };
  const ValueId x = entry.graph.AddInput("x", DType::kF32, {128, 256});
  const ValueId sum = entry.graph.Add1("add", {x, constant("table", table, {128, 256})}).value();
  entry.graph.SetOutputs({entry.graph.Add1("linear", {sum, constant("weight", weight, {256, 256})}).value()});
  entry.output_names = {"output"};
  ModelContents model;
  model.name = "large";
  model.graphs.push_back(std::move(entry));
  return model;
}

const Constant& ConstantNamed(const Graph& graph, std::string_view name) {
  for (const Value& value : graph.values()) {
    if (value.name == name) return value.constant;
  }
  std::abort();
}

TEST_F(ModelFile, LargeWeightsAreReadableWhileTheyAreHeld) {
  const ModelContents model = Large();
  Written(model);
  const ModelContents read = Must(ReadModelFile(path_));
  for (const char* name : {"weight", "table"}) {
    const Constant& wanted = ConstantNamed(model.graphs[0].graph, name);
    const Constant& found = ConstantNamed(read.graphs[0].graph, name);
    for (int times = 0; times < 2; ++times) {
      const std::shared_ptr<const void> held = Must(Hold(found)), again = Must(Hold(found));
      EXPECT_EQ(std::memcmp(found.data, wanted.data, 128 * 256 * sizeof(float)), 0) << name;
    }
    EXPECT_DEATH(
        {
          (void)*static_cast<const volatile char*>(found.data);
          std::_Exit(0);
        },
        "");
  }
}

TEST_F(ModelFile, AFileThatIsCutShortIsAnErrorWhereItIsReadNext) {
  Written(Large());
  const ModelContents read = Must(ReadModelFile(path_));
  const Constant& weight = ConstantNamed(read.graphs[0].graph, "weight");
  const std::shared_ptr<const void> held = Must(Hold(ConstantNamed(read.graphs[0].graph, "table")));
  fs::resize_file(path_, fs::file_size(path_) / 2);
  EXPECT_THAT(Hold(weight).status().message(), HasSubstr("cut short while it was used"));
  WeightStore weights;
  const Status status = Compile(read.graphs[0].graph, weights, {}).status();
  EXPECT_THAT(status.message(), HasSubstr("cut short while it was used"));
  CompileOptions options;
  options.precision.precision = "int8";
  EXPECT_THAT(Compile(read.graphs[0].graph, weights, options).status().message(), HasSubstr("cut short"));
  EXPECT_EQ(weights.bytes(), 0);
  // What is held stays.
  EXPECT_EQ(*static_cast<const float*>(ConstantNamed(read.graphs[0].graph, "table").data), -1.0F);
}

TEST_F(ModelFile, AFileThatIsWrittenToIsAnErrorWhereItIsReadNext) {
  const std::string bytes = Written(Large());
  const ModelContents read = Must(ReadModelFile(path_));
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  const std::string zeros(128, '\0');
  for (size_t at = SectionOf(const_cast<std::string&>(bytes), SectionKind::kWeights).offset; at < bytes.size();
       at += 4096) {
    file.seekp(static_cast<std::streamoff>(at)).write(zeros.data(), 4);
  }
  file.close();
  WeightStore weights;
  EXPECT_THAT(Compile(read.graphs[0].graph, weights, {}).status().message(), HasSubstr("expected contents of digest"));
}

TEST_F(ModelFile, WhatBecomesOfItsFileIsNothingToALoadedModel) {
  Written(Large());
  const Model model = Must(LoadModel(path_));
  std::vector<float> x(128 * 256, 0.5F);
  const std::vector<View> inputs = {MakeView(x.data(), DType::kF32, {128, 256})};
  const std::vector<float> wanted = Elements<float>(Must(model.Run(inputs))[0]);
  std::fstream(path_, std::ios::binary | std::ios::in | std::ios::out).seekp(64).write("changed!", 8);
  EXPECT_EQ(Elements<float>(Must(model.Run(inputs))[0]), wanted);
  fs::resize_file(path_, 1);
  EXPECT_EQ(Elements<float>(Must(model.Run(inputs))[0]), wanted);
  fs::remove(path_);
  EXPECT_EQ(Elements<float>(Must(model.Run(inputs))[0]), wanted);
}

TEST_F(ModelFile, ErrorsNameTheFile) {
  const std::string bytes = Written();
  fs::resize_file(path_, bytes.size() - 1);
  const std::string message = LoadModel(path_).status().message();
  EXPECT_THAT(message, HasSubstr("model file " + path_.string() + ": expected " + std::to_string(bytes.size())));
}

TEST_F(ModelFile, EveryTruncationIsAnError) {
  const std::string many = Written(ManyRows());
  for (size_t size = 0; size < many.size(); ++size) {
    ASSERT_EQ(Read(many.substr(0, size)).status().code(), Code::kInvalidArgument) << size;
  }
  const std::string bytes = Written();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Status status = Read(bytes.substr(0, size)).status();
    ASSERT_FALSE(status.ok()) << size;
    ASSERT_EQ(status.code(), Code::kInvalidArgument);
  }
  std::string whole = bytes;
  for (uint32_t i = 0; i < HeaderOf(whole)->num_sections; ++i) {
    const SectionEntry& entry = TableOf(whole)[i];
    for (const uint64_t size : {entry.offset, entry.offset + 1, entry.offset + entry.bytes - 1}) {
      EXPECT_THAT(ErrorOf(bytes.substr(0, size)), HasSubstr("incomplete")) << i;
      std::string signed_ = bytes.substr(0, size);
      HeaderOf(signed_)->file_bytes = size;
      Sign(signed_);
      EXPECT_THAT(ErrorOf(signed_), HasSubstr("expected sections inside the file's"));
    }
  }
  EXPECT_THAT(ErrorOf(bytes + "x"), HasSubstr("incomplete"));
}

TEST_F(ModelFile, EveryChangedByteIsFoundOrWithoutMeaning) {
  std::string bytes = Written();
  std::vector<bool> counts(bytes.size(), false);
  const auto mark = [&](uint64_t offset, uint64_t size) {
    std::fill_n(counts.begin() + static_cast<int64_t>(offset), size, true);
  };
  mark(0, sizeof(FileHeader) + HeaderOf(bytes)->num_sections * sizeof(SectionEntry));
  for (uint32_t i = 0; i < HeaderOf(bytes)->num_sections; ++i) mark(TableOf(bytes)[i].offset, TableOf(bytes)[i].bytes);
  const std::string wanted = PrintGraph(Must(Read(bytes)).graphs[0].graph);
  std::mt19937 random(1);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char before = bytes[i];
    bytes[i] = static_cast<char>(before ^ (1 << random() % 8));
    const Result<ModelContents> read = Read(bytes);
    if (counts[i] && read.ok()) {
      // Only the zeros between two tensors are in no digest.
      ASSERT_EQ(PrintGraph(read.value().graphs[0].graph), wanted) << i;
      ASSERT_EQ(before, 0) << i;
    }
    bytes[i] = before;
  }
}

TEST_F(ModelFile, SizesBeyondTheFileAreRefused) {
  const std::string good = Written();
  constexpr uint32_t kHuge = 0xffffffff;
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, 0, kHuge)), HasSubstr("entries in what is left"));
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, 4, kHuge)), HasSubstr("expected more than its section"));
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kGraph, 0, kHuge)), HasSubstr("entries in what is left"));
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kGraph, 4, kHuge)), HasSubstr("expected more than its section"));
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kInfo, 0, kHuge)), HasSubstr("expected more than its section"));
  // The first tensor: 4 bytes of count, 4 + 5 of its name "table".
  constexpr size_t kType = 13, kRank = 17, kDim = 21, kPlace = 37, kDigest = 45;
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, kType, 99u)), HasSubstr("expected a dtype below"));
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, kRank, 9u)), HasSubstr("at most 8 dimensions"));
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{1} << 62, INT64_MAX, INT64_MIN}) {
    EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, kDim, size)), HasSubstr("'table': expected a size"));
  }
  for (const uint64_t place : {uint64_t{1}, uint64_t{1} << 40, ~uint64_t{63}}) {
    EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, kPlace, place)), HasSubstr("'table': expected a place"));
  }
  EXPECT_THAT(ErrorOf(Patched(good, SectionKind::kTensors, kDigest, uint64_t{1})),
              HasSubstr("'table': expected contents"));

  const auto with_entry = [&](auto change) {
    std::string bytes = good;
    change(SectionOf(bytes, SectionKind::kWeights));
    Sign(bytes);
    return ErrorOf(bytes);
  };
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.bytes = ~uint64_t{0}; }), HasSubstr("expected sections inside"));
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.offset = ~uint64_t{63}; }), HasSubstr("expected sections inside"));
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.offset = 0; }), HasSubstr("expected sections inside"));
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.bytes -= 64; }), HasSubstr("expected a place inside"));
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.kind = SectionKind{7}; }), HasSubstr("got 7"));
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.kind = SectionKind::kInfo; }), HasSubstr("of kind 1, got 2"));
  EXPECT_THAT(with_entry([](SectionEntry& e) { e.kind = SectionKind::kGraph; }), HasSubstr("of kind 4, got 0"));

  std::string bytes = good;
  HeaderOf(bytes)->num_sections = kHuge;
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("sections, got 4294967295"));
  HeaderOf(bytes)->num_sections = 0;
  Sign(bytes);
  EXPECT_THAT(ErrorOf(bytes), HasSubstr("of kind 1, got 0"));
}

TEST_F(ModelFile, BytesAfterTheEndOfASectionAreRefused) {
  const std::pair<SectionKind, std::string> sections[] = {
      {SectionKind::kInfo, "info: "}, {SectionKind::kTensors, "tensors: "}, {SectionKind::kGraph, "graph 0: "}};
  for (const auto& [kind, name] : sections) {
    for (const size_t more : {size_t{0}, size_t{1}, size_t{8}}) {
      // The section again, with something behind it, where the file ended.
      std::string bytes = Written();
      const SectionEntry old = SectionOf(bytes, kind);
      const std::string section = bytes.substr(old.offset, old.bytes);
      bytes.resize((bytes.size() + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment);
      SectionOf(bytes, kind).offset = bytes.size();
      SectionOf(bytes, kind).bytes += more;
      bytes += section + std::string(more, 'x');
      HeaderOf(bytes)->file_bytes = bytes.size();
      Sign(bytes);
      if (more == 0) {
        EXPECT_TRUE(Read(bytes).ok()) << Read(bytes).status().message();
      } else {
        EXPECT_THAT(ErrorOf(bytes), HasSubstr(name + "expected its end, got " + std::to_string(more) + " more bytes"));
      }
    }
  }
}

TEST_F(ModelFile, RandomContentsWithTheRightDigestsNeverCrash) {
  ModelContents contents = Contents({5, 6});
  contents.graphs.push_back(ManyRows().graphs[0]);
  const std::string good = Written(contents);
  std::string copy = good;
  const size_t end = SectionOf(copy, SectionKind::kWeights).offset;
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    for (uint32_t n = random() % 4 + 1; n > 0; --n) {
      const size_t at = sizeof(FileHeader) + random() % (end - sizeof(FileHeader));
      bytes[at] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    Sign(bytes);
    const Result<ModelContents> read = Read(bytes);
    if (!read.ok()) ++refused;
    for (size_t i = 0; read.ok() && i < read.value().graphs.size(); ++i) {
      WeightStore weights;
      CompileOptions options;
      const ModelGraph& entry = read.value().graphs[i];
      (void)Compile(entry.graph, weights, options);  // succeeds or says why not
      if (!entry.family) continue;
      (void)entry.family->At(entry.capacity);
      (void)entry.family->At(Dims(entry.capacity.size(), GraphFamily::kLeastSize));
    }
  }
  EXPECT_GT(refused, 1000);  // the rest changed names and sources
}

TEST_F(ModelFile, AGraphThatDoesNotFitItsNamesIsNotWritten) {
  const auto message = [&](const ModelContents& model) {
    const Status status = WriteModelFile(path_, model);
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(fs::exists(path_));
    return status.message();
  };
  EXPECT_THAT(message({}), HasSubstr("expected a graph"));
  ModelContents model = Contents();
  model.graphs[0].output_names = {"states"};
  EXPECT_THAT(message(model), HasSubstr("one name for each output"));
  model.graphs[0].output_names = {"same", "same"};
  EXPECT_THAT(message(model), HasSubstr("'same' twice"));
  model = Contents({5, 5});
  EXPECT_THAT(message(model), HasSubstr("(ids: i64[5], scale: f32[5, 1]) twice"));
  model = Contents({5, 6});
  model.graphs[1].output_names = {"other", "sum"};
  EXPECT_THAT(message(model), HasSubstr("the same inputs and outputs"));
}

TEST_F(ModelFile, AFailedWriteLeavesTheOldFileAndNothingElse) {
  const std::string before = Written();
  const Status status = WriteModelFile(folder_ / "none" / "block.thrmodel", Contents());
  EXPECT_THAT(status.message(), HasSubstr("No such file"));
  fs::create_directory(folder_ / "taken");
  std::ofstream(folder_ / "taken" / "file") << "x";
  EXPECT_FALSE(WriteModelFile(folder_ / "taken", Contents()).ok());  // a folder stands where the file should be
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 2u);
  std::ifstream file(path_, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), before);
}

TEST_F(ModelFile, TheSameModelGivesTheSameBytes) { EXPECT_EQ(Written(), Written()); }

}  // namespace
}  // namespace thresher
