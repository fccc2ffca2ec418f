/* engine: start, stop, queue, and the loop that batches the runs of all jobs. See engine_internal.h. */
#include "agent/engine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void agent_options_default(agent_options *o)
{
    *o = (agent_options){.recall_floor = -1.0f};
}

/* ---- the loop ---- */

static void take_queued(agent_engine *g)
{
    job **tail = &g->active;
    while (*tail != NULL) {
        tail = &(*tail)->next;
    }
    while (g->queue_first != NULL && g->active_count < g->options.parallel_max) {
        job *j = g->queue_first;
        g->queue_first = j->next;
        g->queue_last = g->queue_first == NULL ? NULL : g->queue_last;
        g->queued--;
        g->active_count++;
        j->next = NULL;
        *tail = j;
        tail = &j->next;
    }
}

/* Waits for work. False when the engine is to stop. */
static bool wait_for_work(agent_engine *g)
{
    (void)pthread_mutex_lock(&g->lock);
    while (g->active == NULL && g->queue_first == NULL && !g->closing) {
        (void)pthread_cond_wait(&g->changed, &g->lock);
    }
    take_queued(g);
    bool stop = g->closing && !g->draining;
    for (job *j = g->active; stop && j != NULL; j = j->next) {
        atomic_store(&j->cancelled, true);
    }
    for (job *j = g->queue_first; stop && j != NULL; j = j->next) {
        atomic_store(&j->cancelled, true);
    }
    bool go_on = g->active != NULL;
    (void)pthread_mutex_unlock(&g->lock);
    return go_on;
}

static void end_job(agent_engine *g, job **link)
{
    job *j = *link;
    (void)pthread_mutex_lock(&g->lock);
    *link = j->next;
    g->active_count--;
    (void)pthread_mutex_unlock(&g->lock);
    job_free(j);
}

/* Lets every job advance until it offers a run, waits or ends. Returns whether anything but waiting happened. */
static bool advance_jobs(agent_engine *g, job **runners, int *n_runners)
{
    bool worked = false;
    int rows = 0;
    *n_runners = 0;
    for (int pass = 0; pass < 2;
            pass++) { /* first those that decode, so that a long prefill does not stall them */
        for (job **link = &g->active; *link != NULL;) {
            job *j = *link;
            if ((j->phase == JOB_DECODE) != (pass == 0) || *n_runners == g->options.parallel_max) {
                link = &j->next;
                continue;
            }
            j->run = (model_run){0};
            j->run.n = g->rows_max - rows; /* room left, read by job_offer_run */
            job_state st = j->run.n > 0 ? job_advance(j) : JOB_WAITS;
            worked = worked || st != JOB_WAITS;
            if (st == JOB_ENDED) {
                end_job(g, link);
                continue;
            }
            if (st == JOB_WANTS_RUN) {
                rows += j->run.n;
                runners[(*n_runners)++] = j;
            }
            link = &j->next;
        }
    }
    return worked;
}

static void compute(agent_engine *g, job **runners, int n)
{
    model_run runs[256];
    REQUIRE(n <= 256);
    for (int i = 0; i < n; i++) {
        runs[i] = runners[i]->run;
    }
    err e = {0};
    status st = model_forward(g->model, g->scratch, runs, n, &e);
    for (int i = 0; i < n; i++) {
        if (st == ST_OK) {
            job_computed(runners[i]);
        } else {
            job_fail(runners[i], &e, NULL);
        }
    }
}

static void *engine_main(void *arg)
{
    agent_engine *g = arg;
    job *runners[256];
    while (wait_for_work(g)) {
        int n;
        bool worked = advance_jobs(g, runners, &n);
        if (n > 0) {
            compute(g, runners, n);
        } else if (!worked) {
            /* every job waits for a session that no job holds: cannot be, unless a holder was lost */
            LOG_E("all requests wait; ending the first");
            job_fail_code(g->active, "internal", NULL, "the request could not be scheduled");
        }
    }
    return NULL;
}

/* ---- submit and cancel ---- */

status agent_submit(agent_engine *g, agent_request *r, uint64_t *ticket, err *e)
{
    job *j = job_create(g, r);
    if (j == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a request");
    }
    (void)pthread_mutex_lock(&g->lock);
    bool full = g->queued >= g->options.queue_max || g->closing;
    if (!full) {
        *ticket = j->ticket = ++g->last_ticket;
        j->next = NULL;
        if (g->queue_last != NULL) {
            g->queue_last->next = j;
        } else {
            g->queue_first = j;
        }
        g->queue_last = j;
        g->queued++;
        (void)pthread_cond_signal(&g->changed);
    }
    bool closing = g->closing;
    (void)pthread_mutex_unlock(&g->lock);
    if (full) {
        j->request = NULL; /* stays the caller's */
        job_free(j);
        return closing ? FAIL(e, ST_ERR_BUSY, "the server is stopping")
                       : FAIL(e, ST_ERR_BUSY, "%d requests are waiting already", g->options.queue_max);
    }
    return ST_OK;
}

