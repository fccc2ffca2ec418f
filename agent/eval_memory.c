/* epimem eval memory: what memory is worth, on conversations with annotated questions. */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/arguments_internal.h"
#include "agent/eval_internal.h"
#include "agent/eval_memory_run_internal.h"

static const char help[] =
        "Usage: epimem eval memory -m MODEL --data FILE|FOLDER [options]\n"
        "\n"
        "Ingests each conversation and asks its questions, one by one, of different memories. A file is a\n"
        "conversation in the LoCoMo or REALTALK layout: session_1, session_2... of utterances with speaker,\n"
        "dia_id and text, and \"qa\" with question, answer, evidence (dia_ids) and category.\n"
        "\n"
        "  recall     share of the question's evidence that was attended (entries of keys, for methods that\n"
        "             keep them head by head)\n"
        "  precision  share of what was attended that is evidence\n"
        "  NLL        of the gold answer, nats a token; then minus that given the evidence as text, and "
        "minus\n"
        "             that given nothing\n"
        "  F1         of the greedy answer's words and the gold answer's\n"
        "\n"
        "  -m, --model FILE        GGUF file\n"
        "  -e, --encoder FOLDER    sentence encoder (default: all-MiniLM-L6-v2 beside the model)\n"
        "      --data PATH         a file, or a folder of .json files; may be repeated\n"
        "      --mode LIST         names with commas (default partition,text,evidence,none):\n";
static const char help_end[] =
        "      --budget LIST       tokens recalled, with commas (default 512; with --selection-only\n"
        "                          1024,2048,4096)\n"
        "      --questions N       of each file at most, evenly over it (default: all)\n"
        "      --history N         the first tokens of each conversation; questions about later ones are "
        "left\n"
        "                          out (default: all)\n"
        "      --plain N           attend to a history whole up to so many tokens (default: as the server)\n"
        "      --no-generate       no greedy answers\n"
        "      --selection-only    recall alone, of the match: the model computes nothing\n"
        "      --missed            also list the evidence that was not recalled (with --selection-only)\n"
        "      --floor X           cosine under which nothing is recalled (default: the encoder's)\n"
        "      --codec NAME        of stored keys and values (default turboquant)\n"
        "      --calibration FILE  of `epimem calibrate`, for the codecs that need one\n"
        "      --keep FOLDER       data folder in which ingested conversations stay for the next run\n"
        "      --json              one JSON object a line instead of the table\n"
        "  -t, --threads N         threads (default: one per core)\n"
        "  -h, --help              show this help\n";

/* ---- arguments ---- */

