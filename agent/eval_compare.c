/* Next-token distributions of a coded cache against those of an exact one. */
#include <math.h>
#include <string.h>

#include "agent/eval_internal.h"

typedef struct keep_job {
    const eval_reference *r;
    int first;
    const float *logits;
} keep_job;

static void keep_row(void *ctx, int task)
{
    const keep_job *job = ctx;
    size_t vocab = (size_t)job->r->vocab;
    krn_log_softmax(job->logits + (size_t)task * vocab, job->r->log_p + (size_t)(job->first + task) * vocab,
            job->r->vocab);
}

typedef struct keeping {
    const model_tool *t;
    const eval_reference *r;
} keeping;

static void keep_rows(void *ctx, int first, int n, const float *logits)
{
    const keeping *k = ctx;
    keep_job job = {.r = k->r, .first = first, .logits = logits};
    krn_pool_run(k->t->pool, keep_row, &job, n);
}

status eval_reference_open(
        const model_tool *t, eval_kv *exact, const int32_t *ids, int n, eval_reference *out, err *e)
{
    eval_reference r = {.n = n, .vocab = model_get_config(t->m)->vocab, .ids = ids};
    r.log_p = base_zalloc((size_t)n * (size_t)r.vocab, sizeof *r.log_p);
    if (r.log_p == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for the distributions of %d tokens", n);
    }
    keeping k = {.t = t, .r = &r};
    status s = eval_kv_run(t, exact, ids, n, keep_rows, &k, e);
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

/* What one row differs by. */
typedef struct row_damage {
    double kl, added_nll;
    bool top1_kept;
} row_damage;

typedef struct comparison {
    const model_tool *t;
    const eval_reference *r;
    eval_damage *sum;
    float *log_q; /* [EVAL_BLOCK_ROWS][vocab] */
    row_damage rows[EVAL_BLOCK_ROWS];
    int first;
    const float *logits;
} comparison;

static void compare_row(void *ctx, int task)
{
    comparison *c = ctx;
    int vocab = c->r->vocab, row = c->first + task;
    const float *log_p = c->r->log_p + (size_t)row * (size_t)vocab;
    float *log_q = c->log_q + (size_t)task * (size_t)vocab;
    row_damage *out = &c->rows[task];
    krn_log_softmax(c->logits + (size_t)task * (size_t)vocab, log_q, vocab);
    out->kl = 0.0;
    for (int i = 0; i < vocab; i++) {
        out->kl += (double)expf(log_p[i]) * ((double)log_p[i] - (double)log_q[i]);
    }
    out->top1_kept = krn_argmax(log_p, vocab) == krn_argmax(log_q, vocab);
    int gold = row + 1 < c->r->n ? c->r->ids[row + 1] : 0;
    out->added_nll = (double)log_p[gold] - (double)log_q[gold];
}

static void compare_rows(void *ctx, int first, int n, const float *logits)
{
    comparison *c = ctx;
    c->first = first;
    c->logits = logits;
    krn_pool_run(c->t->pool, compare_row, c, n);
    for (int i = 0; i < n; i++) {
        bool has_gold = first + i + 1 < c->r->n;
        c->sum->tokens++;
        c->sum->kl += c->rows[i].kl;
        c->sum->kl_squared += c->rows[i].kl * c->rows[i].kl;
        c->sum->top1_kept += c->rows[i].top1_kept;
        c->sum->gold_tokens += has_gold;
        c->sum->added_nll += has_gold ? c->rows[i].added_nll : 0.0;
    }
}

status eval_compare(const model_tool *t, eval_kv *kv, const eval_reference *r, eval_damage *sum, err *e)
{
    comparison c = {.t = t, .r = r, .sum = sum};
    c.log_q = base_zalloc((size_t)EVAL_BLOCK_ROWS * (size_t)r->vocab, sizeof(float));
    if (c.log_q == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for distributions");
    }
    status s = eval_kv_run(t, kv, r->ids, r->n, compare_rows, &c, e);
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
