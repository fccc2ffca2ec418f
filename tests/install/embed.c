/*
 * embed MODEL ENCODER QUESTION: the engine inside a C program, built against the installed library and nothing else.
 * The answer goes to stdout, a refusal to stderr.
 *
 *   cc embed.c $(pkg-config --cflags --libs epimem)
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent.h"

/* What the engine's thread and ours share. */
typedef struct outcome {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over, good;
} outcome;

/* On the engine's thread; it must not wait. The last event of a request is DONE or ERROR. */
static void on_event(void *user, const agent_event *event)
{
    outcome *o = user;
    if (event->kind == AGENT_EVENT_TOKEN) {
        (void)fwrite(event->text, 1, event->text_bytes, stdout);
    } else if (event->kind == AGENT_EVENT_ERROR) {
        (void)fprintf(stderr, "%s: %s\n", event->code, event->message);
    }
    if (event->kind == AGENT_EVENT_DONE) {
        cJSON_Delete(event->members);
    }
    if (event->kind == AGENT_EVENT_DONE || event->kind == AGENT_EVENT_ERROR) {
        (void)pthread_mutex_lock(&o->lock);
        o->over = true;
        o->good = event->kind == AGENT_EVENT_DONE;
        (void)pthread_cond_signal(&o->changed);
        (void)pthread_mutex_unlock(&o->lock);
    }
}

/* A request's strings are the request's own, from base_strdup; agent_request_free gives them back. */
static agent_request *question_for(const char *text, outcome *o)
{
    agent_request *r = agent_request_create(AGENT_CHAT);
    if (r == NULL) {
        return NULL;
    }
    r->tenant = base_strdup("default");
    r->session = base_strdup("example");
    r->messages = base_zalloc(1, sizeof *r->messages);
    r->max_tokens = 24;
    r->on_event = on_event;
    r->user = o;
    if (r->messages != NULL) {
        r->n_messages = 1;
        r->messages[0].role = base_strdup("user");
        r->messages[0].content = base_strdup(text);
        r->messages[0].content_bytes = strlen(text);
    }
    return r;
}

int main(int argc, char **argv)
{
    outcome o = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    agent_options options;
    agent_engine *engine = NULL;
    err e = {.code = ST_OK};
    uint64_t ticket;
    if (argc != 4) {
        (void)fprintf(stderr, "usage: embed MODEL ENCODER QUESTION\n");
        return 2;
    }
    agent_options_default(&options);
    options.model_path = argv[1];
    options.encoder_path = argv[2];
    if (agent_engine_open(&options, &engine, &e) != ST_OK) {
        (void)fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    agent_request *r = question_for(argv[3], &o);
    if (r == NULL || agent_submit(engine, r, &ticket, &e) != ST_OK) {
        (void)fprintf(stderr, "%s\n", e.text);
        agent_request_free(r);
        agent_engine_close(engine, false);
        return 1;
    }
    (void)pthread_mutex_lock(&o.lock);
    while (!o.over) {
        (void)pthread_cond_wait(&o.changed, &o.lock);
    }
    (void)pthread_mutex_unlock(&o.lock);
    (void)printf("\n");
    agent_engine_close(engine, true);
    return o.good ? 0 : 1;
}
