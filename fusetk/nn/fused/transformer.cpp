// The operations between the matrix products of a Transformer layer, forward and backward, each in
// one pass over memory: attention of packed sentences, the residual sum with dropout and layer
// normalisation, the activation of the feed-forward network, and the loss. T is the type of the
// products, float or bfloat16. Sums are in float.

#include "common.h"

// Dropout -----------------------------------------------------------------------------------------

// Element i of a tensor gets 16 bits of word i / 4 of a SplitMix64 generator (Steele et al. 2014).
// Therefore masks are computed again in the backward pass and not stored. nn/dropout_mask.py has
// the same function.
struct Dropout {
    uint64_t seed;
    Int threshold;  // an element is kept if its bits are at least this number
    float scale;    // factor of kept elements; 0: no dropout
};

typedef int16_t __attribute__((may_alias)) Bits;

static inline uint64_t random_word(uint64_t seed, uint64_t number) {
    uint64_t z = seed + (number + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Return the bits of `count` elements from element `first` on. `words` has room for count / 4 + 2.
static inline const Bits *random_bits(const Dropout &drop, Int first, Int count, uint64_t *words) {
    const Int begin = first / 4, end = (first + count + 3) / 4;
#pragma omp simd
    for (Int w = begin; w < end; w++) words[w - begin] = random_word(drop.seed, w);
    return (const Bits *)words + first % 4;
}

// The factor of an element. The members of Dropout are copied, because the compiler must assume
// that a write of a result may change them.
struct Factor {
    const int threshold;
    const float scale;
    explicit Factor(const Dropout &drop) : threshold((int)drop.threshold), scale(drop.scale) {}
    inline float operator()(Bits bits) const { return (int)bits >= threshold ? scale : 0.0f; }
};

struct RandomWords {
    Int threads, count;
    uint64_t seed;
    uint64_t *words;
};

extern "C" void random_words(const RandomWords *a) {
#pragma omp parallel for simd num_threads(a->threads) if (a->count > 8192)
    for (Int w = 0; w < a->count; w++) a->words[w] = random_word(a->seed, w);
}

// Residual sum ------------------------------------------------------------------------------------

// out = LayerNorm(x + dropout(y)); without a gain, out = x + dropout(y).
struct Residual {
    Int threads, bf16, rows, width;
    const float *x;
    const void *y;                     // T
    Dropout drop;
    const float *gain, *shift;         // null: no normalisation
    float eps;
    float *sum, *out;                  // the sum is stored for the backward pass
    float *means, *inverse_deviations; // of each row
    // Backward
    const float *grad;                 // gradient of `out`
    float *by_x;                       // null if there is no normalisation: it is `grad`
    void *by_y;                        // T
    float *partial;                    // (threads, 2, width): gradients of gain and shift
};

template <class T>
static void residual_forward(const Residual &a, Int row, uint64_t *words) {
    const Int width = a.width;
    const float *x = a.x + row * width;
    const T *y = (const T *)a.y + row * width;
    float *sum = a.sum + row * width;
    if (a.drop.scale) {
        const Factor factor(a.drop);
        const Bits *bits = random_bits(a.drop, row * width, width, words);
#pragma omp simd
        for (Int d = 0; d < width; d++) sum[d] = x[d] + get(y, d) * factor(bits[d]);
    } else {
#pragma omp simd
        for (Int d = 0; d < width; d++) sum[d] = x[d] + get(y, d);
    }
    if (!a.gain) return;
    float mean = 0, squares = 0;
#pragma omp simd reduction(+ : mean)
    for (Int d = 0; d < width; d++) mean += sum[d];
    mean /= width;
#pragma omp simd reduction(+ : squares)
    for (Int d = 0; d < width; d++) squares += (sum[d] - mean) * (sum[d] - mean);
    const float scale = 1 / __builtin_sqrtf(squares / width + a.eps);
    float *out = a.out + row * width;
    const float *gain = a.gain, *shift = a.shift;
#pragma omp simd
    for (Int d = 0; d < width; d++) out[d] = (sum[d] - mean) * scale * gain[d] + shift[d];
    a.means[row] = mean;
    a.inverse_deviations[row] = scale;
}

template <class T>
static void residual_backward(const Residual &a, Int row, uint64_t *words, float *by_gain,
                              float *by_shift) {
    const Int width = a.width;
    const float *grad = a.grad + row * width;
    if (a.gain) {
        const float *sum = a.sum + row * width, *gain = a.gain;
        float *by_x = a.by_x + row * width, total = 0, along = 0;
        const float mean = a.means[row], scale = a.inverse_deviations[row];
#pragma omp simd reduction(+ : total, along)
        for (Int d = 0; d < width; d++) {
            float normed = (sum[d] - mean) * scale, g = grad[d] * gain[d];
            by_gain[d] += grad[d] * normed;
            by_shift[d] += grad[d];
            total += g;
            along += g * normed;
        }
        total /= width;
        along /= width;
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            float normed = (sum[d] - mean) * scale;
            by_x[d] = scale * (grad[d] * gain[d] - total - normed * along);
        }
        grad = by_x;
    }
    if (!a.by_y) return;
    T *by_y = (T *)a.by_y + row * width;
    if (a.drop.scale) {
        const Factor factor(a.drop);
        const Bits *bits = random_bits(a.drop, row * width, width, words);
#pragma omp simd
        for (Int d = 0; d < width; d++) put(by_y, d, grad[d] * factor(bits[d]));
    } else {
#pragma omp simd
        for (Int d = 0; d < width; d++) put(by_y, d, grad[d]);
    }
}

template <class T>
static void run_residual(const Residual &a, bool backward) {
#pragma omp parallel num_threads(a.threads) if (a.rows * a.width > 8192)
    {
        Words words(a.width);
        float *partial = a.partial + omp_get_thread_num() * 2 * a.width;
#pragma omp for schedule(static)
        for (Int row = 0; row < a.rows; row++) {
            if (backward)
                residual_backward<T>(a, row, words.at, partial, partial + a.width);
            else
                residual_forward<T>(a, row, words.at);
        }
    }
}

extern "C" void residual(const Residual *a, int backward) {
    a->bf16 ? run_residual<Bf16>(*a, backward) : run_residual<float>(*a, backward);
}

// Activation --------------------------------------------------------------------------------------

// h = dropout(max(0, a + bias)), in the memory of a. Backward: the gradient of a, in the memory of
// the gradient of h. h > 0 where the element was positive and kept, so no random bits are needed.
struct Activation {
    Int threads, bf16, rows, width;
    void *h;               // T
    const float *bias;
    Dropout drop;
    void *grad;            // T
    float *partial;        // (threads, width): gradient of the bias
};

template <class T>
static void activation_forward(const Activation &a, Int row, uint64_t *words) {
    const Int width = a.width;
    T *h = (T *)a.h + row * width;
    const float *bias = a.bias;
    if (a.drop.scale) {
        const Factor factor(a.drop);
        const Bits *bits = random_bits(a.drop, row * width, width, words);
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            float value = get(h, d) + bias[d];
            put(h, d, (value < 0 ? 0.0f : value) * factor(bits[d]));
        }
    } else {
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            float value = get(h, d) + bias[d];
            put(h, d, value < 0 ? 0.0f : value);
        }
    }
}

