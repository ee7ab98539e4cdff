#include "thresher/plan/plan.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "thresher/base/thread_pool.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/device.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/graph/graph_family.h"
#include "thresher/graph/printer.h"
#include "thresher/plan/extent.h"
#include "thresher/profile/profiler.h"
#include "thresher/run/compile.h"

namespace thresher::bindings {
namespace {

// Calls a pass written in Python. What it raises goes through the engine as it is.
Result<Graph> CallPass(const std::string& name, const nb::callable& function, const Graph& graph) {
  const GilAcquire lock;
  const nb::object made = function(nb::cast(graph, nb::rv_policy::copy));
  if (nb::isinstance<Graph>(made)) return nb::cast<Graph>(made);
  throw nb::type_error(("pass " + name + ": expected a Graph as its result, got " +
                        nb::cast<std::string>(made.type().attr("__name__")) + "; return the graph, changed or not")
                           .c_str());
}

// Names of engine passes, or (name, function) for passes written in Python.
void AddPasses(const nb::iterable& passes, CompileOptions& options) {
  options.passes.emplace();
  for (const nb::handle entry : passes) {
    if (nb::isinstance<nb::str>(entry)) {
      options.passes->push_back(nb::cast<std::string>(entry));
      continue;
    }
    auto [name, function] = nb::cast<std::pair<std::string, nb::callable>>(entry);
    options.passes->push_back(name);
    options.custom_passes[name] = [name, function](const Graph& graph) { return CallPass(name, function, graph); };
  }
}

CompileOptions OptionsFrom(const std::string& level, bool share_memory, int num_threads, const std::string& precision,
                           const std::vector<std::string>& exclude, std::optional<double> max_weight_error,
                           bool use_tuning, const std::string& name, std::shared_ptr<Device> device, bool allow_tf32,
                           bool graphs) {
  CompileOptions options;
  options.graphs = graphs;
  if (device != nullptr) options.device = std::move(device);
  options.plan.allow_tf32 = allow_tf32;
  options.level = level;
  options.plan.name = name;
  options.plan.num_threads = num_threads > 0 ? num_threads : ThreadPool::Global().num_threads();
  options.plan.share_memory = share_memory;
  options.plan.tuning = use_tuning ? &TuningTable::Global() : nullptr;
  options.precision = {precision, exclude, max_weight_error};
  return options;
}

// `dump` outlives the result.
std::function<void(std::string_view pass, const Graph& graph)> DumpTo(const nb::callable& dump) {
  return [&dump](std::string_view pass, const Graph& graph) {
    const GilAcquire lock;
    dump(std::string(pass), PrintGraph(graph, {.digests = false}));
  };
}

// The interpreter owns the result.
Session* Build(const Graph& graph, WeightStore& weights, const std::string& level, std::optional<nb::iterable> passes,
               std::optional<nb::callable> dump, bool share_memory, int num_threads, const std::string& precision,
               const std::vector<std::string>& exclude, std::optional<double> max_weight_error, bool use_tuning,
               const std::string& name, std::shared_ptr<Device> device, bool allow_tf32, bool graphs) {
  CompileOptions options = OptionsFrom(level, share_memory, num_threads, precision, exclude, max_weight_error,
                                       use_tuning, name, std::move(device), allow_tf32, graphs);
  if (passes) AddPasses(*passes, options);
  if (dump) options.dump = DumpTo(*dump);
  Result<std::unique_ptr<Session>> session = [&] {
    const GilRelease release;
    return Compile(graph, weights, options);
  }();
  return Unwrap(std::move(session)).release();
}

// Why a graph can have no plan for a device; empty where it can.
std::string PlanObstacle(const Graph& graph, std::shared_ptr<Device> device, const std::string& level,
                         std::optional<std::vector<std::string>> passes) {
  CompileOptions options;
  options.device = std::move(device);
  options.level = level;
  options.passes = std::move(passes);
  options.plan.recorded = false;
  WeightStore weights;
  const GilRelease release;
  return CompilePlan(graph, weights, options).status().message();
}

GraphFamily FitFamily(std::vector<std::string> names, int degree,
                      const std::vector<std::pair<Dims, const Graph*>>& samples) {
  std::vector<GraphFamily::Sample> given;
  given.reserve(samples.size());
  for (const auto& [sizes, graph] : samples) given.push_back({sizes, graph});
  return Unwrap(GraphFamily::Fit(std::move(names), degree, given));
}

// The interpreter owns the result.
Session* BuildExtent(const GraphFamily& family, WeightStore& weights, const Dims& seed, const Dims& capacity,
                     const std::string& level, std::optional<std::vector<std::string>> passes,
                     std::optional<nb::callable> dump, bool share_memory, int num_threads, const std::string& precision,
                     const std::vector<std::string>& exclude, std::optional<double> max_weight_error, bool use_tuning,
                     const std::string& name, std::shared_ptr<Device> device, bool allow_tf32, bool graphs) {
  CompileOptions options = OptionsFrom(level, share_memory, num_threads, precision, exclude, max_weight_error,
                                       use_tuning, name, std::move(device), allow_tf32, graphs);
  options.passes = std::move(passes);
  if (dump) options.dump = DumpTo(*dump);
  Result<std::unique_ptr<Session>> session = [&] {
    const GilRelease release;
    return CompileExtent(family, weights, options, seed, capacity);
  }();
  return Unwrap(std::move(session)).release();
}

const Extent& ExtentOf(const Session& session) {
  if (session.plan().extent == nullptr) throw nb::value_error("the plan is for one size of each input alone");
  return *session.plan().extent;
}

// A plan for many sizes at some of them, or one for one size of each input, at none.
struct PlanAtSizes {
  nb::object owner;  // of the session
  Session* session = nullptr;
  Dims sizes;
};

PlanAtSizes At(nb::object self, Dims sizes) {
  auto* session = nb::cast<Session*>(self);
  if (session->plan().extent != nullptr || !sizes.empty()) {
    ExtentOf(*session);
    Check(CheckSizes(session->plan(), sizes));
  }
  return {std::move(self), session, std::move(sizes)};
}

std::vector<int64_t> Numbers(const Session& session, const Dims& sizes) {
  if (session.plan().extent == nullptr) return NumbersOf(session.plan());
  return NumbersOf(Unwrap(PlanAt(session.plan(), sizes)));
}

void Run(Session& session, const std::vector<Array>& inputs, const std::vector<MutableArray>& outputs,
         const Dims& sizes) {
  for (const PortType& port : session.plan().inputs) {
    if (port.state) {
      throw nb::value_error(
          ("expected run_at() for a plan with state, which runs write to, got run() with state " + port.name).c_str());
    }
  }
  std::vector<View> in, out;
  in.reserve(inputs.size());
  out.reserve(outputs.size());
  for (const Array& array : inputs) in.push_back(ViewOf(array));
  for (const MutableArray& array : outputs) out.push_back(ViewOf(array));
  Status status;
  {
    const GilRelease release;
    status = session.Run(in, out, sizes);
  }
  Check(status);
}

// Windows on memory that is known to hold elements of the ports' types. Of each: its address, a number whose lowest 8
// bits are the rank, sizes and strides, as words of 64 bits.
std::vector<View> ViewsAt(const char* words, size_t count, const std::vector<PortType>& ports) {
  size_t next = 0;
  const auto read = [&] {
    int64_t word = 0;
    if (next >= count) throw nb::value_error("places: expected an entry for each input and output of the plan");
    std::memcpy(&word, words + sizeof(word) * next++, sizeof(word));
    return word;
  };
  std::vector<View> views(ports.size());
  for (size_t i = 0; i < views.size(); ++i) {
    View& view = views[i];
    view.data = std::bit_cast<void*>(read());
    view.dtype = ports[i].dtype;
    view.rank = static_cast<int>(read() & 0xFF);
    if (view.rank > kMaxRank) throw nb::value_error("places: a tensor has more dimensions than the engine knows");
    for (int d = 0; d < view.rank; ++d) view.shape[d] = read();
    for (int d = 0; d < view.rank; ++d) view.strides[d] = read();
  }
  if (next != count)
    throw nb::value_error("places: expected no more than an entry for each input and output of the plan");
  return views;
}

std::vector<View> ViewsAt(const nb::bytes& places, const std::vector<PortType>& ports) {
  return ViewsAt(static_cast<const char*>(places.data()), places.size() / sizeof(int64_t), ports);
}

// For programs in C: RunAt of a PlanAtSizes; false where it fails. The caller has Python's lock, which is given up
// while the plan runs.
bool RunWords(const void* plan, const int64_t* inputs, size_t num_inputs, const int64_t* outputs,
              size_t num_outputs) noexcept {
  const auto& at = *static_cast<const PlanAtSizes*>(plan);
  const auto views = [](const int64_t* words, size_t count, const std::vector<PortType>& ports) {
    return ViewsAt(reinterpret_cast<const char*>(words), count, ports);
  };
  try {
    const std::vector<View> in = views(inputs, num_inputs, at.session->plan().inputs);
    const std::vector<View> out = views(outputs, num_outputs, at.session->plan().outputs);
    const GilRelease release;
    return at.session->Run(in, out, at.sizes).ok();
  } catch (const std::exception&) {
    return false;
  }
}

// As Run, of memory that the caller knows to hold elements of the plan's types.
void RunAt(Session& session, const nb::bytes& inputs, const nb::bytes& outputs, const Dims& sizes,
           std::optional<uintptr_t> stream) {
  const std::vector<View> in = ViewsAt(inputs, session.plan().inputs);
  const std::vector<View> out = ViewsAt(outputs, session.plan().outputs);
  Status status;
  {
    const GilRelease release;
    status = stream ? session.LaunchOn(std::bit_cast<void*>(*stream), in, out, sizes) : session.Run(in, out, sizes);
  }
  Check(status);
}

// The run, and what it works on.
struct PausableRunAt {
  nb::object owner;  // of the session
  std::unique_ptr<PausableRun> run;
};

PausableRunAt BeginAt(nb::object self, const nb::bytes& inputs, const nb::bytes& outputs, const Dims& sizes) {
  auto* session = nb::cast<Session*>(self);
  const std::vector<View> in = ViewsAt(inputs, session->plan().inputs);
  const std::vector<View> out = ViewsAt(outputs, session->plan().outputs);
  return {std::move(self), Unwrap(session->Begin(in, out, sizes))};
}

bool RunFor(PausableRunAt& self, double seconds) {
  const auto budget = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e6) * 1e9);
  Result<bool> done = [&] {
    const GilRelease release;
    return self.run->Continue(budget);
  }();
  return Unwrap(std::move(done));
}

