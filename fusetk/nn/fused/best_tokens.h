// The choice of tokens in a search: the best tokens, and the logarithm of the sum of the softmax

#pragma once

#include "blocked_products.h"

// The tokens that a search may choose. `only` has the only allowed token of each row, or -1. It may
// be null.
struct TokenRules {
    Int num_forbidden;
    const Int *forbidden, *only;
};

// The results of best_tokens: `count` logits and tokens for each row, and log_z
struct BestTokens {
    Int count;
    float *logits;
    Int *tokens;
    float *log_z;
};

// Fill row r of the results from its logits x (size) + bias.
static void best_of_row(
    Int r, Int size, float *x, const float *bias, const TokenRules &rules, const BestTokens &results
) {
    const Int full = size / LANES * LANES, n = results.count;
    const Int single = rules.only ? rules.only[r] : -1;
    float *top = results.logits + r * n;
    Int *id = results.tokens + r * n;
    for (Int i = 0; i < n; i++) top[i] = -INFINITY, id[i] = 0;
    if (single >= 0) {
        top[0] = x[single] + (bias ? bias[single] : 0);
        id[0] = single;
    }
    float highest = -INFINITY, excluded = 0;
    Vector maxima = fill(-INFINITY), total = {};
    {
        Scratch values(rules.num_forbidden);
        for (Int i = 0; i < rules.num_forbidden; i++) {
            values.at[i] = x[rules.forbidden[i]] + (bias ? bias[rules.forbidden[i]] : 0);
            highest = values.at[i] > highest ? values.at[i] : highest;
            x[rules.forbidden[i]] = -INFINITY;
        }
        for (Int j = 0; j < full; j += LANES) {
            Vector v = load(x + j);
            if (bias) v += load(bias + j);
            store(x + j, v);
            maxima = larger(maxima, v);
        }
        if (bias)
            for (Int j = full; j < size; j++) x[j] += bias[j];
        if (full < size)
            maxima = larger(maxima, load_part(x + full, size - full, -INFINITY));
        highest = max(maxima) > highest ? max(maxima) : highest;
        for (Int i = 0; i < rules.num_forbidden; i++) excluded += expf(values.at[i] - highest);
    }
    for (Int j = 0; j < full; j += LANES) total += exp_(load(x + j) - highest);
    if (full < size)
        total += exp_(load_part(x + full, size - full, -INFINITY) - highest);
    results.log_z[r] = highest + logf(sum(total) + excluded);
    if (single >= 0) return;

    // The maxima of the lanes are logits of different tokens. So the n-th best logit is at least
    // the n-th highest maximum.
    float least = -INFINITY;
    if (n <= LANES) {
        float unsorted[LANES], sorted[LANES];
        store(unsorted, maxima);
        for (Int i = 0; i < LANES; i++) {
            Int place = i;
            for (; place > 0 && unsorted[i] > sorted[place - 1]; place--)
                sorted[place] = sorted[place - 1];
            sorted[place] = unsorted[i];
        }
        least = sorted[n - 1];
    }
    const Int block = 8 * LANES;
    for (Int start = 0; start < size; start += block) {
        const Int end = start + block < size ? start + block : size;
        if (end - start == block) {
            Condition any = {};
            for (Int j = start; j < end; j += LANES) any |= load(x + j) >= least;
            if (!contains_true(any)) continue;
        }
        for (Int j = start; j < end; j++) {
            if (!(x[j] >= least && x[j] > top[n - 1])) continue;
            Int place = n - 1;
            for (; place > 0 && x[j] > top[place - 1]; place--) {
                top[place] = top[place - 1];
                id[place] = id[place - 1];
            }
            top[place] = x[j];
            id[place] = j;
        }
    }
}

extern "C" {

// The n best tokens of each row of logits + bias, best first, the lower id first among equal ones,
// and log_z, the logarithm of the sum of exp(logits). The tokens of `forbidden` are never chosen.
// If only[r] >= 0, row r has this token alone. Other places of a row have the score -inf and token
// 0. With NaN in a row, its log_z is NaN. `logits` is overwritten. With row_scale and column_scale,
// the logits are integers, and the scales multiply them.
void best_tokens(
    Int threads, Int rows, Int size, float *logits, const float *row_scale,
    const float *column_scale, const float *bias, Int num_forbidden, const Int *forbidden,
    const Int *only, Int n, float *best, Int *token, float *log_z
) {
    const TokenRules rules = {num_forbidden, forbidden, only};
    const BestTokens results = {n, best, token, log_z};
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++) {
        float *x = logits + r * size;
        if (row_scale)
            rescale(1, 1, size, (int32_t *)x, row_scale + r, column_scale, NULL, 0);
        best_of_row(r, size, x, bias, rules, results);
    }
}

}  // extern "C"

// The best tokens of the logits (rows, size) that a map computes from x (rows, width). Each thread
// has the logits of BLOCK_ROWS rows at a time, which fit into a processor's cache if the vocabulary
// is small.
template <class T>
static void best_of_map(
    Int threads, Int rows, const Rows<T> &x, const Map<T> &map, const TokenRules &rules,
    const BestTokens &results
) {
    const Int stride = up(map.size, BLOCK);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch logits(BLOCK_ROWS * stride);
        map.begin();
#pragma omp for schedule(static)
        for (Int first = 0; first < rows; first += BLOCK_ROWS) {
            const Int height = smaller(rows - first, BLOCK_ROWS);
            for (Int j = 0; j < map.size; j += BLOCK)
                map.compute(first, height, x, j, logits.at + j, stride);
            for (Int i = 0; i < height; i++)
                best_of_row(first + i, map.size, logits.at + i * stride, NULL, rules, results);
        }
        map.end();
    }
}

extern "C" {

// best_tokens_of_float32 and so on: best_tokens of the logits of float32_product and so on
#define BEST_TOKENS(name, T)                                                                   \
    void best_tokens_of_##name(                                                                \
        Int threads, Int rows, Int size, Int width, const float *x, const T *blocks,           \
        const float *scale, const int32_t *correction, const float *bias, Int num_forbidden,   \
        const Int *forbidden, const Int *only, Int n, float *best, Int *token, float *log_z    \
    ) {                                                                                        \
        const Rows<T> own(threads, rows, width, x);                                            \
        const bool tiles = sizeof(T) == 2 && with_tiles(1);                                    \
        const Int stored = stored_width<T>(width);                                             \
        const Map<T> map = {size, stored, blocks, scale, correction, bias, false, tiles};      \
        const TokenRules rules = {num_forbidden, forbidden, only};                             \
        best_of_map(threads, rows, own, map, rules, {n, best, token, log_z});                  \
    }
FOR_TYPES(BEST_TOKENS)
#undef BEST_TOKENS

}  // extern "C"