template <class T>
static void activation_backward(const Activation &a, Int row, float *by_bias) {
    const Int width = a.width;
    const T *h = (const T *)a.h + row * width;
    T *grad = (T *)a.grad + row * width;
    const float scale = a.drop.scale ? a.drop.scale : 1.0f;
#pragma omp simd
    for (Int d = 0; d < width; d++) {
        float g = get(h, d) <= 0 ? 0.0f : get(grad, d) * scale;
        put(grad, d, g);
        by_bias[d] += g;
    }
}

template <class T>
static void run_activation(const Activation &a, bool backward) {
#pragma omp parallel num_threads(a.threads) if (a.rows * a.width > 8192)
    {
        Words words(a.width);
#pragma omp for schedule(static)
        for (Int row = 0; row < a.rows; row++) {
            if (backward)
                activation_backward<T>(a, row, a.partial + omp_get_thread_num() * a.width);
            else
                activation_forward<T>(a, row, words.at);
        }
    }
}

extern "C" void activation(const Activation *a, int backward) {
    a->bf16 ? run_activation<Bf16>(*a, backward) : run_activation<float>(*a, backward);
}

// Sums over rows ----------------------------------------------------------------------------------

struct ColumnSum {
    Int threads, bf16, rows, width;
    const void *x;   // T
    float *partial;  // (threads, width)
};

