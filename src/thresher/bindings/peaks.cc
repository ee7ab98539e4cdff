#include "thresher/kernels/peaks.h"

#include "thresher/base/thread_pool.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"

namespace thresher::bindings {
namespace {

nb::dict ToPython(const kernels::Rate& rate) {
  nb::dict entry;
  entry["median"] = rate.median;
  entry["min"] = rate.min;
  entry["max"] = rate.max;
  return entry;
}

nb::dict ToPython(const kernels::ThreadPeaks& peaks) {
  nb::dict entry;
  entry["num_threads"] = peaks.num_threads;
  entry["rounds"] = peaks.rounds;
  entry["fp32_gflops"] = ToPython(peaks.fp32);
  entry["bf16_gflops"] = peaks.bf16 ? nb::object(ToPython(*peaks.bf16)) : nb::none();
  entry["fp16_gflops"] = peaks.fp16 ? nb::object(ToPython(*peaks.fp16)) : nb::none();
  entry["int8_gops"] = ToPython(peaks.int8);
  entry["l1_read_gb_per_s"] = ToPython(peaks.l1_read);
  entry["l2_read_gb_per_s"] = ToPython(peaks.l2_read);
  entry["l3_read_gb_per_s"] = ToPython(peaks.l3_read);
  entry["dram_read_gb_per_s"] = ToPython(peaks.dram_read);
  entry["dram_write_gb_per_s"] = ToPython(peaks.dram_write);
  entry["dram_copy_gb_per_s"] = ToPython(peaks.dram_copy);
  entry["l1_buffer_bytes"] = peaks.l1_buffer;
  entry["l2_buffer_bytes"] = peaks.l2_buffer;
  entry["l3_buffer_bytes"] = peaks.l3_buffer;
  entry["dram_buffer_bytes"] = peaks.dram_buffer;
  return entry;
}

nb::dict MeasurePeaks(std::vector<int> num_threads, bool quick, const nb::object& progress) {
  kernels::PeaksOptions options;
  options.num_threads = std::move(num_threads);
  options.nodes = kernels::NodesToMeasure(UsableTopology());
  if (quick) {
    options.rounds = 3;
    options.sample_ns = 200'000;
    options.most_dram_bytes = 16 << 20;
  }
  const auto report = [&progress](int done, int total) {
    const GilAcquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C
    if (!progress.is_none()) progress(done, total);
  };
  Result<kernels::Peaks> measured = [&] {
    const GilRelease release;
    return kernels::MeasurePeaks(options, report);
  }();
  const kernels::Peaks peaks = Unwrap(std::move(measured));
  nb::list by_threads;
  for (const kernels::ThreadPeaks& entry : peaks.by_threads) by_threads.append(ToPython(entry));
  nb::list by_node;
  for (const kernels::NodePeaks& node : peaks.by_node) {
    nb::dict entry;
    entry["node"] = node.node;
    entry["num_threads"] = node.num_threads;
    entry["dram_read_gb_per_s"] = ToPython(node.dram_read);
    by_node.append(entry);
  }
  nb::dict result;
  result["by_node"] = by_node;
  result["simd_target"] = peaks.target;
  result["int8_by"] = peaks.int8_by;
  result["by_threads"] = by_threads;
  return result;
}

}  // namespace

void BindPeaks(nb::module_& m) {
  m.def("measure_peaks", &MeasurePeaks, nb::arg("num_threads"), nb::arg("quick") = false,
        nb::arg("progress") = nb::none(),
        nb::sig("def measure_peaks(num_threads: collections.abc.Sequence[int], quick: bool = False, progress: "
                "collections.abc.Callable[[int, int], object] | None = None) -> dict[str, object]"),
        "Measures arithmetic and memory speed with each number of threads; `quick` is for tests.");
}

}  // namespace thresher::bindings
