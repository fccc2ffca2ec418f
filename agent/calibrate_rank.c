/* Which layers' keys deserve four bits: the KL of coding one layer's keys at a time, on calibration text. */
#include "agent/calibrate_internal.h"

enum { TOKENS_PREDICTED = 128 };

static status rank_on_capture(const model_tool *t,
        const kvq_codec *codec,
        const eval_capture *c,
        const eval_reference *reference,
        double *damage,
        void (*on_layer)(int done, int all),
        err *e)
{
    for (int layer = 0; layer < c->layers; layer++) {
        eval_kv *kv = NULL;
        eval_damage sum = {0};
        TRY(eval_kv_open_one_layer(t, codec, c, layer, reference->n, &kv, e));
        status s = eval_compare(t, kv, reference, &sum, e);
        eval_kv_close(kv);
        TRY(s);
        damage[layer] += eval_damage_kl(&sum);
        on_layer(layer + 1, c->layers);
    }
    return ST_OK;
}

static status rank_behind(const model_tool *t,
        const kvq_codec *codec,
        const kvq_codec *exact_codec,
        const int32_t *next_ids,
        const eval_capture *context,
        double *damage,
        void (*on_layer)(int done, int all),
        err *e)
{
    eval_kv *exact = NULL;
    eval_reference reference = {0};
    TRY(eval_kv_open(t, exact_codec, context, TOKENS_PREDICTED, &exact, e));
    status s = eval_reference_open(t, exact, next_ids, TOKENS_PREDICTED, &reference, e);
    if (s == ST_OK) {
        s = rank_on_capture(t, codec, context, &reference, damage, on_layer, e);
    }
    eval_reference_close(&reference);
    eval_kv_close(exact);
    return s;
}

status calibrate_rank_layers(const model_tool *t,
        const kvq_codec *codec,
        const token_list *text,
        const eval_capture *capture,
        double *damage,
        void (*on_layer)(int done, int all),
        err *e)
{
    const model_config *c = model_get_config(t->m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    kvq_codec *exact = NULL;
    eval_capture context = *capture; /* the same rows, but for the last tokens */
    context.tokens = (int64_t)text->n - TOKENS_PREDICTED;
    if (context.tokens <= EVAL_SINK_TOKENS + EVAL_RECENT_TOKENS) {
        return ST_OK;
    }
    TRY(kvq_codec_open("bf16", &shape, NULL, &exact, e));
    status s = rank_behind(t, codec, exact, text->ids + context.tokens, &context, damage, on_layer, e);
    kvq_codec_close(exact);
    return s;
}

/* Mean of K and V, stored: two bits of V, K's, and an fp16 scale for each row. */
static double stored_bits(const kvq_calibration *c)
{
    double sum = 0.0;
    for (int layer = 0; layer < c->shape.layers; layer++) {
        sum += 0.5 * (2.0 + c->k_bits[layer]) + 16.0 / c->shape.d;
    }
    return sum / c->shape.layers;
}

void calibrate_assign_bits(kvq_calibration *c, const double *damage, double bits)
{
    for (int n = 0; n < c->shape.layers; n++) {
        int worst = -1;
        for (int layer = 0; layer < c->shape.layers; layer++) {
            if (c->k_bits[layer] == 2 && (worst < 0 || damage[layer] > damage[worst])) {
                worst = layer;
            }
        }
        c->k_bits[worst] = 4;
        if (stored_bits(c) > bits + 1e-9) {
            c->k_bits[worst] = 2;
            return;
        }
    }
}
