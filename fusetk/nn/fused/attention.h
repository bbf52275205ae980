// Parts of attention: small products, and the softmax of scores with its gradient.

#pragma once

#include "dropout.h"
#include "vectors.h"

#include <float.h>

// Small products ----------------------------------------------------------------------------------

#ifdef __AVX512F__
enum { TILE_REGISTERS = 16 };
#else
enum { TILE_REGISTERS = 12 };
#endif

struct Matrix {
    float *at;
    Int row_step, step = 1;  // numbers from row to row, and from column to column
};

static inline Matrix transposed(Matrix m) { return {m.at, m.step, m.row_step}; }

// to (columns, padded(rows)) = from (rows, columns) transposed, with zeros beside it. `columns` is
// a multiple of LANES.
static void transpose(Matrix from, Int rows, Int columns, float *to) {
    const Int row_step = padded(rows);
    for (Int i = 0; i < row_step; i += WIDTH)
        for (Int j = 0; j < columns; j += WIDTH) {
            Register block[WIDTH];
            UNROLLED for (int k = 0; k < WIDTH; k++) {
                const float *row = from.at + (i + k) * from.row_step + j;
                block[k] = i + k < rows ? *(const Register *)row : Register{};
            }
            transpose(block);
            UNROLLED for (int k = 0; k < WIDTH; k++)
                *(Register *)(to + (j + k) * row_step + i) = block[k];
        }
}

// The product c (rows, columns) = or += a (rows, count) b (count, columns). `columns` is a multiple
// of LANES.
struct Product {
    const Int count;
    const Matrix a, b, c;
    const bool add;

    // R rows and C * WIDTH columns
    template <int R, int C>
    void tile(Int row, Int column) const {
        const float *from = a.at + row * a.row_step, *factors = b.at + column;
        float *to = c.at + row * c.row_step + column;
        Register sums[R][C];
        UNROLLED for (int i = 0; i < R; i++)
            UNROLLED for (int j = 0; j < C; j++)
                sums[i][j] = add ? *(Register *)(to + i * c.row_step + j * WIDTH) : Register{};
        for (Int k = 0; k < count; k++) {
            Register numbers[C];
            UNROLLED for (int j = 0; j < C; j++)
                numbers[j] = *(const Register *)(factors + k * b.row_step + j * WIDTH);
            UNROLLED for (int i = 0; i < R; i++) {
                const float value = from[i * a.row_step + k * a.step];
                UNROLLED for (int j = 0; j < C; j++) sums[i][j] += value * numbers[j];
            }
        }
        UNROLLED for (int i = 0; i < R; i++)
            UNROLLED for (int j = 0; j < C; j++)
                *(Register *)(to + i * c.row_step + j * WIDTH) = sums[i][j];
    }

    template <int R, int C>
    void tile_of(Int rows, Int row, Int column) const {
        if (rows == R)
            tile<R, C>(row, column);
        else if constexpr (R > 1)
            tile_of<R - 1, C>(rows, row, column);
    }

    // Divide the rows into tiles of nearly equal height, because low tiles are slow.
    template <int C>
    void tiles(Int rows, Int column) const {
        const Int highest = TILE_REGISTERS / C;
        Int row = 0;
        for (Int left = (rows + highest - 1) / highest; left; left--) {
            const Int height = (rows - row + left - 1) / left;
            tile_of<TILE_REGISTERS / C, C>(height, row, column);
            row += height;
        }
    }
};

static void product(Int rows, Int columns, Int count, Matrix a, Matrix b, Matrix c,
                    bool add = false) {
    const Product product = {count, a, b, c, add};
    Int column = 0;
    for (; column + 2 * WIDTH <= columns; column += 2 * WIDTH) product.tiles<2>(rows, column);
    for (; column < columns; column += WIDTH) product.tiles<1>(rows, column);
}

// Softmax -----------------------------------------------------------------------------------------

enum { BLOCK = 64 };  // queries of a sentence are processed in blocks

static const float NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Replace all but the first n numbers of x by `rest`.
static inline Vector keep_first(Vector x, Int n, float rest) {
    return n < LANES ? select(load(NUMBERS) < (float)n, x, fill(rest)) : x;
}

// The dropout factors of LANES elements. If `bits` is null, they are 1.
static inline Vector factors(const Dropout &drop, const Bits *bits) {
    if (!bits) return fill(1);
    return select(to_float(bits) >= (float)drop.threshold, fill(drop.scale), fill(0));
}

// Replace the n scores x by dropout(softmax(x * scale)). The numbers after them become 0, up to the
// end of their vector.
static inline void softmax(float *x, Int n, float scale, Dropout drop, const Bits *bits,
                           float *normalizer) {
    const Int end = padded(n);
    Vector top = fill(-FLT_MAX), total = {};
    for (Int j = 0; j < end; j += LANES)
        top = larger(top, keep_first(load(x + j), n - j, -FLT_MAX));
    const float highest = max(top);
    for (Int j = 0; j < end; j += LANES) {
        const Vector e = keep_first(exp_((load(x + j) - highest) * scale), n - j, 0);
        store(x + j, e);
        total += e;
    }
    const float inverse = 1 / sum(total);
    for (Int j = 0; j < end; j += LANES)
        store(x + j, load(x + j) * inverse * factors(drop, bits ? bits + j : 0));
    normalizer[0] = highest;
    normalizer[1] = inverse;
}

// Replace the n scores x by dropout(softmax(x * scale)), and the gradients `grad` of the results by
// those of the scores. The numbers after them become 0, up to the end of their vector.
static inline void softmax_backward(float *x, float *grad, Int n, float scale, Dropout drop,
                                    const Bits *bits, const float *normalizer) {
    const Int end = padded(n);
    const float highest = normalizer[0], inverse = normalizer[1];
    Vector products = {};
    for (Int j = 0; j < end; j += LANES) {
        const Vector e = exp_((load(x + j) - highest) * scale) * inverse;
        const Vector p = keep_first(e, n - j, 0);
        const Vector g = keep_first(load(grad + j) * factors(drop, bits ? bits + j : 0), n - j, 0);
        store(x + j, p);
        store(grad + j, g);
        products += p * g;
    }
    const float mean = sum(products);  // of the gradients, with the weights p
    for (Int j = 0; j < end; j += LANES) {
        const Vector p = load(x + j);
        store(grad + j, p * (load(grad + j) - mean) * scale);
        store(x + j, p * factors(drop, bits ? bits + j : 0));
    }
}
