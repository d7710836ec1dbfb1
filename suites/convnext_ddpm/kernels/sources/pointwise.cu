// Everything else: element by element, by index arithmetic, and the product with a small matrix.
// `out` [N, C, plane] has its images out_stride apart; the grid is (pixels, C, N).
#include "common.cuh"

__device__ inline int grid_pixel() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ inline size_t grid_offset(int plane, int out_stride) {
    return (size_t)blockIdx.z * out_stride + (size_t)blockIdx.y * plane + grid_pixel();
}

// What an unfused convolution leaves to do, each for itself and in place.
__global__ void add_bias(float* out, const float* __restrict__ bias, int plane, int out_stride) {
    if (grid_pixel() < plane) out[grid_offset(plane, out_stride)] += bias[blockIdx.y];
}

__global__ void add(float* out, const float* __restrict__ addend, int plane, int out_stride,
                    int addend_plane) {
    if (grid_pixel() >= plane) return;
    const size_t first = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * addend_plane;
    out[grid_offset(plane, out_stride)] += addend[first + (addend_plane == 1 ? 0 : grid_pixel())];
}

// In place where out is x.
template <int EPILOGUE>
__global__ void activate(const float* x, float* out, int plane, int out_stride) {
    if (grid_pixel() >= plane) return;
    const size_t to = grid_offset(plane, out_stride);
    const size_t from = x == out ? to : grid_offset(plane, gridDim.y * plane);
    out[to] = activated<EPILOGUE>(x[from]);
}

// The product of x [N, C, plane] with attention [N, plane], after the sigmoid where SIGMOID.
template <bool SIGMOID>
__global__ void gate(const float* __restrict__ x, const float* __restrict__ attention,
                     float* __restrict__ out, int plane, int out_stride) {
    if (grid_pixel() >= plane) return;
    const float factor = attention[(size_t)blockIdx.z * plane + grid_pixel()];
    const size_t from = grid_offset(plane, gridDim.y * plane);
    out[grid_offset(plane, out_stride)] = x[from] * (SIGMOID ? sigmoid(factor) : factor);
}

__global__ void sigmoid_of(const float* __restrict__ x, float* __restrict__ out, int count) {
    if (grid_pixel() < count) out[grid_pixel()] = sigmoid(x[grid_pixel()]);
}

// Nearest neighbour; the grid is over the pixels of the result, of 2 rows x 2 columns.
__global__ void upsample(const float* __restrict__ x, float* __restrict__ out, int rows,
                         int columns) {
    const int plane = 4 * rows * columns;
    if (grid_pixel() >= plane) return;
    const int row = grid_pixel() / (2 * columns) / 2, column = grid_pixel() % (2 * columns) / 2;
    const size_t channel = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    out[channel * plane + grid_pixel()] = x[(channel * rows + row) * columns + column];
}

// The grid is over the pixels and channels of the result, of rows / 2 x columns / 2.
__global__ void space_to_depth(const float* __restrict__ x, float* __restrict__ out, int rows,
                               int columns) {
    const int half = columns / 2, plane = rows / 2 * half;
    if (grid_pixel() >= plane) return;
    const int row = grid_pixel() / half * 2 + blockIdx.y % 4 / 2;
    const int column = grid_pixel() % half * 2 + blockIdx.y % 2;
    const size_t channel = (size_t)blockIdx.z * (gridDim.y / 4) + blockIdx.y / 4;
    out[((size_t)blockIdx.z * gridDim.y + blockIdx.y) * plane + grid_pixel()] =
        x[(channel * rows + row) * columns + column];
}

// out [N, O] = x [N, INPUTS] (after GELU where GELU_FIRST), times weight [O, INPUTS], plus bias,
// which may be null. A warp to an element; the grid is (outputs / 8, N).
template <int INPUTS, int OUTPUTS, bool GELU_FIRST>
__global__ void __launch_bounds__(256)
    linear(const float* __restrict__ x, const float* __restrict__ weight,
           const float* __restrict__ bias, float* __restrict__ out) {
    const int lane = threadIdx.x % WARP, output = blockIdx.x * 8 + threadIdx.x / WARP;
    if (output >= OUTPUTS) return;
    float sum = 0.0f;
    for (int i = lane; i < INPUTS; i += WARP) {
        const float input = x[(size_t)blockIdx.y * INPUTS + i];
        sum += (GELU_FIRST ? gelu(input) : input) * weight[(size_t)output * INPUTS + i];
    }
    sum = warp_sum(sum);
    if (lane == 0) out[(size_t)blockIdx.y * OUTPUTS + output] = sum + (bias ? bias[output] : 0.0f);
}
