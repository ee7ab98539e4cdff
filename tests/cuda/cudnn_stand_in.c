// A stand-in for libcudnn.so.9 on machines without a GPU: it has the functions that are used, and computes what they
// are asked for, in host memory, from the descriptors alone. What was asked of it goes to the file CUDNN_LINES.
// CUDNN_FAILS: a function that fails, or "later:N": every convolution after N. CUDNN_SLOW: milliseconds that each
// convolution takes longer. While a graph is captured, of which the emulated device tells it, it makes nothing.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum { F32 = 0, F16 = 2, BF16 = 9, NHWC = 1, CROSS_CORRELATION = 1, TENSOR_OP = 1, FMA = 3, RELU = 1, IDENTITY = 5 };

typedef struct {
  int type, n, c, h, w, n_stride, h_stride, w_stride;
} tensor_t;
typedef struct {
  int type, k, c, h, w;
} filter_t;
typedef struct {
  int pad[2], stride[2], dilation[2], groups, math;
} convolution_t;

static int capturing;

void emulated_capture(int begins) { capturing = begins; }

static void note(const char* what) {
  const char* const path = getenv("CUDNN_LINES");
  FILE* const file = path == NULL ? NULL : fopen(path, "a");
  if (file == NULL) return;
  fprintf(file, "%s\n", what);
  fclose(file);
}

static int fails(const char* function) {
  const char* const wanted = getenv("CUDNN_FAILS");
  return wanted != NULL && strcmp(wanted, function) == 0;
}

static void* make(size_t bytes) {
  if (capturing) {
    fprintf(stderr, "the stand-in found: something made while a graph is captured\n");
    abort();
  }
  return calloc(1, bytes);
}

