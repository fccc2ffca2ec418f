/* writer: one thread, one bounded queue, batches in order. */
#include "agent/writer_internal.h"

#include <pthread.h>
#include <stdatomic.h>

struct writer {
    store *store;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* queue grew, shrank, or closing */
    writer_job *ring;
    size_t ring_size, head, count;
    bool running, closing;
    atomic_ullong failures;
};

static void write_job(writer *w, writer_job *job)
{
    err e = {0};
    if (store_commit(w->store, job->batch, &e) != ST_OK) {
        atomic_fetch_add(&w->failures, 1);
        LOG_W("session cache not written, it will be computed again when needed: %s", e.text);
    }
    store_batch_free(job->batch);
    if (job->release != NULL) {
        job->release(job->owned);
    }
}

static void *writer_main(void *arg)
{
    writer *w = arg;
    (void)pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->count == 0 && !w->closing) {
            (void)pthread_cond_wait(&w->changed, &w->lock);
        }
        if (w->count == 0) {
            break;
        }
        writer_job job = w->ring[w->head];
        (void)pthread_mutex_unlock(&w->lock);
        write_job(w, &job);
        (void)pthread_mutex_lock(&w->lock);
        w->head = (w->head + 1) %
                w->ring_size; /* only now: a flush waits for the commit, not for the pick-up */
        w->count--;
        (void)pthread_cond_broadcast(&w->changed);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

status writer_open(store *s, int queue_max, writer **out, err *e)
{
    writer *w = base_zalloc(1, sizeof *w);
    if (w == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the writer");
    }
    w->store = s;
    w->ring_size = (size_t)queue_max;
    w->ring = base_zalloc(w->ring_size, sizeof *w->ring);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->changed, NULL);
    atomic_init(&w->failures, 0);
    if (w->ring == NULL || pthread_create(&w->thread, NULL, writer_main, w) != 0) {
        writer_close(w);
        return FAIL(e, ST_ERR_MEMORY, "cannot start the writer thread");
    }
    w->running = true;
    *out = w;
    return ST_OK;
}

void writer_close(writer *w)
{
    if (w == NULL) {
        return;
    }
    if (w->running) {
        (void)pthread_mutex_lock(&w->lock);
        w->closing = true;
        (void)pthread_cond_broadcast(&w->changed);
        (void)pthread_mutex_unlock(&w->lock);
        (void)pthread_join(w->thread, NULL);
    }
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->changed);
    base_free(w->ring);
    base_free(w);
}

void writer_submit(writer *w, const writer_job *job)
{
    (void)pthread_mutex_lock(&w->lock);
    while (w->count == w->ring_size) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    w->ring[(w->head + w->count) % w->ring_size] = *job;
    w->count++;
    (void)pthread_cond_broadcast(&w->changed);
    (void)pthread_mutex_unlock(&w->lock);
}

void writer_flush(writer *w)
{
    (void)pthread_mutex_lock(&w->lock);
    while (w->count > 0) {
        (void)pthread_cond_wait(&w->changed, &w->lock);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

uint64_t writer_failures(const writer *w)
{
    return atomic_load(&w->failures);
}
