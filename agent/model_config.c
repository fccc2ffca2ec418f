/* The settings of a model file: read, checked against each other, refused by key. */
#include "agent/model_parts_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    KEY_MISSING_IS_WRONG = -1,
    QUERY_GROUP_MAX = 16 /* what the attention kernels take */
};

void model_key(const model_config *config, const char *suffix, char key[96])
{
    (void)snprintf(key, 96, "%s.%s", config->architecture, suffix);
}

status model_key_int(const gguf *g,
        const model_config *config,
        const char *suffix,
        int64_t missing,
        int64_t min,
        int64_t max,
        int64_t *out,
        err *e)
{
    char key[96];
    uint64_t value = 0;
    model_key(config, suffix, key);
    if (missing != KEY_MISSING_IS_WRONG && !gguf_has(g, key)) {
        *out = missing;
        return ST_OK;
    }
    TRY(gguf_get_u64(g, key, &value, e));
    if (value > INT64_MAX || (int64_t)value < min || (int64_t)value > max) {
        return FAIL(e, ST_ERR_FORMAT, "%s: key %s is %" PRIu64 ", must be %" PRId64 " to %" PRId64,
                gguf_path(g), key, value, min, max);
    }
    *out = (int64_t)value;
    return ST_OK;
}

status model_key_double(
        const gguf *g, const model_config *config, const char *suffix, double missing, double *out, err *e)
{
    char key[96];
    model_key(config, suffix, key);
    *out = missing;
    if (!gguf_has(g, key)) {
        return ST_OK;
    }
    TRY(gguf_get_f64(g, key, out, e));
    if (!isfinite(*out)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: key %s is no finite number", gguf_path(g), key);
    }
    return ST_OK;
}

static void copy_text(gguf_string text, char *out, size_t out_bytes)
{
    size_t n = text.bytes < out_bytes - 1 ? text.bytes : out_bytes - 1;
    while (n > 0 && !base_utf8_valid(text.data, n)) {
        n--; /* a name cut inside a character, or none at all */
    }
    memcpy(out, text.data, n);
    out[n] = '\0';
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)out[i] < 0x20 || out[i] == 0x7f) {
            out[i] = ' ';
        }
    }
}

static status read_architecture(const gguf *g, model_config *c, err *e)
{
    static const char *const known[] = {"llama", "qwen2", "qwen3"};
    gguf_string name = {0};
    TRY(gguf_get_string(g, "general.architecture", &name, e));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (name.bytes == strlen(known[i]) && memcmp(name.data, known[i], name.bytes) == 0) {
            copy_text(name, c->architecture, sizeof c->architecture);
            c->qk_norm = i == 2;
            return ST_OK;
        }
    }
    char shown[64];
    copy_text(name, shown, sizeof shown);
    return FAIL(e, ST_ERR_UNSUPPORTED, "%s: general.architecture is \"%s\", must be llama, qwen2 or qwen3",
            gguf_path(g), shown);
}

/* Settings that would change what the layers compute, and that this program does not have. */
static status refuse_other_kinds(const gguf *g, const model_config *c, err *e)
{
    char key[96];
    bool is_causal = true;
    int64_t experts = 0;
    TRY(model_key_int(g, c, "expert_count", 0, 0, INT32_MAX, &experts, e));
    if (experts > 0) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: a mixture of %" PRId64 " experts, only dense models are supported", gguf_path(g),
                experts);
    }
    model_key(c, "attention.causal", key);
    if (gguf_has(g, key)) {
        TRY(gguf_get_bool(g, key, &is_causal, e));
    }
    if (!is_causal) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "%s: key %s is false: an encoder, no language model", gguf_path(g),
                key);
    }
    return ST_OK;
}

static status read_heads(const gguf *g, model_config *c, err *e)
{
    int64_t value_length = 0;
    int64_t x = 0;
    TRY(model_key_int(g, c, "attention.head_count", KEY_MISSING_IS_WRONG, 1, 1024, &x, e));
    c->q_heads = (int)x;
    TRY(model_key_int(g, c, "attention.head_count_kv", c->q_heads, 1, c->q_heads, &x, e));
    c->kv_heads = (int)x;
    if (c->q_heads % c->kv_heads != 0) {
        return FAIL(e, ST_ERR_FORMAT, "%s: %d query heads over %d key and value heads, must divide",
                gguf_path(g), c->q_heads, c->kv_heads);
    }
    if (c->q_heads / c->kv_heads > QUERY_GROUP_MAX) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "%s: %d query heads share a key and value head, at most %d may",
                gguf_path(g), c->q_heads / c->kv_heads, QUERY_GROUP_MAX);
    }
    TRY(model_key_int(g, c, "attention.key_length", c->width / c->q_heads, 1, 65536, &x, e));
    TRY(model_key_int(g, c, "attention.value_length", x, 1, 65536, &value_length, e));
    c->d = (int)x;
    if ((c->d != 64 && c->d != 128 && c->d != 256) || value_length != x) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: heads of %d (keys) and %" PRId64 " (values) channels, must both be 64, "
                "128 or 256",
                gguf_path(g), c->d, value_length);
    }
    return ST_OK;
}

status model_read_config(const gguf *g, model_config *c, err *e)
{
    gguf_string name = {0};
    err ignored;
    int64_t x = 0;
    double scale = 0.0;
    double eps = 0.0;
    TRY(read_architecture(g, c, e));
    TRY(refuse_other_kinds(g, c, e));
    if (gguf_get_string(g, "general.name", &name, &ignored) == ST_OK) {
        copy_text(name, c->name, sizeof c->name);
    }
    TRY(model_key_int(g, c, "block_count", KEY_MISSING_IS_WRONG, 1, 1024, &x, e));
    c->layers = (int)x;
    TRY(model_key_int(g, c, "embedding_length", KEY_MISSING_IS_WRONG, 1, 65536, &x, e));
    c->width = (int)x;
    TRY(model_key_int(g, c, "feed_forward_length", KEY_MISSING_IS_WRONG, 1, 1 << 20, &x, e));
    c->ffn = (int)x;
    TRY(model_key_int(g, c, "context_length", KEY_MISSING_IS_WRONG, 1, INT32_MAX, &c->context, e));
    TRY(read_heads(g, c, e));
    TRY(model_key_double(g, c, "attention.layer_norm_rms_epsilon", NAN, &eps, e));
    if (!(eps >= 0.0 && eps < 1.0)) {
        return FAIL(e, ST_ERR_FORMAT,
                "%s: key %s.attention.layer_norm_rms_epsilon must be there, from 0 to 1", gguf_path(g),
                c->architecture);
    }
    c->rms_eps = (float)eps;
    TRY(model_key_double(g, c, "attention.scale", 1.0 / sqrt((double)c->d), &scale, e));
    c->attention_scale = (float)scale;
    return ST_OK;
}
