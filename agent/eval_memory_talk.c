/* Conversations with annotated questions, read from LoCoMo and REALTALK files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/eval_layout_internal.h"
#include "agent/eval_memory_internal.h"

enum { UTTERANCES_MAX = 1 << 20, QUESTIONS_MAX = 1 << 20, CATEGORY_WITHOUT_ANSWER = 5 };

/* ---- utterances ---- */

static status add_utterance(eval_talk *t, const cJSON *o, const char *session_time, err *e)
{
    const char *text = eval_layout_said(o), *when = eval_layout_text(o, "date_time");
    const char *speaker = eval_layout_text(o, "speaker"), *id = eval_layout_text(o, "dia_id");
    void *list = t->utterances;
    status st = base_grow(
            &list, &t->utterances_cap, (size_t)t->n_utterances + 1, UTTERANCES_MAX, sizeof *t->utterances);
    t->utterances = list;
    if (st != ST_OK) {
        return FAIL(e, st, "more than %d utterances", UTTERANCES_MAX);
    }
    eval_utterance u = {.text = text != NULL ? text : "",
            .speaker = speaker != NULL ? speaker : "Somebody",
            .id = id != NULL ? id : ""};
    u.has_time = (when != NULL && agent_time_parse(when, &u.time_us) == ST_OK) ||
            (session_time != NULL && agent_time_parse(session_time, &u.time_us) == ST_OK);
    t->utterances[t->n_utterances++] = u;
    return ST_OK;
}

/* Sessions by number: some numbers have a date and no utterances. */
static status read_sessions(eval_talk *t, const cJSON *conversation, err *e)
{
    int n_members = cJSON_GetArraySize(conversation);
    for (int number = 1; number <= n_members; number++) {
        const cJSON *o, *utterances = eval_layout_session(conversation, number, "");
        const cJSON *date = eval_layout_session(conversation, number, "_date_time");
        cJSON_ArrayForEach (o, utterances) {
            TRY(add_utterance(t, o, cJSON_GetStringValue(date), e));
        }
    }
    return t->n_utterances > 0 ? ST_OK : FAIL(e, ST_ERR_FORMAT, "no session_1 with utterances in it");
}

/* ---- questions ---- */

static bool names_utterance(const char *evidence, size_t bytes, const char *id)
{
    return strlen(id) == bytes && memcmp(id, evidence, bytes) == 0;
}

/* Marks the utterances that a string names: every "D<digits>:<digits>" in it. Files join several in one string. */
static void mark_evidence(const eval_talk *t, const char *s, bool *marked)
{
    for (; (s = strchr(s, 'D')) != NULL; s++) {
        size_t bytes = 1 + strspn(s + 1, "0123456789");
        if (s[bytes] != ':') {
            continue;
        }
        bytes += 1 + strspn(s + bytes + 1, "0123456789");
        for (int i = 0; i < t->n_utterances; i++) {
            marked[i] = marked[i] || names_utterance(s, bytes, t->utterances[i].id);
        }
    }
}

static status take_evidence(const eval_talk *t, const bool *marked, eval_question *q, err *e)
{
    int n = 0;
    for (int i = 0; i < t->n_utterances; i++) {
        n += marked[i];
    }
    q->evidence = n > 0 ? base_zalloc((size_t)n, sizeof *q->evidence) : NULL;
    if (n > 0 && q->evidence == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for questions");
    }
    for (int i = 0; i < t->n_utterances; i++) {
        if (marked[i]) {
            q->evidence[q->n_evidence++] = i;
        }
    }
    return ST_OK;
}

static char *answer_of(const cJSON *o)
{
    const cJSON *answer = cJSON_GetObjectItemCaseSensitive(o, "answer");
    if (cJSON_IsNumber(answer)) {
        char number[32];
        (void)snprintf(number, sizeof number, "%.15g", answer->valuedouble);
        return base_strdup(number);
    }
    return base_strdup(cJSON_IsString(answer) ? answer->valuestring : "");
}

