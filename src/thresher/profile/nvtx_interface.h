// The binary interface of NVTX 3 as far as it is used: between a program that marks ranges and the library of a tool
// that shows them. nvtx_check.cc compares it with NVTX's own header where that is installed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace thresher::profile::nvtx {

using Function = void (*)();

// What a tool asks for, by number: which functions there are, and which version of NVTX this is.
inline constexpr uint32_t kCallbacksTable = 1;
inline constexpr uint32_t kVersionTable = 3;
inline constexpr uint32_t kVersion = 3;

// Functions are in modules. A tool asks for a module's table, whose entry i points at where function i is to be put.
inline constexpr int kCore = 1;
inline constexpr int kCore2 = 5;
// By module, 0 is none: the numbers of its functions are below this.
inline constexpr std::array<uint32_t, 7> kModuleSizes = {0, 16, 9, 15, 7, 16, 7};
inline constexpr uint32_t kMostFunctions = 16;
// Of kCore2.
inline constexpr uint32_t kDomainRangePush = 4;
inline constexpr uint32_t kDomainRangePop = 5;
inline constexpr uint32_t kDomainCreate = 12;

struct Callbacks {
  size_t struct_size;
  // Returns 1; 0 for a module that there is not. Entry 0 is null, and so is the one behind the last.
  int (*module_table)(int module, Function*** table, unsigned int* size);
};

struct VersionInfo {
  size_t struct_size;
  uint32_t version;
  uint32_t reserved;
  void (*set_tool_version)(uint32_t version);
};

using GetTable = const void* (*)(uint32_t id);
// The entry of a tool's library. Returns 0 where it cannot be used.
using Entry = int (*)(GetTable get_table);
inline constexpr const char* kEntry = "InitializeInjectionNvtx2";
inline constexpr const char* kVariable = "NVTX_INJECTION64_PATH";

using Domain = void*;

struct Attributes {
  uint16_t version = 3;
  uint16_t size = sizeof(Attributes);
  uint32_t category = 0;
  int32_t color_type = 0;
  uint32_t color = 0;
  int32_t payload_type = 0;
  int32_t reserved = 0;
  uint64_t payload = 0;
  int32_t message_type = 1;  // ASCII
  const char* message = nullptr;
};

using CreateDomain = Domain (*)(const char* name);
using PushRange = int (*)(Domain domain, const Attributes* attributes);
using PopRange = int (*)(Domain domain);

}  // namespace thresher::profile::nvtx
