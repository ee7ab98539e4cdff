#include "thresher/run/model_file.h"

#include <algorithm>
#include <utility>

#include "thresher/base/clock.h"
#include "thresher/base/thread_pool.h"
#include "thresher/plan/extent.h"
#include "thresher/plan/once_map.h"
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

std::string ToString(const std::vector<Model::Size>& sizes) {
  std::string text;
  for (const Model::Size& size : sizes) {
    text += (text.empty() ? "" : ", ") + size.name + " " + std::to_string(size.least) + " to " +
            std::to_string(size.largest);
  }
  return text.empty() ? "none" : text;
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
    return InvalidArgument("precision: expected one of " + known + ", got '" + precision + "'");
  }
  THRESHER_ASSIGN(const Level level, ParseLevel(options.level));
  const std::vector<std::string> passes = PassesForLevel(level);
  if (precision != kModelPrecision && precision != Name(Precision::kFp32) &&
      std::find(passes.begin(), passes.end(), kPrecisionPass) == passes.end()) {
    return InvalidArgument("precision: expected optimization level O2 or O3 for '" + precision + "', got " +
                           options.level +
                           ", which multiplies weights as they are stored; raise the level or choose "
                           "model");
  }
  if (chosen.num_threads < 0 || chosen.num_threads > 1024) {
    return InvalidArgument("num_threads: expected 0 to 1024, got " + std::to_string(chosen.num_threads));
  }
  options.plan.num_threads = chosen.num_threads > 0 ? chosen.num_threads : ThreadPool::Global().num_threads();
  options.plan.tuning = chosen.use_tuning ? &TuningTable::Global() : nullptr;
  return options;
}

}  // namespace

// One combination of shapes.
struct Model::Shape {
  static constexpr int kMostPlans = 5;     // for many sizes each; where sizes differ in how they are computed
  static constexpr size_t kMostKept = 64;  // plans for one size each

  std::vector<std::string> output_names;  // which a plan has not
  std::vector<PortType> outputs;
  std::vector<Size> sizes;
  std::shared_ptr<Session> session;  // of many sizes: for the largest, so that loading packs the weights
  // Of many sizes.
  std::optional<GraphFamily> family;
  Dims capacity;
  CompileOptions options;
  mutable ForkMutex mutex{LockRank::kSession};
  mutable std::optional<Dims> first;                           // that were asked for
  mutable OnceMap<int, std::shared_ptr<Session>> many{mutex};  // for many sizes each; null: none was found
  mutable OnceMap<Dims, std::shared_ptr<Session>> own{mutex};  // at the first sizes, and where none of `many` is for

  // Whether no others have been asked for.
  bool AreFirst(const Dims& sizes) const {
    const std::lock_guard lock(mutex);
    if (!first) first = sizes;
    return *first == sizes;
  }

  // Plan `number` for many sizes: the first is that for most of them, another one for those near `sizes`.
  std::shared_ptr<Session> Find(int number, const Dims& sizes, WeightStore& weights) const {
    if (!family) return nullptr;
    Dims half = capacity;
    for (int64_t& size : half) size = std::max(GraphFamily::kLeastSize, size / 2);
    for (const Dims& seed : number == 0 ? std::vector<Dims>{half, capacity} : std::vector<Dims>{sizes}) {
      Result<std::unique_ptr<Session>> found = CompileExtent(*family, weights, options, seed, capacity);
      if (found.ok()) return std::move(found).value();
    }
    return nullptr;
  }

  void Name(std::vector<PortType>& ports) const {
    for (size_t i = 0; i < ports.size(); ++i) ports[i].name = output_names[i];
  }
};

struct Model::State {
  std::string name;
  std::string engine;
  std::string precision;
  uint32_t site = 0;    // of calls, for profiles
  WeightStore weights;  // packed, for all shapes
  std::shared_ptr<ConstantSource> source;
  std::vector<std::unique_ptr<Shape>> shapes;
};

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

