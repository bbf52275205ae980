// Products x W^T of float32 rows x with a blocked matrix W of float32, bf16 or int8. The rows are
// rounded to the type of W. Results are float32, or bf16 in training. Vector instructions compute
// them. For bf16, tiles (AMX) do so if the processor has them. The order of a sum does not depend
// on the number of rows or threads.

#pragma once

#include "int8.h"

#ifdef __AVX512BF16__
#define BF16_VECTORS 1
#include <immintrin.h>
#if defined(__AMX_BF16__) && defined(__linux__)
#define BF16_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

// W (N, K) is stored in groups of GROUP outputs. A group has lines of 4 bytes for each output: one
// input of float32, two of bf16 or four of int8. N is padded with zeros to a multiple of BLOCK, and
// K to a multiple of STEP, but not for float32. A long sum of float32 is divided into parts of PART
// products, which reduces its rounding error. decoding.py has BLOCK, STEP and BLOCK_ROWS, too.
enum { GROUP = LANES, BLOCK = 2 * GROUP, STEP = 32, PART = 256 };

// A product of float32 has at most MOST_SUMS vectors of sums, for at most MOST_ROWS rows, in
// registers. There are 32 registers with AVX-512 and on ARM, and 16 elsewhere.
#if defined(__AVX512F__)
enum { MOST_ROWS = 8, MOST_SUMS = 16 };
#elif defined(__AVX__) || defined(__aarch64__)
enum { MOST_ROWS = 6, MOST_SUMS = 6 };
#else
enum { MOST_ROWS = 3, MOST_SUMS = 3 };
#endif
// A product of int8 has INT8_ROWS rows in registers. CHUNK is a multiple of MOST_ROWS.
enum { INT8_ROWS = REGISTERS == 1 ? 8 : 4 };
enum { BLOCK_ROWS = 32, CHUNK = 64 / MOST_ROWS * MOST_ROWS };

// In a larger function, GCC may keep the sums of a product in memory, which takes twice the time.
#define NOT_INLINED __attribute__((noinline))

static inline Int smaller(Int a, Int b) { return a < b ? a : b; }
static inline Int up(Int n, Int multiple) { return (n + multiple - 1) / multiple * multiple; }

// A division of rows into chunks of nearly equal height: whole units of rows, and the rest of the
// rows in the last chunk. A chunk has at most CHUNK rows, rounded up to whole units.
struct Chunks {
    Int rows, unit, units, count;

    Chunks(Int rows, Int unit)
        : rows(rows), unit(unit), units((rows + unit - 1) / unit),
          count((units * unit + CHUNK - 1) / CHUNK) {}

    Int start(Int chunk) const { return smaller(rows, units * chunk / count * unit); }
};

template <class T>
static inline Int stored_width(Int width) {
    return sizeof(T) == sizeof(float) ? width : up(width, STEP);
}

// Store the matrix (size, width). `blocks` contains zeros before.
template <class T>
static void to_blocks(Int size, Int width, const T *matrix, T *blocks) {
    const Int inputs = sizeof(float) / sizeof(T);  // of a line
    for (Int n = 0; n < size; n++) {
        T *group = blocks + n / GROUP * GROUP * stored_width<T>(width);
        for (Int k = 0; k < width; k++)
            group[(k / inputs * GROUP + n % GROUP) * inputs + k % inputs] = matrix[n * width + k];
    }
}

// The last operations on the sums of a group: add the bias, and replace numbers below `lowest`. For
// int8, first subtract the correction, and multiply by the scales of rows and outputs.
struct GroupEpilogue {
    Vector bias, lowest, scale;
    const float *row_scale;
    const int32_t *correction;

    Vector operator()(Vector sums, Int) const { return larger(sums + bias, lowest); }

#ifdef INT8_VECTORS
    Vector operator()(const IntRegister *sums, Int row) const {
        const Vector numbers = join<Vector>([=](int k) {
            const IntRegister offset = *(const IntRegister *)(correction + k * WIDTH);
            return __builtin_convertvector(sums[k] - offset, Register);
        });
        return (*this)(numbers * row_scale[row] * scale, row);
    }
#endif
};

