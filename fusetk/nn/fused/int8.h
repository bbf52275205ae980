// The rounding of float32 rows to int8, and the scaling of the sums of their products.

#pragma once

#include "vectors.h"

#include <math.h>

// Lower limit of a row's largest absolute value, so that no scale is 0. fusetk/nn/int8.py has this
// constant, too.
static const float SMALLEST = 1e-35f;

// Round a row to int8, and return the scale that multiplies its numbers. The largest absolute value
// becomes 127. With NaN in the row, the scale is NaN.
static inline float quantize_row(Int width, const float *x, int8_t *to) {
    const Int full = width / LANES * LANES;
    Vector maxima = fill(SMALLEST);
    Condition is_nan = {};
    for (Int j = 0; j < full; j += LANES) {
        const Vector v = load(x + j);
        maxima = larger(larger(maxima, v), -v);
        is_nan |= v != v;
    }
    float highest = contains_true(is_nan) ? NAN : max(maxima);
    for (Int j = full; j < width; j++)
        if (fabsf(x[j]) > highest || x[j] != x[j]) highest = fabsf(x[j]);
    const float factor = 127.0f / highest;
    for (Int j = 0; j < full; j += LANES)
        store_integers(to + j, (load(x + j) * factor + ROUND) - ROUND);
    for (Int j = full; j < width; j++) to[j] = (int8_t)((x[j] * factor + ROUND) - ROUND);
    return highest / 127.0f;
}

extern "C" {

// quantize_row for each row of x (rows, width)
void quantize(
    Int threads, Int rows, Int width, const float *x, int8_t *rounded, float *scale
) {
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++)
        scale[r] = quantize_row(width, x + r * width, rounded + r * width);
}

// Multiply integers `sums` (R, D) by the scales of rows and columns, and add the bias, which may be
// null. The results are floats in the memory of the integers. With `relu`, negative ones become 0.
void rescale(
    Int threads, Int rows, Int width, int32_t *sums, const float *row_scale,
    const float *column_scale, const float *bias, Int relu
) {
    const Vector lowest = fill(relu ? 0 : -INFINITY);
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++) {
        int32_t *from = sums + r * width;
        float *to = (float *)from;
        const float scale = row_scale[r];
        Int j = 0;
        for (; j + LANES <= width; j += LANES) {
            Vector v = to_float(from + j) * scale * load(column_scale + j);
            if (bias) v += load(bias + j);
            store(to + j, larger(v, lowest));
        }
        for (; j < width; j++) {
            float v = (float)from[j] * scale * column_scale[j] + (bias ? bias[j] : 0);
            v = relu && v < 0 ? 0 : v;
            memcpy(to + j, &v, sizeof v);
        }
    }
}

}  // extern "C"
