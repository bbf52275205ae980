// The computations between the matrix products of a Transformer in inference, float32: attention to
// a short source and to the earlier tokens of hypotheses, residual sum and layer normalisation,
// activation, the best tokens with the logarithm of the sum of the softmax, and the rounding to 8
// bits. Products come without their bias: the next kernel adds it.

#include "packed_products.h"

// The first n < 16 numbers; the others are `rest`.
static inline Vector load_part(const float *p, Int n, float rest) {
    Vector v = fill(rest);
    memcpy(&v, p, n * sizeof(float));
    return v;
}

// Replace the numbers x, which -inf pads to full vectors, by e^(x - max x). Return their sum.
static inline float softmax(float *x, Int vectors) {
    Vector top = load(x);
    for (Int i = 1; i < vectors; i++) top = larger(top, load(x + i * LANES));
    const float highest = max(top);
    Vector total = {};
    for (Int i = 0; i < vectors; i++) {
        Vector e = exp_(load(x + i * LANES) - highest);
        store(x + i * LANES, e);
        total += e;
    }
    return sum(total);
}

static inline Int vectors_of(Int n) { return (n + LANES - 1) / LANES; }

// out (n) = scale * the sum of weights[s] * row(s) for s < count. The function `row` returns the
// address of row s. The sums of two vectors stay in registers.
template <class Row>
static inline void mix(float *out, Int n, const float *weights, Int count, float scale, Row row) {
    Int j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        Vector a = {}, b = {};
        for (Int s = 0; s < count; s++) {
            const float *v = row(s) + j;
            a += weights[s] * load(v);
            b += weights[s] * load(v + LANES);
        }
        store(out + j, a * scale);
        store(out + j + LANES, b * scale);
    }
    for (; j < n; j++) {
        float a = 0;
        for (Int s = 0; s < count; s++) a += weights[s] * row(s)[j];
        out[j] = a * scale;
    }
}

// scores[t] = the scalar product of q (size) and the features of keys[t] from `first` on, for
// t < count. The other numbers of the last vector are -inf.
static inline void dots(
    float *scores, const float *q, const float *const *keys, Int first, Int size, Int count
) {
    for (Int start = 0; start < count; start += LANES) {
        const Int part = count - start < LANES ? count - start : LANES;
        Vector products[LANES];
        for (Int t = 0; t < part; t++) {
            const float *k = keys[start + t] + first;
            Vector v = {};
            Int j = 0;
            for (; j + LANES <= size; j += LANES) v += load(q + j) * load(k + j);
            if (j < size) v += load_part(q + j, size - j, 0) * load_part(k + j, size - j, 0);
            products[t] = v;
        }
        for (Int t = part; t < LANES; t++) products[t] = fill(0);
        store(scores + start, sums(products));
        for (Int t = part; t < LANES; t++) scores[start + t] = -INFINITY;
    }
}

extern "C" {

// Attention of R rows to their earlier tokens. steps[t] is the address of step t's projections
// (rows of queries, keys and values, 3 D numbers); the last step is the current one. Row r's token
// of step t is row ancestors[r, t]. The bias (3 D) is that of the projections. The bias of the keys
// adds the same number to all scores, so it has no effect.
void attend_history(
    Int threads, Int rows, Int heads, Int width, Int length, const float *const *steps,
    const Int *ancestors, const float *bias, float *out
) {
    const Int size = width / heads, vectors = vectors_of(length);
    const float scale = 1 / sqrtf((float)size);
    const float *last = steps[length - 1];
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(width + vectors * LANES), keys(2 * length);
        float *q = scratch.at, *scores = q + width;
        const float **k = (const float **)keys.at;
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            for (Int j = 0; j < width; j++)
                q[j] = (last[r * 3 * width + j] + (bias ? bias[j] : 0)) * scale;
            for (Int t = 0; t < length; t++)
                k[t] = steps[t] + (3 * ancestors[r * length + t] + 1) * width;
            for (Int h = 0; h < heads; h++) {
                const Int first = h * size;
                dots(scores, q + first, k, first, size, length);
                const float total = softmax(scores, vectors);
                float *to = out + r * width + first;
                mix(to, size, scores, length, 1 / total,
                    [&](Int t) { return k[t] + width + first; });
            }
            if (bias)
                for (Int j = 0; j < width; j++) out[r * width + j] += bias[2 * width + j];
        }
    }
}