template <class T>
static void run_column_sum(const ColumnSum &a) {
#pragma omp parallel num_threads(a.threads) if (a.rows * a.width > 8192)
    {
        const Int width = a.width;
        float *sums = a.partial + omp_get_thread_num() * width;
#pragma omp for schedule(static)
        for (Int row = 0; row < a.rows; row++) {
            const T *x = (const T *)a.x + row * width;
#pragma omp simd
            for (Int d = 0; d < width; d++) sums[d] += get(x, d);
        }
    }
}

extern "C" void column_sum(const ColumnSum *a) {
    a->bf16 ? run_column_sum<Bf16>(*a) : run_column_sum<float>(*a);
}

// Small products ----------------------------------------------------------------------------------

#ifdef __AVX512F__
enum { LANES = 16 };
#else
enum { LANES = 8 };
#endif
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int Lanes __attribute__((vector_size(4 * LANES)));

enum { PAD = 16 };  // row lengths of buffers are multiples of this number

// n, rounded up to a multiple of PAD. The form of the expression shows this to the compiler.
static inline Int multiple(Int n) { return (n + PAD - 1) / PAD * PAD; }

// c (R, C * LANES) = or += a (R, count) b (count, C * LANES). Element (i, k) of a is at
// a[i * row_step + k * step].
template <int R, int C>
static inline void tile(Int count, const float *a, Int row_step, Int step, const float *b, Int ldb,
                        float *c, Int ldc, bool add) {
    Vector sums[R][C];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++)
            sums[i][j] = add ? *(const Vector *)(c + i * ldc + j * LANES) : Vector{};
    for (Int k = 0; k < count; k++) {
        Vector row[C];
        for (int j = 0; j < C; j++) row[j] = *(const Vector *)(b + k * ldb + j * LANES);
        for (int i = 0; i < R; i++) {
            const float value = a[i * row_step + k * step];
            for (int j = 0; j < C; j++) sums[i][j] += value * row[j];
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < C; j++) *(Vector *)(c + i * ldc + j * LANES) = sums[i][j];
}

// Exchange the blocks of S lanes beside the diagonal of a 2 S x 2 S matrix, in all lanes at once.
template <int S>
static inline void exchange(Vector &a, Vector &b) {
    Lanes low, high;
    for (int l = 0; l < LANES; l++) {
        low[l] = l & S ? LANES + l - S : l;
        high[l] = l & S ? LANES + l : l + S;
    }
#ifdef __clang__
    const Vector x = a, y = b;
    for (int l = 0; l < LANES; l++) {
        a[l] = low[l] < LANES ? x[low[l]] : y[low[l] - LANES];
        b[l] = high[l] < LANES ? x[high[l]] : y[high[l] - LANES];
    }
#else
    const Vector first = __builtin_shuffle(a, b, low);
    b = __builtin_shuffle(a, b, high);
    a = first;
#endif
}

template <int S>
static inline void exchange_rows(Vector *rows) {
    for (int i = 0; i < LANES; i++)
        if (!(i & S)) exchange<S>(rows[i], rows[i + S]);
}

