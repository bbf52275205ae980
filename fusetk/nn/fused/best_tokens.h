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

// Load `columns` logits x, at most BLOCK, plus the bias, which may be null. The others are -inf.
static inline void load_block(Int columns, const float *x, const float *bias, Vector *parts) {
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
}

// Store a block of logits, those of the tokens from `first` on. Those of forbidden tokens become
// -inf.
static inline void store_allowed(
    Int first, const Vector *parts, const TokenRules &rules, float *x
) {
    store(x, parts[0]);
    store(x + LANES, parts[1]);
    for (Int i = 0; i < rules.num_forbidden; i++) {
        const Int j = rules.forbidden[i] - first;
        if (0 <= j && j < BLOCK) x[j] = -INFINITY;
    }
}

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
        load_block(columns, x, bias, parts);
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
        if (contains_only) {
            store(x, parts[0]);
            store(x + LANES, parts[1]);
            logits[0] = x[only - first];
            tokens[0] = only;
        }
        if (only < 0) {
            store_allowed(first, parts, rules, x);
            insert(first, x);
        }
        limit = only >= 0 ? highest : logits[count - 1];
    }

    // Insert the tokens of a block, whose logits are x, into the best tokens.
    void insert(Int first, const float *x) {
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
template <class Choice>
static NOT_INLINED void add_block(
    Choice *choices, Int rows, Int first, Int columns, const float *x, Int stride,
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

// Call `add` of a choice for each row of the logits (rows, size) that a map computes from x (rows,
// width). begin(choice, r) is called before row r, and finish(choice, r) after it. Each thread has
// the logits of BLOCK tokens for at most CHUNK rows at a time.
template <class Choice, class T, class Begin, class Finish>
static void read_logits(
    Int threads, Int rows, const Rows<T> &x, const Map<T> &map, const TokenRules &rules,
    Begin begin, Finish finish
) {
    const Int unit = map.unit(), units = (rows + unit - 1) / unit;
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch logits(CHUNK * BLOCK);
        Choice choices[CHUNK];
        map.begin();
#pragma omp for schedule(static)
        for (Int thread = 0; thread < threads; thread++) {
            const Int last = smaller(rows, (thread + 1) * units / threads * unit);
            for (Int first = thread * units / threads * unit; first < last; first += CHUNK) {
                const Int end = smaller(last, first + CHUNK);
                for (Int r = first; r < end; r++) begin(choices[r - first], r);
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
                for (Int r = first; r < end; r++) finish(choices[r - first], r);
            }
        }
        map.end();
    }
}

// The best tokens of the logits that a map computes from x
template <class T>
static void best_of_map(
    Int threads, Int rows, const Rows<T> &x, const Map<T> &map, const TokenRules &rules,
    const BestTokens &results
) {
    read_logits<RowChoice>(
        threads, rows, x, map, rules,
        [&](RowChoice &choice, Int r) { choice.begin(r, rules, results); },
        [&](RowChoice &choice, Int r) { results.log_z[r] = choice.log_z(); }
    );
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

#ifdef INT8_VECTORS

// The allowed tokens of a row that may have the highest exact logit. `add` reads the logits of a
// product of int8. They differ from the exact ones by at most margin / 2.
struct Candidates {
    enum { MOST = 64 };
    float highest, margin;  // the highest int8 logit of an allowed token
    float limit;            // highest - margin; the int8 logit of a candidate is not lower
    Int only, count;
    bool unknown;  // whether the margin is not finite, or there were more than MOST candidates
    Int tokens[MOST];
    float logits[MOST];

    void begin(Int only_token, float margin_of_row) {
        only = only_token;
        margin = margin_of_row;
        unknown = !(margin < INFINITY);
        count = only >= 0;
        tokens[0] = only;
        highest = -FLT_MAX;
        limit = only >= 0 || unknown ? INFINITY : -FLT_MAX;
    }

    void add(Int first, Int columns, const float *x, const float *bias, const TokenRules &rules) {
        Vector parts[2];
        load_block(columns, x, bias, parts);
        if (contains_true(larger(parts[0], parts[1]) >= fill(limit)))
            add_candidates(first, parts, rules);
    }

    NOT_INLINED void add_candidates(Int first, const Vector *parts, const TokenRules &rules) {
        float x[BLOCK];
        store_allowed(first, parts, rules, x);
        for (Int j = 0; j < BLOCK; j++) {
            if (!(x[j] >= limit)) continue;
            if (x[j] > highest) {
                highest = x[j];
                limit = highest - margin;
            }
            if (count == MOST) remove_low();
            if (count == MOST) {
                unknown = true;
                limit = INFINITY;
                return;
            }
            logits[count] = x[j];
            tokens[count++] = first + j;
        }
    }

    // Remove the candidates whose logit is below the limit.
    void remove_low() {
        Int kept = 0;
        for (Int i = 0; i < count; i++)
            if (logits[i] >= limit) logits[kept] = logits[i], tokens[kept++] = tokens[i];
        count = kept;
    }
};

// W' is W (size, width), rounded to int8.
struct Screen {
    Map<int8_t> map;
    float error, norm, bias;  // the largest |w - w'|, |w| and |bias| of all outputs

    // Return an upper bound of twice the difference between the logits w x + b and w' x' + b, as
    // the products compute them. x' is x, rounded to int8.
    // |w x - w' x'| = |(w - w') x' + w (x - x')| <= |w - w'| |x'| + |w| |x - x'|.
    // `precision` is the relative error of the inputs of the exact product. Its sums, the scaling
    // of the sums of int8 and the bias add at most width * FLT_EPSILON. 2.002 instead of 2 covers
    // the rounding of this function. There is no bound for a row whose squares would underflow.
    float margin(
        Int width, const float *x, const Rows<int8_t> &rows, Int row, float precision
    ) const {
        const Int8Input *rounded = rows.at + row * map.width;
        const float scale = rows.scale[row];
        if (scale < 1e-15f) return INFINITY;
        Vector squares = {}, errors = {};
        for (Int k = 0; k < width; k += LANES) {
            const Int n = smaller(width - k, LANES);
            const Vector v = n == LANES ? load(x + k) : load_part(x + k, n, 0);
            const Vector rest = v - load_inputs(rounded + k) * scale;
            squares += v * v;
            errors += rest * rest;
        }
        const float rounding = sqrtf(sum(errors));            // |x - x'|
        const float length = sqrtf(sum(squares)) + rounding;  // at least |x| and |x'|
        const float relative = precision + width * FLT_EPSILON;
        return 2.002f * (error * length + norm * rounding + relative * (norm * length + bias));
    }
};

// The candidate of a row with the highest exact logit; of equal logits, the lower token
template <class T>
static Int best_candidate(
    const Candidates &choice, Int row, const Rows<T> &x, const Map<T> &map
) {
    if (choice.count == 1) return choice.tokens[0];
    float logits[BLOCK], highest = -INFINITY;
    Int block = -1, best = 0;
    for (Int i = 0; i < choice.count; i++) {
        const Int token = choice.tokens[i], first = token / BLOCK * BLOCK;
        if (first != block) map.compute(row, 1, x, first, logits, BLOCK);
        block = first;
        if (logits[token - first] > highest) highest = logits[token - first], best = token;
    }
    return best;
}

enum { UNKNOWN = -1 };  // instead of a token

// Find the scores and the best tokens of the rows of x that have the token UNKNOWN, by the exact
// product.
template <class T>
static void best_of_unknown(
    Int threads, Int rows, Int width, const float *x, const Map<T> &map, const TokenRules &rules,
    float *score, Int *token
) {
    Int unknown = 0;
    for (Int r = 0; r < rows; r++) unknown += token[r] == UNKNOWN;
    if (!unknown) return;
    Scratch inputs(unknown * width), logits(unknown), log_z(unknown);
    Int *tokens = (Int *)allocate(2 * unknown * sizeof(Int)), *only = tokens + unknown;
    Int i = 0;
    for (Int r = 0; r < rows; r++) {
        if (token[r] != UNKNOWN) continue;
        memcpy(inputs.at + i * width, x + r * width, width * sizeof(float));
        only[i++] = rules.only ? rules.only[r] : -1;
    }
    const Rows<T> own(threads, unknown, width, inputs.at);
    const TokenRules own_rules = {rules.num_forbidden, rules.forbidden, only};
    best_of_map(threads, unknown, own, map, own_rules, {1, logits.at, tokens, log_z.at});
    i = 0;
    for (Int r = 0; r < rows; r++) {
        if (token[r] != UNKNOWN) continue;
        score[r] = log_z.at[i] != log_z.at[i] ? NAN : logits.at[i] > -INFINITY ? 0 : -INFINITY;
        token[r] = tokens[i++];
    }
    free(tokens);
}

// The best token of each row of the logits that a map computes from x, as best_of_map finds it. The
// map uses no tiles. Tiles add in another order, so with them best_of_map may choose another one of
// two tokens whose logits are equal up to rounding. The score is 0, NaN for a row with NaN, or -inf
// for a row without an allowed token.
template <class T>
static void screened_best(
    Int threads, Int rows, Int width, const float *x, const Map<T> &map, const Screen &screen,
    const TokenRules &rules, float *score, Int *token
) {
    const Rows<T> own(threads, rows, width, x);
    const Rows<int8_t> rounded(threads, rows, width, x);
    const float precision = sizeof(T) == sizeof(float) ? 0 : 1.0f / 256;
    read_logits<Candidates>(
        threads, rows, rounded, screen.map, rules,
        [&](Candidates &choice, Int r) {
            choice.begin(
                rules.only ? rules.only[r] : -1,
                screen.margin(width, x + r * width, rounded, r, precision)
            );
        },
        [&](Candidates &choice, Int r) {
            if (choice.only < 0) choice.remove_low();
            token[r] = choice.unknown ? UNKNOWN : best_candidate(choice, r, own, map);
            score[r] = choice.count ? 0 : -INFINITY;
        }
    );
    best_of_unknown(threads, rows, width, x, map, rules, score, token);
}

extern "C" {

// screened_best for a blocked matrix of float32 or bf16, with a screen of int8
#define SCREENED_BEST(name, T)                                                                  \
    void screened_best_of_##name(                                                               \
        Int threads, Int rows, Int size, Int width, const float *x, const T *blocks,            \
        const float *bias, const int8_t *screen_blocks, const float *screen_scale,              \
        const int32_t *correction, float error, float norm, float largest_bias,                 \
        Int num_forbidden, const Int *forbidden, const Int *only, float *score, Int *token      \
    ) {                                                                                         \
        const Map<T> map = {size, stored_width<T>(width), blocks, 0, 0, bias, false, false};    \
        const Screen screen = {                                                                 \
            {size, stored_width<int8_t>(width), screen_blocks, screen_scale, correction, bias,  \
             false, false},                                                                     \
            error, norm, largest_bias                                                           \
        };                                                                                      \
        const TokenRules rules = {num_forbidden, forbidden, only};                              \
        screened_best(threads, rows, width, x, map, screen, rules, score, token);               \
    }
SCREENED_BEST(float32, float)
IF_BF16(SCREENED_BEST)
#undef SCREENED_BEST

}  // extern "C"

#endif
