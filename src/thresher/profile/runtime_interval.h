// Records what a host thread does from one brace to the other.
#pragma once

#include <cstdint>
#include <string>

#include "thresher/base/clock.h"
#include "thresher/profile/profiler.h"

namespace thresher::profile {

class RuntimeInterval {
 public:
  // `name` is what the event is about, such as a graph. With `on` false, or while nobody wants records, it does
  // nothing.
  explicit RuntimeInterval(uint16_t event, std::string name = {}, bool on = true, Section section = Section::kCall)
      : on_(on && Enabled()), event_(event), section_(section), name_(on_ ? std::move(name) : std::string()) {
    if (on_) start_ = NowNs();
  }

  ~RuntimeInterval() {
    if (!on_) return;
    Record record;
    record.end_ns = NowNs();
    record.start_ns = start_;
    record.kind = Kind::kRuntime;
    record.section = section_;
    record.event = event_;
    Site site;
    site.name = std::move(name_);
    site.section = section_;
    record.site = NumberOf(std::move(site));
    Add(record);
  }

  RuntimeInterval(const RuntimeInterval&) = delete;
  RuntimeInterval& operator=(const RuntimeInterval&) = delete;

 private:
  const bool on_;
  const uint16_t event_;
  const Section section_;
  std::string name_;
  int64_t start_ = 0;
};

}  // namespace thresher::profile