// The arguments of the last operations for a block. `of_group` loads those of one group.
struct Epilogue {
    const float *bias;
    Vector lowest;
    const float *row_scale, *scale;
    const int32_t *correction;

    GroupEpilogue of_group(Int group) const {
        GroupEpilogue epilogue = {load(bias + group * GROUP), lowest, {}, row_scale, 0};
        if (scale) {
            epilogue.scale = load(scale + group * GROUP);
            epilogue.correction = correction + group * GROUP;
        }
        return epilogue;
    }
};

// A matrix. Line j of row i begins at at[i * row_step + j * step]. In a matrix in tiles, the rows
// are divided into tiles of MOST_ROWS rows, and row i of a tile begins at the first number of the
// tile plus i * row_step. Row r, if it is the first one of a tile, begins at r * tile_step.
template <class T>
struct Lines {
    const T *at;
    Int row_step, step;
    Int tile_step = row_step;
};

// With PREFETCH, lines of W are prefetched LINES_AHEAD lines before they are needed. In a search, W
// is often in a slow cache, because other matrices of the model were used since its last product.
enum { LINES_AHEAD = 64 };

// Compute a part of out (ROWS, BLOCK) = x (ROWS, width) times two groups of W. The part has the
// columns of GROUPS groups, from `group` on, and the products of the inputs `start` to `end` - 1.
// If `add` is true or `start` is not 0, the products are added to out. The last part applies
// `finish`.
template <bool PREFETCH, int ROWS, int GROUPS>
static NOT_INLINED void float_sums(
    Int group, Int start, Int end, Int width, Lines<float> x, const float *groups,
    const Epilogue &finish, bool add, float *out, Int stride
) {
    groups += group * GROUP * width;
    out += group * GROUP;
    // The results are stored there after the loop over the inputs.
    for (int r = 0; r < ROWS; r++)
        for (int g = 0; g < GROUPS; g++) __builtin_prefetch(out + r * stride + g * GROUP, 1);
    Register sums[ROWS][GROUPS * REGISTERS];  // GCC keeps an array of Vector in memory
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int i = 0; i < GROUPS * REGISTERS; i++) sums[r][i] = Register{};
    for (Int k = start; k < end; k++) {
        if constexpr (PREFETCH) {
            // After the last line of a group comes the first one of this group of the next block.
            const Int ahead = k + LINES_AHEAD < width ? k + LINES_AHEAD : k + LINES_AHEAD + width;
            for (int g = 0; g < GROUPS; g++)
                __builtin_prefetch(groups + (g * width + ahead) * GROUP);
        }
        Register w[GROUPS * REGISTERS];
        UNROLLED for (int i = 0; i < GROUPS * REGISTERS; i++)
            w[i] = *(const Register *)(groups + (i / REGISTERS * width + k) * GROUP +
                                       i % REGISTERS * WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Register input = x.at[r * x.row_step + k * x.step] - Register{};
            UNROLLED for (int i = 0; i < GROUPS * REGISTERS; i++) sums[r][i] += input * w[i];
        }
    }
    const bool last = end == width;
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int g = 0; g < GROUPS; g++) {
            float *to = out + r * stride + g * GROUP;
            Vector v;
            UNROLLED for (int i = 0; i < REGISTERS; i++)
                v.registers[i] = sums[r][g * REGISTERS + i];
            if (start || add) v += load(to);
            store(to, last ? finish.of_group(group + g)(v, r) : v);
        }
}

