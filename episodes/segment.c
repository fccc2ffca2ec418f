#include "episodes/index_internal.h"

#include <string.h>

static bool gap_between(const ep_options *o, const ep_item *a, const ep_item *b)
{
    if (!a->has_time || !b->has_time) {
        return false;
    }
    /* Unsigned: times may lie on both ends of the range. A clock that jumps back is a gap as well. */
    uint64_t apart = b->time_us >= a->time_us ? (uint64_t)b->time_us - (uint64_t)a->time_us
                                              : (uint64_t)a->time_us - (uint64_t)b->time_us;
    return apart > (uint64_t)o->segment_gap_us;
}

int32_t ep_run_at(const ep_index *x, int64_t i)
{
    if (i == 0 || gap_between(&x->options, &x->items[i - 1], &x->items[i])) {
        return 0;
    }
    int32_t before = x->items[i - 1].run_at;
    return before < EP_RUN_BACK_MAX ? before + 1 : before;
}

void ep_segment_add(ep_index *x, int64_t i, bool *closed)
{
    ep_item *u = &x->items[i];
    ep_segment *last = x->n_segments > 0 ? &x->segments[x->n_segments - 1] : NULL;
    bool fits = last != NULL && u->run_at > 0 && last->utterances < x->options.segment_utterances_max &&
            last->tokens + u->tokens <= x->options.segment_tokens_max;
    *closed = last != NULL && !fits;
    if (!fits) {
        REQUIRE(x->segments != NULL && (size_t)x->n_segments < x->segments_cap);
        last = &x->segments[x->n_segments++];
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): with room, the array is there */
        *last = (ep_segment){.first = i, .episode = -1};
    }
    last->utterances++;
    last->tokens += u->tokens;
    u->segment = x->n_segments - 1;
}

void ep_segment_vector(const ep_index *x, const ep_segment *s, float *out)
{
    memset(out, 0, (size_t)x->dim * sizeof *out);
    for (int64_t i = 0; i < s->utterances; i++) {
        ep_vectors_accumulate(&x->bare, x->items[s->first + i].first_window, 1, out);
    }
    REQUIRE(ep_unit(out, x->dim));
}
