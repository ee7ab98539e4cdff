// A wall clock that a test can set, without setting the machine's. Preloaded; monotonic clocks go on as they are.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

static _Atomic int64_t offset_ns;
static _Atomic int64_t readings;

void step_wall_clock(int64_t seconds) { atomic_fetch_add(&offset_ns, seconds * 1000000000); }
int64_t wall_clock_readings(void) { return atomic_load(&readings); }

static int is_wall_clock(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

int clock_gettime(clockid_t clock, struct timespec* now) {
  static int (*_Atomic real)(clockid_t, struct timespec*);
  if (!real) real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const int result = real(clock, now);
  if (result == 0 && is_wall_clock(clock)) {
    atomic_fetch_add(&readings, 1);
    const int64_t shifted = now->tv_sec * INT64_C(1000000000) + now->tv_nsec + atomic_load(&offset_ns);
    now->tv_sec = shifted / 1000000000;
    now->tv_nsec = shifted % 1000000000;
  }
  return result;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
  (void)zone;
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
