/* request: the heap object a caller fills and submits. */
#include "agent/agent.h"

agent_request *agent_request_create(agent_op op)
{
    agent_request *r = base_zalloc(1, sizeof *r);
    if (r == NULL) {
        return NULL;
    }
    r->op = op;
    r->store = true;
    r->recall = AGENT_RECALL_AUTO;
    r->limit = 100;
    r->sampling = (agent_sampling){.top_p = 1.0f, .repeat_penalty = 1.0f};
    r->tenant = base_strdup("default");
    if (r->tenant == NULL) {
        base_free(r);
        return NULL;
    }
    return r;
}

void agent_request_free(agent_request *r)
{
    if (r == NULL) {
        return;
    }
    for (int i = 0; i < r->n_messages; i++) {
        base_free(r->messages[i].role);
        base_free(r->messages[i].speaker);
        base_free(r->messages[i].content);
        base_free(r->messages[i].ref);
    }
    for (int i = 0; i < r->n_stop; i++) {
        base_free(r->stop[i]);
    }
    base_free(r->messages);
    base_free(r->stop);
    base_free(r->tenant);
    base_free(r->session);
    base_free(r->key);
    base_free(r->text);
    base_free(r->prefix);
    base_free(r->after);
    base_free(r->system);
    base_free(r);
}
