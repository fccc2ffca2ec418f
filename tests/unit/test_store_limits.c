/* store: out of memory, over the cap, out of address space, out of disk: an error, and nothing lost. */
#include "test_store_util.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

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

/* ---- memory ---- */

static status count_walk(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    (void)key;
    (void)bytes;
    *(int *)ctx += data != NULL;
    return ST_OK;
}

/* Overwrites, deletes and adds, so that every list of a commit grows. */
static status small_commit(store *s, uint64_t generation)
{
    uint8_t data[5000];
    status result = ST_OK;
    store_batch *b = store_batch_create();
    if (b == NULL) {
        return ST_ERR_MEMORY;
    }
    for (uint64_t i = 0; i < 20 && result == ST_OK; i++) {
        store_key key = util_key(i % 2 == 0 ? STORE_TURN : STORE_COLUMN, "s", i);
        util_fill(data, sizeof data, generation);
        result = store_batch_put(b, &key, data, sizeof data);
    }
    store_key tail = util_key(STORE_TAIL, "s", 0);
    if (result == ST_OK) {
        result = store_batch_delete_from(b, &tail);
    }
    if (result == ST_OK) {
        result = store_commit(s, b, NULL);
    }
    store_batch_free(b);
    return result;
}

static bool is_generation(store *s, uint64_t generation)
{
    for (uint64_t i = 0; i < 20; i++) {
        if (util_expect_seeded(s, i % 2 == 0 ? STORE_TURN : STORE_COLUMN, "s", i, 5000, generation) !=
                ST_OK) {
            return false;
        }
    }
    return true;
}

static status open_write_read(long countdown, uint64_t generation)
{
    store_options o = {.path = folder, .fingerprint = util_fingerprint};
    store *s = NULL;
    int seen = 0;
    store_check_result r;
    store_key key = util_key(STORE_COLUMN, "s", 1);
    void *data = NULL;
    size_t bytes;
    base_fail_allocation(countdown);
    status result = store_open(&o, &s, NULL);
    if (result == ST_OK) {
        result = small_commit(s, generation);
    }
    if (result == ST_OK) {
        result = store_read_copy(s, &key, &data, &bytes, NULL);
    }
    if (result == ST_OK) {
        result = store_walk(s, STORE_TURN, "tenant", NULL, NULL, NULL, count_walk, &seen, NULL);
    }
    if (result == ST_OK) {
        result = store_check(s, NULL, NULL, &r, NULL);
    }
    base_free(data);
    store_close(s);
    base_fail_allocation(-1);
    return result;
}

static void test_out_of_memory_anywhere(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    assert_int_equal(small_commit(s, 0), ST_OK);
    for (uint64_t i = 0; i < 20; i++) {
        assert_int_equal(util_put_seeded(s, STORE_TAIL, "s", i, 100, i), ST_OK);
    }
    store_close(s);
    uint64_t current = 0;
    long countdown = 0;
    for (;; countdown++) {
        uint64_t next = current + 1;
        status result = open_write_read(countdown, next);
        assert_true(result == ST_OK || result == ST_ERR_MEMORY);
        s = util_open(folder, 0);
        assert_non_null(s);
        assert_true(is_generation(s, current) || is_generation(s, next));
        current = is_generation(s, next) ? next : current;
        assert_int_equal(util_check(s), 0);
        store_close(s);
        if (result == ST_OK) {
            break;
        }
    }
    assert_int_equal(current > 0, true);
    assert_true(countdown > 10); /* the sweep did sweep */
}

/* The same while the store stays open: a commit that failed is none, and the next one works. */
static void test_commit_out_of_memory(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    assert_int_equal(small_commit(s, 0), ST_OK);
    int failed = 0;
    for (long countdown = 0;; countdown++) {
        base_fail_allocation(countdown);
        status result = small_commit(s, 1);
        base_fail_allocation(-1);
        if (result == ST_OK) {
            break;
        }
        assert_int_equal(result, ST_ERR_MEMORY);
        assert_true(is_generation(s, 0));
        assert_int_equal(util_check(s), 0);
        failed++;
    }
    assert_true(failed > 2);
    assert_true(is_generation(s, 1));
    store_close(s);
}

/* ---- cap ---- */