static status add_question(eval_talk *t, const cJSON *o, bool *marked, err *e)
{
    const cJSON *item, *list = cJSON_GetObjectItemCaseSensitive(o, "evidence");
    const cJSON *category = cJSON_GetObjectItemCaseSensitive(o, "category");
    eval_question q = {.text = eval_layout_text(o, "question"), .answer = answer_of(o)};
    q.category = cJSON_IsNumber(category) ? category->valueint : 0;
    memset(marked, 0, (size_t)t->n_utterances * sizeof *marked);
    cJSON_ArrayForEach (item, list) {
        if (cJSON_IsString(item)) {
            mark_evidence(t, item->valuestring, marked);
        }
    }
    status st = q.answer == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for questions")
                                 : take_evidence(t, marked, &q, e);
    void *questions = t->questions;
    if (st == ST_OK &&
            base_grow(&questions, &t->questions_cap, (size_t)t->n_questions + 1, QUESTIONS_MAX,
                    sizeof *t->questions) != ST_OK) {
        st = FAIL(e, ST_ERR_MEMORY, "out of memory for questions");
    }
    t->questions = questions;
    if (st == ST_OK && q.text != NULL && q.n_evidence > 0 && q.category != CATEGORY_WITHOUT_ANSWER) {
        t->questions[t->n_questions++] = q;
        return ST_OK;
    }
    base_free(q.answer);
    base_free(q.evidence);
    return st;
}

static status read_questions(eval_talk *t, err *e)
{
    const cJSON *o, *list = cJSON_GetObjectItemCaseSensitive(t->json, "qa");
    bool *marked = base_zalloc((size_t)t->n_utterances, sizeof *marked);
    status st = marked == NULL ? FAIL(e, ST_ERR_MEMORY, "out of memory for questions") : ST_OK;
    cJSON_ArrayForEach (o, list) {
        st = st == ST_OK ? add_question(t, o, marked, e) : st;
    }
    base_free(marked);
    return st;
}

/* ---- files ---- */

static status parse(eval_talk *t, const base_map *map, err *e)
{
    const char *text = (const char *)map->data;
    TRY(eval_layout_parse(text, map->size, &t->json, e));
    TRY(read_sessions(t, eval_layout_conversation(t->json), e));
    return read_questions(t, e);
}

status eval_talk_read(const char *path, eval_talk *out, err *e)
{
    base_map map;
    err why = {0};
    eval_talk t = {0};
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    (void)snprintf(t.name, sizeof t.name, "%.*s", (int)sizeof t.name - 1, name);
    for (char *c = t.name; *c != '\0'; c++) { /* it is printed as a JSON string */
        *c = *c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '_' : *c;
    }
    TRY(base_map_open(path, &map, e));
    status st = parse(&t, &map, &why);
    base_map_close(&map);
    if (st != ST_OK) {
        eval_talk_close(&t);
        return FAIL(e, st, "%.200s: %.180s", path, why.text);
    }
    *out = t;
    return ST_OK;
}

void eval_talk_close(eval_talk *t)
{
    for (int i = 0; i < t->n_questions; i++) {
        base_free(t->questions[i].answer);
        base_free(t->questions[i].evidence);
    }
    base_free(t->questions);
    base_free(t->utterances);
    cJSON_Delete(t->json);
    *t = (eval_talk){0};
}

static void keep_question(eval_talk *t, int i, bool keep, int *kept)
{
    if (keep) {
        t->questions[(*kept)++] = t->questions[i];
    } else {
        base_free(t->questions[i].answer);
        base_free(t->questions[i].evidence);
    }
}

void eval_talk_thin(eval_talk *t, int n)
{
    int kept = 0;
    for (int i = 0; i < t->n_questions; i++) {
        int64_t before = (int64_t)i * n / t->n_questions, after = (int64_t)(i + 1) * n / t->n_questions;
        keep_question(t, i, n >= t->n_questions || after > before, &kept);
    }
    t->n_questions = kept;
}

void eval_talk_cut(eval_talk *t, int n)
{
    int kept = 0;
    for (int i = 0; i < t->n_questions; i++) {
        const eval_question *q = &t->questions[i];
        keep_question(t, i, q->evidence[q->n_evidence - 1] < n, &kept);
    }
    t->n_questions = kept;
    t->n_utterances = n < t->n_utterances ? n : t->n_utterances;
}
