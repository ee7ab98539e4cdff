// A stand-in for libcupti.so.13 on machines without a GPU: it has the functions that are used, takes buffers as CUPTI
// does, and fills them with records that are laid out as those of CUDA 13.0 are. The emulated device tells it of work.
// Each piece of work is two calls of the runtime, with a kernel, copy or fill of 1000 ns and one of 2000 ns, 2000 ns
// after it. What was asked of it goes to the file CUPTI_LINES; with CUPTI_HELD it is another tool's.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*requested_t)(uint8_t** buffer, size_t* size, size_t* most_records);
typedef void (*completed_t)(void* context, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);

enum { SUCCESS = 0, INVALID_PARAMETER = 1, MAX_LIMIT = 12, INVALID_KIND = 21, HELD = 39 };
enum { MEMCPY = 1, MEMSET = 2, DRIVER = 4, RUNTIME = 5, KERNEL = 10, EXTERNAL = 39 };
enum { CALLS = 0, WORK = 1 };  // the buffers of a thread's calls, and of what a stream has done

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int subscribers, enabled[64];
static uint64_t (*now)(void);
static requested_t requested;
static completed_t completed;
static struct {
  uint8_t* data;
  size_t size, used;
} buffers[2];
static uint32_t calls, flushes;
static __thread uint64_t ids[16];
static __thread int num_ids;

static void note(const char* what) {
  FILE* const file = fopen(getenv("CUPTI_LINES"), "a");
  fprintf(file, "%s\n", what);
  fclose(file);
}

static size_t size_of(uint32_t kind) {
  switch (kind) {
    case KERNEL:
      return 216;
    case MEMCPY:
      return 96;
    case MEMSET:
      return 88;
    case EXTERNAL:
      return 24;
    default:
      return 40;  // a call
  }
}

int cuptiSubscribe(void** subscriber, void* callback, void* user) {
  (void)user;
  if (callback == NULL) return INVALID_PARAMETER;
  if (getenv("CUPTI_HELD") != NULL || subscribers != 0) return HELD;
  *subscriber = &subscribers;
  ++subscribers;
  note("subscribe");
  return SUCCESS;
}
int cuptiUnsubscribe(void* subscriber) {
  if (subscriber != &subscribers || subscribers == 0) return INVALID_PARAMETER;
  --subscribers;
  note("unsubscribe");
  return SUCCESS;
}
int cuptiGetResultString(int result, const char** text) {
  *text = result == INVALID_KIND ? "CUPTI_ERROR_INVALID_KIND" : "another error";
  return SUCCESS;
}
int cuptiActivityRegisterTimestampCallback(uint64_t (*clock)(void)) {
  now = clock;
  return SUCCESS;
}
int cuptiActivityRegisterCallbacks(requested_t give, completed_t take) {
  requested = give;
  completed = take;
  return SUCCESS;
}
int cuptiActivityEnable(uint32_t kind) {
  const char* const refused = getenv("CUPTI_WITHOUT");
  if (refused != NULL && (uint32_t)atoi(refused) == kind) return INVALID_KIND;
  char line[32];
  snprintf(line, sizeof line, "enable %u", kind);
  note(line);
  enabled[kind] = 1;
  return SUCCESS;
}
int cuptiActivityDisable(uint32_t kind) {
  enabled[kind] = 0;
  return SUCCESS;
}
int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
  if (kind != 3 || num_ids == 16) return INVALID_PARAMETER;
  ids[num_ids++] = id;
  return SUCCESS;
}
int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t* id) {
  if (kind != 3 || num_ids == 0) return INVALID_PARAMETER;
  *id = ids[--num_ids];
  return SUCCESS;
}
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, uint8_t** record) {
  uint8_t* const next = *record == NULL ? buffer : *record + size_of(*(uint32_t*)*record);
  if (next >= buffer + valid) return MAX_LIMIT;
  *record = next;
  return SUCCESS;
}

// The caller has the lock.
static void complete(int which) {
  if (buffers[which].data == NULL) return;
  completed(NULL, 0, buffers[which].data, buffers[which].size, buffers[which].used);
  memset(&buffers[which], 0, sizeof buffers[which]);
}

static uint8_t* record_in(int which, uint32_t kind) {
  static uint8_t nowhere[256];
  if (!enabled[kind]) return nowhere;
  const size_t size = size_of(kind);
  if (buffers[which].used + size > buffers[which].size) complete(which);
  if (buffers[which].data == NULL) {
    size_t most = 0;
    requested(&buffers[which].data, &buffers[which].size, &most);
  }
  uint8_t* const record = buffers[which].data + buffers[which].used;
  buffers[which].used += size;
  memset(record, 0xEE, size);
  memcpy(record, &kind, 4);
  return record;
}
static void put32(uint8_t* record, size_t at, uint32_t value) { memcpy(record + at, &value, 4); }
static void put64(uint8_t* record, size_t at, uint64_t value) { memcpy(record + at, &value, 8); }

int cuptiActivityFlushAll(uint32_t flag) {
  if (flag > 1) return INVALID_PARAMETER;
  pthread_mutex_lock(&lock);
  const int first = ++flushes % 2 ? WORK : CALLS;  // either may come first
  complete(first);
  complete(1 - first);
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

static void call(uint64_t id) {
  if (id != 0) {
    uint8_t* const external = record_in(CALLS, EXTERNAL);
    put32(external, 4, 3);
    put64(external, 8, id);
    put32(external, 16, calls);
  }
  put32(record_in(CALLS, RUNTIME), 32, calls);
}

// The emulated device has been asked for a kernel (0), a copy (1) or a fill (2).
void emulated_work(int what) {
  static const uint32_t kinds[] = {KERNEL, MEMCPY, MEMSET};
  static const size_t correlations[] = {92, 44, 44};
  pthread_mutex_lock(&lock);
  const uint64_t id = num_ids == 0 ? 0 : ids[num_ids - 1], start = now();
  ++calls;
  call(id);  // one that launches nothing
  for (int part = 0; part < 2; ++part) {
    ++calls;
    call(id);
    uint8_t* const work = record_in(WORK, kinds[what]);
    put64(work, 16, start + 3000u * (unsigned)part);
    put64(work, 24, start + 3000u * (unsigned)part + 1000u * (unsigned)(part + 1));
    put32(work, correlations[what], calls);
  }
  pthread_mutex_unlock(&lock);
}
