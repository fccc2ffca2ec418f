/* What a question may be asked of: the product's memory, the same words as text, everything, nothing. */
#include <stdio.h>
#include <string.h>

#include "agent/eval_memory_run_internal.h"

/* ---- bytes ---- */

double eval_exact_bytes(const eval_bench *b)
{
    const kvq_shape *s = &b->engine->x.shape;
    return (double)s->layers * (double)s->kv_heads * 2.0 * (double)s->d * sizeof(uint16_t);
}

static double coded_bytes(const eval_bench *b)
{
    return (double)kvq_column_bytes(b->engine->codec) / TIERS_COLUMN_TOKENS;
}

/* ---- what was attended ---- */

static void attend(eval_case *c, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to && i < (int64_t)c->s->n_tokens; i++) {
        c->attended[i] = 1.0f;
    }
}

static void attend_nothing(eval_case *c)
{
    memset(c->attended, 0, c->s->n_tokens * sizeof *c->attended);
}

static void attend_utterance(eval_case *c, int utterance)
{
    int turn = c->turn_of[utterance];
    if (turn >= 0) {
        const session_turn *t = &c->s->turns[turn];
        attend(c, t->first_token + t->lead_tokens, t->first_token + t->n_tokens);
    }
}

static void attend_view(eval_case *c, const tiers_view *v)
{
    attend_nothing(c);
    attend(c, 0, v->pinned_end > TIERS_SINK_TOKENS ? v->pinned_end : TIERS_SINK_TOKENS);
    attend(c, v->window_from, (int64_t)c->s->n_tokens);
    for (int i = 0; i < v->n_pieces; i++) {
        attend(c, v->pieces[i].first_token, v->pieces[i].first_token + v->pieces[i].rows);
    }
}

/* ---- the product ---- */

/* The rows that the match alone chooses, when nothing is attended anyway: no model needed. */
static status select_only(eval_case *c, const eval_question *q, int64_t budget, err *e)
{
    ep_match m;
    ep_query query = {.text = q->text,
            .text_bytes = strlen(q->text),
            .budget_tokens = budget,
            .attended_from = INT64_MAX};
    TRY(session_match(c->s, &query, &m, e));
    attend_nothing(c);
    for (int i = 0; i < m.n_used; i++) {
        attend(c, m.hits[i].first_token, m.hits[i].first_token + m.hits[i].tokens);
    }
    ep_match_free(&m);
    return ST_OK;
}

static status need_computed(eval_case *c, err *e)
{
    if (!c->computed) {
        int64_t start = base_monotonic_us();
        TRY(eval_session_compute(c->b, c->s, NULL, NULL, e));
        c->ingest_s = (double)(base_monotonic_us() - start) / 1e6;
        c->computed = true;
    }
    return ST_OK;
}

static status ask_memory(eval_case *c, const eval_memory *m, const eval_question *q, eval_result *out, err *e)
{
    eval_answer answer;
    TRY(eval_ask(c->b, m, q, !c->o->no_generate, &answer, e));
    out->nll = answer.nll;
    out->f1 = answer.f1;
    out->first_token_ms += answer.first_token_ms;
    out->turn_ms += answer.turn_ms;
    base_buf_free(&answer.text);
    return ST_OK;
}

static void fill_session_bytes(const eval_case *c, const tiers_view *v, eval_result *out)
{
    double exact = eval_exact_bytes(c->b), coded = coded_bytes(c->b);
    int64_t tokens = (int64_t)c->s->n_tokens, exact_from = tiers_exact_from(tokens);
    double recent = (double)(TIERS_SINK_TOKENS + tokens - exact_from) * exact;
    out->bytes_held = recent + (double)(exact_from - TIERS_SINK_TOKENS) * coded;
    out->bytes_attended = recent + (double)v->piece_rows * coded +
            (tiers_view_is_plain(v) ? (double)(exact_from - TIERS_SINK_TOKENS) * coded : 0.0);
}

static status ask_partition(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    if (c->o->selection_only) {
        return select_only(c, q, budget, e);
    }
    ep_match match;
    tiers_view v;
    eval_session_memory m;
    TRY(need_computed(c, e));
    int64_t start = base_monotonic_us();
    TRY(eval_session_view(c->b, c->s, q->text, budget, &v, &match, e));
    out->match_ms = out->first_token_ms = out->turn_ms = (double)(base_monotonic_us() - start) / 1e3;
    ep_match_free(&match);
    attend_view(c, &v);
    fill_session_bytes(c, &v, out);
    eval_memory memory = eval_session_memory_of(&m, c->b, c->s, &v);
    status st = ask_memory(c, &memory, q, out, e);
    out->bytes_loaded = (double)tiers_take_costs(c->s->tiers).loaded_bytes;
    eval_session_leave(&m);
    return st;
}

/* ---- references: sessions that are attended whole and exactly ---- */

static status ask_exact(eval_case *c, session *s, const eval_question *q, eval_result *out, err *e)
{
    tiers_view plain = {.window_from = TIERS_SINK_TOKENS};
    eval_session_memory m;
    out->bytes_attended = (double)s->n_tokens * eval_exact_bytes(c->b);
    eval_memory memory = eval_session_memory_of(&m, c->b, s, &plain);
    status st = ask_memory(c, &memory, q, out, e);
    eval_session_leave(&m);
    return st;
}

