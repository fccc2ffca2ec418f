/* store: damaged bytes are noticed before a single one is handed out, and leave the rest of the store alone. */
#include "test_store_util.h"

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

/* File offsets of the records of a role, kind and number, copies in free pages included. */
typedef struct places {
    off_t at[16];
    size_t n;
} places;

static places find_records(const char *file, record_role role, store_kind kind, uint8_t number)
{
    size_t bytes;
    uint8_t *data = util_slurp(folder, file, &bytes);
    places found = {0};
    for (size_t at = 0; at + RECORD_HEADER_BYTES < bytes; at += 2) {
        if (memcmp(data + at, "EPMR\1\0", 6) == 0 && data[at + 6] == role && data[at + 7] == kind &&
                data[at + 16] == number && found.n < 16) {
            found.at[found.n++] = (off_t)at;
        }
    }
    free(data);
    assert_true(found.n > 0);
    return found;
}

static void flip(const char *file, const places *p, size_t offset, uint8_t mask)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s", folder, file);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    for (size_t i = 0; i < p->n; i++) {
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, p->at[i] + (off_t)offset), 1);
        byte ^= mask;
        assert_int_equal(pwrite(fd, &byte, 1, p->at[i] + (off_t)offset), 1);
    }
    (void)close(fd);
}

static uint64_t failures(store *s)
{
    store_stats st;
    store_get_stats(s, &st);
    return st.checksum_failures;
}

static status never(void *ctx, const void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
    ++*(int *)ctx;
    return ST_OK;
}

static void expect_noticed(
        store *s, const char *file, const places *p, store_kind kind, uint64_t number, size_t offset)
{
    store_key key = util_key(kind, "s", number);
    store_check_result r;
    err e = {0};
    int visits = 0;
    for (int bit = 0; bit < 8; bit += 7) {
        uint64_t before = failures(s);
        flip(file, p, offset, (uint8_t)(1u << bit));
        status result = store_read(s, &key, never, &visits, &e);
        if (result != ST_ERR_CORRUPT) {
            (void)fprintf(stderr, "%s byte %zu bit %d: %s\n", file, offset, bit, status_name(result));
        }
        assert_int_equal(result, ST_ERR_CORRUPT);
        assert_int_equal(visits, 0);
        assert_int_equal(failures(s), before + 1);
        assert_int_equal(store_check(s, NULL, NULL, &r, &e), ST_OK);
        assert_int_equal(r.damaged, 1);
        assert_int_equal(util_expect(s, kind, "s", number + 1, "healthy", 7), ST_OK);
        flip(file, p, offset, (uint8_t)(1u << bit));
        assert_int_equal(store_read(s, &key, never, &visits, &e), ST_OK);
        visits = 0;
    }
}

static void test_every_flipped_bit_is_noticed(void **state)
{
    (void)state;
    enum { BYTES = 9000, NAMES = 6 + 1 };
    store *s = util_open(folder, 0);
    static const store_kind kinds[] = {STORE_TURN, STORE_COLUMN, STORE_NAME};
    for (size_t i = 0; i < 3; i++) {
        size_t bytes = kinds[i] == STORE_NAME ? 100 : BYTES;
        assert_int_equal(util_put_seeded(s, kinds[i], "s", 7, bytes, i), ST_OK);
        assert_int_equal(util_put(s, kinds[i], "s", 8, "healthy", 7), ST_OK);
    }
    for (size_t i = 0; i < 3; i++) {
        bool is_inline = kinds[i] == STORE_NAME;
        places entry = find_records("index/data.mdb", is_inline ? ROLE_INLINE : ROLE_POINTER, kinds[i], 7);
        size_t entry_bytes = RECORD_HEADER_BYTES + NAMES + (is_inline ? 100u : 0u);
        for (size_t at = 0; at < entry_bytes; at++) {
            expect_noticed(s, "index/data.mdb", &entry, kinds[i], 7, at);
        }
        if (is_inline) {
            continue;
        }
        const char *file = kinds[i] == STORE_COLUMN ? "blobs/data.mdb" : "index/data.mdb";
        places payload = find_records(file, ROLE_PAYLOAD, kinds[i], 7);
        assert_int_equal(payload.n, 1);
        assert_int_equal(payload.at[0] % 4096, 16);
        for (size_t at = 0; at < RECORD_HEADER_BYTES + NAMES + 4; at++) {
            expect_noticed(s, file, &payload, kinds[i], 7, at);
        }
        static const size_t further[] = {2000, 4079, 4080, 4081, 4080 + BYTES / 2, 4080 + BYTES - 1};
        for (size_t j = 0; j < 6; j++) {
            expect_noticed(s, file, &payload, kinds[i], 7, further[j]);
        }
    }
    assert_int_equal(util_check(s), 0);
    store_close(s);
}

