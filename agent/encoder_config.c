/* Configuration of the sentence encoder: what is read is checked, and what would need other code is refused by name. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/encoder_parts_internal.h"
#include "agent/jsonl_internal.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PATH_BYTES_MAX = 4096 };

/* One parsed file of the folder. */
typedef struct config_file {
    char path[PATH_BYTES_MAX];
    cJSON *json; /* NULL when the file may be missing and is */
} config_file;

static status file_read(const char *folder, const char *name, bool required, config_file *out, err *e)
{
    base_map map = {0};
    int length = snprintf(out->path, sizeof out->path, "%s/%s", folder, name);
    out->json = NULL;
    if (length < 0 || (size_t)length >= sizeof out->path) {
        return FAIL(e, ST_ERR_LIMIT, "path of the encoder is longer than %d bytes", PATH_BYTES_MAX);
    }
    if (!required && access(out->path, F_OK) != 0 && errno == ENOENT) {
        return ST_OK;
    }
    TRY(base_map_open(out->path, &map, e));
    status result = ST_OK;
    if (map.size > CONFIG_BYTES_MAX) {
        result = FAIL(e, ST_ERR_LIMIT, "%s: %zu bytes are too long for a configuration", out->path, map.size);
    } else {
        err inner = {0};
        result = jsonl_parse((const char *)map.data, map.size, &out->json, &inner);
        if (result != ST_OK) {
            (void)FAIL(e, result, "%s: %.200s", out->path, inner.text);
        } else if (!cJSON_IsObject(out->json)) {
            cJSON_Delete(out->json);
            out->json = NULL;
            result = FAIL(e, ST_ERR_FORMAT, "%s: not a JSON object", out->path);
        }
    }
    base_map_close(&map);
    return result;
}

static status get_int(
        const config_file *f, const char *name, int64_t missing, int64_t min, int max, int *out, err *e)
{
    int64_t value;
    err inner = {0};
    status result = jsonl_get_int(f->json, name, missing, min, max, &value, &inner);
    if (result != ST_OK || value < min) {
        return FAIL(e, ST_ERR_FORMAT, "%s: %s must be a whole number from %lld to %d", f->path, name,
                (long long)min, max);
    }
    *out = (int)value;
    return ST_OK;
}

/* A string member that must be `expected`; a missing one is taken to be. */
static status require_text(const config_file *f, const char *name, const char *expected, err *e)
{
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(f->json, name);
    if (member == NULL) {
        return ST_OK;
    }
    if (!cJSON_IsString(member) || strcmp(member->valuestring, expected) != 0) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "%s: %s is \"%.40s\"; only \"%s\" is supported", f->path, name,
                cJSON_IsString(member) ? member->valuestring : "not a string", expected);
    }
    return ST_OK;
}

static status check_model(const config_file *f, encoder_config *c, err *e)
{
    if (cJSON_GetObjectItemCaseSensitive(f->json, "model_type") == NULL) {
        return FAIL(e, ST_ERR_FORMAT, "%s: there is no model_type", f->path);
    }
    TRY(require_text(f, "model_type", "bert", e));
    TRY(require_text(f, "hidden_act", "gelu", e));
    TRY(require_text(f, "position_embedding_type", "absolute", e));
    TRY(get_int(f, "num_hidden_layers", -1, 1, 64, &c->layers, e));
    TRY(get_int(f, "hidden_size", -1, 32, 4096, &c->width, e));
    TRY(get_int(f, "num_attention_heads", -1, 1, 128, &c->heads, e));
    TRY(get_int(f, "intermediate_size", -1, 1, 16384, &c->ffn, e));
    TRY(get_int(f, "vocab_size", -1, 1, 1 << 22, &c->vocab, e));
    TRY(get_int(f, "max_position_embeddings", -1, 2, 1 << 20, &c->positions, e));
    TRY(get_int(f, "type_vocab_size", 2, 1, 1024, &c->types, e));
    int d = c->width / c->heads;
    if (c->width % c->heads != 0 || d % 32 != 0 || d > ENCODER_HEAD_DIM_MAX) {
        return FAIL(e, ST_ERR_UNSUPPORTED,
                "%s: hidden_size %d over %d heads; a head needs 32, 64, 96 or 128 channels", f->path,
                c->width, c->heads);
    }
    const cJSON *eps = cJSON_GetObjectItemCaseSensitive(f->json, "layer_norm_eps");
    double value = eps == NULL ? 1e-12 : eps->valuedouble;
    if ((eps != NULL && !cJSON_IsNumber(eps)) || !(value > 0 && value <= 1e-2)) {
        return FAIL(e, ST_ERR_FORMAT, "%s: layer_norm_eps must be a number above 0, at most 0.01", f->path);
    }
    c->eps = (float)value;
    return ST_OK;
}

/* Mean pooling and nothing else. */
static status check_pooling(const config_file *f, err *e)
{
    static const char mean[] = "pooling_mode_mean_tokens";
    const cJSON *member;
    cJSON_ArrayForEach (member, f->json) {
        bool is_mean = strcmp(member->string, mean) == 0;
        if (strncmp(member->string, "pooling_mode_", 13) == 0 && cJSON_IsTrue(member) != is_mean) {
            return FAIL(e, ST_ERR_UNSUPPORTED, "%s: %s is %s; only mean pooling is supported", f->path,
                    member->string, is_mean ? "not true" : "true");
        }
    }
    return ST_OK;
}

status encoder_config_read(const char *folder, encoder_config *out, err *e)
{
    encoder_config c = {0};
    config_file f;
    TRY(file_read(folder, "config.json", true, &f, e));
    status result = check_model(&f, &c, e);
    cJSON_Delete(f.json);
    TRY(result);

    TRY(file_read(folder, "1_Pooling/config.json", false, &f, e));
    result = f.json == NULL ? ST_OK : check_pooling(&f, e);
    cJSON_Delete(f.json);
    TRY(result);

    int limit = c.positions < ENCODER_IDS_MAX ? c.positions : ENCODER_IDS_MAX;
    c.ids_max = limit;
    TRY(file_read(folder, "sentence_bert_config.json", false, &f, e));
    result = f.json == NULL ? ST_OK : get_int(&f, "max_seq_length", limit, 2, c.positions, &c.ids_max, e);
    cJSON_Delete(f.json);
    TRY(result);
    c.ids_max = c.ids_max < limit ? c.ids_max : limit;
    *out = c;
    return ST_OK;
}
