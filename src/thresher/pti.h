/* The engine's tracing interface: a C ABI through which any tool, in any language, receives what the engine did.
 *
 * How a tool uses it:
 *
 *   const thresher_pti_api* api = thresher_pti_get_api(THRESHER_PTI_VERSION);
 *   api->register_callbacks(give_buffer, take_buffer, my_data);
 *   api->enable(THRESHER_PTI_KIND_KERNEL);
 *   ... the engine runs ...
 *   api->flush_all();                       // everything recorded so far has been handed to take_buffer
 *   api->disable(THRESHER_PTI_KIND_KERNEL);
 *
 * and in take_buffer:
 *
 *   const thresher_pti_record* record = NULL;
 *   while (api->next_record(buffer, valid_size, &record) == THRESHER_PTI_OK) { switch (record->kind) ... }
 *
 * The entry point is exported by the engine's own library, thresher/_engine.*.so, and is in the C++ package's
 * libthresher.a. All functions may be called from any
 * thread, except that the callbacks must call none but next_record, event_name and result_name. Structures only grow,
 * at their ends: check `struct_size` before reading a member that the version you were compiled with did not have.
 * Strings live as long as the process. Times are nanoseconds since the Unix epoch, on the engine's clock: it never goes
 * backwards, and timestamp_ns() reads it.
 */
#ifndef THRESHER_PTI_H_
#define THRESHER_PTI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define THRESHER_PTI_VERSION 1u

typedef enum thresher_pti_result {
  THRESHER_PTI_OK = 0,
  THRESHER_PTI_END = 1,              /* next_record: the buffer holds no more */
  THRESHER_PTI_INVALID_ARGUMENT = 2, /* a null pointer, an unknown kind, a damaged buffer */
  THRESHER_PTI_NOT_REGISTERED = 3,   /* enable or flush_all without callbacks */
  THRESHER_PTI_BUSY = 4,             /* another tool has registered its callbacks, or kinds are still enabled */
  THRESHER_PTI_NO_MEMORY = 5
} thresher_pti_result;

typedef enum thresher_pti_kind {
  THRESHER_PTI_KIND_KERNEL = 1, /* thresher_pti_kernel: a kernel on the device */
  THRESHER_PTI_KIND_COPY = 2,   /* thresher_pti_kernel: a copy or a fill on the device */
  THRESHER_PTI_KIND_MEMORY = 3, /* thresher_pti_memory */
  THRESHER_PTI_KIND_RUNTIME = 4 /* thresher_pti_runtime: what a host thread does */
} thresher_pti_kind;

/* What every record begins with. */
typedef struct thresher_pti_record {
  uint32_t struct_size; /* bytes of this record; the next one follows */
  uint32_t kind;        /* thresher_pti_kind */
} thresher_pti_record;

typedef struct thresher_pti_runtime {
  thresher_pti_record header;
  uint32_t event;  /* event_name() has its name */
  uint32_t thread; /* the system's number of the host thread */
  int64_t start_ns;
  int64_t end_ns;
  uint64_t correlation; /* that of the kernel or copy which this launches; 0: launches none */
  uint32_t external_id; /* the outer tool's innermost operator on this thread at that time; 0: none */
  uint32_t user_id;     /* its innermost user annotation; 0: none */
  const char* name;     /* the event's name */
  const char* detail;   /* what it was about, such as the name of a graph; may be empty */
} thresher_pti_runtime;

