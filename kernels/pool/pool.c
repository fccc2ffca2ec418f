/*
 * pool: a few threads that share the tasks of one call and are cheap to start again a few microseconds later, since
 * a decoded token makes some two hundred short calls.
 *
 * 1. `ticket` holds the call's number (high half) and how many of its tasks are unclaimed (low half). A worker
 *    claims one by decrementing the low half with compare-and-swap. What it read about the call before (function,
 *    context, total) belongs to the ticket it swaps: a new call is published only when all tasks of the old one are
 *    done, which changes the number, so a worker that comes late fails the swap and never meets a stale function.
 * 2. `unfinished` counts tasks not yet returned from; the caller works too, then waits for it to reach 0. No call
 *    waits for a worker that claimed nothing (it may be asleep).
 * 3. A worker without work spins for SPIN_US and then sleeps on `wake`. It counts itself into `sleepers` before its
 *    last look at the ticket, and the caller publishes the ticket before it looks at `sleepers`, both sequentially
 *    consistent, so one of the two sees the other and no wake-up is lost.
 */
#define _GNU_SOURCE
#include "kernels/kernels.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum {
    THREADS_MAX = 256, /* arbitrary: more than that share one memory bus anyway */
    SPIN_US = 60,      /* longer than the gaps between the calls of one token, far below a time slice */
    SPINS_PER_CLOCK_LOOK = 64,
    SPINS_BEFORE_YIELD = 4096
};

struct krn_pool {
    _Atomic uint64_t ticket; /* call number << 32 | unclaimed tasks */
    char pad0[56];
    _Atomic int unfinished;
    char pad1[60];
    _Atomic(void *) ctx;
    void (*_Atomic fn)(void *ctx, int task);
    _Atomic int tasks;
    _Atomic int sleepers;
    _Atomic bool stop;
    int threads; /* the caller counted in */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t worker[THREADS_MAX];
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Runs tasks of the published call until none is unclaimed; true when it ran at least one. */
static bool work(krn_pool *p)
{
    bool any = false;
    for (;;) {
        uint64_t ticket = atomic_load(&p->ticket);
        uint32_t unclaimed = (uint32_t)ticket;
        if (unclaimed == 0) {
            return any;
        }
        void (*fn)(void *, int) = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_relaxed);
        int tasks = atomic_load_explicit(&p->tasks, memory_order_relaxed);
        if (atomic_compare_exchange_weak(&p->ticket, &ticket, ticket - 1)) {
            fn(ctx, tasks - (int)unclaimed);
            atomic_fetch_sub_explicit(&p->unfinished, 1, memory_order_release);
            any = true;
        }
    }
}

static void sleep_until_published(krn_pool *p)
{
    (void)pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while ((uint32_t)atomic_load(&p->ticket) == 0 && !atomic_load(&p->stop)) {
        (void)pthread_cond_wait(&p->wake, &p->lock);
    }
    atomic_fetch_sub(&p->sleepers, 1);
    (void)pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg)
{
    krn_pool *p = arg;
    int64_t idle_since_us = base_monotonic_us();
    unsigned spins = 0;
    while (!atomic_load(&p->stop)) {
        if (work(p)) {
            idle_since_us = base_monotonic_us();
            spins = 0;
            continue;
        }
        relax();
        if (++spins % SPINS_PER_CLOCK_LOOK == 0 && base_monotonic_us() - idle_since_us > SPIN_US) {
            sleep_until_published(p);
            idle_since_us = base_monotonic_us();
        }
    }
    return NULL;
}

static int cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        return CPU_COUNT(&set);
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

status krn_pool_open(int threads, krn_pool **out, err *e)
{
    if (threads <= 0) {
        threads = cores();
    }
    if (threads > THREADS_MAX) {
        threads = THREADS_MAX;
    }
    krn_pool *p = base_zalloc(1, sizeof *p);
    if (p == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a pool of %d threads", threads);
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->wake, NULL);
    p->threads = 1;
    while (p->threads < threads) {
        int os = pthread_create(&p->worker[p->threads - 1], NULL, worker_main, p);
        if (os != 0) {
            krn_pool_close(p);
            return FAIL_OS(
                    e, ST_ERR_MEMORY, os, "the system refused thread %d of %d", p->threads + 1, threads);
        }
        p->threads++;
    }
    *out = p;
    return ST_OK;
}

void krn_pool_close(krn_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    atomic_store(&pool->stop, true);
    (void)pthread_mutex_lock(&pool->lock);
    (void)pthread_cond_broadcast(&pool->wake);
    (void)pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->threads - 1; i++) {
        (void)pthread_join(pool->worker[i], NULL);
    }
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->lock);
    base_free(pool);
}

int krn_pool_threads(const krn_pool *pool)
{
    return pool == NULL ? 1 : pool->threads;
}

static void publish(krn_pool *p, void (*fn)(void *ctx, int task), void *ctx, int tasks)
{
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->ctx, ctx, memory_order_relaxed);
    atomic_store_explicit(&p->tasks, tasks, memory_order_relaxed);
    atomic_store_explicit(&p->unfinished, tasks, memory_order_relaxed);
    uint64_t call = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->ticket, (call << 32) | (uint64_t)(uint32_t)tasks);
    if (atomic_load(&p->sleepers) > 0) {
        (void)pthread_mutex_lock(&p->lock);
        (void)pthread_cond_broadcast(&p->wake);
        (void)pthread_mutex_unlock(&p->lock);
    }
}

void krn_pool_run(krn_pool *pool, void (*fn)(void *ctx, int task), void *ctx, int tasks)
{
    if (pool == NULL || pool->threads == 1 || tasks <= 1) {
        for (int i = 0; i < tasks; i++) {
            fn(ctx, i);
        }
        return;
    }
    publish(pool, fn, ctx, tasks);
    (void)work(pool);
    /* With more threads than cores the one we wait for may need ours. */
    for (unsigned spins = 1; atomic_load_explicit(&pool->unfinished, memory_order_acquire) > 0; spins++) {
        relax();
        if (spins % SPINS_BEFORE_YIELD == 0) {
            (void)sched_yield();
        }
    }
}
