// A whole ConvNeXt block of a small map, in one kernel: nothing but its input, its parameters and its
// result is in global memory.
//
// An image has a cluster of RANKS blocks. Each has its share of the channels in its shared memory,
// computes its share of every convolution's output channels, and reads the others' shares from where
// they are. Before sm90 there are no clusters, and RANKS is 1.
#include "common.cuh"

constexpr int THREADS = 512;
constexpr int HALF = THREADS / 2;  // the halves of a block share a convolution's input channels
constexpr int CHUNK = 8;           // input channels of a convolution at a time
constexpr int STRIP = 2;           // pixels of a thread, one below the other

template <int ROWS, int COLUMNS, int OUTPUTS_EACH>
struct Work {
    static constexpr int STRIPS = ceiling(ROWS, STRIP) * COLUMNS;
    // Output channels of a thread: more are faster, if there is work for all threads.
    static constexpr int GROUP = STRIPS * ceiling(OUTPUTS_EACH, 8) >= HALF ? 8 : 4;
    static constexpr int ITEMS = STRIPS * ceiling(OUTPUTS_EACH, GROUP);
    static constexpr int EACH = ceiling(ITEMS, HALF);
    static constexpr int WEIGHT_STRIDE = ceiling(OUTPUTS_EACH, GROUP) * GROUP + 4;
    static constexpr int SUMS = ITEMS * STRIP * GROUP;
    float sums[EACH][STRIP][GROUP];

    // Of a thread's i-th pixels and output channels, which a thread of each half has.
    __device__ static int item(int i) { return i * HALF + threadIdx.x % HALF; }

    // finish(output within the share, pixel, sum) for each of the first half's, to which the second
    // half's sums have been added. `memory` is SUMS elements of shared memory that nobody uses.
    template <typename Finish>
    __device__ void finish(float* memory, Finish finish) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; ++i)
#pragma unroll
            for (int p = 0; p < STRIP; ++p)
#pragma unroll
                for (int o = 0; o < GROUP; ++o)
                    if (threadIdx.x >= HALF && item(i) < ITEMS)
                        memory[(p * GROUP + o) * ITEMS + item(i)] = sums[i][p][o];
        __syncthreads();
        if (threadIdx.x >= HALF) return;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int item = Work::item(i);
            if (item >= ITEMS) continue;
            const int row = item % STRIPS / COLUMNS * STRIP, column = item % COLUMNS;
#pragma unroll
            for (int p = 0; p < STRIP; ++p)
#pragma unroll
                for (int o = 0; o < GROUP; ++o)
                    if (row + p < ROWS)
                        finish(item / STRIPS * GROUP + o, (row + p) * COLUMNS + column,
                               sums[i][p][o] + memory[(p * GROUP + o) * ITEMS + item]);
        }
    }
};

// Adds to `work` a K x K convolution that keeps the map's size: of `source(channel, pixel)` with the
// weights of the OUTPUTS_EACH outputs from first_output on. `patch` and `factors` are shared memory.
template <int K, int INPUTS, int OUTPUTS, int ROWS, int COLUMNS, int OUTPUTS_EACH, typename Source>
__device__ void convolve(Work<ROWS, COLUMNS, OUTPUTS_EACH>& work, Source source,
                         const float* __restrict__ weight, int first_output, float* patch,
                         float* factors) {
    using Mine = Work<ROWS, COLUMNS, OUTPUTS_EACH>;
    constexpr int TAPS = K * K, GROUP = Mine::GROUP;
    constexpr int PATCH_ROWS = ceiling(ROWS, STRIP) * STRIP + K - 1;
    constexpr int PATCH_COLUMNS = COLUMNS + K - 1;
    constexpr int PATCH = CHUNK * PATCH_ROWS * PATCH_COLUMNS, WEIGHTS = CHUNK * TAPS * OUTPUTS_EACH;
    constexpr int PATCH_EACH = ceiling(PATCH, THREADS), WEIGHTS_EACH = ceiling(WEIGHTS, THREADS);

    float next_patch[PATCH_EACH], next_weights[WEIGHTS_EACH];
    const auto fetch = [&](int first) {
#pragma unroll
        for (int i = 0; i < PATCH_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            const int c = first + index / (PATCH_ROWS * PATCH_COLUMNS);
            const int r = index / PATCH_COLUMNS % PATCH_ROWS - K / 2;
            const int s = index % PATCH_COLUMNS - K / 2;
            const bool inside =
                index < PATCH && c < INPUTS && r >= 0 && r < ROWS && s >= 0 && s < COLUMNS;
            next_patch[i] = inside ? source(c, r * COLUMNS + s) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < WEIGHTS_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            const int output = first_output + index / (CHUNK * TAPS);
            const int factor = first * TAPS + index % (CHUNK * TAPS);
            const bool inside = index < WEIGHTS && output < OUTPUTS && factor < INPUTS * TAPS;
            next_weights[i] = inside ? weight[(size_t)output * INPUTS * TAPS + factor] : 0.0f;
        }
    };
    fetch(0);
#pragma unroll 1
    for (int first = 0; first < INPUTS; first += CHUNK) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PATCH_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index < PATCH) patch[index] = next_patch[i];
        }
