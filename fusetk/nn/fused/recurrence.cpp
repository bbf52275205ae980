// The computations between the matrix products of a recurrent model, forward and backward: the
// cells of nn/cells.py and the additive attention of nn/additive.py, in one pass over each row. The
// backward pass recomputes the gates from the results of the products, so the gates are not stored.
// T is the type of the products, float or bfloat16. States and their gradients are float.

#include "common.h"

// Cells -------------------------------------------------------------------------------------------

enum { GRU, T_GRU, L_GRU, LAU };

struct Cell {
    Int threads, kind, bf16, norm;
    Int directions, rows, width;  // rows of this step
    Int positions;                // rows of a direction in the buffers of all steps
    const void *x, *a;            // T: projected input and projected state of this step
    const float *h;               // states before the step
    Int h_positions;
    float *out;                   // states after the step
    void *next;                   // T: copy of the first next_rows rows for the next product
    Int next_rows, next_positions;
    const int16_t *random_bits;   // random bits for dropout; null: no dropout
    Int threshold;
    float scale;
    const float *bias, *linear_bias, *gain, *shift;
    // Backward
    float *grad;  // before: gradient of the state after the step; then: of the state before it,
                  // without the part `product`
    Int grad_positions;
    const void *product;          // T: the part of the gradient from the matrix product
    Int product_positions;
    const float *output_grad;     // gradient of the states as outputs of the loop; null: none
    void *da, *dx;                // T
    float *partial;               // (threads, directions, gain or shift, gates * width), gradients
};

template <class T, int KIND>
struct Row {
    static constexpr int GATES = KIND == GRU || KIND == T_GRU ? 2 : 3;
    static constexpr bool READS = KIND != T_GRU, LINEAR = KIND == L_GRU || KIND == LAU;
    static constexpr int INPUTS = READS ? GATES + 1 + LINEAR : 0, STATES = GATES + 1;
    static constexpr float EPS = 1e-6f;

    const Cell &c;
    const Int width;
    const T *x, *a;
    const float *h, *bias, *linear_bias, *gain, *shift;
    const int16_t *random_bits;

    Row(const Cell &c, Int r, Int i)
        : c(c),
          width(c.width),
          x(READS ? (const T *)c.x + (r * c.positions + i) * INPUTS * c.width : 0),
          a((const T *)c.a + (r * c.positions + i) * STATES * c.width),
          h(c.h + (r * c.h_positions + i) * c.width),
          bias(c.bias + r * c.width), linear_bias(LINEAR ? c.linear_bias + r * c.width : 0),
          gain(c.norm ? c.gain + r * GATES * c.width : 0),
          shift(c.norm ? c.shift + r * GATES * c.width : 0),
          random_bits(c.random_bits ? c.random_bits + (r * c.positions + i) * c.width : 0) {}

