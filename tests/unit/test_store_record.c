/* record: golden bytes of keys, headers and the format file, computed by hand and by an independent XXH3; rejects. */
#include "test_store_util.h"

/* Made by tests/data/store/make_golden.py, which has its own idea of the layout and its own XXH3. */
static uint8_t *golden(const char *name, size_t *bytes)
{
    return util_slurp(EPIMEM_SOURCE_DIR "/tests/data/store", name, bytes);
}

static record_fields fields(record_role role)
{
    return (record_fields){.role = role,
            .kind = role == ROLE_INLINE ? STORE_NAME : STORE_COLUMN,
            .tenant_bytes = 4,
            .session_bytes = 5,
            .tenant = (const uint8_t *)"acme",
            .session = (const uint8_t *)"\xff\x01/ \x7f",
            .number = 0x0102030405060708u,
            .id = role == ROLE_INLINE ? 0 : 0x1122,
            .payload_bytes = 7,
            .payload_hash = record_hash("payload", 7),
            .fingerprint = record_hash("fingerprint text", 16)};
}

static void test_golden_records(void **state)
{
    (void)state;
    static const char *const names[] = {"inline.bin", "pointer.bin", "payload.bin"};
    for (int role = ROLE_INLINE; role <= ROLE_PAYLOAD; role++) {
        size_t bytes;
        uint8_t *expected = golden(names[role - 1], &bytes), made[8192];
        record_fields f = fields((record_role)role), parsed;
        assert_int_equal(record_size(&f), bytes);
        record_write_header(&f, made);
        if (role != ROLE_POINTER) {
            memcpy(made + record_payload_at(&f), "payload", 7);
        }
        assert_memory_equal(made, expected, bytes);
        assert_null(record_parse(expected, bytes, &parsed));
        assert_true(record_matches_key(&parsed, &f));
        assert_int_equal(parsed.role, role);
        assert_int_equal(parsed.id, f.id);
        assert_true(role == ROLE_POINTER || record_payload(&parsed, expected) != NULL);
        for (size_t left = 0; left < bytes; left++) { /* every cut, and one byte more */
            assert_non_null(record_parse(expected, left, &parsed));
        }
        memcpy(made, expected, bytes);
        made[bytes] = 0;
        assert_non_null(record_parse(made, bytes + 1, &parsed));
        free(expected);
    }
}

static void test_golden_key(void **state)
{
    (void)state;
    static const uint8_t expected[] = "\x05\x04"
                                      "acme\x05\xff\x01/ \x7f\x01\x02\x03\x04\x05\x06\x07\x08";
    store_key key = {.kind = STORE_COLUMN,
            .tenant = "acme",
            .session = "\xff\x01/ \x7f",
            .number = 0x0102030405060708u};
    record_key k;
    record_fields f, want = fields(ROLE_POINTER);
    assert_int_equal(record_key_encode(&key, &k), ST_OK);
    assert_int_equal(k.size, sizeof expected - 1);
    assert_memory_equal(k.bytes, expected, k.size);
    assert_true(record_key_decode(k.bytes, k.size, &f));
    assert_true(record_matches_key(&f, &want));
    for (size_t left = 0; left < k.size; left++) {
        assert_false(record_key_decode(k.bytes, left, &f));
    }
}

static void test_golden_format(void **state)
{
    (void)state;
    size_t bytes, text_bytes;
    uint8_t *expected = golden("format", &bytes);
    char made[FORMAT_FILE_BYTES_MAX];
    const char *text;
    assert_int_equal(format_write("fingerprint text", 16, made), bytes);
    assert_memory_equal(made, expected, bytes);
    assert_null(format_parse(expected, bytes, &text, &text_bytes));
    assert_int_equal(text_bytes, 16);
    assert_memory_equal(text, "fingerprint text", 16);
    free(expected);
}

/* Headers with a right hash around a wrong value. */
static void test_rejects(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t value;
    } wrong[] = {{4, 2}, {6, 0}, {6, 4}, {6, 2}, {7, 0}, {7, 8}, {8, 0}, {8, 3}, {8, 200}, {9, 0}, {9, 129},
            {10, 1}, {12, 64}, {12, 74}, {32, 6}, {32, 8}, {36, 1}, {39, 255}, {65, 0}, {70, 0}};
    size_t bytes;
    uint8_t *good = golden("inline.bin", &bytes), bad[200];
    record_fields f;
    assert_true(bytes < sizeof bad);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(bad, good, bytes);
        bad[wrong[i].at] = wrong[i].value;
        record_seal_header(bad, bytes);
        if (record_parse(bad, bytes, &f) == NULL) {
            fail_msg("byte %zu set to %d is accepted", wrong[i].at, wrong[i].value);
        }
    }
    memcpy(bad, good, bytes);
    record_seal_header(bad, bytes);
    assert_memory_equal(bad, good, bytes);
    bad[bytes - 1] ^= 1;
    assert_null(record_parse(bad, bytes, &f));
    assert_null(record_payload(&f, bad));
    free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(test_golden_records),
            cmocka_unit_test(test_golden_key),
            cmocka_unit_test(test_golden_format),
            cmocka_unit_test(test_rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
