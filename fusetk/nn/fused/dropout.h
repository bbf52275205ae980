// Dropout whose mask follows from a seed.

#pragma once

#include "common.h"

// Element i of a tensor gets 16 bits of word i / 4 of a SplitMix64 generator (Steele et al. 2014).
// Therefore masks are computed again in the backward pass and not stored. nn/dropout_mask.py has
// the same function.
struct Dropout {
    uint64_t seed;
    Int threshold;  // an element is kept if its bits are at least this number
    float scale;    // factor of kept elements; 0: no dropout
};

typedef int16_t __attribute__((may_alias)) Bits;

// Word `number` of the generator, or a vector of words. T is uint64_t or a vector.
template <class T>
static inline T random_word(uint64_t seed, T number) {
    T z = seed + (number + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// Random words of one thread, for at most `elements` elements. A part of a word at each end needs 2
// words more, and the last vector of 8 words may have 7 that are not needed.
struct Words {
    uint64_t *at;
    explicit Words(Int elements)
        : at((uint64_t *)allocate((elements / 4 + 10) * sizeof(uint64_t))) {}
    ~Words() { free(at); }
};

typedef uint64_t WordVector __attribute__((vector_size(64), aligned(8), may_alias));

// Return the bits of `count` elements from element `first` on.
static inline const Bits *random_bits(const Dropout &drop, Int first, Int count, Words &words) {
    const Int begin = first / 4, end = (first + count + 3) / 4;
    for (Int w = begin; w < end; w += 8) {
        const WordVector numbers = (uint64_t)w + (WordVector){0, 1, 2, 3, 4, 5, 6, 7};
        *(WordVector *)(words.at + w - begin) = random_word(drop.seed, numbers);
    }
    return (const Bits *)words.at + first % 4;
}

// The factor of an element. The members of Dropout are copied, because the compiler must assume
// that a write of a result may change them.
struct Factor {
    const int threshold;
    const float scale;
    explicit Factor(const Dropout &drop) : threshold((int)drop.threshold), scale(drop.scale) {}
    inline float operator()(Bits bits) const { return (int)bits >= threshold ? scale : 0.0f; }
};
