/*
 * What coding does to a search: the eight nearest vectors by the first plane, by both planes, and by both planes among the
 * first plane's best 256, against float; and what an exact bound by episodes would leave unread.
 *
 *   bench_vectors VECTOR-CACHE      (a file that bench_recall -c wrote, of encoder dimension 384)
 *
 * Every 16th vector is a question, the others are searched. The bound: a vector at angle r from its episode's centre is
 * at least |c - r| from a question at angle c from that centre; groups of 64 nearest by k-means, radius of the farthest.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "episodes/index_internal.h"

enum { DIM = 384, NEAREST = 8, AGAIN = 256, EACH = 16, GROUP = 64 };

typedef struct set {
    float *v, *questions; /* rotated, [n][DIM] */
    int n, n_questions;
    ep_vectors coded;
} set;

static void die(const char *what)
{
    fprintf(stderr, "bench_vectors: %s\n", what);
    exit(1);
}

static set read_set(const char *path)
{
    set s = {.coded = {.dim = DIM}};
    FILE *f = fopen(path, "rb");
    uint64_t key = 0;
    float one[DIM];
    size_t cap = (size_t)1 << 17;
    s.v = base_alloc(cap * DIM * sizeof *s.v);
    s.questions = base_alloc(cap / EACH * DIM * sizeof *s.v);
    if (f == NULL || s.v == NULL || s.questions == NULL) {
        die(path);
    }
    for (size_t i = 0;
            i < cap && fread(&key, sizeof key, 1, f) == 1 && fread(one, sizeof *one, DIM, f) == DIM; i++) {
        float *to = i % EACH == 0 ? s.questions + (size_t)s.n_questions++ * DIM : s.v + (size_t)s.n++ * DIM;
        ep_rotate(one, DIM, to);
    }
    (void)fclose(f);
    if (s.n < AGAIN || ep_vectors_reserve(&s.coded, s.n) != ST_OK) {
        die("too few vectors");
    }
    for (int i = 0; i < s.n; i++) {
        (void)ep_vectors_add(&s.coded, s.v + (size_t)i * DIM);
    }
    return s;
}

/* The places of the k greatest, best first. */
static void best_of(const float *score, int n, int k, int *out)
{
    int held = 0;
    for (int i = 0; i < n; i++) {
        int at = held < k ? held++ : k;
        while (at > 0 && score[i] > score[out[at - 1]]) {
            if (at < k) {
                out[at] = out[at - 1];
            }
            at--;
        }
        if (at < k) {
            out[at] = i;
        }
    }
}

static int in_common(const int *a, const int *b)
{
    int n = 0;
    for (int i = 0; i < NEAREST; i++) {
        for (int k = 0; k < NEAREST; k++) {
            n += a[i] == b[k];
        }
    }
    return n;
}

typedef struct result {
    int same, common;
} result;

static void count(result *r, const int *exact, const int *found)
{
    int n = in_common(exact, found);
    r->same += n == NEAREST;
    r->common += n;
}

static void ask(const set *s, const float *q, float *exact, float *score, result r[3])
{
    ep_probe *probe = base_zalloc(1, sizeof *probe);
    int truth[NEAREST], found[NEAREST], again[AGAIN];
    ep_probe_set(probe, q, DIM);
    for (int i = 0; i < s->n; i++) {
        double sum = 0;
        for (int d = 0; d < DIM; d++) {
            sum += (double)q[d] * (double)s->v[(size_t)i * DIM + (size_t)d];
        }
        exact[i] = (float)sum;
    }
    best_of(exact, s->n, NEAREST, truth);
    ep_vectors_scan(&s->coded, probe, score);
    best_of(score, s->n, NEAREST, found);
    count(&r[0], truth, found);
    best_of(score, s->n, AGAIN, again);
    for (int i = 0; i < s->n; i++) {
        score[i] = -2;
    }
    for (int i = 0; i < AGAIN; i++) {
        score[again[i]] = ep_vectors_dot(&s->coded, again[i], probe);
    }
    best_of(score, s->n, NEAREST, found);
    count(&r[1], truth, found);
    for (int i = 0; i < s->n; i++) {
        score[i] = ep_vectors_dot(&s->coded, i, probe);
    }
    best_of(score, s->n, NEAREST, found);
    count(&r[2], truth, found);
    base_free(probe);
}

