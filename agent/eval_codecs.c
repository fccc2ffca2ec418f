/* The codecs that a measurement is about: those named, or all that the calibration at hand allows. */
#include <stdio.h>
#include <string.h>

#include "agent/eval_internal.h"

static const char plain_codecs[] = "bf16,turboquant-k4,turboquant,hadamard,naive";
static const char calibrated_codecs[] = "oscar+k4,oscar+,bf16,turboquant-k4,turboquant,hadamard,naive";

static status open_one(const model_tool *t,
        const char *name,
        size_t bytes,
        const char *calibration_path,
        eval_codecs *list,
        err *e)
{
    const model_config *c = model_get_config(t->m);
    kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    char text[48];
    if (list->n == EVAL_CODECS_MAX) {
        return FAIL(e, ST_ERR_LIMIT, "more than %d codecs", EVAL_CODECS_MAX);
    }
    (void)snprintf(text, sizeof text, "%.*s", (int)bytes, name);
    bool calibrated = kvq_codec_is_calibrated(text);
    if (calibrated && calibration_path != NULL) {
        TRY(kvq_calibration_check(calibration_path, c->name, model_fingerprint(t->m), e));
    }
    TRY(kvq_codec_open_measured(
            text, &shape, calibrated ? calibration_path : NULL, &list->codec[list->n], e));
    list->n++;
    return ST_OK;
}

status eval_codecs_open(
        const model_tool *t, const char *names, const char *calibration_path, eval_codecs *out, err *e)
{
    const char *rest = names != NULL ? names : calibration_path != NULL ? calibrated_codecs : plain_codecs;
    out->n = 0;
    while (*rest != '\0') {
        size_t n = strcspn(rest, ",");
        TRY(open_one(t, rest, n, calibration_path, out, e));
        rest += n + (rest[n] == ',');
    }
    return out->n > 0 ? ST_OK : FAIL(e, ST_ERR_ARG, "--codecs is empty");
}

void eval_codecs_close(eval_codecs *c)
{
    for (int i = 0; i < c->n; i++) {
        kvq_codec_close(c->codec[i]);
    }
    c->n = 0;
}
