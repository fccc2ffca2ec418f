/*
 * One line of the protocol -> what is to be done. docs/protocol.md is the contract; every refusal carries its code and
 * the path of the member at fault. Pure functions: no socket, no engine.
 */
#ifndef EPIMEM_API_PARSE_INTERNAL_H
#define EPIMEM_API_PARSE_INTERNAL_H

#include "agent/agent.h"
#include "api/json_internal.h"

#define PARSE_TENANT "default" /* until keys name tenants */

enum {
    PARSE_ID_BYTES_MAX = 128,
    PARSE_NAME_BYTES_MAX = 128, /* session, speaker, idempotency key: what the store takes in a key */
    PARSE_REF_BYTES_MAX = 256,
    PARSE_MESSAGES_MAX = 16384, /* of one request; a history comes in several */
    PARSE_STOPS_MAX = 16,
    PARSE_LIST_MAX = 1000
};

typedef enum parse_kind { PARSE_ENGINE, PARSE_HELLO, PARSE_PING, PARSE_CANCEL } parse_kind;

typedef struct parse_line {
    parse_kind kind;
    char *id_json;          /* the id as JSON text, echoed in every event; NULL when it could not be read */
    agent_request *request; /* PARSE_ENGINE; without on_event and user */
    char *target_json;      /* PARSE_CANCEL: the id of the request meant */
} parse_line;

typedef struct parse_fault {
    const char *code; /* protocol code */
    json_fault at;    /* param is "" when no member is at fault */
} parse_fault;

/* On failure *out holds id_json where the id was read, and the fault is filled. parse_line_deinit either way. */
status parse_request(const void *text, size_t bytes, parse_line *out, parse_fault *fault);
void parse_line_deinit(parse_line *p);

/* One message; what it got is freed with the request it belongs to, also after a fault. */
status parse_message(const json_place *at, bool allow_speaker, agent_message *m);
/* "messages" of the object into r. allow_speaker: utterances of several people (ingest). */
status parse_messages(const json_place *at, bool allow_speaker, agent_request *r);

/* Refuses with `code` and no member. */
status parse_refuse(parse_fault *f, const char *code, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

#endif
