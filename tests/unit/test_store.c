/* store: batches, reading, walking, opening. */
#include "test_store_util.h"

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

static void test_values_come_back_after_reopening(void **state)
{
    (void)state;
    static const size_t sizes[] = {
            0, 1, 2, 15, 16, 17, 100, 2000, 4079, 4080, 4081, 4096, 8191, 8192, 100000, 368640};
    enum { SIZES = sizeof sizes / sizeof sizes[0] };
    store *s = util_open(folder, 0);
    assert_non_null(s);
    for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
        for (size_t i = 0; i < SIZES; i++) {
            assert_int_equal(
                    util_put_seeded(s, (store_kind)kind, "s", i, sizes[i], 100u * (unsigned)kind + i), ST_OK);
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
            for (size_t i = 0; i < SIZES; i++) {
                assert_int_equal(
                        util_expect_seeded(s, (store_kind)kind, "s", i, sizes[i], 100u * (unsigned)kind + i),
                        ST_OK);
            }
            assert_int_equal(util_expect(s, (store_kind)kind, "s", SIZES, "", 0), ST_ERR_NOT_FOUND);
        }
        store_stats st;
        store_get_stats(s, &st);
        assert_int_equal(st.records, 5 * SIZES);
        assert_int_equal(st.blobs, 2 * SIZES);
        assert_int_equal(st.checksum_failures, 0);
        assert_int_equal(st.dropped_at_open, 0);
        assert_int_equal(util_check(s), 0);
        store_close(s);
        s = util_open(folder, 0);
        assert_non_null(s);
    }
    store_close(s);
}

static void test_batch_is_applied_in_order(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    assert_non_null(s);
    static const store_kind kinds[] = {STORE_TURN, STORE_NAME, STORE_COLUMN};
    for (size_t i = 0; i < 3; i++) {
        store_key key[10];
        for (uint64_t n = 0; n < 10; n++) {
            key[n] = util_key(kinds[i], "s", n);
        }
        store_batch *b = store_batch_create();
        for (size_t n = 0; n < 10; n++) {
            assert_int_equal(store_batch_put(b, &key[n], "first", 5), ST_OK);
        }
        assert_int_equal(store_batch_put(b, &key[1], "second", 6), ST_OK);
        assert_int_equal(store_batch_delete(b, &key[2]), ST_OK);
        assert_int_equal(store_batch_delete(b, &key[2]), ST_OK);
        assert_int_equal(store_batch_delete_from(b, &key[7]), ST_OK);
        assert_int_equal(store_batch_put(b, &key[8], "later", 5), ST_OK);
        assert_int_equal(store_commit(s, b, NULL), ST_OK);
        assert_int_equal(store_commit(s, b, NULL), ST_OK); /* a batch may be used again */
        store_batch_free(b);
        assert_int_equal(util_expect(s, kinds[i], "s", 0, "first", 5), ST_OK);
        assert_int_equal(util_expect(s, kinds[i], "s", 1, "second", 6), ST_OK);
        assert_int_equal(util_expect(s, kinds[i], "s", 2, "", 0), ST_ERR_NOT_FOUND);
        assert_int_equal(util_expect(s, kinds[i], "s", 6, "first", 5), ST_OK);
        assert_int_equal(util_expect(s, kinds[i], "s", 7, "", 0), ST_ERR_NOT_FOUND);
        assert_int_equal(util_expect(s, kinds[i], "s", 8, "later", 5), ST_OK);
        assert_int_equal(util_expect(s, kinds[i], "s", 9, "", 0), ST_ERR_NOT_FOUND);
    }
    assert_int_equal(util_check(s), 0);
    store_stats st;
    store_get_stats(s, &st);
    assert_int_equal(st.blobs, 7);
    assert_int_equal(st.records, 14);
    assert_int_equal(st.commits, 6);
    store_close(s);
}

