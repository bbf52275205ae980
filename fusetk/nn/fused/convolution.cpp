// The operations between the matrix products of a convolutional model, forward and backward, each
// in one pass over memory: windows with dropout, gated units, and attention to the source. T is the
// type of the products, float or bfloat16. X is the type of the input, float or T. Sums are in
// float.

#include "attention.h"

// Windows -----------------------------------------------------------------------------------------

// The padded input of a sentence has `before` positions, then the `length` positions of x, then
// positions with zeros, length + kernel - 1 in all. Window t has the padded positions t to
// t + kernel - 1 after dropout, one after the other.
struct Windows {
    Int threads, bf16, x_bf16, sentences, length, width, kernel, before;
    const void *x;            // X (sentences, length, width)
    Int sentence_step, step;  // elements from sentence to sentence and from position to position
    const void *earlier;      // X (sentences, before, width); null: zeros
    const uint8_t *mask;      // (sentences, length), 0: zeros replace x; null: no zeros
    Dropout drop;
    void *windows;            // T (sentences, length, kernel, width), or its gradient
    void *by_x;               // X (sentences, length, width): gradient of x
};

// The windows that have a padded position: window `position - i` has it at place i, for each i from
// `first` to `end` - 1.
struct Places {
    Int first, end;
    Places(const Windows &a, Int position) {
        first = position - a.length + 1 > 0 ? position - a.length + 1 : 0;
        end = position + 1 < a.kernel ? position + 1 : a.kernel;
    }
};

// The number of elements before a place of a window.
static inline Int offset(const Windows &a, Int sentence, Int position, Int place) {
    return ((sentence * a.length + position - place) * a.kernel + place) * a.width;
}

// The random bits of a padded position.
static inline const Bits *random_bits(const Windows &a, Int sentence, Int position, Words &words) {
    const Int row = sentence * (a.length + a.kernel - 1) + position;
    return random_bits(a.drop, row * a.width, a.width, words);
}

template <class X, class T>
static void windows_forward(const Windows &a, Int sentence, Int position, Words &words) {
    const Int width = a.width, x_position = position - a.before;
    const X *from = 0;
    if (x_position < 0) {
        if (a.earlier) from = (const X *)a.earlier + (sentence * a.before + position) * width;
    } else if (x_position < a.length && (!a.mask || a.mask[sentence * a.length + x_position])) {
        from = (const X *)a.x + sentence * a.sentence_step + x_position * a.step;
    }
    const Places places(a, position);
    const T *first = 0;
    for (Int i = places.first; i < places.end; i++) {
        T *to = (T *)a.windows + offset(a, sentence, position, i);
        if (!from) {
            memset(to, 0, width * sizeof(T));
        } else if (first) {
            memcpy(to, first, width * sizeof(T));
        } else if (a.drop.scale) {
            const Factor factor(a.drop);
            const Bits *bits = random_bits(a, sentence, position, words);
#pragma omp simd
            for (Int d = 0; d < width; d++) put(to, d, get(from, d) * factor(bits[d]));
            first = to;
        } else {
#pragma omp simd
            for (Int d = 0; d < width; d++) put(to, d, get(from, d));
            first = to;
        }
    }
}

template <class X, class T>
static void windows_backward(const Windows &a, Int sentence, Int x_position, Words &words,
                             float *sums) {
    const Int width = a.width, position = a.before + x_position;
    X *to = (X *)a.by_x + (sentence * a.length + x_position) * width;
    memset(sums, 0, width * sizeof(float));
    if (!a.mask || a.mask[sentence * a.length + x_position]) {
        const Places places(a, position);
        for (Int i = places.first; i < places.end; i++) {
            const T *from = (const T *)a.windows + offset(a, sentence, position, i);
#pragma omp simd
            for (Int d = 0; d < width; d++) sums[d] += get(from, d);
        }
        if (a.drop.scale) {
            const Factor factor(a.drop);
            const Bits *bits = random_bits(a, sentence, position, words);
#pragma omp simd
            for (Int d = 0; d < width; d++) sums[d] *= factor(bits[d]);
        }
    }
#pragma omp simd
    for (Int d = 0; d < width; d++) put(to, d, sums[d]);
}

template <class X, class T>
static void run_windows(const Windows &a, bool backward) {
    const Int positions = backward ? a.length : a.length + a.kernel - 1;
#pragma omp parallel num_threads(a.threads) if (a.sentences * positions * a.width > 8192)
    {
        Words words(a.width);
        Scratch sums(a.width);
#pragma omp for schedule(static)
        for (Int row = 0; row < a.sentences * positions; row++) {
            const Int sentence = row / positions, position = row % positions;
            if (backward)
                windows_backward<X, T>(a, sentence, position, words, sums.at);
            else
                windows_forward<X, T>(a, sentence, position, words);
        }
    }
}