/* Reads those utterances as a prompt; the time for that is the turn's. */
static status ask_read(
        eval_case *c, const int *chosen, int n, const eval_question *q, eval_result *out, err *e)
{
    session *s = NULL;
    eval_utterance *u = base_zalloc((size_t)n + 1, sizeof *u);
    if (u == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a prompt");
    }
    for (int i = 0; i < n; i++) {
        u[i] = c->talk.utterances[chosen[i]];
        u[i].has_time = false; /* no lines with dates between them: recalled rows have none either */
    }
    int64_t start = base_monotonic_us();
    status st = eval_session_open(c->b, &c->b->exact, u, n, NULL, &s, e);
    st = st == ST_OK ? eval_session_compute(c->b, s, NULL, NULL, e) : st;
    double ms = (double)(base_monotonic_us() - start) / 1e3;
    out->first_token_ms += ms;
    out->turn_ms += ms;
    st = st == ST_OK ? ask_exact(c, s, q, out, e) : st;
    session_close(s);
    base_free(u);
    return st;
}

static status ask_none(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    (void)budget;
    attend_nothing(c);
    return ask_read(c, NULL, 0, q, out, e);
}

static status ask_evidence(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    (void)budget;
    attend_nothing(c);
    for (int i = 0; i < q->n_evidence; i++) {
        attend_utterance(c, q->evidence[i]);
    }
    return ask_read(c, q->evidence, q->n_evidence, q, out, e);
}

static int utterance_of_turn(const eval_case *c, int64_t turn)
{
    for (int i = 0; i < c->talk.n_utterances; i++) {
        if (c->turn_of[i] == (int)turn) {
            return i;
        }
    }
    return -1;
}

/* Utterances of the match, best last, then those of the exact window: what partition attends to, in its order. */
static int chosen_by(const eval_case *c, const ep_match *m, const tiers_view *v, bool recent, int *chosen)
{
    int n = 0;
    for (int i = m->n_used; i-- > 0;) {
        int utterance = utterance_of_turn(c, m->hits[i].turn);
        chosen[n] = utterance;
        n += utterance >= 0;
    }
    for (int i = 0; recent && i < c->talk.n_utterances; i++) {
        const session_turn *t = c->turn_of[i] >= 0 ? &c->s->turns[c->turn_of[i]] : NULL;
        if (t != NULL && t->first_token + t->lead_tokens >= v->window_from) {
            chosen[n++] = i;
        }
    }
    return n;
}

static status ask_retrieved(
        eval_case *c, const eval_question *q, int64_t budget, bool recent, eval_result *out, err *e)
{
    ep_match match;
    tiers_view v;
    int *chosen = base_zalloc((size_t)c->talk.n_utterances * 2, sizeof *chosen);
    if (chosen == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a prompt");
    }
    int64_t start = base_monotonic_us();
    status st = eval_session_view(c->b, c->s, q->text, budget, &v, &match, e);
    out->match_ms = out->first_token_ms = out->turn_ms = (double)(base_monotonic_us() - start) / 1e3;
    if (st == ST_OK) {
        int n = chosen_by(c, &match, &v, recent, chosen);
        attend_nothing(c);
        for (int i = 0; i < n; i++) {
            attend_utterance(c, chosen[i]);
        }
        st = ask_read(c, chosen, n, q, out, e);
        ep_match_free(&match);
        tiers_view_free(&v);
    }
    base_free(chosen);
    return st;
}

static status ask_text(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    return ask_retrieved(c, q, budget, true, out, e);
}

static status ask_text_alone(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    return ask_retrieved(c, q, budget, false, out, e);
}

/* The history stays in memory from question to question, as a server with a prefix cache has it. */
static status ask_full(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    (void)budget;
    int64_t context = c->b->engine->context_tokens, tokens = (int64_t)c->s->n_tokens;
    if (tokens + 2 * EVAL_MEMORY_ROWS > context) {
        return FAIL(e, ST_ERR_LIMIT, "a history of %lld tokens is past the window of %lld", (long long)tokens,
                (long long)context);
    }
    if (c->whole == NULL) {
        TRY(eval_session_open(
                c->b, &c->b->exact, c->talk.utterances, c->talk.n_utterances, NULL, &c->whole, e));
        TRY(eval_session_compute(c->b, c->whole, NULL, NULL, e));
    }
    attend(c, 0, tokens);
    out->bytes_held = (double)tokens * eval_exact_bytes(c->b);
    return ask_exact(c, c->whole, q, out, e);
}

/* ---- eviction ---- */

