// Kernels of a Transformer in inference: attention to a short source, to the earlier tokens of
// hypotheses and to both, residual sum and layer normalisation, activation, and a whole decoder
// layer. add_norm and the attention add the bias of the product before them.

#include "best_tokens.h"

// While attention computes row r, it prefetches the data that row r + AHEAD will read. The data of
// many sentences do not fit into the cache.
enum { AHEAD = 2 };

// Prefetch the n numbers at x into the cache. Return the address after them.
template <class T>
static inline const T *prefetch(const T *x, Int n) {
    const Int line = 64 / sizeof *x;
    for (Int j = 0; j < n; j += line) __builtin_prefetch(x + j, 0, 1);
    return x + n;
}

// The size of a head of `size` features of a sentence in a block of Source, in numbers
static inline Int head_size(Int size, Int length) { return size * (padded(length) + length); }

// The size of a block of Source, in numbers. `length` is that of the longest sentence.
static inline Int block_size(Int width, Int length) { return head_size(width, length); }

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
            const auto *v = row(s) + j;
            a += weights[s] * load(v);
            b += weights[s] * load(v + LANES);
        }
        store(out + j, a * scale);
        store(out + j + LANES, b * scale);
    }
    for (; j < n; j++) {
        float a = 0;
        for (Int s = 0; s < count; s++) a += weights[s] * get(row(s), j);
        out[j] = a * scale;
    }
}

// keys[t] = the address of the key of a hypothesis's token t < length; its value follows it.
// steps[t] has the projections of step t (rows of 3 `width` numbers), and ancestors[t] the row.
static inline void find_keys(
    const float **keys, const float *const *steps, const Int *ancestors, Int width, Int length
) {
    for (Int t = 0; t < length; t++) keys[t] = steps[t] + (3 * ancestors[t] + 1) * width;
}

