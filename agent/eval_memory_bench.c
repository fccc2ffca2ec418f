/* Conversations in the product's sessions, and questions asked behind them. See eval_memory_internal.h. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agent/eval_memory_internal.h"

enum { COLUMNS_AT_ONCE = 16, INDEX_TURNS_AT_ONCE = 64 };

/* ---- the bench ---- */

static status open_exact(eval_bench *b, err *e)
{
    const agent_engine *g = b->engine;
    TRY(kvq_codec_open("bf16", &g->x.shape, NULL, &b->exact_codec, e));
    b->exact = g->x;
    b->exact.codec = b->exact_codec;
    b->exact.plain_tokens = INT64_MAX / 4;
    b->vocab = model_get_config(g->model)->vocab;
    b->logits = base_alloc((size_t)EVAL_MEMORY_ROWS * (size_t)b->vocab * sizeof *b->logits);
    b->pending = base_alloc((size_t)b->vocab * sizeof *b->pending);
    return b->logits == NULL || b->pending == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for logits")
                                                   : ST_OK;
}

status eval_bench_open(const eval_bench_options *o, eval_bench *out, err *e)
{
    eval_bench b = {0};
    agent_options engine;
    agent_options_default(&engine);
    engine.model_path = o->model_path;
    engine.encoder_path = o->encoder_path;
    engine.codec = o->codec;
    engine.calibration_path = o->calibration_path;
    engine.threads = o->threads;
    engine.device = "cpu"; /* caches that differ from head to head have no copies on a device */
    engine.data_path = o->keep_path;
    engine.recall_floor = o->floor;
    TRY(agent_engine_open(&engine, &b.engine, e));
    b.coded = b.engine->x;
    b.coded.plain_tokens = o->plain_tokens > 0 ? o->plain_tokens : b.coded.plain_tokens;
    status st = open_exact(&b, e);
    if (st != ST_OK) {
        eval_bench_close(&b);
        return st;
    }
    *out = b;
    return ST_OK;
}

void eval_bench_close(eval_bench *b)
{
    agent_engine_close(b->engine, false);
    kvq_codec_close(b->exact_codec);
    base_free(b->logits);
    base_free(b->pending);
    *b = (eval_bench){0};
}

/* ---- ingesting ---- */

/* Empty ones and those with characters that the vocabulary cannot spell are refused by the server too. */
static bool is_taken(const tokenizer *tok, const eval_utterance *u)
{
    err why;
    return u->text[0] != '\0' && tokenizer_check(tok, u->text, strlen(u->text), &why) == ST_OK;
}

static void fill_turns(const tokenizer *tok, const eval_utterance *u, int n, int *turn_of)
{
    int turn = 1; /* turn 0 is the system prompt */
    for (int i = 0; i < n; i++) {
        turn_of[i] = is_taken(tok, &u[i]) ? turn++ : -1;
    }
}

static status append_utterances(session *s, const eval_utterance *u, int n, err *e)
{
    for (int i = 0; i < n; i++) {
        agent_message m = {.speaker = (char *)(uintptr_t)u[i].speaker,
                .content = (char *)(uintptr_t)u[i].text,
                .content_bytes = strlen(u[i].text),
                .has_time = u[i].has_time,
                .time_us = u[i].time_us};
        TRY(is_taken(s->x->tokenizer, &u[i]) ? session_append_message(s, &m, e) : ST_OK);
    }
    return session_open_log(s, NULL, 0, e); /* when there was no utterance */
}

static status open_session(const session_context *x,
        const char *name,
        const eval_utterance *u,
        int n,
        int *turn_of,
        session **out,
        err *e)
{
    session *s;
    TRY(session_new(x, "eval", name, false, &s, e));
    status st = append_utterances(s, u, n, e);
    if (st != ST_OK) {
        session_close(s);
        return st;
    }
    if (turn_of != NULL) {
        fill_turns(x->tokenizer, u, n, turn_of);
    }
    *out = s;
    return ST_OK;
}

status eval_session_open(eval_bench *b,
        const session_context *x,
        const eval_utterance *u,
        int n,
        int *turn_of,
        session **out,
        err *e)
{
    char name[32];
    (void)snprintf(name, sizeof name, "eval-%d", ++b->n_sessions);
    return open_session(x, name, u, n, turn_of, out, e);
}