// Keys (B, n, S, D), rows of `stride` numbers, -> (B, n, H, D / H, S rounded up to full vectors).
void transpose_keys(
    Int threads, Int blocks, Int length, Int width, Int stride, const float *keys,
    float *out
) {
    const Int padded_length = padded(length);
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int b = 0; b < blocks; b++) {
        const float *from = keys + b * length * stride;
        float *to = out + b * width * padded_length;
        for (Int j = 0; j < width; j++) {
            for (Int s = 0; s < length; s++) to[j * padded_length + s] = from[s * stride + j];
            for (Int s = length; s < padded_length; s++) to[j * padded_length + s] = 0;
        }
    }
}

// Attention of R rows to the n sources of their sentences. The n results are summed and multiplied
// by n^-1/2. Keys are those of transpose_keys. Values (B, n, S, D) have rows of `stride` numbers.
// Row r reads the first lengths[sentences[r]] positions. Queries have rows of query_stride numbers.
// weights (R, n, H, S) may be null.
void attend_source(
    Int threads, Int rows, Int heads, Int width, Int sources, Int length, const Int *sentences,
    const Int *lengths, const float *queries, Int query_stride, const float *bias,
    const float *keys, const float *values, Int stride, const float *value_bias, float *out,
    float *weights
) {
    const Int size = width / heads, padded_length = padded(length);
    const float scale = 1 / sqrtf((float)size), source_scale = 1 / sqrtf((float)sources);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(2 * width + padded_length);
        float *q = scratch.at, *context = q + width, *scores = context + width;
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            const Int b = sentences[r], end = lengths[b], vectors = vectors_of(end);
            const float *query = queries + r * query_stride;
            float *to = out + r * width;
            for (Int j = 0; j < width; j++) q[j] = (query[j] + (bias ? bias[j] : 0)) * scale;
            for (Int n = 0; n < sources; n++) {
                const float *k = keys + (b * sources + n) * width * padded_length;
                const float *v = values + (b * sources + n) * length * stride;
                for (Int h = 0; h < heads; h++) {
                    const float *kh = k + h * size * padded_length, *qh = q + h * size;
                    for (Int i = 0; i < vectors; i++) {
                        Vector a = {}, c = {}, d = {}, e = {};
                        Int j = 0;
                        for (; j + 4 <= size; j += 4) {
                            const float *at = kh + j * padded_length + i * LANES;
                            a += qh[j] * load(at);
                            c += qh[j + 1] * load(at + padded_length);
                            d += qh[j + 2] * load(at + 2 * padded_length);
                            e += qh[j + 3] * load(at + 3 * padded_length);
                        }
                        for (; j < size; j++) a += qh[j] * load(kh + j * padded_length + i * LANES);
                        store(scores + i * LANES, (a + c) + (d + e));
                    }
                    for (Int s = end; s < vectors * LANES; s++) scores[s] = -INFINITY;
                    const float total = softmax(scores, vectors);
                    const Int first = h * size;
                    mix(n ? context : to + first, size, scores, end, 1 / total,
                        [&](Int s) { return v + s * stride + first; });
                    if (n)
                        for (Int j = 0; j < size; j++) to[first + j] += context[j];
                    if (weights) {
                        float *w = weights + ((r * sources + n) * heads + h) * length;
                        for (Int s = 0; s < length; s++) w[s] = s < end ? scores[s] / total : 0;
                    }
                }
            }
            if (sources > 1)
                for (Int j = 0; j < width; j++) to[j] *= source_scale;
            if (value_bias)
                for (Int j = 0; j < width; j++) to[j] += value_bias[j];
        }
    }
}

// total = x + y + bias, and normed = LayerNorm(total). All pointers except x may be null.
void add_norm(
    Int threads, Int rows, Int width, const float *x, const float *y, const float *bias,
    const float *gain, const float *shift, float eps, float *total, float *normed
) {
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(width);
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            const Int start = r * width;
            float *z = total ? total + start : scratch.at;
            Int j = 0;
            Vector sums = {};
            for (; j + LANES <= width; j += LANES) {
                Vector v = load(x + start + j);
                if (y) v += load(y + start + j);
                if (bias) v += load(bias + j);
                store(z + j, v);
                sums += v;
            }
            float rest = 0;
            for (; j < width; j++) {
                z[j] = x[start + j] + (y ? y[start + j] : 0) + (bias ? bias[j] : 0);
                rest += z[j];
            }
            if (!normed) continue;
            const float mean = (sum(sums) + rest) / width;
            Vector squares = {};
            rest = 0;
            for (j = 0; j + LANES <= width; j += LANES) {
                Vector v = load(z + j) - mean;
                squares += v * v;
            }
            for (; j < width; j++) rest += (z[j] - mean) * (z[j] - mean);
            const float rate = 1 / sqrtf((sum(squares) + rest) / width + eps);
            for (j = 0; j + LANES <= width; j += LANES) {
                Vector v = (load(z + j) - mean) * rate;
                if (gain) v *= load(gain + j);
                if (shift) v += load(shift + j);
                store(normed + start + j, v);
            }
            for (; j < width; j++)
                normed[start + j] =
                    (z[j] - mean) * rate * (gain ? gain[j] : 1) + (shift ? shift[j] : 0);
        }
    }
}

