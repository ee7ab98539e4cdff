#include <bit>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "thresher/base/cpu.h"
#include "thresher/base/env.h"
#include "thresher/base/isa.h"
#include "thresher/base/kept_memory.h"
#include "thresher/base/precision.h"
#include "thresher/base/thread_pool.h"
#include "thresher/base/topology.h"
#include "thresher/base/version.h"
#include "thresher/bindings/convert.h"
#include "thresher/bindings/gil.h"
#include "thresher/bindings/module.h"
#include "thresher/profile/nvtx.h"
#include "thresher/run/initialize.h"

namespace thresher::bindings {
namespace {

std::vector<std::string> Names(const std::vector<isa::Isa>& isas) {
  std::vector<std::string> names;
  names.reserve(isas.size());
  for (const isa::Isa isa : isas) names.emplace_back(isa::Name(isa));
  return names;
}

nb::list EnvVars() {
  nb::list rows;
  for (const env::Variable& variable : env::Variables()) {
    nb::dict row;
    row["name"] = std::string(variable.name);
    row["type"] = std::string(env::Name(variable.type));
    row["default"] = std::string(variable.default_value);
    row["wanted"] = env::Wanted(variable);
    row["doc"] = std::string(variable.doc);
    row["value"] = env::Raw(variable.name);
    rows.append(row);
  }
  return rows;
}

// The variable's checked value, with the default where it is not set.
nb::object EnvValue(const std::string& name) {
  for (const env::Variable& variable : env::Variables()) {
    if (variable.name != name) continue;
    switch (variable.type) {
      case env::Type::kSwitch:
        return nb::cast(Unwrap(env::GetSwitch(name)));
      case env::Type::kInteger:
        return nb::cast(Unwrap(env::GetInteger(name)));
      case env::Type::kChoice:
      case env::Type::kText:
      case env::Type::kPath:
        return nb::cast(Unwrap(env::GetString(name)));
    }
  }
  throw nb::value_error((name + ": expected a variable that env_vars() lists, got no such name").c_str());
}

nb::dict Machine() {
  nb::dict machine;
  machine["cpu_model"] = CpuModel();
  machine["architecture"] = Architecture();
  machine["isa"] = std::string(isa::Name(isa::Current()));
  machine["usable_cores"] = UsableCores();
  machine["l1_bytes"] = Caches().l1;
  machine["l2_bytes"] = Caches().l2;
  machine["l3_bytes"] = Caches().l3;
  machine["l3_cores"] = Caches().l3_cores;
  return machine;
}

nb::dict TopologyOf(const std::string& root) {
  const Topology topology = ReadTopology(root, root.empty() ? AffinityCpus() : std::vector<int>{});
  nb::dict found;
  found["cpus"] = topology.num_cpus();
  found["fast_cores"] = topology.num_fast();
  found["nodes"] = topology.num_nodes();
  found["caches"] = topology.num_caches();
  found["cpus_per_core"] = topology.most_cpus();
  found["quota"] = CgroupQuota(root);
  found["usable_cores"] = UsableCores(topology, CgroupQuota(root));
  nb::list cores;
  for (const Core& core : topology.cores) {
    nb::dict entry;
    entry["cpus"] = core.cpus;
    entry["package"] = core.package;
    entry["node"] = core.node;
    entry["cache"] = core.cache;
    entry["efficient"] = core.efficient;
    cores.append(entry);
  }
  found["cores"] = cores;
  return found;
}

}  // namespace

void BindSystem(nb::module_& m) {
  m.def(
      "initialize", [] { Check(Initialize()); },
      "Applies the THRESHER_* variables once. Raises ValueError naming a wrong one.");
  m.def("version", [] { return std::string(kVersion); });
  m.def("isa", [] { return std::string(isa::Name(isa::Current())); }, "The instruction set kernels run with.");
  m.def(
      "release_free_memory",
      [] {
#if defined(__GLIBC__)
        const GilRelease release;
        malloc_trim(0);
#endif
      },
      "Gives memory that has been freed back to the system, as far as the C library does so.");
  m.def("isas", [] { return Names(isa::Available()); }, "Those this machine can run, worst first.");
  m.def(
      "isa_refusal", [] { return std::string(isa::Refusal()); },
      "Why an instruction set that the processor has may not be used; empty where all may.");
  m.def("compiled_isas", [] { return Names(isa::Compiled()); }, "Those this build has kernels for, worst first.");
  m.def(
      "precisions", [] { return std::vector<std::string>(std::begin(kPrecisionNames), std::end(kPrecisionNames)); },
      "What products with constant weights can be computed in.");
  m.def("num_threads", [] { return ThreadPool::Global().num_threads(); }, "The threads of the pool, with the caller.");
  m.def("num_teams", &ThreadPool::NumTeams, "THRESHER_TEAMS: how many calls run side by side, each with its threads.");
  m.def("default_num_threads", &ThreadPool::DefaultSize,
        "THRESHER_NUM_THREADS, else OMP_NUM_THREADS or the usable cores of a team, whichever is less.");
  m.def(
      "set_num_threads",
      [](int n) {
        if (n < 1 || n > 1024) throw nb::value_error("expected 1 to 1024 threads");
        const GilRelease release;
        ThreadPool::SetGlobalSize(n);
      },
      nb::arg("n"));
  m.def(
      "set_openmp",
      [](uintptr_t parallel, uintptr_t thread_number, uintptr_t team_size, uintptr_t max_threads) {
        ThreadPool::SetOpenMp({std::bit_cast<decltype(OpenMp::parallel)>(parallel),
                               std::bit_cast<decltype(OpenMp::thread_number)>(thread_number),
                               std::bit_cast<decltype(OpenMp::team_size)>(team_size),
                               std::bit_cast<decltype(OpenMp::max_threads)>(max_threads)});
      },
      nb::arg("parallel"), nb::arg("thread_number"), nb::arg("team_size"), nb::arg("max_threads"),
      "Addresses of GOMP_parallel and of what OpenMP answers about a team: whose threads borrow_openmp() takes.");
  m.def("borrow_openmp", &ThreadPool::BorrowOpenMp,
        "Lets plans that the calling thread runs use OpenMP's threads, until give_back(); whether there are as many.");
  m.def("give_back", &ThreadPool::GiveBack);
  m.def(
      "result_memory",
      [] {
        static_cast<void>(KeptMemory::OfResults());
        void* (*const take)(size_t) = [](size_t bytes) { return KeptMemory::OfResults().Take(bytes); };
        void (*const give)(void*) = [](void* data) { KeptMemory::OfResults().Give(data); };
        return nb::make_tuple(std::bit_cast<uintptr_t>(take), std::bit_cast<uintptr_t>(give), KeptMemory::kLeastBytes);
      },
      nb::sig("def result_memory() -> tuple[int, int, int]"),
      "Addresses of functions that take memory for results and give it back, and from how many bytes on to use "
      "them.");
  m.def(
      "kept_results",
      [] {
        const KeptMemory::Stats stats = KeptMemory::OfResults().stats();
        nb::dict found;
        found["bytes"] = stats.bytes;
        found["blocks"] = stats.blocks;
        found["taken"] = stats.taken;
        found["again"] = stats.again;
        return found;
      },
      nb::sig("def kept_results() -> dict[str, int]"),
      "What is kept for results now, how many results took such memory, and how many had that of an earlier "
      "one.");
  m.def("forget_results", [] { KeptMemory::OfResults().Clear(); }, "Frees the memory that is kept for results.");
  m.def("usable_cores", nb::overload_cast<>(&UsableCores));
  m.def(
      "topology", &TopologyOf, nb::arg("root") = "", nb::sig("def topology(root: str = \"\") -> dict[str, Any]"),
      "The cores that this process may use and what they share; `root`: where /sys and /proc of another machine lie.");
  m.def("cpu_model", &CpuModel);
  m.def("machine", &Machine, nb::sig("def machine() -> dict[str, str | int]"),
        "What tells this machine from others: processor, instruction set in use, usable cores, cache sizes.");
  m.def("env_vars", &EnvVars, nb::sig("def env_vars() -> list[dict[str, str]]"), "One dict per THRESHER_* variable.");
  m.def("env_value", &EnvValue, nb::arg("name"), nb::sig("def env_value(name: str) -> bool | int | str"),
        "The value of a THRESHER_* variable or its default. Raises ValueError where it is wrong.");
  m.def(
      "check_env",
      [] {
        std::vector<std::string> warnings = env::UnknownVariables();
        if (!profile::nvtx::Problem().empty()) warnings.push_back(profile::nvtx::Problem());
        return warnings;
      },
      "Warnings about unknown THRESHER_* variables, and about a tool for NVTX ranges that cannot be used.");
}

}  // namespace thresher::bindings
