// A GPU for a CPU, as far as the kernels of suites/convnext_ddpm need one: every thread is a fiber,
// which runs until it waits for others at a barrier. The clusters of a grid run one after the other.
//
// A barrier that some thread of its group never reaches is an error. Threads run in ascending or in
// descending order, so that a barrier that is missing shows as a difference between the two.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct Index { unsigned x, y, z; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulated {

constexpr int LANES = 32;
constexpr size_t STACK = 1 << 16;

struct Barrier {
    int size = 0, arrived = 0;
    long generation = 0;
};

struct Warp {
    Barrier barrier;
    uint64_t slots[LANES][6];
};

struct Block {
    Index index;
    unsigned rank;
    Barrier barrier;
    std::vector<Warp> warps;
    std::vector<float4> shared;
};

struct Thread {
    ucontext_t context;
    Index index;
    Block* block;
    Warp* warp;
    int lane;
    Barrier* awaited = nullptr;
    long generation = 0;
    bool done = false;
};

inline ucontext_t scheduler;
inline Thread* current;
inline Index grid_size, block_size;
inline Barrier cluster_barrier;
inline std::vector<Block> blocks;

inline void wait(Barrier& barrier) {
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    current->awaited = &barrier;
    current->generation = barrier.generation;
    swapcontext(&current->context, &scheduler);
}

template <typename T>
T exchanged(T value, int lane) {
    static_assert(sizeof(T) <= 8, "a register or two");
    memcpy(current->warp->slots[current->lane], &value, sizeof(T));
    wait(current->warp->barrier);
    T other;
    memcpy(&other, current->warp->slots[lane], sizeof(T));
    wait(current->warp->barrier);
    return other;
}

template <typename... A, size_t... I>
void called(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<A*>(arguments[I])...);
}

struct Call {
    void (*run)(void*, void**);
    void* kernel;
    void** arguments;
};
inline Call call;

inline void fiber() {
    call.run(call.kernel, call.arguments);
    current->done = true;
    swapcontext(&current->context, &scheduler);
}

// 0; or 1 when threads wait for some that have ended or wait elsewhere.
inline int run_cluster(std::vector<Thread>& threads, bool descending) {
    size_t left = threads.size();
    while (left) {
        bool progress = false;
        for (size_t i = 0; i < threads.size(); ++i) {
            Thread& thread = threads[descending ? threads.size() - 1 - i : i];
            if (thread.done) continue;
            if (thread.awaited && thread.awaited->generation == thread.generation) continue;
            thread.awaited = nullptr;
            current = &thread;
            swapcontext(&scheduler, &thread.context);
            progress = true;
            left -= thread.done;
        }
        if (!progress) return 1;
    }
    return 0;
}

template <typename... A>
int launch(void (*kernel)(A...), const unsigned* grid, unsigned threads_each, unsigned cluster,
           unsigned shared_bytes, bool descending, void** arguments) {
    call.run = [](void* function, void** values) {
        called(reinterpret_cast<void (*)(A...)>(function), values, std::index_sequence_for<A...>());
    };
    call.kernel = reinterpret_cast<void*>(kernel);
    call.arguments = arguments;
    grid_size = {grid[0], grid[1], grid[2]};
    block_size = {threads_each, 1, 1};
    const unsigned count = cluster * threads_each;
    static std::vector<char> stacks;
    stacks.resize(count * STACK);
    const unsigned clusters = grid[0] / cluster * grid[1] * grid[2];
    for (unsigned c = 0; c < clusters; ++c) {
        std::vector<Thread> threads(count);
        blocks.assign(cluster, Block());
        cluster_barrier = Barrier();
        cluster_barrier.size = count;
        for (unsigned b = 0; b < cluster; ++b) {
            const unsigned number = c * cluster + b;
            blocks[b].index = {number % grid[0], number / grid[0] % grid[1],
                               number / grid[0] / grid[1]};
            blocks[b].rank = b;
            blocks[b].barrier.size = threads_each;
            blocks[b].warps.resize((threads_each + LANES - 1) / LANES);
            // What was never written is not a number.
            blocks[b].shared.resize(shared_bytes / 16 + 1, {NAN, NAN, NAN, NAN});
        }
        for (unsigned i = 0; i < count; ++i) {
            Thread& thread = threads[i];
            const unsigned within = i % threads_each;
            thread.block = &blocks[i / threads_each];
            thread.index = {within, 0, 0};
            thread.lane = within % LANES;
            thread.warp = &thread.block->warps[within / LANES];
            ++thread.warp->barrier.size;
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = stacks.data() + i * STACK;
            thread.context.uc_stack.ss_size = STACK;
            thread.context.uc_link = nullptr;
            makecontext(&thread.context, fiber, 0);
        }
        if (run_cluster(threads, descending)) return 1;
    }
    return 0;
}

}  // namespace emulated

#define threadIdx (emulated::current->index)
#define blockIdx (emulated::current->block->index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)

inline void __syncthreads() { emulated::wait(emulated::current->block->barrier); }
inline void __syncwarp() { emulated::wait(emulated::current->warp->barrier); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int apart) {
    return emulated::exchanged(value, emulated::current->lane ^ apart);
}

template <typename T>
void __stcs(T* to, T value) { *to = value; }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }

// What intrinsics.cuh has for a GPU, as the PTX manual describes it.

inline unsigned bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float from_bfloat16(unsigned half) {
    const uint32_t bits = half << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

inline unsigned bfloat16_pair(float low, float high) { return bfloat16(high) << 16 | bfloat16(low); }

inline void load_matrices(unsigned (&to)[4], const unsigned short* row) {
    using emulated::current;
    emulated::Warp& warp = *current->warp;
    if (reinterpret_cast<uintptr_t>(row) % 16) __builtin_trap();
    warp.slots[current->lane][0] = reinterpret_cast<uint64_t>(row);
    emulated::wait(warp.barrier);
    for (int matrix = 0; matrix < 4; ++matrix) {
        const auto* from = reinterpret_cast<const unsigned short*>(
            warp.slots[matrix * 8 + current->lane / 4][0]);
        memcpy(&to[matrix], from + current->lane % 4 * 2, 4);
    }
    emulated::wait(warp.barrier);
}

inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    using emulated::current;
    emulated::Warp& warp = *current->warp;
    const unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    for (int i = 0; i < 6; ++i) warp.slots[current->lane][i] = mine[i];
    emulated::wait(warp.barrier);
    const auto half = [](uint64_t pair, int k) { return from_bfloat16(pair >> k % 2 * 16 & 0xffff); };
    for (int i = 0; i < 4; ++i) {
        const int row = current->lane / 4 + i / 2 * 8, column = current->lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
            const uint64_t* left = warp.slots[row % 8 * 4 + k % 8 / 2];
            const uint64_t* right = warp.slots[column * 4 + k % 8 / 2];
            sum[i] += half(left[row / 8 + k / 8 * 2], k) * half(right[4 + k / 8], k);
        }
    }
    emulated::wait(warp.barrier);
}

inline float* dynamic_shared() {
    return reinterpret_cast<float*>(emulated::current->block->shared.data());
}
inline unsigned cluster_rank() { return emulated::current->block->rank; }
inline void cluster_barrier() { emulated::wait(emulated::cluster_barrier); }
inline const float* in_block(const float* pointer, unsigned rank) {
    return reinterpret_cast<float*>(emulated::blocks[rank].shared.data()) +
           (pointer - dynamic_shared());
}
