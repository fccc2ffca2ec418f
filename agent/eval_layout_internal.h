/* The layout of LoCoMo and REALTALK files: session_1, session_2... and their session_N_date_time, at the top or under
 * "conversation"; utterances with speaker, dia_id and text, or clean_text. Strings and objects live in the parsed file. */
#ifndef EPIMEM_AGENT_EVAL_LAYOUT_INTERNAL_H
#define EPIMEM_AGENT_EVAL_LAYOUT_INTERNAL_H

#include <cjson/cJSON.h>

#include "kernels/base.h"

/* Strictly; *root is the caller's. ST_ERR_MEMORY, or what is wrong with the JSON. */
status eval_layout_parse(const char *json, size_t bytes, cJSON **root, err *e);
const cJSON *eval_layout_conversation(const cJSON *root);
/* session_N and what is appended to its name; NULL where there is none. */
const cJSON *eval_layout_session(const cJSON *conversation, int number, const char *suffix);
const char *eval_layout_text(const cJSON *object, const char *name); /* NULL: no such string */
const char *eval_layout_said(const cJSON *utterance);

#endif