// Views on whole buffers, which are at least as long as the ports want.
std::vector<View> ViewsOn(const HeldStream& stream, const std::vector<const HeldBuffer*>& buffers,
                          const std::vector<PortType>& ports, const char* kind) {
  std::vector<View> views;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const std::string name = kind + (" " + std::to_string(i));
    if (buffers[i] == nullptr) throw nb::value_error((name + ": expected a buffer, got None").c_str());
    View view;
    if (i < ports.size()) {  // where there are too many the plan says so
      view = MakeView(nullptr, ports[i].dtype, ports[i].shape);
      view.data = Part(stream, *buffers[i], 0, view.size() * static_cast<int64_t>(SizeOf(view.dtype)), name);
    }
    views.push_back(view);
  }
  return views;
}

void Launch(Session& session, HeldStream& stream, const std::vector<const HeldBuffer*>& inputs,
            const std::vector<const HeldBuffer*>& outputs, const Dims& sizes) {
  if (session.device() != stream.device) throw nb::value_error("stream: expected one of the plan's own device");
  const bool many = session.plan().extent != nullptr;
  const std::optional<Plan> sized = many ? std::optional(Unwrap(PlanAt(session.plan(), sizes))) : std::nullopt;
  const Plan& plan = many ? *sized : session.plan();
  const std::vector<View> in = ViewsOn(stream, inputs, plan.inputs, "input");
  const std::vector<View> out = ViewsOn(stream, outputs, plan.outputs, "output");
  Status status;
  {
    const GilRelease release;
    status = session.Launch(*stream.stream, in, out, sizes);
  }
  Check(status);
}