// to (columns, rows) = from (rows, columns) transposed; both numbers are multiples of PAD.
static void transpose(const float *from, Int rows, Int columns, float *to) {
    for (Int i = 0; i < rows; i += LANES)
        for (Int j = 0; j < columns; j += LANES) {
            Vector block[LANES];
            for (int k = 0; k < LANES; k++)
                block[k] = *(const Vector *)(from + (i + k) * columns + j);
            exchange_rows<1>(block);
            exchange_rows<2>(block);
            exchange_rows<4>(block);
            if (LANES > 8) exchange_rows<LANES / 2>(block);
            for (int k = 0; k < LANES; k++) *(Vector *)(to + (j + k) * rows + i) = block[k];
        }
}

template <int R, int C>
static inline void column_of_tiles(Int rows, Int count, const float *a, Int row_step, Int step,
                                   const float *b, Int ldb, float *c, Int ldc, bool add) {
    for (; rows >= R; rows -= R, a += R * row_step, c += R * ldc)
        tile<R, C>(count, a, row_step, step, b, ldb, c, ldc, add);
    if constexpr (R > 1) {
        if (rows) column_of_tiles<R / 2, C>(rows, count, a, row_step, step, b, ldb, c, ldc, add);
    }
}

// c (rows, columns) = or += a (rows, count) b (count, columns), with `columns` a multiple of PAD.
static void product(Int rows, Int columns, Int count, const float *a, Int row_step, Int step,
                    const float *b, Int ldb, float *c, Int ldc, bool add) {
    Int j = 0;
    for (; j + 2 * LANES <= columns; j += 2 * LANES)
        column_of_tiles<4, 2>(rows, count, a, row_step, step, b + j, ldb, c + j, ldc, add);
    for (; j < columns; j += LANES)
        column_of_tiles<8, 1>(rows, count, a, row_step, step, b + j, ldb, c + j, ldc, add);
}

// Attention ---------------------------------------------------------------------------------------

static const float MASKED = -1e30f;  // score of a key that a query does not attend to

enum { SEGMENTS = 2, BLOCK = 64 };  // queries of a sentence are processed in blocks

// Keys and values of all sentences: rows of one tensor, the columns of the keys before those of the
// values.
struct Segment {
    const void *keys_values;  // T
    Int stride;               // elements from row to row
    const Int *offsets;       // (sentences + 1): first row of each sentence
    void *grad;               // T: gradient, with the same stride
};

// softmax(q k^T scale) v of packed sentences. A query attends to the keys of all segments of its
// sentence; if `causal`, it attends in the last segment to its own position and earlier ones.
struct Attention {
    Int threads, bf16, sentences, heads, size, causal;  // size: features of a head
    const void *queries;                                // T
    Int stride;
    const Int *offsets;                                 // (sentences + 1)
    Int segments;
    Segment segment[SEGMENTS];
    float scale;
    Dropout drop;              // element (query, head, key) has the number
    Int random_stride;         //     (query * heads + head) * random_stride + key
    void *contexts;            // T: (queries, heads * size)
    float *log_sums;           // (queries, heads)
    const void *grad;          // T: gradient of the contexts
    void *by_queries;          // T: with the stride of the queries
};

template <class T>
struct Head {
    const Attention &a;
    const Int sentence, head, size, queries;
    Int keys, before;  // number of keys, and of keys before the last segment

    Head(const Attention &a, Int sentence, Int head)
        : a(a), sentence(sentence), head(head), size(a.size),
          queries(a.offsets[sentence + 1] - a.offsets[sentence]), keys(0), before(0) {
        for (Int g = 0; g < a.segments; g++) {
            const Int *offsets = a.segment[g].offsets;
            before = keys;
            keys += offsets[sentence + 1] - offsets[sentence];
        }
    }

    Int visible(Int query) const { return a.causal ? before + query + 1 : keys; }

