// Products of float32 rows with a matrix of bf16. The rows are rounded to bf16, and the sums are
// float32. Tiles (AMX) or vectors (AVX-512) compute them. The order of a sum does not depend on the
// number of rows or threads.

#pragma once

#include "common.h"

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

// A matrix W (N, K) is stored in groups of GROUP outputs. A group has K / 2 lines, and a line has 2
// inputs of each output. N is a multiple of two groups and K of STEP, padded with zeros.
enum { GROUP = 16, STEP = 32, BLOCK_ROWS = 32, BLOCK = 2 * GROUP };

static inline Int up(Int n, Int multiple) { return (n + multiple - 1) / multiple * multiple; }

#ifdef BF16_VECTORS

// out (ROWS, BLOCK) for x (ROWS, width) and two groups of W
template <int ROWS>
static inline void vector_rows(
    Int width, const Bf16 *x, const Bf16 *first, const Bf16 *second, float *out, Int stride
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
    for (int r = 0; r < ROWS; r++) {
        _mm512_storeu_ps(out + r * stride, sums[r][0]);
        _mm512_storeu_ps(out + r * stride + GROUP, sums[r][1]);
    }
}

static inline void vectors(
    Int rows, Int width, const Bf16 *x, const Bf16 *first, const Bf16 *second, float *out,
    Int stride
) {
    Int r = 0;
    for (; r + 8 <= rows; r += 8)
        vector_rows<8>(width, x + r * width, first, second, out + r * stride, stride);
    for (; r < rows; r++)
        vector_rows<1>(width, x + r * width, first, second, out + r * stride, stride);
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
    Int width, const Bf16 *x, const Bf16 *first, const Bf16 *second, float *out, Int stride
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
}

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

// Store the matrix (size, width) for bf16_product. `packed` has up(size, BLOCK) * up(width, STEP)
// numbers, which are 0 before.
void pack_bf16(Int, Int size, Int width, const Bf16 *matrix, Bf16 *packed) {
    const Int padded = up(width, STEP);
    for (Int n = 0; n < size; n++) {
        Bf16 *group = packed + n / GROUP * GROUP * padded;
        for (Int k = 0; k < width; k++)
            group[k / 2 * BLOCK + n % GROUP * 2 + k % 2] = matrix[n * width + k];
    }
}

// out (rows, size) = x (rows, width) W^T for a packed W (size, width). If `use_tiles` is 0, vectors
// compute it also where the processor has tiles.
void bf16_product(
    Int threads, Int rows, Int size, Int width, const float *x, const Bf16 *packed, Int use_tiles,
    float *out
) {
#ifdef BF16_VECTORS
    const Int padded = up(width, STEP);
    Bf16 *rounded = (Bf16 *)malloc(up(rows, BLOCK_ROWS) * padded * sizeof(Bf16));
#ifdef BF16_TILES
    use_tiles = use_tiles && tiles_allowed();
#endif
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
#pragma omp for schedule(static)
        for (Int r = 0; r < up(rows, BLOCK_ROWS); r++) {
            const Int used = r < rows ? width : 0;
            for (Int k = 0; k < used; k++) put(rounded + r * padded, k, x[r * width + k]);
            memset(rounded + r * padded + used, 0, (padded - used) * sizeof(Bf16));
        }
#ifdef BF16_TILES
        if (use_tiles) configure_tiles();
#endif
#pragma omp for schedule(static)
        for (Int n = 0; n < size; n += BLOCK) {
            const Bf16 *first = packed + n * padded, *second = first + GROUP * padded;
            const Int columns = size - n < BLOCK ? size - n : BLOCK;
            for (Int r = 0; r < rows; r += BLOCK_ROWS) {
                const Int height = rows - r < BLOCK_ROWS ? rows - r : BLOCK_ROWS;
                const bool fits = height == BLOCK_ROWS && columns == BLOCK;
                float edge[BLOCK_ROWS * BLOCK];
                float *to = fits ? out + r * size + n : edge;
                const Int stride = fits ? size : (Int)BLOCK;
                const Bf16 *from = rounded + r * padded;
#ifdef BF16_TILES
                if (use_tiles)
                    tiles(padded, from, first, second, to, stride);
                else
#endif
                    vectors(height, padded, from, first, second, to, stride);
                for (Int i = 0; i < height && !fits; i++)
                    memcpy(
                        out + (r + i) * size + n, edge + i * BLOCK, columns * sizeof(float)
                    );
            }
        }
#ifdef BF16_TILES
        if (use_tiles) _tile_release();
#endif
    }
    free(rounded);
#endif
}

}  // extern "C"
