// Convolution on the tensor cores: inputs rounded to bfloat16, sums in float32.
//
// The im2col matrix is never written to global memory: its rows are the pixels, its columns the
// taps of all channels, so that a row's piece of one tap and DEPTH channels is DEPTH neighbours of
// the input's tile in shared memory, which has the channels last. The instruction that loads
// fragments takes an address for every row, which makes each tap the same tile, moved.
#include "common.cuh"

#if !defined(__CUDACC__) || __CUDA_ARCH__ >= 800

template <int C, int O, int K, int PADDING, int EPILOGUE, int TILE_ROWS, int TILE_COLUMNS,
          int OUTPUTS, int PIXEL_WARPS, int OUTPUT_WARPS>
__global__ void __launch_bounds__(WARP* PIXEL_WARPS* OUTPUT_WARPS,
                                  512 / (WARP * PIXEL_WARPS * OUTPUT_WARPS))
    convolution_im2col_bf16(const float* __restrict__ x, const float* __restrict__ weight,
                            const float* __restrict__ bias, const float* __restrict__ addend,
                            float* __restrict__ out, int rows, int columns, int out_stride,
                            int addend_plane) {
    constexpr int THREADS = WARP * PIXEL_WARPS * OUTPUT_WARPS, TAPS = K * K;
    // Channels at a time: many where the tile is small, so that fewer loads are waited for.
    constexpr int DEPTH = (K == 1 ? 32 : 16) * (OUTPUTS <= 32 ? 2 : 1);
    constexpr int STRIDE = DEPTH + 8;        // eight rows of 16 bytes on different banks
    constexpr int PATCH_ROWS = TILE_ROWS + K - 1, PATCH_COLUMNS = TILE_COLUMNS + K - 1;
    constexpr int PATCH = PATCH_ROWS * PATCH_COLUMNS;
    constexpr int PIXEL_TILES = TILE_ROWS * TILE_COLUMNS / (16 * PIXEL_WARPS);
    constexpr int OUTPUT_TILES = OUTPUTS / (8 * OUTPUT_WARPS);
    static_assert(TILE_COLUMNS % 8 == 0, "eight rows of a fragment are neighbours");
    static_assert(PIXEL_TILES > 0 && OUTPUT_TILES % 2 == 0, "fragments are loaded in pairs");
    __shared__ __align__(16) unsigned short patch[PATCH * STRIDE];
    __shared__ __align__(16) unsigned short factors[TAPS * OUTPUTS * STRIDE];

    const int out_rows = rows + 2 * PADDING - K + 1, out_columns = columns + 2 * PADDING - K + 1;
    const int tiles_across = ceiling(out_columns, TILE_COLUMNS);
    const int tile_row = blockIdx.x / tiles_across * TILE_ROWS;
    const int tile_column = blockIdx.x % tiles_across * TILE_COLUMNS;
    const int first_output = blockIdx.y * OUTPUTS, image = blockIdx.z;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int warp_pixel = warp / OUTPUT_WARPS * PIXEL_TILES * 16;
    const int warp_output = warp % OUTPUT_WARPS * OUTPUT_TILES * 8;
    const float* source = x + (size_t)image * C * rows * columns;

    // Where this lane's rows of the fragments begin, for the first tap and channel.
    const unsigned short* pixels[PIXEL_TILES];
#pragma unroll
    for (int m = 0; m < PIXEL_TILES; ++m) {
        const int pixel = warp_pixel + m * 16 + lane % 16;
        const int position = pixel / TILE_COLUMNS * PATCH_COLUMNS + pixel % TILE_COLUMNS;
        pixels[m] = patch + position * STRIDE + lane / 16 * 8;
    }
    const unsigned short* outputs =
        factors + (warp_output + lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;

    float sums[PIXEL_TILES][OUTPUT_TILES][4] = {};
#pragma unroll 1
    for (int first = 0; first < C; first += DEPTH) {
        if (first > 0) __syncthreads();
#pragma unroll 2
        for (int i = threadIdx.x; i < PATCH * (DEPTH / 8); i += THREADS) {
            const int position = i % PATCH, c = first + i / PATCH * 8;
            const int r = tile_row - PADDING + position / PATCH_COLUMNS;
            const int s = tile_column - PADDING + position % PATCH_COLUMNS;
            const bool inside = r >= 0 && r < rows && s >= 0 && s < columns;
            float values[8];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                values[j] = inside && c + j < C ? source[((c + j) * rows + r) * columns + s] : 0.0f;
            uint4 packed;
            packed.x = bfloat16_pair(values[0], values[1]);
            packed.y = bfloat16_pair(values[2], values[3]);
            packed.z = bfloat16_pair(values[4], values[5]);
            packed.w = bfloat16_pair(values[6], values[7]);
            *reinterpret_cast<uint4*>(patch + position * STRIDE + i / PATCH * 8) = packed;
        }
        // Two channels of an output, all taps: neighbours in memory.
#pragma unroll 2
        for (int i = threadIdx.x; i < OUTPUTS * (DEPTH / 2); i += THREADS) {
            const int output = first_output + i / (DEPTH / 2), c = first + i % (DEPTH / 2) * 2;
            const float* from = weight + ((size_t)output * C + c) * TAPS;
            const bool low = output < O && c < C, high = output < O && c + 1 < C;
            float values[2][TAPS];
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) values[0][tap] = low ? from[tap] : 0.0f;
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap) values[1][tap] = high ? from[TAPS + tap] : 0.0f;
            unsigned short* to = factors + i / (DEPTH / 2) * STRIDE + i % (DEPTH / 2) * 2;
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
                *reinterpret_cast<unsigned*>(to + tap * OUTPUTS * STRIDE) =
                    bfloat16_pair(values[0][tap], values[1][tap]);
        }
        __syncthreads();
#pragma unroll
        for (int tap = 0; tap < TAPS; ++tap) {
            const int moved = (tap / K * PATCH_COLUMNS + tap % K) * STRIDE;
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                unsigned a[PIXEL_TILES][4], b[OUTPUT_TILES / 2][4];
#pragma unroll
                for (int m = 0; m < PIXEL_TILES; ++m) load_matrices(a[m], pixels[m] + moved + k);
#pragma unroll
                for (int n = 0; n < OUTPUT_TILES / 2; ++n)
                    load_matrices(b[n], outputs + (tap * OUTPUTS + n * 16) * STRIDE + k);
#pragma unroll
                for (int m = 0; m < PIXEL_TILES; ++m)
#pragma unroll
                    for (int n = 0; n < OUTPUT_TILES; ++n)
                        multiply_add(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            }
        }
    }

#pragma unroll
    for (int m = 0; m < PIXEL_TILES; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int within = warp_pixel + m * 16 + half * 8 + lane / 4;
            const int out_row = tile_row + within / TILE_COLUMNS;
            const int out_column = tile_column + within % TILE_COLUMNS;
            if (out_row >= out_rows || out_column >= out_columns) continue;
            const int pixel = out_row * out_columns + out_column;
#pragma unroll
            for (int n = 0; n < OUTPUT_TILES; ++n) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const int output = first_output + warp_output + n * 8 + lane % 4 * 2 + j;
                    if (output >= O) continue;
                    const size_t plane = (size_t)output * out_rows * out_columns;
                    out[(size_t)image * out_stride + plane + pixel] =
                        finished<O, EPILOGUE>(sums[m][n][half * 2 + j], bias, addend, addend_plane,
                                              image, output, pixel);
                }
            }
        }
    }
}

#endif
