// Products of two float32 matrices, each of which may be transposed, for training

#include "packed_products.h"

// Rows of B that are packed at once. This limits the memory of a product whose sums are long.
enum { DEPTH = 1024 };

// Store the columns n to n + GROUP of B (count, size) as packed_products.h says. Columns beyond the
// last one are 0. One of the steps of B is 1.
static void pack_group(Strided b, Int count, Int size, Int n, float *to) {
    const Int columns = n < size ? smaller(size - n, GROUP) : 0;
    const float *from = b.at + n * b.step;
    Int k = 0;
    if (b.step == 1) {
        for (; k < count; k++)
            store(
                to + k * GROUP, columns == GROUP ? load(from + k * b.row_step)
                                                 : load_part(from + k * b.row_step, columns, 0)
            );
        return;
    }
    for (; k + WIDTH <= count; k += WIDTH)
        for (Int j = 0; j < GROUP; j += WIDTH) {
            Register block[WIDTH];
            for (Int i = 0; i < WIDTH; i++)
                block[i] = j + i < columns ? *(const Register *)(from + (j + i) * b.step + k)
                                           : Register{};
            transpose(block);
            for (Int i = 0; i < WIDTH; i++) *(Register *)(to + (k + i) * GROUP + j) = block[i];
        }
    for (; k < count; k++)
        for (Int j = 0; j < GROUP; j++)
            to[k * GROUP + j] = j < columns ? from[j * b.step + k * b.row_step] : 0;
}

// Copy the columns of A (rows, count) with at most CHUNK rows to (count, CHUNK).
static void copy_columns(Strided a, Int rows, Int count, float *to) {
    for (Int k = 0; k < count; k++)
        memcpy(to + k * CHUNK, a.at + k * a.step, rows * sizeof(float));
}

template <int ROWS = 8>
static void block_of_rows(
    Int rows, Int count, Strided a, const float *groups, const Epilogue &finish, bool add,
    float *out, Int stride
) {
    const float *second = groups + GROUP * count;
    while (rows >= ROWS) {
        float_rows<ROWS>(count, a, groups, second, finish, add, out, stride);
        a.at += ROWS * a.row_step;
        out += ROWS * stride;
        rows -= ROWS;
    }
    if constexpr (ROWS > 1)
        block_of_rows<ROWS / 2>(rows, count, a, groups, finish, add, out, stride);
}

// out (rows, columns) = or += A (rows, count) times packed columns, at most BLOCK, + bias
static void multiply(
    Int rows, Int columns, Int count, Strided a, const float *groups, const float *bias, bool add,
    float *out, Int stride
) {
    float own_bias[BLOCK] = {}, edge[CHUNK * BLOCK];
    if (bias) memcpy(own_bias, bias, columns * sizeof(float));
    const Epilogue finish = {own_bias, fill(-INFINITY), 0, 0, 0};
    if (columns == BLOCK) {
        block_of_rows(rows, count, a, groups, finish, add, out, stride);
        return;
    }
    for (Int r = 0; add && r < rows; r++)
        memcpy(edge + r * BLOCK, out + r * stride, columns * sizeof(float));
    block_of_rows(rows, count, a, groups, finish, add, edge, BLOCK);
    for (Int r = 0; r < rows; r++)
        memcpy(out + r * stride, edge + r * BLOCK, columns * sizeof(float));
}

// The rows from `first` on and the columns from `start` on
static Strided part(Strided m, Int first, Int start) {
    return {m.at + first * m.row_step + start * m.step, m.row_step, m.step};
}

extern "C" {

// out (rows, size), with `stride` numbers from row to row, = A (rows, count) B (count, size) + bias
// (size). The bias may be null. With `add`, the product is added to out. One of the steps of each
// factor is 1. The order of a sum does not depend on the number of threads.
void matmul(
    Int threads, Int rows, Int size, Int count, const float *a_at, Int a_row_step, Int a_step,
    const float *b_at, Int b_row_step, Int b_step, const float *bias, Int add, float *out,
    Int stride
) {
    const Strided a = {a_at, a_row_step, a_step}, b = {b_at, b_row_step, b_step};
    Scratch packed(up(size, BLOCK) * smaller(count, DEPTH));
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        // A chunk of A, if its columns are contiguous: its rows have large distances.
        Scratch columns(a.step == 1 ? 0 : CHUNK * DEPTH);
        for (Int start = 0; start < count; start += DEPTH) {
            const Int depth = smaller(count - start, DEPTH);
            const bool last = start + depth == count;
#pragma omp for schedule(static)
            for (Int n = 0; n < up(size, BLOCK); n += GROUP)
                pack_group(part(b, start, 0), depth, size, n, packed.at + n * depth);
            Int copied = -1;
#pragma omp for collapse(2) schedule(static)
            for (Int chunk = 0; chunk < rows; chunk += CHUNK)
                for (Int n = 0; n < size; n += BLOCK) {
                    const Int height = smaller(rows - chunk, CHUNK);
                    Strided from = part(a, chunk, start);
                    if (a.step != 1) {
                        if (copied != chunk) copy_columns(from, height, depth, columns.at);
                        copied = chunk;
                        from = {columns.at, 1, CHUNK};
                    }
                    const float *own_bias = last && bias ? bias + n : 0;
                    multiply(
                        height, smaller(size - n, BLOCK), depth, from, packed.at + n * depth,
                        own_bias, add || start, out + chunk * stride + n, stride
                    );
                }
        }
    }
}

}  // extern "C"