static float load(const void* data, int type, int64_t at) {
  if (type == F32) return ((const float*)data)[at];
  if (type == F16) return (float)((const _Float16*)data)[at];
  const uint32_t bits = (uint32_t)((const uint16_t*)data)[at] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void store(void* data, int type, int64_t at, float x) {
  if (type == F32) {
    ((float*)data)[at] = x;
  } else if (type == F16) {
    ((_Float16*)data)[at] = (_Float16)x;
  } else {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    ((uint16_t*)data)[at] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
}

size_t cudnnGetVersion(void) {
  const char* const version = getenv("CUDNN_VERSION");
  return version == NULL ? 92801 : (size_t)atoll(version);
}

const char* cudnnGetErrorString(int status) {
  switch (status) {
    case BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}

int cudnnCreate(void** handle) {
  if (fails("cudnnCreate")) return EXECUTION_FAILED;
  *handle = make(1);
  note("create");
  return SUCCESS;
}

static int destroy(void* object) {
  free(object);
  return SUCCESS;
}
int cudnnDestroy(void* handle) { return destroy(handle); }
int cudnnDestroyTensorDescriptor(void* object) { return destroy(object); }
int cudnnDestroyFilterDescriptor(void* object) { return destroy(object); }
int cudnnDestroyConvolutionDescriptor(void* object) { return destroy(object); }
int cudnnDestroyActivationDescriptor(void* object) { return destroy(object); }

int cudnnSetStream(void* handle, void* stream) {
  (void)stream;
  return handle == NULL ? BAD_PARAM : SUCCESS;
}

int cudnnCreateTensorDescriptor(void** tensor) {
  *tensor = make(sizeof(tensor_t));
  return SUCCESS;
}

int cudnnSetTensor4dDescriptorEx(void* tensor, int type, int n, int c, int h, int w, int n_stride, int c_stride,
                                 int h_stride, int w_stride) {
  if ((type != F32 && type != F16 && type != BF16) || c_stride != 1 || n < 1 || c < 1 || h < 1 || w < 1) {
    return BAD_PARAM;
  }
  *(tensor_t*)tensor = (tensor_t){type, n, c, h, w, n_stride, h_stride, w_stride};
  return SUCCESS;
}

#ifndef WITHOUT_FILTERS
int cudnnCreateFilterDescriptor(void** filter) {
  *filter = make(sizeof(filter_t));
  return SUCCESS;
}
#endif

int cudnnSetFilter4dDescriptor(void* filter, int type, int format, int k, int c, int h, int w) {
  if (format != NHWC) return NOT_SUPPORTED;
  *(filter_t*)filter = (filter_t){type, k, c, h, w};
  return SUCCESS;
}

int cudnnCreateConvolutionDescriptor(void** convolution) {
  *convolution = make(sizeof(convolution_t));
  ((convolution_t*)*convolution)->groups = 1;
  return SUCCESS;
}

int cudnnSetConvolution2dDescriptor(void* convolution, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                                    int dilation_w, int mode, int compute_type) {
  convolution_t* const c = convolution;
  if (mode != CROSS_CORRELATION || compute_type != F32) return NOT_SUPPORTED;
  c->pad[0] = pad_h, c->pad[1] = pad_w;
  c->stride[0] = stride_h, c->stride[1] = stride_w;
  c->dilation[0] = dilation_h, c->dilation[1] = dilation_w;
  return SUCCESS;
}

int cudnnSetConvolutionGroupCount(void* convolution, int groups) {
  ((convolution_t*)convolution)->groups = groups;
  return SUCCESS;
}

int cudnnSetConvolutionMathType(void* convolution, int math) {
  ((convolution_t*)convolution)->math = math;
  return SUCCESS;
}

int cudnnCreateActivationDescriptor(void** activation) {
  *activation = make(sizeof(int));
  return SUCCESS;
}

int cudnnSetActivationDescriptor(void* activation, int mode, int nan, double coefficient) {
  (void)coefficient;
  if ((mode != RELU && mode != IDENTITY) || nan != 1) return BAD_PARAM;
  *(int*)activation = mode;
  return SUCCESS;
}

// Whether the descriptors fit each other, as the real one wants it.
static int check(const tensor_t* x, const filter_t* f, const convolution_t* c, const tensor_t* y) {
  if (x->type != f->type || x->type != y->type || x->n != y->n) return BAD_PARAM;
  if (x->c != f->c * c->groups || y->c != f->k || f->k % c->groups != 0) return BAD_PARAM;
  if (c->math != (x->type == F32 ? FMA : TENSOR_OP)) return NOT_SUPPORTED;
  const int in[2] = {x->h, x->w}, out[2] = {y->h, y->w}, kernel[2] = {f->h, f->w};
  for (int d = 0; d < 2; ++d) {
    const int reach = in[d] + 2 * c->pad[d] - (kernel[d] - 1) * c->dilation[d] - 1;
    if (reach < 0 || reach / c->stride[d] + 1 != out[d]) return BAD_PARAM;
  }
  return SUCCESS;
}

static size_t workspace_of(const tensor_t* y, int algorithm) { return algorithm == 1 ? 64 + (size_t)y->w : 0; }

int cudnnGetConvolutionForwardWorkspaceSize(void* handle, void* x, void* filter, void* convolution, void* y,
                                            int algorithm, size_t* bytes) {
  if (handle == NULL || fails("cudnnGetConvolutionForwardWorkspaceSize")) return NOT_SUPPORTED;
  free(make(1));
  *bytes = workspace_of(y, algorithm);
  return check(x, filter, convolution, y);
}

static int run(const char* function, const tensor_t* x, const void* from, const filter_t* f, const void* weight,
               const convolution_t* c, int algorithm, void* workspace, size_t workspace_bytes, float added,
               const tensor_t* z_desc, const void* z, const void* bias, int activation, const tensor_t* y, void* to) {
  static int calls;
  const char* const fault = getenv("CUDNN_FAILS");
  ++calls;
  if (fails(function) || (fault != NULL && strncmp(fault, "later:", 6) == 0 && calls > atoi(fault + 6))) {
    return EXECUTION_FAILED;
  }
  const int status = check(x, f, c, y);
  if (status != SUCCESS) return status;
  if (activation == IDENTITY && bias != NULL && algorithm != 1) return NOT_SUPPORTED;
  if (z_desc != NULL && memcmp(z_desc, y, sizeof *y) != 0) return BAD_PARAM;
  if (workspace_bytes < workspace_of(y, algorithm)) return BAD_PARAM;
  if (workspace_bytes > 0) memset(workspace, 0xff, workspace_bytes);  // it must be there, and nobody else's
  if (workspace_bytes > 0 && (uintptr_t)workspace % 256 != 0) return BAD_PARAM;
  const char* const slow = getenv("CUDNN_SLOW");
  if (slow != NULL) nanosleep(&(struct timespec){atoi(slow) / 1000, atoi(slow) % 1000 * 1000000L}, NULL);
  const int group_outputs = f->k / c->groups;
  for (int n = 0; n < y->n; ++n) {
    for (int h = 0; h < y->h; ++h) {
      for (int w = 0; w < y->w; ++w) {
        for (int k = 0; k < y->c; ++k) {
          float sum = 0;
          for (int i = 0; i < f->h; ++i) {
            for (int j = 0; j < f->w; ++j) {
              const int row = h * c->stride[0] - c->pad[0] + i * c->dilation[0];
              const int col = w * c->stride[1] - c->pad[1] + j * c->dilation[1];
              if (row < 0 || row >= x->h || col < 0 || col >= x->w) continue;
              const int64_t first = (int64_t)n * x->n_stride + (int64_t)row * x->h_stride + (int64_t)col * x->w_stride +
                                    k / group_outputs * f->c;
              const int64_t tap = (((int64_t)k * f->h + i) * f->w + j) * f->c;
              for (int m = 0; m < f->c; ++m) sum += load(from, x->type, first + m) * load(weight, f->type, tap + m);
            }
          }
          const int64_t at = (int64_t)n * y->n_stride + (int64_t)h * y->h_stride + (int64_t)w * y->w_stride + k;
          if (added != 0) sum += added * load(z, y->type, at);
          if (bias != NULL) sum += load(bias, y->type, k);
          if (activation == RELU && sum < 0) sum = 0;
          store(to, y->type, at, sum);
        }
      }
    }
  }
  char line[64];
  snprintf(line, sizeof line, "%s %d", function + strlen("cudnnConvolution"), algorithm);
  note(line);
  return SUCCESS;
}

int cudnnConvolutionForward(void* handle, const void* alpha, void* x, const void* from, void* filter,
                            const void* weight, void* convolution, int algorithm, void* workspace,
                            size_t workspace_bytes, const void* beta, void* y, void* to) {
  if (handle == NULL || *(const float*)alpha != 1 || *(const float*)beta != 0) return BAD_PARAM;
  return run("cudnnConvolutionForward", x, from, filter, weight, convolution, algorithm, workspace, workspace_bytes, 0,
             NULL, NULL, NULL, IDENTITY, y, to);
}

int cudnnConvolutionBiasActivationForward(void* handle, const void* alpha1, void* x, const void* from, void* filter,
                                          const void* weight, void* convolution, int algorithm, void* workspace,
                                          size_t workspace_bytes, const void* alpha2, void* z_desc, const void* z,
                                          void* bias_desc, const void* bias, void* activation, void* y, void* to) {
  const tensor_t* const b = bias_desc;
  if (handle == NULL || *(const float*)alpha1 != 1 || bias == NULL) return BAD_PARAM;
  if (b->c != ((tensor_t*)y)->c || b->n * b->h * b->w != 1 || b->type != ((tensor_t*)y)->type) return BAD_PARAM;
  return run("cudnnConvolutionBiasActivationForward", x, from, filter, weight, convolution, algorithm, workspace,
             workspace_bytes, *(const float*)alpha2, z_desc, z, bias, *(int*)activation, y, to);
}
