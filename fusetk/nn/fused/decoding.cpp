// Kernels of a Transformer in inference: attention to a short source and to the earlier tokens of
// hypotheses, residual sum and layer normalisation, activation, and a whole decoder layer. add_norm
// and the attention add the bias of the product before them.

#include "best_tokens.h"

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

// Numbers to add to the last full vector of n numbers: -inf after the first n, otherwise 0
static inline Vector end_of(Int n) {
    static const float x = -INFINITY;
    static const float numbers[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                             x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
    return load(numbers + padded(n) - n);
}

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
        const Vector numbers = sums(products);
        store(scores + start, part < LANES ? numbers + end_of(part) : numbers);
    }
}

// scores[s] = the scalar product of q (size) and key s, for full vectors of positions. `end` is
// added to the last vector. `keys` are (size, padded_length), or (size / 2, padded_length, 2) in
// bf16.
static inline void source_scores(
    Int size, Int vectors, Vector end, Int padded_length, const float *q, const float *keys,
    float *scores
) {
    for (Int i = 0; i < vectors; i++) {
        Vector a = {}, c = {}, d = {}, e = {};
        Int j = 0;
        for (; j + 4 <= size; j += 4) {
            const float *at = keys + j * padded_length + i * LANES;
            a += q[j] * load(at);
            c += q[j + 1] * load(at + padded_length);
            d += q[j + 2] * load(at + 2 * padded_length);
            e += q[j + 3] * load(at + 3 * padded_length);
        }
        for (; j < size; j++) a += q[j] * load(keys + j * padded_length + i * LANES);
        const Vector total = (a + c) + (d + e);
        store(scores + i * LANES, i == vectors - 1 ? total + end : total);
    }
}

// out (size) = scale * the sum of weights[s] times the values of position s, for s < count
static inline void mix_source(
    Int size, Int count, Int stride, const float *weights, float scale, const float *values,
    float *out
) {
    mix(out, size, weights, count, scale, [&](Int s) { return values + s * stride; });
}

// x (n) in the type of keys and values. `memory` has space for n numbers.
static inline const float *rounded(Int, const float *x, float *) { return x; }

#ifdef BF16_VECTORS

static inline void source_scores(
    Int size, Int vectors, Vector end, Int padded_length, const Bf16 *q, const Bf16 *keys,
    float *scores
) {
    for (Int i = 0; i < vectors; i++) {
        __m512 total[4] = {};
        for (Int j = 0; j < size / 2; j += 4)
            for (Int k = 0; k < 4; k++)
                total[k] = add_pairs(
                    total[k], q + 2 * (j + k), keys + 2 * ((j + k) * padded_length + i * LANES)
                );
        const Vector sum = {{(Register)((total[0] + total[1]) + (total[2] + total[3]))}};
        store(scores + i * LANES, i == vectors - 1 ? sum + end : sum);
    }
}

// The pairs of positions have `stride` pairs of numbers.
template <int VECTORS>
static inline void mix_pairs(
    Int count, Int stride, const Bf16 *weights, float scale, const Bf16 *values, float *out
) {
    __m512 total[VECTORS] = {};
    for (Int s = 0; s < count; s += 2)
        for (int k = 0; k < VECTORS; k++)
            total[k] = add_pairs(total[k], weights + s, values + s * stride + 2 * k * LANES);
    for (int k = 0; k < VECTORS; k++) _mm512_storeu_ps(out + k * LANES, total[k] * scale);
}

static inline void mix_source(
    Int size, Int count, Int stride, const Bf16 *weights, float scale, const Bf16 *values,
    float *out
) {
    Int j = 0;
    for (; j + 4 * LANES <= size; j += 4 * LANES)
        mix_pairs<4>(count, stride, weights, scale, values + 2 * j, out + j);
    for (; j < size; j += LANES)
        mix_pairs<1>(count, stride, weights, scale, values + 2 * j, out + j);
}

static inline const Bf16 *rounded(Int n, const float *x, Bf16 *memory) {
    round_row(n, x, memory);
    return memory;
}

#endif

