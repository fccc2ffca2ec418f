/* Results of `epimem eval memory`: a table for people, JSON lines for programs. */
#include <stdio.h>

#include "agent/eval_memory_run_internal.h"

double eval_mean(const eval_sums *s, double sum)
{
    return s->questions > 0 ? sum / s->questions : 0.0;
}

/* ---- JSON ---- */

static int print_measured(const char *name, double value, bool measured, int digits)
{
    return measured ? printf(",\"%s\":%.*f", name, digits, value) : printf(",\"%s\":null", name);
}

/* One member per category or file that has questions. */
static int print_groups(
        const eval_memory_run *r, const char *name, const eval_sums *sums, int n, const char (*labels)[64])
{
    int written = printf(",\"%s\":{", name);
    const char *comma = "";
    bool asked = !r->o->selection_only;
    for (int i = 0; i < n; i++) {
        const eval_sums *s = &sums[i];
        if (s->questions == 0) {
            continue;
        }
        char number[16];
        (void)snprintf(number, sizeof number, "%d", i);
        (void)printf("%s\"%s\":{\"questions\":%d", comma, labels != NULL ? labels[i] : number, s->questions);
        (void)print_measured("evidence_recall", eval_mean(s, s->sum.recall), true, 4);
        (void)print_measured("nll", eval_mean(s, s->sum.nll), asked, 4);
        (void)print_measured("nll_gap_evidence", eval_mean(s, s->sum.gap_evidence), asked, 4);
        (void)print_measured("nll_gap_none", eval_mean(s, s->sum.gap_none), asked, 4);
        (void)print_measured("f1", eval_mean(s, s->sum.f1), asked && !r->o->no_generate, 4);
        written = printf("}");
        comma = ",";
    }
    return written < 0 ? written : printf("}");
}

static int print_json(const eval_memory_run *r, const eval_row *row)
{
    const eval_sums *s = &row->all;
    const eval_result *m = &s->sum;
    bool asked = !r->o->selection_only && s->questions > 0;
    (void)printf("{\"mode\":\"%s\",\"budget\":%lld,\"questions\":%d", row->mode->name, (long long)row->budget,
            s->questions);
    (void)print_measured("evidence_recall", eval_mean(s, m->recall), s->questions > 0, 4);
    (void)print_measured("evidence_precision", eval_mean(s, m->precision), s->questions > 0, 4);
    (void)print_measured("nll", eval_mean(s, m->nll), asked, 4);
    (void)print_measured("nll_gap_evidence", eval_mean(s, m->gap_evidence), asked, 4);
    (void)print_measured("nll_gap_none", eval_mean(s, m->gap_none), asked, 4);
    (void)print_measured("f1", eval_mean(s, m->f1), asked && !r->o->no_generate, 4);
    (void)print_measured("tokens_attended", eval_mean(s, m->tokens_attended), s->questions > 0, 1);
    (void)print_measured("bytes_held", eval_mean(s, m->bytes_held), asked, 0);
    (void)print_measured("bytes_attended", eval_mean(s, m->bytes_attended), asked, 0);
    (void)print_measured("bytes_loaded", eval_mean(s, m->bytes_loaded), asked, 0);
    (void)print_measured("match_ms", eval_mean(s, m->match_ms), asked, 2);
    (void)print_measured("first_token_ms", eval_mean(s, m->first_token_ms), asked, 1);
    (void)print_measured("turn_ms", eval_mean(s, m->turn_ms), asked && !r->o->no_generate, 1);
    (void)printf(",\"history_tokens\":%lld,\"utterances\":%d,\"segments\":%d,\"episodes\":%d,"
                 "\"unrelated_questions\":%d,\"unrelated_recalled\":%d",
            (long long)r->history_tokens, r->n_utterances, r->n_segments, r->n_episodes, r->n_unrelated,
            r->n_unrelated_recalled);
    (void)print_groups(r, "categories", row->category, EVAL_CATEGORIES, NULL);
    (void)print_groups(r, "files", row->file, r->n_files, (const char(*)[64])r->files);
    if (row->skipped[0] != '\0') {
        (void)printf(",\"skipped\":\"%s\"", row->skipped);
    }
    return printf("}\n");
}