static void test_deletes_stay_in_their_session(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    assert_non_null(s);
    static const char *const sessions[] = {"a", "a\x01", "aa", "ab", "b", "a/b"};
    for (size_t i = 0; i < 6; i++) {
        for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
            for (uint64_t n = 0; n < 3; n++) {
                assert_int_equal(util_put(s, (store_kind)kind, sessions[i], n, "x", 1), ST_OK);
            }
        }
    }
    store_batch *b = store_batch_create();
    store_key key = util_key(STORE_TURN, "aa", 1);
    assert_int_equal(store_batch_delete_from(b, &key), ST_OK);
    assert_int_equal(store_batch_erase_session(b, "tenant", "a"), ST_OK);
    assert_int_equal(store_batch_erase_session(b, "tenan", "tb"), ST_OK);
    assert_int_equal(store_commit(s, b, NULL), ST_OK);
    store_batch_free(b);
    for (size_t i = 0; i < 6; i++) {
        for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
            for (uint64_t n = 0; n < 3; n++) {
                bool gone = (i == 0 && kind != STORE_NAME) || (i == 2 && kind == STORE_TURN && n >= 1);
                assert_int_equal(util_expect(s, (store_kind)kind, sessions[i], n, "x", 1),
                        gone ? ST_ERR_NOT_FOUND : ST_OK);
            }
        }
    }
    assert_int_equal(util_check(s), 0);
    store_close(s);
}

static void test_names_have_limits(void **state)
{
    (void)state;
    char longest[130], odd[129];
    memset(longest, 'x', 129);
    longest[129] = '\0';
    for (int i = 0; i < 128; i++) {
        odd[i] = (char)(255 - i);
    }
    odd[128] = '\0';
    store *s = util_open(folder, 0);
    store_batch *b = store_batch_create();
    store_key key = {.kind = STORE_TURN, .tenant = longest, .session = "s", .number = 0};
    assert_int_equal(store_batch_put(b, &key, "x", 1), ST_ERR_ARG);
    key.tenant = "t";
    key.session = longest;
    assert_int_equal(store_batch_put(b, &key, "x", 1), ST_ERR_ARG);
    assert_int_equal(store_batch_delete(b, &key), ST_ERR_ARG);
    assert_int_equal(store_batch_delete_from(b, &key), ST_ERR_ARG);
    assert_int_equal(store_batch_erase_session(b, "t", longest), ST_ERR_ARG);
    key.session = "";
    assert_int_equal(store_batch_put(b, &key, "x", 1), ST_ERR_ARG);
    key.session = NULL;
    assert_int_equal(store_batch_put(b, &key, "x", 1), ST_ERR_ARG);
    key.session = "s";
    key.kind = (store_kind)0;
    assert_int_equal(store_batch_put(b, &key, "x", 1), ST_ERR_ARG);
    key.kind = (store_kind)8;
    assert_int_equal(store_batch_put(b, &key, "x", 1), ST_ERR_ARG);
    key.kind = STORE_TURN;
    assert_int_equal(store_batch_put(b, &key, NULL, 1), ST_ERR_ARG);
    assert_int_equal(store_batch_put(b, &key, "", (size_t)RECORD_PAYLOAD_BYTES_MAX + 1), ST_ERR_LIMIT);
    assert_int_equal(store_commit(s, b, NULL), ST_OK); /* nothing got in */
    longest[128] = '\0';
    key = (store_key){.kind = STORE_COLUMN, .tenant = longest, .session = odd, .number = UINT64_MAX};
    assert_int_equal(store_batch_put(b, &key, "value", 5), ST_OK);
    assert_int_equal(store_commit(s, b, NULL), ST_OK);
    void *data;
    size_t bytes;
    assert_int_equal(store_read_copy(s, &key, &data, &bytes, NULL), ST_OK);
    assert_int_equal(bytes, 5);
    assert_memory_equal(data, "value", 5);
    base_free(data);
    assert_int_equal(util_check(s), 0);
    store_batch_free(b);
    store_close(s);
}

