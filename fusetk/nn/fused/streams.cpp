// Connections between layers and sub-layers at one position, forward and backward, each in one pass
// over memory: weighted sums of vectors, normalised products, doubly stochastic matrices, and sums
// with a weight for each feature. All tensors are in float. A row is a position, or a vector of a
// position.

#include "common.h"

static inline float dot(const float *x, const float *y, Int width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (Int d = 0; d < width; d++) sum += x[d] * y[d];
    return sum;
}

static inline void add(float *out, float factor, const float *x, Int width) {
#pragma omp simd
    for (Int d = 0; d < width; d++) out[d] += factor * x[d];
}

static inline void set(float *out, float factor, const float *x, Int width) {
#pragma omp simd
    for (Int d = 0; d < width; d++) out[d] = factor * x[d];
}

// Weighted sums -----------------------------------------------------------------------------------

// out_m = sum_n weights_mn x_n + write_m y
struct WeightedSums {
    Int threads, rows, sums, sources, width;
    const float *weights;  // (rows, sums, sources)
    Int weights_stride;    // numbers from row to row; 0: all rows have the same weights
    const float *x;        // (rows, sources, width)
    Int x_stride;
    const float *write;    // (rows, sums); null: without y
    Int write_stride;
    const float *y;        // (rows, width)
    float *out;            // (rows, sums, width)
    // Backward
    const float *grad;     // gradient of `out`
    float *by_weights, *by_x, *by_write, *by_y;
};

static void weighted_sums_forward(const WeightedSums &a, Int row) {
    const Int width = a.width;
    const float *weights = a.weights + row * a.weights_stride, *x = a.x + row * a.x_stride;
    for (Int m = 0; m < a.sums; m++) {
        float *out = a.out + (row * a.sums + m) * width;
        set(out, weights[m * a.sources], x, width);
        for (Int n = 1; n < a.sources; n++)
            add(out, weights[m * a.sources + n], x + n * width, width);
        if (a.write) add(out, a.write[row * a.write_stride + m], a.y + row * width, width);
    }
}

static void weighted_sums_backward(const WeightedSums &a, Int row) {
    const Int width = a.width;
    const float *weights = a.weights + row * a.weights_stride, *x = a.x + row * a.x_stride;
    const float *grad = a.grad + row * a.sums * width;
    for (Int n = 0; n < a.sources; n++) {
        float *by_x = a.by_x + (row * a.sources + n) * width;
        for (Int m = 0; m < a.sums; m++) {
            const float weight = weights[m * a.sources + n];
            m ? add(by_x, weight, grad + m * width, width) : set(by_x, weight, grad, width);
            a.by_weights[(row * a.sums + m) * a.sources + n] =
                dot(grad + m * width, x + n * width, width);
        }
    }
    if (!a.write) return;
    const float *write = a.write + row * a.write_stride, *y = a.y + row * width;
    float *by_y = a.by_y + row * width;
    for (Int m = 0; m < a.sums; m++) {
        m ? add(by_y, write[m], grad + m * width, width) : set(by_y, write[m], grad, width);
        a.by_write[row * a.sums + m] = dot(grad + m * width, y, width);
    }
}

extern "C" void weighted_sums(const WeightedSums *a, int backward) {
#pragma omp parallel for schedule(static) num_threads(a->threads) if (a->rows > 64)
    for (Int row = 0; row < a->rows; row++)
        backward ? weighted_sums_backward(*a, row) : weighted_sums_forward(*a, row);
}

// Normalised products -----------------------------------------------------------------------------

// out_k = norm(x) . weights_k, where norm is layer normalisation (centred) or RMSNorm.
struct NormedProducts {
    Int threads, rows, width, outputs, centred;
    const float *x;        // (rows, width)
    const float *weights;  // (outputs, width)
    float eps;
    float *out;            // (rows, outputs)
    float *means, *inverse_deviations;  // (rows)
    // Backward
    const float *grad;     // gradient of `out`
    float *by_x;
    float *partial;        // (threads, outputs, width): gradient of the weights
};

