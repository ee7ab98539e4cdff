/* A tool in C that counts what the engine does: the smallest complete user of thresher/pti.h. */
#include "pti_counter.h"

#include <stdlib.h>
#include <string.h>

static void give_buffer(uint8_t** buffer, size_t* size, void* user_data) {
  (void)user_data;
  *size = 8192;
  *buffer = malloc(*size);
}

static void take_buffer(uint8_t* buffer, size_t size, size_t valid_size, void* user_data) {
  pti_counter* counter = user_data;
  const thresher_pti_record* record = NULL;
  (void)size;
  while (counter->api->next_record(buffer, valid_size, &record) == THRESHER_PTI_OK) {
    switch (record->kind) {
      case THRESHER_PTI_KIND_KERNEL: {
        const thresher_pti_kernel* kernel = (const thresher_pti_kernel*)record;
        counter->kernels += 1;
        counter->kernel_ns += kernel->end_ns - kernel->start_ns;
        if (kernel->flops > 0) counter->flops += kernel->flops;
        counter->linked += kernel->external_id == counter->expected_id;
        break;
      }
      case THRESHER_PTI_KIND_COPY:
        counter->copies += 1;
        break;
      case THRESHER_PTI_KIND_MEMORY:
        counter->memory_changes += 1;
        break;
      case THRESHER_PTI_KIND_RUNTIME: {
        const thresher_pti_runtime* runtime = (const thresher_pti_runtime*)record;
        if (strcmp(runtime->name, "thresherGraphExecution") == 0) counter->executions += 1;
        counter->launches += runtime->correlation != 0;
        break;
      }
      default:
        counter->unknown += 1;
    }
  }
  counter->buffers += 1;
  free(buffer);
}

static const uint32_t kinds[] = {THRESHER_PTI_KIND_KERNEL, THRESHER_PTI_KIND_COPY, THRESHER_PTI_KIND_MEMORY,
                                 THRESHER_PTI_KIND_RUNTIME};

thresher_pti_result pti_counter_start(pti_counter* counter, const thresher_pti_api* api) {
  thresher_pti_result result;
  size_t i;
  memset(counter, 0, sizeof *counter);
  counter->api = api;
  result = api->register_callbacks(give_buffer, take_buffer, counter);
  for (i = 0; result == THRESHER_PTI_OK && i < sizeof kinds / sizeof *kinds; ++i) result = api->enable(kinds[i]);
  return result;
}

thresher_pti_result pti_counter_stop(pti_counter* counter) {
  thresher_pti_result result = THRESHER_PTI_OK;
  size_t i;
  for (i = 0; result == THRESHER_PTI_OK && i < sizeof kinds / sizeof *kinds; ++i) {
    result = counter->api->disable(kinds[i]);
  }
  if (result == THRESHER_PTI_OK) result = counter->api->flush_all();
  if (result == THRESHER_PTI_OK) result = counter->api->dropped(&counter->dropped);
  if (result == THRESHER_PTI_OK) result = counter->api->register_callbacks(NULL, NULL, NULL);
  return result;
}