// Compute float_sums of both groups for any number of rows.
template <bool PREFETCH, int ROWS = MOST_ROWS>
static void float_part(
    Int rows, Int start, Int end, Int width, Lines<float> x, const float *groups,
    const Epilogue &finish, bool add, float *out, Int stride
) {
    constexpr int GROUPS = 2 * ROWS <= MOST_SUMS ? 2 : 1;
    const Int whole = rows / ROWS * ROWS;
    for (int group = 0; group < 2; group += GROUPS)
        for (Int r = 0; r < whole; r += ROWS)
            float_sums<PREFETCH, ROWS, GROUPS>(
                group, start, end, width, {x.at + r * x.tile_step, x.row_step, x.step}, groups,
                finish, add, out + r * stride, stride
            );
    if constexpr (ROWS > 1)
        if (whole < rows)
            float_part<PREFETCH, (ROWS > 4 ? 4 : ROWS > 2 ? 2 : 1)>(
                rows - whole, start, end, width,
                {x.at + whole * x.tile_step, x.row_step, x.step}, groups, finish, add,
                out + whole * stride, stride
            );
}

// Compute out (rows, BLOCK) = x (rows, width) times two groups of W. With `add`, add the product to
// out. The outer loop is over parts of PART inputs, so a part of W stays in the fastest cache for
// all rows.
template <bool PREFETCH>
static void float_block(
    Int rows, Int width, Lines<float> x, const float *groups, const Epilogue &finish, bool add,
    float *out, Int stride
) {
    for (Int start = 0; start < width; start += PART)
        float_part<PREFETCH>(
            rows, start, smaller(width, start + PART), width, x, groups, finish, add, out, stride
        );
}

static inline void block(
    Int rows, Int width, const float *x, const float *groups, const Epilogue &finish, bool,
    float *out, Int stride
) {
    float_block<true>(rows, width, {x, width, 1}, groups, finish, false, out, stride);
}

#ifdef BF16_VECTORS

static inline void store(Bf16 *x, Vector v) {
    _mm256_storeu_si256((__m256i_u *)x, (__m256i)_mm512_cvtneps_pbh((__m512)v.registers[0]));
}

// Compute out (ROWS, BLOCK) = x times two groups of W, for `lines` lines. The second group begins
// `group_step` numbers after the first one. With `odd`, a last line of x has one number. With `add`,
// out is float32, and the products are added to it.
template <int ROWS, class Out>
static NOT_INLINED void bf16_sums(
    Int lines, bool odd, Lines<Bf16> x, const Bf16 *groups, Int group_step,
    const Epilogue &finish, bool add, Out *out, Int stride
) {
    // The results are stored there after the loop over the inputs.
    for (int r = 0; r < ROWS; r++)
        for (int group = 0; group < 2; group++)
            __builtin_prefetch(out + r * stride + group * GROUP, 1);
    __m512 sums[ROWS][2];
    UNROLLED for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    const Bf16 *from = x.at;
    for (Int line = 0; line < lines; line++, from += x.step, groups += BLOCK) {
        const __m512bh w = (__m512bh)_mm512_loadu_si512(groups);
        const __m512bh v = (__m512bh)_mm512_loadu_si512(groups + group_step);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            int32_t bits;
            memcpy(&bits, from + r * x.row_step, sizeof bits);
            const __m512bh inputs = (__m512bh)_mm512_set1_epi32(bits);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], inputs, w);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], inputs, v);
        }
    }
    UNROLLED for (int r = 0; odd && r < ROWS; r++) {
        const __m512bh input = (__m512bh)_mm512_set1_epi32(from[r * x.row_step]);
        UNROLLED for (int group = 0; group < 2; group++) {
            const __m512bh w = (__m512bh)_mm512_loadu_si512(groups + group * group_step);
            sums[r][group] = _mm512_dpbf16_ps(sums[r][group], input, w);
        }
    }
    UNROLLED for (int group = 0; group < 2; group++) {
        const GroupEpilogue epilogue = finish.of_group(group);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            Out *to = out + r * stride + group * GROUP;
            Vector numbers = {{(Register)sums[r][group]}};
            if (add) numbers += load(to);
            store(to, epilogue(numbers, r));
        }
    }
}