/* ---- the table ---- */

static int print_head(const eval_memory_run *r)
{
    (void)printf(
            "%d files, %lld tokens of history, %d utterances in %d segments and %d episodes; codec %s\n\n",
            r->n_files, (long long)r->history_tokens, r->n_utterances, r->n_segments, r->n_episodes,
            kvq_codec_name(r->bench.engine->codec));
    (void)printf("%-12s %6s %5s %7s %6s %8s", "mode", "budget", "ques.", "recall", "prec.", "attended");
    if (r->o->selection_only) {
        return printf("\n");
    }
    return printf(" %7s %8s %8s %6s %8s %8s %8s\n", "NLL", "-evid.", "-none", "F1", "MB held", "first ms",
            "turn ms");
}

static int print_row(const eval_memory_run *r, const eval_row *row)
{
    const eval_sums *s = &row->all;
    const eval_result *m = &s->sum;
    char budget[24] = "-";
    if (row->mode->has_budget) {
        (void)snprintf(budget, sizeof budget, "%lld", (long long)row->budget);
    }
    (void)printf("%-12s %6s %5d", row->mode->name, budget, s->questions);
    if (s->questions == 0) {
        return printf("  %s\n", row->skipped);
    }
    (void)printf(" %7.3f %6.3f %8.0f", eval_mean(s, m->recall), eval_mean(s, m->precision),
            eval_mean(s, m->tokens_attended));
    if (r->o->selection_only) {
        return printf("\n");
    }
    (void)printf(" %7.3f %+8.3f %+8.3f", eval_mean(s, m->nll), eval_mean(s, m->gap_evidence),
            eval_mean(s, m->gap_none));
    return printf(" %6.3f %8.1f %8.0f %8.0f\n", eval_mean(s, m->f1), eval_mean(s, m->bytes_held) / 1e6,
            eval_mean(s, m->first_token_ms), eval_mean(s, m->turn_ms));
}

/* One line a file: recall, and NLL where it was measured. */
static void print_files(const eval_memory_run *r)
{
    for (int f = 0; f < r->n_files; f++) {
        (void)printf("\n%s\n", r->files[f]);
        for (int i = 0; i < r->n_rows; i++) {
            const eval_sums *s = &r->rows[i].file[f];
            if (s->questions > 0) {
                (void)printf("  %-12s %6lld %5d %7.3f", r->rows[i].mode->name, (long long)r->rows[i].budget,
                        s->questions, eval_mean(s, s->sum.recall));
                (void)(r->o->selection_only ? printf("\n") : printf(" NLL %.3f\n", eval_mean(s, s->sum.nll)));
            }
        }
    }
}

static void print_categories(const eval_memory_run *r)
{
    (void)printf("\nrecall by category of question\n");
    for (int i = 0; i < r->n_rows; i++) {
        (void)printf("%-12s %6lld", r->rows[i].mode->name, (long long)r->rows[i].budget);
        for (int k = 0; k < EVAL_CATEGORIES; k++) {
            const eval_sums *s = &r->rows[i].category[k];
            if (s->questions > 0) {
                (void)printf("  %d: %.3f (%d)", k, eval_mean(s, s->sum.recall), s->questions);
            }
        }
        (void)printf("\n");
    }
}

status eval_memory_report(const eval_memory_run *r, err *e)
{
    int written = r->o->json ? 0 : print_head(r);
    for (int i = 0; written >= 0 && i < r->n_rows; i++) {
        written = r->o->json ? print_json(r, &r->rows[i]) : print_row(r, &r->rows[i]);
    }
    if (!r->o->json) {
        print_categories(r);
        print_files(r);
    }
    return written >= 0 && fflush(stdout) == 0 && ferror(stdout) == 0
            ? ST_OK
            : FAIL(e, ST_ERR_IO, "standard output could not be written");
}
