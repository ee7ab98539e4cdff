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
  THRESHER_DEVICE_FAILED = 5       /* anything else; after a fault in a kernel every later call fails too */
} thresher_device_result;

typedef struct thresher_device thresher_device;
typedef struct thresher_stream thresher_stream;
typedef struct thresher_event thresher_event;

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

/* ---- Kernels. All pointers are the device's. ---- */

#define THRESHER_CHAIN_OPERANDS 8
#define THRESHER_CHAIN_STEPS 16
#define THRESHER_CHAIN_RANK 8

typedef enum thresher_chain_source {
  THRESHER_CHAIN_OPERAND = 0,  /* element of operand `index` */
  THRESHER_CHAIN_SLOT = 1,     /* result that waits in slot `index` */
  THRESHER_CHAIN_PREVIOUS = 2, /* result of the step before */
  THRESHER_CHAIN_NUMBER = 3    /* `number` */
} thresher_chain_source;

typedef struct thresher_chain_arg {
  uint8_t source; /* thresher_chain_source */
  uint8_t index;
  float number;
} thresher_chain_arg;

typedef enum thresher_chain_kind {
  THRESHER_CHAIN_UNARY = 0,
  THRESHER_CHAIN_BINARY = 1,
  THRESHER_CHAIN_WHERE = 2
} thresher_chain_kind;

#define THRESHER_CHAIN_BOOL 1u      /* the arguments are bool (for where: the branches) */
#define THRESHER_CHAIN_ONE_POWER 2u /* a power whose exponent is one value for all elements */

typedef struct thresher_chain_step {
  uint8_t kind;  /* thresher_chain_kind */
  uint8_t op;    /* thresher::kernels::UnaryOp or BinaryOp */
  uint8_t flags; /* sum of THRESHER_CHAIN_* */
  int8_t slot;   /* where the result waits for steps after the next; -1: nowhere */
  thresher_chain_arg args[3];
} thresher_chain_step;

/* Element-wise operators in one loop: out = the last step. Between the steps every value is a float; bool is 0 or 1. */
typedef struct thresher_chain {
  int32_t num_operands;
  int32_t num_steps;
  int32_t num_slots;
  int32_t rank;    /* at least 1; outermost dimension first */
  uint32_t dense;  /* bit i: operand i is row-major, so that its strides need not be read */
  uint32_t single; /* bit i: operand i is one value for all elements */
  int64_t size;    /* product of the shape */
  int64_t shape[THRESHER_CHAIN_RANK];
  int64_t strides[THRESHER_CHAIN_OPERANDS][THRESHER_CHAIN_RANK]; /* in elements */
  const float* operands[THRESHER_CHAIN_OPERANDS];
  float* out; /* row-major; may be an operand that is read with the same strides */
  thresher_chain_step steps[THRESHER_CHAIN_STEPS];
} thresher_chain;

/* Layer norm or RMS norm over rows, as in kernels/norm.h. */
typedef struct thresher_norm {
  const float* x; /* [rows, cols], rows x_stride apart */
  int64_t x_stride;
  const float* residual; /* or null: x + residual is what is normalised */
  int64_t residual_stride;
  const float* weight; /* [cols], or null for 1 */
  const float* bias;   /* [cols], or null for 0; null for RMS norm */
  float* out;          /* may be x */
  int64_t out_stride;
  float* sum; /* where x + residual goes, or null */
  int64_t sum_stride;
  int64_t rows;
  int64_t cols;
  float eps;
  int32_t rms; /* 1: RMS norm */
} thresher_norm;

/* Softmax over the middle dimension of contiguous [outer, dim, inner], as in kernels/softmax.h. */
typedef struct thresher_softmax {
  const float* x;
  float* out; /* may be x */
  int64_t outer;
  int64_t dim;
  int64_t inner;
  int32_t log;
} thresher_softmax;

typedef enum thresher_gemm_type {
  THRESHER_GEMM_F32 = 0,
  THRESHER_GEMM_BF16 = 1 /* a and b; sums, bias and c are f32 */
} thresher_gemm_type;

/* C = A * B + bias, all row-major. */
typedef struct thresher_gemm {
  int64_t m;
  int64_t n;
  int64_t k;
  const void* a; /* [m, k], rows lda apart */
  int64_t lda;
  const void* b; /* [k, n], or [n, k] where transpose_b; rows ldb apart */
  int64_t ldb;
  const float* bias; /* [n], or null */
  float* c;          /* [m, n], rows ldc apart */
  int64_t ldc;
  int32_t type; /* thresher_gemm_type, of a and b */
  int32_t transpose_b;
  int32_t allow_tf32; /* f32 may be rounded to 10 bits of fraction on the way in */
} thresher_gemm;

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

  thresher_device_result (*stream_create)(thresher_device* device, thresher_stream** stream);
  thresher_device_result (*stream_destroy)(thresher_stream* stream); /* after its work is done */
  thresher_device_result (*stream_synchronize)(thresher_stream* stream);
  thresher_device_result (*stream_wait)(thresher_stream* stream, thresher_event* event);

  thresher_device_result (*event_create)(thresher_device* device, thresher_event** event);
  void (*event_destroy)(thresher_event* event);
  thresher_device_result (*event_record)(thresher_event* event, thresher_stream* stream);
  thresher_device_result (*event_synchronize)(thresher_event* event);
  /* Both recorded and done. The resolution is about half a microsecond. */
  thresher_device_result (*event_elapsed)(thresher_event* start, thresher_event* end, double* nanoseconds);

  /* Host memory must stay as it is until the stream has been synchronised. */
  thresher_device_result (*copy)(thresher_stream* stream, uint32_t direction, void* to, const void* from, size_t bytes);
  thresher_device_result (*fill)(thresher_stream* stream, void* to, uint8_t value, size_t bytes);

  thresher_device_result (*run_chain)(thresher_stream* stream, const thresher_chain* chain);
  thresher_device_result (*run_norm)(thresher_stream* stream, const thresher_norm* norm);
  thresher_device_result (*run_softmax)(thresher_stream* stream, const thresher_softmax* softmax);
  thresher_device_result (*run_gemm)(thresher_stream* stream, const thresher_gemm* gemm); /* m, n, k > 0 */
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
