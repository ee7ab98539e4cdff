// The places that records are about: a step of a plan, a graph, a kind of allocation.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "thresher/profile/events.h"

namespace thresher::profile {

// What every record of one place has in common. Members that do not apply stay empty.
struct Site {
  std::string name;       // of the operator, as reports sum it up
  std::string kernel;     // operator and kernel variant: "linear int8 avx512_vnni"
  std::string shapes;     // of the operands: "1x128x384, 384x1536"
  std::string dtypes;     // of the operands: "f32, f32"
  std::string outputs;    // shapes of the results
  std::string precision;  // of the arithmetic: "fp32", "bf16", ...
  std::string module;     // path of the nn.Module: "encoder.layer.0.output.dense"
  std::string source;     // line of the model: "model.py:12 in forward"
  std::string graph;      // the compiled graph
  Section section = Section::kForward;
  uint16_t hardware = kKernelEvent;  // what a kOp record is on the device
  int step = -1;                     // number of the step in its plan
  double flops = -1;                 // floating-point operations of one run; < 0: not modelled
  double bytes = -1;                 // memory that one run reads and writes; < 0: not modelled
};

// The site as the object that trace files hold.
std::string ToJson(const Site& site, uint32_t number);

// Numbers for sites. Grows with the number of different places, not with time. Not thread safe.
class SiteTable {
 public:
  SiteTable() { Number(Site{}); }  // 0: nothing is known

  // The same number for the same content.
  uint32_t Number(Site site);

  // Valid as long as the table.
  const Site& operator[](uint32_t number) const { return sites_[number < sites_.size() ? number : 0]; }
  size_t size() const { return sites_.size(); }

 private:
  std::deque<Site> sites_;  // a deque never moves what it holds
  std::map<std::string, uint32_t> numbers_;
};

}  // namespace thresher::profile