    // Copy the keys (`part` 0) or the values (1) into `rows` rows of `ld` features, padded with 0.
    // Products read the padding, and subnormal numbers would slow them down.
    void read(int part, float *to, Int rows, Int ld) const {
        const Int column = (part * a.heads + head) * size;
        for (Int g = 0; g < a.segments; g++) {
            const Segment &segment = a.segment[g];
            const Int first = segment.offsets[sentence];
            const Int count = segment.offsets[sentence + 1] - first;
            read_rows(segment.keys_values, segment.stride, first, count, column, size, 1, to, ld);
            to += count * ld;
        }
        for (Int i = 0; i < (rows - keys) * ld; i++) to[i] = 0;
    }

    void write(int part, const float *from, Int ld) const {
        Int j = 0;
        for (Int g = 0; g < a.segments; g++) {
            const Segment &segment = a.segment[g];
            const Int column = (part * a.heads + head) * size;
            const Int end = segment.offsets[sentence + 1];
            for (Int row = segment.offsets[sentence]; row < end; row++, j++) {
                T *to = (T *)segment.grad + row * segment.stride + column;
#pragma omp simd
                for (Int d = 0; d < size; d++) put(to, d, from[j * ld + d]);
            }
        }
    }

    // Copy `count` rows, times `scale`, into rows of `ld` features, padded with 0.
    static void read_rows(const void *x, Int stride, Int row, Int count, Int column, Int size,
                          float scale, float *to, Int ld) {
        for (Int i = 0; i < count; i++, to += ld) {
            const T *from = (const T *)x + (row + i) * stride + column;
#pragma omp simd
            for (Int d = 0; d < size; d++) to[d] = get(from, d) * scale;
            for (Int d = size; d < ld; d++) to[d] = 0;
        }
    }

    static void write_rows(const float *from, Int ld, void *x, Int stride, Int row, Int count,
                           Int column, Int size, float scale) {
        for (Int i = 0; i < count; i++) {
            T *to = (T *)x + (row + i) * stride + column;
#pragma omp simd
            for (Int d = 0; d < size; d++) put(to, d, from[i * ld + d] * scale);
        }
    }

    const Bits *bits(Int row, Int count, uint64_t *words) const {
        return random_bits(a.drop, (row * a.heads + head) * a.random_stride, count, words);
    }

    void forward(Buffer &buffer, Words &words) const {
        const Int ldk = multiple(keys), ldd = multiple(size), first = a.offsets[sentence];
        buffer.start();
        float *key_rows = buffer.take(ldk * ldd);
        float *transposed_keys = buffer.take(ldd * ldk);
        float *values = buffer.take(keys * ldd);
        float *q = buffer.take(BLOCK * ldd);
        float *weights = buffer.take(BLOCK * ldk);
        float *contexts = buffer.take(BLOCK * ldd);
        read(0, key_rows, ldk, ldd);
        transpose(key_rows, ldk, ldd, transposed_keys);
        read(1, values, keys, ldd);
        for (Int start = 0; start < queries; start += BLOCK) {
            const Int rows = queries - start < BLOCK ? queries - start : BLOCK;
            read_rows(a.queries, a.stride, first + start, rows, head * size, size, a.scale, q, ldd);
            product(rows, ldk, size, q, ldd, 1, transposed_keys, ldk, weights, ldk, false);
            for (Int i = 0; i < rows; i++) {
                const Int row = first + start + i, n = visible(start + i);
                float *w = weights + i * ldk, largest = MASKED, sum = 0;
                for (Int j = n; j < ldk; j++) w[j] = MASKED;
#pragma omp simd reduction(max : largest)
                for (Int j = 0; j < ldk; j++) largest = w[j] > largest ? w[j] : largest;
#pragma omp simd reduction(+ : sum)
                for (Int j = 0; j < ldk; j++) {
                    w[j] = exp_(w[j] - largest);
                    sum += w[j];
                }
                for (Int j = n; j < ldk; j++) w[j] = 0;
                const float inverse = 1 / sum;
                if (a.drop.scale) {
                    const Factor factor(a.drop);
                    const Bits *kept = bits(row, n, words.at);
#pragma omp simd
                    for (Int j = 0; j < ldk; j++) w[j] *= inverse * factor(kept[j]);
                } else {
#pragma omp simd
                    for (Int j = 0; j < ldk; j++) w[j] *= inverse;
                }
                a.log_sums[row * a.heads + head] = largest + __builtin_logf(sum);
            }
            product(rows, ldd, keys, weights, ldk, 1, values, ldd, contexts, ldd, false);
            write_rows(contexts, ldd, a.contexts, a.heads * size, first + start, rows, head * size,
                       size, 1);
        }
    }

