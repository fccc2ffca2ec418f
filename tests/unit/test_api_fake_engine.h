/*
 * A stand-in for the engine, for tests of the server: one thread that runs requests in turns, a token at a time. What a
 * request does is written in its last message (or its session, for operations without messages):
 *   "echo N"    N tokens, then done        "big N"     done with N bytes of text
 *   "hold"      progress until cancelled or released     "flood"  tokens as fast as they go, until cancelled
 *   "fail"      an error event             anything else: done at once
 */
#ifndef TEST_API_FAKE_ENGINE_H
#define TEST_API_FAKE_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/agent.h"

typedef struct fake_job {
    struct fake_job *next;
    agent_request *request;
    uint64_t ticket;
    bool cancelled;
    long step;
} fake_job;

struct agent_engine {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    fake_job *jobs;
    uint64_t last_ticket;
    int n_jobs, jobs_max;
    bool stop, release;
    atomic_int n_cancelled, n_done;
    atomic_long n_flooded;
};

status agent_time_parse(const char *text, int64_t *time_us)
{
    int year = 0, used = 0;
    *time_us = 1;
    bool rfc = sscanf(text, "%4d-%*2d-%*2dT%n", &year, &used) == 1 && used > 0;
    return rfc || strstr(text, "pm on") != NULL || strchr(text, '.') != NULL ? ST_OK : ST_ERR_FORMAT;
}

void agent_time_format(int64_t time_us, char out[32])
{
    (void)snprintf(out, 32, "1970-01-01T00:00:%02dZ", (int)(time_us / 1000000 % 60));
}

void agent_options_default(agent_options *o)
{
    *o = (agent_options){.recall_floor = -1};
}

void agent_engine_info(const agent_engine *g, agent_info *out)
{
    (void)g;
    *out = (agent_info){
            .model = "fake", .encoder = "none", .codec = "bf16", .version = "0", .context_tokens = 64};
}

static const char *fake_script(const agent_request *r)
{
    if (r->n_messages > 0) {
        return r->messages[r->n_messages - 1].content;
    }
    return r->session != NULL ? r->session : "";
}

static void fake_done(fake_job *j, const char *text, const char *reason)
{
    agent_event ev = {.kind = AGENT_EVENT_DONE, .members = cJSON_CreateObject()};
    cJSON_AddStringToObject(ev.members, "text", text);
    cJSON_AddStringToObject(ev.members, "finish_reason", reason);
    j->request->on_event(j->request->user, &ev);
}

static void fake_token(const fake_job *j, const char *text)
{
    agent_event ev = {.kind = AGENT_EVENT_TOKEN, .text = text, .text_bytes = strlen(text)};
    j->request->on_event(j->request->user, &ev);
}

/* One step; true when the job is over. */
static bool fake_step(agent_engine *g, fake_job *j, bool cancelled, bool release)
{
    const char *script = fake_script(j->request);
    if (cancelled) {
        atomic_fetch_add(&g->n_cancelled, 1);
        fake_done(j, "", "cancelled");
        return true;
    }
    if (strncmp(script, "echo ", 5) == 0 && j->step < strtol(script + 5, NULL, 10)) {
        char text[32];
        (void)snprintf(text, sizeof text, "t%ld ", j->step++);
        fake_token(j, text);
        return false;
    }
    if (strcmp(script, "flood") == 0) {
        atomic_fetch_add(&g->n_flooded, 1);
        fake_token(j, "0123456789012345678901234567890123456789012345678901234567890123456789");
        return false;
    }
    if (strcmp(script, "hold") == 0 && !release) {
        agent_event ev = {.kind = AGENT_EVENT_PROGRESS, .phase = "prefill", .done_tokens = j->step++};
        j->request->on_event(j->request->user, &ev);
        return false;
    }
    if (strcmp(script, "fail") == 0) {
        agent_event ev = {
                .kind = AGENT_EVENT_ERROR, .code = "store_full", .message = "no room", .param = "messages"};
        j->request->on_event(j->request->user, &ev);
        return true;
    }
    if (strncmp(script, "big ", 4) == 0) {
        size_t n = (size_t)strtol(script + 4, NULL, 10);
        char *text = base_alloc(n + 1);
        memset(text, 'x', n);
        text[n] = '\0';
        fake_done(j, text, "stop");
        base_free(text);
        return true;
    }
    fake_done(j, "all", "stop");
    return true;
}

static void fake_remove(agent_engine *g, fake_job *j)
{
    fake_job **at = &g->jobs;
    while (*at != j) {
        at = &(*at)->next;
    }
    *at = j->next;
    g->n_jobs--;
    agent_request_free(j->request);
    base_free(j);
    atomic_fetch_add(&g->n_done, 1);
}

static void *fake_run(void *user)
{
    agent_engine *g = user;
    pthread_mutex_lock(&g->lock);
    for (;;) {
        if (g->jobs == NULL && g->stop) {
            break;
        }
        if (g->jobs == NULL) {
            pthread_cond_wait(&g->changed, &g->lock);
            continue;
        }
        bool pause = true;
        for (fake_job *j = g->jobs, *next; j != NULL; j = next) {
            next = j->next;
            bool cancelled = j->cancelled, release = g->release;
            pause = pause && strcmp(fake_script(j->request), "hold") == 0;
            pthread_mutex_unlock(&g->lock);
            bool over = fake_step(g, j, cancelled, release);
            pthread_mutex_lock(&g->lock);
            next = j->next;
            if (over) {
                fake_remove(g, j);
            }
        }
        pthread_mutex_unlock(&g->lock);
        struct timespec t = {.tv_nsec = pause ? 1000000 : 1000};
        (void)nanosleep(&t, NULL);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

status agent_engine_open(const agent_options *o, agent_engine **out, err *e)
{
    (void)e;
    agent_engine *g = base_zalloc(1, sizeof *g);
    g->jobs_max = o->queue_max > 0 ? o->queue_max : 1000;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    pthread_create(&g->thread, NULL, fake_run, g);
    *out = g;
    return ST_OK;
}

void agent_engine_close(agent_engine *g, bool drain)
{
    pthread_mutex_lock(&g->lock);
    g->stop = true;
    for (fake_job *j = g->jobs; j != NULL && !drain; j = j->next) {
        j->cancelled = true;
    }
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
    base_free(g);
}

status agent_submit(agent_engine *g, agent_request *r, uint64_t *ticket, err *e)
{
    fake_job *j = base_zalloc(1, sizeof *j);
    pthread_mutex_lock(&g->lock);
    if (g->n_jobs >= g->jobs_max) {
        pthread_mutex_unlock(&g->lock);
        base_free(j);
        return FAIL(e, ST_ERR_BUSY, "full");
    }
    j->request = r;
    j->ticket = *ticket = ++g->last_ticket;
    fake_job **at = &g->jobs;
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = j;
    g->n_jobs++;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
    return ST_OK;
}

bool agent_cancel(agent_engine *g, uint64_t ticket)
{
    bool found = false;
    pthread_mutex_lock(&g->lock);
    for (fake_job *j = g->jobs; j != NULL; j = j->next) {
        if (j->ticket == ticket) {
            j->cancelled = found = true;
        }
    }
    pthread_mutex_unlock(&g->lock);
    return found;
}

static inline void fake_release(agent_engine *g)
{
    pthread_mutex_lock(&g->lock);
    g->release = true;
    pthread_mutex_unlock(&g->lock);
}

#endif
