/* What a library of kernels for another kind of device gives the engine: a table of C functions.
 *
 * The library is loaded when a device of its kind is asked for, so an engine without it, or a machine without such a
 * device, is complete. It exports one function, thresher_device_get_api(); all else goes through the table.
 *
 * Every function returns a thresher_device_result; where it is not OK, last_error() has a sentence that says what was
 * wanted, what was found and, where there is one, the cure. All functions may be called from any thread; calls with one
 * stream or one event must not overlap. Work on one stream is done in order; kernels, copies and fills return before
 * they are done.
 *
 * A library belongs to one release of the engine, whose headers it was compiled with: `engine_version` and `kind`, the
 * first members of the table in every release, are read before anything else.
 */
#ifndef THRESHER_DEVICE_API_H_
#define THRESHER_DEVICE_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum thresher_device_result {
  THRESHER_DEVICE_OK = 0,
  THRESHER_DEVICE_INVALID_ARGUMENT = 1, /* the caller passed something wrong */
  THRESHER_DEVICE_UNSUPPORTED = 2,      /* right, but this library or device cannot do it */
  THRESHER_DEVICE_NO_MEMORY = 3,
  THRESHER_DEVICE_UNAVAILABLE = 4, /* a driver, a device or a library that is needed is not there */
  THRESHER_DEVICE_FAILED = 5,      /* anything else; after a fault in a kernel every later call fails too */
  THRESHER_DEVICE_OUT_OF_RANGE = 6 /* an index in the data of an earlier launch; told when the stream is waited for */
} thresher_device_result;

typedef struct thresher_device thresher_device;
typedef struct thresher_stream thresher_stream;
typedef struct thresher_event thresher_event;
typedef struct thresher_graph thresher_graph; /* work of a stream that was recorded instead of done */

typedef struct thresher_device_info {
  int32_t compute_major;
  int32_t compute_minor;
  int32_t multiprocessors;
  uint64_t memory_bytes;
  int32_t driver_version; /* 13000 for 13.0 */
  int32_t runtime_version;
  char name[128];
} thresher_device_info;

typedef enum thresher_copy_direction {
  THRESHER_COPY_TO_DEVICE = 0,
  THRESHER_COPY_TO_HOST = 1,
  THRESHER_COPY_ON_DEVICE = 2
} thresher_copy_direction;

/* An operand of a kernel: thresher::View (base/view.h), whose data is the device's. An optional one that is absent has
 * no data. */
typedef struct thresher_view thresher_view;

/* Nanoseconds on the clock of whoever asks for exact times. */
typedef int64_t (*thresher_device_clock)(void);
/* A part of the work that was asked for under `id` has taken from one moment to the other. Called on any thread. */
typedef void (*thresher_device_timed)(uint64_t id, int64_t start_ns, int64_t end_ns);