extern "C" void windows(const Windows *a, int backward) {
    if (!a->bf16)
        run_windows<float, float>(*a, backward);
    else
        a->x_bf16 ? run_windows<Bf16, Bf16>(*a, backward) : run_windows<float, Bf16>(*a, backward);
}

// Gated linear unit -------------------------------------------------------------------------------

// out = a sigmoid(b) for each row [a; b] of x
struct Gated {
    Int threads, bf16, rows, width;
    const void *x;     // T (rows, 2 width)
    void *out;         // T (rows, width)
    const void *grad;  // T (rows, width): gradient of out
    void *by_x;        // T (rows, 2 width)
};

template <class T>
static void gated_forward(const Gated &a, Int row) {
    const Int width = a.width;
    const T *x = (const T *)a.x + row * 2 * width;
    T *out = (T *)a.out + row * width;
#pragma omp simd
    for (Int d = 0; d < width; d++) put(out, d, get(x, d) * sigmoid(get(x, width + d)));
}

template <class T>
static void gated_backward(const Gated &a, Int row) {
    const Int width = a.width;
    const T *x = (const T *)a.x + row * 2 * width, *grad = (const T *)a.grad + row * width;
    T *by_x = (T *)a.by_x + row * 2 * width;
#pragma omp simd
    for (Int d = 0; d < width; d++) {
        const float gate = sigmoid(get(x, width + d)), by_value = get(grad, d) * gate;
        put(by_x, d, by_value);
        put(by_x, width + d, by_value * (1 - gate) * get(x, d));
    }
}

template <class T>
static void run_gated(const Gated &a, bool backward) {
#pragma omp parallel for num_threads(a.threads) if (a.rows * a.width > 8192)
    for (Int row = 0; row < a.rows; row++)
        backward ? gated_backward<T>(a, row) : gated_forward<T>(a, row);
}

extern "C" void gated(const Gated *a, int backward) {
    a->bf16 ? run_gated<Bf16>(*a, backward) : run_gated<float>(*a, backward);
}

// Attention ---------------------------------------------------------------------------------------

// The sum over the sources of softmax(q k^T) v.
struct Attention {
    Int threads, bf16, sentences, sources, queries, length, size;  // size: features
    const void *q;                   // T (sentences, queries, size)
    const void *keys, *values;       // T (sentences, sources, length, size)
    Int sentence_step, source_step;  // elements between their sentences and between their sources
    const Int *lengths;              // (sentences): number of keys of a sentence in each source
    void *contexts;                  // T (sentences, queries, size)
    float *normalizers;              // (sentences, sources, queries, 2); see `softmax`
    const void *grad;                // T (sentences, queries, size): gradient of the contexts
    void *by_q;                      // T (sentences, queries, size)
    void *by_keys, *by_values;       // T (sentences, sources, length, size), contiguous
};

// Return rows as floats: the rows of the tensor, or copies of bf16 rows.
static Matrix floats(const float *x, Int, Int size, Buffer &) { return {(float *)x, size}; }

static Matrix floats(const Bf16 *x, Int rows, Int size, Buffer &buffer) {
    float *to = buffer.take(rows * size);
#pragma omp simd
    for (Int i = 0; i < rows * size; i++) to[i] = get(x, i);
    return {to, size};
}

// Return memory for the float rows of a result: that of the tensor, or a buffer that `copy_result`
// converts to bf16.
static Matrix result_rows(float *x, Int, Int size, Buffer &) { return {x, size}; }
static Matrix result_rows(Bf16 *, Int rows, Int size, Buffer &buffer) {
    return {buffer.take(rows * size), size};
}

static void copy_result(Matrix, float *, Int) {}
static void copy_result(Matrix from, Bf16 *x, Int rows) {
#pragma omp simd
    for (Int i = 0; i < rows * from.row_step; i++) put(x, i, from.at[i]);
}

template <class T>
struct Sentence {
    const Attention &a;
    const Int index, keys, ldk;  // ldk: number of keys, rounded up to full vectors

    Sentence(const Attention &a, Int index)
        : a(a), index(index), keys(a.lengths[index]), ldk(padded(keys)) {}

    T *query_rows(const void *x) const { return (T *)x + index * a.queries * a.size; }

    T *source_rows(const void *x, Int source) const {
        return (T *)x + index * a.sentence_step + source * a.source_step;
    }

    T *gradient(void *x, Int source) const {
        return (T *)x + (index * a.sources + source) * a.length * a.size;
    }