// Compute bf16_sums for any number of rows.
template <class Out, int ROWS = MOST_ROWS>
static void bf16_block(
    Int rows, Int lines, bool odd, Lines<Bf16> x, const Bf16 *groups, Int group_step,
    const Epilogue &finish, bool add, Out *out, Int stride
) {
    const Int whole = rows / ROWS * ROWS;
    for (Int r = 0; r < whole; r += ROWS)
        bf16_sums<ROWS>(
            lines, odd, {x.at + r * x.tile_step, x.row_step, x.step}, groups, group_step, finish,
            add, out + r * stride, stride
        );
    if constexpr (ROWS > 1)
        if (whole < rows)
            bf16_block<Out, ROWS / 2>(
                rows - whole, lines, odd, {x.at + whole * x.tile_step, x.row_step, x.step},
                groups, group_step, finish, add, out + whole * stride, stride
            );
}

#endif

#ifdef INT8_VECTORS

// Compute a part of out (ROWS, BLOCK) = x (ROWS, width) times two groups of W. The part has the
// columns of GROUPS groups, from `group` on. `row` is the number of the first row in `finish`.
template <int ROWS, int GROUPS>
static NOT_INLINED void int8_sums(
    Int row, Int group, Int width, const Int8Input *x, const int8_t *groups,
    const Epilogue &finish, float *out, Int stride
) {
    groups += group * GROUP * width;
    IntRegister sums[ROWS][GROUPS * REGISTERS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int i = 0; i < GROUPS * REGISTERS; i++) sums[r][i] = IntRegister{};
    for (Int k = 0; k < width; k += 4 * LINES) {
        IntRegister w[GROUPS * REGISTERS][LINES];
        UNROLLED for (int i = 0; i < GROUPS * REGISTERS; i++)
            UNROLLED for (int line = 0; line < LINES; line++) {
                const int8_t *weights = groups + (i / REGISTERS * width + k + 4 * line) * GROUP;
                w[i][line] = *(const IntRegister *)(weights + i % REGISTERS * 4 * WIDTH);
            }
        UNROLLED for (int r = 0; r < ROWS; r++) {
            int32_t inputs[LINES];
            memcpy(inputs, x + r * width + k, sizeof inputs);
            UNROLLED for (int i = 0; i < GROUPS * REGISTERS; i++)
                sums[r][i] = add_products(sums[r][i], inputs, w[i]);
        }
    }
    UNROLLED for (int g = 0; g < GROUPS; g++) {
        const GroupEpilogue epilogue = finish.of_group(group + g);
        UNROLLED for (int r = 0; r < ROWS; r++)
            store(
                out + r * stride + (group + g) * GROUP, epilogue(sums[r] + g * REGISTERS, row + r)
            );
    }
}

#endif

#ifdef BF16_TILES

// Linux gives a process the permission to use tiles on request.
static bool tiles_allowed() {
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return allowed;
}

struct TileConfig {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

static TileConfig make_tile_config() {
    TileConfig config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = 64, config.rows[tile] = 16;
    return config;
}

// The instructions for tiles do not tell the compiler which memory they read.
static void configure_tiles() {
    static const TileConfig config = make_tile_config();
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
}

// out (BLOCK_ROWS, BLOCK) for x (BLOCK_ROWS, width) and two groups of W
static inline void tiles(
    Int width, const Bf16 *x, const Bf16 *first, const Bf16 *second, const Epilogue &finish,
    float *out, Int stride
) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (Int k = 0; k < width; k += STEP) {
        _tile_loadd(4, x + k, width * sizeof(Bf16));
        _tile_loadd(5, x + 16 * width + k, width * sizeof(Bf16));
        _tile_loadd(6, first + k * GROUP, BLOCK * sizeof(Bf16));
        _tile_loadd(7, second + k * GROUP, BLOCK * sizeof(Bf16));
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, stride * sizeof(float));
    _tile_stored(1, out + GROUP, stride * sizeof(float));
    _tile_stored(2, out + 16 * stride, stride * sizeof(float));
    _tile_stored(3, out + 16 * stride + GROUP, stride * sizeof(float));
    for (int group = 0; group < 2; group++) {
        const GroupEpilogue epilogue = finish.of_group(group);
        for (int r = 0; r < BLOCK_ROWS; r++) {
            float *to = out + r * stride + group * GROUP;
            store(to, epilogue(load(to), r));
        }
    }
}