template <class T>
static void attend_source(
    Int threads, Int rows, Int heads, Int width, Int sources, Int length, const Int *sentences,
    const Int *lengths, const float *queries, Int query_stride, const float *bias, const T *keys,
    const T *values, Int stride, const float *value_bias, float *out, float *weights
) {
    const bool stored = sizeof(T) == sizeof(Bf16);  // values, in pairs of positions
    const Int size = width / heads, padded_length = padded(length);
    const Int value_stride = stored ? width : stride;
    const Int values_of_source = stored ? width * padded_length : length * stride;
    const float scale = 1 / sqrtf((float)size), source_scale = 1 / sqrtf((float)sources);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(3 * width + 2 * padded_length);
        float *query = scratch.at, *context = query + width, *scores = context + width;
        T *for_query = (T *)(scores + padded_length), *for_weights = for_query + width;
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            const Int b = sentences[r], end = lengths[b], vectors = vectors_of(end);
            const Vector last = end_of(end);
            const float *from = queries + r * query_stride;
            float *to = out + r * width;
            for (Int j = 0; j < width; j++) query[j] = (from[j] + (bias ? bias[j] : 0)) * scale;
            const T *q = rounded(width, query, for_query);
            for (Int n = 0; n < sources; n++) {
                const T *k = keys + (b * sources + n) * width * padded_length;
                const T *v = values + (b * sources + n) * values_of_source;
                for (Int h = 0; h < heads; h++) {
                    const Int first = h * size;
                    const T *k_h = k + first * padded_length;
                    source_scores(size, vectors, last, padded_length, q + first, k_h, scores);
                    const float total = softmax(scores, vectors);
                    const T *w = rounded(vectors * LANES, scores, for_weights);
                    const T *v_h = v + first * (stored ? 2 : 1);
                    mix_source(
                        size, end, value_stride, w, 1 / total, v_h, n ? context : to + first
                    );
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

extern "C" {

// Return the constants that decoding.py has, too.
void product_constants(Int, Int *block, Int *step, Int *block_rows) {
    *block = BLOCK, *step = STEP, *block_rows = BLOCK_ROWS;
}

// pack_float32 and so on: store the matrix (size, width) for the other functions. `packed` contains
// zeros before.
//
// float32_product and so on: out (rows, size) = x (rows, width) W^T + bias (size) for a packed W
// (size, width). With `relu`, negative results become 0. Null pointers: the bias may be null; scale
// and correction are null, except for int8. If `use_tiles` is 0, vectors compute products of bf16
// also where the processor has tiles.
#define PRODUCT(name, T)                                                                       \
    void pack_##name(Int, Int size, Int width, const T *matrix, T *packed) {                   \
        pack(size, width, matrix, packed);                                                     \
    }                                                                                          \
    void name##_product(                                                                       \
        Int threads, Int rows, Int size, Int width, const float *x, const T *packed,           \
        const float *scale, const int32_t *correction, const float *bias, Int relu,            \
        Int use_tiles, float *out                                                              \
    ) {                                                                                        \
        const Rows<T> own(threads, rows, width, x);                                            \
        const bool tiles = sizeof(T) == 2 && with_tiles(use_tiles);                            \
        const Int stored = stored_width<T>(width);                                             \
        const Map<T> map = {size, stored, packed, scale, correction, bias, relu != 0, tiles};  \
        _Pragma("omp parallel num_threads((int)threads) if (threads > 1)") map(rows, own, out); \
    }
FOR_TYPES(PRODUCT)
#undef PRODUCT

// Attention of R rows to their earlier tokens. steps[t] is the address of step t's projections
// (rows of queries, keys and values, 3 D numbers). `current` has those of the R rows in the last
// step. Row r's token of step t is row ancestors[r, t]. The bias (3 D) is that of the projections.
// The bias of the keys adds the same number to all scores, so it has no effect.
void attend_history(
    Int threads, Int rows, Int heads, Int width, Int length, const float *current,
    const float *const *steps, const Int *ancestors, const float *bias, float *out
) {
    const Int size = width / heads, vectors = vectors_of(length);
    const float scale = 1 / sqrtf((float)size);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(width + vectors * LANES), keys(2 * length);
        float *q = scratch.at, *scores = q + width;
        const float **k = (const float **)keys.at;
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            for (Int j = 0; j < width; j++)
                q[j] = (current[r * 3 * width + j] + (bias ? bias[j] : 0)) * scale;
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

// store_source_float32 and store_source_bf16: store keys and values (B, n, S, D), with rows of
// `stride` numbers, for the attention to a source. P is S, rounded up to full vectors. Stored keys
// are (B, n, D, P) in float32 and (B, n, D / 2, P, 2) in bf16. bf16 also has stored values,
// (B, n, P / 2, D, 2). Stored positions after the first lengths[b] ones are 0.
void store_source_float32(
    Int threads, Int sentences, Int sources, Int length, Int width, Int stride,
    const Int *lengths, const float *keys, const float *, float *stored_keys, float *
) {
    const Int padded_length = padded(length);
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int b = 0; b < sentences * sources; b++) {
        const float *from = keys + b * length * stride;
        float *to = stored_keys + b * width * padded_length;
        const Int end = lengths[b / sources];
        for (Int j = 0; j < width; j++) {
            for (Int s = 0; s < end; s++) to[j * padded_length + s] = from[s * stride + j];
            for (Int s = end; s < padded_length; s++) to[j * padded_length + s] = 0;
        }
    }
}

#ifdef BF16_VECTORS
void store_source_bf16(
    Int threads, Int sentences, Int sources, Int length, Int width, Int stride,
    const Int *lengths, const float *keys, const float *values, uint32_t *stored_keys,
    uint32_t *stored_values
) {
    const Int padded_length = padded(length), pairs = width * padded_length / 2;
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch memory(width);
        Bf16 *row = (Bf16 *)memory.at, *next = row + width;
#pragma omp for schedule(static)
        for (Int b = 0; b < sentences * sources; b++) {
            uint32_t *k = stored_keys + b * pairs, *v = stored_values + b * pairs;
            memset(k, 0, pairs * sizeof *k);
            memset(v, 0, pairs * sizeof *v);
            const Int end = lengths[b / sources];
            for (Int s = 0; s < end; s++) {
                round_row(width, keys + (b * length + s) * stride, row);
                for (Int j = 0; j < width / 2; j++)
                    memcpy(k + j * padded_length + s, row + 2 * j, sizeof *k);
            }
            for (Int s = 0; s < end; s += 2) {
                const float *from = values + (b * length + s) * stride;
                round_row(width, from, row);
                if (s + 1 < end)
                    round_row(width, from + stride, next);
                else
                    memset(next, 0, width * sizeof *next);
                for (Int j = 0; j < width; j++)
                    v[s / 2 * width + j] = row[j] | (uint32_t)next[j] << 16;
            }
        }
    }
}
#endif

// attend_source_float32 and attend_source_bf16: attention of R rows to the n sources of their
// sentences. The n results are summed and multiplied by n^-1/2. Keys are those of store_source, and
// values, too, in bf16. In float32, values (B, n, S, D) have rows of `stride` numbers. Row r reads
// the first lengths[sentences[r]] positions. Queries have rows of query_stride numbers. weights
// (R, n, H, S) may be null. bf16 needs heads of a multiple of LANES features. It rounds queries and
// attention weights, too, and adds in float32.
#define ATTEND_SOURCE(name, T)                                                                  \
    void attend_source_##name(                                                                 \
        Int threads, Int rows, Int heads, Int width, Int sources, Int length,                  \
        const Int *sentences, const Int *lengths, const float *queries, Int query_stride,      \
        const float *bias, const T *keys, const T *values, Int stride,                         \
        const float *value_bias, float *out, float *weights                                    \
    ) {                                                                                        \
        attend_source(                                                                         \
            threads, rows, heads, width, sources, length, sentences, lengths, queries,         \
            query_stride, bias, keys, values, stride, value_bias, out, weights                 \
        );                                                                                     \
    }