typedef struct thresher_device_api {
  const char* engine_version; /* of the release that it belongs to */
  const char* kind;           /* "cuda" */
  const char* architectures;  /* what it was compiled for: "80-real;90" */

  const char* (*last_error)(void); /* of the calling thread; never null */

  /* How many devices this library can use. UNAVAILABLE where that is none: last_error() says why. */
  thresher_device_result (*count)(int32_t* count);
  thresher_device_result (*info)(int32_t index, thresher_device_info* info);
  /* `index` is below count. Opening one twice gives two that share nothing but the hardware. */
  thresher_device_result (*open)(int32_t index, thresher_device** device);
  void (*close)(thresher_device* device); /* after everything that belongs to it */

  thresher_device_result (*allocate)(thresher_device* device, size_t bytes, void** address); /* bytes > 0 */
  thresher_device_result (*release)(thresher_device* device, void* address);                 /* waits for the device */

  /* Host memory from which and to which copies need not wait for a copy in between. */
  thresher_device_result (*allocate_host)(thresher_device* device, size_t bytes, void** address); /* bytes > 0 */
  thresher_device_result (*release_host)(thresher_device* device, void* address);

  thresher_device_result (*stream_create)(thresher_device* device, thresher_stream** stream);
  /* A stream that another library of the process made for this device, by its handle (a cudaStream_t, which may be
   * null). It stays that library's. */
  thresher_device_result (*stream_wrap)(thresher_device* device, void* handle, thresher_stream** stream);
  thresher_device_result (*stream_destroy)(thresher_stream* stream); /* after its work is done */
  thresher_device_result (*stream_synchronize)(thresher_stream* stream);
  thresher_device_result (*stream_wait)(thresher_stream* stream, thresher_event* event);

  /* Of a stream that is named as for stream_wrap(): whether what it is asked for is recorded, by whomever, and a number
   * that no other stream has or had, while a handle may come again; 0 where it is recorded, as then nothing else may be
   * asked of it. */
  thresher_device_result (*stream_state)(thresher_device* device, void* handle, int32_t* capturing, uint64_t* number);
  /* What one thread asks of the stream between the two is recorded; copies, fills, launches, waits and records only. No
   * graph where that fails. A graph may be launched any number of times, on any stream of the device, one after the
   * other. */
  thresher_device_result (*capture_begin)(thresher_stream* stream);
  thresher_device_result (*capture_end)(thresher_stream* stream, thresher_graph** graph);
  thresher_device_result (*graph_launch)(thresher_graph* graph, thresher_stream* stream);
  void (*graph_destroy)(thresher_graph* graph); /* after its launches are done */

  /* Of an event that is not timed no time is asked for, which makes it cheaper. */
  thresher_device_result (*event_create)(thresher_device* device, int32_t timed, thresher_event** event);
  void (*event_destroy)(thresher_event* event);
  thresher_device_result (*event_record)(thresher_event* event, thresher_stream* stream);
  thresher_device_result (*event_synchronize)(thresher_event* event);
  /* Both timed, recorded and done. The resolution is about half a microsecond. */
  thresher_device_result (*event_elapsed)(thresher_event* start, thresher_event* end, double* nanoseconds);

  /* Host memory must stay as it is until the stream has been synchronised. */
  thresher_device_result (*copy)(thresher_stream* stream, uint32_t direction, void* to, const void* from, size_t bytes);
  thresher_device_result (*fill)(thresher_stream* stream, void* to, uint8_t value, size_t bytes);

  /* Kernels are named by thresher::KernelId (kernels/kernel_id.h), and take the plain structs of
   * kernels/kernel_params.h: those of the engine's own release, which is why a library of another one is refused. */

  /* Whether the device has the kernel for such operands, inputs before outputs, which have no data yet, and how many
   * bytes of scratch memory a launch wants. UNSUPPORTED where it has not. Called when a plan is made. */
  thresher_device_result (*query)(thresher_device* device, uint32_t kernel, const void* params, size_t params_bytes,
                                  const thresher_view* views, int32_t num_views, size_t* scratch_bytes);
  /* What the call points at may be gone when it returns; only the operands' data and the scratch memory stay. */
  thresher_device_result (*launch)(thresher_stream* stream, uint32_t kernel, const void* params, size_t params_bytes,
                                   const thresher_view* views, int32_t num_views, void* scratch);

  /* Exact times of what is asked of any stream of the process, from begin to end, where a library that watches devices
   * gives them: UNAVAILABLE where it does not, or while somebody else uses it. What a thread asks for between push and
   * pop is known by the id. After flush, all that was done before has been told; end flushes, too. Beginning twice is
   * the same as once. */
  thresher_device_result (*times_begin)(thresher_device_clock clock, thresher_device_timed timed);
  void (*times_push)(uint64_t id);
  void (*times_pop)(void);
  thresher_device_result (*times_flush)(void);
  void (*times_end)(void);

  /* Opens and closes the window outside of which tools that were told so record nothing (cudaProfilerStart). */
  thresher_device_result (*window)(thresher_device* device, int32_t open);

  /* What was measured to choose among kernels, a line each, with an end of 0: what fits into `bytes`; `wanted`: of the
   * whole. choose() takes such a text of an earlier process with the same kind of device, the same driver and the same
   * libraries, so that it is not measured again. */
  thresher_device_result (*choices)(thresher_device* device, char* text, size_t bytes, size_t* wanted);
  thresher_device_result (*choose)(thresher_device* device, const char* text);
} thresher_device_api;

#if defined(__GNUC__)
#define THRESHER_DEVICE_EXPORT __attribute__((visibility("default")))
#else
#define THRESHER_DEVICE_EXPORT
#endif

/* Needs neither a driver nor a device. */
THRESHER_DEVICE_EXPORT const thresher_device_api* thresher_device_get_api(void);

#ifdef __cplusplus
}
#endif

#endif /* THRESHER_DEVICE_API_H_ */
