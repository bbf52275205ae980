// The rounding of float32 rows to int8, the instructions for products of int8, and the scaling of
// the sums of products.

#pragma once

#include "vectors.h"

#include <math.h>

#if defined(__AVX512BW__) || (defined(__AVX2__) && !defined(__AVX512F__))
#define INT8_VECTORS 1
#include <immintrin.h>
#endif

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
    for (Int j = 0; j < width; j++) to[j] = (int8_t)((x[j] * factor + ROUND) - ROUND);
    return highest / 127.0f;
}

#ifdef INT8_VECTORS

// A line of W has the weights of four inputs x0, x1, x2 and x3 for each output. It is divided into
// shares. One instruction multiplies all weights of a share. With VNNI, the line is one share, and
// the inputs must not be negative. Otherwise, the shares are x0, x2 and x1, x3, with numbers of 16
// bits.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))

typedef uint8_t Int8Input;  // a number of x as to_inputs stores it
enum { SHARES = 1, INPUT_OFFSET = 128 };  // the offset is added to the numbers of x

static inline IntRegister share_of_line(IntRegister w, int) { return w; }

// Return `sums` plus, for each output, the products of its weights in the share w and the inputs x.
static inline IntRegister add_products(IntRegister sums, int32_t x, IntRegister w) {
#if defined(__AVX512VNNI__)
    return (IntRegister)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(x), (__m512i)w);
#else
    return (IntRegister)_mm256_dpbusd_avx_epi32((__m256i)sums, _mm256_set1_epi32(x), (__m256i)w);
#endif
}

// Store a row of numbers (width, a multiple of 4) as inputs: plus INPUT_OFFSET, in the order of the
// shares.
static inline void to_inputs(Int width, const int8_t *numbers, Int8Input *to) {
    for (Int k = 0; k < width; k++) to[k] = (uint8_t)(numbers[k] + INPUT_OFFSET);
}

// Load LANES numbers that to_inputs has stored, in their original order, without the offset.
static inline Vector load_inputs(const Int8Input *x) { return to_float(x) - INPUT_OFFSET; }

#else

typedef int16_t Int8Input;
enum { SHARES = 2, INPUT_OFFSET = 0 };

static inline IntRegister share_of_line(IntRegister w, int share) {
    typedef int16_t Shorts __attribute__((vector_size(4 * WIDTH)));
    return (IntRegister)((share ? (Shorts)w : (Shorts)w << 8) >> 8);
}

static inline IntRegister add_products(IntRegister sums, int32_t x, IntRegister w) {
#ifdef __AVX512BW__
    return sums + (IntRegister)_mm512_madd_epi16(_mm512_set1_epi32(x), (__m512i)w);
#else
    return sums + (IntRegister)_mm256_madd_epi16(_mm256_set1_epi32(x), (__m256i)w);
#endif
}

static inline void to_inputs(Int width, const int8_t *numbers, Int8Input *to) {
    for (Int k = 0; k < width; k += 4) {
        to[k] = numbers[k];
        to[k + 1] = numbers[k + 2];
        to[k + 2] = numbers[k + 1];
        to[k + 3] = numbers[k + 3];
    }
}

static inline Vector load_inputs(const Int8Input *x) {
    const Vector v = to_float(x);
    return join<Vector>([=](int k) {
        IntRegister places;
        for (int i = 0; i < WIDTH; i++) places[i] = i + (i % 4 == 1) - (i % 4 == 2);
        return shuffle(v.registers[k], v.registers[k], places);
    });
}

#endif

#endif

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
