"""Triton's kernels of the fused norm: two to normalise and one between them, the same backward.

A volume is [images, channels, voxels] with either of the last two innermost in memory. Everything
walks over tiles of ROWS voxels times COLUMNS channels: with channels innermost a tile is some
whole 128-byte lines per voxel, with voxels innermost it is one channel. A program has `tiles` tiles
in a row of the voxels; as many programs as fill a GPU share a volume, and what each of them summed
up per channel is added up per group by a small kernel. The second walk goes backwards, because the
L2 cache holds what the first one read last.

ACC is the type to compute in: float32, or float64 for volumes of it.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(
    start,
    voxels,
    channels,
    voxel_stride,
    channel_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Of this program's tile from the voxel `start` on: what its lanes are and where they lie.

    Voxels and channels, which channels exist, where the tile begins in a volume, and the lanes'
    places in it.
    """
    block, image = tl.program_id(0), tl.program_id(2)
    rows, lanes = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    columns = block * COLUMNS + lanes
    # 64 bits once per program: the places in a tile fit into 32.
    first = image.to(tl.int64) * channels * voxels + start.to(tl.int64) * voxel_stride
    first += (block * COLUMNS).to(tl.int64) * channel_stride
    offsets = rows[:, None] * voxel_stride + lanes[None, :] * channel_stride
    return rows, columns, columns < channels, first, offsets


@triton.jit
def _mean(group_means, group, shift, place, inside, SHIFTED: tl.constexpr, ACC: tl.constexpr):
    """What is subtracted from the voxels of a channel to which its shift was not added."""
    mean = tl.load(group_means + group, mask=inside, other=0)
    if SHIFTED:
        mean -= tl.load(shift + place, mask=inside, other=0).to(ACC)
    return mean