nb::list Steps(const Session& session) {
  static constexpr const char* kSections[] = {"forward", "reshape", "alloc"};
  nb::list steps;
  const std::vector<bool> banded = BandedSteps(session.plan());
  for (size_t s = 0; s < banded.size(); ++s) {
    const Step& step = session.plan().steps[s];
    nb::dict entry;
    entry["name"] = step.name;
    entry["kernel"] = std::string(Name(step.kernel));
    entry["source"] = step.source;
    entry["module"] = step.module;
    entry["section"] = kSections[static_cast<size_t>(step.section)];
    entry["parts"] = step.parts;
    entry["banded"] = static_cast<bool>(banded[s]);
    entry["flops"] = step.flops;
    entry["bytes"] = step.bytes;
    entry["scratch_bytes"] = step.scratch_bytes;
    steps.append(entry);
  }
  return steps;
}

nb::list PrecisionDecisions(const Session& session) {
  nb::list decisions;
  for (const PrecisionDecision& decision : session.precision_decisions()) {
    nb::dict entry;
    entry["module"] = decision.module;
    entry["source"] = decision.source;
    entry["op"] = decision.op;
    entry["k"] = decision.k;
    entry["n"] = decision.n;
    entry["precision"] = std::string(Name(decision.precision));
    entry["weight_error"] = decision.weight_error;
    entry["reason"] = decision.reason;
    decisions.append(entry);
  }
  return decisions;
}