/* ---- walking ---- */

typedef struct walked {
    char text[2000];
    int stop_after;
} walked;

static status note_walk(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    walked *w = ctx;
    size_t at = strlen(w->text);
    (void)snprintf(w->text + at, sizeof w->text - at, "%s:%d=%.*s ", key->session, (int)key->number,
            (int)bytes, data == NULL ? "DAMAGED" : (const char *)data);
    return --w->stop_after == 0 ? ST_ERR_CANCELLED : ST_OK;
}

static void expect_walk(
        store *s, const char *session, const char *prefix, const char *after, const char *expected)
{
    walked w = {0};
    assert_int_equal(
            store_walk(s, STORE_SESSION, "tenant", session, prefix, after, note_walk, &w, NULL), ST_OK);
    assert_string_equal(w.text, expected);
}

static void test_walk(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    expect_walk(s, NULL, NULL, NULL, "");
    static const char *const sessions[] = {"b", "abc", "ab", "aXX", "a", "zzzz", "abcd"};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(util_put(s, STORE_SESSION, sessions[i], 0, sessions[i], strlen(sessions[i])), ST_OK);
        assert_int_equal(util_put(s, STORE_TURN, sessions[i], 0, "t", 1), ST_OK);
    }
    assert_int_equal(util_put(s, STORE_SESSION, "ab", 300, "x", 1), ST_OK);
    assert_int_equal(util_put(s, STORE_SESSION, "ab", 2, "y", 1), ST_OK);
    store_batch *b = store_batch_create();
    store_key other[] = {{.kind = STORE_SESSION, .tenant = "tenanu", .session = "ab"},
            {.kind = STORE_SESSION, .tenant = "tenan", .session = "ab"},
            {.kind = STORE_SESSION, .tenant = "tenant2", .session = "ab"}};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(store_batch_put(b, &other[i], "wrong", 5), ST_OK);
    }
    assert_int_equal(store_commit(s, b, NULL), ST_OK);
    store_batch_free(b);

    expect_walk(s, NULL, NULL, NULL,
            "a:0=a b:0=b ab:0=ab ab:2=y ab:300=x aXX:0=aXX abc:0=abc abcd:0=abcd zzzz:0=zzzz ");
    expect_walk(s, NULL, "", "",
            "a:0=a b:0=b ab:0=ab ab:2=y ab:300=x aXX:0=aXX abc:0=abc abcd:0=abcd zzzz:0=zzzz ");
    expect_walk(s, "ab", NULL, NULL, "ab:0=ab ab:2=y ab:300=x ");
    expect_walk(s, "nobody", NULL, NULL, "");
    expect_walk(s, NULL, "ab", NULL, "ab:0=ab ab:2=y ab:300=x abc:0=abc abcd:0=abcd ");
    expect_walk(s, NULL, "ab", "ab", "abc:0=abc abcd:0=abcd ");
    expect_walk(s, NULL, "z", NULL, "zzzz:0=zzzz ");
    expect_walk(s, NULL, "q", NULL, "");
    expect_walk(s, NULL, NULL, "ab", "aXX:0=aXX abc:0=abc abcd:0=abcd zzzz:0=zzzz ");
    expect_walk(s, NULL, NULL, "aa", "ab:0=ab ab:2=y ab:300=x aXX:0=aXX abc:0=abc abcd:0=abcd zzzz:0=zzzz ");
    expect_walk(s, NULL, NULL, "zzzz", "");

    walked w = {.stop_after = 2};
    assert_int_equal(
            store_walk(s, STORE_SESSION, "tenant", NULL, NULL, NULL, note_walk, &w, NULL), ST_ERR_CANCELLED);
    assert_string_equal(w.text, "a:0=a b:0=b ");
    assert_int_equal(store_walk(s, STORE_SESSION, "", NULL, NULL, NULL, note_walk, &w, NULL), ST_ERR_ARG);
    store_close(s);
}