    // Compute gate `g` into `result`. With normalisation, store its normalised argument in `normed`
    // and return 1 / standard deviation; otherwise return 1.
    inline float gate(int g, float *result, float *normed) const {
        const Int width = this->width;
        const T *x = this->x + g * width, *a = this->a + g * width;
        const float *gain = this->gain + g * width, *shift = this->shift + g * width;
        float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
        for (Int d = 0; d < width; d++) {
            float value = get(a, d) + (READS ? get(x, d) : 0.0f);
            result[d] = value;
            sum += value;
        }
        if (!c.norm) {
#pragma omp simd
            for (Int d = 0; d < width; d++) result[d] = sigmoid(result[d]);
            return 1;
        }
        const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
        for (Int d = 0; d < width; d++) squares += (result[d] - mean) * (result[d] - mean);
        const float scale = 1 / __builtin_sqrtf(squares / width + EPS);
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            normed[d] = (result[d] - mean) * scale;
            result[d] = sigmoid(normed[d] * gain[d] + shift[d]);
        }
        return scale;
    }

    // Compute the factors of dropout. GCC cannot vectorise a loop that reads the random bits on a
    // condition, so the loops over the features read these factors.
    inline void dropout(float *factors) const {
        const Int width = this->width, threshold = c.threshold;
        const int16_t *random_bits = this->random_bits;
        const float scale = c.scale;
        if (random_bits) {
#pragma omp simd
            for (Int d = 0; d < width; d++)
                factors[d] = random_bits[d] >= threshold ? scale : 0.0f;
        } else {
            for (Int d = 0; d < width; d++) factors[d] = 1;
        }
    }

    inline void forward(Int r, Int i, float *s) const {
        float *reset = s, *update = s + width, *third = s + 2 * width, *normed = s + 3 * width;
        float *factors = s + 4 * width;
        dropout(factors);
        gate(0, reset, normed);
        gate(1, update, normed);
        if (LINEAR) gate(2, third, normed);
        float *out = c.out + (r * c.positions + i) * width;
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            float recalled = get(a, GATES * width + d) + bias[d];
            float sum = reset[d] * recalled;
            if (READS) sum += (KIND == LAU ? 1 - reset[d] : 1.0f) * get(x, GATES * width + d);
            float candidate = tanh_(sum), linear = 0;
            if (LINEAR) linear = get(x, (GATES + 1) * width + d) + linear_bias[d];
            if (KIND == L_GRU) candidate += third[d] * linear;
            candidate *= factors[d];
            float state = h[d] + update[d] * (candidate - h[d]);
            if (KIND == LAU) state += third[d] * (linear - state);
            out[d] = state;
        }
        if (i < c.next_rows) {
            T *next = (T *)c.next + (r * c.next_positions + i) * width;
#pragma omp simd
            for (Int d = 0; d < width; d++) put(next, d, out[d]);
        }
    }

    inline void backward(Int r, Int i, float *s) const {
        float *gates = s, *normed = s + 3 * width, *grads = s + 6 * width, scale[3];
        float *factors = s + 9 * width;
        dropout(factors);
        for (int g = 0; g < GATES; g++) scale[g] = gate(g, gates + g * width, normed + g * width);
        const float *reset = gates, *update = gates + width, *third = gates + 2 * width;
        float *grad = c.grad + (r * c.grad_positions + i) * width;
        const T *product = (const T *)c.product + (r * c.product_positions + i) * width;
        const float *output_grad = 0;
        if (c.output_grad) output_grad = c.output_grad + (r * c.positions + i) * width;
        T *da = (T *)c.da + (r * c.positions + i) * STATES * width;
        T *dx = READS ? (T *)c.dx + (r * c.positions + i) * INPUTS * width : 0;
        if (output_grad) {
#pragma omp simd
            for (Int d = 0; d < width; d++) grad[d] += get(product, d) + output_grad[d];
        } else {
#pragma omp simd
            for (Int d = 0; d < width; d++) grad[d] += get(product, d);
        }
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            float recalled = get(a, GATES * width + d) + bias[d];
            float read = READS ? get(x, GATES * width + d) : 0.0f;
            float read_gate = KIND == LAU ? 1 - reset[d] : 1.0f;
            float nonlinear = tanh_(reset[d] * recalled + read_gate * read);
            float linear = LINEAR ? get(x, (GATES + 1) * width + d) + linear_bias[d] : 0.0f;
            float candidate = nonlinear + (KIND == L_GRU ? third[d] * linear : 0.0f);
            candidate *= factors[d];
            float g = grad[d], by_third = 0, by_linear = 0;
            if (KIND == LAU) {
                float state = h[d] + update[d] * (candidate - h[d]);
                by_third = g * (linear - state);
                by_linear = g * third[d];
                g *= 1 - third[d];
            }
            float by_update = g * (candidate - h[d]), by_candidate = g * update[d] * factors[d];
            grad[d] = g * (1 - update[d]);
            if (KIND == L_GRU) {
                by_third = by_candidate * linear;
                by_linear = by_candidate * third[d];
            }
            float inner = by_candidate * (1 - nonlinear * nonlinear);
            float by_reset = inner * (KIND == LAU ? recalled - read : recalled);
            put(da, GATES * width + d, inner * reset[d]);
            if (READS) put(dx, GATES * width + d, KIND == LAU ? inner * (1 - reset[d]) : inner);
            if (LINEAR) put(dx, (GATES + 1) * width + d, by_linear);
            grads[d] = by_reset * reset[d] * (1 - reset[d]);
            grads[width + d] = by_update * update[d] * (1 - update[d]);
            if (LINEAR) grads[2 * width + d] = by_third * third[d] * (1 - third[d]);
        }
        for (int g = 0; g < GATES; g++)
            through_gate(r, g, grads + g * width, normed + g * width, scale[g], da, dx);
    }

    inline void through_gate(Int r, int g, float *grad, const float *normed, float scale, T *da,
                             T *dx) const {
        const Int width = this->width, at = g * width;
        const float *gain = this->gain + at;
        if (c.norm) {
            const Int part = omp_get_thread_num() * c.directions + r;
            float *by_gain = c.partial + part * 2 * GATES * width + at;
            float *by_shift = by_gain + GATES * width, sum = 0, along = 0;
#pragma omp simd reduction(+ : sum, along)
            for (Int d = 0; d < width; d++) {
                by_gain[d] += grad[d] * normed[d];
                by_shift[d] += grad[d];
                grad[d] *= gain[d];
                sum += grad[d];
                along += grad[d] * normed[d];
            }
            sum /= width;
            along /= width;
#pragma omp simd
            for (Int d = 0; d < width; d++) grad[d] = scale * (grad[d] - sum - normed[d] * along);
        }
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            put(da, at + d, grad[d]);
            if (READS) put(dx, at + d, grad[d]);
        }
    }
};