ATTEND_SOURCE(float32, float)
IF_BF16(ATTEND_SOURCE)
#undef ATTEND_SOURCE

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

// A linear map with a packed matrix, whose numbers have 4, 2 or 1 bytes; see packed_products.h.
struct PackedMap {
    Int bytes, size, width;
    const void *matrix;
    const float *scale;
    const int32_t *correction;
    const float *bias;
};

struct Norm {
    const float *gain, *shift;
    float eps;
};

// A Transformer's decoder layer. `pre` says that the norms precede the sub-layers.
struct DecoderLayer {
    Int width, heads, hidden_size, pre;
    PackedMap project, self_out, query, cross_out, hidden, ffn_out;
    Norm norms[3];
};

// The sources that attend_source_float32 and attend_source_bf16 read. Keys and values have 4 or 2
// bytes.
struct Source {
    Int bytes, count, length;
    const Int *lengths;
    const void *keys, *values;
    Int stride;
    const float *value_bias;
};

static void apply(
    Int threads, Int rows, const PackedMap &map, const float *bias, Int relu, const float *x,
    float *out
) {
    switch (map.bytes) {
#define APPLY(name, T)                                                                         \
    case sizeof(T):                                                                            \
        name##_product(                                                                        \
            threads, rows, map.size, map.width, x, (const T *)map.matrix, map.scale,           \
            map.correction, bias, relu, 1, out                                                 \
        );                                                                                     \
        break;
        FOR_TYPES(APPLY)
#undef APPLY
        default: abort();
    }
}

