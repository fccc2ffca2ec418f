/* Which codec an engine stores its cache with; the rule is in engine_internal.h. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/engine_internal.h"

static const char suffix[] = ".calibration.safetensors";

void agent_calibration_path(const char *model_path, char *out, size_t bytes)
{
    size_t n = strlen(model_path), cut = strlen(".gguf");
    if (n > cut && strcmp(model_path + n - cut, ".gguf") == 0) {
        n -= cut;
    }
    (void)snprintf(out, bytes, "%.*s%s", (int)n, model_path, suffix);
}

/* The codec that a data folder was made with, out of what open_store wrote there; false: no folder yet. */
static bool codec_of_folder(const char *path, char *name, size_t bytes)
{
    char text[CODEC_CHOICE_TEXT_BYTES];
    static const char before[] = "; codec ";
    if (path == NULL || store_peek_fingerprint(path, text, sizeof text, NULL) != ST_OK) {
        return false; /* opening it will say what is wrong with it */
    }
    const char *at = strstr(text, before);
    if (at == NULL) {
        return false;
    }
    at += strlen(before);
    size_t n = strcspn(at, " ");
    if (n == 0 || n >= bytes) {
        return false;
    }
    (void)snprintf(name, bytes, "%.*s", (int)n, at);
    return true;
}

static void choose_name(const agent_options *o, bool has_calibration, codec_choice *out)
{
    if (o->codec != NULL) {
        (void)snprintf(out->name, sizeof out->name, "%s", o->codec);
        out->why = "as asked for";
    } else if (o->calibration_path == NULL && codec_of_folder(o->data_path, out->name, sizeof out->name)) {
        out->why = "which this data folder was made with";
    } else {
        (void)snprintf(out->name, sizeof out->name, "%s", has_calibration ? "oscar+" : "turboquant");
        out->why = has_calibration ? "since there is a calibration" : "since there is no calibration";
    }
}

status codec_choose(const agent_options *o, codec_choice *out, err *e)
{
    agent_calibration_path(o->model_path, out->calibration, sizeof out->calibration);
    bool has_calibration = o->calibration_path != NULL || access(out->calibration, F_OK) == 0;
    choose_name(o, has_calibration, out);
    if (o->calibration_path != NULL) {
        (void)snprintf(out->calibration, sizeof out->calibration, "%s", o->calibration_path);
    } else if (!kvq_codec_is_calibrated(out->name)) {
        out->calibration[0] = '\0';
    } else if (!has_calibration) {
        return FAIL(e, ST_ERR_NOT_FOUND,
                "codec %s (%s) needs a calibration and %s does not exist: `epimem calibrate -m %s` makes it",
                out->name, out->why, out->calibration, o->model_path);
    }
    if (!has_calibration && o->codec == NULL) {
        LOG_I("codec %s, %s; `epimem calibrate -m %s` makes one: new data folders then lose less", out->name,
                out->why, o->model_path);
    } else {
        LOG_I("codec %s, %s", out->name, out->why);
    }
    return ST_OK;
}

status codec_open_chosen(const agent_options *o, const model *m, kvq_codec **out, err *e)
{
    codec_choice choice;
    const model_config *c = model_get_config(m);
    const kvq_shape shape = {.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    TRY(codec_choose(o, &choice, e));
    const char *calibration = choice.calibration[0] != '\0' ? choice.calibration : NULL;
    if (calibration != NULL) {
        TRY(kvq_calibration_check(calibration, c->name, model_fingerprint(m), e));
    }
    return kvq_codec_open(choice.name, &shape, calibration, out, e);
}
