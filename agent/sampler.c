/* Choosing the next token: repetition penalty, temperature, top-k, top-p, min-p, one draw.
 *
 * 1. Nothing is kept between calls: draw number `step` of the stream `seed` is a hash of the two, so an answer that
 *    is taken up after a restart goes on as it would have.
 * 2. Nothing is allocated or sorted: the filters find their threshold in three passes over the digits of a float's
 *    bits. Among equal probabilities at a threshold the lower ids stay.
 * 3. Temperature 0 is greedy: the most probable token after the penalty, the lowest id among equals.
 *
 * Order: the filters see the probabilities that temperature has made, each those that the one before has left. */
#include "agent/model_internal.h"

#include <math.h>
#include <string.h>

typedef union float_bits {
    float f;
    uint32_t u;
} float_bits;

/* logit / penalty when positive, times it when negative, once per distinct id (Keskar et al. 2019, arXiv:1909.05858,
 * section 4.1, with the usual care for negative logits). */
static void penalise(float penalty, float *logits, int vocab, const int32_t *recent, int n_recent)
{
    for (int i = 0; i < n_recent; i++) {
        bool is_first = recent[i] >= 0 && recent[i] < vocab;
        for (int j = 0; j < i && is_first; j++) {
            is_first = recent[j] != recent[i];
        }
        if (is_first) {
            float *logit = &logits[recent[i]];
            *logit = *logit > 0.0f ? *logit / penalty : *logit * penalty;
        }
    }
}

/* Logits become probabilities relative to the largest: 1 for it, 0 for NaN. */
static void to_weights(float temperature, float *x, int vocab, float largest)
{
    for (int i = 0; i < vocab; i++) {
        float weight = expf((x[i] - largest) / temperature);
        x[i] = weight >= 0.0f && weight <= 1.0f ? weight : 0.0f;
    }
}

/* Keeps the fewest largest weights whose count or mass reaches `goal`; the rest become 0. The threshold is found ten
 * bits at a time: weights are in [0, 1], so their top two bits are 0 and their bits order as they do. */
static void keep_largest(float *x, int n, double goal, bool by_mass)
{
    double share[1024];
    double above = 0.0; /* share of the weights over those that begin with `threshold` */
    float_bits threshold = {.u = 0};
    for (int shift = 20; shift >= 0; shift -= 10) {
        int digit = 1023;
        memset(share, 0, sizeof share);
        for (int i = 0; i < n; i++) {
            float_bits weight = {.f = x[i]};
            if (weight.u >> (shift + 10) == threshold.u) {
                share[weight.u >> shift & 1023] += by_mass ? (double)x[i] : 1.0;
            }
        }
        while (digit > 0 && above + share[digit] < goal) {
            above += share[digit--];
        }
        threshold.u = threshold.u << 10 | (uint32_t)digit;
    }
    for (int i = 0; i < n; i++) {
        if (x[i] > threshold.f) {
            continue;
        }
        if (x[i] < threshold.f || above >= goal) {
            x[i] = 0.0f;
        } else {
            above += by_mass ? (double)x[i] : 1.0;
        }
    }
}

static double sum(const float *x, int n)
{
    double total = 0.0;
    for (int i = 0; i < n; i++) {
        total += (double)x[i];
    }
    return total;
}

/* SplitMix64's finaliser (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"). */
static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In [0, 1), 53 bits. */
static double uniform(uint64_t seed, uint64_t step)
{
    return (double)(mix(mix(seed) ^ mix(~step)) >> 11) * 0x1p-53;
}

static int32_t draw(const float *x, int n, double u)
{
    double total = sum(x, n);
    double reached = 0.0;
    int32_t last = 0;
    for (int i = 0; i < n; i++) {
        if (x[i] > 0.0f) {
            reached += (double)x[i];
            last = i;
            if (reached > u * total) {
                break;
            }
        }
    }
    return last;
}

int32_t sampler_pick(const sampler_options *o,
        float *logits,
        int vocab,
        const int32_t *recent,
        int n_recent,
        uint64_t step)
{
    if (o->repeat_penalty > 0.0f && o->repeat_penalty != 1.0f) {
        penalise(o->repeat_penalty, logits, vocab, recent, n_recent);
    }
    int32_t best = (int32_t)krn_argmax(logits, vocab);
    if (!(o->temperature > 0.0f) || !isfinite(logits[best])) {
        return best;
    }
    to_weights(o->temperature, logits, vocab, logits[best]);
    if (o->top_k > 0 && o->top_k < vocab) {
        keep_largest(logits, vocab, o->top_k, false);
    }
    if (o->top_p > 0.0f && o->top_p < 1.0f) {
        keep_largest(logits, vocab, (double)o->top_p * sum(logits, vocab), true);
    }
    for (int i = 0; i < vocab && o->min_p > 0.0f; i++) {
        logits[i] = logits[i] < o->min_p ? 0.0f : logits[i]; /* the largest is 1 */
    }
    return draw(logits, vocab, uniform(o->seed, step));
}