status eval_session_open_kept(
        eval_bench *b, const char *name, const eval_utterance *u, int n, int *turn_of, session **out, err *e)
{
    session *fresh, *kept;
    TRY(open_session(&b->coded, name, u, n, turn_of, &fresh, e));
    status st = session_load(&b->coded, "eval", name, &kept, e);
    if (st == ST_ERR_NOT_FOUND) {
        *out = fresh;
        return ST_OK;
    }
    bool same = st == ST_OK && kept->n_tokens == fresh->n_tokens &&
            kept->plain_tokens == fresh->plain_tokens &&
            memcmp(kept->tokens, fresh->tokens, kept->n_tokens * sizeof *kept->tokens) == 0;
    session_close(fresh);
    if (st == ST_OK && !same) {
        session_close(kept);
        return FAIL(e, ST_ERR_MISMATCH, "the folder keeps another conversation under the name %s", name);
    }
    *out = kept;
    return st;
}

status eval_session_keep(session *s, err *e)
{
    TRY(session_save_log(s, e));
    TRY(session_save_kv(s, true, e));
    writer_flush(s->x->writer);
    return ST_OK;
}

/* Columns that no later token reads leave memory for the store, as they do while the server ingests. */
static status shed(session *s, err *e)
{
    const tiers_view *v = tiers_get_view(s->tiers);
    TRY(session_save_kv(s, false, e));
    if (!tiers_view_is_plain(v)) {
        int64_t window = (v->window_from - TIERS_SINK_TOKENS) / TIERS_COLUMN_TOKENS;
        tiers_drop_columns(s->tiers, 0, window < s->saved_columns ? window : s->saved_columns);
        tiers_drop_exact(s->tiers, tiers_exact_from(tiers_tokens(s->tiers)));
        s->view_set = false; /* the next run loads again what of them is pinned */
    }
    return ST_OK;
}

/* One run of tokens that lack keys and values; *n is 0 when there is none left. */
static status compute_run(eval_bench *b, session *s, int most, int n_logits, float *logits, int *n, err *e)
{
    const model_kv *kv;
    int64_t at = tiers_tokens(s->tiers);
    TRY(session_next_run(s, most, n, &kv, e));
    if (*n == 0) {
        return ST_OK;
    }
    int64_t left = (int64_t)s->n_tokens - at - *n; /* logits are of the last tokens of the log */
    int64_t wanted = n_logits - left < *n ? n_logits - left : *n;
    model_run run = {.ids = s->tokens + at,
            .n = *n,
            .first_position = at,
            .kv = kv,
            .n_logits = wanted > 0 ? (int)wanted : 0};
    run.logits = run.n_logits > 0 ? logits + (size_t)(n_logits - left - wanted) * (size_t)b->vocab : NULL;
    TRY(model_forward(b->engine->model, b->engine->scratch, &run, 1, e));
    tiers_advance(s->tiers, *n);
    return ST_OK;
}

status eval_session_compute(eval_bench *b, session *s, eval_on_tokens on_tokens, void *ctx, err *e)
{
    bool stored = s->x == &b->coded;
    int n = 1;
    while (n > 0) {
        TRY(compute_run(b, s, TIERS_BLOCK_TOKENS, 0, NULL, &n, e));
        if (stored && tiers_columns(s->tiers) - s->saved_columns >= COLUMNS_AT_ONCE) {
            TRY(shed(s, e));
        }
        if (on_tokens != NULL) {
            on_tokens(ctx, tiers_tokens(s->tiers), (int64_t)s->n_tokens);
        }
    }
    if (stored) {
        TRY(eval_session_keep(s, e));
        session_rest(s);
        (void)tiers_take_costs(s->tiers);
    }
    return ST_OK;
}

status eval_session_index(session *s, err *e)
{
    size_t left = 1;
    while (left > 0) {
        TRY(session_index_turns(s, INDEX_TURNS_AT_ONCE, &left, e));
    }
    return ST_OK;
}

/* ---- views ---- */