static double angle(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < DIM; d++) {
        sum += (double)a[d] * (double)b[d];
    }
    return acos(sum > 1 ? 1 : sum < -1 ? -1 : sum);
}

/* Share of the vectors in groups that the bound shows to hold none of the 64 nearest. */
static double unread(const set *s)
{
    int k = s->n / GROUP, *assign = base_alloc((size_t)s->n * sizeof *assign);
    float *work = base_alloc(ep_kmeans_floats(s->n, DIM, k) * sizeof *work),
          *centres = base_zalloc((size_t)k, DIM * sizeof *centres);
    double *radius = base_zalloc((size_t)k, sizeof *radius), skipped = 0;
    float *score = base_alloc((size_t)s->n * sizeof *score);
    int *size = base_zalloc((size_t)k, sizeof *size), nearest[64];
    k = ep_kmeans(s->v, s->n, DIM, k, 1, 1, assign, work);
    for (int i = 0; i < s->n; i++) {
        for (int d = 0; d < DIM; d++) {
            centres[(size_t)assign[i] * DIM + (size_t)d] += s->v[(size_t)i * DIM + (size_t)d];
        }
        size[assign[i]]++;
    }
    for (int g = 0; g < k; g++) {
        (void)ep_unit(centres + (size_t)g * DIM, DIM);
    }
    for (int i = 0; i < s->n; i++) {
        double r = angle(s->v + (size_t)i * DIM, centres + (size_t)assign[i] * DIM);
        radius[assign[i]] = r > radius[assign[i]] ? r : radius[assign[i]];
    }
    for (int j = 0; j < s->n_questions; j++) {
        const float *q = s->questions + (size_t)j * DIM;
        for (int i = 0; i < s->n; i++) {
            score[i] = (float)-angle(q, s->v + (size_t)i * DIM);
        }
        best_of(score, s->n, 64, nearest);
        for (int g = 0; g < k; g++) {
            bool out = angle(q, centres + (size_t)g * DIM) - radius[g] > -(double)score[nearest[63]];
            skipped += out ? (double)size[g] / s->n / s->n_questions : 0;
        }
    }
    base_free(assign);
    base_free(work);
    base_free(centres);
    base_free(radius);
    base_free(score);
    base_free(size);
    return skipped;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"first plane", "both planes of its best 256", "both planes"};
    if (argc != 2) {
        die("usage: bench_vectors VECTOR-CACHE");
    }
    set s = read_set(argv[1]);
    result r[3] = {{0, 0}};
    float *exact = base_alloc((size_t)s.n * sizeof *exact), *score = base_alloc((size_t)s.n * sizeof *score);
    for (int i = 0; i < s.n_questions; i++) {
        ask(&s, s.questions + (size_t)i * DIM, exact, score, r);
    }
    printf("%d vectors, %d questions; %.1f bytes a vector in both planes\n", s.n, s.n_questions,
            (double)DIM + sizeof(float));
    for (int i = 0; i < 3; i++) {
        printf("%-28s same eight nearest as float: %.2f %% of questions; in common %.3f of 8\n", names[i],
                100.0 * r[i].same / s.n_questions, (double)r[i].common / s.n_questions);
    }
    printf("left unread by an exact bound over groups of %d: %.1f %%\n", GROUP, 100 * unread(&s));
    base_free(exact);
    base_free(score);
    base_free(s.v);
    base_free(s.questions);
    ep_vectors_free(&s.coded);
    return 0;
}