static void normed_products_forward(const NormedProducts &a, Int row, float *normed) {
    const Int width = a.width;
    const float *x = a.x + row * width;
    float mean = 0, squares = 0;
    if (a.centred) {
#pragma omp simd reduction(+ : mean)
        for (Int d = 0; d < width; d++) mean += x[d];
        mean /= width;
    }
#pragma omp simd reduction(+ : squares)
    for (Int d = 0; d < width; d++) squares += (x[d] - mean) * (x[d] - mean);
    const float scale = 1 / __builtin_sqrtf(squares / width + a.eps);
#pragma omp simd
    for (Int d = 0; d < width; d++) normed[d] = (x[d] - mean) * scale;
    for (Int k = 0; k < a.outputs; k++)
        a.out[row * a.outputs + k] = dot(normed, a.weights + k * width, width);
    a.means[row] = mean;
    a.inverse_deviations[row] = scale;
}

static void normed_products_backward(const NormedProducts &a, Int row, float *normed,
                                     float *by_weights) {
    const Int width = a.width;
    const float *x = a.x + row * width, *grad = a.grad + row * a.outputs;
    float *by_x = a.by_x + row * width;
    const float mean = a.means[row], scale = a.inverse_deviations[row];
#pragma omp simd
    for (Int d = 0; d < width; d++) normed[d] = (x[d] - mean) * scale;
    for (Int k = 0; k < a.outputs; k++) {
        const float *weights = a.weights + k * width;
        k ? add(by_x, grad[k], weights, width) : set(by_x, grad[k], weights, width);
        add(by_weights + k * width, grad[k], normed, width);
    }
    float total = 0, along = dot(by_x, normed, width) / width;
    if (a.centred) {
#pragma omp simd reduction(+ : total)
        for (Int d = 0; d < width; d++) total += by_x[d];
        total /= width;
    }
#pragma omp simd
    for (Int d = 0; d < width; d++) by_x[d] = scale * (by_x[d] - total - normed[d] * along);
}

extern "C" void normed_products(const NormedProducts *a, int backward) {
#pragma omp parallel num_threads(a->threads) if (a->rows > 64)
    {
        Scratch normed(a->width);
        float *by_weights = a->partial + omp_get_thread_num() * a->outputs * a->width;
#pragma omp for schedule(static)
        for (Int row = 0; row < a->rows; row++) {
            if (backward)
                normed_products_backward(*a, row, normed.at, by_weights);
            else
                normed_products_forward(*a, row, normed.at);
        }
    }
}

// Doubly stochastic matrices ----------------------------------------------------------------------

// Sinkhorn's normalisation: an iteration divides the columns of exp(logits) by their sums, and then
// the rows. LANES matrices are computed together. The backward pass computes the steps again.
struct Sinkhorn {
    Int threads, matrices, size, iterations;
    const float *logits;  // (matrices, size, size)
    float *out;
    // Backward
    const float *grad;    // gradient of `out`
    float *by_logits;
};

enum { LANES = 16 };

// Divide the vectors `start`, `start` + `step`, ... of x by their sum; write the result to y.
static void divide_by_sum(const float *x, float *y, Int start, Int step, Int size) {
    float sums[LANES] = {0};
    for (Int i = 0; i < size; i++) {
        const float *at = x + (start + i * step) * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) sums[l] += at[l];
    }
#pragma omp simd
    for (int l = 0; l < LANES; l++) sums[l] = 1 / sums[l];
    for (Int i = 0; i < size; i++) {
        const Int at = (start + i * step) * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) y[at + l] = x[at + l] * sums[l];
    }
}

// Replace the gradient of y = x / sum(x) by that of x.
static void divide_by_sum_backward(const float *x, const float *y, float *grad, Int start, Int step,
                                   Int size) {
    float sums[LANES] = {0}, along[LANES] = {0};
    for (Int i = 0; i < size; i++) {
        const Int at = (start + i * step) * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            sums[l] += x[at + l];
            along[l] += grad[at + l] * y[at + l];
        }
    }
    for (Int i = 0; i < size; i++) {
        const Int at = (start + i * step) * LANES;
#pragma omp simd
        for (int l = 0; l < LANES; l++) grad[at + l] = (grad[at + l] - along[l]) / sums[l];
    }
}