@triton.jit
def _sigmoid(value, NATIVE: tl.constexpr):
    """As exact either way: what is compiled for a division guards against numbers as large as
    its divisor never gets, which takes most of the instructions of a walk over bfloat16.
    """
    if NATIVE:
        return tl.inline_asm_elementwise(
            "{ .reg .f32 power; mul.f32 power, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 power, power; "
            "add.f32 power, power, 0f3F800000; rcp.approx.ftz.f32 $0, power; }",  # -log2(e) and 1
            "=f,f",
            [value],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
    return tl.sigmoid(value)


@triton.jit
def _slope(value, NATIVE: tl.constexpr):
    """Of SiLU."""
    sigmoid = _sigmoid(value, NATIVE)
    return sigmoid * (1 + value * (1 - sigmoid))


@triton.jit
def group_norm_moments(
    x,
    means,
    squares,
    voxels,
    channels,
    tiles,
    voxel_stride,
    channel_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Per image, split and channel: the mean, and the sum of squared deviations from it.

    Welford's way, by lane: a sum of squares would lose the variance of volumes far from zero.
    """
    split, image = tl.program_id(1), tl.program_id(2)
    start = split * tiles * ROWS
    rows, columns, inside, first, offsets = _tile(
        start, voxels, channels, voxel_stride, channel_stride, ROWS, COLUMNS
    )
    x += first

    mean = tl.zeros([ROWS, COLUMNS], ACC)
    square = tl.zeros([ROWS, COLUMNS], ACC)
    count = tl.full((), 0, ACC)
    for tile in range(tiles):
        valid = (start + tile * ROWS + rows < voxels)[:, None] & inside[None, :]
        value = tl.load(x + offsets, mask=valid, other=0).to(ACC)
        count += 1
        step = tl.where(valid, value - mean, 0)
        mean += step * (1 / count)
        square += step * (value - mean)
        x += ROWS * voxel_stride

    counts = tl.minimum(tl.maximum((voxels - start - rows + ROWS - 1) // ROWS, 0), tiles).to(ACC)
    whole = tl.sum(mean * counts[:, None], 0) / tl.sum(counts, 0)
    deviation = mean - whole[None, :]
    square = tl.sum(square + counts[:, None] * deviation * deviation, 0)
    place = (image * tl.num_programs(1) + split) * channels + columns
    tl.store(means + place, whole, mask=inside)
    tl.store(squares + place, square, mask=inside)


@triton.jit
def group_norm_combine(
    means,
    squares,
    shift,
    channel_means,
    group_means,
    deviations,
    voxels,
    channels,
    splits,
    chunk,
    EPS: tl.constexpr,
    SHIFTED: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    PART: tl.constexpr,
    ACC: tl.constexpr,
):
    """Per image and group: the mean and 1 / the standard deviation of `chunk` voxels per split.

    And the mean of each channel. A constant that is added to a channel moves means only.
    """
    group, image = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, LANES)
    inside = lanes < WIDTH
    columns = group * WIDTH + lanes
    size = tl.full((), 0, ACC) + voxels
    part = tl.arange(0, PART)
    first = image * splits * channels

    total = tl.zeros([PART, LANES], ACC)
    for begin in range(0, splits, PART):
        split = begin + part
        valid = (split < splits)[:, None] & inside[None, :]
        count = tl.minimum(voxels - split * chunk, chunk).to(ACC)
        place = first + split[:, None] * channels + columns[None, :]
        total += count[:, None] * tl.load(means + place, mask=valid, other=0)
    channel_mean = tl.sum(total, 0) / size
    moved = tl.zeros([LANES], ACC)
    if SHIFTED:
        moved = tl.load(shift + image * channels + columns, mask=inside, other=0).to(ACC)
    tl.store(channel_means + image * channels + columns, channel_mean + moved, mask=inside)
    mean = tl.sum(tl.where(inside, channel_mean + moved, 0), 0) / WIDTH

    total = tl.zeros([PART, LANES], ACC)
    for begin in range(0, splits, PART):
        split = begin + part
        valid = (split < splits)[:, None] & inside[None, :]
        count = tl.minimum(voxels - split * chunk, chunk).to(ACC)
        place = first + split[:, None] * channels + columns[None, :]
        deviation = tl.load(means + place, mask=valid, other=0) + moved[None, :] - mean
        square = tl.load(squares + place, mask=valid, other=0)
        total += tl.where(valid, square + count[:, None] * deviation * deviation, 0)
    variance = tl.sum(tl.sum(total, 0), 0) / (size * WIDTH)
    place = image * tl.num_programs(0) + group
    tl.store(group_means + place, mean)
    tl.store(deviations + place, 1 / tl.sqrt(variance + EPS))


@triton.jit
def group_norm_normalise(
    x,
    y,
    weight,
    bias,
    shift,
    group_means,
    deviations,
    voxels,
    channels,
    tiles,
    voxel_stride,
    channel_stride,
    SILU: tl.constexpr,
    NATIVE: tl.constexpr,
    SHIFTED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACC: tl.constexpr,
):
    """SiLU of the normalised volume, or the volume itself."""
    split, image = tl.program_id(1), tl.program_id(2)
    start = (split * tiles + tiles - 1) * ROWS
    rows, columns, inside, first, offsets = _tile(
        start, voxels, channels, voxel_stride, channel_stride, ROWS, COLUMNS
    )
    x += first
    y += first
    group = image * (channels // WIDTH) + columns // WIDTH
    mean = _mean(group_means, group, shift, image * channels + columns, inside, SHIFTED, ACC)
    factor = tl.load(deviations + group, mask=inside, other=0)
    factor *= tl.load(weight + columns, mask=inside, other=0).to(ACC)
    constant = tl.load(bias + columns, mask=inside, other=0).to(ACC)
    for tile in range(tiles):
        valid = (start - tile * ROWS + rows < voxels)[:, None] & inside[None, :]
        value = tl.load(x + offsets, mask=valid, other=0).to(ACC)
        value = (value - mean[None, :]) * factor[None, :] + constant[None, :]
        if SILU:
            value *= _sigmoid(value, NATIVE)
        tl.store(y + offsets, value.to(y.dtype.element_ty), mask=valid)
        x -= ROWS * voxel_stride
        y -= ROWS * voxel_stride


@triton.jit
def group_norm_gradient_sums(
    x,
    dy,
    weight,
    bias,
    shift,
    group_means,
    deviations,
    sums,
    products,
    voxels,
    channels,
    tiles,
    voxel_stride,
    channel_stride,
    SILU: tl.constexpr,
    NATIVE: tl.constexpr,
    SHIFTED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACC: tl.constexpr,
):
    """Per image, split and channel: the sum of the norm's gradient, and of it times the value."""
    split, image = tl.program_id(1), tl.program_id(2)
    start = split * tiles * ROWS
    rows, columns, inside, first, offsets = _tile(
        start, voxels, channels, voxel_stride, channel_stride, ROWS, COLUMNS
    )
    x += first
    dy += first
    group = image * (channels // WIDTH) + columns // WIDTH
    mean = _mean(group_means, group, shift, image * channels + columns, inside, SHIFTED, ACC)
    factor = tl.load(deviations + group, mask=inside, other=0)
    scale = factor * tl.load(weight + columns, mask=inside, other=0).to(ACC)
    constant = tl.load(bias + columns, mask=inside, other=0).to(ACC)
    total = tl.zeros([ROWS, COLUMNS], ACC)
    product = tl.zeros([ROWS, COLUMNS], ACC)
    for tile in range(tiles):
        valid = (start + tile * ROWS + rows < voxels)[:, None] & inside[None, :]
        value = tl.load(x + offsets, mask=valid, other=0).to(ACC)
        gradient = tl.load(dy + offsets, mask=valid, other=0).to(ACC)
        value -= mean[None, :]
        if SILU:
            gradient *= _slope(value * scale[None, :] + constant[None, :], NATIVE)
        total += gradient
        product += gradient * value
        x += ROWS * voxel_stride
        dy += ROWS * voxel_stride

    place = (image * tl.num_programs(1) + split) * channels + columns
    tl.store(sums + place, tl.sum(total, 0), mask=inside)
    tl.store(products + place, factor * tl.sum(product, 0), mask=inside)


@triton.jit
def group_norm_combine_gradients(
    sums,
    products,
    weight,
    channel_means,
    group_means,
    deviations,
    dweight,
    dbias,
    dshift,
    group_sums,
    group_products,
    voxels,
    channels,
    splits,
    SHIFTED: tl.constexpr,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    PART: tl.constexpr,
    ACC: tl.constexpr,
):
    """Per image: the gradients of weight, bias and shift, and what a group's voxels share."""
    group, image = tl.program_id(0), tl.program_id(1)
    lanes = tl.arange(0, LANES)
    inside = lanes < WIDTH
    columns = group * WIDTH + lanes
    size = tl.full((), 0, ACC) + voxels
    part = tl.arange(0, PART)
    first = image * splits * channels

    total = tl.zeros([PART, LANES], ACC)
    product = tl.zeros([PART, LANES], ACC)
    for begin in range(0, splits, PART):
        split = begin + part
        valid = (split < splits)[:, None] & inside[None, :]
        place = first + split[:, None] * channels + columns[None, :]
        total += tl.load(sums + place, mask=valid, other=0)
        product += tl.load(products + place, mask=valid, other=0)
    by_channel = tl.sum(total, 0)
    product_by_channel = tl.sum(product, 0)
    at = image * channels + columns
    tl.store(dbias + at, by_channel, mask=inside)
    tl.store(dweight + at, product_by_channel, mask=inside)

    scale = tl.load(weight + columns, mask=inside, other=0).to(ACC)
    shared = tl.sum(scale * by_channel, 0) / (size * WIDTH)
    shared_product = tl.sum(scale * product_by_channel, 0) / (size * WIDTH)
    place = image * tl.num_programs(0) + group
    tl.store(group_sums + place, shared)
    tl.store(group_products + place, shared_product)
    if SHIFTED:
        # The sum over the voxels of the volume's gradient, without reading it again.
        deviation = tl.load(deviations + place)
        value = tl.load(channel_means + at, mask=inside, other=0) - tl.load(group_means + place)
        left = scale * by_channel - size * (shared + shared_product * value * deviation)
        tl.store(dshift + at, left * deviation, mask=inside)


@triton.jit
def group_norm_gradient(
    x,
    dy,
    dx,
    weight,
    bias,
    shift,
    group_means,
    deviations,
    group_sums,
    group_products,
    voxels,
    channels,
    tiles,
    voxel_stride,
    channel_stride,
    SILU: tl.constexpr,
    NATIVE: tl.constexpr,
    SHIFTED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ACC: tl.constexpr,
):
    """The volume's gradient."""
    split, image = tl.program_id(1), tl.program_id(2)
    start = (split * tiles + tiles - 1) * ROWS
    rows, columns, inside, first, offsets = _tile(
        start, voxels, channels, voxel_stride, channel_stride, ROWS, COLUMNS
    )
    x += first
    dy += first
    dx += first
    group = image * (channels // WIDTH) + columns // WIDTH
    mean = _mean(group_means, group, shift, image * channels + columns, inside, SHIFTED, ACC)
    factor = tl.load(deviations + group, mask=inside, other=0)
    scale = factor * tl.load(weight + columns, mask=inside, other=0).to(ACC)
    constant = tl.load(bias + columns, mask=inside, other=0).to(ACC)
    shared = factor * tl.load(group_sums + group, mask=inside, other=0)
    shared_product = factor * factor * tl.load(group_products + group, mask=inside, other=0)
    for tile in range(tiles):
        valid = (start - tile * ROWS + rows < voxels)[:, None] & inside[None, :]
        value = tl.load(x + offsets, mask=valid, other=0).to(ACC)
        result = tl.load(dy + offsets, mask=valid, other=0).to(ACC)
        value -= mean[None, :]
        if SILU:
            result *= _slope(value * scale[None, :] + constant[None, :], NATIVE)
        result = result * scale[None, :] - shared[None, :] - value * shared_product[None, :]
        tl.store(dx + offsets, result.to(dx.dtype.element_ty), mask=valid)
        x -= ROWS * voxel_stride
        dy -= ROWS * voxel_stride
        dx -= ROWS * voxel_stride
