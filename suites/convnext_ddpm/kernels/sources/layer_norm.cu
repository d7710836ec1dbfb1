// GroupNorm of one group: over the C * PLANE elements of each image, in float32.
//
// Mean and squared deviations are those of a slice whose elements are held in registers, in two
// passes over them; slices are merged by the formula of Chan, Golub and LeVeque. Nothing is lost to
// cancellation where the mean is large.
#include "common.cuh"

struct Moments {
    float count, mean, squares;  // squares: the sum of squared deviations from the mean
};

__device__ inline Moments merged(Moments a, Moments b) {
    const float count = a.count + b.count;
    if (count == 0.0f) return a;
    const float apart = b.mean - a.mean, share = __fdividef(b.count, count);
    return {count, a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share};
}

// An image's moments, for every lane of a warp, from those of its slices of `slice` elements.
__device__ inline Moments merged_slices(const float2* partials, int slices, int slice, int count) {
    Moments all = {0.0f, 0.0f, 0.0f};
    for (int i = threadIdx.x % WARP; i < slices; i += WARP) {
        const float2 partial = partials[i];
        const int here = smaller(slice, count - i * slice);
        all = merged(all, {(float)here, partial.x, partial.y});
    }
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2) {
        Moments other;
        other.count = __shfl_xor_sync(0xffffffffu, all.count, apart);
        other.mean = __shfl_xor_sync(0xffffffffu, all.mean, apart);
        other.squares = __shfl_xor_sync(0xffffffffu, all.squares, apart);
        all = merged(all, other);
    }
    return all;
}

// EACH elements of a thread, VECTOR neighbours at a time, from element `first` of an image on.
template <int COUNT, int THREADS, int EACH, int VECTOR>
__device__ inline void load_slice(float (&values)[EACH], const float* image, int first) {
#pragma unroll
    for (int i = 0; i < EACH; i += VECTOR) {
        const int index = first + (i / VECTOR * THREADS + threadIdx.x) * VECTOR;
        if (index < COUNT) load<VECTOR>(values + i, image + index);
    }
}

template <int C, int PLANE, int THREADS, int EACH, int VECTOR>
__device__ inline void store_slice(float* image, int first, const float (&values)[EACH],
                                   const float* weight, const float* bias, float mean,
                                   float scale) {
#pragma unroll
    for (int i = 0; i < EACH; i += VECTOR) {
        const int index = first + (i / VECTOR * THREADS + threadIdx.x) * VECTOR;
        if (index >= C * PLANE) continue;
        const float factor = scale * weight[index / PLANE], shift = bias[index / PLANE];
        float results[VECTOR];
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) results[j] = (values[i + j] - mean) * factor + shift;
        // Not to be kept in the cache: the input, which others are about to read, is.
        if (VECTOR == 4)
            __stcs(reinterpret_cast<float4*>(image + index),
                   make_float4(results[0], results[VECTOR / 4], results[VECTOR / 2],
                               results[VECTOR - 1]));
        else
            __stcs(image + index, results[0]);
    }
}

// Mean and squares of the up to THREADS * EACH elements that a block holds, for all its threads.
template <int COUNT, int THREADS, int EACH, int VECTOR>
__device__ inline Moments slice_moments(const float (&values)[EACH], int first, float* scratch) {
    const int count = smaller(THREADS * EACH, COUNT - first);
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i)
        if ((i / VECTOR * THREADS + threadIdx.x) * VECTOR < count) sum += values[i];
    const float mean = block_sum<THREADS>(sum, scratch) / count;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float apart = values[i] - mean;
        if ((i / VECTOR * THREADS + threadIdx.x) * VECTOR < count) squares += apart * apart;
    }
    return {(float)count, mean, block_sum<THREADS>(squares, scratch)};
}

// One block per image, which reads it three times; sums by a tree in shared memory.
template <int C, int PLANE>
__global__ void __launch_bounds__(256)
    norm_naive(const float* __restrict__ x, const float* __restrict__ weight,
               const float* __restrict__ bias, float* __restrict__ out, float epsilon) {
    constexpr int THREADS = 256, COUNT = C * PLANE;
    __shared__ float tree[THREADS];
    const float* source = x + (size_t)blockIdx.x * COUNT;
    float* target = out + (size_t)blockIdx.x * COUNT;
    float found[2] = {0.0f, 0.0f};  // the mean, then the variance
    for (int pass = 0; pass < 2; ++pass) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < COUNT; i += THREADS) {
            const float apart = source[i] - found[0];
            sum += pass == 0 ? apart : apart * apart;
        }
        tree[threadIdx.x] = sum;
        __syncthreads();
        for (int apart = THREADS / 2; apart > 0; apart /= 2) {
            if (threadIdx.x < apart) tree[threadIdx.x] += tree[threadIdx.x + apart];
            __syncthreads();
        }
        found[pass] = tree[0] / COUNT;
        __syncthreads();
    }
    const float scale = rsqrtf(found[1] + epsilon);
    for (int i = threadIdx.x; i < COUNT; i += THREADS)
        target[i] = (source[i] - found[0]) * scale * weight[i / PLANE] + bias[i / PLANE];
}

