/* The picture of `epimem eval codec`: above, KL (logarithmic) against stored bits, one point a codec; below, the error of
 * each layer's attention outputs (logarithmic), one line a codec. */
#include <math.h>
#include <stdio.h>

#include "agent/eval_codec_internal.h"

enum {
    WIDTH = 720,
    LEFT = 70,
    RIGHT = 130,
    PANEL = 360,
    TOP = 20,
    GAP = 70,
    HEIGHT = 2 * PANEL + TOP + GAP + 50
};
enum { LABEL_HEIGHT = 14 };

/* A panel: x even, y a decimal logarithm. */
typedef struct panel {
    FILE *f;
    int top;
    double x_min, x_max, x_step, log_min, log_max;
} panel;

static const char *colour_of(int codec)
{
    static const char *const colours[] = {"#1b6ca8", "#c23b22", "#2f8f4e", "#8e44ad", "#d98e04", "#555",
            "#0aa", "#a0522d", "#e377c2", "#7f7f00"};
    return colours[(size_t)codec % (sizeof colours / sizeof colours[0])];
}

static double x_of(const panel *p, double x)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (x - p->x_min) / (p->x_max - p->x_min);
}

static double y_of(const panel *p, double value)
{
    double log_value = value > 0.0 ? log10(value) : p->log_min;
    log_value = log_value < p->log_min ? p->log_min : log_value;
    return p->top + PANEL * (p->log_max - log_value) / (p->log_max - p->log_min);
}

static void widen(panel *p, double value)
{
    if (value > 0.0) {
        p->log_min = fmin(p->log_min, floor(log10(value) - 0.05));
        p->log_max = fmax(p->log_max, ceil(log10(value) + 0.05));
    }
}

static void draw_axes(const panel *p, const char *x_title, const char *y_title)
{
    for (double x = p->x_min; x <= p->x_max + 0.01; x += p->x_step) {
        (void)fprintf(p->f,
                "<path d=\"M%.1f %d v%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%g</text>\n",
                x_of(p, x), p->top, PANEL, x_of(p, x), p->top + PANEL + 18, x);
    }
    for (double log_y = p->log_min; log_y <= p->log_max + 0.01; log_y += 1.0) {
        double y = y_of(p, pow(10.0, log_y));
        (void)fprintf(p->f,
                "<path d=\"M%d %.1f H%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%g</text>\n",
                LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, pow(10.0, log_y));
    }
    int middle = p->top + PANEL / 2;
    (void)fprintf(p->f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n"
            "<text x=\"16\" y=\"%d\" transform=\"rotate(-90 16 %d)\" text-anchor=\"middle\">%s</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, p->top + PANEL + 38, x_title, middle, middle, y_title);
}

/* ---- KL against bits ---- */

/* A codec without damage has no logarithm, one of more than 8 bits would squeeze the others: they are left out. */
static bool is_drawn(const eval_codec_result *r)
{
    return eval_damage_kl(&r->damage) > 0.0 && kvq_codec_bits(r->codec) <= 8.0;
}

static void draw_codec(const panel *p, const eval_codec_result *r, int codec)
{
    double kl = eval_damage_kl(&r->damage), error = eval_damage_kl_error(&r->damage);
    double x = x_of(p, kvq_codec_bits(r->codec)), y = y_of(p, kl);
    (void)fprintf(p->f,
            "<path d=\"M%.1f %.1f V%.1f\" stroke=\"%s\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" "
            "fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            x, y_of(p, kl - error), y_of(p, kl + error), colour_of(codec), x, y, colour_of(codec), x + 8,
            y + 4, kvq_codec_name(r->codec));
}

static void draw_kl(const eval_codec_run *r, FILE *f)
{
    panel p = {.f = f, .top = TOP, .x_min = 2.0, .x_max = 3.0, .x_step = 0.5, .log_max = -9.0};
    for (int i = 0; i < r->codecs.n; i++) {
        if (is_drawn(&r->results[i])) {
            p.x_max = fmax(p.x_max, ceil(kvq_codec_bits(r->results[i].codec) * 2.0) / 2.0);
            widen(&p, eval_damage_kl(&r->results[i].damage));
        }
    }
    if (p.log_min >= p.log_max) { /* nothing to draw */
        p.log_max = p.log_min + 1.0;
    }
    draw_axes(&p, "stored bits per element", "KL, nats");
    for (int i = 0; i < r->codecs.n; i++) {
        if (is_drawn(&r->results[i])) {
            draw_codec(&p, &r->results[i], i);
        }
    }
}

/* ---- attention by layer ---- */

/* Names at the right end of the lines, in the order of the lines' ends and not over each other. */
static void draw_names(const panel *p, const eval_codec_run *r)
{
    bool done[EVAL_CODECS_MAX] = {false};
    double last = p->top - 2.0 * LABEL_HEIGHT;
    for (int n = 0; n < r->codecs.n; n++) {
        int best = -1;
        for (int i = 0; i < r->codecs.n; i++) {
            double error = eval_attention_error(&r->results[i].attention, r->layers - 1);
            if (!done[i] && error > 0.0 &&
                    (best < 0 || error > eval_attention_error(&r->results[best].attention, r->layers - 1))) {
                best = i;
            }
        }
        if (best < 0) {
            return;
        }
        done[best] = true;
        double y = y_of(p, eval_attention_error(&r->results[best].attention, r->layers - 1)) + 4;
        last = fmax(y, last + LABEL_HEIGHT);
        (void)fprintf(p->f, "<text x=\"%d\" y=\"%.1f\" fill=\"%s\">%s</text>\n", WIDTH - RIGHT + 8, last,
                colour_of(best), kvq_codec_name(r->results[best].codec));
    }
}

static void draw_layers(const eval_codec_run *r, FILE *f)
{
    panel p = {.f = f,
            .top = TOP + PANEL + GAP,
            .x_max = r->layers - 1,
            .x_step = r->layers > 40 ? 10 : 5,
            .log_max = -9.0};
    p.x_max = p.x_max < 1.0 ? 1.0 : p.x_max;
    for (int i = 0; i < r->codecs.n; i++) {
        for (int layer = 0; layer < r->layers; layer++) {
            widen(&p, eval_attention_error(&r->results[i].attention, layer));
        }
    }
    if (p.log_min >= p.log_max) {
        p.log_max = p.log_min + 1.0;
    }
    draw_axes(&p, "layer", "error of attention outputs");
    for (int i = 0; i < r->codecs.n; i++) {
        const eval_attention *a = &r->results[i].attention;
        if (eval_attention_error(a, r->layers - 1) <= 0.0) {
            continue; /* exact */
        }
        (void)fprintf(
                f, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\" points=\"", colour_of(i));
        for (int layer = 0; layer < r->layers; layer++) {
            (void)fprintf(f, "%.1f,%.1f ", x_of(&p, layer), y_of(&p, eval_attention_error(a, layer)));
        }
        (void)fprintf(f, "\"/>\n");
    }
    draw_names(&p, r);
}

status eval_codec_plot(const eval_codec_run *r, err *e)
{
    FILE *f = NULL;
    TRY(eval_svg_open(r->o->plot_path, WIDTH, HEIGHT, &f, e));
    draw_kl(r, f);
    draw_layers(r, f);
    return eval_svg_close(f, r->o->plot_path, e);
}