    void backward(Buffer &buffer, Words &words) const {
        const Int ldk = multiple(keys), ldd = multiple(size), first = a.offsets[sentence];
        buffer.start();
        float *key_rows = buffer.take(ldk * ldd);
        float *transposed_keys = buffer.take(ldd * ldk);
        float *value_rows = buffer.take(ldk * ldd);
        float *transposed_values = buffer.take(ldd * ldk);
        float *by_keys = buffer.take(keys * ldd);
        float *by_values = buffer.take(keys * ldd);
        float *q = buffer.take(BLOCK * ldd);
        float *by_q = buffer.take(BLOCK * ldd);
        float *grad = buffer.take(BLOCK * ldd);
        float *weights = buffer.take(BLOCK * ldk);
        float *by_weights = buffer.take(BLOCK * ldk);
        read(0, key_rows, ldk, ldd);
        transpose(key_rows, ldk, ldd, transposed_keys);
        read(1, value_rows, ldk, ldd);
        transpose(value_rows, ldk, ldd, transposed_values);
        if (!queries)
            for (Int i = 0; i < keys * ldd; i++) by_keys[i] = by_values[i] = 0;
        for (Int start = 0; start < queries; start += BLOCK) {
            const Int rows = queries - start < BLOCK ? queries - start : BLOCK;
            read_rows(a.queries, a.stride, first + start, rows, head * size, size, a.scale, q, ldd);
            read_rows(a.grad, a.heads * size, first + start, rows, head * size, size, 1, grad, ldd);
            product(rows, ldk, size, q, ldd, 1, transposed_keys, ldk, weights, ldk, false);
            product(rows, ldk, size, grad, ldd, 1, transposed_values, ldk, by_weights, ldk, false);
            for (Int i = 0; i < rows; i++) {
                const Int row = first + start + i, n = visible(start + i);
                const float log_sum = a.log_sums[row * a.heads + head];
                float *w = weights + i * ldk, *by_w = by_weights + i * ldk, along = 0;
#pragma omp simd
                for (Int j = 0; j < ldk; j++) w[j] = exp_(w[j] - log_sum);
                for (Int j = n; j < ldk; j++) w[j] = by_w[j] = 0;
                if (a.drop.scale) {
                    const Factor factor(a.drop);
                    const Bits *kept = bits(row, n, words.at);
#pragma omp simd reduction(+ : along)
                    for (Int j = 0; j < ldk; j++) {
                        by_w[j] *= factor(kept[j]);
                        along += w[j] * by_w[j];
                    }
#pragma omp simd
                    for (Int j = 0; j < ldk; j++) {
                        by_w[j] = w[j] * (by_w[j] - along);
                        w[j] *= factor(kept[j]);
                    }
                } else {
#pragma omp simd reduction(+ : along)
                    for (Int j = 0; j < ldk; j++) along += w[j] * by_w[j];
#pragma omp simd
                    for (Int j = 0; j < ldk; j++) by_w[j] = w[j] * (by_w[j] - along);
                }
            }
            product(rows, ldd, keys, by_weights, ldk, 1, key_rows, ldd, by_q, ldd, false);
            product(keys, ldd, rows, by_weights, 1, ldk, q, ldd, by_keys, ldd, start > 0);
            product(keys, ldd, rows, weights, 1, ldk, grad, ldd, by_values, ldd, start > 0);
            write_rows(by_q, ldd, a.by_queries, a.stride, first + start, rows, head * size, size,
                       a.scale);
        }
        write(0, by_keys, ldd);
        write(1, by_values, ldd);
    }
};