static bool cancel_in(job *list, uint64_t ticket)
{
    for (job *j = list; j != NULL; j = j->next) {
        if (j->ticket == ticket) {
            return !atomic_load(&j->answered) && !atomic_exchange(&j->cancelled, true);
        }
    }
    return false;
}

bool agent_cancel(agent_engine *g, uint64_t ticket)
{
    (void)pthread_mutex_lock(&g->lock); /* the active list changes under the lock only */
    bool found = cancel_in(g->active, ticket) || cancel_in(g->queue_first, ticket);
    (void)pthread_mutex_unlock(&g->lock);
    return found;
}

/* ---- life ---- */

static status open_data_folder(agent_engine *g, err *e)
{
    if (g->options.data_path != NULL) {
        g->data_path = base_strdup(g->options.data_path);
    } else {
        char name[] = "/tmp/epimem-XXXXXX";
        if (mkdtemp(name) == NULL) {
            return FAIL(e, ST_ERR_IO, "cannot make a temporary data folder in /tmp");
        }
        g->data_path = base_strdup(name);
        g->data_is_temporary = true;
        LOG_W("no data folder given: memory lasts until the server stops (%s)", name);
    }
    return g->data_path == NULL ? FAIL(e, ST_ERR_MEMORY, "no memory for a path") : ST_OK;
}

/* Everything that stored KV depends on, as text that people can compare. Not the arithmetic: rows that another processor
 * or a CUDA device computed differ in the last places and are as right. */
static void write_fingerprint(const agent_engine *g, char *out, size_t bytes)
{
    const model_config *c = model_get_config(g->model);
    (void)snprintf(out, bytes,
            "model %s %016llx; tokenizer %016llx; template %s %016llx; encoder %s %016llx; codec %s %016llx; "
            "layout sinks %d page %d block %d",
            c->name, (unsigned long long)model_fingerprint(g->model),
            (unsigned long long)tokenizer_fingerprint(g->tokenizer), chat_template_name(g->x.template),
            (unsigned long long)chat_template_fingerprint(g->x.template), encoder_name(g->encoder),
            (unsigned long long)encoder_fingerprint(g->encoder), kvq_codec_name(g->codec),
            (unsigned long long)kvq_codec_fingerprint(g->codec), TIERS_SINK_TOKENS, TIERS_COLUMN_TOKENS,
            TIERS_BLOCK_TOKENS);
}

static status open_store(agent_engine *g, err *e)
{
    char fingerprint[512];
    write_fingerprint(g, fingerprint, sizeof fingerprint);
    TRY(open_data_folder(g, e));
    store_options so = {
            .path = g->data_path, .fingerprint = fingerprint, .cap_bytes = g->options.store_cap_bytes};
    TRY(store_open(&so, &g->store, e));
    return writer_open(g->store, 4, &g->writer, e);
}

/* The encoder beside the model file, when none is named. */
static status find_encoder(const agent_engine *g, char *out, size_t bytes, err *e)
{
    if (g->options.encoder_path != NULL) {
        (void)snprintf(out, bytes, "%s", g->options.encoder_path);
        return ST_OK;
    }
    const char *slash = strrchr(g->options.model_path, '/');
    int folder = slash == NULL ? 0 : (int)(slash - g->options.model_path) + 1;
    (void)snprintf(out, bytes, "%.*sall-MiniLM-L6-v2", folder, g->options.model_path);
    return access(out, R_OK) == 0
            ? ST_OK
            : FAIL(e, ST_ERR_NOT_FOUND, "no sentence encoder: %s does not exist; name its folder with -e",
                      out);
}

static status load_models(agent_engine *g, err *e)
{
    char encoder_path[4096];
    TRY(krn_pool_open(g->options.threads, &g->pool, e));
    TRY(model_open(g->pool, g->options.model_path, &g->model, e));
    TRY(model_set_device(g->model, g->options.device, g->options.device_bytes, e));
    TRY(tokenizer_open(model_gguf(g->model), &g->tokenizer, e));
    TRY(chat_template_open(model_gguf(g->model), g->options.chat_template, &g->x.template, e));
    TRY(find_encoder(g, encoder_path, sizeof encoder_path, e));
    TRY(encoder_open_coded(g->pool, encoder_path, &g->encoder, e));
    const model_config *c = model_get_config(g->model);
    g->x.shape = (kvq_shape){.layers = c->layers, .kv_heads = c->kv_heads, .d = c->d};
    TRY(codec_open_chosen(&g->options, g->model, &g->codec, e));
    g->rows_max = TIERS_BLOCK_TOKENS + ENGINE_ROWS_EXTRA;
    return model_scratch_open(g->model, g->rows_max, &g->scratch, e);
}

