/* Results of `epimem eval needle`: a table, JSON lines, and the picture of heat maps. */
#include <math.h>
#include <stdio.h>

#include "agent/eval_needle_internal.h"

needle_cell needle_total(const needle_options *o, const needle_result *r)
{
    needle_cell sum = {0};
    for (int context = 0; context < o->n_contexts; context++) {
        for (int depth = 0; depth < o->n_depths; depth++) {
            const needle_cell *c = &r->cells[context][depth];
            sum.nll += c->nll;
            sum.added_nll += c->added_nll;
            sum.added_squared += c->added_squared;
            sum.facts += c->facts;
        }
    }
    return sum;
}

double needle_error(const needle_cell *c)
{
    double n = c->facts;
    double variance = n > 1.0 ? (c->added_squared - c->added_nll * c->added_nll / n) / (n - 1.0) : 0.0;
    return variance > 0.0 ? sqrt(variance / n) : 0.0;
}

/* ---- text ---- */

static int print_json(const needle_options *o, const char *name, double bits, const needle_result *r)
{
    int written = 0;
    for (int context = 0; context < o->n_contexts; context++) {
        for (int depth = 0; written >= 0 && depth < o->n_depths; depth++) {
            const needle_cell *c = &r->cells[context][depth];
            written = printf("{\"codec\":\"%s\",\"bits\":%.4f,\"context\":%d,\"depth\":%d,\"nll\":%.5f,"
                             "\"added_nll\":%.5f,\"facts\":%d}\n",
                    name, bits, o->contexts[context], o->depths[depth], needle_mean(c, c->nll),
                    needle_mean(c, c->added_nll), c->facts);
        }
    }
    return written;
}

static int print_rows(const needle_options *o, const char *name, const needle_result *r, bool exact)
{
    needle_cell total = needle_total(o, r);
    int written = exact ? printf("\n%s: NLL %.3f\n", name, needle_mean(&total, total.nll))
                        : printf("\n%s: adds %+.3f (%.3f) to NLL\n", name,
                                  needle_mean(&total, total.added_nll), needle_error(&total));
    for (int context = 0; context < o->n_contexts; context++) {
        (void)printf("%9d", o->contexts[context]);
        for (int depth = 0; depth < o->n_depths; depth++) {
            const needle_cell *c = &r->cells[context][depth];
            (void)printf(exact ? " %7.3f" : " %+7.3f", needle_mean(c, exact ? c->nll : c->added_nll));
        }
        written = written >= 0 ? printf("\n") : written;
    }
    return written;
}

status needle_report(const needle_run *r, err *e)
{
    const needle_options *o = r->o;
    int written = 0;
    if (!o->json) {
        (void)printf("%9s", "depth %");
        for (int depth = 0; depth < o->n_depths; depth++) {
            (void)printf(" %7d", o->depths[depth]);
        }
        (void)printf("\n");
        written = print_rows(o, "exact cache", &r->exact, true);
    }
    for (int i = 0; written >= 0 && i < r->codecs.n; i++) {
        const char *name = kvq_codec_name(r->codecs.codec[i]);
        written = o->json ? print_json(o, name, kvq_codec_bits(r->codecs.codec[i]), &r->results[i])
                          : print_rows(o, name, &r->results[i], false);
    }
    return written >= 0 && fflush(stdout) == 0 ? ST_OK
                                               : FAIL(e, ST_ERR_IO, "standard output could not be written");
}

/* ---- picture ---- */

enum {
    CELL_WIDTH = 58,
    CELL_HEIGHT = 26,
    LEFT = 50,
    TITLE = 44,
    FOOT = 24,
    COLUMNS_MIN = 3,
    GAP = 16,
    PANELS_A_ROW = 3,
    NOTE = 30
};

/* White at 0, red upwards, blue downwards; full at 2 nats. */
static void colour_of(double added, char *out, size_t bytes)
{
    double share = fmin(fabs(added) / 2.0, 1.0);
    int fade = (int)lround(255.0 - 175.0 * sqrt(share));
    (void)snprintf(out, bytes, added > 0.0 ? "rgb(245,%d,%d)" : "rgb(%d,%d,245)", fade, fade);
}

static void draw_cell(FILE *f, int x, int y, double value, bool exact)
{
    char colour[32] = "#eee";
    if (!exact) {
        colour_of(value, colour, sizeof colour);
    }
    (void)fprintf(f,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\"/>"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\">",
            x, y, CELL_WIDTH - 2, CELL_HEIGHT - 2, colour, x + CELL_WIDTH / 2 - 1, y + CELL_HEIGHT - 10);
    (void)fprintf(f, exact ? "%.2f</text>\n" : "%+.2f</text>\n", value);
}

static void draw_panel(
        FILE *f, const needle_options *o, int x, int y, const char *name, const needle_result *r, bool exact)
{
    needle_cell total = needle_total(o, r);
    (void)fprintf(f, "<text x=\"%d\" y=\"%d\" font-weight=\"bold\">%s</text>", x + LEFT, y + 16, name);
    (void)fprintf(f, "<text x=\"%d\" y=\"%d\" font-size=\"11\">", x + LEFT, y + 32);
    (void)fprintf(f, exact ? "mean %.3f</text>\n" : "mean %+.3f (%.3f)</text>\n",
            needle_mean(&total, exact ? total.nll : total.added_nll), needle_error(&total));
    for (int depth = 0; depth < o->n_depths; depth++) {
        int at = y + TITLE + depth * CELL_HEIGHT;
        (void)fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" font-size=\"11\">%d %%</text>\n",
                x + LEFT - 6, at + CELL_HEIGHT - 10, o->depths[depth]);
        for (int context = 0; context < o->n_contexts; context++) {
            const needle_cell *c = &r->cells[context][depth];
            draw_cell(f, x + LEFT + context * CELL_WIDTH, at, needle_mean(c, exact ? c->nll : c->added_nll),
                    exact);
        }
    }
    for (int context = 0; context < o->n_contexts; context++) {
        (void)fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\">%d</text>\n",
                x + LEFT + context * CELL_WIDTH + CELL_WIDTH / 2, y + TITLE + o->n_depths * CELL_HEIGHT + 14,
                o->contexts[context]);
    }
}

status needle_plot(const needle_run *r, err *e)
{
    const needle_options *o = r->o;
    int panels = r->codecs.n + 1, across = panels < PANELS_A_ROW ? panels : PANELS_A_ROW;
    int columns = o->n_contexts > COLUMNS_MIN ? o->n_contexts : COLUMNS_MIN;
    int width = LEFT + columns * CELL_WIDTH + GAP, height = TITLE + o->n_depths * CELL_HEIGHT + FOOT + GAP;
    int down = (panels + across - 1) / across;
    FILE *f = NULL;
    TRY(eval_svg_open(o->plot_path, across * width + GAP, down * height + NOTE, &f, e));
    for (int i = 0; i < panels; i++) {
        int x = i % across * width, y = i / across * height;
        if (i == 0) {
            draw_panel(f, o, x, y, "exact cache", &r->exact, true);
        } else {
            draw_panel(f, o, x, y, kvq_codec_name(r->codecs.codec[i - 1]), &r->results[i - 1], false);
        }
    }
    (void)fprintf(f, "<text x=\"%d\" y=\"%d\" font-size=\"11\">nats a token, depth against context</text>\n",
            GAP, down * height + NOTE - 12);
    return eval_svg_close(f, o->plot_path, e);
}