#pragma unroll
        for (int i = 0; i < WEIGHTS_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index < WEIGHTS)
                factors[index % (CHUNK * TAPS) * Mine::WEIGHT_STRIDE + index / (CHUNK * TAPS)] =
                    next_weights[i];
        }
        __syncthreads();
        if (first + CHUNK < INPUTS) fetch(first + CHUNK);
#pragma unroll
        for (int i = 0; i < Mine::EACH; ++i) {
            const int item = Mine::item(i), half = threadIdx.x / HALF;
            if (item >= Mine::ITEMS) continue;
            const int row = item % Mine::STRIPS / COLUMNS * STRIP, column = item % COLUMNS;
            const float* pixels =
                patch + (half * PATCH_ROWS + row) * PATCH_COLUMNS + column;
            const float* outputs =
                factors + half * TAPS * Mine::WEIGHT_STRIDE + item / Mine::STRIPS * GROUP;
#pragma unroll 1
            for (int c = half; c < CHUNK; c += 2) {
                accumulate<K, PATCH_COLUMNS, Mine::WEIGHT_STRIDE>(pixels, outputs, work.sums[i]);
                pixels += 2 * PATCH_ROWS * PATCH_COLUMNS;
                outputs += 2 * TAPS * Mine::WEIGHT_STRIDE;
            }
        }
    }
}

template <int RANKS>
__device__ inline void everyone() {
    if (RANKS > 1)
        cluster_barrier();
    else
        __syncthreads();
}

// The sum over all threads of the cluster; `published` is an element of shared memory that is used
// for nothing else.
template <int RANKS>
__device__ inline float cluster_sum(float value, float* scratch, float* published) {
    value = block_sum<THREADS>(value, scratch);
    if (RANKS == 1) return value;
    if (threadIdx.x == 0) *published = value;
    everyone<RANKS>();
    float sum = 0.0f;
    for (int rank = 0; rank < RANKS; ++rank) sum += *in_block(published, rank);
    return sum;
}

// Layer norm, in place, of a map of CHANNELS of which the share of this block begins with channel
// `first`. Afterwards the others may read the share.
template <int CHANNELS, int CHANNELS_EACH, int PLANE, int RANKS>
__device__ void normalise(float* share, int first, const float* __restrict__ weight,
                          const float* __restrict__ bias, float epsilon, float* scratch,
                          float* published) {
    const int count = smaller(CHANNELS_EACH, CHANNELS - first) * PLANE;
    float sum = 0.0f, squares = 0.0f;
    for (int i = threadIdx.x; i < count; i += THREADS) sum += share[i];
    const float mean = cluster_sum<RANKS>(sum, scratch, published) / (CHANNELS * PLANE);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const float apart = share[i] - mean;
        squares += apart * apart;
    }
    const float all = cluster_sum<RANKS>(squares, scratch, published + 1);
    const float scale = rsqrtf(all / (CHANNELS * PLANE) + epsilon);
    for (int i = threadIdx.x; i < count; i += THREADS) {
        const int channel = first + i / PLANE;
        share[i] = (share[i] - mean) * scale * weight[channel] + bias[channel];
    }
    everyone<RANKS>();
}