static status set_limits(agent_engine *g, err *e)
{
    const model_config *c = model_get_config(g->model);
    g->context_tokens = g->options.context_tokens > 0 ? g->options.context_tokens : c->context;
    if (g->context_tokens > c->context) {
        return FAIL(e, ST_ERR_ARG, "context of %lld tokens asked for, the model was trained on %lld",
                (long long)g->context_tokens, (long long)c->context);
    }
    /* Asked for, one number rules both; by default a session is attended whole up to a quarter of the context, and beyond
     * it the best 512 tokens are recalled: more of them answer worse (measured on the default model). */
    g->recall_tokens = g->options.recall_tokens > 0 ? g->options.recall_tokens : ENGINE_RECALL_TOKENS;
    g->x.plain_tokens = g->options.recall_tokens > 0 ? g->options.recall_tokens : g->context_tokens / 4;
    if (g->recall_tokens > g->context_tokens) {
        return FAIL(e, ST_ERR_ARG, "recall budget of %lld tokens is larger than the context of %lld",
                (long long)g->recall_tokens, (long long)g->context_tokens);
    }
    g->options.queue_max = g->options.queue_max > 0 ? g->options.queue_max : 64;
    g->options.parallel_max = g->options.parallel_max > 0 ? g->options.parallel_max : 16;
    if (g->options.parallel_max > ENGINE_ROWS_EXTRA) {
        return FAIL(e, ST_ERR_ARG, "at most %d requests can run at once", ENGINE_ROWS_EXTRA);
    }
    if (g->options.host_cache_bytes == 0) {
        g->options.host_cache_bytes = 1ull << 30;
    }
    (void)snprintf(
            g->model_name, sizeof g->model_name, "%s", g->options.alias != NULL ? g->options.alias : c->name);
    g->x.floor = g->options.recall_floor >= 0.0f ? g->options.recall_floor : encoder_floor(g->encoder);
    g->x.sharpness =
            1.15f; /* measured on the default model: stored keys are attended too flatly in a short context */
    return ST_OK;
}

status agent_engine_open(const agent_options *o, agent_engine **out, err *e)
{
    agent_engine *g = base_zalloc(1, sizeof *g);
    if (g == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the engine");
    }
    g->options = *o;
    g->started_us = base_monotonic_us();
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_cond_init(&g->changed, NULL);
    status st = load_models(g, e);
    st = st == ST_OK ? set_limits(g, e) : st;
    st = st == ST_OK ? open_store(g, e) : st;
    if (st == ST_OK) {
        g->x.model = g->model;
        g->x.tokenizer = g->tokenizer;
        g->x.encoder = g->encoder;
        g->x.codec = g->codec;
        g->x.pool = g->pool;
        g->x.store = g->store;
        g->x.writer = g->writer;
        st = sessions_open(g, &g->sessions, e);
    }
    if (st == ST_OK && pthread_create(&g->thread, NULL, engine_main, g) != 0) {
        st = FAIL(e, ST_ERR_MEMORY, "cannot start the engine thread");
    }
    g->thread_running = st == ST_OK;
    if (st != ST_OK) {
        agent_engine_close(g, false);
        return st;
    }
    *out = g;
    return ST_OK;
}

static void remove_temporary_folder(agent_engine *g)
{
    if (g->data_is_temporary && store_remove_folder(g->data_path) != ST_OK) {
        LOG_W("temporary data folder %s could not be removed", g->data_path);
    }
}

void agent_engine_close(agent_engine *g, bool drain)
{
    if (g == NULL) {
        return;
    }
    if (g->thread_running) {
        (void)pthread_mutex_lock(&g->lock);
        g->closing = true;
        g->draining = drain;
        (void)pthread_cond_broadcast(&g->changed);
        (void)pthread_mutex_unlock(&g->lock);
        (void)pthread_join(g->thread, NULL);
    }
    writer_close(g->writer);
    sessions_close(g->sessions);
    store_close(g->store);
    remove_temporary_folder(g);
    model_scratch_close(g->scratch);
    kvq_codec_close(g->codec);
    encoder_close(g->encoder);
    chat_template_close(g->x.template);
    tokenizer_close(g->tokenizer);
    model_close(g->model);
    krn_pool_close(g->pool);
    (void)pthread_mutex_destroy(&g->lock);
    (void)pthread_cond_destroy(&g->changed);
    base_free(g->data_path);
    base_free(g);
}

void agent_engine_info(const agent_engine *g, agent_info *out)
{
    *out = (agent_info){.model = g->model_name,
            .encoder = encoder_name(g->encoder),
            .codec = kvq_codec_name(g->codec),
            .version = EPIMEM_VERSION,
            .context_tokens = g->context_tokens,
            .recall_tokens = g->recall_tokens};
}