status eval_session_view(const eval_bench *b,
        session *s,
        const char *question,
        int64_t budget,
        tiers_view *v,
        ep_match *m,
        err *e)
{
    int64_t tokens = (int64_t)s->n_tokens;
    *m = (ep_match){0};
    *v = (tiers_view){.window_from = tokens <= s->plain_tokens ? TIERS_SINK_TOKENS : tiers_exact_from(tokens),
            .pinned_end = s->system_end,
            .sharpness = b->coded.sharpness};
    if (tiers_view_is_plain(v) || budget <= 0) {
        return ST_OK;
    }
    ep_query q = {.text = question,
            .text_bytes = strlen(question),
            .budget_tokens = budget,
            .attended_before = v->pinned_end > TIERS_SINK_TOKENS ? v->pinned_end : TIERS_SINK_TOKENS,
            .attended_from = v->window_from};
    return session_recall(s, &q, v, m, e);
}

/* ---- a session as a memory ---- */

static status session_append(void *ctx, const int32_t *ids, int n, int n_logits, float *logits, err *e)
{
    eval_session_memory *m = ctx;
    TRY(session_append_tokens(m->s, ids, (size_t)n, e));
    int done = 1;
    while (done > 0) {
        TRY(compute_run(m->b, m->s, EVAL_MEMORY_ROWS, n_logits, logits, &done, e));
    }
    return ST_OK;
}

static void session_rewind(void *ctx, int64_t tokens)
{
    eval_session_memory *m = ctx;
    m->s->n_tokens = (size_t)tokens;
    tiers_rewind(m->s->tiers, tokens);
}

eval_memory eval_session_memory_of(eval_session_memory *m, eval_bench *b, session *s, tiers_view *v)
{
    *m = (eval_session_memory){.b = b, .s = s};
    tiers_view_free(&s->live_view);
    s->live_view = *v;
    *v = (tiers_view){0};
    return (eval_memory){.ctx = m,
            .tokens = (int64_t)s->n_tokens,
            .append = session_append,
            .rewind = session_rewind,
            .open_message = s->transcript_open};
}

void eval_session_leave(eval_session_memory *m)
{
    if (m->s->x == &m->b->coded) {
        session_rest(m->s);
    }
}

/* ---- asking ---- */

static status encode_part(const eval_bench *b, status made, const marked_text *m, token_list *out, err *e)
{
    TRY(made);
    return m->text.size == 0 ? ST_OK : tokenizer_encode_marked(b->engine->tokenizer, m, out, e);
}

/* The tokens of a question as the server writes them: what is open is closed, the message, the opening of the answer. */
static status question_tokens(
        const eval_bench *b, const eval_memory *m, const char *question, token_list *out, err *e)
{
    const chat_template *template = b->engine->x.template;
    chat_message message = {.role = "user", .content = question, .content_bytes = strlen(question)};
    status st = ST_OK;
    for (int part = m->open_message ? 0 : 1; st == ST_OK && part < 3; part++) {
        marked_text text;
        marked_text_init(&text);
        st = part == 0      ? chat_template_close_message(template, "user", &text, e)
                : part == 1 ? chat_template_extend(template, "user", &message, 1, false, &text, e)
                            : chat_template_extend(template, "user", NULL, 0, true, &text, e);
        st = encode_part(b, st, &text, out, e);
        marked_text_free(&text);
    }
    return st;
}

static double nll_of(const float *logits, int vocab, int32_t id)
{
    double largest = (double)logits[krn_argmax(logits, vocab)], sum = 0.0;
    for (int i = 0; i < vocab; i++) {
        sum += exp((double)logits[i] - largest);
    }
    return largest + log(sum) - (double)logits[id];
}

/* b->pending holds the logits after the prompt. */
static status score_gold(eval_bench *b, const eval_memory *m, const char *gold, double *nll, err *e)
{
    token_list ids = {0};
    *nll = 0.0;
    status st = tokenizer_encode(b->engine->tokenizer, gold, strlen(gold), false, &ids, e);
    int n = ids.n < EVAL_MEMORY_ROWS ? (int)ids.n : EVAL_MEMORY_ROWS;
    if (st == ST_OK && n > 1) {
        st = m->append(m->ctx, ids.ids, n - 1, n - 1, b->logits, e);
    }
    for (int i = 0; st == ST_OK && i < n; i++) {
        const float *row = i == 0 ? b->pending : b->logits + (size_t)(i - 1) * (size_t)b->vocab;
        *nll += nll_of(row, b->vocab, ids.ids[i]) / n;
    }
    token_list_free(&ids);
    return st;
}