    float *normalizer(Int source, Int query) const {
        return a.normalizers + ((index * a.sources + source) * a.queries + query) * 2;
    }

    static Matrix row(Matrix m, Int i) { return {m.at + i * m.row_step, m.row_step}; }

    void forward(Buffer &buffer) const {
        buffer.start();
        float *transposed_keys = buffer.take(a.size * ldk), *weights = buffer.take(BLOCK * ldk);
        const Matrix q = floats(query_rows(a.q), a.queries, a.size, buffer);
        const Matrix contexts = result_rows(query_rows(a.contexts), a.queries, a.size, buffer);
        const int used = buffer.used;
        for (Int source = 0; source < a.sources; source++, buffer.used = used) {
            const Matrix k = floats(source_rows(a.keys, source), keys, a.size, buffer);
            const Matrix v = floats(source_rows(a.values, source), keys, a.size, buffer);
            transpose(k, keys, a.size, transposed_keys);
            for (Int start = 0; start < a.queries; start += BLOCK) {
                const Int count = a.queries - start < BLOCK ? a.queries - start : BLOCK;
                product(count, ldk, a.size, row(q, start), {transposed_keys, ldk}, {weights, ldk});
                for (Int i = 0; i < count; i++)
                    softmax(weights + i * ldk, keys, 1, {}, 0, normalizer(source, start + i));
                product(count, a.size, keys, {weights, ldk}, v, row(contexts, start), source > 0);
            }
        }
        copy_result(contexts, query_rows(a.contexts), a.queries);
    }

    void backward(Buffer &buffer) const {
        buffer.start();
        float *transposed_keys = buffer.take(a.size * ldk);
        float *transposed_values = buffer.take(a.size * ldk);
        float *weights = buffer.take(BLOCK * ldk), *by_weights = buffer.take(BLOCK * ldk);
        const Matrix q = floats(query_rows(a.q), a.queries, a.size, buffer);
        const Matrix grad = floats(query_rows(a.grad), a.queries, a.size, buffer);
        const Matrix by_q = result_rows(query_rows(a.by_q), a.queries, a.size, buffer);
        const int used = buffer.used;
        for (Int source = 0; source < a.sources; source++, buffer.used = used) {
            const Matrix k = floats(source_rows(a.keys, source), keys, a.size, buffer);
            const Matrix v = floats(source_rows(a.values, source), keys, a.size, buffer);
            const Matrix by_k = result_rows(gradient(a.by_keys, source), keys, a.size, buffer);
            const Matrix by_v = result_rows(gradient(a.by_values, source), keys, a.size, buffer);
            transpose(k, keys, a.size, transposed_keys);
            transpose(v, keys, a.size, transposed_values);
            for (Int start = 0; start < a.queries; start += BLOCK) {
                const Int count = a.queries - start < BLOCK ? a.queries - start : BLOCK;
                const Matrix w = {weights, ldk}, by_w = {by_weights, ldk};
                product(count, ldk, a.size, row(q, start), {transposed_keys, ldk}, w);
                product(count, ldk, a.size, row(grad, start), {transposed_values, ldk}, by_w);
                for (Int i = 0; i < count; i++)
                    softmax_backward(weights + i * ldk, by_weights + i * ldk, keys, 1, {}, 0,
                                     normalizer(source, start + i));
                product(keys, a.size, count, transposed(w), row(grad, start), by_v, start > 0);
                product(keys, a.size, count, transposed(by_w), row(q, start), by_k, start > 0);
                product(count, a.size, keys, by_w, k, row(by_q, start), source > 0);
            }
            write_gradient(by_k, gradient(a.by_keys, source));
            write_gradient(by_v, gradient(a.by_values, source));
        }
        copy_result(by_q, query_rows(a.by_q), a.queries);
    }

    // Write the gradients of the keys or of the values of a source, and zeros for the padding.
    void write_gradient(Matrix from, T *to) const {
        copy_result(from, to, keys);
        memset(to + keys * a.size, 0, (a.length - keys) * a.size * sizeof(T));
    }
};

template <class T>
static void run_attention(const Attention &a, bool backward) {
#pragma omp parallel num_threads(a.threads) if (a.sentences * a.queries * a.size > 8192)
    {
        Buffer buffer;
#pragma omp for schedule(static)
        for (Int index = 0; index < a.sentences; index++) {
            const Sentence<T> sentence(a, index);
            backward ? sentence.backward(buffer) : sentence.forward(buffer);
        }
    }
}

extern "C" void attention(const Attention *a, int backward) {
    a->bf16 ? run_attention<Bf16>(*a, backward) : run_attention<float>(*a, backward);
}