const std::string& Model::name() const { return state_->name; }
const std::string& Model::engine() const { return state_->engine; }
const std::string& Model::precision() const { return state_->precision; }
size_t Model::num_shapes() const { return state_->shapes.size(); }
const std::vector<PortType>& Model::inputs(size_t shape) const { return session(shape).plan().inputs; }
const std::vector<PortType>& Model::outputs(size_t shape) const { return state_->shapes[shape]->outputs; }
const std::vector<Model::Size>& Model::sizes(size_t shape) const { return state_->shapes[shape]->sizes; }
Session& Model::session(size_t shape) const { return *state_->shapes[shape]->session; }
const WeightStore& Model::weights() const { return state_->weights; }

Result<Model::Call> Model::Find(std::span<const View> found) const {
  std::string known;
  for (size_t i = 0; i < num_shapes(); ++i) {
    const std::vector<PortType>& wanted = inputs(i);
    const Shape& shape = *state_->shapes[i];
    if (shape.family) {
      if (std::optional<Dims> sizes = shape.family->SizesOf(found, shape.capacity)) return Call{i, *std::move(sizes)};
    } else if (std::equal(wanted.begin(), wanted.end(), found.begin(), found.end(), Fits)) {
      return Call{i, {}};
    }
    known += i > 0 ? " or (" : "(";
    for (size_t p = 0; p < wanted.size(); ++p) {
      known += (p > 0 ? ", " : "") + wanted[p].name + ": " + ToString(wanted[p].dtype, wanted[p].shape);
    }
    known += shape.family ? ") at most, " + ToString(shape.sizes) : ")";
  }
  std::string given;
  for (const View& view : found) {
    given += (given.empty() ? "" : ", ") + ToString(view.dtype, Dims(view.shape, view.shape + view.rank));
  }
  return InvalidArgument("model " + name() + ": expected inputs " + known + ", got (" + given +
                         "); a file holds the shapes it was exported with: export it with these too");
}

// The first sizes get a plan of their own. Others find or make one for many, which takes as long as some twenty plans:
// a program that stays at one size never waits for it. Sizes that most plans are not for, few rows of int4 weights say,
// have others.
Result<std::shared_ptr<Session>> Model::SessionFor(const Call& call) const {
  const Shape& shape = *state_->shapes[call.shape];
  if (!shape.family || call.sizes == shape.capacity) return shape.session;
  const auto trimmed = [this](auto made) {
    if (state_->source != nullptr) state_->source->Trim();
    return made;
  };
  for (int i = 0; i < Shape::kMostPlans && !shape.AreFirst(call.sizes); ++i) {
    const auto find = [&]() -> Result<std::shared_ptr<Session>> {
      return trimmed(shape.Find(i, call.sizes, state_->weights));
    };
    THRESHER_ASSIGN(std::shared_ptr<Session> session, shape.many.Get(i, find));
    if (session != nullptr && CheckSizes(session->plan(), call.sizes).ok()) return session;
  }
  const auto make = [&]() -> Result<std::shared_ptr<Session>> {
    THRESHER_ASSIGN(const Graph graph, shape.family->At(call.sizes));
    THRESHER_ASSIGN(std::unique_ptr<Session> session, trimmed(Compile(graph, state_->weights, shape.options)));
    return std::shared_ptr<Session>(std::move(session));
  };
  size_t kept = 0;
  shape.own.ForEach([&kept](const auto&) { ++kept; });
  return kept < Shape::kMostKept ? shape.own.Get(call.sizes, make) : make();
}

Result<std::vector<PortType>> Model::InputsOf(const Call& call) const {
  const Shape& shape = *state_->shapes[call.shape];
  bool fits = call.sizes.size() == shape.sizes.size();
  for (size_t i = 0; fits && i < call.sizes.size(); ++i) {
    fits = call.sizes[i] >= shape.sizes[i].least && call.sizes[i] <= shape.sizes[i].largest;
  }
  if (!fits) {
    return InvalidArgument("model " + name() + ": expected the sizes " + ToString(shape.sizes) + ", got " +
                           ToString(call.sizes));
  }
  std::vector<PortType> ports = inputs(call.shape);
  if (!shape.family) return ports;
  std::vector<Dims> shapes = shape.family->InputsAt(call.sizes);
  for (size_t i = 0; i < ports.size(); ++i) ports[i].shape = std::move(shapes[i]);
  return ports;
}