template <class T>
static void run_attention(const Attention &a, bool backward) {
#pragma omp parallel num_threads(a.threads) if (a.offsets[a.sentences] * a.size > 1024)
    {
        Buffer buffer;
        Words words(a.random_stride + PAD);
#pragma omp for schedule(dynamic, 4)
        for (Int pair = 0; pair < a.sentences * a.heads; pair++) {
            Head<T> head(a, pair / a.heads, pair % a.heads);
            backward ? head.backward(buffer, words) : head.forward(buffer, words);
        }
    }
}

extern "C" void packed_attention(const Attention *a, int backward) {
    a->bf16 ? run_attention<Bf16>(*a, backward) : run_attention<float>(*a, backward);
}

// Loss --------------------------------------------------------------------------------------------

// Cross-entropy of rows of logits. The target distribution is `other` for each token, and
// `other` + `gap` for the target. In training, logits are replaced by their gradients.
struct Loss {
    Int threads, bf16, rows, vocabulary, training;
    void *logits;           // T
    const float *bias;      // null: none
    const Int *targets;     // (rows)
    float gap, other;
    float *log_p, *log_p_all;  // (rows): log-probability of the target; sum over the vocabulary
    float *correct;         // (rows): 1 if the target has the largest logit; not set in training
    float *partial;         // (threads, vocabulary): gradient of the bias
};

template <class T>
static void loss_row(const Loss &a, Int row, float *logits, float *by_bias) {
    const Int vocabulary = a.vocabulary, target = a.targets[row];
    const float *bias = a.bias, other = a.other;
    T *at = (T *)a.logits + row * vocabulary;
    float largest = -1e30f, total = 0, sum = 0;
#pragma omp simd reduction(max : largest) reduction(+ : total)
    for (Int v = 0; v < vocabulary; v++) {
        float value = get(at, v) + (bias ? bias[v] : 0.0f);
        logits[v] = value;
        largest = value > largest ? value : largest;
        total += value;
    }
    const float target_logit = logits[target];
    if (!a.training) {
        Int first = 0;  // the first of the largest logits
        while (logits[first] < largest && first < vocabulary - 1) first++;
        a.correct[row] = first == target;
    }
#pragma omp simd reduction(+ : sum)
    for (Int v = 0; v < vocabulary; v++) {
        logits[v] = exp_(logits[v] - largest);
        sum += logits[v];
    }
    const float log_z = largest + __builtin_logf(sum);
    a.log_p[row] = target_logit - log_z;
    a.log_p_all[row] = total - vocabulary * log_z;
    if (!a.training) return;
    const float inverse = 1 / sum;
    logits[target] -= a.gap * sum;
    if (a.bias) {
#pragma omp simd
        for (Int v = 0; v < vocabulary; v++) {
            float grad = logits[v] * inverse - other;
            put(at, v, grad);
            by_bias[v] += grad;
        }
    } else {
#pragma omp simd
        for (Int v = 0; v < vocabulary; v++) put(at, v, logits[v] * inverse - other);
    }
}

template <class T>
static void run_loss(const Loss &a) {
#pragma omp parallel num_threads(a.threads)
    {
        Scratch logits(a.vocabulary);
        float *partial = a.partial + omp_get_thread_num() * a.vocabulary;
#pragma omp for schedule(static)
        for (Int row = 0; row < a.rows; row++) loss_row<T>(a, row, logits.at, partial);
    }
}

extern "C" void loss(const Loss *a) { a->bf16 ? run_loss<Bf16>(*a) : run_loss<float>(*a); }
