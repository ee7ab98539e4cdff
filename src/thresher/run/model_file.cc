#include "thresher/run/model_file.h"

#include <algorithm>
#include <utility>

#include "thresher/base/clock.h"
#include "thresher/base/thread_pool.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/compile.h"
#include "thresher/run/initialize.h"
#include "thresher/run/model_format.h"

namespace thresher {
namespace {

constexpr std::string_view kPrecisionPass = "precision_assignment";

bool Fits(const PortType& port, const View& view) {
  return port.dtype == view.dtype &&
         std::equal(port.shape.begin(), port.shape.end(), view.shape, view.shape + view.rank);
}

// What the caller chose over what the file says.
Result<CompileOptions> MakeOptions(const ModelContents& model, const LoadOptions& chosen) {
  CompileOptions options;
  options.level = chosen.optimization_level;
  options.precision = model.precision;
  if (chosen.precision) options.precision.precision = *chosen.precision;
  if (chosen.precision_exclude) options.precision.exclude = *chosen.precision_exclude;
  if (chosen.max_weight_error) options.precision.max_weight_error = chosen.max_weight_error;
  const std::string& precision = options.precision.precision;
  if (precision != kModelPrecision && !ParsePrecision(precision)) {
    std::string known(kModelPrecision);
    for (const std::string_view name : kPrecisionNames) known += ", " + std::string(name);
    return InvalidArgument("precision: wanted one of " + known + ", found '" + precision + "'");
  }
  THRESHER_ASSIGN(const Level level, ParseLevel(options.level));
  const std::vector<std::string> passes = PassesForLevel(level);
  if (precision != kModelPrecision && precision != Name(Precision::kFp32) &&
      std::find(passes.begin(), passes.end(), kPrecisionPass) == passes.end()) {
    return InvalidArgument("precision: wanted optimization level O2 or O3 for '" + precision + "', found " +
                           options.level +
                           ", which multiplies weights as they are stored; raise the level or choose "
                           "model");
  }
  if (chosen.num_threads < 0 || chosen.num_threads > 1024) {
    return InvalidArgument("num_threads: wanted 0 to 1024, found " + std::to_string(chosen.num_threads));
  }
  options.plan.num_threads = chosen.num_threads > 0 ? chosen.num_threads : ThreadPool::Global().num_threads();
  options.plan.tuning = chosen.use_tuning ? &TuningTable::Global() : nullptr;
  return options;
}

}  // namespace

struct Model::State {
  struct Shape {
    std::vector<PortType> outputs;  // with their names, which a plan has not
    std::unique_ptr<Session> session;
  };

  std::string name;
  std::string engine;
  std::string precision;
  uint32_t site = 0;    // of calls, for profiles
  WeightStore weights;  // packed, for all shapes
  std::vector<Shape> shapes;
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const std::string& Model::name() const { return state_->name; }
const std::string& Model::engine() const { return state_->engine; }
const std::string& Model::precision() const { return state_->precision; }
size_t Model::num_shapes() const { return state_->shapes.size(); }
const std::vector<PortType>& Model::inputs(size_t shape) const { return state_->shapes[shape].session->plan().inputs; }
const std::vector<PortType>& Model::outputs(size_t shape) const { return state_->shapes[shape].outputs; }
Session& Model::session(size_t shape) const { return *state_->shapes[shape].session; }
const WeightStore& Model::weights() const { return state_->weights; }

Result<size_t> Model::FindShape(std::span<const View> found) const {
  std::string known;
  for (size_t i = 0; i < num_shapes(); ++i) {
    const std::vector<PortType>& wanted = inputs(i);
    if (std::equal(wanted.begin(), wanted.end(), found.begin(), found.end(), Fits)) return i;
    known += i > 0 ? " or (" : "(";
    for (size_t p = 0; p < wanted.size(); ++p) {
      known += (p > 0 ? ", " : "") + wanted[p].name + ": " + ToString(wanted[p].dtype, wanted[p].shape);
    }
    known += ")";
  }
  std::string given;
  for (const View& view : found) {
    given += (given.empty() ? "" : ", ") + ToString(view.dtype, Dims(view.shape, view.shape + view.rank));
  }
  return InvalidArgument("model " + name() + ": wanted inputs " + known + ", found (" + given +
                         "); a file holds the shapes it was exported with: export it with these too");
}

Status Model::Run(std::span<const View> inputs, std::span<const View> outputs) const {
  THRESHER_ASSIGN(const size_t shape, FindShape(inputs));
  if (!profile::Enabled()) return session(shape).Run(inputs, outputs);
  profile::Record record;
  record.kind = profile::Kind::kCall;
  record.section = profile::Section::kCall;
  record.event = profile::kCallEvent;
  record.site = state_->site;
  record.start_ns = NowNs();
  const Status status = session(shape).Run(inputs, outputs);
  record.end_ns = NowNs();
  profile::Add(record);
  return status;
}

Result<std::vector<OwnedTensor>> Model::Run(std::span<const View> inputs) const {
  THRESHER_ASSIGN(const size_t shape, FindShape(inputs));
  std::vector<OwnedTensor> tensors;
  std::vector<View> views;
  for (const PortType& port : outputs(shape)) {
    const size_t size = static_cast<size_t>(NumElements(port.shape)) * SizeOf(port.dtype);
    OwnedTensor tensor{port.dtype, port.shape, std::make_shared<std::vector<std::byte>>(size)};
    views.push_back(MakeView(tensor.bytes->data(), port.dtype, port.shape));
    tensors.push_back(std::move(tensor));
  }
  THRESHER_TRY(Run(inputs, views));
  return tensors;
}

Result<Model> LoadModel(const std::string& path, const LoadOptions& chosen) {
  THRESHER_TRY(Initialize());
  THRESHER_ASSIGN(const ModelContents contents, ReadModelFile(path));
  Result<CompileOptions> options = MakeOptions(contents, chosen);
  if (!options.ok()) {
    return Status(options.status().code(), "model file " + path + ": " + options.status().message());
  }
  auto state = std::make_unique<Model::State>();
  state->name = contents.name;
  state->engine = contents.engine;
  state->precision = options.value().precision.precision;
  profile::Site site;
  site.name = contents.name;
  site.section = profile::Section::kCall;
  state->site = profile::NumberOf(std::move(site));
  for (const ModelGraph& entry : contents.graphs) {
    CompileOptions own = options.value();
    own.plan.name = contents.name;
    if (contents.graphs.size() > 1) own.plan.name += "_" + std::to_string(state->shapes.size());
    Result<std::unique_ptr<Session>> session = Compile(entry.graph, state->weights, own);
    if (!session.ok()) {
      return Status(session.status().code(), "model file " + path + ": " + session.status().message());
    }
    Model::State::Shape shape;
    shape.session = std::move(session).value();
    shape.outputs = shape.session->plan().outputs;
    for (size_t i = 0; i < shape.outputs.size(); ++i) shape.outputs[i].name = entry.output_names[i];
    state->shapes.push_back(std::move(shape));
  }
  return Model(std::move(state));
}

}  // namespace thresher
