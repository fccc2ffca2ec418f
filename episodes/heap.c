#include "episodes/match_internal.h"

/* Ties go to the later utterance. */
static bool before(const ep_heap *h, int64_t a, int64_t b)
{
    float x = h->ranks[a], y = h->ranks[b];
    return x > y || (!(x < y) && a > b);
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
    *h = (ep_heap){ranks, items, n};
    for (int64_t i = 0; i < n; i++) {
        items[i] = i;
    }
    for (int64_t i = n / 2; i-- > 0;) {
        sift_down(h, i);
    }
}

int64_t ep_heap_pop(ep_heap *h)
{
    int64_t top = h->items[0];
    h->items[0] = h->items[--h->n];
    sift_down(h, 0);
    return top;
}
