/* store: what is erased, deleted or overwritten is gone from the files, not only from the index. */
#include "test_store_util.h"

#include <pthread.h>
#include <sys/wait.h>

static char folder[PATH_MAX];
static const char secret[] = "the seal's name is Marigold; ";

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

static size_t count_in(const char *file, const char *needle)
{
    size_t bytes, needle_bytes = strlen(needle), found = 0;
    uint8_t *data = util_slurp(folder, file, &bytes);
    for (size_t at = 0; at + needle_bytes <= bytes; at++) {
        found += memcmp(data + at, needle, needle_bytes) == 0;
    }
    free(data);
    return found;
}

static void put_text(
        store *s, store_kind kind, const char *session, uint64_t number, const char *text, size_t bytes)
{
    char *data = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = text[i % strlen(text)];
    }
    assert_int_equal(util_put(s, kind, session, number, data, bytes), ST_OK);
    free(data);
}

static void erase(store *s, const char *session, status expected)
{
    store_batch *b = store_batch_create();
    err e = {0};
    assert_int_equal(store_batch_erase_session(b, "tenant", session), ST_OK);
    assert_int_equal(store_commit(s, b, &e), expected);
    store_batch_free(b);
}

/* Every kind and many sizes, overwritten, shortened, deleted and rewritten among another session's records, so that
 * LMDB has moved, freed and recycled pages of all sorts; then one session is erased. */
static void churn(store *s)
{
    static const size_t sizes[] = {30, 500, 3000, 4096, 9000, 70000};
    for (unsigned round = 0; round < 4; round++) {
        for (uint64_t i = 0; i < 6; i++) {
            put_text(s, STORE_TURN, "kept", 10 * round + i, "harmless ", 400);
            for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
                if (kind != STORE_NAME) {
                    put_text(s, (store_kind)kind, "erased", i, secret, sizes[(i + round) % 6]);
                }
            }
            put_text(s, STORE_NAME, "hash", i, "erased", 6);
        }
        store_batch *b = store_batch_create();
        store_key from = util_key(STORE_TAIL, "erased", round);
        assert_int_equal(store_batch_delete_from(b, &from), ST_OK);
        from.kind = STORE_TURN;
        assert_int_equal(store_batch_delete_from(b, &from), ST_OK);
        assert_int_equal(store_commit(s, b, NULL), ST_OK);
        store_batch_free(b);
    }
}

static void test_erase_leaves_no_bytes(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    churn(s);
    assert_true(count_in("index/data.mdb", "Marigold") > 0);
    assert_true(count_in("blobs/data.mdb", "Marigold") > 0);
    erase(s, "erased", ST_OK);
    assert_int_equal(count_in("index/data.mdb", "Marigold"), 0);
    assert_int_equal(count_in("blobs/data.mdb", "Marigold"), 0);
    assert_true(count_in("index/data.mdb", "harmless") > 0);
    assert_int_equal(util_check(s), 0);
    store_close(s);
}

/* A session that was only deleted record by record is gone once the store is closed. */
static void test_close_leaves_no_deleted_bytes(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    churn(s);
    store_batch *b = store_batch_create();
    for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
        store_key from = util_key((store_kind)kind, "erased", 0);
        assert_int_equal(store_batch_delete_from(b, &from), ST_OK);
    }
    assert_int_equal(store_commit(s, b, NULL), ST_OK);
    store_batch_free(b);
    store_close(s);
    assert_int_equal(count_in("index/data.mdb", "Marigold"), 0);
    assert_int_equal(count_in("blobs/data.mdb", "Marigold"), 0);
}

/* Killed between the deletion and the overwriting: the next open goes on. */
static void test_open_overwrites_what_a_crash_left(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        store *s = util_open(folder, 0);
        bool good = s != NULL && util_put_seeded(s, STORE_TURN, "s", 1, 10, 1) == ST_OK &&
                util_put(s, STORE_TURN, "s", 0, secret, strlen(secret)) == ST_OK &&
                util_put(s, STORE_COLUMN, "s", 0, secret, strlen(secret)) == ST_OK &&
                util_put(s, STORE_TURN, "s", 0, "x", 1) == ST_OK &&
                util_put(s, STORE_COLUMN, "s", 0, "x", 1) == ST_OK;
        _exit(good ? 0 : 1);
    }
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    assert_true(count_in("blobs/data.mdb", "Marigold") > 0);
    store *s = util_open(folder, 0);
    store_stats st;
    store_get_stats(s, &st);
    assert_true(st.dropped_at_open > 0);
    assert_int_equal(count_in("index/data.mdb", "Marigold"), 0);
    assert_int_equal(count_in("blobs/data.mdb", "Marigold"), 0);
    assert_int_equal(util_expect(s, STORE_TURN, "s", 0, "x", 1), ST_OK);
    assert_int_equal(util_expect(s, STORE_COLUMN, "s", 0, "x", 1), ST_OK);
    store_close(s);
}

/* ---- beside a reader ---- */

typedef struct slow_reader {
    store *s;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool inside, may_leave;
    status result;
    char copy[sizeof secret];
} slow_reader;

static status read_slowly(void *ctx, const void *data, size_t bytes)
{
    slow_reader *r = ctx;
    (void)pthread_mutex_lock(&r->lock);
    r->inside = true;
    (void)pthread_cond_signal(&r->changed);
    while (!r->may_leave) {
        (void)pthread_cond_wait(&r->changed, &r->lock);
    }
    (void)pthread_mutex_unlock(&r->lock);
    memcpy(r->copy, data, bytes < sizeof r->copy ? bytes : sizeof r->copy);
    return ST_OK;
}

static void *read_in_thread(void *ctx)
{
    slow_reader *r = ctx;
    store_key key = util_key(STORE_COLUMN, "erased", 0);
    r->result = store_read(r->s, &key, read_slowly, r, NULL);
    return NULL;
}

/* A value is not overwritten under a reader that has verified it; the erasure waits, and follows. */
static void test_a_reader_keeps_its_bytes(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    slow_reader r = {.s = s, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    pthread_t thread;
    put_text(s, STORE_COLUMN, "erased", 0, secret, sizeof secret - 1);
    assert_int_equal(pthread_create(&thread, NULL, read_in_thread, &r), 0);
    (void)pthread_mutex_lock(&r.lock);
    while (!r.inside) {
        (void)pthread_cond_wait(&r.changed, &r.lock);
    }
    (void)pthread_mutex_unlock(&r.lock);
    erase(s, "erased", ST_ERR_BUSY);
    assert_int_equal(util_expect(s, STORE_COLUMN, "erased", 0, "", 0), ST_ERR_NOT_FOUND);
    for (uint64_t i = 0; i < 5; i++) {
        put_text(s, STORE_COLUMN, "kept", i, "harmless ", 5000);
    }
    assert_int_equal(count_in("blobs/data.mdb", "Marigold"), 1);
    (void)pthread_mutex_lock(&r.lock);
    r.may_leave = true;
    (void)pthread_cond_signal(&r.changed);
    (void)pthread_mutex_unlock(&r.lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.result, ST_OK);
    assert_memory_equal(r.copy, secret, sizeof secret - 1);
    put_text(s, STORE_COLUMN, "kept", 9, "harmless ", 5000);
    assert_int_equal(count_in("blobs/data.mdb", "Marigold"), 0);
    assert_int_equal(util_check(s), 0);
    store_close(s);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
            TEST(test_erase_leaves_no_bytes),
            TEST(test_close_leaves_no_deleted_bytes),
            TEST(test_open_overwrites_what_a_crash_left),
            TEST(test_a_reader_keeps_its_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
