/* Event lines of the protocol: {"id":...,"event":"...",...} and a newline. Pure functions; b is appended to. */
#ifndef EPIMEM_API_REPLY_INTERNAL_H
#define EPIMEM_API_REPLY_INTERNAL_H

#include "agent/agent.h"

#define REPLY_BYTES_MAX ((size_t)256 << 20) /* of one event: the turns of a whole session */

/* id_json NULL is written as null. */
status reply_event(base_buf *b, const char *id_json, const agent_event *event);
status reply_done(base_buf *b, const char *id_json, const cJSON *members);
/* param NULL or "": none. retry_after_ms <= 0: none. */
status reply_error(base_buf *b,
        const char *id_json,
        const char *code,
        const char *message,
        const char *param,
        int retry_after_ms);

#endif