// Prefetch `size` features, from `first` on, of the keys and values that find_keys finds.
static inline void prefetch_tokens(
    const float *const *steps, const Int *ancestors, Int width, Int length, Int first, Int size
) {
    for (Int t = 0; t < length; t++) {
        const float *key = steps[t] + (3 * ancestors[t] + 1) * width + first;
        prefetch(key, size);
        prefetch(key + width, size);
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

// scores[s] = the scalar product of q (size) and the key of position s < count, for transposed keys
// (size, row_step). The other numbers of the last vector are -inf.
template <class T>
static inline void dots_of_columns(
    float *scores, const float *q, const T *keys, Int size, Int row_step, Int count
) {
    const Int vectors = vectors_of(count);
    for (Int i = 0; i < vectors; i++) {
        const T *at = keys + i * LANES;
        Vector a = {}, b = {}, c = {}, d = {};
        Int j = 0;
        for (; j + 4 <= size; j += 4, at += 4 * row_step) {
            a += q[j] * load(at);
            b += q[j + 1] * load(at + row_step);
            c += q[j + 2] * load(at + 2 * row_step);
            d += q[j + 3] * load(at + 3 * row_step);
        }
        for (; j < size; j++, at += row_step) a += q[j] * load(at);
        store(scores + i * LANES, (a + b) + (c + d));
    }
    for (Int s = count; s < vectors * LANES; s++) scores[s] = -INFINITY;
}

// The keys and values of `count` sources of some sentences. `length` is that of the longest one. A
// number has `bytes` bytes: it is float or bf16. A sentence has a block of block_size(D, length)
// numbers for each source. For each head, a block of a sentence of l tokens has the transposed keys
// (D / H, l rounded up to full vectors), and then the values (l, D / H). The rest of the block is
// not used. So attention to a sentence reads consecutive memory, which is faster than rows of a
// padded tensor. The value bias may be null.
struct Source {
    Int bytes, count, length;
    const Int *lengths;
    void *keys_values;
    const float *value_bias;

    // Call `function` with the keys and values.
    template <class Function>
    void with_numbers(Function function) const {
        if (bytes == sizeof(Bf16))
            function((Bf16 *)keys_values);
        else
            function((float *)keys_values);
    }
};

template <class T>
static void store_keys_values(
    Int threads, Int sentences, Int heads, Int width, const Source &source, T *blocks, Int n,
    Int first_sentence, const float *keys, const float *values, Int stride, const Int *first_rows
) {
    blocks += (first_sentence * source.count + n) * block_size(width, source.length);
    const Int size = width / heads;
#pragma omp parallel for num_threads((int)threads) if (threads > 1) schedule(static)
    for (Int i = 0; i < sentences; i++) {
        const Int end = source.lengths[first_sentence + i], padded_end = padded(end);
        const float *k = keys + first_rows[i] * stride, *v = values + first_rows[i] * stride;
        T *to = blocks + i * source.count * block_size(width, source.length);
        for (Int first = 0; first < width; first += size) {
            for (Int j = first; j < first + size; j++, to += padded_end) {
                for (Int s = 0; s < end; s++) put(to, s, k[s * stride + j]);
                for (Int s = end; s < padded_end; s++) to[s] = 0;
            }
            for (Int s = 0; s < end; s++, to += size)
                for (Int j = 0; j < size; j++) put(to, j, v[s * stride + first + j]);
        }
    }
}

template <class T>
static void attend_keys_values(
    Int threads, Int rows, Int heads, Int width, const Source &source, const T *blocks,
    const Int *sentences, const float *queries, Int query_stride, const float *bias, float *out,
    float *weights
) {
    const Int size = width / heads, length = source.length, sources = source.count;
    const Int block = block_size(width, length);
    const float scale = 1 / sqrtf((float)size), source_scale = 1 / sqrtf((float)sources);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(2 * width + padded(length));
        float *q = scratch.at, *context = q + width, *scores = context + width;
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            const Int b = sentences[r], end = source.lengths[b], vectors = vectors_of(end);
            const Int ahead = smaller(r + AHEAD, rows - 1), next = sentences[ahead];
            const bool is_new = ahead > r && next != sentences[ahead - 1];
            const float *query = queries + r * query_stride;
            float *to = out + r * width;
            for (Int j = 0; j < width; j++) q[j] = (query[j] + (bias ? bias[j] : 0)) * scale;
            for (Int n = 0; n < sources; n++) {
                const T *at = blocks + (b * sources + n) * block;
                const T *at_next = blocks + (next * sources + n) * block;
                for (Int h = 0; h < heads; h++) {
                    const Int first = h * size;
                    if (is_new) at_next = prefetch(at_next, head_size(size, source.lengths[next]));
                    dots_of_columns(scores, q + first, at, size, padded(end), end);
                    const float total = softmax(scores, vectors);
                    const T *v = at + size * padded(end);
                    mix(n ? context : to + first, size, scores, end, 1 / total,
                        [&](Int s) { return v + s * size; });
                    at += head_size(size, end);
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
            if (source.value_bias)
                for (Int j = 0; j < width; j++) to[j] += source.value_bias[j];
        }
    }
}

template <class T>
static void attend_keys_values_and_tokens(
    Int threads, Int rows, Int heads, Int width, const Source &source, const T *blocks,
    const Int *sentences, Int length, const float *current, const float *const *steps,
    const Int *ancestors, float *out, float *weights
) {
    const Int source_length = source.length;
    const Int size = width / heads;
    const float scale = 1 / sqrtf((float)size);
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        Scratch scratch(2 * width + padded(source_length) + padded(length)), tokens(2 * length);
        float *q = scratch.at, *context = q + width, *scores = context + width;
        const float **k = (const float **)tokens.at;
#pragma omp for schedule(static)
        for (Int r = 0; r < rows; r++) {
            const Int b = sentences[r], end = source.lengths[b], first_token = padded(end);
            const T *at = blocks + b * block_size(width, source_length);
            for (Int j = 0; j < width; j++) q[j] = current[r * 3 * width + j] * scale;
            find_keys(k, steps, ancestors + r * length, width, length);
            for (Int h = 0; h < heads; h++) {
                const Int first = h * size;
                if (r + AHEAD < rows)
                    prefetch_tokens(
                        steps, ancestors + (r + AHEAD) * length, width, length, first, size
                    );
                dots_of_columns(scores, q + first, at, size, first_token, end);
                dots(scores + first_token, q + first, k, first, size, length);
                const Int vectors = vectors_of(end) + vectors_of(length);
                const float inverse = 1 / softmax(scores, vectors);
                float *to = out + r * width + first;
                const T *v = at + size * first_token;
                mix(to, size, scores, end, inverse, [&](Int s) { return v + s * size; });
                at += head_size(size, end);
                mix(context, size, scores + first_token, length, inverse,
                    [&](Int t) { return k[t] + width + first; });
                for (Int j = 0; j < size; j++) to[j] += context[j];
                if (!weights) continue;
                float *w = weights + (r * heads + h) * (source_length + length);
                // For every x below -87, exp_ returns about 2e-38. Such a weight is recorded as 0.
                const auto weight = [&](float x) { return x > 3e-38f ? x * inverse : 0; };
                for (Int s = 0; s < source_length; s++) *w++ = s < end ? weight(scores[s]) : 0;
                for (Int t = 0; t < length; t++) *w++ = weight(scores[first_token + t]);
            }
        }
    }
}

extern "C" {

// Return the constants that decoding.py has, too.
void product_constants(
    Int, Int *block, Int *step, Int *block_rows, Int *input_offset
) {
    *block = BLOCK, *step = STEP, *block_rows = BLOCK_ROWS, *input_offset = INPUT_OFFSET;
}

#ifdef INT8_VECTORS
int int8_lines() { return LINES; }
#endif

// to_blocks_float32 and so on: store the matrix (size, width) for the other functions. `blocks`
// contains zeros before.
//
// float32_product and so on: out (rows, size) = x (rows, width) W^T + bias (size) for a blocked W
// (size, width). With `relu`, negative results become 0. Null pointers: the bias may be null; scale
// and correction are null, except for int8. If `use_tiles` is 0, vectors compute products of bf16
// also where the processor has tiles.
#define PRODUCT(name, T)                                                                       \
    void to_blocks_##name(Int, Int size, Int width, const T *matrix, T *blocks) {              \
        to_blocks(size, width, matrix, blocks);                                                \
    }                                                                                          \
    void name##_product(                                                                       \
        Int threads, Int rows, Int size, Int width, const float *x, const T *blocks,           \
        const float *scale, const int32_t *correction, const float *bias, Int relu,            \
        Int use_tiles, float *out                                                              \
    ) {                                                                                        \
        const Rows<T> own(threads, rows, width, x);                                            \
        const bool tiles = sizeof(T) == 2 && with_tiles(use_tiles);                            \
        const Int stored = stored_width<T>(width);                                             \
        const Map<T> map = {size, stored, blocks, scale, correction, bias, relu != 0, tiles};  \
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
            find_keys(k, steps, ancestors + r * length, width, length);
            for (Int h = 0; h < heads; h++) {
                const Int first = h * size;
                if (r + AHEAD < rows)
                    prefetch_tokens(
                        steps, ancestors + (r + AHEAD) * length, width, length, first, size
                    );
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

// Store the keys and values of source n for some sentences, from `first_sentence` on. A row of D
// numbers begins `stride` numbers after the row before. The rows of sentence first_sentence + i
// begin with row first_rows[i].
void store_source(
    Int threads, Int sentences, Int heads, Int width, const Source *source, Int n,
    Int first_sentence, const float *keys, const float *values, Int stride, const Int *first_rows
) {
    source->with_numbers([&](auto *blocks) {
        store_keys_values(
            threads, sentences, heads, width, *source, blocks, n, first_sentence, keys, values,
            stride, first_rows
        );
    });
}

// Attention of R rows to the n sources of their sentences. The n results are summed and multiplied
// by n^-1/2. Row r reads the positions of sentence sentences[r]. Queries have rows of query_stride
// numbers. weights (R, n, H, S) may be null.
void attend_source(
    Int threads, Int rows, Int heads, Int width, const Source *source, const Int *sentences,
    const float *queries, Int query_stride, const float *bias, float *out, float *weights
) {
    source->with_numbers([&](const auto *blocks) {
        attend_keys_values(
            threads, rows, heads, width, *source, blocks, sentences, queries, query_stride, bias,
            out, weights
        );
    });
}

// Attention of R rows to the source of their sentence and to their earlier tokens, in one softmax.
// The source is as in attend_source, with n = 1. The tokens are as in attend_history, but the
// projections include their bias. weights (R, H, S + T) may be null.
void attend_mixed(
    Int threads, Int rows, Int heads, Int width, const Source *source, const Int *sentences,
    Int length, const float *current, const float *const *steps, const Int *ancestors, float *out,
    float *weights
) {
    source->with_numbers([&](const auto *blocks) {
        attend_keys_values_and_tokens(
            threads, rows, heads, width, *source, blocks, sentences, length, current, steps,
            ancestors, out, weights
        );
    });
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

// A linear map with a blocked matrix, whose numbers have 4, 2 or 1 bytes; see blocked_products.h.
struct BlockedMap {
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

// A Transformer's decoder layer. `pre` says that the norms precede the sub-layers. If `mixed`, one
// softmax covers the source and the earlier tokens, so there is no attention to the source alone,
// and `query`, `cross_out` and norms[1] are not used.
struct DecoderLayer {
    Int width, heads, hidden_size, pre, mixed;
    BlockedMap project, self_out, query, cross_out, hidden, ffn_out;
    Norm norms[3];
};

static void apply(
    Int threads, Int rows, const BlockedMap &map, const float *bias, Int relu, const float *x,
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
    const BlockedMap &project = layer.project;
    const float *added_bias = layer.mixed ? project.bias : 0;  // attend_history adds it
    apply(threads, rows, project, added_bias, 0, before(x, 0), current);
    if (layer.mixed)
        attend_mixed(
            threads, rows, layer.heads, width, &source, sentences, length, current, steps,
            ancestors, y.at, 0
        );
    else
        attend_history(
            threads, rows, layer.heads, width, length, current, steps, ancestors, project.bias, y.at
        );
    apply(threads, rows, layer.self_out, 0, 0, y.at, z.at);
    after(x, z.at, layer.self_out.bias, 0, after_self.at);

    if (!layer.mixed) {
        apply(threads, rows, layer.query, 0, 0, before(after_self.at, 1), y.at);
        attend_source(
            threads, rows, layer.heads, width, &source, sentences, y.at, width, layer.query.bias,
            z.at, 0
        );
        apply(threads, rows, layer.cross_out, 0, 0, z.at, y.at);
        after(after_self.at, y.at, layer.cross_out.bias, 1, after_cross.at);
    }
    const float *attended = layer.mixed ? after_self.at : after_cross.at;

    const BlockedMap &units = layer.hidden;
    apply(threads, rows, units, units.bias, 1, before(attended, 2), hidden.at);
    apply(threads, rows, layer.ffn_out, 0, 0, hidden.at, y.at);
    after(attended, y.at, layer.ffn_out.bias, 2, out);
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