template <class T, int KIND>
static void run_cell(const Cell &c, bool backward) {
    const Int rows = c.directions * c.rows;
#pragma omp parallel num_threads(c.threads) if (rows * c.width > 4096)
    {
        Scratch scratch(10 * c.width);
#pragma omp for schedule(static)
        for (Int row = 0; row < rows; row++) {
            Int r = row / c.rows, i = row % c.rows;
            Row<T, KIND> current(c, r, i);
            backward ? current.backward(r, i, scratch.at) : current.forward(r, i, scratch.at);
        }
    }
}

template <class T>
static void run_cell(const Cell &c, bool backward) {
    switch (c.kind) {
        case GRU: return run_cell<T, GRU>(c, backward);
        case T_GRU: return run_cell<T, T_GRU>(c, backward);
        case L_GRU: return run_cell<T, L_GRU>(c, backward);
        case LAU: return run_cell<T, LAU>(c, backward);
    }
}

extern "C" void cell(const Cell *c, int backward) {
    c->bf16 ? run_cell<Bf16>(*c, backward) : run_cell<float>(*c, backward);
}

// Attention ---------------------------------------------------------------------------------------

struct Attention {
    Int threads, bf16, rows, hypotheses;  // rows of this step, hypotheses per sentence
    Int heads, width, value_width;        // features of queries and keys, and of values
    Int sources, length;                  // sources (a softmax each), and positions of a source
    const void *queries;                  // T: (rows, width)
    const void *keys, *values;            // T: (sentences, sources * length, width or value_width)
    const uint8_t *mask;                  // (sentences, length)
    const float *vector;                  // (width / heads)
    float *weights;                       // (rows, sources * length, heads)
    void *contexts;                       // T: (rows, value_width)
    // Backward, with one hypothesis per sentence
    const void *product;                  // T: (rows, value_width), gradient from a matrix product
    const float *output_grad;             // gradient of the contexts as loop outputs; null: none
    float *grad;                          // gradient of the contexts: the sum of both
    void *by_queries;                     // T
    float *by_keys;                       // (sentences, sources * length, width); adds to it
    float *by_vector;                     // (threads, width / heads); adds to it
    // Gradient of the values, for all steps at once
    const Int *starts, *sizes;            // first row and number of rows of each step
    Int steps, sentences;
    void *by_values;                      // T
};

template <class T>
static void attention_forward(const Attention &c, Int row, float *scratch) {
    const Int sentence = row / c.hypotheses, slots = c.sources * c.length;
    const Int size = c.width / c.heads, value_size = c.value_width / c.heads;
    const T *q = (const T *)c.queries + row * c.width;
    const T *keys = (const T *)c.keys + sentence * slots * c.width;
    const T *values = (const T *)c.values + sentence * slots * c.value_width;
    const uint8_t *mask = c.mask + sentence * c.length;
    const float *vector = c.vector;
    float *weights = c.weights + row * slots * c.heads;
    float *sum = scratch, *query = sum + c.value_width;
    for (Int d = 0; d < c.width; d++) query[d] = get(q, d);
    for (Int d = 0; d < c.value_width; d++) sum[d] = 0;
    for (Int s = 0; s < slots; s++)
        for (Int h = 0; h < c.heads; h++) {
            float score = 0;
            const T *key = keys + s * c.width + h * size;
            const float *head_query = query + h * size;
            if (mask[s % c.length])
#pragma omp simd reduction(+ : score)
                for (Int d = 0; d < size; d++)
                    score += vector[d] * tanh_(head_query[d] + get(key, d));
            weights[s * c.heads + h] = score;
        }
    for (Int source = 0; source < c.sources; source++) {
        float *w = weights + source * c.length * c.heads;
        for (Int h = 0; h < c.heads; h++) {
            float highest = -3e38f, total = 0;
            for (Int s = 0; s < c.length; s++)
                if (mask[s] && w[s * c.heads + h] > highest) highest = w[s * c.heads + h];
            for (Int s = 0; s < c.length; s++) {
                float weight = mask[s] ? exp_(w[s * c.heads + h] - highest) : 0.0f;
                w[s * c.heads + h] = weight;
                total += weight;
            }
            for (Int s = 0; s < c.length; s++) w[s * c.heads + h] /= total;
        }
    }
    for (Int s = 0; s < slots; s++)
        if (mask[s % c.length])
            for (Int h = 0; h < c.heads; h++) {
                const float weight = weights[s * c.heads + h];
                const T *value = values + s * c.value_width + h * value_size;
                float *head_sum = sum + h * value_size;
#pragma omp simd
                for (Int d = 0; d < value_size; d++) head_sum[d] += weight * get(value, d);
            }
    T *context = (T *)c.contexts + row * c.value_width;
    for (Int d = 0; d < c.value_width; d++) put(context, d, sum[d]);
}

