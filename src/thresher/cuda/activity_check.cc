// Compiled where CUPTI's header is installed: activity_records.h says what the header says.
#include <cupti.h>

#include <cstddef>

#include "thresher/cuda/activity_records.h"

namespace thresher::cuda {

static_assert(kActivityMemcpy == CUPTI_ACTIVITY_KIND_MEMCPY);
static_assert(kActivityMemset == CUPTI_ACTIVITY_KIND_MEMSET);
static_assert(kActivityKernel == CUPTI_ACTIVITY_KIND_KERNEL);
static_assert(kActivityDriver == CUPTI_ACTIVITY_KIND_DRIVER);
static_assert(kActivityRuntime == CUPTI_ACTIVITY_KIND_RUNTIME);
static_assert(kActivityConcurrentKernel == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
static_assert(kActivityExternalCorrelation == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION);
static_assert(kCuptiSuccess == CUPTI_SUCCESS);
static_assert(kCuptiHeldByAnother == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
static_assert(kOwnIds == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0);

static_assert(offsetof(ActivityOfKernel, start_ns) == offsetof(CUpti_ActivityKernel10, start));
static_assert(offsetof(ActivityOfKernel, end_ns) == offsetof(CUpti_ActivityKernel10, end));
static_assert(offsetof(ActivityOfKernel, correlation) == offsetof(CUpti_ActivityKernel10, correlationId));
static_assert(offsetof(ActivityOfMemcpy, start_ns) == offsetof(CUpti_ActivityMemcpy6, start));
static_assert(offsetof(ActivityOfMemcpy, end_ns) == offsetof(CUpti_ActivityMemcpy6, end));
static_assert(offsetof(ActivityOfMemcpy, correlation) == offsetof(CUpti_ActivityMemcpy6, correlationId));
static_assert(offsetof(ActivityOfMemset, start_ns) == offsetof(CUpti_ActivityMemset4, start));
static_assert(offsetof(ActivityOfMemset, end_ns) == offsetof(CUpti_ActivityMemset4, end));
static_assert(offsetof(ActivityOfMemset, correlation) == offsetof(CUpti_ActivityMemset4, correlationId));
static_assert(sizeof(ActivityOfExternalId) == sizeof(CUpti_ActivityExternalCorrelation));
static_assert(offsetof(ActivityOfExternalId, external_kind) ==
              offsetof(CUpti_ActivityExternalCorrelation, externalKind));
static_assert(offsetof(ActivityOfExternalId, external_id) == offsetof(CUpti_ActivityExternalCorrelation, externalId));
static_assert(offsetof(ActivityOfExternalId, correlation) ==
              offsetof(CUpti_ActivityExternalCorrelation, correlationId));

}  // namespace thresher::cuda