nb::list Products(const Session& session) {
  nb::list products;
  for (const PlannedProduct& product : session.plan().products) {
    nb::dict entry = ToPython(TunedProduct{product.key, product.blocking});
    entry["tuned_m"] = product.tuned_m;
    products.append(entry);
  }
  return products;
}

nb::list Constants(const Session& session) {
  static constexpr const char* kOrigins[] = {"caller", "engine", "packed"};
  nb::list constants;
  for (const Buffer& buffer : session.plan().buffers) {
    if (buffer.kind != Buffer::Kind::kConstant || buffer.data == nullptr) continue;
    constants.append(nb::make_tuple(reinterpret_cast<uintptr_t>(buffer.data), buffer.bytes,
                                    kOrigins[static_cast<size_t>(buffer.origin)]));
  }
  return constants;
}

nb::list Inputs(const Session& session) {
  nb::list ports;
  for (const PortType& port : session.plan().inputs) {
    ports.append(nb::make_tuple(port.name, std::string(Name(port.dtype)), ToPython(port.shape)));
  }
  return ports;
}

nb::list ToPython(const std::vector<PortType>& outputs) {
  nb::list ports;
  for (const PortType& port : outputs) {
    ports.append(nb::make_tuple(std::string(Name(port.dtype)), bindings::ToPython(port.shape)));
  }
  return ports;
}

}  // namespace

