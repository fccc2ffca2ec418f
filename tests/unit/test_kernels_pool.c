/* The pool: each task of a call exactly once, calls back to back and after sleep, one thread and more than cores. Run
 * under TSan by the tsan preset. */
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { TASKS_MAX = 1000 };

typedef struct counts {
    int runs[TASKS_MAX]; /* plain on purpose: a task runs in one thread, and the caller reads after the call */
    int marker;
} counts;

static void count(void *ctx, int task)
{
    counts *c = ctx;
    c->runs[task] += c->marker;
}

static void check_call(krn_pool *pool, int tasks, int marker)
{
    static counts c;
    memset(&c, 0, sizeof c);
    c.marker = marker;
    krn_pool_run(pool, count, &c, tasks);
    for (int i = 0; i < TASKS_MAX; i++) {
        assert_int_equal(c.runs[i], i < tasks ? marker : 0);
    }
}

static void every_task_runs_once(void **state)
{
    (void)state;
    static const int thread_counts[] = {1, 2, 3, 8};
    for (size_t k = 0; k < sizeof thread_counts / sizeof thread_counts[0]; k++) {
        krn_pool *pool = NULL;
        assert_int_equal(krn_pool_open(thread_counts[k], &pool, NULL), ST_OK);
        assert_int_equal(krn_pool_threads(pool), thread_counts[k]);
        for (int call = 0; call < 300; call++) {
            check_call(pool, call % 7 * 5, call + 1);
        }
        check_call(pool, TASKS_MAX, 3);
        krn_pool_close(pool);
    }
    check_call(NULL, 10, 1);
    assert_int_equal(krn_pool_threads(NULL), 1);
}

static void sleeping_workers_wake_up(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    assert_int_equal(krn_pool_open(3, &pool, NULL), ST_OK);
    for (int i = 0; i < 20; i++) {
        struct timespec longer_than_the_spin = {.tv_nsec = 500000};
        (void)nanosleep(&longer_than_the_spin, NULL);
        check_call(pool, 50, i + 1);
    }
    krn_pool_close(pool);
}

/* Two tasks that wait for each other end only if two threads run them at once. */
typedef struct meeting {
    _Atomic int arrived;
} meeting;

static void meet(void *ctx, int task)
{
    meeting *m = ctx;
    (void)task;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < 2) {
        struct timespec short_time = {.tv_nsec = 1000};
        (void)nanosleep(&short_time, NULL);
    }
}

static void tasks_run_at_the_same_time(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    assert_int_equal(krn_pool_open(2, &pool, NULL), ST_OK);
    for (int i = 0; i < 20; i++) {
        meeting m = {0};
        krn_pool_run(pool, meet, &m, 2);
        assert_int_equal(m.arrived, 2);
    }
    krn_pool_close(pool);
}

static void opening_without_memory_is_refused(void **state)
{
    (void)state;
    krn_pool *pool = NULL;
    err e;
    base_fail_allocation(0);
    assert_int_equal(krn_pool_open(2, &pool, &e), ST_ERR_MEMORY);
    base_fail_allocation(-1);
    assert_null(pool);
    krn_pool_close(NULL);
    assert_int_equal(krn_pool_open(0, &pool, &e), ST_OK);
    assert_true(krn_pool_threads(pool) >= 1);
    krn_pool_close(pool);
}

static void instruction_sets_have_names(void **state)
{
    (void)state;
    krn_isa best = krn_isa_best();
    assert_string_equal(krn_isa_name(KRN_ISA_SCALAR), "scalar");
    assert_int_equal(krn_isa_current(), best);
    for (krn_isa isa = 0; isa <= best; isa++) {
        krn_isa_set(isa);
        assert_int_equal(krn_isa_current(), isa);
        assert_non_null(strstr(krn_numeric_abi(), krn_isa_name(isa)));
    }
    krn_isa_set(best);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(every_task_runs_once),
            cmocka_unit_test(sleeping_workers_wake_up),
            cmocka_unit_test(tasks_run_at_the_same_time),
            cmocka_unit_test(opening_without_memory_is_refused),
            cmocka_unit_test(instruction_sets_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
