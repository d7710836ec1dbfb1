/* A CUPTI and a CUDA driver without a GPU, for tests: what library.py loads and calls is real C.

   It keeps CUPTI's rules (struct sizes, the order of calls, one range at a time) and answers with
   what the test has set through the fake_* functions. The structs are those of CUDA 13.0. A metric
   counts the work (fake_work) that is done inside a range: the n-th metric of the session, from 1,
   has n times the work as its value. A ratio has no value where no work was done. With automatic
   ranges every piece of work is a range of its own, named by its number, and the last comes first. */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define END(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))
#define HEAD size_t structSize; void *pPriv

enum { OK = 0, INVALID_PARAMETER = 1, INVALID_OPERATION = 7, INVALID_METRIC_NAME = 17 };
enum { MAX_RANGES = 16, MAX_METRICS = 128, IMAGE = 4096 };

static char the_log[1 << 20], fail_call[128], lost[64], unknown[128], names[MAX_METRICS][128];
static size_t log_length;
static int fail_result, fail_after, version, passes, dropped, never_done, has_context;
static int enabled, configured, started, open_range, done_passes, range_count, range_limit, n_names;
static int host_alive, initialized;
static int automatic;
static double work[MAX_RANGES], open_work;
static char range_names[MAX_RANGES][64], open_name[64];
static uint8_t *data_image;
static char chip[16];

API void fake_note(const char *text) {
  log_length += (size_t)snprintf(the_log + log_length, sizeof the_log - log_length, "%s\n", text);
}

static int enter(const char *name, size_t size, size_t expected) {
  fake_note(name);
  if (!strcmp(name, fail_call)) {
    if (fail_after == 0) return fail_result;
    fail_after--;
  }
  return size == expected ? OK : INVALID_PARAMETER;
}

#define ENTER(type, last) \
  do { int r = enter(__func__, p->structSize, END(type, last)); if (r) return r; } while (0)
#define REQUIRE(condition) do { if (!(condition)) return INVALID_OPERATION; } while (0)

API void fake_reset(void) {
  memset(the_log, 0, log_length);
  log_length = 0;
  fail_call[0] = lost[0] = unknown[0] = 0;
  version = 130001; passes = 1; has_context = 1;
  dropped = never_done = enabled = configured = started = open_range = 0;
  done_passes = range_count = range_limit = n_names = host_alive = initialized = 0;
  strcpy(chip, "GH100");
}
API const char *fake_log(void) { return the_log; }
/* Lets calls of `call` fail with `result` from its (after + 1)-th call on. */
API void fake_fail(const char *call, int result, int after) {
  strcpy(fail_call, call); fail_result = result; fail_after = after;
}
API void fake_passes(int count) { passes = count; }
API void fake_version(int number) { version = number; }
API void fake_context(int present) { has_context = present; }
API void fake_lose(const char *range) { strcpy(lost, range); }
API void fake_unknown(const char *metric) { strcpy(unknown, metric); }
/* Stop never says that all passes were submitted. */
API void fake_never_done(int yes) { never_done = yes; }
API void fake_work(double amount) {
  if (open_range && started) open_work += amount;
  if (!automatic || !started) return;
  if (range_count == range_limit) { dropped++; return; }
  snprintf(range_names[range_count], sizeof range_names[0], "%d", range_count);
  work[range_count++] = amount;
}
/* The chip's name. */
API void fake_chip(const char *name) { strcpy(chip, name); }
/* What is not released yet; a range that was told not to end cannot be, nor what it is in. */
API int fake_alive(void) {
  if (open_range && !strcmp("cuptiRangeProfilerPopRange", fail_call)) return 0;
  return enabled + host_alive + initialized + started + open_range;
}

/* cupti_version.h, cupti_target.h, cupti_profiler_target.h */

API int cuptiGetVersion(uint32_t *number) {
  *number = (uint32_t)version;
  return strcmp("cuptiGetVersion", fail_call) ? OK : fail_result;
}

API int cuptiGetResultString(int code, const char **name) {
  if (code == 4711) { *name = "<unknown>"; return INVALID_PARAMETER; }
  *name = code == INVALID_PARAMETER ? "CUPTI_ERROR_INVALID_PARAMETER" : "CUPTI_ERROR_UNKNOWN";
  return OK;
}

typedef struct { HEAD; } Initialize;
API int cuptiProfilerInitialize(Initialize *p) { ENTER(Initialize, pPriv); initialized = 1; return OK; }
API int cuptiProfilerDeInitialize(Initialize *p) { ENTER(Initialize, pPriv); initialized = 0; return OK; }

