/* Rotary position settings (Su et al. 2021, arXiv:2104.09864): theta_i = base^(-2i/dims), with the scaling the file
 * names. GGUF stores llama weights permuted so that neighbours (2i, 2i+1) form a pair; qwen pairs (i, i + dims/2).
 *
 * Scaling of theta_i:
 *   linear  theta_i / factor (Chen et al. 2023, arXiv:2306.15595).
 *   yarn    Peng et al. 2023, arXiv:2309.00071, section 3.2, "NTK-by-parts": slow pairs are interpolated, fast ones
 *           kept, a ramp between; cos and sin grow by 1 + 0.1 ln(factor) (section 3.4).
 *   llama3  a divisor per pair, stored as tensor rope_freqs.weight; or computed here from the four parameters. */
#include "agent/model_parts_internal.h"

#include <math.h>
#include <string.h>

static const double two_pi = 6.283185307179586476925286766559;

typedef enum scaling_type { SCALING_NONE, SCALING_LINEAR, SCALING_YARN, SCALING_LLAMA3 } scaling_type;

typedef struct scaling {
    scaling_type type;
    double base, factor;
    double original_context; /* that the model was trained with before scaling */
    int dims;
} scaling;

static status read_scaling_type(const gguf *g, const model_config *c, scaling_type *out, err *e)
{
    static const char *const names[] = {"none", "linear", "yarn", "llama3"};
    char key[96];
    gguf_string name = {0};
    model_key(c, "rope.scaling.type", key);
    *out = SCALING_NONE;
    if (!gguf_has(g, key)) {
        return ST_OK;
    }
    TRY(gguf_get_string(g, key, &name, e));
    for (int i = 0; i < 4; i++) {
        if (name.bytes == strlen(names[i]) && memcmp(name.data, names[i], name.bytes) == 0) {
            *out = (scaling_type)i;
            return ST_OK;
        }
    }
    return FAIL(e, ST_ERR_UNSUPPORTED, "%s: key %s is \"%.*s\", must be none, linear, yarn or llama3",
            gguf_path(g), key, (int)(name.bytes < 40 ? name.bytes : 40), name.data);
}

/* Pair at which a wave turns `turns` times within the original context (YaRN, eq. 17 solved for the pair). */
static double pair_of_turns(const scaling *s, double turns)
{
    return s->dims * log(s->original_context / (turns * two_pi)) / (2.0 * log(s->base));
}

static status scale_yarn(
        const gguf *g, const model_config *c, const scaling *s, double *inv_freq, double *magnitude, err *e)
{
    double beta_fast;
    double beta_slow;
    double extrapolated;
    TRY(model_key_double(g, c, "rope.scaling.yarn_beta_fast", 32.0, &beta_fast, e));
    TRY(model_key_double(g, c, "rope.scaling.yarn_beta_slow", 1.0, &beta_slow, e));
    TRY(model_key_double(g, c, "rope.scaling.yarn_ext_factor", 1.0, &extrapolated, e));
    if (!(beta_fast > 0.0 && beta_slow > 0.0 && s->base > 1.0)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: rope.scaling: YaRN's betas must be positive and the base above 1",
                gguf_path(g));
    }
    double low = fmax(0.0, floor(pair_of_turns(s, beta_fast)));
    double high = fmin(s->dims - 1, ceil(pair_of_turns(s, beta_slow)));
    for (int i = 0; i < s->dims / 2; i++) {
        double ramp = fmin(1.0, fmax(0.0, (i - low) / fmax(0.001, high - low)));
        double kept = (1.0 - ramp) * extrapolated;
        inv_freq[i] *= kept + (1.0 - kept) / s->factor;
    }
    *magnitude *= 1.0 + 0.1 * log(s->factor);
    return ST_OK;
}

static status scale_llama3(const gguf *g, const model_config *c, const scaling *s, double *inv_freq, err *e)
{
    double low;
    double high;
    TRY(model_key_double(g, c, "rope.scaling.low_freq_factor", 1.0, &low, e));
    TRY(model_key_double(g, c, "rope.scaling.high_freq_factor", 4.0, &high, e));
    if (!(low > 0.0 && high > low)) {
        return FAIL(e, ST_ERR_FORMAT,
                "%s: rope.scaling: low_freq_factor %g and high_freq_factor %g must rise from above 0",
                gguf_path(g), low, high);
    }
    for (int i = 0; i < s->dims / 2; i++) {
        double turns = s->original_context * inv_freq[i] / two_pi;
        double kept = fmin(1.0, fmax(0.0, (turns - low) / (high - low)));
        inv_freq[i] *= kept + (1.0 - kept) / s->factor;
    }
    return ST_OK;
}

