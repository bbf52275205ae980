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
// Products add this to their inputs, so that none is negative. decoding.py has this constant, too.
enum { INPUT_OFFSET = 127 };

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

typedef uint8_t Int8Input;  // a number of x plus INPUT_OFFSET

// A line of W has the weights of four inputs for each output. `add_products` returns `sums` plus,
// for each output, the products of its weights w in LINES lines and of their inputs x. Without
// VNNI, sums of four of these products have 16 bits: those of the inputs 0, 1, 4, 5 and of the
// inputs 2, 3, 6, 7. They are exact: fusetk/nn/int8.py limits the sum of the positive ones of such
// four weights to 129, and that of the negative ones to -129. An input is at most 254, and
// 129 * 254 < 2^15.
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))

enum { LINES = 1 };

static inline IntRegister add_products(
    IntRegister sums, const int32_t *x, const IntRegister *w
) {
#ifdef __AVX512VNNI__
    return (IntRegister)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(*x), (__m512i)*w);
#else
    return (IntRegister)_mm256_dpbusd_avx_epi32((__m256i)sums, _mm256_set1_epi32(*x), (__m256i)*w);
#endif
}

#else

enum { LINES = 2 };

static inline IntRegister add_products(
    IntRegister sums, const int32_t *x, const IntRegister *w
) {
#ifdef __AVX512BW__
    const __m512i fours = _mm512_add_epi16(
        _mm512_maddubs_epi16(_mm512_set1_epi32(x[0]), (__m512i)w[0]),
        _mm512_maddubs_epi16(_mm512_set1_epi32(x[1]), (__m512i)w[1])
    );
    return sums + (IntRegister)_mm512_madd_epi16(fours, _mm512_set1_epi16(1));
#else
    const __m256i fours = _mm256_add_epi16(
        _mm256_maddubs_epi16(_mm256_set1_epi32(x[0]), (__m256i)w[0]),
        _mm256_maddubs_epi16(_mm256_set1_epi32(x[1]), (__m256i)w[1])
    );
    return sums + (IntRegister)_mm256_madd_epi16(fours, _mm256_set1_epi16(1));
#endif
}

#endif

static inline void to_inputs(Int width, const int8_t *numbers, Int8Input *to) {
    for (Int k = 0; k < width; k++) to[k] = (uint8_t)(numbers[k] + INPUT_OFFSET);
}

// Load LANES numbers that to_inputs has stored, without the offset.
static inline Vector load_inputs(const Int8Input *x) { return to_float(x) - INPUT_OFFSET; }

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
