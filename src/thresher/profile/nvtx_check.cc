// Compiled with the CUDA library, whose toolkit has NVTX's header: nvtx_interface.h says what the header says.
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>

#include <type_traits>

#include "thresher/profile/nvtx_interface.h"

namespace thresher::profile::nvtx {

static_assert(kVersion == NVTX_VERSION);
static_assert(kCallbacksTable == NVTX_ETID_CALLBACKS);
static_assert(kVersionTable == NVTX_ETID_VERSIONINFO);
static_assert(kCore == NVTX_CB_MODULE_CORE);
static_assert(kCore2 == NVTX_CB_MODULE_CORE2);
static_assert(kModuleSizes.size() == NVTX_CB_MODULE_SIZE);
static_assert(kModuleSizes[NVTX_CB_MODULE_CORE] == NVTX_CBID_CORE_SIZE);
static_assert(kModuleSizes[NVTX_CB_MODULE_CUDA] == NVTX_CBID_CUDA_SIZE);
static_assert(kModuleSizes[NVTX_CB_MODULE_OPENCL] == NVTX_CBID_OPENCL_SIZE);
static_assert(kModuleSizes[NVTX_CB_MODULE_CUDART] == NVTX_CBID_CUDART_SIZE);
static_assert(kModuleSizes[NVTX_CB_MODULE_CORE2] == NVTX_CBID_CORE2_SIZE);
static_assert(kModuleSizes[NVTX_CB_MODULE_SYNC] == NVTX_CBID_SYNC_SIZE);
static_assert(kDomainRangePush == NVTX_CBID_CORE2_DomainRangePushEx);
static_assert(kDomainRangePop == NVTX_CBID_CORE2_DomainRangePop);
static_assert(kDomainCreate == NVTX_CBID_CORE2_DomainCreateA);
static_assert(sizeof(Callbacks) == sizeof(NvtxExportTableCallbacks));
static_assert(offsetof(Callbacks, module_table) == offsetof(NvtxExportTableCallbacks, GetModuleFunctionTable));
static_assert(sizeof(VersionInfo) == sizeof(NvtxExportTableVersionInfo));
static_assert(offsetof(VersionInfo, version) == offsetof(NvtxExportTableVersionInfo, version));
static_assert(offsetof(VersionInfo, set_tool_version) == offsetof(NvtxExportTableVersionInfo, SetInjectionNvtxVersion));
static_assert(sizeof(Attributes) == sizeof(nvtxEventAttributes_t));
static_assert(Attributes{}.version == NVTX_VERSION && Attributes{}.message_type == NVTX_MESSAGE_TYPE_ASCII);
static_assert(offsetof(Attributes, category) == offsetof(nvtxEventAttributes_t, category));
static_assert(offsetof(Attributes, payload) == offsetof(nvtxEventAttributes_t, payload));
static_assert(offsetof(Attributes, message_type) == offsetof(nvtxEventAttributes_t, messageType));
static_assert(offsetof(Attributes, message) == offsetof(nvtxEventAttributes_t, message));

}  // namespace thresher::profile::nvtx
