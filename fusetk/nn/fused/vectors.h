// A Vector has 16 numbers on every processor. It consists of several registers if they are shorter,
// because GCC compares vectors that are longer than a register number by number.

#pragma once

#include "common.h"

#include <string.h>

#if defined(__AVX512F__)
enum { WIDTH = 16 };  // numbers in a register
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
typedef float Register __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));
typedef int32_t IntRegister __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

// fusetk/nn/fused/structs.py has the constant LANES, too.
enum { LANES = 16, REGISTERS = LANES / WIDTH };

// -1 where a comparison is true, and 0 where it is false
struct Condition {
    IntRegister registers[REGISTERS];
};

struct Vector {
    Register registers[REGISTERS];
};

// A Vector or Condition whose registers are of_register(0), of_register(1) and so on. There is no
// loop, because GCC keeps an array in memory if a loop indexes it.
template <class Result, class Function>
static inline Result join(Function of_register) {
    static_assert(REGISTERS == 1 || REGISTERS == 2 || REGISTERS == 4);
    if constexpr (REGISTERS == 1)
        return {{of_register(0)}};
    else if constexpr (REGISTERS == 2)
        return {{of_register(0), of_register(1)}};
    else
        return {{of_register(0), of_register(1), of_register(2), of_register(3)}};
}

static inline Vector fill(float x) {
    return join<Vector>([=](int) { return x - Register{}; });
}

static inline Vector load(const float *x) {
    return join<Vector>([=](int k) { return *(const Register *)(x + k * WIDTH); });
}

static inline Vector load(const Bf16 *x) {
    typedef Bf16 Halves __attribute__((vector_size(2 * WIDTH), aligned(2), may_alias));
    return join<Vector>([=](int k) {
        const Halves upper = *(const Halves *)(x + k * WIDTH);
        return (Register)(__builtin_convertvector(upper, IntRegister) << 16);
    });
}

// The first n < 16 numbers; the others are `rest`.
static inline Vector load_part(const float *p, Int n, float rest) {
    Vector v = fill(rest);
    memcpy(&v, p, n * sizeof(float));
    return v;
}

static inline void store(float *x, Vector v) {
    for (int k = 0; k < REGISTERS; k++) *(Register *)(x + k * WIDTH) = v.registers[k];
}

#define OPERATOR(sign, Result)                                                          \
    static inline Result operator sign(Vector a, Vector b) {                            \
        return join<Result>([=](int k) { return a.registers[k] sign b.registers[k]; }); \
    }                                                                                   \
    static inline Result operator sign(Vector a, float b) { return a sign fill(b); }    \
    static inline Result operator sign(float a, Vector b) { return fill(a) sign b; }
OPERATOR(+, Vector)
OPERATOR(-, Vector)
OPERATOR(*, Vector)
OPERATOR(<, Condition)
OPERATOR(>, Condition)
OPERATOR(>=, Condition)
OPERATOR(!=, Condition)
#undef OPERATOR

static inline Vector operator-(Vector a) { return 0.0f - a; }
template <class T>
static inline Vector &operator+=(Vector &a, T b) { return a = a + b; }
template <class T>
static inline Vector &operator*=(Vector &a, T b) { return a = a * b; }

static inline Condition &operator|=(Condition &a, Condition b) {
    return a = join<Condition>([=](int k) { return a.registers[k] | b.registers[k]; });
}

static inline bool contains_true(Condition v) {
    IntRegister any = v.registers[0];
    for (int k = 1; k < REGISTERS; k++) any |= v.registers[k];
    union { IntRegister v; Int integers[WIDTH / 2]; } a = {any};
    Int bits = 0;
    for (int i = 0; i < WIDTH / 2; i++) bits |= a.integers[i];
    return bits;
}

static inline Vector select(Condition condition, Vector yes, Vector no) {
    return join<Vector>([=](int k) {
        return condition.registers[k] ? yes.registers[k] : no.registers[k];
    });
}

static inline Vector larger(Vector a, Vector b) { return select(b > a, b, a); }  // a if a is NaN

// Convert LANES integers to float.
template <class From>
static inline Vector to_float(const From *x) {
    typedef From Numbers __attribute__((vector_size(sizeof(From) * WIDTH), aligned(1), may_alias));
    return join<Vector>([=](int k) {
        const Numbers numbers = *(const Numbers *)(x + k * WIDTH);
        const IntRegister integers = __builtin_convertvector(numbers, IntRegister);
        return __builtin_convertvector(integers, Register);
    });
}

// Number places[i] of a and b, joined, for each i. The places are constants, so that the compiler
// finds an instruction.
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

// Exchange the blocks of S numbers beside the diagonal of a 2 S x 2 S matrix, in all registers.
template <int S>
static inline void exchange(Register &a, Register &b) {
    IntRegister low, high;
    for (int i = 0; i < WIDTH; i++) {
        low[i] = i & S ? WIDTH + i - S : i;
        high[i] = i & S ? WIDTH + i : i + S;
    }
    const Register first = shuffle(a, b, low);
    b = shuffle(a, b, high);
    a = first;
}

template <int S>
static inline void exchange_rows(Register *rows) {
    UNROLLED for (int i = 0; i < WIDTH; i++)
        if (!(i & S)) exchange<S>(rows[i], rows[i + S]);
}

// Transpose a matrix of WIDTH registers.
static inline void transpose(Register *rows) {
    exchange_rows<1>(rows);
    exchange_rows<2>(rows);
    if constexpr (WIDTH > 4) exchange_rows<4>(rows);
    if constexpr (WIDTH > 8) exchange_rows<8>(rows);
}

static inline Register sum_of_registers(Vector v) {
    Register r = v.registers[0];
    for (int k = 1; k < REGISTERS; k++) r += v.registers[k];
    return r;
}

// The sum of the numbers in each of LANES vectors
static inline Vector sums(const Vector *v) {
    return join<Vector>([=](int k) {
        Register x[WIDTH];
        UNROLLED for (int i = 0; i < WIDTH; i++) x[i] = sum_of_registers(v[k * WIDTH + i]);
        return sums(x);
    });
}

// x with the numbers at a distance of S exchanged
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

static inline float sum(Vector v) { return sum(sum_of_registers(v)); }

static inline float max(Vector v) {
    Register r = v.registers[0];
    for (int k = 1; k < REGISTERS; k++) r = v.registers[k] > r ? v.registers[k] : r;
    return max(r);
}

// 1.5 * 2^23: x + ROUND - ROUND is x, rounded to an integer, for |x| < 2^22.
static const float ROUND = 12582912.0f;

// e^x for x <= 0
static inline Vector exp_(Vector x) {
    x = larger(x, fill(-87.0f));
    const Vector rounded = (x * 1.44269504f + ROUND) - ROUND;
    return join<Vector>([=](int k) {
        const IntRegister exponent = __builtin_convertvector(rounded.registers[k], IntRegister);
        const Register power = (Register)((exponent + 127) << 23);
        return exp_of_rest(x.registers[k], rounded.registers[k]) * power;
    });
}

// n, rounded up to full vectors. The form of the expression shows this to the compiler.
static inline Int padded(Int n) { return (n + LANES - 1) / LANES * LANES; }