/* Keeps as many tokens as the product attends to: sinks, the budget, and the exact window. */
static status need_evicted(eval_case *c, eval_evict_method method, int64_t budget, err *e)
{
    int64_t context = c->b->engine->context_tokens, tokens = (int64_t)c->s->n_tokens;
    if (c->evicted != NULL && c->evicted_method == method && c->evicted_budget == budget) {
        return ST_OK;
    }
    if (tokens + 2 * EVAL_MEMORY_ROWS > context) {
        return FAIL(e, ST_ERR_LIMIT, "positions of a history of %lld tokens are past the window of %lld",
                (long long)tokens, (long long)context);
    }
    eval_evicted_close(c->evicted);
    c->evicted = NULL;
    c->evicted_method = method;
    c->evicted_budget = budget;
    int64_t keep = TIERS_SINK_TOKENS + budget + tokens - tiers_exact_from(tokens);
    return eval_evicted_open(c->b, method, keep, c->s->tokens, tokens, &c->evicted, e);
}

static status ask_evicted(eval_case *c,
        eval_evict_method method,
        const eval_question *q,
        int64_t budget,
        eval_result *out,
        err *e)
{
    TRY(need_evicted(c, method, budget, e));
    attend_nothing(c);
    double entries = (double)eval_evicted_shares(c->evicted, c->attended);
    out->bytes_held = out->bytes_attended =
            entries * 2.0 * (double)c->b->engine->x.shape.d * sizeof(uint16_t);
    eval_memory m = eval_evicted_memory(c->evicted);
    m.open_message = c->s->transcript_open;
    return ask_memory(c, &m, q, out, e);
}

static status ask_streaming(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    return ask_evicted(c, EVAL_STREAMING, q, budget, out, e);
}

static status ask_h2o(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    return ask_evicted(c, EVAL_H2O, q, budget, out, e);
}

static status ask_snapkv(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    return ask_evicted(c, EVAL_SNAPKV, q, budget, out, e);
}

static status ask_keydiff(eval_case *c, const eval_question *q, int64_t budget, eval_result *out, err *e)
{
    return ask_evicted(c, EVAL_KEYDIFF, q, budget, out, e);
}

status eval_case_references(eval_case *c, err *e)
{
    eval_memory_options quiet = *c->o;
    const eval_memory_options *options = c->o;
    quiet.no_generate = true;
    c->o = &quiet;
    status st = ST_OK;
    for (int i = 0; st == ST_OK && i < c->talk.n_questions; i++) {
        eval_result none = {0}, evidence = {0};
        st = ask_none(c, &c->talk.questions[i], 0, &none, e);
        st = st == ST_OK ? ask_evidence(c, &c->talk.questions[i], 0, &evidence, e) : st;
        c->nll_none[i] = none.nll;
        c->nll_evidence[i] = evidence.nll;
    }
    c->o = options;
    return st;
}

status eval_count_unrelated(const eval_case *c, int *asked, int *recalled, err *e)
{
    static const char *const questions[] = {"How do I convert a PDF into plain text on the command line?",
            "What is the boiling point of ammonia?", "Explain the offside rule in football.",
            "Which year did the Peace of Westphalia end the war?",
            "Write a regular expression that matches IPv4 addresses.", "What is the capital of Mongolia?",
            "How does a transistor amplify a signal?", "What is the integral of x squared?",
            "How many moons does Jupiter have?", "Give me the chemical formula of sulfuric acid.",
            "What does the HTTP status code 418 mean?", "What is the exchange rate of the yen?",
            "Difference between TCP and UDP?", "List the kings of Sweden in the 17th century."};
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        ep_match m;
        ep_query q = {.text = questions[i],
                .text_bytes = strlen(questions[i]),
                .budget_tokens = 1024,
                .attended_from = INT64_MAX};
        TRY(session_match(c->s, &q, &m, e));
        *asked += 1;
        *recalled += m.n_used > 0;
        ep_match_free(&m);
    }
    return ST_OK;
}

/* ---- the list ---- */

static const eval_mode modes[] = {
        {"partition", "the product: what matches, from two-bit pages, and the exact recent rows", true,
                ask_partition},
        {"text", "the same utterances as a prompt, read again for every question", true, ask_text},
        {"text-alone", "the same without the recent ones", true, ask_text_alone},
        {"streaming", "cache cut while reading: the first and the latest tokens (exact, as the next three)",
                true, ask_streaming},
        {"h2o", "... those that were attended to most, and the latest", true, ask_h2o},
        {"snapkv", "... those that the latest tokens attend to", true, ask_snapkv},
        {"keydiff", "... those whose keys differ most from the mean", true, ask_keydiff},
        {"full", "the whole history, exact, where it fits the model's window", false, ask_full},
        {"evidence", "the annotated evidence as a prompt", false, ask_evidence},
        {"none", "the bare question", false, ask_none},
};
enum { N_MODES = sizeof modes / sizeof modes[0] };

const eval_mode *eval_mode_find(const char *name, size_t bytes)
{
    for (int i = 0; i < N_MODES; i++) {
        if (strlen(modes[i].name) == bytes && memcmp(modes[i].name, name, bytes) == 0) {
            return &modes[i];
        }
    }
    return NULL;
}

void eval_mode_print_all(FILE *to)
{
    for (int i = 0; i < N_MODES; i++) {
        (void)fprintf(to, "  %-12s %s\n", modes[i].name, modes[i].about);
    }
}
