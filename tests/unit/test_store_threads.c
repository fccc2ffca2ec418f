/* store: readers in threads and in another process beside a writer never see a mix of two batches, nor damage. */
#include "test_store_util.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { READERS = 3, WRITERS = 2, KEYS = 4, VALUE_BYTES = 20000, RUN_MS = 1500 };

static char folder[PATH_MAX];

static int set_up(void **state)
{
    *state = folder;
    return util_folder(folder) == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    util_remove(folder);
    return 0;
}

typedef struct shared {
    store *s;
    atomic_bool stop;
    atomic_int reads, walks, commits, wrong;
} shared;

static const store_kind kinds[KEYS] = {STORE_TURN, STORE_COLUMN, STORE_TAIL, STORE_NAME};

/* All keys of a session get the same generation, or all go. */
static status write_generation(store *s, const char *session, uint64_t generation)
{
    static const size_t sizes[] = {VALUE_BYTES, 10, 4096, 8200};
    uint8_t *data = malloc(VALUE_BYTES);
    store_batch *b = store_batch_create();
    size_t bytes = sizes[generation % 4];
    memset(data, (int)(generation % 251), bytes);
    for (size_t i = 0; i < KEYS; i++) {
        store_key key = util_key(kinds[i], session, 0);
        (void)(generation % 5 == 4 ? store_batch_delete(b, &key)
                                   : store_batch_put(b, &key, data, bytes < 1000 || i < 3 ? bytes : 1000));
    }
    if (generation % 7 == 6) {
        (void)store_batch_erase_session(b, "tenant", session);
    }
    status result = store_commit(s, b, NULL);
    store_batch_free(b);
    free(data);
    return result;
}

static void *write_on(void *ctx)
{
    shared *sh = ctx;
    for (uint64_t i = 0; !atomic_load(&sh->stop); i++) {
        status result = write_generation(sh->s, i % 2 == 0 ? "even" : "odd", i);
        atomic_fetch_add(&sh->wrong, result != ST_OK);
        atomic_fetch_add(&sh->commits, 1);
    }
    return NULL;
}

static status all_equal(void *ctx, const void *data, size_t bytes)
{
    const uint8_t *d = data;
    for (size_t i = 1; i < bytes; i++) {
        if (d[i] != d[0]) {
            atomic_fetch_add((atomic_int *)ctx, 1);
            return ST_ERR_MISMATCH;
        }
    }
    return ST_OK;
}

static status all_equal_record(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    (void)key;
    return data == NULL ? ST_ERR_CORRUPT : all_equal(ctx, data, bytes);
}

static void *read_on(void *ctx)
{
    shared *sh = ctx;
    for (uint64_t i = 0; !atomic_load(&sh->stop); i++) {
        store_key key = util_key(kinds[i % KEYS], i % 3 == 0 ? "even" : "odd", 0);
        err e = {0};
        status result = store_read(sh->s, &key, all_equal, &sh->wrong, &e);
        if (result != ST_OK && result != ST_ERR_NOT_FOUND) {
            (void)fprintf(stderr, "read: %s\n", e.text);
            atomic_fetch_add(&sh->wrong, 1);
        }
        atomic_fetch_add(&sh->reads, 1);
        if (i % 16 == 0) {
            result = store_walk(sh->s, kinds[i / 16 % KEYS], "tenant", NULL, NULL, NULL, all_equal_record,
                    &sh->wrong, &e);
            atomic_fetch_add(&sh->wrong, result != ST_OK);
            atomic_fetch_add(&sh->walks, 1);
        }
    }
    return NULL;
}

static void *look_on(void *ctx)
{
    shared *sh = ctx;
    while (!atomic_load(&sh->stop)) {
        store_stats st;
        store_check_result r = {0};
        store_get_stats(sh->s, &st);
        status result = store_check(sh->s, util_print_line, NULL, &r, NULL);
        atomic_fetch_add(
                &sh->wrong, result != ST_OK || r.damaged + r.orphans > 0 || st.checksum_failures > 0);
        (void)usleep(10000);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    shared sh = {.s = util_open(folder, 0)};
    pthread_t threads[READERS + WRITERS + 1];
    for (size_t i = 0; i < READERS + WRITERS + 1; i++) {
        void *(*body)(void *) = i == 0 ? look_on : i <= WRITERS ? write_on : read_on;
        assert_int_equal(pthread_create(&threads[i], NULL, body, &sh), 0);
    }
    (void)usleep(RUN_MS * 1000);
    atomic_store(&sh.stop, true);
    for (size_t i = 0; i < READERS + WRITERS + 1; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    print_message("%d reads, %d walks, %d commits\n", sh.reads, sh.walks, sh.commits);
    assert_int_equal(sh.wrong, 0);
    assert_true(sh.reads > 100 && sh.commits > 10 && sh.walks > 5);
    assert_int_equal(util_check(sh.s), 0);
    store_close(sh.s);
}

/* `check` in another process, while the owner writes; and an owner that is killed beside its readers. */
static void test_processes(void **state)
{
    (void)state;
    int ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(60); /* ends with a parent that failed */
        store *s = util_open(folder, 0);
        for (uint64_t i = 0; s != NULL && write_generation(s, i % 2 == 0 ? "even" : "odd", i) == ST_OK; i++) {
            if (i == 3 && write(ready[1], "x", 1) != 1) {
                break;
            }
        }
        _exit(1);
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    store_options o = {.path = folder, .read_only = true};
    store *s = NULL;
    err e = {0};
    atomic_int wrong = 0;
    assert_int_equal(store_open(&o, &s, &e), ST_OK);
    for (int i = 0; i < 200; i++) {
        store_key key = util_key(kinds[i % KEYS], i % 3 == 0 ? "even" : "odd", 0);
        status result = store_read(s, &key, all_equal, &wrong, &e);
        assert_true(result == ST_OK || result == ST_ERR_NOT_FOUND);
        if (i % 20 == 0) {
            assert_int_equal(util_check(s), 0);
        }
        (void)usleep(2000);
    }
    assert_int_equal(wrong, 0);
    int result;
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result)); /* it had not stopped by itself */
    store_close(s);
    s = util_open(folder, 0);
    assert_non_null(s);
    assert_int_equal(util_check(s), 0);
    store_close(s);
    (void)close(ready[0]);
    (void)close(ready[1]);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
            TEST(test_threads),
            TEST(test_processes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
