// Products of two float32 matrices, each of which may be transposed, for training

#include "blocked_products.h"

// Parts of B are stored in blocks, one after the other: at most DEPTH rows and PANEL numbers (2 MB).
// Each chunk of A reads all blocks of a part, so they should stay in a cache.
enum { DEPTH = 1024, PANEL = 1 << 19 };

// Store the GROUP columns of B (count, size) from n on as blocked_products.h says. Columns beyond
// the last one are 0. One of the steps of B is 1.
static void store_group(Strided b, Int count, Int size, Int n, float *to) {
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

// Copy A (rows, count), which is stored by columns, to tiles: arrays (count, MOST_ROWS). Return the
// copy. A tile is one piece of memory, so the fastest cache can keep it.
static Strided copy_to_tiles(Strided a, Int rows, Int count, float *to) {
    const Int whole = rows / MOST_ROWS * MOST_ROWS;
    for (Int k = 0; k < count; k++) {
        const float *from = a.at + k * a.step;
        float *line = to + k * MOST_ROWS;
        for (Int r = 0; r < whole; r += MOST_ROWS)
            memcpy(line + r * count, from + r, MOST_ROWS * sizeof(float));
        for (Int r = whole; r < rows; r++) line[whole * count + r - whole] = from[r];
    }
    return {to, 1, MOST_ROWS, count};
}

// Compute out (rows, columns) = A (rows, count) times blocked columns, plus the bias (columns),
// which may be null. With `add`, add this to out. There are at most CHUNK rows and BLOCK columns;
// `groups` has BLOCK columns.
static void multiply(
    Int rows, Int columns, Int count, Strided a, const float *groups, const float *bias, bool add,
    float *out, Int stride
) {
    float full_bias[BLOCK] = {};
    if (bias) memcpy(full_bias, bias, columns * sizeof(float));
    const Epilogue finish = {full_bias, fill(-INFINITY), 0, 0, 0};
    if (columns == BLOCK) {
        float_block<false>(rows, count, a, groups, finish, add, out, stride);
        return;
    }
    float edge[CHUNK * BLOCK] = {};
    for (Int r = 0; add && r < rows; r++)
        memcpy(edge + r * BLOCK, out + r * stride, columns * sizeof(float));
    float_block<false>(rows, count, a, groups, finish, add, edge, BLOCK);
    for (Int r = 0; r < rows; r++)
        memcpy(out + r * stride, edge + r * BLOCK, columns * sizeof(float));
}

// Return the submatrix of m that begins at a row and a column.
static Strided submatrix(Strided m, Int row, Int column) {
    return {m.at + row * m.row_step + column * m.step, m.row_step, m.step};
}

extern "C" {

// Compute out (rows, size) = A (rows, count) B (count, size) + bias (size). The bias may be null.
// With `add`, add this to out. `stride` is the row step of out. One of the steps of each factor is
// 1. The order of a sum does not depend on the number of threads.
void float32_matmul(
    Int threads, Int rows, Int size, Int count, const float *a_at, Int a_row_step, Int a_step,
    const float *b_at, Int b_row_step, Int b_step, const float *bias, Int add, float *out,
    Int stride
) {
    const Strided a = {a_at, a_row_step, a_step}, b = {b_at, b_row_step, b_step};
    const Int depth = smaller(count, DEPTH);
    const Int panel = smaller(up(size, BLOCK), PANEL / depth / BLOCK * BLOCK);
    Scratch blocks(panel * depth);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        // A copy of a chunk of A, if A is stored by columns: the numbers of a row are far from each
        // other there.
        Scratch tiles(a.step == 1 ? 0 : up(CHUNK, MOST_ROWS) * depth);
        for (Int start = 0; start < count; start += depth)
            for (Int column = 0; column < size; column += panel) {
                const Int part = smaller(count - start, depth);
                const Int columns = smaller(size - column, panel);
                const bool last = start + part == count;
#pragma omp for schedule(static)
                for (Int n = 0; n < up(columns, BLOCK); n += GROUP)
                    store_group(
                        submatrix(b, start, column), part, columns, n, blocks.at + n * part
                    );
                Strided copy = {};
                Int copied_chunk = -1;
#pragma omp for collapse(2) schedule(static)
                for (Int chunk = 0; chunk < rows; chunk += CHUNK)
                    for (Int n = 0; n < columns; n += BLOCK) {
                        const Int chunk_rows = smaller(rows - chunk, CHUNK);
                        const Strided from = submatrix(a, chunk, start);
                        if (a.step != 1 && copied_chunk != chunk) {
                            copy = copy_to_tiles(from, chunk_rows, part, tiles.at);
                            copied_chunk = chunk;
                        }
                        multiply(
                            chunk_rows, smaller(columns - n, BLOCK), part,
                            a.step == 1 ? from : copy, blocks.at + n * part,
                            last && bias ? bias + column + n : 0, add || start,
                            out + chunk * stride + column + n, stride
                        );
                    }
            }
    }
}

}  // extern "C"
