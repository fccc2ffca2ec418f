/* What the two template files share: a template is what stands around the contents, nothing else. */
#ifndef EPIMEM_AGENT_TEMPLATE_INTERNAL_H
#define EPIMEM_AGENT_TEMPLATE_INTERNAL_H

#include "agent/tokenizer_parts_internal.h"

typedef enum template_role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_COUNT } template_role;

/* A message is open, content, end, tail: `end` is the token the model is trained to stop at, `tail` what follows it. */
typedef struct template_part {
    const char *open, *end, *tail;
    bool trim; /* white space around the content is dropped */
} template_part;

struct chat_template {
    const char *name;
    char *bos, *eos;         /* owned; "" when there is none or the template does not write it */
    char *default_system;    /* owned; NULL: none */
    const char *system_head; /* before the text of a first system message, written by the template */
    template_part part[ROLE_COUNT];
    const char *generation; /* asks the model for an answer */
    bool system_joins_user; /* no system turn: the text becomes the head of the next user message */
};

#endif