static void attend(
    Int threads, Int rows, const DecoderLayer &layer, const Source &source, const Int *sentences,
    const float *queries, float *out
) {
    switch (source.bytes) {
#define ATTEND(name, T)                                                                        \
    case sizeof(T):                                                                            \
        attend_source_##name(                                                                  \
            threads, rows, layer.heads, layer.width, source.count, source.length, sentences,   \
            source.lengths, queries, layer.width, layer.query.bias, (const T *)source.keys,    \
            (const T *)source.values, source.stride, source.value_bias, out, 0                 \
        );                                                                                     \
        break;
        ATTEND(float32, float)
        IF_BF16(ATTEND)
#undef ATTEND
        default: abort();
    }
}

// The layer for some rows of `decoder_layer`; `current` are their projections of this step.
static void layer_of_rows(
    Int threads, Int rows, const DecoderLayer &layer, const float *x, Int length, float *current,
    const float *const *steps, const Int *ancestors, const Source &source, const Int *sentences,
    float *out
) {
    const Int width = layer.width, size = rows * width;
    Scratch normed(size), y(size), z(size), after_self(size), after_cross(size);
    Scratch hidden(rows * layer.hidden_size);
    const auto before = [&](const float *stream, Int i) -> const float * {
        const Norm &norm = layer.norms[i];
        if (!layer.pre) return stream;
        add_norm(
            threads, rows, width, stream, 0, 0, norm.gain, norm.shift, norm.eps, 0, normed.at
        );
        return normed.at;
    };
    const auto after = [&](const float *stream, const float *change, const float *bias, Int i,
                           float *to) {
        const Norm &norm = layer.norms[i];
        float *total = layer.pre ? to : 0, *result = layer.pre ? 0 : to;
        add_norm(
            threads, rows, width, stream, change, bias, norm.gain, norm.shift, norm.eps, total,
            result
        );
    };
    const PackedMap &project = layer.project;
    apply(threads, rows, project, 0, 0, before(x, 0), current);
    attend_history(
        threads, rows, layer.heads, width, length, current, steps, ancestors, project.bias, y.at
    );
    apply(threads, rows, layer.self_out, 0, 0, y.at, z.at);
    after(x, z.at, layer.self_out.bias, 0, after_self.at);

    apply(threads, rows, layer.query, 0, 0, before(after_self.at, 1), y.at);
    attend(threads, rows, layer, source, sentences, y.at, z.at);
    apply(threads, rows, layer.cross_out, 0, 0, z.at, y.at);
    after(after_self.at, y.at, layer.cross_out.bias, 1, after_cross.at);

    const PackedMap &units = layer.hidden;
    apply(threads, rows, units, units.bias, 1, before(after_cross.at, 2), hidden.at);
    apply(threads, rows, layer.ffn_out, 0, 0, hidden.at, y.at);
    after(after_cross.at, y.at, layer.ffn_out.bias, 2, out);
}

// The computation of a layer for one token of each hypothesis: x (rows, width), out (rows, width).
// The projections of this step (rows, 3 width) are steps[length - 1]. The results are those of the
// functions for its parts, one after the other. The data of CHUNK rows of each thread stay in the
// cache from the first part to the last.
void decoder_layer(
    Int threads, Int rows, const DecoderLayer *layer, const float *x, Int length,
    float *const *steps, const Int *ancestors, const Source *source, const Int *sentences,
    float *out
) {
    const Int width = layer->width;
    for (Int first = 0; first < rows; first += CHUNK * threads)
        layer_of_rows(
            threads, smaller(rows - first, CHUNK * threads), *layer, x + first * width, length,
            steps[length - 1] + first * 3 * width, steps, ancestors + first * length, *source,
            sentences + first, out + first * width
        );
}

}  // extern "C"
