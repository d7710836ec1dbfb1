// The instructions of tensor cores and clusters, which have no header that NVRTC brings along.
// The tests have the same functions for a CPU.
#pragma once
#ifdef __CUDACC__

__device__ inline unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// The shared memory that a launch asked for.
__device__ inline float* dynamic_shared() {
    extern __shared__ __align__(16) float requested[];
    return requested;
}

#if __CUDA_ARCH__ >= 900

__device__ inline unsigned cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// All threads of a cluster wait for one another, and then see what the others wrote before.
__device__ inline void cluster_barrier() {
    asm volatile(
        "barrier.cluster.arrive;\n"
        "barrier.cluster.wait;" ::
            : "memory");
}

// The place in another block's shared memory that is at `pointer` in this one's.
__device__ inline const float* in_block(const float* pointer, unsigned rank) {
    const float* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(pointer), "r"(rank));
    return there;
}

#else  // a cluster is a block

__device__ inline unsigned cluster_rank() { return 0; }
__device__ inline void cluster_barrier() { __syncthreads(); }
__device__ inline const float* in_block(const float* pointer, unsigned) { return pointer; }

#endif
#if __CUDA_ARCH__ >= 800

// Two floats as bfloat16, `low` in the lower half, rounded to the nearest.
__device__ inline unsigned bfloat16_pair(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Four matrices of 8x8 16-bit elements. Lane i has the address of row i % 8 of matrix i / 8, and
// gets the elements 2 (i % 4) and the next of row i / 4 of each.
__device__ inline void load_matrices(unsigned (&to)[4], const unsigned short* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// sum += a b, 16x16 by 16x8, in bfloat16 with float32 sums.
__device__ inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
#endif
