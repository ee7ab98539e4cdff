#include "thresher/plan/plan.h"

#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <utility>

#include "thresher/base/thread_pool.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/module.h"
#include "thresher/graph/printer.h"
#include "thresher/run/compile.h"

namespace thresher::bindings {
namespace {

// The interpreter owns the result.
Session* Build(const Graph& graph, WeightStore& weights, const std::string& level,
               std::optional<std::vector<std::string>> passes, std::optional<nb::callable> dump, bool share_memory,
               int num_threads, const std::string& precision, const std::vector<std::string>& exclude,
               std::optional<double> max_weight_error) {
  CompileOptions options;
  options.level = level;
  options.passes = std::move(passes);
  options.plan.num_threads = num_threads > 0 ? num_threads : ThreadPool::Global().num_threads();
  options.plan.share_memory = share_memory;
  options.precision = {precision, exclude, max_weight_error};
  if (dump) {
    options.dump = [&](std::string_view pass, const Graph& g) {
      const nb::gil_scoped_acquire lock;
      (*dump)(std::string(pass), PrintGraph(g, {.digests = false}));
    };
  }
  Result<std::unique_ptr<Session>> session = [&] {
    const nb::gil_scoped_release release;
    return Compile(graph, weights, options);
  }();
  return Unwrap(std::move(session)).release();
}

void Run(Session& session, const std::vector<Array>& inputs, const std::vector<MutableArray>& outputs) {
  std::vector<View> in, out;
  in.reserve(inputs.size());
  out.reserve(outputs.size());
  for (const Array& array : inputs) in.push_back(ViewOf(array));
  for (const MutableArray& array : outputs) out.push_back(ViewOf(array));
  Status status;
  {
    const nb::gil_scoped_release release;
    status = session.Run(in, out);
  }
  Check(status);
}

nb::list Steps(const Session& session) {
  static constexpr const char* kSections[] = {"forward", "reshape", "alloc"};
  nb::list steps;
  for (const Step& step : session.plan().steps) {
    nb::dict entry;
    entry["name"] = step.name;
    entry["source"] = step.source;
    entry["module"] = step.module;
    entry["section"] = kSections[static_cast<size_t>(step.section)];
    entry["parallel"] = step.parallel;
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

nb::list Inputs(const Session& session) {
  nb::list ports;
  for (const PortType& port : session.plan().inputs) {
    ports.append(nb::make_tuple(port.name, std::string(Name(port.dtype)), ToPython(port.shape)));
  }
  return ports;
}

nb::list Outputs(const Session& session) {
  nb::list ports;
  for (const PortType& port : session.plan().outputs) {
    ports.append(nb::make_tuple(std::string(Name(port.dtype)), ToPython(port.shape)));
  }
  return ports;
}

}  // namespace

void BindPlan(nb::module_& m) {
  nb::class_<WeightStore>(m, "WeightStore", "Packed weights, shared between the plans of one model.")
      .def(nb::init<>())
      .def_prop_ro("bytes", &WeightStore::bytes);
  nb::class_<Session>(m, "Plan", "A compiled graph: build() it, then run() it from any number of threads.")
      .def_static("build", &Build, nb::arg("graph"), nb::arg("weights"), nb::arg("level") = "O2",
                  nb::arg("passes") = nb::none(), nb::arg("dump") = nb::none(), nb::arg("share_memory") = true,
                  nb::arg("num_threads") = 0, nb::arg("precision") = "fp32",
                  nb::arg("exclude") = std::vector<std::string>(), nb::arg("max_weight_error") = nb::none())
      .def("run", &Run, nb::arg("inputs"), nb::arg("outputs"),
           nb::sig("def run(self, inputs: Sequence[object], outputs: Sequence[object]) -> None"))
      .def("steps", &Steps, nb::sig("def steps(self) -> list[dict[str, object]]"))
      .def("precision_decisions", &PrecisionDecisions,
           nb::sig("def precision_decisions(self) -> list[dict[str, object]]"),
           "One dict per linear where a precision other than fp32 was asked for: module, source, op, k, n, precision, "
           "weight_error (None: not measured) and reason.")
      .def_prop_ro("inputs", &Inputs, nb::sig("def inputs(self) -> list[tuple[str, str, tuple[int, ...]]]"))
      .def_prop_ro("outputs", &Outputs, nb::sig("def outputs(self) -> list[tuple[str, tuple[int, ...]]]"))
      .def_prop_ro("num_threads", [](const Session& s) { return s.plan().num_threads; })
      .def_prop_ro(
          "arena_bytes",
          [](const Session& s) { return s.plan().arena_bytes + s.plan().scratch_bytes * s.plan().num_threads; })
      .def_prop_ro("unplanned_bytes", [](const Session& s) { return s.plan().unplanned_bytes; })
      .def_prop_ro("graph_text", [](const Session& s) { return s.plan().graph_text; });
}

}  // namespace thresher::bindings