static void test_cap(void **state)
{
    (void)state;
    enum { CAP = 2 << 20 };
    store_stats st;
    uint64_t written = 0;
    store *s = util_open(folder, CAP);
    status result = ST_OK;
    for (; result == ST_OK && written < 1000; written++) {
        store_kind kind = written % 4 == 0 ? STORE_TURN : STORE_COLUMN;
        result = util_put_seeded(s, kind, "s", written, 3000 + 37 * written, written);
        store_get_stats(s, &st);
        assert_true(st.index_bytes + st.blob_bytes <= CAP);
    }
    assert_int_equal(result, ST_ERR_FULL);
    written--;
    assert_true(st.index_bytes + st.blob_bytes > CAP * 3 / 4); /* most of the cap can be used */
    assert_int_equal(st.cap_bytes, CAP);
    for (uint64_t i = 0; i < written; i++) {
        store_kind kind = i % 4 == 0 ? STORE_TURN : STORE_COLUMN;
        assert_int_equal(util_expect_seeded(s, kind, "s", i, 3000 + 37 * i, i), ST_OK);
    }
    assert_int_equal(util_expect(s, STORE_COLUMN, "s", written, "", 0), ST_ERR_NOT_FOUND);
    assert_int_equal(util_check(s), 0);
    uint64_t in_use_before = st.blob_bytes;
    store_batch *b = store_batch_create(); /* deleting is never over the cap, and makes room at once */
    store_key key = util_key(STORE_COLUMN, "s", written / 2);
    assert_int_equal(store_batch_delete_from(b, &key), ST_OK);
    assert_int_equal(store_commit(s, b, NULL), ST_OK);
    store_batch_free(b);
    store_get_stats(s, &st);
    assert_true(st.blob_bytes < in_use_before / 2);
    assert_int_equal(util_put_seeded(s, STORE_COLUMN, "s", written, 3000, 1), ST_OK);
    store_close(s);
    s = util_open(folder, 4096 * 8); /* a cap lower than what is there: reading and deleting go on */
    assert_int_equal(util_put(s, STORE_NAME, "s", 0, "x", 1), ST_ERR_FULL);
    assert_int_equal(util_expect_seeded(s, STORE_COLUMN, "s", written, 3000, 1), ST_OK);
    store_close(s);
}

/* Overwriting and deleting for long does not let the files grow. */
static void test_pages_are_used_again(void **state)
{
    (void)state;
    struct stat st;
    store *s = util_open(folder, 0);
    for (uint64_t i = 0; i < 120; i++) {
        assert_int_equal(util_put_seeded(s, STORE_COLUMN, "s", i % 4, 100000, i), ST_OK);
        assert_int_equal(util_put_seeded(s, STORE_SESSION, "s", 0, 100000, i), ST_OK);
    }
    assert_int_equal(fstat(s->blobs.fd, &st), 0);
    assert_true(st.st_size < 12 * 100000);
    assert_int_equal(fstat(s->index.fd, &st), 0);
    assert_true(st.st_size < 12 * 100000);
    store_close(s);
}

/* ---- map, file size, disk ---- */

/* Writes until it does not fit, then checks that all of it is there and that deleting makes room. 0 when it holds; runs
 * in children too, so without cmocka. */
static int fill_and_survive(store *s, int *step)
{
    uint64_t written = 0;
    status result = ST_OK;
    for (; result == ST_OK && written < 2000; written++) {
        store_batch *b = store_batch_create();
        static uint8_t data[2][40000];
        for (uint64_t i = 0; i < 2; i++) {
            store_key key = util_key(i == 0 ? STORE_TURN : STORE_COLUMN, "s", written);
            util_fill(data[i], sizeof data[i], written + i);
            (void)store_batch_put(b, &key, data[i], sizeof data[i]);
        }
        err e = {0};
        result = store_commit(s, b, &e);
        store_batch_free(b);
    }
    *step = 1;
    if (result != ST_ERR_FULL) {
        (void)fprintf(stderr, "after %d writes: %s\n", (int)written, status_name(result));
        return 1;
    }
    written--;
    *step = 2;
    for (int pass = 0; pass < 2; pass++) {
        for (uint64_t i = 0; i < written; i++) {
            if (util_expect_seeded(s, STORE_TURN, "s", i, 40000, i) != ST_OK ||
                    util_expect_seeded(s, STORE_COLUMN, "s", i, 40000, i + 1) != ST_OK) {
                return 1;
            }
        }
        if (util_expect(s, STORE_TURN, "s", written, "", 0) != ST_ERR_NOT_FOUND ||
                util_expect(s, STORE_COLUMN, "s", written, "", 0) != ST_ERR_NOT_FOUND) {
            return 1;
        }
        /* Again and again: each failure leaves all as it was. */
        result = util_put_seeded(s, STORE_TURN, "s", written, 8000000, 1);
        if (result != ST_ERR_FULL) {
            return 1;
        }
    }
    *step = 3;
    store_batch *b = store_batch_create();
    for (int kind = STORE_TURN; kind <= STORE_COLUMN; kind += STORE_COLUMN - STORE_TURN) {
        store_key key = util_key((store_kind)kind, "s", 2);
        (void)store_batch_delete_from(b, &key);
    }
    result = store_commit(s, b, NULL);
    store_batch_free(b);
    if (result != ST_OK) {
        return 1;
    }
    *step = 4;
    for (uint64_t i = 2; i < 4; i++) { /* the first frees what was deleted, the second uses it */
        if (util_put_seeded(s, STORE_TURN, "s", i, 1000, i) != ST_OK ||
                util_put_seeded(s, STORE_COLUMN, "s", i, 1000, i) != ST_OK) {
            return 1;
        }
    }
    *step = 5;
    return util_check(s) == 0 && util_expect_seeded(s, STORE_TURN, "s", 0, 40000, 0) == ST_OK ? 0 : 1;
}

