#include "episodes/match_internal.h"

/* Ties go to the later utterance. a and b differ. */
static bool before(const ep_heap *h, int64_t a, int64_t b)
{
    float x = h->ranks[a], y = h->ranks[b];
    bool better = x > y || (!(x < y) && a > b);
    return better != h->worst_first;
}

static void sift_down(ep_heap *h, int64_t at)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= h->n) {
            return;
        }
        if (child + 1 < h->n && before(h, h->items[child + 1], h->items[child])) {
            child++;
        }
        if (!before(h, h->items[child], h->items[at])) {
            return;
        }
        int64_t swap = h->items[at];
        h->items[at] = h->items[child];
        h->items[child] = swap;
        at = child;
    }
}

void ep_heap_fill(ep_heap *h, const float *ranks, int64_t *items, int64_t n)
{
    *h = (ep_heap){ranks, items, n, false};
    for (int64_t i = 0; i < n; i++) {
        items[i] = i;
    }
    for (int64_t i = n / 2; i-- > 0;) {
        sift_down(h, i);
    }
}

int64_t ep_heap_best(const float *ranks, int64_t *items, int64_t n, int64_t most)
{
    ep_heap worst = {ranks, items, n < most ? n : most, true};
    for (int64_t i = 0; i < worst.n; i++) {
        items[i] = i;
    }
    for (int64_t i = worst.n / 2; i-- > 0;) {
        sift_down(&worst, i);
    }
    for (int64_t i = worst.n; worst.n > 0 && i < n; i++) {
        if (before(&worst, items[0], i)) {
            items[0] = i;
            sift_down(&worst, 0);
        }
    }
    return worst.n;
}

int64_t ep_heap_pop(ep_heap *h)
{
    int64_t top = h->items[0];
    h->items[0] = h->items[--h->n];
    sift_down(h, 0);
    return top;
}
