// What each file of the bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace thresher::bindings {

void BindDevice(nanobind::module_& m);
void BindEncoding(nanobind::module_& m);
void BindGraph(nanobind::module_& m);
void BindPeaks(nanobind::module_& m);
void BindPlan(nanobind::module_& m);
void BindModel(nanobind::module_& m);
void BindProfile(nanobind::module_& m);
void BindSystem(nanobind::module_& m);
void BindTexts(nanobind::module_& m);
void BindTuning(nanobind::module_& m);
void BindWatch(nanobind::module_& m);
void BindWeights(nanobind::module_& m);

}  // namespace thresher::bindings
