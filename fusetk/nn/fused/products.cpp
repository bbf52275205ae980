// Products of two matrices of float32 or bf16, each of which may be transposed, for training

#include "blocked_products.h"

// Parts of B are stored in blocks, one after the other: at most PANEL lines (2 MB). Each chunk of A
// reads all blocks of a part, so they should stay in a cache. If results are float32, a part has at
// most DEPTH rows, and the products of the parts are added. If results are bf16, a part has all
// rows. It should have MIN_PANEL columns, because all of A is read for each part. If fewer fit, or a
// copy of a chunk of A would not stay in a cache, float32 results are rounded instead.
enum { DEPTH = 1024, PANEL = 1 << 19, MIN_PANEL = 4 * BLOCK };

// Estimated time of copying a number, in multiply-adds
enum { COPY = 8 };

// A matrix. Number (i, j) is at[i * row_step + j * step]. One of the steps is 1.
template <class T>
struct Matrix {
    const T *at;
    Int row_step, step;

    Matrix part(Int row, Int column) const {
        return {at + row * row_step + column * step, row_step, step};
    }
};

// A line of 4 bytes has one float32 or two bf16.
template <class T>
static inline Int lines_of(Int count) {
    return (count * sizeof(T) + sizeof(float) - 1) / sizeof(float);
}

// Load LANES lines. A line of bf16 has one number from each address. A null second address means
// zeros. Lines from n on are 0.
static inline Vector load_lines(const float *first, const float *, Int n) {
    return n == LANES ? load(first) : load_part(first, n, 0);
}

static inline Vector load_lines(const Bf16 *first, const Bf16 *second, Int n) {
    Bf16 edges[2][LANES] = {};
    if (n < LANES) first = (const Bf16 *)memcpy(edges[0], first, n * sizeof(Bf16));
    if (!second)
        second = edges[1];
    else if (n < LANES)
        second = (const Bf16 *)memcpy(edges[1], second, n * sizeof(Bf16));
    const Vector low = load(first), high = load(second);  // bf16 is the upper half of float32
    return join<Vector>([=](int k) {
        const IntRegister bits = (IntRegister)low.registers[k] >> 16 & 0xffff;
        return (Register)(bits | (IntRegister)high.registers[k]);
    });
}

// Store the GROUP columns of B (count, size) from n on as blocked_products.h says. Columns beyond
// the last one are 0.
template <class T>
static void store_group(Matrix<T> b, Int count, Int size, Int n, float *to) {
    const Int inputs = sizeof(float) / sizeof(T);  // of a line
    const Int columns = n < size ? smaller(size - n, GROUP) : 0;
    const T *from = b.at + n * b.step;
    Int k = 0;
    if (b.step == 1) {
        for (; k < count; k += inputs, from += inputs * b.row_step)
            store(
                to + k / inputs * GROUP,
                load_lines(from, k + 1 < count ? from + b.row_step : 0, columns)
            );
        return;
    }
    for (; k + WIDTH * inputs <= count; k += WIDTH * inputs)
        for (Int j = 0; j < GROUP; j += WIDTH) {
            Register block[WIDTH];
            UNROLLED for (Int i = 0; i < WIDTH; i++) {
                block[i] = Register{};
                if (j + i < columns) memcpy(&block[i], from + (j + i) * b.step + k, sizeof(Register));
            }
            transpose(block);
            UNROLLED for (Int i = 0; i < WIDTH; i++)
                *(Register *)(to + (k / inputs + i) * GROUP + j) = block[i];
        }
    T *rest = (T *)(to + k / inputs * GROUP);
    for (Int line = 0; line < lines_of<T>(count - k); line++)
        for (Int j = 0; j < GROUP; j++)
            for (Int i = 0; i < inputs; i++) {
                const Int row = k + line * inputs + i;
                const bool inside = j < columns && row < count;
                *rest++ = inside ? from[j * b.step + row * b.row_step] : 0;
            }
}

// Copy one line for each of MOST_ROWS rows to a tile. A line of bf16 has one number from each
// address.
static inline void copy_lines(const float *first, const float *, float *to) {
    memcpy(to, first, MOST_ROWS * sizeof(float));
}

#ifdef BF16_VECTORS
static inline void copy_lines(const Bf16 *first, const Bf16 *second, Bf16 *to) {
    static_assert(MOST_ROWS == 8);
    const __m128i a = _mm_loadu_si128((const __m128i_u *)first);
    const __m128i b = _mm_loadu_si128((const __m128i_u *)second);
    _mm_storeu_si128((__m128i_u *)to, _mm_unpacklo_epi16(a, b));
    _mm_storeu_si128((__m128i_u *)(to + MOST_ROWS), _mm_unpackhi_epi16(a, b));
}
#endif

// A column of A is prefetched when the copy is COLUMNS_AHEAD columns before it. It is far from the
// column before, so the processor does not prefetch it.
enum { COLUMNS_AHEAD = 8 };

