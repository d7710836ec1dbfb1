// The canary: kernels whose machine code never changes, read before and after each measurement.
//
// `script/canary` compiles this file to cubins/, which are what runs: no update of torch, of NVRTC or
// of the driver's compiler changes a reading. Whoever edits it makes other readings, and their digest
// (`canary.py`) keeps them from being compared with those of before.
//
// Every kernel is launched with one block of 1024 threads per SM: one block takes all the shared
// memory that there is, so that no SM gets two. What one SM has to do is the same on every GPU.

struct Stamp {
  unsigned long long first_cycle, last_cycle, first_ns, last_ns, sm;
};

// GPUs for computing have the tensor cores and the memory for more work than those for graphics.
#if __CUDA_ARCH__ == 750 || __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
enum { ARITHMETIC = 2000, TENSOR = 1000, L2 = 4096, DRAM = 1024 };
#else
enum { ARITHMETIC = 2000, TENSOR = 4000, L2 = 4096, DRAM = 4096 };
#endif
// Per thread: 128 fused multiply-adds, or 8 matrix products of a warp (4 on sm70), so often; reads of
// 16 bytes. On an H200 2.1 M cycles (2000 x 128 x 1024 threads / 128 lanes), 1.6 M, 2.0 M for 64 MiB
// per SM, and 2 ms for 64 MiB per SM, of 132.

static __device__ unsigned long long nanoseconds() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

static __device__ unsigned processor() {
  unsigned sm;
  asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
  return sm;
}

// The results are kept behind the stamps, where they are never worth keeping: without a use for them
// the compiler would leave out the work.
#define BEGIN const unsigned long long first_cycle = clock64(), first_ns = nanoseconds();
#define END(result)                                                                                 \
  if ((result) == 12345) out[gridDim.x].sm = 1;                                                     \
  __syncthreads();                                                                                  \
  if (threadIdx.x == 0)                                                                             \
    out[blockIdx.x] = Stamp{first_cycle, (unsigned long long)clock64(), first_ns, nanoseconds(),    \
                            processor()};

extern "C" __global__ void __launch_bounds__(1024) arithmetic(Stamp *out, float factor) {
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; i++) x[i] = threadIdx.x + i;
  BEGIN
  for (int k = 0; k < ARITHMETIC; k++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int i = 0; i < 16; i++) x[i] = fmaf(x[i], factor, factor);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) sum += x[i];
  END(sum)
}

#if __CUDA_ARCH__ >= 800
enum { PRODUCTS = 8, PARTS = 4 };
static __device__ void multiply(float (&d)[PARTS], const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#elif __CUDA_ARCH__ >= 750
enum { PRODUCTS = 8, PARTS = 4 };
static __device__ void multiply(float (&d)[PARTS], const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#else
enum { PRODUCTS = 4, PARTS = 8 };
static __device__ void multiply(float (&d)[PARTS], const unsigned *a, const unsigned *b) {
  asm volatile(
      "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
      "{%0,%1,%2,%3,%4,%5,%6,%7};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
}
#endif

extern "C" __global__ void __launch_bounds__(1024) tensor(Stamp *out) {
  // Small numbers in either format, other ones in each lane: what is multiplied costs power.
  unsigned a[4], b[2];
#pragma unroll
  for (int i = 0; i < 4; i++) a[i] = 0x3c003c00u + ((threadIdx.x * 37 + i * 11) & 127) * 0x00010001u;
#pragma unroll
  for (int i = 0; i < 2; i++) b[i] = 0xbc003c00u + ((threadIdx.x * 53 + i * 29) & 127) * 0x00010001u;
  float d[PRODUCTS][PARTS] = {};
  BEGIN
  for (int k = 0; k < TENSOR; k++)
#pragma unroll
    for (int i = 0; i < PRODUCTS; i++) multiply(d[i], a, b);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < PRODUCTS; i++) sum += d[i][0] + d[i][PARTS - 1];
  END(sum)
}

// Reads a buffer of mask + 1 words, a power of two, again and again, past the L1. Eight reads of each
// thread are on their way at once, 128 KiB per SM: it is the bandwidth that is measured.
#define READS(name, steps)                                                                          \
  extern "C" __global__ void __launch_bounds__(1024, 1)                                             \
      name(Stamp *out, const uint4 *data, unsigned mask) {                                          \
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x, sum = 0;  \
    BEGIN                                                                                           \
    _Pragma("unroll 1") for (int k = 0; k < steps; k += 8) {                                        \
      uint4 v[8];                                                                                   \
      _Pragma("unroll") for (int i = 0; i < 8; i++, at += stride)                                   \
        asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"                                     \
                     : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)                       \
                     : "l"(data + (at & mask)));                                                    \
      _Pragma("unroll") for (int i = 0; i < 8; i++) sum += v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;       \
    }                                                                                               \
    END(sum)                                                                                        \
  }
READS(l2, L2)
READS(dram, DRAM)

extern "C" __global__ void nothing() {}

#if __CUDA_ARCH__ >= 900
// On which SM each block of a cluster runs. They wait for each other: no SM gets the next block
// before all have one.
extern "C" __global__ void placed(unsigned *out) {
  if (threadIdx.x == 0) out[blockIdx.x] = processor();
  const long long begin = clock64();
  while (clock64() - begin < 20000) {
  }
}
#endif