static status note_damaged(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    uint64_t *sum = ctx;
    *sum += data == NULL ? 1000 + key->number : 1;
    assert_true(data != NULL || bytes == 0);
    return ST_OK;
}

static void test_walk_passes_damage_as_null(void **state)
{
    (void)state;
    store *s = util_open(folder, 0);
    for (uint64_t i = 0; i < 5; i++) {
        assert_int_equal(util_put_seeded(s, STORE_TURN, "s", i, i == 4 ? 0 : 50, i), ST_OK);
    }
    places p = find_records("index/data.mdb", ROLE_PAYLOAD, STORE_TURN, 3);
    flip("index/data.mdb", &p, 4080, 1);
    uint64_t sum = 0;
    assert_int_equal(store_walk(s, STORE_TURN, "tenant", "s", NULL, NULL, note_damaged, &sum, NULL), ST_OK);
    assert_int_equal(sum, 4 + 1003);
    assert_int_equal(failures(s), 1);
    /* It is replaced like any other. */
    assert_int_equal(util_put(s, STORE_TURN, "s", 3, "new", 3), ST_OK);
    assert_int_equal(util_expect(s, STORE_TURN, "s", 3, "new", 3), ST_OK);
    assert_int_equal(util_check(s), 0);
    store_close(s);
}

/* Two values in each other's place are whole, but not what was asked for. */
static void test_swapped_values_are_noticed(void **state)
{
    (void)state;
    uint8_t a[4096 * 2 - 16], b[4096 * 2 - 16];
    store *s = util_open(folder, 0);
    assert_int_equal(util_put(s, STORE_COLUMN, "s", 1, "aaaa", 4), ST_OK);
    assert_int_equal(util_put(s, STORE_COLUMN, "s", 2, "bbbb", 4), ST_OK);
    places pa = find_records("blobs/data.mdb", ROLE_PAYLOAD, STORE_COLUMN, 1);
    places pb = find_records("blobs/data.mdb", ROLE_PAYLOAD, STORE_COLUMN, 2);
    assert_int_equal(pa.n + pb.n, 2);
    assert_int_equal(pread(s->blobs.fd, a, sizeof a, pa.at[0]), sizeof a);
    assert_int_equal(pread(s->blobs.fd, b, sizeof b, pb.at[0]), sizeof b);
    assert_int_equal(pwrite(s->blobs.fd, a, sizeof a, pb.at[0]), sizeof a);
    assert_int_equal(util_expect(s, STORE_COLUMN, "s", 2, "bbbb", 4), ST_ERR_CORRUPT);
    assert_int_equal(util_expect(s, STORE_COLUMN, "s", 1, "aaaa", 4), ST_OK);
    assert_int_equal(pwrite(s->blobs.fd, b, sizeof b, pb.at[0]), sizeof b);
    assert_int_equal(util_check(s), 0);
    /* Even when the payload is the same: it says itself what it belongs to. */
    assert_int_equal(util_put(s, STORE_COLUMN, "s", 3, "aaaa", 4), ST_OK);
    places pc = find_records("blobs/data.mdb", ROLE_PAYLOAD, STORE_COLUMN, 3);
    assert_int_equal(pwrite(s->blobs.fd, a, sizeof a, pc.at[0]), sizeof a);
    assert_int_equal(util_expect(s, STORE_COLUMN, "s", 3, "aaaa", 4), ST_ERR_CORRUPT);
    store_close(s);
}

/* ---- through a second LMDB handle ---- */

static void edit_table(const char *env_name, const char *table, void (*edit)(MDB_txn *txn, MDB_dbi dbi))
{
    char path[PATH_MAX + 32];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    (void)snprintf(path, sizeof path, "%s/%s", folder, env_name);
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 4), 0);
    assert_int_equal(mdb_env_open(env, path, 0, 0600), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, table, 0, &dbi), 0);
    edit(txn, dbi);
    assert_int_equal(mdb_txn_commit(txn), 0);
    mdb_env_close(env);
}

