#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <memory>
#include <tuple>
#include <utility>

#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/plan/weight_store.h"
#include "thresher/run/model_file.h"
#include "thresher/run/model_format.h"
#include "thresher/run/session.h"

namespace thresher::bindings {
namespace {

// The interpreter owns the result.
std::unique_ptr<Model> Load(const std::string& path, const std::string& level, std::optional<std::string> precision,
                            std::optional<std::vector<std::string>> exclude, std::optional<double> max_weight_error,
                            int num_threads, bool use_tuning) {
  LoadOptions options;
  options.optimization_level = level;
  options.precision = std::move(precision);
  options.precision_exclude = std::move(exclude);
  options.max_weight_error = max_weight_error;
  options.num_threads = num_threads;
  options.use_tuning = use_tuning;
  Result<Model> model = [&] {
    const GilRelease release;
    return LoadModel(path, options);
  }();
  return std::make_unique<Model>(Unwrap(std::move(model)));
}

void Write(const std::string& path, std::string name,
           const std::vector<std::tuple<Graph, std::vector<std::string>>>& graphs,
           const std::vector<std::tuple<GraphFamily, Dims, std::vector<std::string>>>& families, std::string precision,
           std::vector<std::string> exclude, std::optional<double> max_weight_error) {
  ModelContents model;
  model.name = std::move(name);
  model.precision = {std::move(precision), std::move(exclude), max_weight_error};
  for (const auto& [family, capacity, outputs] : families) {
    model.graphs.push_back({family.graph(), outputs, family, capacity});
  }
  for (const auto& [graph, outputs] : graphs) model.graphs.push_back({graph, outputs, {}, {}});
  const Status status = [&] {
    const GilRelease release;
    return WriteModelFile(path, model);
  }();
  Check(status);
}

template <class A>
std::vector<View> ViewsOf(const std::vector<A>& arrays) {
  std::vector<View> views;
  views.reserve(arrays.size());
  for (const A& array : arrays) views.push_back(ViewOf(array));
  return views;
}

void Run(const Model& model, const std::vector<Array>& inputs, const std::vector<MutableArray>& outputs) {
  const std::vector<View> in = ViewsOf(inputs);
  const std::vector<View> out = ViewsOf(outputs);
  const Status status = [&] {
    const GilRelease release;
    return model.Run(in, out);
  }();
  Check(status);
}

void CheckShape(const Model& model, size_t shape) {
  if (shape >= model.num_shapes()) {
    throw nb::index_error(("the model has " + std::to_string(model.num_shapes()) + " combinations of shapes").c_str());
  }
}

nb::list ToPython(const std::vector<PortType>& ports) {
  nb::list list;
  for (const PortType& port : ports) {
    list.append(nb::make_tuple(port.name, std::string(Name(port.dtype)), bindings::ToPython(port.shape)));
  }
  return list;
}

nb::tuple Find(const Model& model, const std::vector<Array>& inputs) {
  const Model::Call call = Unwrap(model.Find(ViewsOf(inputs)));
  const std::vector<PortType> outputs = Unwrap([&] {
    const GilRelease release;
    return model.OutputsOf(call);
  }());
  return nb::make_tuple(call.shape, ToPython(outputs));
}

nb::list Inputs(const Model& model, size_t shape, std::optional<Dims> sizes) {
  CheckShape(model, shape);
  if (!sizes) return ToPython(model.inputs(shape));
  return ToPython(Unwrap(model.InputsOf({shape, *std::move(sizes)})));
}

nb::list Outputs(const Model& model, size_t shape) {
  CheckShape(model, shape);
  return ToPython(model.outputs(shape));
}

nb::dict Sizes(const Model& model, size_t shape) {
  CheckShape(model, shape);
  nb::dict sizes;
  for (const Model::Size& size : model.sizes(shape))
    sizes[size.name.c_str()] = nb::make_tuple(size.least, size.largest);
  return sizes;
}

Session& PlanAt(const Model& model, size_t shape) {
  CheckShape(model, shape);
  return model.session(shape);
}

}  // namespace

void BindModel(nb::module_& m) {
  nb::class_<Model>(m, "Model", "A loaded model file: run() it from any number of threads.")
      .def_static("load", &Load, nb::arg("path"), nb::arg("level") = "O2", nb::arg("precision") = nb::none(),
                  nb::arg("exclude") = nb::none(), nb::arg("max_weight_error") = nb::none(), nb::arg("num_threads") = 0,
                  nb::arg("use_tuning") = true)
      .def_prop_ro("name", &Model::name)
      .def_prop_ro("engine", &Model::engine, "The version of the engine that wrote the file.")
      .def_prop_ro("precision", &Model::precision)
      .def_prop_ro("num_shapes", &Model::num_shapes)
      .def_prop_ro("weight_bytes", [](const Model& model) { return model.weights().bytes(); })
      .def("inputs", &Inputs, nb::arg("shape") = 0, nb::arg("sizes") = nb::none(),
           nb::sig("def inputs(self, shape: int = 0, sizes: Sequence[int] | None = None) "
                   "-> list[tuple[str, str, tuple[int, ...]]]"))
      .def("outputs", &Outputs, nb::arg("shape") = 0,
           nb::sig("def outputs(self, shape: int = 0) -> list[tuple[str, str, tuple[int, ...]]]"))
      .def(
          "sizes", &Sizes, nb::arg("shape") = 0,
          nb::sig("def sizes(self, shape: int = 0) -> dict[str, tuple[int, int]]"),
          "Of a combination for many sizes: the least and the largest of each; its inputs and outputs are the largest.")
      .def("find", &Find, nb::arg("inputs"),
           nb::sig("def find(self, inputs: Sequence[object]) -> tuple[int, list[tuple[str, str, tuple[int, ...]]]]"),
           "Which combination of shapes these inputs have, and what the outputs are then.")
      .def("run", &Run, nb::arg("inputs"), nb::arg("outputs"),
           nb::sig("def run(self, inputs: Sequence[object], outputs: Sequence[object]) -> None"))
      .def("plan", &PlanAt, nb::arg("shape") = 0, nb::rv_policy::reference_internal);
  m.def("write_model", &Write, nb::arg("path"), nb::arg("name"), nb::arg("graphs"), nb::arg("families") = nb::list(),
        nb::arg("precision") = "model", nb::arg("exclude") = std::vector<std::string>(),
        nb::arg("max_weight_error") = nb::none(),
        nb::sig("def write_model(path: str, name: str, graphs: Sequence[tuple[Graph, Sequence[str]]], "
                "families: Sequence[tuple[GraphFamily, Sequence[int], Sequence[str]]] = [], precision: str = "
                "\"model\", exclude: Sequence[str] = [], max_weight_error: float | None = None) -> None"),
        "Writes graphs, families of them with their largest sizes, and the names of their outputs to a model file.");
}

}  // namespace thresher::bindings
