/* A CUDA driver and its GPU, for tests: what driver.py loads and calls is real C.

   Memory of the device is memory of the host. A kernel does what those of canary.cu do to their
   arguments, and takes as long as the test has set (fake_takes); the GPU's clock has 2 GHz. It has
   eight SMs, and puts a block that wants all shared memory on an SM of its own.
   The structs are those of cuda.h, CUDA 12.0. */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define REQUIRE(condition) do { if (!(condition)) return INVALID_VALUE; } while (0)

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
enum { SHARED = 232448, MOST = 64, KERNELS = 6 };

static const char *const kernels[KERNELS] = {"arithmetic", "tensor", "l2", "dram", "nothing", "placed"};
static char the_log[1 << 16], fail_call[64];
static size_t log_length, room, sizes[MOST];
static char *blocks[MOST];
static int fail_result, fail_after, has_context, devices, modules, sms, l2_bytes, launches[KERNELS];
static int shared_allowed[KERNELS], slow_launch, shares;
static double cycles[KERNELS], slow_factor, turns;
static uint64_t now;
static const char *image;
static size_t read_bytes[KERNELS];
static uint64_t last_read[KERNELS];
static int places[KERNELS];

API void fake_reset(void) {
  for (int i = 0; i < MOST; i++) { free(blocks[i]); blocks[i] = 0; }
  memset(the_log, 0, sizeof the_log);
  memset(launches, 0, sizeof launches); memset(shared_allowed, 0, sizeof shared_allowed);
  memset(places, 0, sizeof places); memset(last_read, 0, sizeof last_read);
  log_length = 0; fail_call[0] = 0; has_context = 0; devices = 1; modules = 0; room = (size_t)1 << 30;
  sms = 8; l2_bytes = 50 << 20; slow_launch = -1; shares = 0; turns = 1; now = 0;
  for (int i = 0; i < KERNELS; i++) cycles[i] = 1e6 * (i + 1);
}
API const char *fake_log(void) { return the_log; }
API int fake_alive(void) {
  int count = modules;
  for (int i = 0; i < MOST; i++) count += blocks[i] != 0;
  return count;
}
/* Lets calls of `call` fail with `result` from its (after + 1)-th call on. */
API void fake_fail(const char *call, int result, int after) { strcpy(fail_call, call); fail_result = result; fail_after = after; }
API void fake_devices(int count) { devices = count; }
API void fake_room(size_t bytes) { room = bytes; }
API void fake_l2(int bytes) { l2_bytes = bytes; }
/* The cycles of a kernel on each SM, and how many times as many its n-th launch takes. */
API void fake_takes(int kernel, double count) { cycles[kernel] = count; }
API void fake_slow(int launch, double factor) { slow_launch = launch; slow_factor = factor; }
/* Another process has work on an SM: two blocks, one after the other, are on the first. */
API void fake_shared(int yes) { shares = yes; }
/* Another process has the GPU between our kernels: all of them take so many times as long. */
API void fake_turns(double times) { turns = times; }
/* What a kernel has read of. */
API size_t fake_reads(int kernel) { return read_bytes[kernel]; }
/* How often it read elsewhere than the launch before. */
API int fake_places(int kernel) { return places[kernel]; }
API int fake_launches(int kernel) { return launches[kernel]; }

static void note(const char *text) {
  if (log_length + strlen(text) + 2 < sizeof the_log)
    log_length += (size_t)snprintf(the_log + log_length, sizeof the_log - log_length, "%s\n", text);
}

static int failing(const char *name) {
  note(name);
  if (strcmp(name, fail_call)) return 0;
  if (fail_after == 0) return fail_result;
  fail_after--;
  return 0;
}
#define ENTER do { int r = failing(__func__); if (r) return r; } while (0)

API int cuInit(unsigned flags) { return (int)flags; }
API int cuDeviceGetCount(int *count) { *count = devices; return devices ? 0 : 100; }
API int cuDeviceGet(int *device, int index) { *device = index + 40; return 0; }
API int cuDevicePrimaryCtxRetain(void **context, int device) { REQUIRE(device == 40); note("retain"); *context = &devices; return 0; }
API int cuDevicePrimaryCtxRelease_v2(int device) { REQUIRE(device == 40); note("release"); return 0; }
API int cuCtxGetCurrent(void **context) { *context = has_context ? (void *)&devices : 0; return 0; }
API int cuCtxSetCurrent(void *context) { has_context = context != 0; return 0; }
API int cuCtxGetDevice(int *device) { *device = 40; return 0; }
API int cuCtxSynchronize(void) { ENTER; return 0; }
API int cuGetErrorName(int result, const char **name) {
  *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : result == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : 0;
  return 0;
}
API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER;
  REQUIRE(device == 40 && (attribute == 16 || attribute == 38 || attribute == 97));
  *value = attribute == 16 ? sms : attribute == 38 ? l2_bytes : SHARED;
  return 0;
}

