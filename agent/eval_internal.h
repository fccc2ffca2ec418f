/*
 * Measuring codecs on a model: what `epimem eval` and `epimem calibrate` share.
 *
 * A text is computed once with an exact (BF16) cache while its keys and values are CAPTURED in float, after RoPE, in
 * model space. For each codec they are coded as the product would: rotated into stored space, rounded to BF16, the
 * middle packed into pages; the first and the last tokens stay BF16. The tokens that follow are then computed against
 * that cache by the product's forward pass, whose attention reads the pages in place.
 */
#ifndef EPIMEM_AGENT_EVAL_INTERNAL_H
#define EPIMEM_AGENT_EVAL_INTERNAL_H

#include <stdio.h>

#include "agent/model_internal.h"
#include "agent/model_tool_internal.h"

enum {
    EVAL_SINK_TOKENS = 64,    /* exact for every codec, as the product's */
    EVAL_RECENT_TOKENS = 256, /* likewise */
    EVAL_BLOCK_ROWS = 64      /* tokens of one forward pass */
};

/* ---- texts ---- */

/* The tokens of a text: a system message as the model's template has it, then the file's content as plain text; LoCoMo
 * and REALTALK conversations become "[date]" and "speaker: text" lines. Appends at most max_tokens. */
status eval_text_read(const model_tool *t, const char *path, int64_t max_tokens, token_list *out, err *e);
/* Appends that text, without the system message, to a buffer of at most EVAL_TEXT_BYTES_MAX. */
enum { EVAL_TEXT_BYTES_MAX = 64 << 20 };
status eval_text_load(const char *path, base_buf *text, err *e);
/* The tokens of a text in memory. */
status eval_text_encode(
        const model_tool *t, const char *text, size_t bytes, int64_t max_tokens, token_list *out, err *e);
/* A conversation's JSON as plain text; *found is false, and nothing appended, for any other content. */
status eval_text_conversation(const char *json, size_t bytes, base_buf *text, bool *found, err *e);

/* ---- codecs to measure ---- */

enum { EVAL_CODECS_MAX = 32 };
typedef struct eval_codecs {
    kvq_codec *codec[EVAL_CODECS_MAX];
    int n;
} eval_codecs;
/* Codecs by names with commas; names NULL: all that can be opened with this calibration (NULL: without one). A calibration
 * of other weights is refused. What was opened before an error is in *out, to be closed. */
status eval_codecs_open(
        const model_tool *t, const char *names, const char *calibration_path, eval_codecs *out, err *e);
void eval_codecs_close(eval_codecs *c);

/* ---- captured keys and values ---- */

typedef struct eval_capture {
    int layers, kv_heads, q_heads, d;
    int64_t tokens, max_tokens;
    float *k, *v; /* [layer][head][max_tokens][d] */
} eval_capture;
status eval_capture_open(const model *m, int64_t max_tokens, eval_capture *out, err *e);
void eval_capture_close(eval_capture *c);
static inline size_t eval_capture_at(const eval_capture *c, int layer, int head, int64_t token)
{
    size_t row = ((size_t)layer * (size_t)c->kv_heads + (size_t)head) * (size_t)c->max_tokens + (size_t)token;
    return row * (size_t)c->d;
}

/* Told the queries of n tokens from `first` on, [n][H][d] before RoPE. */
typedef void (*eval_on_queries)(void *ctx, int layer, int64_t first, int n, const float *q);
/* Computes ids with an exact cache and fills the capture; on_queries may be NULL. */
status eval_capture_run(const model_tool *t,
        const int32_t *ids,
        int64_t n,
        eval_capture *c,
        eval_on_queries on_queries,
        void *ctx,
        err *e);

/* ---- a cache of captured rows, coded ---- */

typedef struct eval_kv eval_kv;
/* Rows of the capture through the codec, with room for n_more tokens behind them. The capture is not read later. */
status eval_kv_open(const model_tool *t,
        const kvq_codec *codec,
        const eval_capture *c,
        int n_more,
        eval_kv **out,
        err *e);
/* Everything exact, but the middle keys of one layer coded and decoded: what ranks layers. */
status eval_kv_open_one_layer(const model_tool *t,
        const kvq_codec *codec,
        const eval_capture *c,
        int layer,
        int n_more,
        eval_kv **out,
        err *e);
void eval_kv_close(eval_kv *kv);
double eval_kv_encode_us(const eval_kv *kv); /* taken to rotate and code all middle tokens, all threads */
int64_t eval_kv_coded_tokens(const eval_kv *kv);
int64_t eval_kv_context(const eval_kv *kv); /* tokens of the capture */
/* Decodes every page to floats, and tells the time taken. The attention kernel needs no such copy. */
status eval_kv_decode_us(const model_tool *t, eval_kv *kv, double *us, err *e);
/* Forgets the new tokens and makes room for n; what a forward pass of them is given. */
const model_kv *eval_kv_prepare(eval_kv *kv, int n);

/* Told the logits [n][vocab] after n tokens of the run, from token `first` of it on. */
typedef void (*eval_on_logits)(void *ctx, int first, int n, const float *logits);
/* Computes n tokens behind the cache, n at most n_more. */
status eval_kv_run(const model_tool *t,
        eval_kv *kv,
        const int32_t *ids,
        int n,
        eval_on_logits on_logits,
        void *ctx,
        err *e);

/* ---- distributions compared ---- */

/* Log-probabilities after each token of the exact run. */
typedef struct eval_reference {
    int n, vocab;
    const int32_t *ids; /* [n] */
    float *log_p;       /* [n][vocab] */
} eval_reference;
status eval_reference_open(
        const model_tool *t, eval_kv *exact, const int32_t *ids, int n, eval_reference *out, err *e);
void eval_reference_close(eval_reference *r);

/* Sums over tokens; several texts add up. */
typedef struct eval_damage {
    int64_t tokens, gold_tokens, top1_kept;
    double kl, kl_squared, added_nll;
} eval_damage;
status eval_compare(const model_tool *t, eval_kv *kv, const eval_reference *r, eval_damage *sum, err *e);
double eval_damage_kl(const eval_damage *d);
double eval_damage_kl_error(const eval_damage *d); /* standard error of the mean over tokens */

/* ---- attention compared ---- */

enum { EVAL_LAYERS_MAX = 256 };
/* Squared differences of attention outputs and squared exact ones, by layer; several texts add up. */
typedef struct eval_attention {
    double noise[EVAL_LAYERS_MAX], power[EVAL_LAYERS_MAX];
    double token_us; /* attention of one token over the whole cache in all layers, all threads, of tokens_timed */
    int tokens_timed;
} eval_attention;
/* The first min(n, EVAL_BLOCK_ROWS) tokens behind the context: their queries, and attention outputs over the exact cache. */
typedef struct eval_probe eval_probe;
status eval_probe_open(
        const model_tool *t, eval_kv *exact, const int32_t *ids, int n, eval_probe **out, err *e);
void eval_probe_close(eval_probe *p);
/* The same queries, keys and values over a coded cache with room for them. */
void eval_probe_compare(const model_tool *t, const eval_probe *p, eval_kv *kv, eval_attention *sum);

/* ---- pictures ---- */

bool eval_svg_accepts(const char *path); /* does it end in .svg? */
/* A white picture of that size in pixels. */
status eval_svg_open(const char *path, int width, int height, FILE **out, err *e);
status eval_svg_close(FILE *f, const char *path, err *e);

/* ---- programs under `epimem eval` ---- */
int eval_codec_main(int argc, char **argv);
int eval_needle_main(int argc, char **argv);
int eval_memory_main(int argc, char **argv);

#endif
