/*
 * tiers: the KV of one session, and what a run of tokens attends to.
 *
 * Tokens of a session are numbered from 0. Tokens [0, 64) are the SINKS, kept in BF16 for ever. The rest is cut into
 * BLOCKS of 256 tokens; a block is two COLUMNS (pages of every layer and KV head) of 128. While a token of block b is
 * computed, blocks b-1 and b are read in BF16 and everything older is read in two-bit columns: block b-2 is coded at
 * the moment block b begins. So which tokens are exact and which are coded is a function of the position alone,
 * not of load, timing or chopping.
 *
 * A VIEW says which of the older rows a token attends to:
 *   plain:    everything (positions as computed);
 *   windowed: the pinned rows [0, pinned_end), recalled pieces, and the window [window_from, p]. Pinned and recalled
 *             rows are moved next to the window by query variants: a variant takes `shift` off the query's position.
 *             With P pinned and R recalled rows the query sits at p - window_from + P + R.
 *
 * Threads: a session's tiers belong to the engine thread; columns are immutable once made and reference-counted, so
 * the writer thread may hold them.
 */
#ifndef EPIMEM_AGENT_TIERS_INTERNAL_H
#define EPIMEM_AGENT_TIERS_INTERNAL_H

#include "agent/model_internal.h"
#include "episodes/episodes.h"
#include "kvq/kvq.h"

enum {
    TIERS_SINK_TOKENS = 64,
    TIERS_COLUMN_TOKENS = KRN_PAGE_ROWS,
    TIERS_BLOCK_TOKENS = 2 * KRN_PAGE_ROWS,
    TIERS_PIECE_TOKENS = 16, /* tokens of one stored BF16 piece */
    TIERS_PIECES_MAX =
            MODEL_VARIANTS_MAX - 2 /* recalled pieces of a view: window and pinned rows have a variant each */
};

static inline int64_t tiers_column_start(int64_t column)
{
    return TIERS_SINK_TOKENS + column * TIERS_COLUMN_TOKENS;
}

static inline int64_t tiers_block_start(int64_t block)
{
    return TIERS_SINK_TOKENS + block * TIERS_BLOCK_TOKENS;
}

/* Block of a token; -1 for the sinks. */
static inline int64_t tiers_block_of(int64_t token)
{
    return token < TIERS_SINK_TOKENS ? -1 : (token - TIERS_SINK_TOKENS) / TIERS_BLOCK_TOKENS;
}

/* First token that is still read in BF16 by a token at `token`, sinks aside: where its window begins at the latest. */
static inline int64_t tiers_exact_from(int64_t token)
{
    int64_t block = tiers_block_of(token);
    return tiers_block_start(block < 1 ? 0 : block - 1);
}

/* One page of every (layer, head) for the same rows. */
typedef struct tiers_column tiers_column;
tiers_column *tiers_column_create(size_t bytes); /* one reference; zeroed; NULL when memory is out */
tiers_column *tiers_column_ref(tiers_column *c);
void tiers_column_unref(tiers_column *c); /* NULL is fine; any thread */
uint8_t *tiers_column_data(tiers_column *c);

typedef struct tiers_view {
    int64_t window_from; /* a block start; 64 makes the view plain */
    int64_t pinned_end;
    float sharpness;  /* of recalled rows */
    ep_piece *pieces; /* owned */
    int n_pieces;
    int64_t piece_rows; /* sum of rows */
} tiers_view;
bool tiers_view_is_plain(const tiers_view *v);
status tiers_view_copy(const tiers_view *v, tiers_view *out);
void tiers_view_free(tiers_view *v);
bool tiers_view_equal(const tiers_view *a, const tiers_view *b);
/* End of the pinned rows; the sinks are always among them. */
int64_t tiers_view_pinned(const tiers_view *v);
/* Where a token at `token` sits for the model: what must stay inside the trained context. */
int64_t tiers_view_position(const tiers_view *v, int64_t token);