API int cuModuleLoadData(void **module, const void *given) {
  ENTER;
  REQUIRE(has_context && !memcmp(given, "\177ELF", 4));
  image = given; modules++; *module = &modules;
  return 0;
}
API int cuModuleUnload(void *module) { modules -= module == &modules; ENTER; return 0; }
API int cuModuleGetFunction(void **function, void *module, const char *name) {
  uint64_t sections; uint16_t size, count;
  char symbol[64];
  ENTER;
  REQUIRE(module == &modules);
  memcpy(&sections, image + 40, 8); memcpy(&size, image + 58, 2); memcpy(&count, image + 60, 2);
  snprintf(symbol, sizeof symbol, ".text.%s", name);
  for (int i = 0; i < KERNELS; i++)
    if (!strcmp(name, kernels[i]) && memmem(image, sections + (size_t)size * count, symbol, strlen(symbol) + 1)) {
      *function = &launches[i];
      return 0;
    }
  return NOT_FOUND;
}
API int cuFuncSetAttribute(int *function, int attribute, int value) {
  ENTER;
  REQUIRE(attribute == 8);
  shared_allowed[function - launches] = value;
  return 0;
}

API int cuMemAlloc_v2(uint64_t *address, size_t size) {
  ENTER;
  REQUIRE(has_context && size);
  if (size > room) return OUT_OF_MEMORY;
  for (int i = 0; i < MOST; i++)
    if (!blocks[i]) { blocks[i] = malloc(size); sizes[i] = size; *address = (uint64_t)blocks[i]; return 0; }
  return OUT_OF_MEMORY;
}
/* How many bytes of a block begin at an address. */
static size_t size_at(uint64_t address) {
  for (int i = 0; i < MOST; i++) {
    uint64_t at = address - (uint64_t)blocks[i];
    if (blocks[i] && at < sizes[i]) return sizes[i] - at;
  }
  return 0;
}
API int cuMemFree_v2(uint64_t address) {
  ENTER;
  for (int i = 0; i < MOST; i++)
    if (blocks[i] && (uint64_t)blocks[i] == address) { free(blocks[i]); blocks[i] = 0; return 0; }
  return INVALID_VALUE;
}
API int cuMemsetD32_v2(uint64_t address, unsigned word, size_t words) {
  ENTER;
  REQUIRE(word && size_at(address) == 4 * words);
  return 0;
}
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  ENTER;
  REQUIRE(size <= size_at(from));
  memcpy(to, (void *)from, size);
  return 0;
}

typedef struct { unsigned id; char pad[4]; union { char pad[64]; struct { unsigned x, y, z; } cluster; } value; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void *stream; Attribute *attributes; unsigned count; } Config;
typedef struct { uint64_t first_cycle, last_cycle, first_ns, last_ns, sm; } Stamp;

static int stamp(int kernel, const Config *config, void **arguments) {
  uint64_t out = *(uint64_t *)arguments[0];
  double slow = launches[kernel] == slow_launch ? slow_factor : 1;
  REQUIRE(config->grid[0] == (unsigned)sms && config->block[0] == 1024 && config->shared == SHARED && !config->count);
  if (size_at(out) < (config->grid[0] + 1) * sizeof(Stamp)) return ILLEGAL_ADDRESS;
  if (kernel == 0) { float factor = *(float *)arguments[1]; REQUIRE(factor > 1 && factor < 1.001f); }
  if (kernel == 2 || kernel == 3) {
    size_t words = (size_t)*(unsigned *)arguments[2] + 1;
    if (size_at(*(uint64_t *)arguments[1]) < 16 * words || (words & (words - 1))) return ILLEGAL_ADDRESS;
    read_bytes[kernel] = 16 * words;
    if (last_read[kernel] != *(uint64_t *)arguments[1]) places[kernel]++;
    last_read[kernel] = *(uint64_t *)arguments[1];
  }
  for (unsigned i = 0; i < config->grid[0]; i++) {
    /* The SMs' counters differ, and each block begins 10 ns after the one before. */
    uint64_t taken = (uint64_t)(cycles[kernel] * slow), begin = 1000000 * (uint64_t)(i + 1), ns = now + 5000 + 10 * i;
    unsigned sm = i;
    if (shares && i == 1) { sm = 0; begin = 1000000 + taken; ns = now + 5000 + taken / 2; }
    ((Stamp *)out)[i] = (Stamp){begin, begin + taken, ns, ns + taken / 2, sm};
  }
  now += (uint64_t)(cycles[kernel] * slow / 2 * turns);
  return 0;
}

API int cuLaunchKernelEx(const Config *config, int *function, void **arguments, void **extra) {
  int kernel = (int)(function - launches);
  ENTER;
  REQUIRE(!extra && !config->stream && config->grid[1] == 1 && config->grid[2] == 1);
  REQUIRE(config->block[1] == 1 && config->block[2] == 1 && (int)config->shared <= shared_allowed[kernel]);
  launches[kernel]++;
  if (kernel == 4) return 0;
  return stamp(kernel, config, arguments);
}
