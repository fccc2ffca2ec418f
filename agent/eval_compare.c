/* Next-token distributions of a coded cache against those of an exact one. */
#include <math.h>
#include <string.h>

#include "agent/eval_internal.h"

static void keep_row(void *ctx, int row, const float *logits)
{
    eval_reference *r = ctx;
    krn_log_softmax(logits, r->log_p + (size_t)row * (size_t)r->vocab, r->vocab);
}

status eval_reference_open(
        const model_tool *t, eval_kv *exact, const int32_t *ids, int n, eval_reference *out, err *e)
{
    eval_reference r = {.n = n, .vocab = model_get_config(t->m)->vocab, .ids = ids};
    r.log_p = base_zalloc((size_t)n * (size_t)r.vocab, sizeof *r.log_p);
    if (r.log_p == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for the distributions of %d tokens", n);
    }
    status s = eval_kv_run(t, exact, ids, n, keep_row, &r, e);
    if (s != ST_OK) {
        eval_reference_close(&r);
        return s;
    }
    *out = r;
    return ST_OK;
}

void eval_reference_close(eval_reference *r)
{
    base_free(r->log_p);
    *r = (eval_reference){0};
}

typedef struct comparison {
    const eval_reference *r;
    eval_damage *sum;
    float *log_q; /* [vocab] */
} comparison;

static void compare_row(void *ctx, int row, const float *logits)
{
    comparison *c = ctx;
    int vocab = c->r->vocab;
    const float *log_p = c->r->log_p + (size_t)row * (size_t)vocab;
    double kl = 0.0;
    krn_log_softmax(logits, c->log_q, vocab);
    for (int i = 0; i < vocab; i++) {
        kl += (double)expf(log_p[i]) * ((double)log_p[i] - (double)c->log_q[i]);
    }
    c->sum->tokens++;
    c->sum->kl += kl;
    c->sum->kl_squared += kl * kl;
    c->sum->top1_kept += krn_argmax(log_p, vocab) == krn_argmax(c->log_q, vocab);
    if (row + 1 < c->r->n) {
        int gold = c->r->ids[row + 1];
        c->sum->gold_tokens++;
        c->sum->added_nll += (double)log_p[gold] - (double)c->log_q[gold];
    }
}

status eval_compare(const model_tool *t, eval_kv *kv, const eval_reference *r, eval_damage *sum, err *e)
{
    comparison c = {.r = r, .sum = sum, .log_q = base_zalloc((size_t)r->vocab, sizeof(float))};
    if (c.log_q == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a distribution");
    }
    status s = eval_kv_run(t, kv, r->ids, r->n, compare_row, &c, e);
    base_free(c.log_q);
    return s;
}

double eval_damage_kl(const eval_damage *d)
{
    return d->tokens > 0 ? d->kl / (double)d->tokens : 0.0;
}

double eval_damage_kl_error(const eval_damage *d)
{
    double n = (double)d->tokens;
    if (n < 2.0) {
        return 0.0;
    }
    double variance = (d->kl_squared - d->kl * d->kl / n) / (n - 1.0);
    return variance > 0.0 ? sqrt(variance / n) : 0.0;
}
