// Vectors of 16 numbers on every processor: each is as many of its registers as are needed. (A
// compiler's vectors that are longer than a register are compared number by number.)

#pragma once

#include "common.h"

#if defined(__AVX512F__)
enum { WIDTH = 16 };  // numbers in a register
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef float Register __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t IntRegister __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

// fusetk/nn/fused/decoding.py has the constant LANES, too.
enum { LANES = 16, PARTS = LANES / WIDTH };

struct IntVector {
    IntRegister part[PARTS];
};

struct Vector {
    Register part[PARTS];
};

static inline Vector fill(float x) {
    Vector v;
    for (int p = 0; p < PARTS; p++) v.part[p] = x - (Register){};
    return v;
}

static inline Vector load(const float *x) {
    Vector v;
    for (int p = 0; p < PARTS; p++) v.part[p] = *(const Register *)(x + p * WIDTH);
    return v;
}

static inline void store(float *x, Vector v) {
    for (int p = 0; p < PARTS; p++) *(Register *)(x + p * WIDTH) = v.part[p];
}

#define OPERATOR(sign, Result)                                                              \
    static inline Result operator sign(Vector a, Vector b) {                                \
        Result r;                                                                           \
        for (int p = 0; p < PARTS; p++) r.part[p] = a.part[p] sign b.part[p];               \
        return r;                                                                           \
    }                                                                                       \
    static inline Result operator sign(Vector a, float b) { return a sign fill(b); }        \
    static inline Result operator sign(float a, Vector b) { return fill(a) sign b; }
OPERATOR(+, Vector)
OPERATOR(-, Vector)
OPERATOR(*, Vector)
OPERATOR(<, IntVector)
OPERATOR(>, IntVector)
OPERATOR(>=, IntVector)
OPERATOR(!=, IntVector)
#undef OPERATOR

static inline Vector operator-(Vector a) { return 0.0f - a; }
template <class T>
static inline Vector &operator+=(Vector &a, T b) { return a = a + b; }
template <class T>
static inline Vector &operator*=(Vector &a, T b) { return a = a * b; }

static inline IntVector &operator|=(IntVector &a, IntVector b) {
    for (int p = 0; p < PARTS; p++) a.part[p] |= b.part[p];
    return a;
}

static inline bool contains_true(IntVector v) {
    IntRegister any = v.part[0];
    for (int p = 1; p < PARTS; p++) any |= v.part[p];
    union { IntRegister v; Int parts[WIDTH / 2]; } a = {any};
    Int bits = 0;
    for (int i = 0; i < WIDTH / 2; i++) bits |= a.parts[i];
    return bits;
}

static inline Vector select(IntVector condition, Vector yes, Vector no) {
    Vector r;
    for (int p = 0; p < PARTS; p++)
        r.part[p] = condition.part[p] ? yes.part[p] : no.part[p];
    return r;
}

static inline Vector larger(Vector a, Vector b) { return select(b > a, b, a); }  // a if a is NaN

// The conversion of each number. From has LANES numbers of a smaller type.
template <class From>
static inline Vector to_float(const From *x) {
    typedef From Numbers __attribute__((vector_size(sizeof(From) * WIDTH), aligned(1), may_alias));
    Vector r;
    for (int p = 0; p < PARTS; p++)
        r.part[p] = __builtin_convertvector(*(const Numbers *)(x + p * WIDTH), Register);
    return r;
}

template <class To>
static inline void store_integers(To *x, Vector v) {
    typedef To Numbers __attribute__((vector_size(sizeof(To) * WIDTH), aligned(1), may_alias));
    for (int p = 0; p < PARTS; p++) {
        const IntRegister integers = __builtin_convertvector(v.part[p], IntRegister);
        *(Numbers *)(x + p * WIDTH) = __builtin_convertvector(integers, Numbers);
    }
}

// The numbers of a (0 to WIDTH - 1) and b (the others) at `places`, which are constants.
static inline Register shuffle(Register a, Register b, IntRegister places) {
#ifdef __clang__
    Register r;
    for (int i = 0; i < WIDTH; i++) r[i] = places[i] < WIDTH ? a[places[i]] : b[places[i] - WIDTH];
    return r;
#else
    return __builtin_shuffle(a, b, places);
#endif
}

// Add the two halves of each group of 2 S numbers: the groups of a, then those of b.
template <int S>
static inline Register add_halves(Register a, Register b) {
    IntRegister first;
    for (int i = 0; i < WIDTH; i++) first[i] = i / S * 2 * S + i % S;
    return shuffle(a, b, first) + shuffle(a, b, first + S);
}

// The sums of the numbers in each of WIDTH registers, which are overwritten.
template <int S = WIDTH / 2>
static inline Register sums(Register *x) {
    for (int i = 0; i < S; i++) x[i] = add_halves<S>(x[2 * i], x[2 * i + 1]);
    if constexpr (S > 1)
        return sums<S / 2>(x);
    else
        return x[0];
}

static inline Register sum_of_parts(Vector v) {
    Register r = v.part[0];
    for (int p = 1; p < PARTS; p++) r += v.part[p];
    return r;
}

// The sum of the numbers in each of LANES vectors
static inline Vector sums(const Vector *v) {
    Vector r;
    for (int p = 0; p < PARTS; p++) {
        Register x[WIDTH];
        for (int i = 0; i < WIDTH; i++) x[i] = sum_of_parts(v[p * WIDTH + i]);
        r.part[p] = sums(x);
    }
    return r;
}

// Exchange numbers at a distance of S.
template <int S>
static inline Register swapped(Register x) {
    IntRegister places;
    for (int i = 0; i < WIDTH; i++) places[i] = i ^ S;
    return shuffle(x, x, places);
}

template <int S = WIDTH / 2>
static inline float sum(Register x) {
    x += swapped<S>(x);
    if constexpr (S > 1)
        return sum<S / 2>(x);
    else
        return x[0];
}

template <int S = WIDTH / 2>
static inline float max(Register x) {
    const Register other = swapped<S>(x);
    x = other > x ? other : x;
    if constexpr (S > 1)
        return max<S / 2>(x);
    else
        return x[0];
}

static inline float sum(Vector v) { return sum(sum_of_parts(v)); }

static inline float max(Vector v) {
    Register r = v.part[0];
    for (int p = 1; p < PARTS; p++) r = v.part[p] > r ? v.part[p] : r;
    return max(r);
}

// 1.5 * 2^23: x + ROUND - ROUND is x, rounded to an integer, for |x| < 2^22.
static const float ROUND = 12582912.0f;

// e^x for x <= 0
static inline Vector exp_(Vector x) {
    x = larger(x, fill(-87.0f));
    const Vector k = (x * 1.44269504f + ROUND) - ROUND;
    Vector power;
    for (int p = 0; p < PARTS; p++)
        power.part[p] = (Register)((__builtin_convertvector(k.part[p], IntRegister) + 127) << 23);
    return exp_of_rest(x, k) * power;
}
