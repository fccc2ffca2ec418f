/*
 * session: one mutable timeline. The token log and the messages are the truth; KV tiers, sentence vectors and the
 * episode index are derived from it and can be rebuilt.
 *
 * Invariants
 * 1. turns[i] covers tokens [first_token, first_token + n_tokens) of the log, gap-free, in order.
 * 2. [0, saved_turns) is on disk; a request that fails or is cancelled leaves the session to be dropped from memory and
 *    read again, so what is on disk is the only state that outlives a failure.
 * 3. KV of a token is a function of the log up to it: the view of a chat turn is recorded with the turn; an ingested
 *    token's view follows from its position (session_view_at).
 * 4. A session runs one request at a time (`busy`).
 *
 * States: ABSENT (on disk or nowhere) -> session_load / session_new -> RESIDENT, idle or busy -> session_close -> ABSENT.
 */
#ifndef EPIMEM_AGENT_SESSION_INTERNAL_H
#define EPIMEM_AGENT_SESSION_INTERNAL_H

#include "agent/agent.h"
#include "agent/encoder_internal.h"
#include "agent/tiers_internal.h"
#include "agent/tokenizer_internal.h"
#include "agent/wire_internal.h"
#include "agent/writer_internal.h"
#include "episodes/episodes.h"
#include "store/store.h"

enum {
    SESSION_RECORD_VERSION = 1,
    SESSION_FORK_POINTS_MAX = 8,
    SESSION_KEEP_TOKENS_MAX =
            1024 /* BF16 rows kept for forks behind a long answer; arbitrary, about 24 MB here */
};

typedef enum turn_role { TURN_SYSTEM, TURN_USER, TURN_ASSISTANT, TURN_SPEAKER } turn_role; /* on disk */

/* One message. */
typedef struct session_turn {
    int64_t first_token;
    int32_t n_tokens;
    int32_t lead_tokens; /* structure before the utterance itself (closed message, date line): never recalled */
    turn_role role;
    char *speaker, *text, *ref, *key;
    size_t text_bytes;
    bool has_time;
    int64_t time_us;
    bool has_view;
    tiers_view view; /* chat turns */
    int finish;      /* assistant: agent_finish */
} session_turn;

typedef enum agent_finish { FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED } agent_finish; /* on disk */

/* Sentence vectors already computed, by hash of the text, as fp16; kept in pieces of VECTOR_PIECE entries. */
enum { VECTOR_PIECE = 32 };
typedef struct vector_cache {
    int dim;
    uint64_t *hash;
    uint16_t *vectors; /* [n][dim] */
    size_t n, hash_cap, vectors_cap,
            saved;   /* entries [0, saved) are on disk in whole pieces or the last partial one */
    uint32_t *slots; /* open addressing: index + 1 */
    size_t n_slots;
} vector_cache;
void vector_cache_free(vector_cache *c);
const uint16_t *vector_cache_find(const vector_cache *c, uint64_t hash);
status vector_cache_add(vector_cache *c, uint64_t hash, const uint16_t *vector);

/* What all sessions share. */
typedef struct session_context {
    const model *model;
    const tokenizer *tokenizer;
    const chat_template *template;
    encoder *encoder;
    const kvq_codec *codec;
    kvq_shape shape;
    krn_pool *pool;
    store *store;
    writer *writer;
    int64_t plain_tokens; /* new sessions attend to everything up to this many tokens */
    float floor;
    float sharpness;
} session_context;

typedef struct session {
    const session_context *x;
    char *tenant, *name;
    bool nameless, busy;
    int64_t created_us, last_used_us, ttl_s;
    int64_t plain_tokens; /* fixed when the session was made */

    int32_t *tokens;
    size_t n_tokens, tokens_cap;
    session_turn *turns;
    size_t n_turns, turns_cap, saved_turns;
    bool transcript_open; /* the last message is an open transcript */
    int64_t system_end;   /* tokens of the system prompt, pinned */
    uint64_t chain;       /* hash over (role, content) of all turns as the client has seen them */

    tiers *tiers;
    tiers_view live_view;  /* of tokens behind the last turn: the answer being made */
    bool view_set;         /* the tiers have been given a view since they were opened or reset */
    int64_t saved_columns; /* columns [0, saved_columns) are on disk or queued */
    int64_t saved_tokens, saved_exact_from; /* the last KV state queued */
    int64_t keep_exact_from; /* BF16 rows from here stay, so that others can fork at a block start */

    ep_index *index;
    ep_model_ops ops;
    vector_cache vectors;
    size_t indexed_turns;
    bool embedding_query;  /* vectors of questions are not kept */
    uint64_t corrupt_seen; /* damaged KV values met since load */
} session;