// Copy A (rows, count), which is stored by columns, to tiles: arrays of lines (lines, MOST_ROWS).
// Return the copy. A tile is one piece of memory, so the fastest cache can keep it.
template <class T>
static Lines<T> copy_to_tiles(Matrix<T> a, Int rows, Int count, float *to) {
    static const T zeros[CHUNK] = {};
    const Int inputs = sizeof(float) / sizeof(T), lines = lines_of<T>(count);
    const Int whole = rows / MOST_ROWS * MOST_ROWS;
    for (Int k = 0; k < count; k += inputs) {
        const T *first = a.at + k * a.step, *second = k + 1 < count ? first + a.step : zeros;
        const Int in_cache_line = 64 / sizeof(T);
        for (Int r = 0; r < rows + in_cache_line - 1; r += in_cache_line)
            for (Int i = 0; i < inputs; i++)
                __builtin_prefetch(first + (COLUMNS_AHEAD + i) * a.step + r);
        T *line = (T *)(to + k / inputs * MOST_ROWS);
        for (Int r = 0; r < whole; r += MOST_ROWS)
            copy_lines(first + r, second + r, line + r * lines * inputs);
        if (whole < rows) {
            T edges[2][MOST_ROWS] = {};
            memcpy(edges[0], first + whole, (rows - whole) * sizeof(T));
            memcpy(edges[1], second + whole, (rows - whole) * sizeof(T));
            copy_lines(edges[0], edges[1], line + whole * lines * inputs);
        }
    }
    return {(const T *)to, inputs, MOST_ROWS * inputs, lines * inputs};
}

// Compute out (rows, BLOCK) = A (rows, count) times blocked columns. With `add`, add this to out.
static inline void multiply_block(
    Int rows, Int count, Lines<float> a, const float *groups, const Epilogue &finish, bool add,
    float *out, Int stride
) {
    float_block<false>(rows, count, a, groups, finish, add, out, stride);
}

#ifdef BF16_VECTORS

// If `out` is bf16, `count` is at most DEPTH.
template <class Out>
static inline void multiply_block(
    Int rows, Int count, Lines<Bf16> a, const Bf16 *groups, const Epilogue &finish, bool add,
    Out *out, Int stride
) {
    const bool in_tiles = a.step != 2;  // there, a zero follows the last number of an odd count
    const Epilogue none = {ZEROS, fill(-INFINITY), 0, 0, 0};
    for (Int start = 0; start < count; start += DEPTH) {
        const Int part = smaller(DEPTH, count - start);
        bf16_block(
            rows, in_tiles ? lines_of<Bf16>(part) : part / 2, !in_tiles && part % 2,
            {a.at + start / 2 * a.step, a.row_step, a.step, a.tile_step}, groups + start * GROUP,
            2 * GROUP * lines_of<Bf16>(count), start + part == count ? finish : none, add || start,
            out, stride
        );
    }
}

#endif

// Compute out (rows, columns) = A (rows, count) times blocked columns, plus the bias (columns),
// which may be null. With `add`, add this to out, which is float32. There are at most CHUNK rows
// and BLOCK columns; `groups` has BLOCK columns.
template <class T, class Out>
static void multiply(
    Int rows, Int columns, Int count, Lines<T> a, const T *groups, const float *bias, bool add,
    Out *out, Int stride
) {
    float full_bias[BLOCK] = {};
    if (bias) memcpy(full_bias, bias, columns * sizeof(float));
    const Epilogue finish = {full_bias, fill(-INFINITY), 0, 0, 0};
    if (columns == BLOCK && (sizeof(Out) == sizeof(float) || count <= DEPTH)) {
        multiply_block(rows, count, a, groups, finish, add, out, stride);
        return;
    }
    float sums[CHUNK * BLOCK] = {};
    for (Int r = 0; add && r < rows; r++)
        memcpy(sums + r * BLOCK, out + r * stride, columns * sizeof(float));
    multiply_block(rows, count, a, groups, finish, add, sums, BLOCK);
    for (Int r = 0; r < rows; r++)
        for (Int j = 0; j < columns; j++) put(out + r * stride, j, sums[r * BLOCK + j]);
}