typedef struct { HEAD; size_t deviceIndex; const char *pChipName; } ChipName;
API int cuptiDeviceGetChipName(ChipName *p) { ENTER(ChipName, pChipName); p->pChipName = chip; return OK; }

typedef struct { HEAD; void *ctx; size_t size; uint8_t *image; } Availability;
API int cuptiProfilerGetCounterAvailability(Availability *p) {
  ENTER(Availability, image);
  REQUIRE(!enabled && p->ctx);
  if (p->image) memset(p->image, 7, p->size); else p->size = 64;
  return OK;
}


/* cupti_profiler_host.h */

typedef struct { HEAD; int type; const char *chip; const uint8_t *availability; void *host; } HostInit;
API int cuptiProfilerHostInitialize(HostInit *p) {
  ENTER(HostInit, host);
  if (p->type || (strcmp(p->chip, chip) && strcmp(p->chip, "GA100"))) return INVALID_PARAMETER;
  if (p->availability && p->availability[0] != 7) return INVALID_PARAMETER;
  n_names = 0; host_alive++; p->host = &host_alive;
  return OK;
}

typedef struct { HEAD; void *host; } HostDeinit;
API int cuptiProfilerHostDeinitialize(HostDeinit *p) {
  ENTER(HostDeinit, host);
  REQUIRE(p->host == &host_alive);
  host_alive--;
  return OK;
}

typedef struct { HEAD; void *host; const char **metrics; size_t count; } AddMetrics;
API int cuptiProfilerHostConfigAddMetrics(AddMetrics *p) {
  ENTER(AddMetrics, count);
  for (size_t i = 0; i < p->count; i++) {
    if (!strcmp(p->metrics[i], unknown)) return INVALID_METRIC_NAME;
    strcpy(names[n_names++], p->metrics[i]);
  }
  return OK;
}

typedef struct { HEAD; void *host; size_t size; } ImageSize;
API int cuptiProfilerHostGetConfigImageSize(ImageSize *p) { ENTER(ImageSize, size); p->size = 32; return OK; }

typedef struct { HEAD; void *host; size_t size; uint8_t *image; } Image;
API int cuptiProfilerHostGetConfigImage(Image *p) { ENTER(Image, image); memset(p->image, 9, p->size); return OK; }

typedef struct { HEAD; size_t size; uint8_t *image; size_t passes; } NumPasses;
API int cuptiProfilerHostGetNumOfPasses(NumPasses *p) {
  ENTER(NumPasses, passes);
  if (p->image[0] != 9) return INVALID_PARAMETER;
  p->passes = (size_t)passes;
  return OK;
}

typedef struct {
  HEAD; void *host; const uint8_t *image; size_t size, index; const char **metrics; size_t count; double *values;
} Evaluate;
API int cuptiProfilerHostEvaluateToGpuValues(Evaluate *p) {
  ENTER(Evaluate, values);
  if (p->image != data_image || p->size != IMAGE) return INVALID_PARAMETER;
  for (size_t i = 0; i < p->count; i++) {
    int none = strstr(p->metrics[i], ".per_") && work[p->index] == 0;
    p->values[i] = none ? NAN : work[p->index] * (double)(i + 1);
  }
  return OK;
}

/* cupti_range_profiler.h */

typedef struct { HEAD; void *ctx; void *profiler; } Enable;
API int cuptiRangeProfilerEnable(Enable *p) {
  ENTER(Enable, profiler);
  REQUIRE(initialized && p->ctx && !enabled);
  enabled = 1; configured = 0; p->profiler = &enabled;
  return OK;
}

typedef struct { HEAD; void *profiler; } Object;
API int cuptiRangeProfilerDisable(Object *p) {
  ENTER(Object, profiler);
  REQUIRE(p->profiler == &enabled && !started && !open_range);
  enabled = 0;
  return OK;
}

typedef struct {
  HEAD; void *profiler; const char **metrics; size_t count, ranges; uint32_t nodes; size_t size;
} DataSize;
API int cuptiRangeProfilerGetCounterDataSize(DataSize *p) {
  ENTER(DataSize, size);
  if (!p->ranges || p->nodes < p->ranges || (int)p->count != n_names) return INVALID_PARAMETER;
  p->size = IMAGE;
  return OK;
}

