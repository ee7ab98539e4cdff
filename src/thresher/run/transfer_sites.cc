#include "thresher/run/transfer_sites.h"

namespace thresher {

profile::Site SiteOfCopy(std::string_view name, size_t bytes) {
  profile::Site site;
  site.name = site.kernel = name;
  site.section = profile::Section::kReshape;
  site.hardware = profile::kMemcpyEvent;
  site.flops = 0;
  site.bytes = static_cast<double>(bytes);
  return site;
}

profile::Site SiteOfFill(size_t bytes) {
  profile::Site site = SiteOfCopy("Memset", bytes);
  site.hardware = profile::kMemsetEvent;
  return site;
}

}  // namespace thresher