#endif

#ifdef INT8_VECTORS

// Compute int8_sums of both groups for the rows from `row` on.
template <int ROWS>
static void int8_block(
    Int row, Int rows, Int width, const Int8Input *x, const int8_t *groups,
    const Epilogue &finish, float *out, Int stride
) {
    constexpr int GROUPS = REGISTERS == 1 ? 2 : 1;
    const Int end = row + (rows - row) / ROWS * ROWS;
    for (int group = 0; group < 2; group += GROUPS)
        for (Int r = row; r < end; r += ROWS)
            int8_sums<ROWS, GROUPS>(
                r, group, width, x + r * width, groups, finish, out + r * stride, stride
            );
    if constexpr (ROWS > 1)
        int8_block<ROWS / 2>(end, rows, width, x, groups, finish, out, stride);
}

static inline void block(
    Int rows, Int width, const Int8Input *x, const int8_t *groups, const Epilogue &finish, bool,
    float *out, Int stride
) {
    int8_block<INT8_ROWS>(0, rows, width, x, groups, finish, out, stride);
}

#endif

#ifdef BF16_VECTORS

// With tiles, x and out have memory for BLOCK_ROWS rows, even if `rows` is smaller.
static inline void block(
    Int rows, Int width, const Bf16 *x, const Bf16 *groups, const Epilogue &finish, bool use_tiles,
    float *out, Int stride
) {
#ifdef BF16_TILES
    if (use_tiles) {
        tiles(width, x, groups, groups + GROUP * width, finish, out, stride);
        return;
    }
#endif
    bf16_block(
        rows, width / 2, false, {x, width, 2}, groups, GROUP * width, finish, false, out, stride
    );
}

#endif

// Rows x (rows, width), rounded to the type of a map's matrix, with its stored width. Numbers of
// int8 are stored as Int8Input.
template <class T>
struct Rows;

template <>
struct Rows<float> {
    const float *at, *scale;
    Rows(Int, Int, Int, const float *x) : at(x), scale(0) {}
};

#ifdef BF16_VECTORS

static inline void round_row(Int width, const float *x, Bf16 *to) {
    Int k = 0;
    for (; k + LANES <= width; k += LANES)
        store(to + k, load(x + k));
    for (; k < width; k++) put(to, k, x[k]);
}

// There is memory for a multiple of BLOCK_ROWS rows.
template <>
struct Rows<Bf16> {
    Bf16 *at;
    const float *scale;
    Rows(Int threads, Int rows, Int width, const float *x) : scale(0) {
        const Int stored = stored_width<Bf16>(width);
        at = (Bf16 *)allocate(up(rows, BLOCK_ROWS) * stored * sizeof(Bf16));
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
        for (Int r = 0; r < up(rows, BLOCK_ROWS); r++) {
            const Int used = r < rows ? width : 0;
            round_row(used, x + r * width, at + r * stored);
            memset(at + r * stored + used, 0, (stored - used) * sizeof(Bf16));
        }
    }
    ~Rows() { free(at); }
};

#endif

#ifdef INT8_VECTORS

template <>
struct Rows<int8_t> {
    Int8Input *at;
    Scratch scales;
    const float *scale;
    Rows(Int threads, Int rows, Int width, const float *x) : scales(rows), scale(scales.at) {
        const Int stored = stored_width<int8_t>(width);
        at = (Int8Input *)allocate(rows * stored * sizeof *at);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
        {
            Scratch scratch(stored / 4);
            int8_t *rounded = (int8_t *)scratch.at;
            memset(rounded, 0, stored);
#pragma omp for schedule(static)
            for (Int r = 0; r < rows; r++) {
                scales.at[r] = quantize_row(width, x + r * width, rounded);
                to_inputs(stored, rounded, at + r * stored);
            }
        }
    }
    ~Rows() { free(at); }
};

