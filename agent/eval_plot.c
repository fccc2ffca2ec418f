/* The picture of `epimem eval codec`: KL (logarithmic) against stored bits, one point a codec. */
#include <errno.h>
#include <math.h>
#include <stdio.h>

#include "agent/eval_codec_internal.h"

enum { WIDTH = 720, HEIGHT = 480, LEFT = 70, RIGHT = 130, TOP = 20, BOTTOM = 50 };

typedef struct frame {
    FILE *f;
    double bits_max, log_min, log_max; /* decimal logarithms of KL */
} frame;

static double x_of(const frame *p, double bits)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (bits - 2.0) / (p->bits_max - 2.0);
}

static double y_of(const frame *p, double log_kl)
{
    return TOP + (HEIGHT - TOP - BOTTOM) * (p->log_max - log_kl) / (p->log_max - p->log_min);
}

/* A codec without damage has no logarithm, one of more than 8 bits would squeeze the others: they are left out. */
static bool is_drawn(const eval_codec_result *r)
{
    return eval_damage_kl(&r->damage) > 0.0 && kvq_codec_bits(r->codec) <= 8.0;
}

static frame measure(const eval_codec_run *r)
{
    frame p = {.bits_max = 3.0, .log_min = 0.0, .log_max = -9.0};
    for (int i = 0; i < r->n_codecs; i++) {
        if (is_drawn(&r->results[i])) {
            double bits = kvq_codec_bits(r->results[i].codec),
                   kl = log10(eval_damage_kl(&r->results[i].damage));
            p.bits_max = bits > p.bits_max ? bits : p.bits_max;
            p.log_min = kl < p.log_min ? kl : p.log_min;
            p.log_max = kl > p.log_max ? kl : p.log_max;
        }
    }
    p.bits_max = ceil(p.bits_max * 2.0) / 2.0;
    p.log_min = floor(p.log_min - 0.05);
    p.log_max = ceil(p.log_max + 0.05);
    return p;
}

static void draw_axes(const frame *p)
{
    for (double bits = 2.0; bits <= p->bits_max + 0.01; bits += 0.5) {
        double x = x_of(p, bits);
        (void)fprintf(p->f,
                "<path d=\"M%.1f %d V%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%.1f</text>\n",
                x, TOP, HEIGHT - BOTTOM, x, HEIGHT - BOTTOM + 18, bits);
    }
    for (double log_kl = p->log_min; log_kl <= p->log_max + 0.01; log_kl += 1.0) {
        double y = y_of(p, log_kl);
        (void)fprintf(p->f,
                "<path d=\"M%d %.1f H%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" "
                "text-anchor=\"end\">%g</text>\n",
                LEFT, y, WIDTH - RIGHT, LEFT - 8, y + 4, pow(10.0, log_kl));
    }
    (void)fprintf(p->f,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">stored bits per element</text>\n"
            "<text x=\"16\" y=\"%d\" transform=\"rotate(-90 16 %d)\" text-anchor=\"middle\">KL, "
            "nats</text>\n",
            (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, (TOP + HEIGHT - BOTTOM) / 2,
            (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_codec(const frame *p, const eval_codec_result *r)
{
    double kl = eval_damage_kl(&r->damage), error = eval_damage_kl_error(&r->damage);
    double low = kl - error > 0.0 ? log10(kl - error) : p->log_min;
    double x = x_of(p, kvq_codec_bits(r->codec)), y = y_of(p, log10(kl));
    (void)fprintf(p->f,
            "<path d=\"M%.1f %.1f V%.1f\" stroke=\"#27c\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" "
            "fill=\"#27c\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            x, y_of(p, low), y_of(p, log10(kl + error)), x, y, x + 8, y + 4, r->name);
}

status eval_codec_plot(const eval_codec_run *r, err *e)
{
    frame p = measure(r);
    p.f = fopen(r->o->plot_path, "w");
    if (p.f == NULL) {
        return FAIL_OS(e, ST_ERR_IO, errno, "%.300s cannot be written", r->o->plot_path);
    }
    (void)fprintf(p.f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    draw_axes(&p);
    for (int i = 0; i < r->n_codecs; i++) {
        if (is_drawn(&r->results[i])) {
            draw_codec(&p, &r->results[i]);
        }
    }
    bool ok = fputs("</svg>\n", p.f) >= 0 && ferror(p.f) == 0;
    ok = fclose(p.f) == 0 && ok;
    return ok ? ST_OK : FAIL(e, ST_ERR_IO, "%.300s cannot be written", r->o->plot_path);
}
