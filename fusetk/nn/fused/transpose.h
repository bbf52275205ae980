// Matrices in memory, and their transposition by blocks in registers

#pragma once

#include "vectors.h"

// Exchange the blocks of S numbers beside the diagonal of a 2 S x 2 S matrix, in all registers.
template <int S>
static inline void exchange(Register &a, Register &b) {
    IntRegister low, high;
    for (int i = 0; i < WIDTH; i++) {
        low[i] = i & S ? WIDTH + i - S : i;
        high[i] = i & S ? WIDTH + i : i + S;
    }
    const Register first = shuffle(a, b, low);
    b = shuffle(a, b, high);
    a = first;
}

template <int S>
static inline void exchange_rows(Register *rows) {
    for (int i = 0; i < WIDTH; i++)
        if (!(i & S)) exchange<S>(rows[i], rows[i + S]);
}

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
            for (int k = 0; k < WIDTH; k++) {
                const float *row = from.at + (i + k) * from.row_step + j;
                block[k] = i + k < rows ? *(const Register *)row : Register{};
            }
            exchange_rows<1>(block);
            exchange_rows<2>(block);
            if constexpr (WIDTH > 4) exchange_rows<4>(block);
            if constexpr (WIDTH > 8) exchange_rows<8>(block);
            for (int k = 0; k < WIDTH; k++) *(Register *)(to + (j + k) * row_step + i) = block[k];
        }
}
