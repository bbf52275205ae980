// The operations around the matrix product of a gated convolution, forward and backward, each in
// one pass over memory. T is the type of the products, float or bfloat16. X is the type of the
// input, float or T. Sums are in float.

#include "dropout.h"

#include <string.h>

// Windows -----------------------------------------------------------------------------------------

// The padded input of a sentence has `before` positions, then the `length` positions of x, then
// positions with zeros, length + kernel - 1 in all. Window t has the padded positions t to
// t + kernel - 1 after dropout, one after the other.
struct Windows {
    Int threads, bf16, x_bf16, sentences, length, width, kernel, before;
    const void *x;            // X (sentences, length, width)
    Int sentence_step, step;  // elements from sentence to sentence and from position to position
    const void *earlier;      // X (sentences, before, width); null: zeros
    const uint8_t *mask;      // (sentences, length), where x is not replaced by zeros; null: all
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
    const Int width = a.width, of_x = position - a.before;
    const X *from = 0;
    if (of_x < 0) {
        if (a.earlier) from = (const X *)a.earlier + (sentence * a.before + position) * width;
    } else if (of_x < a.length && (!a.mask || a.mask[sentence * a.length + of_x])) {
        from = (const X *)a.x + sentence * a.sentence_step + of_x * a.step;
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
static void windows_backward(const Windows &a, Int sentence, Int of_x, Words &words, float *sums) {
    const Int width = a.width, position = a.before + of_x;
    X *to = (X *)a.by_x + (sentence * a.length + of_x) * width;
    memset(sums, 0, width * sizeof(float));
    if (!a.mask || a.mask[sentence * a.length + of_x]) {
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