#endif

static const float ZEROS[BLOCK] = {};

// A blocked matrix W (size, width), with the stored width. The bias (size) may be null. int8 has
// scales of the outputs and corrections: INPUT_OFFSET times the sums of the rows of W. Both have a
// multiple of BLOCK numbers.
template <class T>
struct Map {
    Int size, width;
    const T *blocks;
    const float *scale;
    const int32_t *correction;
    const float *bias;
    bool relu, use_tiles;

    // Most rows of `compute`. float_block keeps a part of W in the cache for all of them.
    enum { ROWS = sizeof(T) == sizeof(float) ? CHUNK : BLOCK_ROWS };

    // Number of rows whose products are computed together in registers
    Int unit() const {
        if (use_tiles) return BLOCK_ROWS;
        if (sizeof(T) == 1) return INT8_ROWS;
        return MOST_ROWS;
    }

    // out (rows, BLOCK) from output n on, for the rows of x from `first` on. The rows of `out` have
    // `stride` numbers. There are at most ROWS rows.
    void compute(
        Int first, Int rows, const Rows<T> &x, Int n, float *out, Int stride
    ) const {
        const T *groups = blocks + n * width;
        const auto *from = x.at + first * width;
        const Int columns = smaller(size - n, BLOCK);
        const Vector lowest = fill(relu ? 0 : -INFINITY);
        Epilogue finish = {bias ? bias + n : ZEROS, lowest, 0, 0, 0};
        if (scale)
            finish = {finish.bias, lowest, x.scale + first, scale + n, correction + n};
        float edge[ROWS * BLOCK], edge_bias[BLOCK];
        if (bias && columns < BLOCK) {
            memcpy(edge_bias, ZEROS, sizeof edge_bias);
            memcpy(edge_bias, bias + n, columns * sizeof(float));
            finish.bias = edge_bias;
        }
        if (columns == BLOCK && (rows == BLOCK_ROWS || !use_tiles)) {
            block(rows, width, from, groups, finish, use_tiles, out, stride);
            return;
        }
        block(rows, width, from, groups, finish, use_tiles, edge, BLOCK);
        for (Int r = 0; r < rows; r++)
            memcpy(out + r * stride, edge + r * BLOCK, columns * sizeof(float));
    }

    // out (rows, size) for x (rows, width), by all threads of a team
    void operator()(Int rows, const Rows<T> &x, float *out) const {
        begin();
        // A chunk of the rows stays in the cache while all outputs are computed.
        const Chunks chunks(rows, unit());
#pragma omp for collapse(2) schedule(static)
        for (Int chunk = 0; chunk < chunks.count; chunk++)
            for (Int n = 0; n < size; n += BLOCK) {
                const Int end = chunks.start(chunk + 1);
                for (Int r = chunks.start(chunk); r < end; r += ROWS)
                    compute(r, smaller(end - r, ROWS), x, n, out + r * size + n, size);
            }
        end();
    }

    // Each thread calls these functions before and after `compute`.
    void begin() const {
#ifdef BF16_TILES
        if (use_tiles) configure_tiles();
#endif
    }

    void end() const {
#ifdef BF16_TILES
        if (use_tiles) _tile_release();
#endif
    }
};

#ifdef BF16_TILES
static inline bool with_tiles(Int use_tiles) { return use_tiles && tiles_allowed(); }
#else
static inline bool with_tiles(Int) { return false; }
#endif

// The number types for which this processor has products: their names and C++ types
#ifdef BF16_VECTORS
#define IF_BF16(function) function(bf16, Bf16)
#else
#define IF_BF16(function)
#endif
#ifdef INT8_VECTORS
#define IF_INT8(function) function(int8, int8_t)
#else
#define IF_INT8(function)
#endif
#define FOR_TYPES(function) function(float32, float) IF_BF16(function) IF_INT8(function)
