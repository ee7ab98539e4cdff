#include "thresher/torch_shim/registration.h"

#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <memory>
#include <set>
#include <string>

#include "thresher/torch_shim/kineto.h"
#include "thresher/torch_shim/session.h"

namespace thresher::torch_shim {
namespace {

using libkineto::ActivityType;

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override {
    static const std::string name = "thresher";
    return name;
  }

  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                                 ActivityType::GPU_MEMSET, ActivityType::GPU_USER_ANNOTATION,
                                                 ActivityType::PRIVATEUSE1_RUNTIME};
    return types;
  }

  // Null where the profile does not ask for devices: then nothing is recorded.
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (!types.contains(ActivityType::CONCURRENT_KERNEL)) return nullptr;
    return std::make_unique<Session>(types);
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

}  // namespace

const char* RegisterAll() {
  static bool registered = false;
  if (registered) return nullptr;
  auto& registry = torch::profiler::impl::PrivateUse1ProfilerRegistry::instance();
  if (registry.hasFactory())
    return "another package has registered its profiler for PrivateUse1. Profile without that package";
  registry.registerFactory([] { return std::make_unique<Profiler>(); });
  RegisterStubs();
  RegisterDevice();
  registered = true;
  return nullptr;
}

}  // namespace thresher::torch_shim
