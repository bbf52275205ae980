// Products x W^T of float32 rows x with a packed matrix W of float32 or bf16. For bf16, the rows are
// rounded to bf16. Sums and results are float32. Vectors compute them, or for bf16 tiles (AMX). The
// order of a sum does not depend on the number of rows or threads.

#pragma once

#include "vectors.h"

#include <math.h>
#include <string.h>

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
// input of float32 or two of bf16. N is padded with zeros to a multiple of BLOCK, and K of bf16 to a
// multiple of STEP.
enum { GROUP = LANES, BLOCK = 2 * GROUP, STEP = 32, PART = 256, BLOCK_ROWS = 32, CHUNK = 64 };

static inline Int smaller(Int a, Int b) { return a < b ? a : b; }
static inline Int up(Int n, Int multiple) { return (n + multiple - 1) / multiple * multiple; }

template <class T>
static inline Int stored_width(Int width) {
    return sizeof(T) == sizeof(float) ? width : up(width, STEP);
}

// Store the matrix (size, width). `packed` is 0 before.
template <class T>
static void pack(Int size, Int width, const T *matrix, T *packed) {
    const Int inputs = sizeof(float) / sizeof(T);  // of a line
    for (Int n = 0; n < size; n++) {
        T *group = packed + n / GROUP * GROUP * stored_width<T>(width);
        for (Int k = 0; k < width; k++)
            group[(k / inputs * GROUP + n % GROUP) * inputs + k % inputs] = matrix[n * width + k];
    }
}

// The additions to the products of a block: a bias of BLOCK numbers, and the lowest result
struct Finish {
    const float *bias;
    Vector lowest;
    Vector operator()(Vector sums, Int group) const {
        return larger(sums + load(bias + group * GROUP), lowest);
    }
};

// out (ROWS, BLOCK) for x (ROWS, width) and two groups of W. The rounding errors of long sums are
// smaller if they are sums of parts.
template <int ROWS>
static inline void vector_rows(
    Int width, const float *x, const float *first, const float *second, Finish finish, float *out,
    Int stride
) {
    for (Int start = 0; start < width; start += PART) {
        Vector sums[ROWS][2];
        for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = fill(0);
        const Int end = smaller(width, start + PART);
        for (Int k = start; k < end; k++) {
            const Vector w = load(first + k * GROUP), v = load(second + k * GROUP);
            for (int r = 0; r < ROWS; r++) {
                const Vector both = fill(x[r * width + k]);
                sums[r][0] += both * w;
                sums[r][1] += both * v;
            }
        }
        const bool last = end == width;
        for (int r = 0; r < ROWS; r++) {
            float *to = out + r * stride;
            if (start) sums[r][0] += load(to), sums[r][1] += load(to + GROUP);
            store(to, last ? finish(sums[r][0], 0) : sums[r][0]);
            store(to + GROUP, last ? finish(sums[r][1], 1) : sums[r][1]);
        }
    }
}

#ifdef BF16_VECTORS