static void shorten_all(MDB_txn *txn, MDB_dbi dbi)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    uint8_t copy[20000];
    assert_int_equal(mdb_cursor_open(txn, dbi, &cursor), 0);
    size_t cut = 0;
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
        static const size_t left[] = {1, 64, 4079, 4080, 4081, 12000};
        size_t bytes = left[cut++ % 6];
        assert_true(value.mv_size <= sizeof copy);
        memset(copy, 0, sizeof copy);
        memcpy(copy, value.mv_data, value.mv_size);
        value = (MDB_val){.mv_size = bytes == 12000 ? value.mv_size + 1 : bytes, .mv_data = copy};
        uint8_t key_copy[512];
        memcpy(key_copy, key.mv_data, key.mv_size);
        MDB_val same_key = {.mv_size = key.mv_size, .mv_data = key_copy};
        assert_int_equal(mdb_cursor_put(cursor, &same_key, &value, MDB_CURRENT), 0);
    }
    mdb_cursor_close(cursor);
}

static void delete_first(MDB_txn *txn, MDB_dbi dbi)
{
    MDB_cursor *cursor;
    MDB_val key, value;
    assert_int_equal(mdb_cursor_open(txn, dbi, &cursor), 0);
    assert_int_equal(mdb_cursor_get(cursor, &key, &value, MDB_FIRST), 0);
    assert_int_equal(mdb_cursor_del(cursor, 0), 0);
    mdb_cursor_close(cursor);
}

static void add_nonsense(MDB_txn *txn, MDB_dbi dbi)
{
    MDB_val key = {.mv_size = 3, .mv_data = (void *)(uintptr_t) "\2\5x"},
            value = {.mv_size = 2, .mv_data = (void *)(uintptr_t) "hm"};
    assert_int_equal(mdb_put(txn, dbi, &key, &value, 0), 0);
}

static void fill(store_kind kind)
{
    store *s = util_open(folder, 0);
    for (uint64_t i = 0; i < 6; i++) {
        assert_int_equal(util_put_seeded(s, kind, "s", i, 9000, i), ST_OK);
    }
    store_close(s);
}

static void test_values_of_another_length_are_noticed(void **state)
{
    (void)state;
    static const store_kind kinds[] = {STORE_TURN, STORE_COLUMN};
    fill(kinds[0]);
    fill(kinds[1]);
    edit_table("index", "values", shorten_all);
    edit_table("blobs", NULL, shorten_all);
    store *s = util_open(folder, 0);
    for (uint64_t i = 0; i < 6; i++) {
        assert_int_equal(util_expect_seeded(s, kinds[0], "s", i, 9000, i), ST_ERR_CORRUPT);
        assert_int_equal(util_expect_seeded(s, kinds[1], "s", i, 9000, i), ST_ERR_CORRUPT);
    }
    store_check_result r;
    assert_int_equal(store_check(s, NULL, NULL, &r, NULL), ST_OK);
    assert_int_equal(r.damaged, 12);
    assert_int_equal(r.records, 6);
    assert_int_equal(r.blobs, 6);
    store_batch *b = store_batch_create();
    assert_int_equal(store_batch_erase_session(b, "tenant", "s"), ST_OK);
    assert_int_equal(store_commit(s, b, NULL), ST_OK);
    store_batch_free(b);
    assert_int_equal(util_check(s), 0);
    store_close(s);
}

static void test_halves_are_dropped_at_open(void **state)
{
    (void)state;
    store_options o = {.path = folder, .read_only = true};
    store_stats st;
    store_check_result r;
    store *s;
    fill(STORE_TURN);
    fill(STORE_COLUMN);
    edit_table("blobs", NULL, delete_first);      /* column 0: entry without blob */
    edit_table("index", "entries", delete_first); /* turn 0: value without entry */
    assert_int_equal(store_open(&o, &s, NULL), ST_OK);
    assert_int_equal(store_check(s, NULL, NULL, &r, NULL), ST_OK); /* reported, not touched, by a reader */
    assert_int_equal(r.damaged, 1);
    assert_int_equal(r.orphans, 1);
    assert_int_equal(util_expect_seeded(s, STORE_COLUMN, "s", 0, 9000, 0), ST_ERR_CORRUPT);
    store_close(s);
    s = util_open(folder, 0);
    store_get_stats(s, &st);
    assert_int_equal(st.dropped_at_open, 2);
    assert_int_equal(util_expect_seeded(s, STORE_COLUMN, "s", 0, 9000, 0), ST_ERR_NOT_FOUND);
    assert_int_equal(util_expect_seeded(s, STORE_TURN, "s", 0, 9000, 0), ST_ERR_NOT_FOUND);
    assert_int_equal(util_expect_seeded(s, STORE_COLUMN, "s", 5, 9000, 5), ST_OK);
    assert_int_equal(util_expect_seeded(s, STORE_TURN, "s", 5, 9000, 5), ST_OK);
    assert_int_equal(util_check(s), 0);
    store_close(s);
    s = util_open(folder, 0);
    store_get_stats(s, &st);
    assert_int_equal(st.dropped_at_open, 0);
    store_close(s);
}

