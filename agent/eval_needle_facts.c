/* Facts for `epimem eval needle`, and contexts with them in. */
#include <stdio.h>
#include <string.h>

#include "agent/eval_needle_internal.h"

static const char *const places[NEEDLE_FACTS] = {"harbour office", "north tower", "bakery", "music school",
        "night train", "botanical garden", "old mill", "ferry", "print shop", "weather station", "chess club",
        "swimming hall", "town archive", "bee house", "film museum", "bicycle cellar", "glass factory",
        "mountain hut", "fire station", "pottery", "lighthouse", "concert hall", "reading room", "boat yard"};
static const char *const words[NEEDLE_FACTS] = {"velvet", "thunder", "pepper", "saddle", "marble", "orchid",
        "lantern", "falcon", "copper", "meadow", "anchor", "violet", "hammer", "walnut", "silver", "breeze",
        "cactus", "pillow", "dragon", "ribbon", "tunnel", "garlic", "magnet", "oyster"};

static status encode(const model_tool *t, const char *text, token_list *out, err *e)
{
    return tokenizer_encode(t->tok, text, strlen(text), false, out, e);
}

status needle_fact_make(const model_tool *t, int number, int repeat, needle_fact *out, err *e)
{
    char text[96];
    int place = (number + 5 * repeat) % NEEDLE_FACTS, word = (number * 7 + 11 * repeat + 3) % NEEDLE_FACTS;
    (void)snprintf(text, sizeof text, "The password of the %s is", places[place]);
    TRY(encode(t, text, &out->question, e));
    (void)snprintf(text, sizeof text, " %s", words[word]);
    return encode(t, text, &out->answer, e);
}

void needle_fact_free(needle_fact *f)
{
    token_list_free(&f->question);
    token_list_free(&f->answer);
}

/* ---- contexts ---- */

static bool ends_a_line(const model_tool *t, int32_t id)
{
    const char *bytes = NULL;
    size_t n = 0;
    tokenizer_piece(t->tok, id, &bytes, &n);
    return n > 0 && bytes[n - 1] == '\n';
}

static status add(token_list *to, const int32_t *ids, size_t n, err *e)
{
    for (size_t i = 0; i < n; i++) {
        if (token_list_push(to, ids[i]) != ST_OK) {
            return FAIL(e, ST_ERR_MEMORY, "out of memory for a context");
        }
    }
    return ST_OK;
}

/* The last place in (from, to] of the filler that begins a line, `to` if there is none. */
static size_t line_start(const needle_run *r, size_t from, size_t to)
{
    for (size_t i = to; i > from; i--) {
        if (ends_a_line(&r->o->tool, r->filler.ids[i - 1])) {
            return i;
        }
    }
    return to;
}

static status add_fact(const needle_run *r, int number, int repeat, token_list *out, err *e)
{
    needle_fact fact = {0};
    status s = needle_fact_make(&r->o->tool, number, repeat, &fact, e);
    s = s == ST_OK ? add(out, fact.question.ids, fact.question.n, e) : s;
    s = s == ST_OK ? add(out, fact.answer.ids, fact.answer.n, e) : s;
    s = s == ST_OK ? encode(&r->o->tool, ".\n", out, e) : s;
    needle_fact_free(&fact);
    return s;
}

status needle_context(const needle_run *r, int tokens, int repeat, token_list *out, err *e)
{
    const needle_options *o = r->o;
    enum { FACT_TOKENS = 24 }; /* more than any fact has */
    int coded = tokens - EVAL_SINK_TOKENS - EVAL_RECENT_TOKENS - FACT_TOKENS * o->n_depths;
    size_t taken = 0, planted = 0;
    for (int i = 0; i < o->n_depths; i++) {
        size_t to = (size_t)EVAL_SINK_TOKENS + (size_t)coded * (size_t)o->depths[i] / 100;
        to = line_start(r, taken > EVAL_SINK_TOKENS ? taken : EVAL_SINK_TOKENS, to);
        TRY(add(out, r->filler.ids + taken, to - taken, e));
        taken = to;
        size_t before = out->n;
        TRY(add_fact(r, i, repeat, out, e));
        planted += out->n - before;
    }
    REQUIRE(planted <= (size_t)FACT_TOKENS * (size_t)o->n_depths && out->n <= (size_t)tokens);
    return add(out, r->filler.ids + taken, (size_t)tokens - out->n, e);
}