static status refuse(void *ctx, const void *data, size_t bytes)
{
    (void)data;
    *(size_t *)ctx = bytes;
    return ST_ERR_LIMIT;
}

static void test_read_returns_what_visit_returned(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    assert_int_equal(util_put(s, STORE_TURN, "s", 1, "12345", 5), ST_OK);
    store_key key = util_key(STORE_TURN, "s", 1);
    size_t seen = 0;
    assert_int_equal(store_read(s, &key, refuse, &seen, NULL), ST_ERR_LIMIT);
    assert_int_equal(seen, 5);
    key.session = "";
    assert_int_equal(store_read(s, &key, refuse, &seen, NULL), ST_ERR_ARG);
    store_close(s);
}

/* A payload has to start on a page of the map, for a GPU copy or a direct read. */
static status note_address(void *ctx, const void *data, size_t bytes)
{
    (void)bytes;
    *(uintptr_t *)ctx = (uintptr_t)data;
    return ST_OK;
}

static void test_payloads_start_on_a_page(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    for (uint64_t i = 0; i < 20; i++) {
        uintptr_t address = 1;
        store_key key = util_key(STORE_COLUMN, "s", i);
        assert_int_equal(util_put_seeded(s, STORE_COLUMN, "s", i, 1 + i * 1000, i), ST_OK);
        assert_int_equal(store_read(s, &key, note_address, &address, NULL), ST_OK);
        assert_int_equal(address % 4096, 0);
    }
    store_close(s);
}

/* ---- opening ---- */

static void test_folder_is_private(void **state)
{
    (void)state;
    char path[PATH_MAX + 32];
    static const char *const files[] = {
            "lock", "format", "index/data.mdb", "index/lock.mdb", "blobs/data.mdb"};
    static const char *const folders[] = {"deep", "deep/er", "deep/er/index", "deep/er/blobs"};
    struct stat st;
    mode_t old = umask(0);
    (void)snprintf(path, sizeof path, "%s/deep/er", folder);
    store *s = util_open(path, 0);
    assert_non_null(s);
    store_close(s);
    (void)umask(old);
    for (size_t i = 0; i < 5; i++) {
        (void)snprintf(path, sizeof path, "%s/deep/er/%s", folder, files[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0600);
    }
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0700);
    }
}

static void test_one_owner(void **state)
{
    (void)state;
    int to_parent[2], to_child[2];
    char c, text[64];
    assert_int_equal(pipe(to_parent), 0);
    assert_int_equal(pipe(to_child), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)alarm(60); /* ends with a parent that failed */
        store *s = util_open(folder, 0);
        bool good = s != NULL && util_put(s, STORE_TURN, "s", 1, "x", 1) == ST_OK &&
                write(to_parent[1], "x", 1) == 1 && read(to_child[0], &c, 1) == 1;
        _exit(good ? 0 : 1); /* without closing: as a crash */
    }
    assert_int_equal(read(to_parent[0], &c, 1), 1);
    store_options o = {.path = folder, .fingerprint = util_fingerprint};
    store *s = NULL;
    err e = {0};
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_BUSY);
    (void)snprintf(text, sizeof text, "process %ld", (long)child);
    assert_non_null(strstr(e.text, text));
    assert_null(s);
    o.read_only = true; /* is let in beside it */
    assert_int_equal(store_open(&o, &s, &e), ST_OK);
    assert_int_equal(util_expect(s, STORE_TURN, "s", 1, "x", 1), ST_OK);
    assert_int_equal(util_put(s, STORE_TURN, "s", 2, "x", 1), ST_ERR_ARG);
    assert_int_equal(util_check(s), 0);
    store_close(s);
    assert_int_equal(write(to_child[1], "x", 1), 1);
    int result;
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_int_equal(result, 0);
    s = util_open(folder, 0); /* a dead owner does not hold it */
    assert_non_null(s);
    store *again = NULL;
    assert_int_equal(store_open(&o, &again, &e), ST_ERR_BUSY); /* once per process, whatever the mode */
    assert_non_null(strstr(e.text, "in this process"));
    store_close(s);
    for (int i = 0; i < 2; i++) {
        (void)close(to_parent[i]);
        (void)close(to_child[i]);
    }
}

