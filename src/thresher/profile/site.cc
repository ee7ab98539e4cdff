#include "thresher/profile/site.h"

#include <string_view>
#include <utility>

#include "thresher/base/json.h"

namespace thresher::profile {

std::string ToJson(const Site& site, uint32_t number) {
  std::string out = "{\"id\": " + std::to_string(number);
  const auto add = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) out += ", \"" + std::string(key) + "\": " + json::Quote(value);
  };
  out += ", \"name\": " + json::Quote(site.name);
  add("kernel", site.kernel);
  add("shapes", site.shapes);
  add("dtypes", site.dtypes);
  add("outputs", site.outputs);
  add("precision", site.precision);
  add("module", site.module);
  add("source", site.source);
  add("graph", site.graph);
  out += ", \"section\": " + json::Quote(Name(site.section)) + ", \"hardware\": " + std::to_string(site.hardware);
  if (site.step >= 0) out += ", \"step\": " + std::to_string(site.step);
  return out + ", \"flops\": " + json::Number(site.flops) + ", \"bytes\": " + json::Number(site.bytes) + "}";
}

uint32_t SiteTable::Number(Site site) {
  const uint32_t next = static_cast<uint32_t>(sites_.size());
  const auto [it, added] = numbers_.emplace(ToJson(site, 0), next);
  if (added) sites_.push_back(std::move(site));
  return it->second;
}

}  // namespace thresher::profile
