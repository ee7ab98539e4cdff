#include "thresher/plan/tuning.h"

#include <string>
#include <utility>

#include "thresher/base/isa.h"
#include "thresher/base/thread_pool.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/plan/tuner.h"

namespace thresher::bindings {

nb::dict ToPython(const TunedProduct& product) {
  nb::dict choice;
  choice["panel_kib"] = product.blocking.panel_kib;
  choice["most_rows"] = product.blocking.most_rows;
  choice["split"] = std::string(kernels::Name(product.blocking.split));
  choice["variant"] = std::string(kernels::Name(product.blocking.variant));
  nb::dict entry;
  entry["isa"] = std::string(isa::Name(product.key.isa));
  entry["precision"] = std::string(Name(product.key.precision));
  entry["m"] = product.key.m;
  entry["n"] = product.key.n;
  entry["k"] = product.key.k;
  entry["num_threads"] = product.key.num_threads;
  entry["choice"] = choice;
  return entry;
}

namespace {

template <class T>
T Field(const nb::mapping& entry, const char* name) {
  if (!entry.contains(name)) {
    throw nb::value_error((std::string("a tuned product: expected the field \"") + name + "\", got none").c_str());
  }
  T value{};
  const nb::object found = entry[name];
  if (!nb::try_cast<T>(found, value)) {
    throw nb::value_error((std::string("a tuned product: expected another type of \"") + name + "\", got " +
                           nb::cast<std::string>(nb::repr(found)))
                              .c_str());
  }
  return value;
}

template <class T>
T Known(std::optional<T> parsed, const char* name, const std::string& found) {
  if (parsed) return *parsed;
  throw nb::value_error((std::string("a tuned product: expected a known ") + name + ", got \"" + found + "\"").c_str());
}

std::optional<isa::Isa> ParseIsa(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(isa::Isa::kSve2); ++i) {
    if (isa::Name(static_cast<isa::Isa>(i)) == name) return static_cast<isa::Isa>(i);
  }
  return std::nullopt;
}

TunedProduct ProductFrom(const nb::mapping& entry) {
  const auto isa = Field<std::string>(entry, "isa");
  const auto precision = Field<std::string>(entry, "precision");
  const auto choice = Field<nb::mapping>(entry, "choice");
  const auto split = Field<std::string>(choice, "split");
  const auto variant = Field<std::string>(choice, "variant");
  TunedProduct product;
  product.key.isa = Known(ParseIsa(isa), "instruction set", isa);
  product.key.precision = Known(ParsePrecision(precision), "precision", precision);
  product.key.m = Field<int64_t>(entry, "m");
  product.key.n = Field<int64_t>(entry, "n");
  product.key.k = Field<int64_t>(entry, "k");
  product.key.num_threads = Field<int>(entry, "num_threads");
  product.blocking.panel_kib = Field<int32_t>(choice, "panel_kib");
  product.blocking.most_rows = Field<int32_t>(choice, "most_rows");
  product.blocking.split = Known(kernels::ParseSplit(split), "split", split);
  product.blocking.variant = Known(kernels::ParseVariant(variant), "variant", variant);
  return product;
}

void SetTuned(const nb::iterable& products) {
  std::vector<TunedProduct> entries;
  for (const nb::handle product : products) {
    nb::mapping entry;
    if (!nb::try_cast(product, entry)) throw nb::value_error("a tuned product: expected a dict");
    entries.push_back(ProductFrom(entry));
  }
  Check(TuningTable::Global().Replace(entries));
}

nb::list Tuned() {
  nb::list entries;
  for (const TunedProduct& product : TuningTable::Global().Entries()) entries.append(ToPython(product));
  return entries;
}

nb::tuple Scaled(const Quartiles& quartiles, double factor) {
  return nb::make_tuple(quartiles.lower * factor, quartiles.median * factor, quartiles.upper * factor);
}

nb::dict Tune(const std::string& precision, int64_t m, int64_t n, int64_t k, int num_threads, bool quick,
              const nb::object& progress) {
  ProductKey key;
  key.isa = isa::Current();
  key.precision = Known(ParsePrecision(precision), "precision", precision);
  key.m = m, key.n = n, key.k = k;
  key.num_threads = num_threads > 0 ? num_threads : ThreadPool::Global().num_threads();
  TuneOptions options;
  if (quick) {
    options.sample_ns = 20'000;
    options.stage_ns = 2'000'000;
    options.confirm_rounds = 5;
  }
  const auto report = [&progress](double done) {
    const GilAcquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C
    if (!progress.is_none()) progress(done);
  };
  Result<TuneResult> measured = [&] {
    const GilRelease release;
    return TuneProduct(key, options, report);
  }();
  const TuneResult result = Unwrap(std::move(measured));
  constexpr double kUs = 1e-3;
  nb::dict entry = ToPython(TunedProduct{key, result.blocking});
  entry["default_us"] = Scaled(result.by_default, kUs);
  entry["tuned_us"] = Scaled(result.tuned, kUs);
  entry["ratio"] = Scaled(result.ratio, 1);
  entry["candidates"] = result.candidates;
  entry["rounds"] = result.rounds;
  return entry;
}

}  // namespace

void BindTuning(nb::module_& m) {
  m.def(
      "tune_product", &Tune, nb::arg("precision"), nb::arg("m"), nb::arg("n"), nb::arg("k"), nb::arg("num_threads") = 0,
      nb::arg("quick") = false, nb::arg("progress") = nb::none(),
      nb::sig("def tune_product(precision: str, m: int, n: int, k: int, num_threads: int = 0, quick: bool = False, "
              "progress: collections.abc.Callable[[float], object] | None = None) -> dict[str, typing.Any]"),
      "Measures which blocking of a product of m rows with a k x n matrix is fastest. The dict is as in tuned(), with "
      "default_us, tuned_us and ratio (each lower quartile, median and upper quartile), candidates and rounds. "
      "`progress` gets numbers from 0 to 1; `quick` is for tests.");
  m.def("set_tuned", &SetTuned, nb::arg("products"),
        nb::sig("def set_tuned(products: collections.abc.Iterable[collections.abc.Mapping[str, typing.Any]]) -> None"),
        "Replaces the table that plans choose blockings from; entries as in tuned().");
  m.def("tuned", &Tuned, nb::sig("def tuned() -> list[dict[str, typing.Any]]"),
        "The entries of that table: isa, precision, m, n, k, num_threads and choice: panel_kib, most_rows, split and "
        "variant.");
}

}  // namespace thresher::bindings