/* Loads a column that is not in memory; gives a reference. */
typedef status (*tiers_load_column)(void *ctx, int64_t column, tiers_column **out, err *e);

typedef struct tiers tiers;
status tiers_open(const kvq_codec *codec,
        const kvq_shape *shape,
        krn_pool *pool,
        tiers_load_column load,
        void *load_ctx,
        tiers **out,
        err *e);
void tiers_close(tiers *t);
void tiers_reset(tiers *t); /* no tokens */
int64_t tiers_tokens(const tiers *t);
int64_t tiers_columns(const tiers *t);    /* coded so far */
int64_t tiers_exact_kept(const tiers *t); /* first token whose BF16 rows are still held, sinks aside */
size_t tiers_resident_bytes(const tiers *t);
/* Adds what is in memory by tier, and how many of the tokens are held in BF16. */
typedef struct tiers_usage {
    uint64_t pinned_bytes, coded_bytes, recent_bytes;
    int64_t tokens, exact_tokens;
} tiers_usage;
void tiers_add_usage(const tiers *t, tiers_usage *sum);

/* Makes the gathered pages of a windowed view (or makes sure that a plain one's columns are in memory). Until the
 * next call the view is the current one. ST_ERR_CORRUPT and the like come from the loader. */
status tiers_set_view(tiers *t, const tiers_view *v, err *e);
void tiers_forget_view(tiers *t); /* frees gathered pages; a view must be set before the next run */
const tiers_view *tiers_get_view(const tiers *t);
/* What was loaded from outside memory and how long coding took, since the last call. */
typedef struct tiers_costs {
    uint64_t loaded_bytes;
    int64_t encode_us;
} tiers_costs;
tiers_costs tiers_take_costs(tiers *t);

/* How many tokens may be computed in one run from here: up to the end of the block. */
int tiers_run_room(const tiers *t);
/* Codes what falls due, makes room for n new rows under the current view; the result is for model_forward and valid
 * until the next tiers call. */
status tiers_prepare(tiers *t, int n, const model_kv **out, err *e);
/* The n rows have been computed. */
void tiers_advance(tiers *t, int n);
/* Forgets the tokens from `tokens` on: at most a block back, so that no column holds any of them and the exact rows that
 * the next one reads are still there. */
void tiers_rewind(tiers *t, int64_t tokens);

/* ---- what is stored ---- */
/* Codes the blocks that the next token reads as columns: before a state is stored that leaves their exact rows out. */
status tiers_seal(tiers *t, err *e);
tiers_column *tiers_get_column(tiers *t, int64_t column); /* a reference, NULL when not in memory */
void tiers_drop_columns(
        tiers *t, int64_t from, int64_t to); /* frees those in [from, to) that are in memory */
void tiers_drop_exact(
        tiers *t, int64_t before_token); /* frees BF16 blocks that end at or before it, never the last two */
size_t tiers_piece_bytes(const tiers *t);
/* BF16 rows [16 i, 16 i + 16) of all layers and heads, K then V per head; rows not computed yet are zero. */
void tiers_export_piece(const tiers *t, int64_t piece, uint8_t *out);
/* Rebuilds the state "tokens computed" from stored parts: sinks and BF16 blocks are filled by tiers_import_piece,
 * columns load on demand. exact_from: first token whose BF16 rows will be imported; columns: how many are coded. */
status tiers_restore(tiers *t, int64_t tokens, int64_t columns, int64_t exact_from, err *e);
void tiers_import_piece(tiers *t, int64_t piece, const uint8_t *in);
/* Takes over the state of `from` at a block start `tokens`: columns by reference, BF16 rows by copy. ST_ERR_NOT_FOUND
 * when `from` no longer holds the BF16 rows of the block before, or has not coded what came before that. */
status tiers_fork(tiers *t, tiers *from, int64_t tokens, err *e);

#endif