// Compute out (rows, size) = A (rows, count) B (count, size) + bias (size), by one thread. The bias
// may be null. With `add`, add this to out, which is float32. `stride` is the row step of out.
template <class T, class Out>
static void matmul_part(
    Int rows, Int size, Int count, Matrix<T> a, Matrix<T> b, const float *bias, bool add, Out *out,
    Int stride
) {
    const Int depth = sizeof(Out) == sizeof(float) ? smaller(count, DEPTH) : count;
    const Int lines = lines_of<T>(depth), inputs = sizeof(float) / sizeof(T);
    const Int panel = smaller(up(size, BLOCK), PANEL / lines / BLOCK * BLOCK);
    const Chunks chunks(rows, MOST_ROWS);
    Scratch blocks(panel * lines);
    // A copy of a chunk of A, if A is stored by columns: the numbers of a row are far from each
    // other there.
    Scratch tiles(a.step == 1 ? 0 : CHUNK * lines);
    for (Int start = 0; start < count; start += depth)
        for (Int column = 0; column < size; column += panel) {
            const Int part = smaller(count - start, depth);
            const Int columns = smaller(size - column, panel);
            const float *last_bias = bias && start + part == count ? bias + column : 0;
            for (Int n = 0; n < up(columns, BLOCK); n += GROUP)
                store_group(
                    b.part(start, column), part, columns, n, blocks.at + n * lines_of<T>(part)
                );
            for (Int chunk = 0; chunk < chunks.count; chunk++) {
                const Int row = chunks.start(chunk), chunk_rows = chunks.start(chunk + 1) - row;
                const Matrix<T> from = a.part(row, start);
                const Lines<T> x = a.step == 1 ? Lines<T>{from.at, a.row_step, inputs}
                                               : copy_to_tiles(from, chunk_rows, part, tiles.at);
                for (Int n = 0; n < columns; n += BLOCK)
                    multiply(
                        chunk_rows, smaller(columns - n, BLOCK), part, x,
                        (const T *)(blocks.at + n * lines_of<T>(part)),
                        last_bias ? last_bias + n : 0, add || start,
                        out + row * stride + column + n, stride
                    );
            }
        }
}

// A division of a product among threads: a grid of parts of nearly equal size. All of them have
// whole units of MOST_ROWS rows and whole blocks of columns, except at the end.
struct Grid {
    Int rows, size, units, blocks, high, wide;

    // Choose the grid whose largest part takes the least time. The thread of a part copies its
    // columns of B, and reads or copies its rows of A.
    Grid(Int threads, Int rows, Int size)
        : rows(rows), size(size), units((rows + MOST_ROWS - 1) / MOST_ROWS),
          blocks((size + BLOCK - 1) / BLOCK), high(1), wide(1) {
        Int least = INT64_MAX;
        for (Int i = 1; i <= smaller(threads, units); i++) {
            const Int j = smaller(threads / i, blocks);
            const Int part_rows = (units + i - 1) / i * MOST_ROWS;
            const Int part_columns = (blocks + j - 1) / j * BLOCK;
            const Int cost = part_rows * part_columns + COPY * (part_rows + part_columns);
            if (cost < least) least = cost, high = i, wide = j;
        }
    }

    Int row(Int i) const { return smaller(rows, units * i / high * MOST_ROWS); }
    Int column(Int j) const { return smaller(size, blocks * j / wide * BLOCK); }
};

// Compute matmul_part by several threads. Each thread makes its own copies: those of another thread
// would be in the cache of another core. The order of a sum does not depend on the number of
// threads.
template <class T, class Out>
static void matmul(
    Int threads, Int rows, Int size, Int count, Matrix<T> a, Matrix<T> b, const float *bias,
    bool add, Out *out, Int stride
) {
    const Grid grid(threads, rows, size);
#pragma omp parallel for collapse(2) schedule(static) num_threads((int)threads) if (threads > 1)
    for (Int i = 0; i < grid.high; i++)
        for (Int j = 0; j < grid.wide; j++) {
            const Int row = grid.row(i), column = grid.column(j);
            matmul_part(
                grid.row(i + 1) - row, grid.column(j + 1) - column, count, a.part(row, 0),
                b.part(0, column), bias ? bias + column : 0, add, out + row * stride + column,
                stride
            );
        }
}

extern "C" {

void float32_matmul(
    Int threads, Int rows, Int size, Int count, const float *a, Int a_row_step, Int a_step,
    const float *b, Int b_row_step, Int b_step, const float *bias, Int add, float *out, Int stride
) {
    matmul<float, float>(
        threads, rows, size, count, {a, a_row_step, a_step}, {b, b_row_step, b_step}, bias, add,
        out, stride
    );
}

#ifdef BF16_VECTORS

// The factors are bf16. `out` is float32, or bf16 with `bf16_out`, and then `add` is false.
void bf16_matmul(
    Int threads, Int rows, Int size, Int count, const Bf16 *a_at, Int a_row_step, Int a_step,
    const Bf16 *b_at, Int b_row_step, Int b_step, const float *bias, Int add, Int bf16_out,
    void *out, Int stride
) {
    const Matrix<Bf16> a = {a_at, a_row_step, a_step}, b = {b_at, b_row_step, b_step};
    if (!bf16_out) {
        matmul(threads, rows, size, count, a, b, bias, add, (float *)out, stride);
        return;
    }
    Bf16 *rounded = (Bf16 *)out;
    if (count <= DEPTH || (a.step == 1 && lines_of<Bf16>(count) * MIN_PANEL <= PANEL)) {
        matmul(threads, rows, size, count, a, b, bias, false, rounded, stride);
        return;
    }
    Scratch sums(rows * size);
    matmul(threads, rows, size, count, a, b, bias, false, sums.at, size);
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++) round_row(size, sums.at + r * size, rounded + r * stride);
}

#endif

}  // extern "C"