Result<std::vector<PortType>> Model::OutputsOf(const Call& call) const {
  if (call.sizes.empty()) return outputs(call.shape);
  THRESHER_ASSIGN(const std::shared_ptr<Session> session, SessionFor(call));
  const Plan& plan = session->plan();
  std::vector<PortType> found = plan.extent == nullptr ? plan.outputs : OutputsAt(plan, call.sizes);
  state_->shapes[call.shape]->Name(found);
  return found;
}

Status Model::RunCall(const Call& call, std::span<const View> inputs, std::span<const View> outputs) const {
  THRESHER_ASSIGN(const std::shared_ptr<Session> session, SessionFor(call));
  const std::span<const int64_t> sizes =
      session->plan().extent == nullptr ? std::span<const int64_t>() : std::span<const int64_t>(call.sizes);
  if (!profile::Enabled()) return session->Run(inputs, outputs, sizes);
  profile::Record record;
  record.kind = profile::Kind::kCall;
  record.section = profile::Section::kCall;
  record.event = profile::kCallEvent;
  record.site = state_->site;
  record.start_ns = NowNs();
  const Status status = session->Run(inputs, outputs, sizes);
  record.end_ns = NowNs();
  profile::Add(record);
  return status;
}

Status Model::Run(std::span<const View> inputs, std::span<const View> outputs) const {
  THRESHER_ASSIGN(const Call call, Find(inputs));
  return RunCall(call, inputs, outputs);
}

Result<std::vector<OwnedTensor>> Model::Run(std::span<const View> inputs) const {
  THRESHER_ASSIGN(const Call call, Find(inputs));
  THRESHER_ASSIGN(const std::vector<PortType> ports, OutputsOf(call));
  std::vector<OwnedTensor> tensors;
  std::vector<View> views;
  for (const PortType& port : ports) {
    const size_t size = static_cast<size_t>(NumElements(port.shape)) * SizeOf(port.dtype);
    OwnedTensor tensor{port.dtype, port.shape, std::make_shared<std::vector<std::byte>>(size)};
    views.push_back(MakeView(tensor.bytes->data(), port.dtype, port.shape));
    tensors.push_back(std::move(tensor));
  }
  THRESHER_TRY(RunCall(call, inputs, views));
  return tensors;
}

Result<Model> LoadModel(const std::string& path, const LoadOptions& chosen) {
  THRESHER_TRY(Initialize());
  THRESHER_ASSIGN(ModelContents contents, ReadModelFile(path));
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
  for (ModelGraph& read : contents.graphs) {
    ModelGraph entry = std::move(read);  // each is gone before the next is compiled
    auto shape = std::make_unique<Model::Shape>();
    shape->options = options.value();
    shape->options.plan.name = contents.name;
    if (contents.graphs.size() > 1) shape->options.plan.name += "_" + std::to_string(state->shapes.size());
    shape->family = std::move(entry.family);
    shape->capacity = entry.capacity;
    const auto compile = [&]() -> Result<std::unique_ptr<Session>> {
      if (!shape->family) return Compile(entry.graph, state->weights, shape->options);
      THRESHER_ASSIGN(const Graph largest, shape->family->At(shape->capacity));
      return Compile(largest, state->weights, shape->options);
    };
    Result<std::unique_ptr<Session>> session = compile();
    if (!session.ok()) {
      return Status(session.status().code(), "model file " + path + ": " + session.status().message());
    }
    shape->session = std::move(session).value();
    const Plan& plan = shape->session->plan();
    shape->output_names = std::move(entry.output_names);
    shape->outputs = plan.outputs;
    shape->Name(shape->outputs);
    if (shape->family) {
      const std::vector<std::string>& names = shape->family->names();
      for (size_t i = 0; i < names.size(); ++i) {
        shape->sizes.push_back({names[i], GraphFamily::kLeastSize, shape->capacity[i]});
      }
    }
    state->shapes.push_back(std::move(shape));
  }
  state->source = contents.source;
  if (state->source != nullptr) state->source->Trim();
  return Model(std::move(state));
}

}  // namespace thresher
