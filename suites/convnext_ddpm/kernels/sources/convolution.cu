// Convolutions of stride 1 in float32: C, O channels in and out, K x K weights.
#include "common.cuh"

// One thread per element of the result, everything from global memory.
template <int C, int O, int K, int PADDING, int GROUPS, int EPILOGUE>
__global__ void __launch_bounds__(256)
    convolution_naive(const float* __restrict__ x, const float* __restrict__ weight,
                      const float* __restrict__ bias, const float* __restrict__ addend,
                      float* __restrict__ out, int rows, int columns, int out_stride,
                      int addend_plane) {
    constexpr int DEPTH = C / GROUPS;
    const int out_columns = columns + 2 * PADDING - K + 1;
    const int plane = (rows + 2 * PADDING - K + 1) * out_columns;
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    const int output = blockIdx.y, image = blockIdx.z;
    if (pixel >= plane) return;
    const int top = pixel / out_columns - PADDING, left = pixel % out_columns - PADDING;
    const int first = output / (O / GROUPS) * DEPTH;
    const float* source = x + ((size_t)image * C + first) * rows * columns;
    const float* factors = weight + (size_t)output * DEPTH * K * K;
    float sum = 0.0f;
#pragma unroll 1
    for (int c = 0; c < DEPTH; ++c) {
#pragma unroll
        for (int r = 0; r < K; ++r) {
#pragma unroll
            for (int s = 0; s < K; ++s) {
                const int row = top + r, column = left + s;
                if (row >= 0 && row < rows && column >= 0 && column < columns)
                    sum += source[row * columns + column] * factors[r * K + s];
            }
        }
        source += rows * columns;
        factors += K * K;
    }
    out[(size_t)image * out_stride + (size_t)output * plane + pixel] =
        finished<O, EPILOGUE>(sum, bias, addend, addend_plane, image, output, pixel);
}

// Input and weights in shared memory, several channels at a time and twice, so that the next lot is
// on its way while this one is multiplied. A warp has TILE_COLUMNS columns, a thread STRIP pixels,
// one below the other, of OUTPUTS output channels: STRIP x OUTPUTS sums in its registers. The four
// warps of a block have the same pixels; CHANNEL_WARPS of them share the input channels of the same
// output channels, and their sums are added at the end.
template <int C, int O, int K, int PADDING, int EPILOGUE, int TILE_COLUMNS, int STRIP, int OUTPUTS,
          int CHANNEL_WARPS>
