/*
 * agent: the engine. Model, tokenizer, sessions, and the loop that turns a request into an answer.
 *
 * An ENGINE is the loaded model and encoder, the store, and one engine thread that runs all requests of all sessions,
 * interleaved per prefill block and per token. A SESSION is one mutable timeline: the token log (truth), and what is
 * derived from it: KV in tiers, utterances, episodes. Callers know sessions by name only.
 *
 * A request is a heap object the caller fills and submits; from then on the engine owns it. Its events come on the
 * engine thread, in order, the last one DONE or ERROR, exactly one; the callback must not block (copy and post).
 */
#ifndef EPIMEM_AGENT_AGENT_H
#define EPIMEM_AGENT_AGENT_H

#include <cjson/cJSON.h>

#include "kernels/base.h"

typedef struct agent_engine agent_engine;

typedef struct agent_options {
    const char *model_path; /* GGUF */
    const char *
            encoder_path; /* folder with model.safetensors and vocab.txt; NULL: all-MiniLM-L6-v2 beside the model */
    const char *data_path; /* NULL: a temporary folder, removed at close */
    const char *codec;     /* NULL: that of the data folder, or oscar+ if calibrated, or turboquant */
    const char *
            calibration_path; /* NULL: the one beside the model (agent_calibration_path) where there is one */
    const char *chat_template; /* name; NULL: recognised from the model file */
    const char *alias;         /* model name shown to clients; NULL: from the file */
    int threads;               /* <= 0: one per core */
    const char *device;        /* "cpu", "cuda" or "auto"; NULL: auto, which is cuda if there is one */
    uint64_t device_bytes;     /* of its memory; 0: nine tenths of what is free */
    int64_t context_tokens;    /* 0: the model's */
    int64_t recall_tokens; /* budget of recalled rows, and up to how many tokens a session is attended whole;
                                * 0: 512, and a quarter of the context */
    int queue_max;         /* waiting requests; 0: 64 */
    int parallel_max;      /* requests running at once; 0: 16 */
    uint64_t store_cap_bytes;  /* 0: none */
    uint64_t host_cache_bytes; /* resident KV of idle sessions and columns; 0: 1 GiB */
    float recall_floor;        /* < 0: the encoder's own */
} agent_options;
void agent_options_default(agent_options *o);

/* Where a model's calibration lies unless named: beside it, DIR/MODEL.gguf gives DIR/MODEL.calibration.safetensors. */
void agent_calibration_path(const char *model_path, char *out, size_t bytes);

status agent_engine_open(const agent_options *o, agent_engine **out, err *e);
/* Refuses new requests, ends running ones (drain: lets them finish), flushes the writer, closes the store. */
void agent_engine_close(agent_engine *g, bool drain);

typedef struct agent_info { /* lives as long as the engine */
    const char *model, *encoder, *codec, *version;
    int64_t context_tokens, recall_tokens;
} agent_info;
void agent_engine_info(const agent_engine *g, agent_info *out);

typedef enum agent_op {
    AGENT_CHAT,
    AGENT_INGEST,
    AGENT_MATCH,
    AGENT_SESSION_CREATE,
    AGENT_SESSION_GET,
    AGENT_SESSION_LIST,
    AGENT_SESSION_ERASE,
    AGENT_EPISODE_LIST,
    AGENT_STATS
} agent_op;

typedef struct agent_message {
    char *role;    /* "system", "user", "assistant"; NULL when speaker is set */
    char *speaker; /* a name, or NULL */
    char *content;
    size_t content_bytes;
    char *ref; /* the caller's id, or NULL */
    bool has_time;
    int64_t time_us;
} agent_message;

typedef struct agent_sampling {
    float temperature;    /* 0: greedy */
    int top_k;            /* 0: off */
    float top_p, min_p;   /* 1 and 0: off */
    float repeat_penalty; /* 1: off */
    uint64_t seed;
} agent_sampling;

enum { AGENT_RECALL_AUTO = -1, AGENT_RECALL_OFF = 0 }; /* or a token budget */

typedef struct agent_event agent_event;
typedef void (*agent_on_event)(void *user, const agent_event *ev);

/* All strings are heap (base_alloc) and owned by the request; agent_request_free frees them all. */
typedef struct agent_request {
    agent_op op;
    char *tenant;  /* never NULL */
    char *session; /* NULL: nameless */
    agent_message *messages;
    int n_messages;
    int max_tokens; /* <= 0: up to the end of the context, at most 1024 */
    agent_sampling sampling;
    char **stop;
    int n_stop;
    bool store;           /* default true */
    int64_t recall;       /* AGENT_RECALL_* or budget */
    char *key;            /* idempotency key or NULL */
    char *text;           /* match */
    int64_t budget;       /* match; <= 0: the engine's */
    char *prefix, *after; /* session.list */
    int limit;
    bool with_messages; /* session.get */
    char *system;       /* session.create */
    int64_t ttl_s;      /* 0: none */
    agent_on_event on_event;
    void *user;
} agent_request;
agent_request *agent_request_create(agent_op op); /* defaults set; NULL when memory is out */
void agent_request_free(agent_request *r);

typedef enum agent_event_kind {
    AGENT_EVENT_TOKEN,
    AGENT_EVENT_PROGRESS,
    AGENT_EVENT_DONE,
    AGENT_EVENT_ERROR
} agent_event_kind;
struct agent_event {
    agent_event_kind kind;
    const char *text; /* TOKEN: whole UTF-8 characters */
    size_t text_bytes;
    const char *phase; /* PROGRESS: "prefill", "rebuild", "embed" */
    int64_t done_tokens, total_tokens;
    cJSON *members; /* DONE: object with the members of docs/protocol.md; the callback takes it over */
    const char *code, *message, *param; /* ERROR: protocol code; param may be NULL */
    int retry_after_ms;                 /* ERROR busy */
};

/* Takes the request over. ST_ERR_BUSY when the queue is full: then the request is NOT taken and no event comes.
 * *ticket names the request for agent_cancel. */
status agent_submit(agent_engine *g, agent_request *r, uint64_t *ticket, err *e);
/* Ends it between blocks or tokens: DONE with finish_reason "cancelled". False when it is over already. */
bool agent_cancel(agent_engine *g, uint64_t ticket);

/* Times as the protocol takes them (RFC 3339, LoCoMo, REALTALK) and gives them (RFC 3339 UTC). */
status agent_time_parse(const char *text, int64_t *time_us);
void agent_time_format(int64_t time_us, char out[32]);

/* ---- the small programs: JSON lines in, JSON lines out; each returns the process's exit status ---- */
int agent_tokenize_main(int argc, char **argv);
int agent_score_main(int argc, char **argv);
int agent_generate_main(int argc, char **argv);
int agent_embed_main(int argc, char **argv);
int agent_check_main(int argc, char **argv);
int agent_bench_main(int argc, char **argv);
int agent_calibrate_main(int argc, char **argv);
int agent_eval_main(int argc, char **argv);

#endif