typedef struct thresher_pti_kernel {
  thresher_pti_record header;
  uint32_t event;       /* Kernel, Memcpy or Memset; event_name() has its name */
  uint32_t thread;      /* the host thread that launched it */
  int64_t queued_ns;    /* when the run of the plan that it belongs to began; without one: when it was launched */
  int64_t submitted_ns; /* when the step was handed out */
  int64_t start_ns;
  int64_t end_ns;
  uint64_t correlation; /* never 0; its launch has the same */
  uint64_t execution;   /* number of the run of a plan that it belongs to */
  uint32_t external_id;
  uint32_t user_id;
  int32_t device; /* 0: the CPU; 1 + i: the CUDA device i */
  uint32_t stream;
  double flops;       /* floating-point operations; < 0: not modelled */
  double bytes;       /* memory read and written; < 0: not modelled */
  const char* name;   /* of the operator and kernel variant */
  const char* shapes; /* of the operands, such as "1x128x384, 384x384" */
  const char* dtypes; /* of the operands, such as "f32, f32" */
  const char* module; /* path of the nn.Module that asked for it; may be empty */
  const char* source; /* line of the model, such as "model.py:12 in forward"; may be empty */
} thresher_pti_kernel;

typedef struct thresher_pti_memory {
  thresher_pti_record header;
  uint32_t event; /* Memory (Allocation) or Memory (Release) */
  uint32_t thread;
  int64_t time_ns;
  int64_t bytes; /* negative: given back */
  uint64_t address;
  uint64_t allocated; /* bytes that the engine holds after it */
  uint64_t reserved;  /* bytes it has taken from the system */
  int32_t device;     /* as above */
  uint32_t external_id;
} thresher_pti_memory;

/* Asks the tool for memory. *size: at least 4096; leave *buffer null to have the records dropped and counted. */
typedef void (*thresher_pti_buffer_requested)(uint8_t** buffer, size_t* size, void* user_data);
/* Gives the memory back: `valid_size` bytes of it hold whole records. The tool owns the buffer again. */
typedef void (*thresher_pti_buffer_completed)(uint8_t* buffer, size_t size, size_t valid_size, void* user_data);
/* Called on the thread that obtains or gives back memory, at once: for tools that keep their own memory time line. */
typedef void (*thresher_pti_memory_changed)(const thresher_pti_memory* change, void* user_data);

typedef enum thresher_pti_id_kind {
  THRESHER_PTI_ID_OPERATOR = 0, /* becomes external_id */
  THRESHER_PTI_ID_USER = 1      /* becomes user_id */
} thresher_pti_id_kind;

typedef struct thresher_pti_api {
  uint32_t struct_size;
  uint32_t version;

  /* One tool at a time. Both null: unregisters, once no kind is enabled. Callbacks come from any thread, one at a time.
   */
  thresher_pti_result (*register_callbacks)(thresher_pti_buffer_requested requested,
                                            thresher_pti_buffer_completed completed, void* user_data);
  thresher_pti_result (*enable)(uint32_t kind);
  thresher_pti_result (*disable)(uint32_t kind); /* what was recorded before stays to be flushed */
  thresher_pti_result (*flush_all)(void);
  thresher_pti_result (*next_record)(const uint8_t* buffer, size_t valid_size, const thresher_pti_record** record);
  /* Records lost since callbacks were registered, for want of a ring or of buffers. */
  thresher_pti_result (*dropped)(uint64_t* count);

  /* The outer tool's operators, per thread, as a stack; what is on top is written into the records. */
  thresher_pti_result (*push_external_id)(uint32_t id_kind, uint32_t id);
  thresher_pti_result (*pop_external_id)(uint32_t id_kind);
  /* Empties the stacks of all threads: ids that an earlier session left behind must link nothing. */
  thresher_pti_result (*clear_external_ids)(void);

  thresher_pti_result (*set_memory_callback)(thresher_pti_memory_changed changed, void* user_data); /* null: none */

  int64_t (*timestamp_ns)(void);
  const char* (*event_name)(uint32_t event); /* "Unknown event <n>" for a number of a newer engine */
  const char* (*result_name)(uint32_t result);
  /* JSON object: engine_version, isa, cpu, num_threads. */
  const char* (*device_properties)(void);
} thresher_pti_api;

#if defined(__GNUC__)
#define THRESHER_PTI_EXPORT __attribute__((visibility("default")))
#else
#define THRESHER_PTI_EXPORT
#endif

/* The functions of that version; null if this engine does not know it. */
THRESHER_PTI_EXPORT const thresher_pti_api* thresher_pti_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif /* THRESHER_PTI_H_ */