static int usage_error(const char *what)
{
    return arguments_mistake("eval memory", what);
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool ends_with_json(const char *name)
{
    size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static int add_path(eval_memory_options *o, const char *path)
{
    if (o->n_paths == EVAL_FILES_MAX) {
        return usage_error("--data names more than 256 files");
    }
    char *own = base_strdup(path);
    if (own == NULL) {
        return usage_error("out of memory for --data");
    }
    o->paths[o->n_paths++] = own;
    return -1;
}

/* A file, or the .json files of a folder in the order of their names. */
static int add_data(eval_memory_options *o, const char *path)
{
    DIR *folder = opendir(path);
    int first = o->n_paths, exit_status = -1;
    if (folder == NULL) {
        return add_path(o, path);
    }
    const struct dirent *entry;
    while (exit_status < 0 && (entry = readdir(folder)) != NULL) {
        char file[4096];
        if (ends_with_json(entry->d_name)) {
            (void)snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            exit_status = add_path(o, file);
        }
    }
    (void)closedir(folder);
    qsort(o->paths + first, (size_t)(o->n_paths - first), sizeof *o->paths, compare_paths);
    if (exit_status < 0 && o->n_paths == first) {
        return usage_error("--data has no .json files in it");
    }
    return exit_status;
}

static bool read_share(const char *value, float *out)
{
    char *end = NULL;
    *out = strtof(value, &end);
    return end != value && *end == '\0' && *out >= 0.0f && *out <= 1.0f;
}

/* The options that are a text or a switch. */
static bool take_simple(eval_memory_options *o, int option, const char *value)
{
    const struct {
        int option;
        const char **text;
        bool *flag;
    } simple[] = {{'m', &o->bench.model_path, NULL}, {'e', &o->bench.encoder_path, NULL},
            {'M', &o->modes, NULL}, {'c', &o->bench.codec, NULL}, {'C', &o->bench.calibration_path, NULL},
            {'k', &o->bench.keep_path, NULL}, {'g', NULL, &o->no_generate}, {'v', NULL, &o->missed},
            {'s', NULL, &o->selection_only}, {'j', NULL, &o->json}};
    for (size_t i = 0; i < sizeof simple / sizeof simple[0]; i++) {
        if (simple[i].option == option) {
            if (simple[i].text != NULL) {
                *simple[i].text = value;
            } else {
                *simple[i].flag = true;
            }
            return true;
        }
    }
    return false;
}

static int take_option(void *options, int option, char *value)
{
    eval_memory_options *o = options;
    if (take_simple(o, option, value)) {
        return -1;
    }
    switch (option) {
    case 'd':
        return add_data(o, value);
    case 'b':
        return arguments_numbers(value, 0, 1 << 20, o->budgets, EVAL_BUDGETS_MAX, &o->n_budgets)
                ? -1
                : usage_error("--budget must be whole numbers with commas, 16 at most");
    case 'q':
        return arguments_int(value, 0, 1 << 20, &o->questions)
                ? -1
                : usage_error("--questions must be a whole number");
    case 'f':
        return read_share(value, &o->bench.floor) ? -1 : usage_error("--floor must be a cosine from 0 to 1");
    case 'H':
        return arguments_number(value, 0, 1 << 30, &o->history)
                ? -1
                : usage_error("--history must be a whole number");
    case 'P':
        return arguments_number(value, 0, 1 << 30, &o->bench.plain_tokens)
                ? -1
                : usage_error("--plain must be a whole number");
    case 't':
        return arguments_int(value, 0, 1024, &o->bench.threads) ? -1
                                                                : usage_error("--threads must be 0 to 1024");
    case ARGUMENTS_WORD:
        return usage_error("files are named with --data");
    case 'h':
        (void)fputs(help, stdout);
        eval_mode_print_all(stdout);
        return fputs(help_end, stdout) < 0 ? 1 : 0;
    default:
        return 2; /* getopt has said why */
    }
}

static int read_arguments(eval_memory_options *o, int argc, char **argv)
{
    static const struct option options[] = {{"model", required_argument, NULL, 'm'},
            {"encoder", required_argument, NULL, 'e'}, {"data", required_argument, NULL, 'd'},
            {"mode", required_argument, NULL, 'M'}, {"budget", required_argument, NULL, 'b'},
            {"questions", required_argument, NULL, 'q'}, {"history", required_argument, NULL, 'H'},
            {"plain", required_argument, NULL, 'P'}, {"no-generate", no_argument, NULL, 'g'},
            {"selection-only", no_argument, NULL, 's'}, {"codec", required_argument, NULL, 'c'},
            {"calibration", required_argument, NULL, 'C'}, {"keep", required_argument, NULL, 'k'},
            {"missed", no_argument, NULL, 'v'}, {"floor", required_argument, NULL, 'f'},
            {"json", no_argument, NULL, 'j'}, {"threads", required_argument, NULL, 't'},
            {"help", no_argument, NULL, 'h'}, {0}};
    int exit_status = arguments_read(argc, argv, "m:e:t:h", options, take_option, o);
    if (exit_status >= 0) {
        return exit_status;
    }
    if (o->bench.model_path == NULL) {
        return usage_error("-m MODEL is missing");
    }
    return o->n_paths == 0 ? usage_error("--data FILE is missing") : -1;
}

/* ---- rows ---- */

static status add_rows(eval_memory_run *r, err *e)
{
    static const int64_t selection_budgets[] = {1024, 2048, 4096};
    eval_memory_options *o = r->o;
    if (o->n_budgets == 0) {
        o->n_budgets = o->selection_only ? 3 : 1;
        memcpy(o->budgets, selection_budgets, sizeof selection_budgets);
        o->budgets[0] = o->selection_only ? 1024 : 512;
    }
    const char *list = o->modes != NULL ? o->modes
            : o->selection_only         ? "partition"
                                        : "partition,text,evidence,none";
    r->rows = base_zalloc(strlen(list) * EVAL_BUDGETS_MAX, sizeof *r->rows);
    if (r->rows == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for results");
    }
    while (*list != '\0') {
        size_t n = strcspn(list, ",");
        const eval_mode *mode = eval_mode_find(list, n);
        if (mode == NULL) {
            return FAIL(e, ST_ERR_ARG, "no mode \"%.*s\"; epimem eval memory --help lists them",
                    (int)(n < 40 ? n : 40), list);
        }
        if (o->selection_only && strcmp(mode->name, "partition") != 0) {
            return FAIL(e, ST_ERR_ARG, "--selection-only is about the match, so of mode partition only");
        }
        for (int i = 0; i < (mode->has_budget ? o->n_budgets : 1); i++) {
            r->rows[r->n_rows++] = (eval_row){.mode = mode, .budget = mode->has_budget ? o->budgets[i] : 0};
        }
        list += n + (list[n] == ',');
    }
    return ST_OK;
}

static void add_result(eval_sums *s, const eval_result *x)
{
    s->questions++;
    s->sum.recall += x->recall;
    s->sum.precision += x->precision;
    s->sum.tokens_attended += x->tokens_attended;
    s->sum.nll += x->nll;
    s->sum.f1 += x->f1;
    s->sum.bytes_held += x->bytes_held;
    s->sum.bytes_attended += x->bytes_attended;
    s->sum.bytes_loaded += x->bytes_loaded;
    s->sum.match_ms += x->match_ms;
    s->sum.first_token_ms += x->first_token_ms;
    s->sum.turn_ms += x->turn_ms;
    s->sum.gap_evidence += x->gap_evidence;
    s->sum.gap_none += x->gap_none;
}

/* ---- one conversation ---- */

static bool is_missed(const eval_case *c, int utterance)
{
    const session_turn *t = c->turn_of[utterance] >= 0 ? &c->s->turns[c->turn_of[utterance]] : NULL;
    return t == NULL || c->attended[t->first_token + t->lead_tokens] < 0.5f;
}

static void show_missed(const eval_case *c, const eval_question *q)
{
    bool any = false;
    for (int i = 0; i < q->n_evidence; i++) {
        const eval_utterance *u = &c->talk.utterances[q->evidence[i]];
        if (is_missed(c, q->evidence[i])) {
            (void)(any ? 0 : fprintf(stderr, "  ? %s\n", q->text));
            (void)fprintf(stderr, "      %s %s: %.120s\n", u->id, u->speaker, u->text);
            any = true;
        }
    }
}

/* Recall and precision from the shares in which tokens were attended. */
static void measure_evidence(const eval_case *c, const eval_question *q, eval_result *out)
{
    double all = 0.0, evidence = 0.0;
    for (size_t i = 0; i < c->s->n_tokens; i++) {
        all += (double)c->attended[i];
    }
    for (int i = 0; i < q->n_evidence; i++) {
        int turn = c->turn_of[q->evidence[i]];
        if (turn < 0) {
            continue; /* without text: counts as missed */
        }
        const session_turn *t = &c->s->turns[turn];
        double sum = 0.0;
        int64_t from = t->first_token + t->lead_tokens, to = t->first_token + t->n_tokens;
        for (int64_t at = from; at < to; at++) {
            sum += (double)c->attended[at];
        }
        out->recall += sum / (double)(to - from) / q->n_evidence;
        evidence += sum;
    }
    out->tokens_attended = all;
    out->precision = all > 0.0 ? evidence / all : 0.0;
}

static status measure_row(eval_memory_run *r, eval_case *c, int row_index, err *e)
{
    eval_row *row = &r->rows[row_index];
    for (int i = 0; i < c->talk.n_questions; i++) {
        const eval_question *q = &c->talk.questions[i];
        eval_result x = {0};
        err why = {0};
        status st = row->mode->ask(c, q, row->budget, &x, &why);
        if (st == ST_ERR_LIMIT) { /* not of this conversation */
            (void)snprintf(row->skipped, sizeof row->skipped, "%.150s", why.text);
            return ST_OK;
        }
        if (st != ST_OK) {
            return FAIL(e, st, "%s, %s: %.300s", c->talk.name, row->mode->name, why.text);
        }
        measure_evidence(c, q, &x);
        if (r->o->missed && row_index == r->n_rows - 1) {
            show_missed(c, q);
        }
        x.gap_none = x.nll - c->nll_none[i];
        x.gap_evidence = x.nll - c->nll_evidence[i];
        add_result(&row->all, &x);
        add_result(&row->file[r->n_files], &x);
        add_result(&row->category[q->category > 0 && q->category < EVAL_CATEGORIES ? q->category : 0], &x);
        if (isatty(STDERR_FILENO)) {
            (void)fprintf(stderr, "\r%s: %s %lld, question %d of %d ", c->talk.name, row->mode->name,
                    (long long)row->budget, i + 1, c->talk.n_questions);
        }
    }
    (void)fprintf(stderr, "%s%s: %s %lld, %d questions\n", isatty(STDERR_FILENO) ? "\r" : "", c->talk.name,
            row->mode->name, (long long)row->budget, c->talk.n_questions);
    return ST_OK;
}

/* Ends the conversation where its log reaches the wanted length. */
static status cut(eval_case *c, err *e)
{
    session *s;
    int n = c->talk.n_utterances;
    if (c->o->history == 0) {
        return ST_OK;
    }
    TRY(eval_session_open(c->b, &c->b->coded, c->talk.utterances, n, c->turn_of, &s, e));
    for (int i = c->talk.n_utterances; i-- > 0;) {
        const session_turn *t = c->turn_of[i] >= 0 ? &s->turns[c->turn_of[i]] : NULL;
        n = t != NULL && t->first_token + t->n_tokens > c->o->history ? i : n;
    }
    session_close(s);
    eval_talk_cut(&c->talk, n);
    return ST_OK;
}

static status open_session(eval_case *c, err *e)
{
    const eval_talk *t = &c->talk;
    if (c->o->bench.keep_path == NULL) {
        TRY(eval_session_open(c->b, &c->b->coded, t->utterances, t->n_utterances, c->turn_of, &c->s, e));
        return eval_session_index(c->s, e);
    }
    char name[128];
    (void)snprintf(name, sizeof name, "%s-%d", t->name, t->n_utterances);
    TRY(eval_session_open_kept(c->b, name, t->utterances, t->n_utterances, c->turn_of, &c->s, e));
    c->computed = tiers_tokens(c->s->tiers) == (int64_t)c->s->n_tokens;
    TRY(eval_session_index(c->s, e));
    return eval_session_keep(c->s, e);
}

static status open_case(eval_case *c, const char *path, err *e)
{
    TRY(eval_talk_read(path, &c->talk, e));
    c->turn_of = base_zalloc((size_t)c->talk.n_utterances, sizeof *c->turn_of);
    if (c->turn_of == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a conversation");
    }
    TRY(cut(c, e));
    TRY(open_session(c, e));
    if (c->o->questions > 0) {
        eval_talk_thin(&c->talk, c->o->questions);
    }
    c->attended = base_zalloc(c->s->n_tokens, sizeof *c->attended);
    c->nll_none = base_zalloc((size_t)c->talk.n_questions + 1, sizeof *c->nll_none);
    c->nll_evidence = base_zalloc((size_t)c->talk.n_questions + 1, sizeof *c->nll_evidence);
    if (c->attended == NULL || c->nll_none == NULL || c->nll_evidence == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for a conversation");
    }
    (void)fprintf(stderr, "%s: %zu tokens, %d utterances, %d questions\n", c->talk.name, c->s->n_tokens,
            c->talk.n_utterances, c->talk.n_questions);
    return ST_OK;
}

static void close_case(eval_case *c)
{
    session_close(c->s);
    session_close(c->whole);
    eval_evicted_close(c->evicted);
    base_free(c->turn_of);
    base_free(c->attended);
    base_free(c->nll_none);
    base_free(c->nll_evidence);
    eval_talk_close(&c->talk);
}

static status measure_file(eval_memory_run *r, const char *path, err *e)
{
    eval_case c = {.o = r->o, .b = &r->bench};
    status st = open_case(&c, path, e);
    st = st == ST_OK && !r->o->selection_only ? eval_case_references(&c, e) : st;
    for (int i = 0; st == ST_OK && i < r->n_rows; i++) {
        st = measure_row(r, &c, i, e);
    }
    if (st == ST_OK) {
        memcpy(r->files[r->n_files++], c.talk.name, sizeof c.talk.name);
        r->history_tokens += (int64_t)c.s->n_tokens;
        r->n_utterances += c.talk.n_utterances;
        r->n_segments += (int)ep_index_segments(c.s->index);
        r->n_episodes += ep_index_episodes(c.s->index);
        st = eval_count_unrelated(&c, &r->n_unrelated, &r->n_unrelated_recalled, e);
    }
    close_case(&c);
    return st;
}

/* ---- all of it ---- */

static status run_all(eval_memory_run *r, err *e)
{
    r->files = base_zalloc(EVAL_FILES_MAX, sizeof *r->files);
    if (r->files == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "out of memory for results");
    }
    TRY(add_rows(r, e));
    TRY(eval_bench_open(&r->o->bench, &r->bench, e));
    for (int i = 0; i < r->o->n_paths; i++) {
        TRY(measure_file(r, r->o->paths[i], e));
    }
    return eval_memory_report(r, e);
}

static int run_options(eval_memory_options *o)
{
    eval_memory_run r = {.o = o};
    err e = {0};
    status st = run_all(&r, &e);
    if (st != ST_OK) {
        (void)fprintf(stderr, "epimem eval memory: %s\n", e.text);
    }
    eval_bench_close(&r.bench);
    base_free(r.rows);
    base_free(r.files);
    return st == ST_OK ? 0 : 1;
}

int eval_memory_main(int argc, char **argv)
{
    eval_memory_options o = {.bench = {.floor = -1.0f}};
    int exit_status = read_arguments(&o, argc, argv);
    if (exit_status < 0) {
        exit_status = run_options(&o);
    }
    for (int i = 0; i < o.n_paths; i++) {
        base_free(o.paths[i]);
    }
    return exit_status;
}