static status decode(eval_bench *b, const eval_memory *m, eval_answer *out, err *e)
{
    const tokenizer *tok = b->engine->tokenizer;
    float *logits = b->pending;
    while (out->answer_tokens < EVAL_ANSWER_TOKENS) {
        int32_t id = (int32_t)krn_argmax(logits, b->vocab);
        const char *piece;
        size_t bytes;
        if (tokenizer_is_end(tok, id)) {
            break;
        }
        tokenizer_piece(tok, id, &piece, &bytes);
        if (!tokenizer_is_special(tok, id) && base_buf_append(&out->text, piece, bytes) != ST_OK) {
            return FAIL(e, ST_ERR_MEMORY, "out of memory for an answer");
        }
        out->answer_tokens++;
        TRY(m->append(m->ctx, &id, 1, 1, logits, e));
    }
    return base_buf_append(&out->text, "", 1) == ST_OK
            ? ST_OK
            : FAIL(e, ST_ERR_MEMORY, "out of memory for an answer");
}

static status ask(eval_bench *b,
        const eval_memory *m,
        const eval_question *q,
        const token_list *prompt,
        bool with_answer,
        eval_answer *out,
        err *e)
{
    int64_t start = base_monotonic_us(), prompt_end = m->tokens + (int64_t)prompt->n;
    TRY(m->append(m->ctx, prompt->ids, (int)prompt->n, 1, b->pending, e));
    out->first_token_ms = (double)(base_monotonic_us() - start) / 1e3;
    out->prompt_tokens = (int)prompt->n;
    TRY(score_gold(b, m, q->answer, &out->nll, e));
    m->rewind(m->ctx, prompt_end);
    start = base_monotonic_us();
    if (with_answer) {
        TRY(decode(b, m, out, e));
        out->f1 = eval_token_f1((const char *)out->text.data, q->answer);
    }
    out->turn_ms = out->first_token_ms + (double)(base_monotonic_us() - start) / 1e3;
    return ST_OK;
}

status eval_ask(eval_bench *b,
        const eval_memory *m,
        const eval_question *q,
        bool with_answer,
        eval_answer *out,
        err *e)
{
    token_list prompt = {0};
    eval_answer answer = {.text = {.max = 1 << 20}};
    status st = question_tokens(b, m, q->text, &prompt, e);
    st = st == ST_OK ? ask(b, m, q, &prompt, with_answer, &answer, e) : st;
    token_list_free(&prompt);
    if (st != ST_OK) {
        base_buf_free(&answer.text);
        return st;
    }
    m->rewind(m->ctx, m->tokens);
    *out = answer;
    return ST_OK;
}

/* ---- token F1 ---- */

enum { WORDS_MAX = 128, WORD_BYTES = 32 };
typedef struct word_bag {
    char words[WORDS_MAX][WORD_BYTES];
    int n;
} word_bag;

/* Longer words are compared by their first bytes. */
static void fill_bag(word_bag *bag, const char *text)
{
    bag->n = 0;
    while (*text != '\0' && bag->n < WORDS_MAX) {
        char *word = bag->words[bag->n];
        int n = 0;
        for (; *text != '\0' && !isspace((unsigned char)*text); text++) {
            if (!ispunct((unsigned char)*text) && n < WORD_BYTES - 1) {
                word[n++] = (char)tolower((unsigned char)*text);
            }
        }
        word[n] = '\0';
        bool article = strcmp(word, "a") == 0 || strcmp(word, "an") == 0 || strcmp(word, "the") == 0;
        bag->n += n > 0 && !article;
        text += *text != '\0';
    }
}

double eval_token_f1(const char *answer, const char *gold)
{
    word_bag a, g;
    fill_bag(&a, answer);
    fill_bag(&g, gold);
    int n_answer = a.n, n_gold = g.n, common = 0;
    for (int i = 0; i < n_answer; i++) {
        for (int k = 0; k < g.n; k++) {
            if (strcmp(a.words[i], g.words[k]) == 0) {
                memmove(g.words[k], g.words[--g.n], WORD_BYTES); /* each counts once */
                common++;
                break;
            }
        }
    }
    return common == 0 ? (n_answer == 0 && n_gold == 0 ? 1.0 : 0.0) : 2.0 * common / (n_answer + n_gold);
}
