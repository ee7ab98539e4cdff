#include "thresher/bindings/module.h"

NB_MODULE(_engine, m) {
  m.doc() = "The Thresher engine: graphs, plans and the profiler. Use the thresher package rather than this module.";
  // Threads and modules outlive the interpreter's own clean-up order; leak reports at exit would be about that.
  nanobind::set_leak_warnings(false);
  thresher::bindings::BindSystem(m);
  thresher::bindings::BindDevice(m);
  thresher::bindings::BindEncoding(m);
  thresher::bindings::BindGraph(m);
  thresher::bindings::BindPlan(m);
  thresher::bindings::BindModel(m);
  thresher::bindings::BindPeaks(m);
  thresher::bindings::BindProfile(m);
  thresher::bindings::BindTexts(m);
  thresher::bindings::BindTuning(m);
  thresher::bindings::BindWatch(m);
  thresher::bindings::BindWeights(m);
}