// Null are: shift, where nothing is added to the depthwise convolution, and the residual's weight,
// where the input itself is added to the result. The grid is (N * RANKS).
template <int C, int M, int O, int ROWS, int COLUMNS, int RANKS>
__global__ void __launch_bounds__(THREADS)
    convnext_block(const float* __restrict__ x, const float* __restrict__ shift,
                   const float* __restrict__ depthwise_weight,
                   const float* __restrict__ depthwise_bias, const float* __restrict__ norm1_weight,
                   const float* __restrict__ norm1_bias, const float* __restrict__ conv1_weight,
                   const float* __restrict__ conv1_bias, const float* __restrict__ norm2_weight,
                   const float* __restrict__ norm2_bias, const float* __restrict__ conv2_weight,
                   const float* __restrict__ conv2_bias, const float* __restrict__ residual_weight,
                   const float* __restrict__ residual_bias, float* __restrict__ out,
                   float epsilon) {
    constexpr int PLANE = ROWS * COLUMNS;
    constexpr int C_EACH = ceiling(C, RANKS), M_EACH = ceiling(M, RANKS), O_EACH = ceiling(O, RANKS);
    const int rank = RANKS > 1 ? cluster_rank() : 0, image = blockIdx.x / RANKS;
    // See shared_floats() in blocks.py, which has the same sizes.
    float* published = dynamic_shared();
    float* scratch = published + 8;
    float* factors = scratch + WARP;
    using Middle = Work<ROWS, COLUMNS, M_EACH>;
    using Last = Work<ROWS, COLUMNS, O_EACH>;
    constexpr int WEIGHT_STRIDE = larger(Middle::WEIGHT_STRIDE, Last::WEIGHT_STRIDE);
    float* patch =
        factors + larger(CHUNK * 9 * WEIGHT_STRIDE, larger(Middle::SUMS, Last::SUMS));
    float* narrow = patch + CHUNK * (ceiling(ROWS, STRIP) * STRIP + 2) * (COLUMNS + 2);
    float* wide = narrow + C_EACH * PLANE;
    const float* source = x + (size_t)image * C * PLANE;

    for (int i = threadIdx.x; i < C_EACH * PLANE; i += THREADS) {
        const int channel = rank * C_EACH + i / PLANE;
        if (channel >= C) continue;
        const int row = i % PLANE / COLUMNS, column = i % COLUMNS;
        float sum = depthwise_bias[channel] + (shift ? shift[image * C + channel] : 0.0f);
#pragma unroll
        for (int r = 0; r < 7; ++r) {
#pragma unroll
            for (int s = 0; s < 7; ++s) {
                const int from_row = row + r - 3, from_column = column + s - 3;
                if (from_row >= 0 && from_row < ROWS && from_column >= 0 && from_column < COLUMNS)
                    sum += source[channel * PLANE + from_row * COLUMNS + from_column] *
                           depthwise_weight[channel * 49 + r * 7 + s];
            }
        }
        narrow[i] = sum;
    }
    normalise<C, C_EACH, PLANE, RANKS>(narrow, rank * C_EACH, norm1_weight, norm1_bias, epsilon,
                                       scratch, published);

    {
        Middle work = {};
        convolve<3, C, M>(
            work,
            [&](int channel, int pixel) {
                return in_block(narrow, channel / C_EACH)[channel % C_EACH * PLANE + pixel];
            },
            conv1_weight, rank * M_EACH, patch, factors);
        work.finish(factors, [&](int output, int pixel, float sum) {
            if (output < M_EACH && rank * M_EACH + output < M)
                wide[output * PLANE + pixel] = gelu(sum + conv1_bias[rank * M_EACH + output]);
        });
    }
    __syncthreads();
    normalise<M, M_EACH, PLANE, RANKS>(wide, rank * M_EACH, norm2_weight, norm2_bias, epsilon,
                                       scratch, published + 2);

    Last work = {};
    convolve<3, M, O>(
        work,
        [&](int channel, int pixel) {
            return in_block(wide, channel / M_EACH)[channel % M_EACH * PLANE + pixel];
        },
        conv2_weight, rank * O_EACH, patch, factors);
    if (residual_weight)
        convolve<1, C, O>(
            work, [&](int channel, int pixel) { return source[channel * PLANE + pixel]; },
            residual_weight, rank * O_EACH, patch, factors);
    work.finish(factors, [&](int within, int pixel, float sum) {
        const int output = rank * O_EACH + within;
        if (within >= O_EACH || output >= O) return;
        sum += conv2_bias[output];
        sum += residual_weight ? (residual_bias ? residual_bias[output] : 0.0f)
                               : source[output * PLANE + pixel];
        out[((size_t)image * O + output) * PLANE + pixel] = sum;
    });
    if (RANKS > 1) everyone<RANKS>();  // others may still read from here
}