typedef struct { HEAD; void *profiler; size_t size; uint8_t *image; } DataInit;
API int cuptiRangeProfilerCounterDataImageInitialize(DataInit *p) {
  ENTER(DataInit, image);
  REQUIRE(enabled && !started);
  range_count = 0; data_image = p->image;
  return OK;
}

typedef struct {
  HEAD; void *profiler; size_t configSize; const uint8_t *config; size_t dataSize; uint8_t *data;
  int range, replay; size_t maxRanges; uint16_t levels, minLevel; size_t pass; uint16_t targetLevel;
} SetConfig;
API int cuptiRangeProfilerSetConfig(SetConfig *p) {
  ENTER(SetConfig, targetLevel);
  automatic = p->range == 1;
  if ((p->range != 2 && p->range != 1) || p->replay != 3 || p->levels != 1 || p->minLevel != 1) return INVALID_PARAMETER;
  if (p->pass != 0 || p->targetLevel != 1 || p->config[0] != 9) return INVALID_PARAMETER;
  if (p->data != data_image || p->configSize != 32 || p->dataSize != IMAGE) return INVALID_PARAMETER;
  configured = 1; done_passes = 0; range_limit = (int)p->maxRanges;
  return OK;
}

API int cuptiRangeProfilerStart(Object *p) {
  ENTER(Object, profiler);
  REQUIRE(configured && !started && done_passes < passes);
  started = 1; range_count = 0;
  return OK;
}

typedef struct { HEAD; void *profiler; size_t pass, level; uint8_t all; } Stop;
API int cuptiRangeProfilerStop(Stop *p) {
  ENTER(Stop, all);
  REQUIRE(started && !open_range);
  started = 0; done_passes++;
  p->all = done_passes == passes && !never_done;
  return OK;
}

typedef struct { HEAD; void *profiler; const char *name; } Push;
API int cuptiRangeProfilerPushRange(Push *p) {
  char line[128];
  ENTER(Push, name);
  REQUIRE(started && !open_range);
  snprintf(line, sizeof line, "push %s", p->name);
  fake_note(line);
  strcpy(open_name, p->name);
  open_range = 1; open_work = 0;
  return OK;
}
API int cuptiRangeProfilerPopRange(Object *p) {
  ENTER(Object, profiler);
  REQUIRE(open_range);
  open_range = 0;
  if (!strcmp(open_name, lost)) return OK;
  if (range_count == range_limit) { dropped++; return OK; }
  strcpy(range_names[range_count], open_name);
  work[range_count++] = open_work;
  return OK;
}

typedef struct { HEAD; void *profiler; size_t dropped; } Decode;
API int cuptiRangeProfilerDecodeData(Decode *p) {
  ENTER(Decode, dropped);
  REQUIRE(enabled && !started && done_passes == passes);
  for (int i = 0, j = range_count - 1; automatic && i < j; i++, j--) {
    double w = work[i]; work[i] = work[j]; work[j] = w;
    char n[64]; strcpy(n, range_names[i]); strcpy(range_names[i], range_names[j]); strcpy(range_names[j], n);
  }
  p->dropped = (size_t)dropped;
  return OK;
}

typedef struct { HEAD; const uint8_t *image; size_t size, total; } Info;
API int cuptiRangeProfilerGetCounterDataInfo(Info *p) { ENTER(Info, total); p->total = (size_t)range_count; return OK; }

typedef struct { HEAD; const uint8_t *image; size_t size, index; const char *delimiter, *name; } RangeInfo;
API int cuptiRangeProfilerCounterDataGetRangeInfo(RangeInfo *p) {
  ENTER(RangeInfo, name);
  p->name = range_names[p->index];
  return OK;
}

/* cuda.h */

API int cuInit(unsigned flags) { return (int)flags; }
API int cuDeviceGetCount(int *count) { *count = 1; return 0; }
API int cuDeviceGet(int *device, int index) { *device = index; return 0; }
API int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device; fake_note("retain"); *context = &has_context; return 0;
}
API int cuDevicePrimaryCtxRelease_v2(int device) { (void)device; fake_note("release"); return 0; }
API int cuCtxGetCurrent(void **context) { *context = has_context ? (void *)&has_context : 0; return 0; }
API int cuCtxSetCurrent(void *context) { has_context = context != 0; return 0; }
API int cuCtxGetDevice(int *device) { *device = 0; return 0; }
API int cuCtxSynchronize(void) { fake_note("synchronize"); return 0; }
API int cuGetErrorName(int result, const char **name) {
  *name = result == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0;
  return 0;
}