template <class T>
static void attention_backward(const Attention &c, Int row, float *scratch) {
    const Int slots = c.sources * c.length;
    const Int size = c.width / c.heads, value_size = c.value_width / c.heads;
    const T *q = (const T *)c.queries + row * c.width;
    const T *keys = (const T *)c.keys + row * slots * c.width;
    const T *values = (const T *)c.values + row * slots * c.value_width;
    const T *product = (const T *)c.product + row * c.value_width;
    const uint8_t *mask = c.mask + row * c.length;
    const float *weights = c.weights + row * slots * c.heads, *vector = c.vector;
    float *grad = c.grad + row * c.value_width, *by_keys = c.by_keys + row * slots * c.width;
    float *by_vector = c.by_vector + omp_get_thread_num() * size;
    float *query = scratch, *by_query = query + c.width, *scores = by_query + c.width;
    for (Int d = 0; d < c.width; d++) {
        query[d] = get(q, d);
        by_query[d] = 0;
    }
    for (Int d = 0; d < c.value_width; d++) {
        grad[d] = get(product, d);
        if (c.output_grad) grad[d] += c.output_grad[row * c.value_width + d];
    }
    for (Int s = 0; s < slots; s++)
        for (Int h = 0; h < c.heads; h++) {
            float sum = 0;
            const T *value = values + s * c.value_width + h * value_size;
            const float *head_grad = grad + h * value_size;
#pragma omp simd reduction(+ : sum)
            for (Int d = 0; d < value_size; d++) sum += head_grad[d] * get(value, d);
            scores[s * c.heads + h] = mask[s % c.length] ? sum : 0.0f;
        }
    for (Int source = 0; source < c.sources; source++)
        for (Int h = 0; h < c.heads; h++) {
            const Int at = source * c.length * c.heads + h;
            float mean = 0;
            for (Int s = 0; s < c.length; s++)
                mean += weights[at + s * c.heads] * scores[at + s * c.heads];
            for (Int s = 0; s < c.length; s++) {
                const Int k = at + s * c.heads;
                scores[k] = weights[k] * (scores[k] - mean);
            }
        }
    for (Int s = 0; s < slots; s++)
        if (mask[s % c.length])
            for (Int h = 0; h < c.heads; h++) {
                const T *key = keys + s * c.width + h * size;
                const float score = scores[s * c.heads + h], *head_query = query + h * size;
                float *to_query = by_query + h * size, *to_key = by_keys + s * c.width + h * size;
#pragma omp simd
                for (Int d = 0; d < size; d++) {
                    float t = tanh_(head_query[d] + get(key, d));
                    float inner = score * vector[d] * (1 - t * t);
                    by_vector[d] += score * t;
                    to_query[d] += inner;
                    to_key[d] += inner;
                }
            }
    T *to_queries = (T *)c.by_queries + row * c.width;
    for (Int d = 0; d < c.width; d++) put(to_queries, d, by_query[d]);
}

template <class T>
static void values_backward(const Attention &c, Int row, float *sum) {
    const Int slots = c.sources * c.length, value_size = c.value_width / c.heads;
    T *by_values = (T *)c.by_values + row * slots * c.value_width;
    for (Int s = 0; s < slots; s++) {
        for (Int d = 0; d < c.value_width; d++) sum[d] = 0;
        for (Int t = 0; t < c.steps && row < c.sizes[t]; t++) {
            const Int at = c.starts[t] + row;
            const float *weights = c.weights + (at * slots + s) * c.heads;
            const float *grad = c.grad + at * c.value_width;
            for (Int h = 0; h < c.heads; h++)
#pragma omp simd
                for (Int d = h * value_size; d < (h + 1) * value_size; d++)
                    sum[d] += weights[h] * grad[d];
        }
        for (Int d = 0; d < c.value_width; d++) put(by_values, s * c.value_width + d, sum[d]);
    }
}

template <class T>
static void run_attention(const Attention &c, int mode) {
    const Int rows = mode == 2 ? c.sentences : c.rows;
    const Int slots = c.sources * c.length;
#pragma omp parallel num_threads(c.threads) if (rows * slots * c.width > 4096)
    {
        Scratch scratch(2 * c.width + c.value_width + slots * c.heads);
#pragma omp for schedule(static)
        for (Int row = 0; row < rows; row++)
            mode == 0   ? attention_forward<T>(c, row, scratch.at)
            : mode == 1 ? attention_backward<T>(c, row, scratch.at)
                        : values_backward<T>(c, row, scratch.at);
    }
}

// mode: 0 forward, 1 backward, 2 gradient of the values
extern "C" void attention(const Attention *c, int mode) {
    c->bf16 ? run_attention<Bf16>(*c, mode) : run_attention<float>(*c, mode);
}
