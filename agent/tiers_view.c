/* Views: which of the older rows a token attends to. See tiers_internal.h. */
#include "agent/tiers_internal.h"

#include <string.h>

bool tiers_view_is_plain(const tiers_view *v)
{
    return v->window_from <= TIERS_SINK_TOKENS;
}

status tiers_view_copy(const tiers_view *v, tiers_view *out)
{
    tiers_view copy = *v;
    copy.pieces = NULL;
    if (v->n_pieces > 0) {
        copy.pieces = base_zalloc((size_t)v->n_pieces, sizeof *copy.pieces);
        if (copy.pieces == NULL) {
            return ST_ERR_MEMORY;
        }
        memcpy(copy.pieces, v->pieces, (size_t)v->n_pieces * sizeof *copy.pieces);
    }
    *out = copy;
    return ST_OK;
}

void tiers_view_free(tiers_view *v)
{
    base_free(v->pieces);
    *v = (tiers_view){0};
}

static bool pieces_equal(const tiers_view *a, const tiers_view *b)
{
    bool equal = a->n_pieces == b->n_pieces;
    for (int i = 0; equal && i < a->n_pieces; i++) {
        const ep_piece *p = &a->pieces[i], *q = &b->pieces[i];
        equal = p->first_token == q->first_token && p->rows == q->rows && p->at == q->at;
    }
    return equal;
}

bool tiers_view_equal(const tiers_view *a, const tiers_view *b)
{
    if (tiers_view_is_plain(a) && tiers_view_is_plain(b)) {
        return true;
    }
    return a->window_from == b->window_from && a->pinned_end == b->pinned_end &&
            !(a->sharpness < b->sharpness) && !(a->sharpness > b->sharpness) && pieces_equal(a, b);
}

int64_t tiers_view_pinned(const tiers_view *v)
{
    int64_t end = v->pinned_end < v->window_from ? v->pinned_end : v->window_from;
    return end < TIERS_SINK_TOKENS ? TIERS_SINK_TOKENS : end;
}

int64_t tiers_view_position(const tiers_view *v, int64_t token)
{
    if (tiers_view_is_plain(v)) {
        return token;
    }
    return token - v->window_from + tiers_view_pinned(v) + v->piece_rows;
}
