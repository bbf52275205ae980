// The choice of tokens in a search: the best tokens, and the logarithm of the softmax's denominator

#pragma once

#include "blocked_products.h"

#include <float.h>

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

// The best tokens and log_z of the blocks of logits that `add` has read, for one row
struct RowChoice {
    Vector total;  // sum of exp(logit - highest)
    float highest;
    float limit;  // only logits above it change `highest` or the best tokens
    Int count, only;
    float *logits;
    Int *tokens;

    void begin(Int row, const TokenRules &rules, const BestTokens &results) {
        total = {};
        highest = -FLT_MAX;
        limit = -INFINITY;
        count = results.count;
        only = rules.only ? rules.only[row] : -1;
        logits = results.logits + row * count;
        tokens = results.tokens + row * count;
        for (Int i = 0; i < count; i++) logits[i] = -INFINITY, tokens[i] = 0;
    }

    // Add `columns` logits x, at most BLOCK, of the tokens from `first` on. The bias may be null.
    void add(Int first, Int columns, const float *x, const float *bias, const TokenRules &rules) {
        Vector parts[2];
        for (Int i = 0; i < 2; i++) {
            const Int start = i * LANES, n = smaller(columns - start, LANES);
            if (n == LANES) {
                parts[i] = load(x + start);
                if (bias) parts[i] += load(bias + start);
            } else {
                parts[i] = load_part(x + start, n > 0 ? n : 0, -INFINITY);
                if (bias) parts[i] += load_part(bias + start, n > 0 ? n : 0, 0);
            }
        }
        const Vector maxima = larger(parts[0], parts[1]);
        const bool contains_only = first <= only && only < first + columns;
        if (contains_only || contains_true(maxima > limit))
            update_best(first, parts, max(maxima), contains_only, rules);
        total += exp_(parts[0] - highest) + exp_(parts[1] - highest);
    }

    // Update `highest` and the best tokens for a block whose highest logit is `block_highest`.
    NOT_INLINED void update_best(
        Int first, const Vector *parts, float block_highest, bool contains_only,
        const TokenRules &rules
    ) {
        if (block_highest > highest) {
            total *= exp_(fill(highest - block_highest));
            highest = block_highest;
        }
        float x[BLOCK];
        store(x, parts[0]);
        store(x + LANES, parts[1]);
        if (contains_only) logits[0] = x[only - first], tokens[0] = only;
        if (only < 0) insert(first, x, rules);
        limit = only >= 0 ? highest : logits[count - 1];
    }

    // Insert the allowed tokens of a block into the best tokens. The logits x of forbidden tokens
    // become -inf.
    void insert(Int first, float *x, const TokenRules &rules) {
        for (Int i = 0; i < rules.num_forbidden; i++) {
            const Int j = rules.forbidden[i] - first;
            if (0 <= j && j < BLOCK) x[j] = -INFINITY;
        }
        for (Int j = 0; j < BLOCK; j++) {
            Int place = count - 1;
            if (!(x[j] > logits[place])) continue;
            for (; place > 0 && x[j] > logits[place - 1]; place--) {
                logits[place] = logits[place - 1];
                tokens[place] = tokens[place - 1];
            }
            logits[place] = x[j];
            tokens[place] = first + j;
        }
    }

    // The highest logit adds 1 to the sum. Without it, all logits are -inf or NaN.
    float log_z() const {
        const float sum_of_row = sum(total);
        return (sum_of_row > 0.5f ? highest : -INFINITY) + logf(sum_of_row);
    }
};

// Call `add` for some rows of x, which has `stride` numbers in a row. The function is not inlined,
// so that all callers get the same rounding.
static NOT_INLINED void add_block(
    RowChoice *choices, Int rows, Int first, Int columns, const float *x, Int stride,
    const float *bias, const TokenRules &rules
) {
    for (Int r = 0; r < rows; r++) choices[r].add(first, columns, x + r * stride, bias, rules);
}

extern "C" {

// The n best tokens of each row of logits + bias, best first, the lower id first among equal ones,
// and log_z, the logarithm of the sum of exp(logits). The tokens of `forbidden` are never chosen.
// If only[r] >= 0, row r has this token alone. Other places of a row have the score -inf and token
// 0. With NaN in a row, its log_z is NaN, and its tokens are arbitrary. With row_scale and
// column_scale, the logits are integers. The scales multiply them, and the products replace them.
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
        RowChoice choice;
        choice.begin(r, rules, results);
        for (Int j = 0; j < size; j += BLOCK)
            add_block(
                &choice, 1, j, smaller(size - j, BLOCK), x + j, size, bias ? bias + j : 0, rules
            );
        log_z[r] = choice.log_z();
    }
}

}  // extern "C"

// The best tokens of the logits (rows, size) that a map computes from x (rows, width). Each thread
// has the logits of BLOCK tokens for at most CHUNK rows at a time.
template <class T>
static void best_of_map(
    Int threads, Int rows, const Rows<T> &x, const Map<T> &map, const TokenRules &rules,
    const BestTokens &results
) {
    const Int blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;  // of rows
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch logits(CHUNK * BLOCK);
        RowChoice choices[CHUNK];
        map.begin();
#pragma omp for schedule(static)
        for (Int thread = 0; thread < threads; thread++) {
            const Int last = smaller(rows, (thread + 1) * blocks / threads * BLOCK_ROWS);
            for (Int first = thread * blocks / threads * BLOCK_ROWS; first < last; first += CHUNK) {
                const Int end = smaller(last, first + CHUNK);
                for (Int r = first; r < end; r++) choices[r - first].begin(r, rules, results);
                for (Int j = 0; j < map.size; j += BLOCK) {
                    for (Int r = first; r < end; r += map.ROWS)
                        map.compute(
                            r, smaller(end - r, map.ROWS), x, j, logits.at + (r - first) * BLOCK,
                            BLOCK
                        );
                    add_block(
                        choices, end - first, j, smaller(map.size - j, BLOCK), logits.at, BLOCK, 0,
                        rules
                    );
                }
                for (Int r = first; r < end; r++) results.log_z[r] = choices[r - first].log_z();
            }
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
