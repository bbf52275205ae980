// Types and functions that several kernels use: storage in float or bfloat16, memory of a thread,
// and functions that the compiler can vectorise.

#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num() { return 0; }
#endif

typedef int64_t Int;
typedef uint16_t Bf16;

// For loops over an array of registers. Without it, GCC may replace such a loop by memset or unroll
// it too late, and then it keeps the array in memory.
#define UNROLLED _Pragma("GCC unroll 16")

// Return memory on the heap, aligned to cache lines. Without enough memory, the process ends with a
// message and the exit status of FusetkError: a thread of OpenMP cannot raise an error of Python.
static inline void *allocate(Int bytes) {
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!at && bytes)
#pragma omp critical(allocate)
    {
        fprintf(
            stderr, "fusetk: there is not enough memory (a kernel needs %lld bytes): end other "
            "programs\n", (long long)bytes
        );
        _Exit(2);
    }
    return at;
}

// Memory of one thread. It is on the heap, because long sentences would need a large stack.
struct Scratch {
    float *at;
    explicit Scratch(Int size) : at((float *)allocate(size * sizeof(float))) {}
    ~Scratch() { free(at); }
};

// Memory of one thread for several arrays. `start` frees all of them, and `take` returns the next
// one. Memory that is too small is replaced.
struct Buffer {
    enum { MAX_ARRAYS = 16 };
    float *blocks[MAX_ARRAYS];
    Int sizes[MAX_ARRAYS];
    int used;
    Buffer() : used(0) {
        for (int i = 0; i < MAX_ARRAYS; i++) blocks[i] = 0, sizes[i] = 0;
    }
    ~Buffer() {
        for (int i = 0; i < MAX_ARRAYS; i++) free(blocks[i]);
    }
    void start() { used = 0; }
    float *take(Int size) {
        int i = used++;
        if (sizes[i] < size) {
            free(blocks[i]);
            sizes[i] = size + size / 2;
            blocks[i] = (float *)allocate(sizes[i] * sizeof(float));
        }
        return blocks[i];
    }
};

static inline float get(const float *p, Int i) { return p[i]; }
static inline void put(float *p, Int i, float value) { p[i] = value; }

static inline float get(const Bf16 *p, Int i) {
    union { uint32_t bits; float value; } c;
    c.bits = (uint32_t)p[i] << 16;
    return c.value;
}

static inline void put(Bf16 *p, Int i, float value) {  // round to nearest, ties to even
    union { uint32_t bits; float value; } c;
    c.value = value;
    uint32_t rounded = (c.bits + 0x7fff + ((c.bits >> 16) & 1)) >> 16;
    p[i] = value == value ? (Bf16)rounded : (Bf16)0x7fc0;
}

// tanh as a quotient of polynomials. The error is a few units in the last place for |x| < 7.9. For
// larger |x|, |tanh| is 1 in float.
static inline float tanh_(float x) {
    x = x > 7.9053111f ? 7.9053111f : x;
    x = x < -7.9053111f ? -7.9053111f : x;
    float s = x * x;
    float p = -2.76076847742355e-16f;
    p = p * s + 2.00018790482477e-13f;
    p = p * s - 8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return x * p / q;
}

static inline float sigmoid(float x) { return 0.5f * tanh_(0.5f * x) + 0.5f; }

// e^(x - k ln 2) for the integer k next to x / ln 2. T is float or a vector of floats.
template <class T>
static inline T exp_of_rest(T x, T k) {
    T r = x - k * 0.693359375f + k * 2.12194440e-4f;
    T p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return p * r * r + r + 1.0f;
}

// e^x for x <= 0
static inline float exp_(float x) {
    x = x < -87.0f ? -87.0f : x;
    float k = __builtin_floorf(x * 1.44269504f + 0.5f);
    union { int32_t bits; float value; } c;
    c.bits = (int32_t)((uint32_t)((int32_t)k + 127) << 23);
    return exp_of_rest(x, k) * c.value;
}