template <int ROWS>
static inline void vector_rows(
    Int width, const Bf16 *x, const Bf16 *first, const Bf16 *second, Finish finish, float *out,
    Int stride
) {
    __m512 sums[ROWS][2];
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
    for (Int k = 0; k < width; k += 2) {
        const __m512bh w = (__m512bh)_mm512_loadu_si512(first + k * GROUP);
        const __m512bh v = (__m512bh)_mm512_loadu_si512(second + k * GROUP);
        for (int r = 0; r < ROWS; r++) {
            int pair;
            memcpy(&pair, x + r * width + k, sizeof pair);
            const __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            sums[r][0] = _mm512_dpbf16_ps(sums[r][0], both, w);
            sums[r][1] = _mm512_dpbf16_ps(sums[r][1], both, v);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int group = 0; group < 2; group++) {
            const Vector total = {{(Register)sums[r][group]}};
            store(out + r * stride + group * GROUP, finish(total, group));
        }
}

// Round n numbers to bf16.
static inline void round_numbers(Bf16 *to, const float *x, Int n) {
    Int k = 0;
    for (; k + LANES <= n; k += LANES)
        _mm256_storeu_si256(
            (__m256i_u *)(to + k), (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + k))
        );
    for (; k < n; k++) put(to, k, x[k]);
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

static void configure_tiles() {
    TileConfig config;
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = 64, config.rows[tile] = 16;
    _tile_loadconfig(&config);
}

// out (BLOCK_ROWS, BLOCK) for x (BLOCK_ROWS, width) and two groups of W
static inline void tiles(
    Int width, const Bf16 *x, const Bf16 *first, const Bf16 *second, Finish finish, float *out,
    Int stride
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
    for (int r = 0; r < BLOCK_ROWS; r++)
        for (int group = 0; group < 2; group++) {
            float *to = out + r * stride + group * GROUP;
            store(to, finish(load(to), group));
        }
}

#endif

template <int ROWS, class T>
static inline Int blocks_of_rows(
    Int r, Int rows, Int width, const T *x, const T *groups, Finish finish, float *out, Int stride
) {
    const T *second = groups + GROUP * width;
    for (; r + ROWS <= rows; r += ROWS)
        vector_rows<ROWS>(width, x + r * width, groups, second, finish, out + r * stride, stride);
    return r;
}

// out (rows, BLOCK) for x (rows, width) and two groups of W
template <class T>
static inline void block(
    Int rows, Int width, const T *x, const T *groups, Finish finish, float *out, Int stride
) {
    Int r = blocks_of_rows<8>(0, rows, width, x, groups, finish, out, stride);
    r = blocks_of_rows<4>(r, rows, width, x, groups, finish, out, stride);
    r = blocks_of_rows<2>(r, rows, width, x, groups, finish, out, stride);
    blocks_of_rows<1>(r, rows, width, x, groups, finish, out, stride);
}

static inline void block(
    Int rows, Int width, const float *x, const float *groups, Finish finish, bool, float *out,
    Int stride
) {
    block(rows, width, x, groups, finish, out, stride);
}

#ifdef BF16_VECTORS

// With tiles, there is memory for BLOCK_ROWS rows.
static inline void block(
    Int rows, Int width, const Bf16 *x, const Bf16 *groups, Finish finish, bool use_tiles,
    float *out, Int stride
) {
#ifdef BF16_TILES
    if (use_tiles) return tiles(width, x, groups, groups + GROUP * width, finish, out, stride);
#endif
    block(rows, width, x, groups, finish, out, stride);
}

#endif

// A packed matrix W (size, width), with the stored width, and a bias (size), which may be null
template <class T>
struct Map {
    Int size, width;
    const T *packed;
    const float *bias;
    bool relu, use_tiles;

    // out (rows, BLOCK) from output n on, for x (rows, width). The rows of `out` have `stride`
    // numbers. With tiles, x has BLOCK_ROWS rows of memory, and rows <= BLOCK_ROWS.
    void compute(Int rows, const T *x, Int n, float *out, Int stride) const {
        const T *groups = packed + n * width;
        const Int columns = smaller(size - n, BLOCK);
        float edge[BLOCK_ROWS * BLOCK], own_bias[BLOCK] = {};
        Finish finish = {bias + n, fill(relu ? 0 : -INFINITY)};
        if (!bias || columns < BLOCK) {
            if (bias) memcpy(own_bias, bias + n, columns * sizeof(float));
            finish.bias = own_bias;
        }
        if (columns == BLOCK && (rows == BLOCK_ROWS || !use_tiles)) {
            block(rows, width, x, groups, finish, use_tiles, out, stride);
            return;
        }
        block(rows, width, x, groups, finish, use_tiles, edge, BLOCK);
        for (Int r = 0; r < rows; r++)
            memcpy(out + r * stride, edge + r * BLOCK, columns * sizeof(float));
    }

    // out (rows, size) = x (rows, width) W^T + bias, by all threads of a team. With tiles, x has
    // memory for a multiple of BLOCK_ROWS rows.
    void operator()(Int rows, const T *x, float *out) const {
        begin();
        // A chunk of the rows stays in the cache while all outputs are computed.
#pragma omp for collapse(2) schedule(static)
        for (Int chunk = 0; chunk < rows; chunk += CHUNK)
            for (Int n = 0; n < size; n += BLOCK) {
                const Int end = smaller(rows, chunk + CHUNK);
                for (Int r = chunk; r < end; r += BLOCK_ROWS) {
                    const Int height = smaller(end - r, BLOCK_ROWS);
                    compute(height, x + r * width, n, out + r * size + n, size);
                }
            }
        finish();
    }

    void begin() const {
#ifdef BF16_TILES
        if (use_tiles) configure_tiles();
#endif
    }

    void finish() const {
#ifdef BF16_TILES
        if (use_tiles) _tile_release();
#endif
    }
};

#ifdef BF16_VECTORS

// Rows (rows, width), rounded to bf16, with the stored width. There is memory for a multiple of
// BLOCK_ROWS rows.
struct RoundedRows {
    Bf16 *at;
    RoundedRows(Int threads, Int rows, Int width, const float *x) {
        const Int stored = stored_width<Bf16>(width);
        at = (Bf16 *)malloc(up(rows, BLOCK_ROWS) * stored * sizeof(Bf16));
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
        for (Int r = 0; r < up(rows, BLOCK_ROWS); r++) {
            const Int used = r < rows ? width : 0;
            round_numbers(at + r * stored, x + r * width, used);
            memset(at + r * stored + used, 0, (stored - used) * sizeof(Bf16));
        }
    }
    ~RoundedRows() { free(at); }
};

#endif

#ifdef BF16_TILES
static inline bool with_tiles(Int use_tiles) { return use_tiles && tiles_allowed(); }
#else
static inline bool with_tiles(Int) { return false; }
#endif

extern "C" {

// Whether these kernels know the processor's products of bf16.
Int has_bf16_products(Int) {
#ifdef BF16_VECTORS
    return 1;
#else
    return 0;
#endif
}

void pack_float32(Int, Int size, Int width, const float *matrix, float *packed) {
    pack(size, width, matrix, packed);
}

void pack_bf16(Int, Int size, Int width, const Bf16 *matrix, Bf16 *packed) {
    pack(size, width, matrix, packed);
}

// out (rows, size) = x (rows, width) W^T + bias (size) for a packed W (size, width). With `relu`,
// negative results become 0. The bias may be null.
void float32_product(
    Int threads, Int rows, Int size, Int width, const float *x, const float *packed,
    const float *bias, Int relu, float *out
) {
    const Map<float> map = {size, width, packed, bias, relu != 0, false};
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    map(rows, x, out);
}

// The same for a W of bf16. If `use_tiles` is 0, vectors compute it also where the processor has
// tiles.
void bf16_product(
    Int threads, Int rows, Int size, Int width, const float *x, const Bf16 *packed,
    const float *bias, Int relu, Int use_tiles, float *out
) {
#ifdef BF16_VECTORS
    const RoundedRows rounded(threads, rows, width, x);
    const Map<Bf16> map = {
        size, stored_width<Bf16>(width), packed, bias, relu != 0, with_tiles(use_tiles)
    };
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    map(rows, rounded.at, out);
#endif
}

}  // extern "C"