__global__ void __launch_bounds__(128, CHANNEL_WARPS > 1 ? 2 : 3)
    convolution_tiled(const float* __restrict__ x, const float* __restrict__ weight,
                      const float* __restrict__ bias, const float* __restrict__ addend,
                      float* __restrict__ out, int rows, int columns, int out_stride,
                      int addend_plane) {
    constexpr int THREADS = 128, TAPS = K * K;
    constexpr int TILE_ROWS = STRIP * (WARP / TILE_COLUMNS);
    constexpr int OUTPUT_WARPS = THREADS / WARP / CHANNEL_WARPS;
    constexpr int BLOCK_OUTPUTS = OUTPUTS * OUTPUT_WARPS;
    constexpr int CHUNK = smaller(C, CHANNEL_WARPS * (K == 1 ? 8 : (K <= 3 ? 4 : 1)));
    constexpr int PATCH_ROWS = TILE_ROWS + K - 1, PATCH_COLUMNS = TILE_COLUMNS + K - 1;
    constexpr int PATCH_STRIDE = ceiling(PATCH_COLUMNS, 4) * 4;  // strips on different banks
    constexpr int PATCH = CHUNK * PATCH_ROWS * PATCH_COLUMNS;
    constexpr int WEIGHTS = CHUNK * TAPS * BLOCK_OUTPUTS;
    constexpr int WEIGHT_STRIDE = BLOCK_OUTPUTS + 4;  // fewer conflicts where they are written
    constexpr int PATCH_EACH = ceiling(PATCH, THREADS), WEIGHTS_EACH = ceiling(WEIGHTS, THREADS);
    constexpr int PATCH_SIZE = CHUNK * PATCH_ROWS * PATCH_STRIDE;
    constexpr int WEIGHTS_SIZE = CHUNK * TAPS * WEIGHT_STRIDE, SUMS_SIZE = THREADS * STRIP * OUTPUTS;
    static_assert(OUTPUTS % 4 == 0 && STRIP * OUTPUTS % CHANNEL_WARPS == 0, "no remainders");
    __shared__ __align__(16) float
        memory[larger(2 * (WEIGHTS_SIZE + PATCH_SIZE), CHANNEL_WARPS > 1 ? SUMS_SIZE : 0)];
    float* const weights = memory;
    float* const patches = memory + 2 * WEIGHTS_SIZE;

    const int out_rows = rows + 2 * PADDING - K + 1, out_columns = columns + 2 * PADDING - K + 1;
    const int tiles_across = ceiling(out_columns, TILE_COLUMNS);
    const int tile_row = blockIdx.x / tiles_across * TILE_ROWS;
    const int tile_column = blockIdx.x % tiles_across * TILE_COLUMNS;
    const int first_output = blockIdx.y * BLOCK_OUTPUTS, image = blockIdx.z;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int output_warp = warp % OUTPUT_WARPS, channel_warp = warp / OUTPUT_WARPS;
    const int column = lane % TILE_COLUMNS, strip = lane / TILE_COLUMNS * STRIP;
    const float* source = x + (size_t)image * C * rows * columns;

    float next_patch[PATCH_EACH], next_weights[WEIGHTS_EACH];
    const auto fetch = [&](int first) {
#pragma unroll
        for (int i = 0; i < PATCH_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            const int c = first + index / (PATCH_ROWS * PATCH_COLUMNS);
            const int r = tile_row - PADDING + index / PATCH_COLUMNS % PATCH_ROWS;
            const int s = tile_column - PADDING + index % PATCH_COLUMNS;
            const bool inside = index < PATCH && c < C && r >= 0 && r < rows && s >= 0 && s < columns;
            next_patch[i] = inside ? source[(c * rows + r) * columns + s] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < WEIGHTS_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            const int output = first_output + index / (CHUNK * TAPS);
            const int factor = first * TAPS + index % (CHUNK * TAPS);
            const bool inside = index < WEIGHTS && output < O && factor < C * TAPS;
            next_weights[i] = inside ? weight[(size_t)output * C * TAPS + factor] : 0.0f;
        }
    };
    const auto store = [&](int buffer) {
#pragma unroll
        for (int i = 0; i < PATCH_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index < PATCH)
                patches[buffer * PATCH_SIZE + index / PATCH_COLUMNS * PATCH_STRIDE +
                        index % PATCH_COLUMNS] = next_patch[i];
        }
#pragma unroll
        for (int i = 0; i < WEIGHTS_EACH; ++i) {
            const int index = i * THREADS + threadIdx.x;
            if (index < WEIGHTS)
                weights[buffer * WEIGHTS_SIZE + index % (CHUNK * TAPS) * WEIGHT_STRIDE +
                        index / (CHUNK * TAPS)] = next_weights[i];
        }
    };

    float sums[STRIP][OUTPUTS] = {};
    fetch(0);
    store(0);
    __syncthreads();
    int buffer = 0;
#pragma unroll 1
    for (int first = 0; first < C; first += CHUNK) {
        const bool more = first + CHUNK < C;
        if (more) fetch(first + CHUNK);
        const float* patch = patches + buffer * PATCH_SIZE + strip * PATCH_STRIDE + column +
                             channel_warp * PATCH_ROWS * PATCH_STRIDE;
        const float* factors = weights + buffer * WEIGHTS_SIZE + output_warp * OUTPUTS +
                               channel_warp * TAPS * WEIGHT_STRIDE;
#pragma unroll 1
        for (int c = channel_warp; c < CHUNK; c += CHANNEL_WARPS) {
            accumulate<K, PATCH_STRIDE, WEIGHT_STRIDE>(patch, factors, sums);
            patch += CHANNEL_WARPS * PATCH_ROWS * PATCH_STRIDE;
            factors += CHANNEL_WARPS * TAPS * WEIGHT_STRIDE;
        }
        buffer = 1 - buffer;
        if (more) store(buffer);
        __syncthreads();
    }

    const auto write = [&](int p, int o, float sum) {
        const int out_row = tile_row + strip + p, out_column = tile_column + column;
        const int output = first_output + output_warp * OUTPUTS + o;
        if (out_row >= out_rows || out_column >= out_columns || output >= O) return;
        const int pixel = out_row * out_columns + out_column;
        out[(size_t)image * out_stride + (size_t)output * out_rows * out_columns + pixel] =
            finished<O, EPILOGUE>(sum, bias, addend, addend_plane, image, output, pixel);
    };
    if (CHANNEL_WARPS == 1) {
#pragma unroll
        for (int p = 0; p < STRIP; ++p)
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) write(p, o, sums[p][o]);
        return;
    }