// One block per image that fits into its registers, which is read once.
template <int C, int PLANE, int THREADS, int EACH, int VECTOR>
__global__ void __launch_bounds__(THREADS)
    norm_resident(const float* __restrict__ x, const float* __restrict__ weight,
                  const float* __restrict__ bias, float* __restrict__ out, float epsilon) {
    constexpr int COUNT = C * PLANE;
    static_assert(THREADS * EACH >= COUNT, "an image fits into a block");
    __shared__ float scratch[WARP];
    float values[EACH];
    load_slice<COUNT, THREADS, EACH, VECTOR>(values, x + (size_t)blockIdx.x * COUNT, 0);
    const Moments all = slice_moments<COUNT, THREADS, EACH, VECTOR>(values, 0, scratch);
    store_slice<C, PLANE, THREADS, EACH, VECTOR>(out + (size_t)blockIdx.x * COUNT, 0, values, weight,
                                                 bias, all.mean,
                                                 rsqrtf(all.squares / COUNT + epsilon));
}

// Mean and squares of each slice of each image: partials [N, slices].
template <int COUNT, int THREADS, int EACH, int VECTOR>
__global__ void __launch_bounds__(THREADS)
    norm_partial(const float* __restrict__ x, float2* __restrict__ partials) {
    __shared__ float scratch[WARP];
    const int first = blockIdx.x * THREADS * EACH;
    float values[EACH];
    load_slice<COUNT, THREADS, EACH, VECTOR>(values, x + (size_t)blockIdx.y * COUNT, first);
    const Moments here = slice_moments<COUNT, THREADS, EACH, VECTOR>(values, first, scratch);
    if (threadIdx.x == 0)
        partials[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = make_float2(here.mean, here.squares);
}

// Each image's mean and reciprocal standard deviation, a warp to an image: moments [N].
template <int COUNT, int SLICE>
__global__ void __launch_bounds__(WARP)
    norm_reduce(const float2* __restrict__ partials, float2* __restrict__ moments, float epsilon) {
    constexpr int SLICES = ceiling(COUNT, SLICE);
    const Moments all =
        merged_slices(partials + (size_t)blockIdx.x * SLICES, SLICES, SLICE, COUNT);
    if (threadIdx.x == 0)
        moments[blockIdx.x] = make_float2(all.mean, rsqrtf(all.squares / COUNT + epsilon));
}

// (x - mean) * scale * weight + bias, slice by slice. MERGE: every warp merges the partials of its
// image; otherwise norm_reduce has done it. The blocks take the slices in the opposite order of
// norm_partial's, so as to find what that read last in the cache.
template <int C, int PLANE, int THREADS, int EACH, int VECTOR, bool MERGE>
__global__ void __launch_bounds__(THREADS)
    norm_scale(const float* __restrict__ x, const float* __restrict__ weight,
               const float* __restrict__ bias, const float2* __restrict__ moments,
               float* __restrict__ out, float epsilon) {
    constexpr int COUNT = C * PLANE, SLICES = ceiling(COUNT, THREADS * EACH);
    const int image = gridDim.y - 1 - blockIdx.y;
    const int first = (gridDim.x - 1 - blockIdx.x) * THREADS * EACH;
    float values[EACH];
    load_slice<COUNT, THREADS, EACH, VECTOR>(values, x + (size_t)image * COUNT, first);
    float mean, scale;
    if (MERGE) {
        const Moments all =
            merged_slices(moments + (size_t)image * SLICES, SLICES, THREADS * EACH, COUNT);
        mean = all.mean, scale = rsqrtf(all.squares / COUNT + epsilon);
    } else {
        mean = moments[image].x, scale = moments[image].y;
    }
    store_slice<C, PLANE, THREADS, EACH, VECTOR>(out + (size_t)image * COUNT, first, values, weight,
                                                 bias, mean, scale);
}