void BindPlan(nb::module_& m) {
  m.def("plan_obstacle", &PlanObstacle, nb::arg("graph"), nb::arg("device"), nb::arg("level") = "O2",
        nb::arg("passes") = nb::none(),
        "Why there can be no plan of the graph for the device; empty where there can be one.");
  nb::class_<GraphFamily>(m, "GraphFamily", "One program for many sizes, told from its graphs at a few of them.")
      .def_static("fit", &FitFamily, nb::arg("names"), nb::arg("degree"), nb::arg("samples"),
                  nb::sig("def fit(names: Sequence[str], degree: int, "
                          "samples: Sequence[tuple[Sequence[int], Graph]]) -> GraphFamily"))
      .def(
          "at", [](const GraphFamily& family, const Dims& sizes) { return Unwrap(family.At(sizes)); }, nb::arg("sizes"),
          nb::sig("def at(self, sizes: Sequence[int]) -> Graph"), "The graph at these sizes.")
      .def_prop_ro("names", &GraphFamily::names);
  nb::class_<PlanAtSizes>(m, "PlanAtSizes", "A plan for many sizes at some of them, or one for one size of each input.")
      .def(
          "run",
          [](PlanAtSizes& self, const std::vector<Array>& inputs, const std::vector<MutableArray>& outputs) {
            Run(*self.session, inputs, outputs, self.sizes);
          },
          nb::arg("inputs"), nb::arg("outputs"),
          nb::sig("def run(self, inputs: Sequence[object], outputs: Sequence[object]) -> None"))
      .def(
          "run_at",
          [](const PlanAtSizes& self, const nb::bytes& inputs, const nb::bytes& outputs,
             std::optional<uintptr_t> stream) { RunAt(*self.session, inputs, outputs, self.sizes, stream); },
          nb::arg("inputs"), nb::arg("outputs"), nb::arg("stream") = nb::none(),
          nb::sig("def run_at(self, inputs: bytes, outputs: bytes, stream: int | None = None) -> None"))
      .def_prop_ro(
          "outputs", [](const PlanAtSizes& self) { return ToPython(OutputsAt(self.session->plan(), self.sizes)); },
          nb::sig("def outputs(self) -> list[tuple[str, tuple[int, ...]]]"))
      .def(
          "door",
          [](const PlanAtSizes& self) {
            return nb::make_tuple(std::bit_cast<uintptr_t>(&RunWords), std::bit_cast<uintptr_t>(&profile::Enabled),
                                  std::bit_cast<uintptr_t>(&self));
          },
          nb::sig("def door(self) -> tuple[int, int, int]"),
          "Addresses for programs in C, valid while this object lives: of a function that is given the third of them, "
          "words as run_at() takes them, how many, those of the outputs and how many, runs the plan and returns "
          "whether that went well; and of one that returns what profile_enabled() does.")
      .def_prop_ro(
          "plan", [](const PlanAtSizes& self) { return self.owner; }, nb::sig("def plan(self) -> Plan"))
      .def_prop_ro(
          "sizes", [](const PlanAtSizes& self) { return bindings::ToPython(self.sizes); },
          nb::sig("def sizes(self) -> tuple[int, ...]"));
  nb::class_<PausableRunAt>(m, "PausableRun", "A run of a plan in pieces, between which anything else may run.")
      .def("run_for", &RunFor, nb::arg("seconds"),
           "Does the next steps, as many as are likely to end in time and at least one; True: all are done. Raises as "
           "run() does, and ValueError where it is over.")
      .def_prop_ro(
          "longest_step_s", [](const PausableRunAt& self) { return static_cast<double>(self.run->longest_ns()) / 1e9; },
          "Of the steps so far.");
  nb::class_<Session>(m, "Plan", "A compiled graph: build() it, then run() it from any number of threads.")
      .def_static(
          "build", &Build, nb::arg("graph"), nb::arg("weights"), nb::arg("level") = "O2",
          nb::arg("passes") = nb::none(), nb::arg("dump") = nb::none(), nb::arg("share_memory") = true,
          nb::arg("num_threads") = 0, nb::arg("precision") = "model", nb::arg("exclude") = std::vector<std::string>(),
          nb::arg("max_weight_error") = nb::none(), nb::arg("use_tuning") = true, nb::arg("name") = "",
          nb::arg("device") = nb::none(), nb::arg("allow_tf32") = false, nb::arg("graphs") = false,
          "A plan for a device, by default the CPU. Raises NotImplementedError naming an operator that it has no "
          "kernel for.")
      .def_static("build_extent", &BuildExtent, nb::arg("family"), nb::arg("weights"), nb::arg("seed"),
                  nb::arg("capacity"), nb::arg("level") = "O2", nb::arg("passes") = nb::none(),
                  nb::arg("dump") = nb::none(), nb::arg("share_memory") = true, nb::arg("num_threads") = 0,
                  nb::arg("precision") = "model", nb::arg("exclude") = std::vector<std::string>(),
                  nb::arg("max_weight_error") = nb::none(), nb::arg("use_tuning") = true, nb::arg("name") = "",
                  nb::arg("device") = nb::none(), nb::arg("allow_tf32") = false, nb::arg("graphs") = false,
                  "A plan for all sizes up to `capacity` at which it looks as it does at `seed`.")
      .def("run", &Run, nb::arg("inputs"), nb::arg("outputs"), nb::arg("sizes") = Dims(),
           nb::sig("def run(self, inputs: Sequence[object], outputs: Sequence[object], sizes: Sequence[int] = ()) "
                   "-> None"))
      .def("launch", &Launch, nb::arg("stream"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("sizes") = Dims(),
           nb::sig("def launch(self, stream: DeviceStream, inputs: Sequence[DeviceBuffer], outputs: "
                   "Sequence[DeviceBuffer], sizes: Sequence[int] = ()) -> None"),
           "run() on row-major tensors that begin where buffers of the plan's device do; returns before they are done.")
      .def("at", &At, nb::arg("sizes"), nb::sig("def at(self, sizes: Sequence[int]) -> PlanAtSizes"),
           "The plan at these sizes, which admits() accepts; of a plan for one size of each input, at none.")
      .def(
          "admits",
          [](const Session& s, const Dims& sizes) {
            ExtentOf(s);
            return CheckSizes(s.plan(), sizes).ok();
          },
          nb::arg("sizes"), nb::sig("def admits(self, sizes: Sequence[int]) -> bool"),
          "Whether the plan is for these sizes.")
      .def("numbers", &Numbers, nb::arg("sizes") = Dims(),
           nb::sig("def numbers(self, sizes: Sequence[int] = ()) -> list[int]"),
           "Everything in the plan that may follow the sizes of a call, in an order that depends on its steps alone.")
      .def_prop_ro(
          "extent",
          [](const Session& s) -> nb::object {
            if (s.plan().extent == nullptr) return nb::none();
            nb::dict extent;
            for (size_t i = 0; i < s.plan().extent->names.size(); ++i) {
              extent[s.plan().extent->names[i].c_str()] =
                  nb::make_tuple(s.plan().extent->least[i], s.plan().extent->capacity[i]);
            }
            return extent;
          },
          nb::sig("def extent(self) -> dict[str, tuple[int, int]] | None"),
          "The least and the largest of each size that the plan is for; None: one shape of each input.")
      .def("run_at", &RunAt, nb::arg("inputs"), nb::arg("outputs"), nb::arg("sizes") = Dims(),
           nb::arg("stream") = nb::none(),
           nb::sig("def run_at(self, inputs: bytes, outputs: bytes, sizes: Sequence[int] = (), "
                   "stream: int | None = None) -> None"),
           "As run(), of memory whose elements have the plan's types. Of each input and output, as words of 64 bits: "
           "address, a number whose lowest 8 bits are the rank, sizes, strides in elements. With the handle of a "
           "stream of the plan's device, of row-major tensors there; returns before they are done.")
      .def("begin_at", &BeginAt, nb::arg("inputs"), nb::arg("outputs"), nb::arg("sizes") = Dims(),
           nb::sig("def begin_at(self, inputs: bytes, outputs: bytes, sizes: Sequence[int] = ()) -> PausableRun"),
           "As run_at(), of a plan for the CPU, in pieces; the memory stays as it is until the last one is done.")
      .def("steps", &Steps, nb::sig("def steps(self) -> list[dict[str, object]]"))
      .def("precision_decisions", &PrecisionDecisions,
           nb::sig("def precision_decisions(self) -> list[dict[str, object]]"),
           "One dict per linear where a precision other than fp32 was asked for: module, source, op, k, n, precision, "
           "weight_error (None: not measured) and reason.")
      .def("products", &Products, nb::sig("def products(self) -> list[dict[str, object]]"),
           "One dict per product with weights: its shape as in tuned(), choice, and tuned_m, the number of rows that "
           "the "
           "choice was measured with (0: not measured).")
      .def_prop_ro("inputs", &Inputs, nb::sig("def inputs(self) -> list[tuple[str, str, tuple[int, ...]]]"))
      .def_prop_ro(
          "outputs", [](const Session& s) { return ToPython(s.plan().outputs); },
          nb::sig("def outputs(self) -> list[tuple[str, tuple[int, ...]]]"))
      .def("constants", &Constants, nb::sig("def constants(self) -> list[tuple[int, int, str]]"),
           "Constants the plan reads: address, bytes, and who made them: caller, engine or packed.")
      .def_prop_ro("name", [](const Session& s) { return s.plan().name; })
      .def_prop_ro("num_threads", [](const Session& s) { return s.plan().num_threads; })
      .def_prop_ro(
          "arena_bytes",
          [](const Session& s) { return s.plan().arena_bytes + s.plan().scratch_bytes * s.plan().num_threads; })
      .def_prop_ro("unplanned_bytes", [](const Session& s) { return s.plan().unplanned_bytes; })
      .def_prop_ro("graph_text", [](const Session& s) { return s.plan().graph_text; });
}

}  // namespace thresher::bindings
