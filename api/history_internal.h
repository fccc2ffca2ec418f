/*
 * Histories from files, as messages of the protocol:
 *   JSON lines   {"role" or "speaker","content","time","ref"}, one message a line
 *   LoCoMo       {"conversation":{"session_1_date_time":..,"session_1":[{"speaker","dia_id","text"}..]..}}
 *   REALTALK     {"session_1":[{"speaker","dia_id","clean_text","date_time"}..]..}
 * dia_id becomes ref; the time of a LoCoMo session that of its utterances. Pure; the file is in memory.
 */
#ifndef EPIMEM_API_HISTORY_INTERNAL_H
#define EPIMEM_API_HISTORY_INTERNAL_H

#include "api/json_internal.h"

/* A message that was left out: line number, or 0 and its ref in `what`. */
typedef void (*history_on_fault)(void *user, long line, const char *what);

/* *messages: array of message objects that the server will take, each checked as the server does; the caller's.
 * Messages at fault are reported and left out. */
status history_read(
        const void *data, size_t bytes, history_on_fault on_fault, void *user, cJSON **messages, err *e);

#endif