static void sinkhorn_lanes(const Sinkhorn &a, Int first, float *steps, float *grad) {
    const Int size = a.size, cells = size * size, block = cells * LANES;
    const Int lanes = a.matrices - first < LANES ? a.matrices - first : (Int)LANES;
    // Missing matrices of the last block are those of the first lane.
    for (Int l = 0; l < LANES; l++) {
        const float *logits = a.logits + (first + (l < lanes ? l : 0)) * cells;
        for (Int column = 0; column < size; column++) {
            float largest = logits[column];
            for (Int i = column; i < cells; i += size)
                largest = logits[i] > largest ? logits[i] : largest;
            for (Int i = column; i < cells; i += size)
                steps[i * LANES + l] = exp_(logits[i] - largest);
        }
    }
    float *at = steps;
    for (Int k = 0; k < a.iterations; k++, at += 2 * block) {
        for (Int i = 0; i < size; i++) divide_by_sum(at, at + block, i, size, size);
        for (Int i = 0; i < size; i++)
            divide_by_sum(at + block, at + 2 * block, i * size, 1, size);
    }
    if (!grad) {
        for (Int l = 0; l < lanes; l++)
            for (Int i = 0; i < cells; i++) a.out[(first + l) * cells + i] = at[i * LANES + l];
        return;
    }
    for (Int l = 0; l < LANES; l++)
        for (Int i = 0; i < cells; i++)
            grad[i * LANES + l] = a.grad[(first + (l < lanes ? l : 0)) * cells + i];
    for (; at > steps; at -= 2 * block) {
        for (Int i = 0; i < size; i++)
            divide_by_sum_backward(at - block, at, grad, i * size, 1, size);
        for (Int i = 0; i < size; i++)
            divide_by_sum_backward(at - 2 * block, at - block, grad, i, size, size);
    }
    for (Int l = 0; l < lanes; l++)
        for (Int i = 0; i < cells; i++)
            a.by_logits[(first + l) * cells + i] = grad[i * LANES + l] * steps[i * LANES + l];
}

extern "C" void sinkhorn(const Sinkhorn *a, int backward) {
    const Int block = a->size * a->size * LANES;
#pragma omp parallel num_threads(a->threads) if (a->matrices > 256)
    {
        Scratch steps((2 * a->iterations + 1) * block), grad(block);
#pragma omp for schedule(static)
        for (Int first = 0; first < a->matrices; first += LANES)
            sinkhorn_lanes(*a, first, steps.at, backward ? grad.at : 0);
    }
}

// Sums with a weight for each feature -------------------------------------------------------------

// out_k = sum_i x_i * (fixed_ki + max(0, dynamic_k . x_i))
struct FeatureSums {
    Int threads, rows, width, sums, sources;
    const float *const *x;          // each (rows, width)
    const float *fixed;             // (sums, sources, width)
    const float *dynamic;           // (sums, width)
    float *const *out;              // each (rows, width)
    // Backward
    const float *const *grads;      // gradients of the sums
    float *const *by_x;
    float *partial;                 // (threads, sums, sources + 1, width): of fixed and dynamic
};

static void feature_sums_forward(const FeatureSums &a, Int row) {
    const Int width = a.width;
    for (Int k = 0; k < a.sums; k++) {
        float *out = a.out[k] + row * width;
        for (Int i = 0; i < a.sources; i++) {
            const float *x = a.x[i] + row * width, *fixed = a.fixed + (k * a.sources + i) * width;
            float score = dot(a.dynamic + k * width, x, width);
            score = score < 0 ? 0.0f : score;
            if (i == 0) {
#pragma omp simd
                for (Int d = 0; d < width; d++) out[d] = x[d] * (fixed[d] + score);
            } else {
#pragma omp simd
                for (Int d = 0; d < width; d++) out[d] += x[d] * (fixed[d] + score);
            }
        }
    }
}

static void feature_sums_backward(const FeatureSums &a, Int row, float *partial) {
    const Int width = a.width;
    for (Int i = 0; i < a.sources; i++) {
        const float *x = a.x[i] + row * width;
        float *by_x = a.by_x[i] + row * width;
        for (Int k = 0; k < a.sums; k++) {
            const float *grad = a.grads[k] + row * width;
            const float *fixed = a.fixed + (k * a.sources + i) * width;
            const float *dynamic = a.dynamic + k * width;
            float *by_fixed = partial + (k * (a.sources + 1) + i) * width;
            float *by_dynamic = partial + (k * (a.sources + 1) + a.sources) * width;
            float score = dot(dynamic, x, width);
            const float along = score <= 0 ? 0.0f : dot(grad, x, width);
            score = score < 0 ? 0.0f : score;
#pragma omp simd
            for (Int d = 0; d < width; d++) {
                const float before = k ? by_x[d] : 0.0f;
                by_x[d] = before + grad[d] * (fixed[d] + score) + along * dynamic[d];
                by_fixed[d] += grad[d] * x[d];
                by_dynamic[d] += along * x[d];
            }
        }
    }
}

