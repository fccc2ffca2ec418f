/*
 * engine: one thread that runs all requests of all sessions.
 *
 * A JOB is a request being served: a state machine that is asked, again and again, to advance. It either does a slice
 * of work that needs no model (load, match, embed, commit), or offers a RUN of tokens. The engine puts the runs of all
 * jobs into one forward pass (decoding jobs first, then prefill blocks as long as rows are left) and hands each job its
 * result. Since a row's bits do not depend on what is beside it, neither does an answer.
 *
 * Jobs on one session run one after the other, in the order they came: a job waits while the session is busy.
 * Everything here but agent_submit and agent_cancel runs on the engine thread.
 */
#ifndef EPIMEM_AGENT_ENGINE_INTERNAL_H
#define EPIMEM_AGENT_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "agent/session_internal.h"

enum {
    ENGINE_ROWS_EXTRA = 64, /* rows for decoding jobs beside one prefill block */
    ENGINE_SESSION_WAITERS_MAX = 16,
    ENGINE_NAMELESS_MAX = 64, /* stored sessions without a name; the least recently used goes first */
    ENGINE_MAX_TOKENS = 1024, /* of an answer whose request names no limit */
    ENGINE_RECALL_TOKENS = 512
};

typedef struct sessions sessions;
typedef struct job job;

typedef struct engine_counters {
    uint64_t requests, prompt_tokens, computed_tokens, decoded_tokens, cached_tokens, recalled_tokens,
            loaded_bytes;
    uint64_t forked_sessions, rebuilds, rebuilt_tokens, corrupt_values, cancelled, errors;
} engine_counters;

struct agent_engine {
    session_context x;
    agent_options options;
    char *data_path;
    bool data_is_temporary;
    model *model;
    tokenizer *tokenizer;
    encoder *encoder;
    kvq_codec *codec;
    krn_pool *pool;
    store *store;
    writer *writer;
    model_scratch *scratch;
    int rows_max;
    char model_name[128];
    int64_t context_tokens, recall_tokens;
    sessions *sessions;
    engine_counters counters;
    int64_t started_us;

    pthread_t thread;
    bool thread_running;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    job *queue_first, *queue_last;
    int queued, active_count;
    uint64_t last_ticket;
    bool closing, draining;

    job *active; /* engine thread only, in order of arrival */
};

/* ---- codec ---- */

enum { CODEC_CHOICE_TEXT_BYTES = 4097 };
typedef struct codec_choice {
    char name[32];
    char calibration[CODEC_CHOICE_TEXT_BYTES]; /* path; empty: none */
    const char *why;                           /* for people, static */
} codec_choice;
/* The codec: the one asked for; else, unless a calibration is named, the one the data folder was made with; else oscar+ where
 * a calibration is named or lies beside the model; else turboquant. The calibration: the one named, else the one beside
 * the model, if the codec takes one. Says in the log which and why. ST_ERR_NOT_FOUND tells how to make a missing one. */
status codec_choose(const agent_options *o, codec_choice *out, err *e);
/* Opens it for the model; ST_ERR_MISMATCH and the like where the calibration is another model's. */
status codec_open_chosen(const agent_options *o, const model *m, kvq_codec **out, err *e);

/* ---- jobs ---- */

typedef enum job_phase {
    JOB_START,
    JOB_REBUILD, /* KV of the log is missing: compute it, then start */
    JOB_PREFILL,
    JOB_DECODE,
    JOB_INDEX, /* chat: answer complete, to be committed; ingest: sentence vectors */
    JOB_TAIL,  /* answered; the last tokens of the answer are still to be computed */
    JOB_OVER
} job_phase;

typedef enum job_state { JOB_WANTS_RUN, JOB_WORKED, JOB_WAITS, JOB_ENDED } job_state;

struct job {
    job *next;
    agent_engine *engine;
    agent_request *request;
    uint64_t ticket;
    atomic_bool cancelled;
    atomic_bool answered; /* DONE or ERROR has been sent */
    job_phase phase, after_rebuild;
    int64_t rebuild_until; /* tokens of the log whose KV must be there before after_rebuild */
    int n_rebuilds;

