/* A tool in C that counts what the engine does. */
#ifndef PTI_COUNTER_H_
#define PTI_COUNTER_H_

#include "thresher/pti.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pti_counter {
  const thresher_pti_api* api;
  uint32_t expected_id; /* kernels launched under this operator of ours count as linked */
  uint64_t kernels;
  uint64_t copies;
  uint64_t memory_changes;
  uint64_t executions;
  uint64_t launches;
  uint64_t linked;
  uint64_t unknown;
  uint64_t buffers;
  uint64_t dropped;
  int64_t kernel_ns;
  double flops;
} pti_counter;

/* Counts from here on. */
thresher_pti_result pti_counter_start(pti_counter* counter, const thresher_pti_api* api);
/* Until here. */
thresher_pti_result pti_counter_stop(pti_counter* counter);

#ifdef __cplusplus
}
#endif

#endif /* PTI_COUNTER_H_ */
