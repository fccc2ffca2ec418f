#include "episodes/vectors_internal.h"

#include <math.h>
#include <string.h>

enum { CODE_MAX = 127, PROBE_ONE = 32767 };

bool ep_unit(float *v, int dim)
{
    double norm = 0;
    for (int i = 0; i < dim; i++) {
        norm += (double)v[i] * (double)v[i];
    }
    if (!isfinite(norm)) {
        return false;
    }
    double scale = norm > 0 ? 1 / sqrt(norm) : 0;
    for (int i = 0; i < dim; i++) {
        v[i] = (float)((double)v[i] * scale);
    }
    return true;
}

void ep_probe_set(ep_probe *p, const float *v, int dim)
{
    REQUIRE(dim <= EP_DIM_MAX);
    p->dim = dim;
    for (int i = 0; i < dim; i++) {
        long x = lrintf(v[i] * PROBE_ONE);
        p->code[i] = (int16_t)(x > PROBE_ONE ? PROBE_ONE : x < -PROBE_ONE ? -PROBE_ONE : x);
    }
}

void ep_vector_code(const float *v, int dim, int8_t *codes, float *step)
{
    float largest = 0;
    for (int i = 0; i < dim; i++) {
        largest = fabsf(v[i]) > largest ? fabsf(v[i]) : largest;
    }
    *step = largest / CODE_MAX;
    for (int i = 0; i < dim; i++) {
        codes[i] = (int8_t)(largest > 0 ? lrintf(v[i] / largest * CODE_MAX) : 0);
    }
}

status ep_vectors_reserve(ep_vectors *p, int64_t more)
{
    void *codes = p->codes, *steps = p->steps;
    size_t need = (size_t)(p->count + more);
    TRY(base_grow(&codes, &p->code_cap, need, SIZE_MAX / (size_t)p->dim, (size_t)p->dim));
    p->codes = codes;
    TRY(base_grow(&steps, &p->step_cap, need, SIZE_MAX / sizeof *p->steps, sizeof *p->steps));
    p->steps = steps;
    return ST_OK;
}

int64_t ep_vectors_add(ep_vectors *p, const int8_t *codes, float step)
{
    REQUIRE((size_t)p->count < p->code_cap && (size_t)p->count < p->step_cap);
    ep_vectors_set(p, p->count, codes, step);
    return p->count++;
}

void ep_vectors_set(ep_vectors *p, int64_t i, const int8_t *codes, float step)
{
    memcpy(p->codes + (size_t)i * (size_t)p->dim, codes, (size_t)p->dim);
    p->steps[i] = step;
}

void ep_vectors_accumulate(const ep_vectors *p, int64_t i, float weight, float *out)
{
    const int8_t *codes = p->codes + (size_t)i * (size_t)p->dim;
    float w = weight * p->steps[i];
    for (int d = 0; d < p->dim; d++) {
        out[d] += w * (float)codes[d];
    }
}

/* Unit vectors keep the sum small: |sum| <= |a| |b| <= 127 sqrt(dim) * 32767 * 1.01 < 2^31 for dim <= 4096. */
int32_t ep_dot_scalar(const int8_t *a, const int16_t *b, int dim)
{
    int32_t sum = 0;
    for (int i = 0; i < dim; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

typedef int32_t (*dot_function)(const int8_t *a, const int16_t *b, int dim);

static dot_function dot_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return ep_dot_avx2;
    }
#endif
    return ep_dot_scalar;
}

static float cosine(int32_t sum, float step)
{
    return (float)((double)sum * (double)step / PROBE_ONE);
}

float ep_vectors_dot(const ep_vectors *p, int64_t i, const ep_probe *q)
{
    return cosine(dot_best()(p->codes + (size_t)i * (size_t)p->dim, q->code, p->dim), p->steps[i]);
}

void ep_vectors_scan(const ep_vectors *p, int64_t n, const ep_probe *q, float *out)
{
    dot_function dot = dot_best();
    for (int64_t i = 0; i < n; i++) {
        out[i] = cosine(dot(p->codes + (size_t)i * (size_t)p->dim, q->code, p->dim), p->steps[i]);
    }
}

void ep_vectors_free(ep_vectors *p)
{
    base_free(p->codes);
    base_free(p->steps);
    *p = (ep_vectors){.dim = p->dim};
}