extern "C" void feature_sums(const FeatureSums *a, int backward) {
#pragma omp parallel num_threads(a->threads) if (a->rows > 64)
    {
        const Int size = a->sums * (a->sources + 1) * a->width;
        float *partial = a->partial + omp_get_thread_num() * size;
#pragma omp for schedule(static)
        for (Int row = 0; row < a->rows; row++) {
            if (backward)
                feature_sums_backward(*a, row, partial);
            else
                feature_sums_forward(*a, row);
        }
    }
}

// Attention with one query over the sources of a position -----------------------------------------

// out = sum_i w_i x_i with w = softmax_i(scales_i query . x_i)
struct DepthAttention {
    Int threads, rows, sources, width;
    const float *x;        // (rows, sources, width), without the source `last`
    Int x_stride;
    const float *last;     // (rows, width), one more source; null: none
    const float *scales;   // (rows, sources), with that of `last`
    const float *query;    // (width)
    float *products;       // (rows, sources): query . x_i
    float *weights;        // (rows, sources)
    float *out;            // (rows, width)
    // Backward
    const float *grad;     // gradient of `out`
    float *by_x, *by_last, *by_scales;
    float *partial;        // (threads, width): gradient of the query
};

static inline const float *source_of(const DepthAttention &a, Int row, Int i) {
    if (a.last && i == a.sources - 1) return a.last + row * a.width;
    return a.x + row * a.x_stride + i * a.width;
}

static void depth_attention_forward(const DepthAttention &a, Int row) {
    const Int width = a.width;
    const float *scales = a.scales + row * a.sources;
    float *products = a.products + row * a.sources, *weights = a.weights + row * a.sources;
    float *out = a.out + row * width, largest = -__FLT_MAX__, sum = 0;
    for (Int i = 0; i < a.sources; i++) {
        products[i] = dot(a.query, source_of(a, row, i), width);
        weights[i] = products[i] * scales[i];
        largest = weights[i] > largest ? weights[i] : largest;
    }
    for (Int i = 0; i < a.sources; i++) sum += weights[i] = exp_(weights[i] - largest);
    for (Int i = 0; i < a.sources; i++) {
        weights[i] /= sum;
        const float *x = source_of(a, row, i);
        i ? add(out, weights[i], x, width) : set(out, weights[i], x, width);
    }
}

static void depth_attention_backward(const DepthAttention &a, Int row, float *by_query) {
    const Int width = a.width, buffered = a.sources - (a.last ? 1 : 0);
    const float *products = a.products + row * a.sources, *weights = a.weights + row * a.sources;
    const float *scales = a.scales + row * a.sources, *grad = a.grad + row * width;
    const float *query = a.query;
    float *by_scales = a.by_scales + row * a.sources, mean = 0;
    for (Int i = 0; i < a.sources; i++) {
        by_scales[i] = dot(grad, source_of(a, row, i), width);
        mean += weights[i] * by_scales[i];
    }
    for (Int i = 0; i < a.sources; i++) {
        const float by_score = weights[i] * (by_scales[i] - mean), weight = weights[i];
        const float by_product = by_score * scales[i];
        const float *x = source_of(a, row, i);
        float *by_x = i < buffered ? a.by_x + (row * buffered + i) * width
                                   : a.by_last + row * width;
        by_scales[i] = by_score * products[i];
#pragma omp simd
        for (Int d = 0; d < width; d++) {
            by_query[d] += by_product * x[d];
            by_x[d] = weight * grad[d] + by_product * query[d];
        }
    }
}

extern "C" void depth_attention(const DepthAttention *a, int backward) {
#pragma omp parallel num_threads(a->threads) if (a->rows > 64)
    {
        float *by_query = a->partial + omp_get_thread_num() * a->width;
#pragma omp for schedule(static)
        for (Int row = 0; row < a->rows; row++) {
            if (backward)
                depth_attention_backward(*a, row, by_query);
            else
                depth_attention_forward(*a, row);
        }
    }
}