// x = max(x + bias, 0), or x + bias without `relu`
void add_bias(Int threads, Int rows, Int width, float *x, const float *bias, Int relu) {
    const Vector lowest = fill(relu ? 0 : -INFINITY);
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++) {
        float *at = x + r * width;
        Int j = 0;
        for (; j + LANES <= width; j += LANES)
            store(at + j, larger(load(at + j) + load(bias + j), lowest));
        for (; j < width; j++) {
            const float v = at[j] + bias[j];
            at[j] = relu && v < 0 ? 0 : v;
        }
    }
}

// Multiply integers `sums` (R, D) by the scales of rows and columns, and add the bias, which may be
// null. The results are floats in the memory of the integers. With `relu`, negative ones become 0.
void rescale(
    Int threads, Int rows, Int width, int32_t *sums, const float *row_scale,
    const float *column_scale, const float *bias, Int relu
) {
    const Vector lowest = fill(relu ? 0 : -INFINITY);
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++) {
        int32_t *from = sums + r * width;
        float *to = (float *)from;
        const float scale = row_scale[r];
        Int j = 0;
        for (; j + LANES <= width; j += LANES) {
            Vector v = to_float(from + j) * scale * load(column_scale + j);
            if (bias) v += load(bias + j);
            store(to + j, larger(v, lowest));
        }
        for (; j < width; j++) {
            float v = (float)from[j] * scale * column_scale[j] + (bias ? bias[j] : 0);
            v = relu && v < 0 ? 0 : v;
            memcpy(to + j, &v, sizeof v);
        }
    }
}

}  // extern "C"

// The tokens that a search may choose. For each row, `only` has the only allowed token or -1; it may
// be null.
struct TokenRules {
    Int num_forbidden;
    const Int *forbidden, *only;
};

// The results of best_tokens
struct Best {
    Int n;
    float *best;
    Int *token;
    float *log_z;
};

// Fill row r of the results from its logits x (size) + bias.
static void best_of_row(
    Int r, Int size, float *x, const float *bias, const TokenRules &rules, const Best &results
) {
    const Int full = size / LANES * LANES, n = results.n;
    const Int single = rules.only ? rules.only[r] : -1;
    float *top = results.best + r * n;
    Int *id = results.token + r * n;
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

    // The maxima of the lanes are different tokens. So the n-th best token has at least the
    // n-th highest maximum.
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
    const Best results = {n, best, token, log_z};
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++) {
        float *x = logits + r * size;
        if (row_scale)
            rescale(1, 1, size, (int32_t *)x, row_scale + r, column_scale, NULL, 0);
        best_of_row(r, size, x, bias, rules, results);
    }
}

}  // extern "C"

// The best tokens of the logits (rows, size) that a map computes of x (rows, width). The logits of a
// few rows at a time stay in the cache.
template <class T>
static void best_of_map(
    Int threads, Int rows, const Rows<T> &x, const Map<T> &map, const TokenRules &rules,
    const Best &results
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

// best_tokens_of_float32 and so on: best_tokens of the logits that float32_product and so on compute
#define BEST_TOKENS(name, T)                                                                   \
    void best_tokens_of_##name(                                                                \
        Int threads, Int rows, Int size, Int width, const float *x, const T *packed,           \
        const float *scale, const int32_t *correction, const float *bias, Int num_forbidden,   \
        const Int *forbidden, const Int *only, Int n, float *best, Int *token, float *log_z    \
    ) {                                                                                        \
        const Rows<T> own(threads, rows, width, x);                                            \
        const bool tiles = sizeof(T) == 2 && with_tiles(1);                                    \
        const Int stored = stored_width<T>(width);                                             \
        const Map<T> map = {size, stored, packed, scale, correction, bias, false, tiles};      \
        const TokenRules rules = {num_forbidden, forbidden, only};                             \
        best_of_map(threads, rows, own, map, rules, {n, best, token, log_z});                  \
    }
FOR_TYPES(BEST_TOKENS)
#undef BEST_TOKENS

// quantize_row for each row of x (rows, width)
void quantize(
    Int threads, Int rows, Int width, const float *x, int8_t *rounded, float *scale
) {
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int r = 0; r < rows; r++)
        scale[r] = quantize_row(width, x + r * width, rounded + r * width);
}

}  // extern "C"