static void test_map_full(void **state)
{
    (void)state;
    store_options o = {.path = folder, .fingerprint = util_fingerprint};
    store *s = NULL;
    int step = 0;
    assert_int_equal(store_open_sized(&o, 4 << 20, &s, NULL), ST_OK);
    int failed = fill_and_survive(s, &step);
    store_close(s);
    assert_int_equal(failed ? step : 0, 0);
}

static int run_child(int (*body)(void))
{
    int result;
    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        _exit(body());
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    return WEXITSTATUS(result);
}

enum { CANNOT_TRY = 77 };

static int open_fill_close(void)
{
    int step = 0;
    store *s = util_open(folder, 0);
    if (s == NULL) {
        return 10;
    }
    int failed = fill_and_survive(s, &step);
    store_close(s);
    if (failed) {
        return step;
    }
    s = util_open(folder, 0);
    failed = s == NULL || util_check(s) != 0 || util_expect_seeded(s, STORE_TURN, "s", 0, 40000, 0) != ST_OK;
    store_close(s);
    return failed ? 11 : 0;
}

static int under_a_file_size_limit(void)
{
    struct rlimit limit = {.rlim_cur = (3 << 20) + 1000, .rlim_max = (3 << 20) + 1000};
    (void)signal(SIGXFSZ, SIG_IGN);
    return setrlimit(RLIMIT_FSIZE, &limit) == 0 ? open_fill_close() : CANNOT_TRY;
}

static void test_file_size_limit(void **state)
{
    (void)state;
    assert_int_equal(run_child(under_a_file_size_limit), 0);
}

static int on_a_small_disk(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("none", folder, "tmpfs", 0, "size=5m,mode=0700") != 0) {
        return CANNOT_TRY;
    }
    return open_fill_close();
}

static void test_full_disk(void **state)
{
    (void)state;
    int result = run_child(on_a_small_disk);
    if (result == CANNOT_TRY) {
        print_message(
                "SKIPPED: a small tmpfs needs the right to mount; the file size limit is tested above\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* Opening on a disk that is full already. */
static int open_on_no_disk(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("none", folder, "tmpfs", 0, "size=16k,mode=0700") != 0) {
        return CANNOT_TRY;
    }
    store_options o = {.path = folder, .fingerprint = util_fingerprint};
    store *s = NULL;
    err e = {0};
    status result = store_open(&o, &s, &e);
    store_close(s);
    if (result != ST_ERR_FULL) {
        (void)fprintf(stderr, "%s: %s\n", status_name(result), e.text);
    }
    return result == ST_ERR_FULL && e.text[0] != '\0' ? 0 : 1;
}

static void test_open_on_full_disk(void **state)
{
    (void)state;
    int result = run_child(open_on_no_disk);
    if (result == CANNOT_TRY) {
        print_message("SKIPPED: a small tmpfs needs the right to mount\n");
        skip();
    }
    assert_int_equal(result, 0);
}

/* Little address space: the map shrinks until the system grants it. */
static int in_little_address_space(void)
{
    struct rlimit limit = {.rlim_cur = (rlim_t)2 << 30, .rlim_max = (rlim_t)2 << 30};
    if (setrlimit(RLIMIT_AS, &limit) != 0) {
        return CANNOT_TRY;
    }
    store *s = util_open(folder, 0);
    int failed = s == NULL || util_put(s, STORE_TURN, "s", 0, "x", 1) != ST_OK;
    store_close(s);
    return failed;
}

static void test_little_address_space(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("SKIPPED: a sanitizer needs the address space itself\n");
    skip();
#endif
    assert_int_equal(run_child(in_little_address_space), 0);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
            TEST(test_out_of_memory_anywhere),
            TEST(test_commit_out_of_memory),
            TEST(test_cap),
            TEST(test_pages_are_used_again),
            TEST(test_map_full),
            TEST(test_file_size_limit),
            TEST(test_full_disk),
            TEST(test_open_on_full_disk),
            TEST(test_little_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
