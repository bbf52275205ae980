// The cross-entropy of one row of logits with label smoothing

#pragma once

#include "common.h"

struct RowLoss {
    float log_p;      // log-probability of the target
    float log_p_all;  // sum of the log-probabilities of all tokens
    bool correct;     // whether the target has the largest logit; false in training
};

// The target distribution is `other` for each token, and `other` + `gap` for the target. In
// training, the gradients of the loss replace the logits (vocabulary). Otherwise, the logits are
// overwritten.
static inline RowLoss cross_entropy(
    Int vocabulary, Int target, float gap, float other, bool training, float *logits
) {
    float largest = -1e30f, total = 0, sum = 0;
#pragma omp simd reduction(max : largest) reduction(+ : total)
    for (Int v = 0; v < vocabulary; v++) {
        largest = logits[v] > largest ? logits[v] : largest;
        total += logits[v];
    }
    const float target_logit = logits[target];
    bool correct = false;
    if (!training) {
        Int first = 0;  // the first of the largest logits
        while (logits[first] < largest && first < vocabulary - 1) first++;
        correct = first == target;
    }
#pragma omp simd reduction(+ : sum)
    for (Int v = 0; v < vocabulary; v++) {
        logits[v] = exp_(logits[v] - largest);
        sum += logits[v];
    }
    const float log_z = largest + __builtin_logf(sum);
    if (training) {
        const float inverse = 1 / sum;
        logits[target] -= gap * sum;
#pragma omp simd
        for (Int v = 0; v < vocabulary; v++) logits[v] = logits[v] * inverse - other;
    }
    return {target_logit - log_z, total - vocabulary * log_z, correct};
}