static void test_fingerprint(void **state)
{
    (void)state;
    char text[FORMAT_TEXT_BYTES_MAX + 2], other[400], stored[400];
    err e = {0};
    store *s = util_open(folder, 0);
    assert_int_equal(util_put(s, STORE_TURN, "s", 1, "x", 1), ST_OK);
    assert_int_equal(
            store_peek_fingerprint(folder, text, sizeof text, &e), ST_OK); /* also while it is open */
    store_close(s);
    s = NULL;
    assert_string_equal(text, util_fingerprint);
    assert_int_equal(store_peek_fingerprint(folder, text, sizeof util_fingerprint, &e), ST_OK);
    assert_int_equal(store_peek_fingerprint(folder, text, sizeof util_fingerprint - 1, &e), ST_ERR_LIMIT);
    store_options o = {.path = folder, .fingerprint = "model=other codec=none"};
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_MISMATCH);
    assert_non_null(strstr(e.text, util_fingerprint));
    assert_non_null(strstr(e.text, o.fingerprint));
    o.read_only = true;
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_MISMATCH);
    o.fingerprint = NULL;
    assert_int_equal(store_open(&o, &s, &e), ST_OK);
    store_close(s);
    o.read_only = false;
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_ARG);
    memset(text, 'f', sizeof text);
    text[FORMAT_TEXT_BYTES_MAX + 1] = '\0';
    o.fingerprint = text;
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_ARG);

    util_remove(folder); /* long ones: the message shows where they differ */
    assert_int_equal(mkdir(folder, 0700), 0);
    memset(stored, 's', sizeof stored);
    memset(other, 's', sizeof other);
    memcpy(stored + 300, "HERE=1", 7);
    memcpy(other + 300, "HERE=2", 7);
    o.fingerprint = stored;
    assert_int_equal(store_open(&o, &s, &e), ST_OK);
    store_close(s);
    o.fingerprint = other;
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_MISMATCH);
    assert_non_null(strstr(e.text, "HERE=1"));
    assert_non_null(strstr(e.text, "HERE=2"));
}

static void test_open_refuses_what_is_no_store(void **state)
{
    (void)state;
    char path[PATH_MAX + 32], text[100];
    store_options o = {.path = path, .fingerprint = util_fingerprint, .read_only = true};
    store *s = NULL;
    err e = {0};
    (void)snprintf(path, sizeof path, "%s/nothing", folder);
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_NOT_FOUND);
    assert_int_equal(store_peek_fingerprint(path, text, sizeof text, &e), ST_ERR_NOT_FOUND);
    o.path = folder;
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_NOT_FOUND);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fclose(f);
    o.path = path;
    o.read_only = false;
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_IO); /* a file where the folder should be */
    o.path = "";
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_ARG);
    o.path = "/proc/nowhere/store";
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_IO);
    assert_null(s);
    store_close(NULL);
    store_batch_free(NULL);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
            TEST(test_values_come_back_after_reopening),
            TEST(test_batch_is_applied_in_order),
            TEST(test_deletes_stay_in_their_session),
            TEST(test_names_have_limits),
            TEST(test_walk),
            TEST(test_read_returns_what_visit_returned),
            TEST(test_payloads_start_on_a_page),
            TEST(test_folder_is_private),
            TEST(test_one_owner),
            TEST(test_fingerprint),
            TEST(test_open_refuses_what_is_no_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
