// The loss of an output projection in float32, with its gradients.
//
// The rows are divided into pieces. The threads first share the rows of a piece: the logits of
// BLOCK_ROWS rows stay in the cache until the gradients of the features are known. Then they share
// the vocabulary for the gradients of the weight.

#include "cross_entropy.h"
#include "packed_products.h"
#include "transpose.h"

// Inputs that are summed before they are added to a gradient: a packed matrix with this many inputs
// and BLOCK outputs fits into the fastest cache.
enum { SLICE = 128 };

struct OutputLoss {
    Int threads, rows, width, vocabulary, training;
    Int piece;            // rows of a piece, a multiple of BLOCK_ROWS
    const float *x;       // (rows, width): features
    const float *weight;  // (vocabulary, width)
    const float *bias;    // (vocabulary); null: none
    const Int *targets;   // (rows)
    float gap, other;     // see cross_entropy.h
    float *log_p, *log_p_all, *correct;  // (rows)
    // In training: the gradients. They are added to the numbers in memory.
    float *by_x, *by_weight, *by_bias;
};

struct Zeros {
    float *const at;
    explicit Zeros(Int size) : at((float *)calloc(size, sizeof(float))) {}
    ~Zeros() { free(at); }
};

// x W^T + bias for a packed W (outputs, inputs)
static Map<float> map_of(Int outputs, Int inputs, const float *packed, const float *bias = 0) {
    return {outputs, inputs, packed, 0, 0, bias, false, false};
}

// Pack the transpose of a matrix (count, outputs). `packed` contains zeros before; an output has
// `inputs` numbers in it.
static void pack_transposed(
    Int outputs, Int inputs, Int count, const float *matrix, float *packed
) {
    for (Int n = 0; n < outputs; n += GROUP) {
        const Int columns = smaller(GROUP, outputs - n);
        for (Int k = 0; k < count; k++)
            memcpy(
                packed + n * inputs + k * GROUP, matrix + k * outputs + n, columns * sizeof(float)
            );
    }
}

// out (rows, outputs) += the product of at most BLOCK_ROWS rows x with the map's matrix
static void add_product(Int rows, const float *x, const Map<float> &map, float *out) {
    float block[BLOCK_ROWS * BLOCK];
    for (Int n = 0; n < map.size; n += BLOCK) {
        map.compute(0, rows, Rows<float>(1, rows, map.width, x), n, block, BLOCK);
        const Int columns = smaller(BLOCK, map.size - n);
        for (Int r = 0; r < rows; r++)
            for (Int j = 0; j < columns; j++) out[r * map.size + n + j] += block[r * BLOCK + j];
    }
}

// A weight W, packed for x W^T + bias, and in slices of the vocabulary for y W
struct Weight {
    const Int width, vocabulary, stride;  // stride: the vocabulary, rounded up
    const Zeros forward, back;
    const Map<float> project;

    explicit Weight(const OutputLoss &a)
        : width(a.width), vocabulary(a.vocabulary), stride(up(vocabulary, BLOCK)),
          forward(stride * width), back(stride * up(width, BLOCK)),
          project(map_of(vocabulary, width, forward.at, a.bias)) {
        pack(a.threads, vocabulary, width, a.weight, forward.at);
#pragma omp parallel for num_threads((int)a.threads) if (a.threads > 1) schedule(static)
        for (Int v = 0; v < vocabulary; v += SLICE)
            pack_transposed(
                width, inputs(v), smaller(SLICE, vocabulary - v), a.weight + v * width, slice_at(v)
            );
    }

    Int inputs(Int v) const { return smaller(SLICE, stride - v); }
    float *slice_at(Int v) const { return back.at + v * up(width, BLOCK); }
    Map<float> slice(Int v) const { return map_of(width, inputs(v), slice_at(v)); }
};

struct Piece {
    const OutputLoss &a;
    const Weight &weight;
    const Int start, rows;  // the first row, and the number of rows
    float *const logits;    // (rows, stride)

    // Compute the loss of at most BLOCK_ROWS rows from `first` on. In training, also compute the
    // gradients of their features, and replace the logits by their gradients.
    void compute_rows(Int first) const {
        const Int count = smaller(BLOCK_ROWS, rows - first), stride = weight.stride;
        const Int vocabulary = a.vocabulary, row = start + first;
        float *block = logits + first * stride;
        const Rows<float> x(1, count, a.width, a.x + row * a.width);
        for (Int v = 0; v < vocabulary; v += BLOCK)
            weight.project.compute(0, count, x, v, block + v, stride);
        for (Int r = 0; r < count; r++) {
            float *at = block + r * stride;
            const RowLoss loss =
                cross_entropy(vocabulary, a.targets[row + r], a.gap, a.other, a.training, at);
            a.log_p[row + r] = loss.log_p;
            a.log_p_all[row + r] = loss.log_p_all;
            a.correct[row + r] = loss.correct;
            memset(at + vocabulary, 0, (stride - vocabulary) * sizeof(float));
        }
        if (!a.training) return;
        memset(block + count * stride, 0, (BLOCK_ROWS - count) * stride * sizeof(float));
        for (Int v = 0; v < vocabulary; v += SLICE) {
            const Int inputs = weight.inputs(v);
            float grads[BLOCK_ROWS * SLICE];
            for (Int r = 0; r < count; r++)
                memcpy(grads + r * inputs, block + r * stride + v, inputs * sizeof(float));
            add_product(count, grads, weight.slice(v), a.by_x + row * a.width);
        }
    }

    // Add the gradients of at most BLOCK rows of the weight from `v` on. `features` maps by the
    // transposed features, and `transposed` (BLOCK, rows) is memory.
    void compute_weight(Int v, const Map<float> &features, float *transposed) const {
        const Int count = smaller(BLOCK, a.vocabulary - v);
        transpose({logits + v, weight.stride}, features.width, BLOCK, transposed);
        add_product(count, transposed, features, a.by_weight + v * a.width);
        if (!a.by_bias) return;
        for (Int i = 0; i < count; i++) {
            float sum = 0;
            for (Int r = 0; r < rows; r++) sum += transposed[i * features.width + r];
            a.by_bias[v + i] += sum;
        }
    }
};

extern "C" void output_loss(const OutputLoss *arguments) {
    const OutputLoss &a = *arguments;
    const Weight weight(a);
    Scratch logits(smaller(a.piece, up(a.rows, BLOCK_ROWS)) * weight.stride);
    for (Int start = 0; start < a.rows; start += a.piece) {
        const Int rows = smaller(a.piece, a.rows - start), padded_rows = up(rows, BLOCK_ROWS);
        const Piece piece = {a, weight, start, rows, logits.at};
        const Zeros packed(up(a.width, BLOCK) * padded_rows);
        pack_transposed(a.width, padded_rows, rows, a.x + start * a.width, packed.at);
        const Map<float> features = map_of(a.width, padded_rows, packed.at);
#pragma omp parallel num_threads((int)a.threads) if (a.threads > 1)
        {
            Scratch transposed(BLOCK * padded_rows);
#pragma omp for schedule(static)
            for (Int first = 0; first < rows; first += BLOCK_ROWS) piece.compute_rows(first);
            if (a.training) {
#pragma omp for schedule(static)
                for (Int v = 0; v < a.vocabulary; v += BLOCK)
                    piece.compute_weight(v, features, transposed.at);
            }
        }
    }
}