/* A value that looks abandoned may be that of an entry that cannot be read: it must not be thrown away. */
static void test_nothing_is_dropped_beside_a_damaged_entry(void **state)
{
    (void)state;
    store_check_result r;
    fill(STORE_TURN);
    places p = find_records("index/data.mdb", ROLE_POINTER, STORE_TURN, 3);
    flip("index/data.mdb", &p, 24, 4);
    edit_table("index", "entries", add_nonsense);
    store *s = util_open(folder, 0);
    assert_int_equal(store_check(s, NULL, NULL, &r, NULL), ST_OK);
    assert_int_equal(r.damaged, 2);
    assert_int_equal(r.orphans, 1);
    assert_int_equal(util_expect_seeded(s, STORE_TURN, "s", 3, 9000, 3), ST_ERR_CORRUPT);
    store_close(s);
    p = find_records("index/data.mdb", ROLE_POINTER, STORE_TURN, 3);
    flip("index/data.mdb", &p, 24, 4); /* repaired by hand */
    s = util_open(folder, 0);
    assert_int_equal(util_expect_seeded(s, STORE_TURN, "s", 3, 9000, 3), ST_OK);
    store_close(s);
}

/* ---- files ---- */

static void test_cut_files(void **state)
{
    (void)state;
    char path[PATH_MAX + 32];
    static const char *const files[] = {"index/data.mdb", "blobs/data.mdb"};
    for (size_t i = 0; i < 2; i++) {
        for (off_t left = 0; left < 60000; left += left < 8192 ? 4095 : 9001) {
            fill(STORE_TURN);
            fill(STORE_COLUMN);
            (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
            assert_int_equal(truncate(path, left), 0);
            store_options o = {.path = folder, .fingerprint = util_fingerprint, .read_only = true};
            store *s = NULL;
            err e = {0};
            status result = store_open(&o, &s, &e);
            assert_true(result != ST_OK);
            o.read_only = false;
            result = store_open(&o, &s, &e);
            if (result == ST_OK) {
                int whole = 0;
                for (uint64_t n = 0; n < 6; n++) {
                    status turn = util_expect_seeded(s, STORE_TURN, "s", n, 9000, n);
                    status column = util_expect_seeded(s, STORE_COLUMN, "s", n, 9000, n);
                    assert_true(turn != ST_ERR_MISMATCH && column != ST_ERR_MISMATCH);
                    whole += turn == ST_OK && column == ST_OK;
                }
                assert_true(whole < 6 || left == 0); /* an empty file is a new one */
                store_close(s);
            }
            util_remove(folder);
            assert_int_equal(mkdir(folder, 0700), 0);
        }
    }
}

static void test_format_file(void **state)
{
    (void)state;
    char path[PATH_MAX + 32], text[200];
    fill(STORE_TURN);
    size_t bytes;
    uint8_t *good = util_slurp(folder, "format", &bytes);
    (void)snprintf(path, sizeof path, "%s/format", folder);
    store_options o = {.path = folder, .fingerprint = util_fingerprint};
    store *s = NULL;
    err e;
    for (size_t i = 0; i < bytes; i++) {
        int fd = open(path, O_WRONLY);
        uint8_t bad = good[i] ^ 1;
        assert_int_equal(pwrite(fd, &bad, 1, (off_t)i), 1);
        assert_int_equal(store_open(&o, &s, &e), ST_ERR_CORRUPT);
        assert_int_equal(store_peek_fingerprint(folder, text, sizeof text, &e), ST_ERR_CORRUPT);
        assert_int_equal(pwrite(fd, &good[i], 1, (off_t)i), 1);
        (void)close(fd);
    }
    for (size_t left = 0; left < bytes; left++) {
        assert_int_equal(truncate(path, (off_t)left), 0);
        assert_int_equal(store_open(&o, &s, &e), ST_ERR_CORRUPT);
        int fd = open(path, O_WRONLY);
        assert_int_equal(pwrite(fd, good, bytes, 0), bytes);
        (void)close(fd);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(store_open(&o, &s, &e), ST_ERR_CORRUPT); /* data without a name is not taken over */
    free(good);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
            TEST(test_every_flipped_bit_is_noticed),
            TEST(test_walk_passes_damage_as_null),
            TEST(test_swapped_values_are_noticed),
            TEST(test_values_of_another_length_are_noticed),
            TEST(test_halves_are_dropped_at_open),
            TEST(test_nothing_is_dropped_beside_a_damaged_entry),
            TEST(test_cut_files),
            TEST(test_format_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