    session *session; /* held while busy */
    bool session_is_new;
    model_run run;
    float *logits; /* [vocab] */
    int64_t started_us, first_token_us, progress_us, load_us, match_us;

    /* chat */
    int64_t turn_start; /* tokens before this request */
    size_t first_new_turn;
    int64_t prompt_end; /* tokens in the log when the answer begins */
    int64_t prompt_tokens, cached_tokens, computed_tokens;
    int max_tokens, n_answer;
    base_buf text;    /* the answer so far, whole */
    size_t text_sent; /* bytes streamed */
    agent_finish finish;
    bool end_token_seen;
    ep_match match;
    bool matched;
    const char *miss_reason;
    uint64_t loaded_bytes;
    int32_t next_token;

    /* ingest */
    int64_t total_tokens;
    size_t n_ingested;
    int64_t prefill_started_us, prefill_us, coding_us, embed_us, commit_us;
};

job *job_create(agent_engine *g, agent_request *r);
void job_free(job *j);
job_state job_advance(job *j); /* one slice of work, or a run */
void job_computed(job *j);     /* its run has been computed */

/* Refuses messages that the vocabulary cannot spell, naming the member; the job has failed then. */
status job_check_messages(job *j);

/* Events. job_fail maps a status to a protocol code; the job is over and its session dropped from memory. */
void job_send_done(job *j, cJSON *members);
void job_fail(job *j, const err *e, const char *param);
void job_fail_code(job *j, const char *code, const char *param, const char *message);
void job_progress(job *j, const char *phase, int64_t done, int64_t total);
void job_release_session(
        job *j, bool keep); /* keep false: what is in memory may be wrong, read it again next time */

job_state job_chat_advance(job *j);
void job_chat_computed(job *j);
job_state job_ingest_advance(job *j);
job_state job_answer_at_once(job *j); /* match, session.*, episode.list, stats */
job_state job_advance_rebuild(job *j);
/* Enters JOB_REBUILD for the first `until` tokens and goes to `then` afterwards. */
job_state job_rebuild(job *j, int64_t until, job_phase then);
/* Offers the next run of tokens without KV; JOB_WORKED when there is none left. logits for the very last token. */
job_state job_offer_run(job *j, bool want_logits);
/* Takes the session (made when it is new and `make`), rebuilding missing KV first. JOB_WORKED when it is held. */
job_state job_take_session(job *j, bool make);

/* ---- sessions in memory ---- */

status sessions_open(agent_engine *g, sessions **out, err *e);
void sessions_close(sessions *t);
/* The resident session, loaded when it is stored; ST_ERR_NOT_FOUND, ST_ERR_BUSY (another job holds it). */
status sessions_take(sessions *t, const char *tenant, const char *name, session **out, err *e);
status sessions_make(sessions *t, const char *tenant, const char *name, bool nameless, session **out, err *e);
/* Gives it back; keep false drops it from memory. Closes idle ones over the memory limit. */
void sessions_give(sessions *t, session *s, bool keep);
/* Gone from memory and disk. ST_ERR_BUSY while a job holds it. */
status sessions_erase(sessions *t, const char *tenant, const char *name, err *e);
void sessions_fresh_name(sessions *t, char out[40]);
/* The nameless session whose whole text is this chain, NULL when there is none. */
const char *sessions_find_chain(const sessions *t, const char *tenant, uint64_t chain);
/* A session whose log begins with these tokens: the longest fork point below n; 0 tokens when there is none. */
int64_t sessions_find_fork(
        const sessions *t, const char *tenant, const int32_t *ids, int64_t n, const char **name);
void sessions_note_saved(sessions *t, const session *s); /* registers chain and fork points */
size_t sessions_resident_bytes(const sessions *t);
size_t sessions_resident_count(const sessions *t);
tiers_usage sessions_usage(const sessions *t);

/* ---- results as protocol members ---- */
cJSON *report_chat(const job *j);
cJSON *report_ingest(const job *j, int64_t started_us);
cJSON *report_match(const job *j);
cJSON *report_session(const session *s, bool messages);
cJSON *report_header(const char *name, const session_header *h, const agent_engine *g);
cJSON *report_episodes(const session *s);
cJSON *report_stats(agent_engine *g);

#endif