#pragma unroll
    for (int p = 0; p < STRIP; ++p)
#pragma unroll
        for (int o = 0; o < OUTPUTS; ++o)
            memory[(p * OUTPUTS + o) * THREADS + threadIdx.x] = sums[p][o];
    __syncthreads();
    for (int i = channel_warp; i < STRIP * OUTPUTS; i += CHANNEL_WARPS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < CHANNEL_WARPS; ++w)
            sum += memory[i * THREADS + (w * OUTPUT_WARPS + output_warp) * WARP + lane];
        write(i / OUTPUTS, i % OUTPUTS, sum);
    }
}

// Grouped, with few channels to a group (one, where it is depthwise): a block has a tile of one
// output channel, with the input and the K x K weights in shared memory.
template <int C, int O, int K, int PADDING, int GROUPS, int EPILOGUE, int TILE_COLUMNS, int STRIP,
          int STRIPS>
__global__ void __launch_bounds__(TILE_COLUMNS* STRIPS)
    convolution_grouped(const float* __restrict__ x, const float* __restrict__ weight,
                        const float* __restrict__ bias, const float* __restrict__ addend,
                        float* __restrict__ out, int rows, int columns, int out_stride,
                        int addend_plane) {
    constexpr int THREADS = TILE_COLUMNS * STRIPS, TILE_ROWS = STRIP * STRIPS;
    constexpr int DEPTH = C / GROUPS, TAPS = K * K;
    constexpr int PATCH_ROWS = TILE_ROWS + K - 1, PATCH_COLUMNS = TILE_COLUMNS + K - 1;
    __shared__ float patch[PATCH_ROWS * PATCH_COLUMNS];
    __shared__ float factors[TAPS];

    const int out_rows = rows + 2 * PADDING - K + 1, out_columns = columns + 2 * PADDING - K + 1;
    const int tiles_across = ceiling(out_columns, TILE_COLUMNS);
    const int tile_row = blockIdx.x / tiles_across * TILE_ROWS;
    const int tile_column = blockIdx.x % tiles_across * TILE_COLUMNS;
    const int output = blockIdx.y, image = blockIdx.z;
    const int column = threadIdx.x % TILE_COLUMNS, strip = threadIdx.x / TILE_COLUMNS * STRIP;
    const int first = output / (O / GROUPS) * DEPTH;

    float sums[STRIP] = {};
#pragma unroll 1
    for (int c = 0; c < DEPTH; ++c) {
        const float* source = x + ((size_t)image * C + first + c) * rows * columns;
        if (c > 0) __syncthreads();
        for (int i = threadIdx.x; i < PATCH_ROWS * PATCH_COLUMNS; i += THREADS) {
            const int r = tile_row - PADDING + i / PATCH_COLUMNS;
            const int s = tile_column - PADDING + i % PATCH_COLUMNS;
            const bool inside = r >= 0 && r < rows && s >= 0 && s < columns;
            patch[i] = inside ? source[r * columns + s] : 0.0f;
        }
        for (int i = threadIdx.x; i < TAPS; i += THREADS)
            factors[i] = weight[((size_t)output * DEPTH + c) * TAPS + i];
        __syncthreads();
#pragma unroll
        for (int s = 0; s < K; ++s) {
            float inputs[STRIP + K - 1];
#pragma unroll
            for (int r = 0; r < STRIP + K - 1; ++r)
                inputs[r] = patch[(strip + r) * PATCH_COLUMNS + column + s];
#pragma unroll
            for (int r = 0; r < K; ++r) {
                const float factor = factors[r * K + s];
#pragma unroll
                for (int p = 0; p < STRIP; ++p) sums[p] += inputs[p + r] * factor;
            }
        }
    }

    const int out_column = tile_column + column;
#pragma unroll
    for (int p = 0; p < STRIP; ++p) {
        const int out_row = tile_row + strip + p;
        if (out_row >= out_rows || out_column >= out_columns) continue;
        const int pixel = out_row * out_columns + out_column;
        out[(size_t)image * out_stride + (size_t)output * out_rows * out_columns + pixel] =
            finished<O, EPILOGUE>(sums[p], bias, addend, addend_plane, image, output, pixel);
    }
}