static status divide_by_stored(const gguf *g, const scaling *s, double *inv_freq, bool *found, err *e)
{
    const gguf_tensor *t = gguf_find(g, "rope_freqs.weight");
    *found = t != NULL;
    if (t == NULL) {
        return ST_OK;
    }
    if (t->type != KRN_F32 || t->rank != 1 || t->size[0] != s->dims / 2) {
        return FAIL(e, ST_ERR_FORMAT, "%s: tensor rope_freqs.weight must be F32 of %d elements", gguf_path(g),
                s->dims / 2);
    }
    const float *divisor = t->data;
    for (int i = 0; i < s->dims / 2; i++) {
        if (!(divisor[i] > 0.0f && isfinite(divisor[i]))) {
            return FAIL(e, ST_ERR_FORMAT, "%s: tensor rope_freqs.weight: element %d is no positive number",
                    gguf_path(g), i);
        }
        inv_freq[i] /= (double)divisor[i];
    }
    return ST_OK;
}

static status read_scaling(const gguf *g, const model_config *c, scaling *s, err *e)
{
    int64_t dims;
    int64_t original;
    double legacy;
    TRY(model_key_int(g, c, "rope.dimension_count", c->d, 2, c->d, &dims, e));
    if (dims % 2 != 0) {
        return FAIL(e, ST_ERR_FORMAT, "%s: key %s.rope.dimension_count is %d, must be even", gguf_path(g),
                c->architecture, (int)dims);
    }
    s->dims = (int)dims;
    TRY(read_scaling_type(g, c, &s->type, e));
    TRY(model_key_double(g, c, "rope.freq_base", 10000.0, &s->base, e));
    TRY(model_key_double(
            g, c, "rope.scale_linear", 1.0, &legacy, e)); /* what linear scaling was called first */
    TRY(model_key_double(g, c, "rope.scaling.factor", legacy, &s->factor, e));
    TRY(model_key_int(g, c, "rope.scaling.original_context_length", c->context, 1, INT32_MAX, &original, e));
    if (!(s->base > 0.0) || !(s->factor > 0.0)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: rope.freq_base is %g and the scaling factor %g, must be positive",
                gguf_path(g), s->base, s->factor);
    }
    if (s->type == SCALING_NONE && legacy != 1.0) {
        s->type = SCALING_LINEAR;
    }
    s->original_context = (double)original;
    return ST_OK;
}

static status apply_scaling(
        const gguf *g, const model_config *c, const scaling *s, double *inv_freq, double *magnitude, err *e)
{
    bool is_stored;
    TRY(divide_by_stored(g, s, inv_freq, &is_stored, e));
    switch (s->type) {
    case SCALING_NONE:
        return ST_OK;
    case SCALING_LINEAR:
        for (int i = 0; i < s->dims / 2; i++) {
            inv_freq[i] /= s->factor;
        }
        return ST_OK;
    case SCALING_YARN:
        return scale_yarn(g, c, s, inv_freq, magnitude, e);
    case SCALING_LLAMA3:
        return is_stored ? ST_OK : scale_llama3(g, c, s, inv_freq, e);
    }
    return ST_OK;
}

status model_read_rope(const gguf *g, const model_config *c, krn_rope *rope, double **inv_freq, err *e)
{
    scaling s = {0};
    double attn_factor;
    double yarn_attn_factor;
    TRY(read_scaling(g, c, &s, e));
    TRY(model_key_double(g, c, "rope.scaling.attn_factor", 1.0, &attn_factor, e));
    TRY(model_key_double(g, c, "rope.scaling.yarn_attn_factor", 1.0, &yarn_attn_factor, e));
    double *theta = base_alloc((size_t)s.dims / 2 * sizeof *theta);
    if (theta == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "%s: out of memory", gguf_path(g));
    }
    for (int i = 0; i < s.dims / 2; i++) {
        theta[i] = pow(s.base, -2.0 * i / s.dims);
    }
    double magnitude = attn_factor * yarn_attn_factor;
    status st = apply_scaling(g, c, &s, theta, &magnitude, e);
    if (st != ST_OK) {
        base_free(theta);
        return st;
    }
    *rope = (krn_rope){
            .pairing = strcmp(c->architecture, "llama") == 0 ? KRN_ROPE_ADJACENT : KRN_ROPE_HALVES,
            .dims = s.dims,
            .inv_freq = theta,
            .magnitude = (float)magnitude,
    };
    *inv_freq = theta;
    return ST_OK;
}