status session_new(
        const session_context *x, const char *tenant, const char *name, bool nameless, session **out, err *e);
/* ST_ERR_NOT_FOUND when there is none; ST_ERR_CORRUPT names the record when the log itself is damaged. KV that is
 * missing or damaged is left out: tiers_tokens < n_tokens then, and the engine computes the rest. */
status session_load(const session_context *x, const char *tenant, const char *name, session **out, err *e);
void session_close(session *s);
size_t session_resident_bytes(const session *s);

/* ---- log ---- */
/* The view of a token: its turn's, the live one behind the last turn, or the rule for ingested tokens. Borrowed. */
tiers_view session_view_at(const session *s, int64_t token);
/* Leading tokens that were computed attending to everything: what another session may share. */
int64_t session_plain_prefix(const session *s);
status session_append_tokens(session *s, const int32_t *ids, size_t n, err *e);
/* Adds a turn over the tokens appended since the last one; first_token and n_tokens are set here. Takes the strings and
 * the view over on success. */
status session_append_turn(session *s, session_turn *t, err *e);
void session_turn_free(session_turn *t);
const char *session_turn_role_name(const session_turn *t); /* role or speaker */
/* Renders one ingested message (role or speaker) onto the log. */
status session_append_message(session *s, const agent_message *m, err *e);
/* Opens an empty log with the system prompt (NULL: the template's own, if any) as turn 0, so that the first message is
 * turn 1 for every template. */
status session_open_log(session *s, const char *system, size_t bytes, err *e);
status session_close_transcript(session *s, err *e);
/* Ends the log at a turn (> 0): later turns, their KV and index are gone, on disk too when it returns. */
status session_cut(session *s, size_t turn, err *e);
uint64_t session_chain_add(uint64_t chain, const char *role, const char *content, size_t bytes);

/* ---- computing ---- */
/* The next run of tokens that lack KV: at most `most`; 0 when there is none. Sets the tiers' view for it. */
status session_next_run(session *s, int most, int *n, const model_kv **kv, err *e);
/* Between requests: frees recalled pages and, in a session past its plain limit, the columns that are stored. */
void session_rest(session *s);
/* Throws all KV away; the next runs compute it again from the log. */
void session_forget_kv(session *s);

/* ---- disk ---- */
/* Header and turns not saved yet, in one batch, on the calling thread: on disk when it returns. */
status session_save_log(session *s, err *e);
/* Queues new columns (and, with `state`, BF16 pieces, vectors and the KV state) to the writer. */
status session_save_kv(session *s, bool state, err *e);

/* Block starts at which another session whose log begins with the same tokens can take over this one's KV. */
typedef struct session_fork_point {
    int64_t tokens;
    uint64_t hash; /* XXH3 of the log's ids up to there */
} session_fork_point;
size_t session_fork_points(const session *s, session_fork_point out[SESSION_FORK_POINTS_MAX]);

/* What a header record tells without loading the session. */
typedef struct session_header {
    int64_t created_us, last_used_us, ttl_s, plain_tokens;
    bool nameless, transcript_open;
    uint64_t n_turns, n_tokens, chain;
    int64_t system_end;
} session_header;
status session_header_parse(const void *data, size_t bytes, session_header *out);
/* The fork points of a KV state record. */
status session_state_parse(const void *data,
        size_t bytes,
        int64_t *tokens,
        int64_t *columns,
        int64_t *exact_from,
        session_fork_point points[SESSION_FORK_POINTS_MAX],
        size_t *n_points);

/* ---- episodes ---- */
/* Appends up to `most` saved turns to the index; *left tells how many remain. */
status session_index_turns(session *s, int most, size_t *left, err *e);
/* Ranks the utterances of an indexed session for a query; *out is freed with ep_match_free. */
status session_match(session *s, const ep_query *q, ep_match *out, err *e);
/* The same, and lays what is used out as the recalled pieces of *v, which has none before: q->budget_tokens of it, or half of
 * that as often as the pieces, each with a query variant of its own, are more than a run can have. */
status session_recall(session *s, const ep_query *q, tiers_view *v, ep_match *out, err *e);

#endif
