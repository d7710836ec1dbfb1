// What the kernels share. Tensors are float32, NCHW; the images of an `out` lie out_stride apart.
#pragma once
#include "intrinsics.cuh"

constexpr int NONE = 0, GELU = 1, RELU = 2;
constexpr int WARP = 32;

__device__ inline constexpr int ceiling(int a, int b) { return (a + b - 1) / b; }
__device__ inline constexpr int larger(int a, int b) { return a > b ? a : b; }
__device__ inline constexpr int smaller(int a, int b) { return a < b ? a : b; }

__device__ inline float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }
__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

template <int EPILOGUE>
__device__ inline float activated(float x) {
    if (EPILOGUE == GELU) return gelu(x);
    if (EPILOGUE == RELU) return x > 0.0f ? x : 0.0f;
    return x;
}

// A convolution's end: bias [O], an addend of addend_plane elements per image and channel (1: the
// same for all pixels), either of them may be null, then the activation.
template <int O, int EPILOGUE>
__device__ inline float finished(float sum, const float* bias, const float* addend,
                                 int addend_plane, int image, int output, int pixel) {
    if (bias) sum += bias[output];
    if (addend) {
        const size_t plane = (size_t)image * O + output;
        sum += addend[plane * addend_plane + (addend_plane == 1 ? 0 : pixel)];
    }
    return activated<EPILOGUE>(sum);
}

__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}

// The sum over a block of THREADS, for all of its threads. `scratch` has an element per warp.
template <int THREADS>
__device__ inline float block_sum(float value, float* scratch) {
    constexpr int WARPS = THREADS / WARP;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    value = warp_sum(value);
    if (WARPS == 1) return value;
    __syncthreads();  // scratch may still be read by who asked for the sum before
    if (lane == 0) scratch[warp] = value;
    __syncthreads();
    return warp_sum(lane < WARPS ? scratch[lane] : 0.0f);
}

// VECTOR floats at once, 16 bytes where it is 4.
template <int VECTOR>
__device__ inline void load(float* to, const float* from) {
    if (VECTOR == 4) {
        const float4 v = *reinterpret_cast<const float4*>(from);
        to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    } else if (VECTOR == 2) {
        const float2 v = *reinterpret_cast<const float2*>(from);
        to[0] = v.x, to[1] = v.y;
    } else {
        to[0] = from[0];
    }
}

// One channel's part of a strip of STRIP pixels, one below the other, in OUTPUTS outputs: a column
// of the pixels is read once for all rows of the K x K factors. Rows of pixels lie PIXEL_STRIDE
// apart, and the factors of one tap WEIGHT_STRIDE behind those of the last.
template <int K, int PIXEL_STRIDE, int WEIGHT_STRIDE, int STRIP, int OUTPUTS>
__device__ inline void accumulate(const float* pixels, const float* factors,
                                  float (&sums)[STRIP][OUTPUTS]) {
#pragma unroll
    for (int s = 0; s < K; ++s) {
        float inputs[STRIP + K - 1];
#pragma unroll
        for (int r = 0; r < STRIP + K - 1; ++r) inputs[r] = pixels[r * PIXEL_STRIDE + s];
#pragma unroll
        for (int r = 0; r < K; ++r) {
            float factor[OUTPUTS];
#pragma unroll
            for (int o = 0; o < OUTPUTS; o += 4)
                load<4>(factor + o, factors + (r * K + s) * WEIGHT_STRIDE + o);
#pragma unroll
            for (int p = 0; p < STRIP; ++p)
#pragma unroll
                for (int o = 0; o < OUTPUTS; ++o) sums[p][o] += inputs[p + r] * factor[o];
        }
    }
}
