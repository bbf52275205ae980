// The operations between the matrix products of a Transformer layer, forward and backward, each in
// one pass over memory: attention of packed sentences, the residual sum with dropout and layer
// normalisation, the activation of the feed-forward network, and the loss. T is the type of the
// products, float or bfloat16. Sums are in float.

#include "attention.h"

// Random words ------------------------------------------------------------------------------------

struct RandomWords {
    Int threads, count;
    uint64_t seed;
    uint64_t *words;
};

extern "C" void random_words(const RandomWords *a) {
#pragma omp parallel for simd num_threads(a->threads) if (a->count > 8192)
    for (Int w = 0; w < a->count; w++) a->words[w] = random_word(a->seed, (uint64_t)w);
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
    float *by_x;                       // gradient of x; unused without normalisation
    void *by_y;                        // T
    float *partial;                    // (threads, 2, width): gradients of gain and shift
};

template <class T>
static void residual_forward(const Residual &a, Int row, Words &words) {
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
static void residual_backward(const Residual &a, Int row, Words &words, float *by_gain,
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
                residual_backward<T>(a, row, words, partial, partial + a.width);
            else
                residual_forward<T>(a, row, words);
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
static void activation_forward(const Activation &a, Int row, Words &words) {
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
                activation_forward<T>(a, row, words);
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

// Attention ---------------------------------------------------------------------------------------

enum { SEGMENTS = 2 };

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
    float *normalizers;        // (queries, heads, 2): largest score; 1 / sum of the exponentials
    const void *grad;          // T: gradient of the contexts
    void *by_queries;          // T: with the stride of the queries
};

enum { KEYS, VALUES };

// The attention of one head in one sentence. If the features of a head are float32 and fill whole
// vectors (`direct`), products read and write the tensors. Otherwise rows are copied to float rows
// with zeros at the end: products read the padding, and subnormal numbers would slow them down. The
// keys and values of two segments are always copied, which joins them.
template <class T>
struct Head {
    const Attention &a;
    const Int sentence, head, size, first, queries;
    const Int ldd;  // features, rounded up to full vectors; ldk is that of the keys
    const bool direct;
    Int keys, before;  // number of keys, and of keys before the last segment

    Head(const Attention &a, Int sentence, Int head)
        : a(a), sentence(sentence), head(head), size(a.size), first(a.offsets[sentence]),
          queries(a.offsets[sentence + 1] - first), ldd(padded(a.size)),
          direct(sizeof(T) == sizeof(float) && size == ldd), keys(0), before(0) {
        for (Int g = 0; g < a.segments; g++) {
            before = keys;
            keys += length(a.segment[g]);
        }
    }

    Int length(const Segment &segment) const {
        return segment.offsets[sentence + 1] - segment.offsets[sentence];
    }

    Int visible(Int query) const { return a.causal ? before + query + 1 : keys; }

    // The features of this head in row `index` of x. `part` is KEYS or VALUES if x has both.
    T *features(const void *x, Int stride, Int index, int part = 0) const {
        return (T *)x + index * stride + (part * a.heads + head) * size;
    }

    T *features(const Segment &s, const void *x, int part) const {
        return features(x, s.stride, s.offsets[sentence], part);
    }

    void copy(const T *x, Int stride, Int count, float *to) const {
        for (Int i = 0; i < count; i++, x += stride, to += ldd) {
#pragma omp simd
            for (Int d = 0; d < size; d++) to[d] = get(x, d);
            for (Int d = size; d < ldd; d++) to[d] = 0;
        }
    }

    Matrix read(const T *x, Int stride, Int count, float *buffer) const {
        if (direct) return {(float *)x, stride};
        copy(x, stride, count, buffer);
        return {buffer, ldd};
    }

    Matrix read_segments(int part, float *buffer) const {
        const Segment *s = a.segment;
        if (a.segments == 1)
            return read(features(*s, s->keys_values, part), s->stride, keys, buffer);
        float *to = buffer;
        for (; s < a.segment + a.segments; to += length(*s) * ldd, s++)
            copy(features(*s, s->keys_values, part), s->stride, length(*s), to);
        return {buffer, ldd};
    }

    // Where results are computed: in x if `direct`, otherwise in the buffer. `write` copies them
    // from there to x.
    Matrix place(T *x, Int stride, float *buffer) const {
        return direct ? Matrix{(float *)x, stride} : Matrix{buffer, ldd};
    }

    void write(Matrix from, Int count, T *x, Int stride) const {
        if ((void *)from.at == x) return;
        for (Int i = 0; i < count; i++, from.at += from.row_step, x += stride) {
#pragma omp simd
            for (Int d = 0; d < size; d++) put(x, d, from.at[d]);
        }
    }

    Matrix place_segments(int part, float *buffer) const {
        const Segment &s = a.segment[0];
        if (a.segments == 1) return place(features(s, s.grad, part), s.stride, buffer);
        return {buffer, ldd};
    }

    void write_segments(int part, Matrix from) const {
        for (const Segment *s = a.segment; s < a.segment + a.segments; s++) {
            write(from, length(*s), features(*s, s->grad, part), s->stride);
            from.at += length(*s) * from.row_step;
        }
    }

    const Bits *bits(Int query, Int count, Words &words) const {
        if (!a.drop.scale) return 0;
        return random_bits(a.drop, (query * a.heads + head) * a.random_stride, count, words);
    }

    float *normalizer(Int query) const { return a.normalizers + (query * a.heads + head) * 2; }

    void forward(Buffer &buffer, Words &words) const {
        const Int ldk = padded(keys);
        buffer.start();
        float *keys_transposed = buffer.take(ldd * ldk), *weights = buffer.take(BLOCK * ldk);
        transpose(read_segments(KEYS, buffer.take(keys * ldd)), keys, ldd, keys_transposed);
        const Matrix values = read_segments(VALUES, buffer.take(keys * ldd));
        float *query_buffer = buffer.take(BLOCK * ldd), *context_buffer = buffer.take(BLOCK * ldd);
        for (Int start = 0; start < queries; start += BLOCK) {
            const Int count = queries - start < BLOCK ? queries - start : BLOCK;
            T *to = features(a.contexts, a.heads * size, first + start);
            const Matrix contexts = place(to, a.heads * size, context_buffer);
            const Matrix q = read(
                features(a.queries, a.stride, first + start), a.stride, count, query_buffer);
            product(count, ldk, size, q, {keys_transposed, ldk}, {weights, ldk});
            for (Int i = 0; i < count; i++) {
                const Int query = first + start + i, n = visible(start + i);
                float *w = weights + i * ldk;
                softmax(w, n, a.scale, a.drop, bits(query, n, words), normalizer(query));
                for (Int j = padded(n); j < ldk; j++) w[j] = 0;
            }
            product(count, ldd, keys, {weights, ldk}, values, contexts);
            write(contexts, count, to, a.heads * size);
        }
    }

    void backward(Buffer &buffer, Words &words) const {
        const Int ldk = padded(keys);
        buffer.start();
        const Matrix key_rows = read_segments(KEYS, buffer.take(keys * ldd));
        const Matrix value_rows = read_segments(VALUES, buffer.take(keys * ldd));
        const Matrix by_keys = place_segments(KEYS, buffer.take(keys * ldd));
        const Matrix by_values = place_segments(VALUES, buffer.take(keys * ldd));
        float *keys_transposed = buffer.take(ldd * ldk);
        float *values_transposed = buffer.take(ldd * ldk);
        float *weights = buffer.take(BLOCK * ldk), *by_weights = buffer.take(BLOCK * ldk);
        float *query_buffer = buffer.take(BLOCK * ldd), *grad_buffer = buffer.take(BLOCK * ldd);
        float *by_query_buffer = buffer.take(BLOCK * ldd);
        transpose(key_rows, keys, ldd, keys_transposed);
        transpose(value_rows, keys, ldd, values_transposed);
        if (!queries)
            for (Int j = 0; j < keys; j++)
                for (Int d = 0; d < ldd; d++)
                    by_keys.at[j * by_keys.row_step + d] =
                        by_values.at[j * by_values.row_step + d] = 0;
        for (Int start = 0; start < queries; start += BLOCK) {
            const Int count = queries - start < BLOCK ? queries - start : BLOCK;
            T *to = features(a.by_queries, a.stride, first + start);
            const Matrix by_q = place(to, a.stride, by_query_buffer);
            const Matrix q = read(
                features(a.queries, a.stride, first + start), a.stride, count, query_buffer);
            const T *from = features(a.grad, a.heads * size, first + start);
            const Matrix grad = read(from, a.heads * size, count, grad_buffer);
            product(count, ldk, size, q, {keys_transposed, ldk}, {weights, ldk});
            product(count, ldk, size, grad, {values_transposed, ldk}, {by_weights, ldk});
            for (Int i = 0; i < count; i++) {
                const Int query = first + start + i, n = visible(start + i);
                float *w = weights + i * ldk, *by_w = by_weights + i * ldk;
                const Bits *kept = bits(query, n, words);
                softmax_backward(w, by_w, n, a.scale, a.drop, kept, normalizer(query));
                for (Int j = padded(n); j < ldk; j++) w[j] = by_w[j] = 0;
            }
            product(count, ldd, keys, {by_weights, ldk}, key_rows, by_q);
            product(keys, ldd, count, transposed({by_weights, ldk}), q, by_keys, start > 0);
            product(keys, ldd, count, transposed({weights, ldk}), grad, by_values, start > 0);
            write(by_q, count, to, a.stride);
        }
        write_segments(KEYS, by_keys);
        write_segments(VALUES, by_values);
    }
};

template <class T>
static void run_attention(const Attention &a, bool backward) {
#pragma omp parallel num_threads(a.threads) if (a.offsets[a.sentences] * a.size > 1024)
    {
        Buffer buffer;
        Words words(a.random_stride);
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

// Sums of gradients --------------------------------------------------------------------------------

// total += x
struct Addition {
    Int threads, bf16, count;
    float *total;  // (count)
    const void *x; // (count), T
};

template <class T>
static void run_add(const Addition &a) {
    const T *x = (const T *)a.x;
    float *total = a.total;
#pragma omp parallel for simd num_threads(a.threads) if (a.count > 8192)
    for (Int i = 0; i < a.count; i++) total[i] += get(x, i);
}

extern "C" void add(const Addition *a) { a->bf16 ? run_add<Bf16>(*a) : run_add<float>(*a); }

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
    float largest = -__FLT_MAX__, total = 0, sum = 0;
    if (bias) {
#pragma omp simd
        for (Int v = 0; v < vocabulary; v++) logits[v] = get(at, v) + bias[v];
    } else {
#pragma omp simd
        for (Int v = 0; v < vocabulary; v++) logits[v] = get(at, v);
    }
#pragma omp simd reduction(max : largest) reduction(+ : total)
    for (Int v = 0; v < vocabulary; v++) {
        largest = logits[v] > largest ? logits[v] : largest;
        total += logits[v];
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
    if (bias) {
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
