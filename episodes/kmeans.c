#include "episodes/index_internal.h"

#include <math.h>
#include <string.h>

enum { ROUNDS_MAX = 50 }; /* unit vectors in few clusters settle in under ten */

/* splitmix64 (Steele, Lea and Flood 2014): the same numbers on every machine. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double next_unit(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

static double dot(const float *a, const float *b, int dim)
{
    double sum = 0;
    for (int i = 0; i < dim; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* Squared distance of unit vectors, never negative. */
static float distance(const float *a, const float *b, int dim)
{
    double d = 2 - 2 * dot(a, b, dim);
    return d > 0 ? (float)d : 0;
}

/* k-means++: each next centre is drawn with a probability proportional to the squared distance to the nearest one. When
 * every vector lies on a centre, fewer than k are chosen. */
static int choose_centres(
        const float *v, int n, int dim, int k, uint64_t *random, float *centres, float *nearest)
{
    size_t row = (size_t)dim * sizeof *v;
    size_t first = (size_t)(next_unit(random) * n);
    memcpy(centres, v + first * (size_t)dim, row);
    for (int i = 0; i < n; i++) {
        nearest[i] = distance(v + (size_t)i * (size_t)dim, centres, dim);
    }
    for (int c = 1; c < k; c++) {
        double total = 0;
        for (int i = 0; i < n; i++) {
            total += (double)nearest[i];
        }
        if (total <= 1e-9 * n) {
            return c;
        }
        double at = next_unit(random) * total;
        int chosen = -1;
        for (int i = 0; i < n && at >= 0; i++) {
            if (nearest[i] > 0) {
                at -= (double)nearest[i];
                chosen = i;
            }
        }
        float *centre = centres + (size_t)c * (size_t)dim;
        memcpy(centre, v + (size_t)chosen * (size_t)dim, row);
        for (int i = 0; i < n; i++) {
            float d = distance(v + (size_t)i * (size_t)dim, centre, dim);
            nearest[i] = d < nearest[i] ? d : nearest[i];
        }
    }
    return k;
}

/* Returns the sum of cosines; *changed tells whether an assignment moved. */
static double assign_all(
        const float *v, int n, int dim, const float *centres, int k, int *assign, bool *changed)
{
    double total = 0;
    *changed = false;
    for (int i = 0; i < n; i++) {
        int best = 0;
        double most = -2;
        for (int c = 0; c < k; c++) {
            double s = dot(v + (size_t)i * (size_t)dim, centres + (size_t)c * (size_t)dim, dim);
            if (s > most) {
                most = s;
                best = c;
            }
        }
        *changed = *changed || assign[i] != best;
        assign[i] = best;
        total += most;
    }
    return total;
}

/* A centre without members keeps its place. */
static void move_centres(const float *v, int n, int dim, const int *assign, float *centres, int k, float *sum)
{
    for (int c = 0; c < k; c++) {
        int members = 0;
        memset(sum, 0, (size_t)dim * sizeof *sum);
        for (int i = 0; i < n; i++) {
            if (assign[i] == c) {
                members++;
                for (int d = 0; d < dim; d++) {
                    sum[d] += v[(size_t)i * (size_t)dim + (size_t)d];
                }
            }
        }
        if (members > 0 && ep_unit(sum, dim)) {
            memcpy(centres + (size_t)c * (size_t)dim, sum, (size_t)dim * sizeof *sum);
        }
    }
}

/* Renumbers clusters by first member, leaving empty ones out. Returns how many there are. */
static int renumber(int *assign, int n, int k)
{
    int used = 0;
    for (int i = 0; i < n; i++) {
        int old = assign[i];
        if (old < 0) {
            continue;
        }
        for (int j = i; j < n; j++) {
            assign[j] = assign[j] == old ? -1 - used : assign[j];
        }
        used++;
    }
    for (int i = 0; i < n; i++) {
        assign[i] = -1 - assign[i];
    }
    REQUIRE(used <= k);
    return used;
}

size_t ep_kmeans_floats(int n, int dim, int k)
{
    return (size_t)k * (size_t)dim + (size_t)dim + 2 * (size_t)n;
}

int ep_kmeans(
        const float *v, int n, int dim, int k, int restarts, uint64_t seed, int *assign, float *workspace)
{
    if (n <= 0 || k <= 0) {
        return 0;
    }
    k = k > n ? n : k;
    float *centres = workspace, *sum = centres + (size_t)k * (size_t)dim, *nearest = sum + dim;
    float *best_assign = nearest + n; /* small whole numbers: exact in a float */
    double best = -HUGE_VAL;
    for (int r = 0; r < restarts; r++) {
        uint64_t random = seed + (uint64_t)r * 0xd1342543de82ef95u;
        int chosen = choose_centres(v, n, dim, k, &random, centres, nearest);
        bool changed = true;
        double score = 0;
        for (int i = 0; i < n; i++) {
            assign[i] = -1;
        }
        for (int round = 0; round < ROUNDS_MAX && changed; round++) {
            score = assign_all(v, n, dim, centres, chosen, assign, &changed);
            move_centres(v, n, dim, assign, centres, chosen, sum);
        }
        if (score > best) {
            best = score;
            for (int i = 0; i < n; i++) {
                best_assign[i] = (float)assign[i];
            }
        }
    }
    for (int i = 0; i < n; i++) {
        assign[i] = (int)best_assign[i];
    }
    return renumber(assign, n, k);
}
