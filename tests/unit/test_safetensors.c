/* The safetensors reader: what is in a file, every lie a header can tell, memory running out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "agent/encoder_internal.h"

enum { FILE_BYTES_MAX = 4096 };

/* A file made of a header and `data_bytes` bytes 0, 1, 2... */
typedef struct sample {
    _Alignas(64) uint8_t bytes[FILE_BYTES_MAX];
    size_t size;
} sample;

static void make(sample *s, const char *header, size_t data_bytes)
{
    size_t n = strlen(header);
    memset(s->bytes, 0, 8);
    s->bytes[0] = (uint8_t)n;
    s->bytes[1] = (uint8_t)(n >> 8);
    memcpy(s->bytes + 8, header, n);
    for (size_t i = 0; i < data_bytes; i++) {
        s->bytes[8 + n + i] = (uint8_t)i;
    }
    s->size = 8 + n + data_bytes;
}

#define SAMPLE_HEADER                                                                                        \
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[8,16]" \
    "},"                                                                                                     \
    "\"a\":{\"shape\":[2],\"data_offsets\":[0,8],\"dtype\":\"I32\"},"                                        \
    "\"h\\u00e9\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[16,18]}}"

/* The same with spaces after the header until the data start `past` bytes after a multiple of 8. */
static void make_aligned(sample *s, const char *header, size_t data_bytes, size_t past)
{
    char text[FILE_BYTES_MAX];
    size_t n = strlen(header);
    memcpy(text, header, n);
    while (n % 8 != past) {
        text[n++] = ' ';
    }
    text[n] = '\0';
    make(s, text, data_bytes);
}

static void reads_what_is_there(void **state)
{
    (void)state;
    sample s;
    safetensors *st = NULL;
    safetensor t;
    err e = {0};
    make_aligned(&s, SAMPLE_HEADER, 18, 0);
    assert_int_equal(safetensors_open_memory(s.bytes, s.size, "mem", &st, &e), ST_OK);

    assert_int_equal(safetensors_find(st, "b", &t, &e), ST_OK);
    assert_int_equal(t.type, KRN_F32);
    assert_int_equal(t.rank, 2);
    assert_int_equal(t.size[0], 2);
    assert_int_equal(t.size[1], 1);
    assert_int_equal(t.size[3], 1);
    assert_int_equal(t.bytes, 8);
    assert_int_equal(((const uint8_t *)t.data)[0], 8);

    assert_int_equal(safetensors_find(st, "h\xc3\xa9", &t, &e), ST_OK);
    assert_int_equal(t.rank, 0);
    assert_int_equal(t.bytes, 2);

    assert_int_equal(safetensors_find(st, "a", &t, &e), ST_ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "I32"));
    assert_int_equal(safetensors_find(st, "c", &t, &e), ST_ERR_NOT_FOUND);
    assert_non_null(strstr(e.text, "mem"));
    assert_non_null(strstr(e.text, "\"c\""));
    assert_int_equal(safetensors_find(st, "__metadata__", &t, &e), ST_ERR_NOT_FOUND);
    safetensors_close(st);
}

static void refuses_unaligned_tensor(void **state)
{
    (void)state;
    sample s;
    safetensors *st = NULL;
    safetensor t;
    err e = {0};
    make_aligned(&s, "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 1);
    assert_int_equal(safetensors_open_memory(s.bytes, s.size, "mem", &st, &e), ST_OK);
    assert_int_equal(safetensors_find(st, "x", &t, &e), ST_ERR_UNSUPPORTED);
    safetensors_close(st);
}

static void empty_header_is_an_empty_file(void **state)
{
    (void)state;
    sample s;
    safetensors *st = NULL;
    err e = {0};
    make(&s, "{}", 0);
    assert_int_equal(safetensors_open_memory(s.bytes, s.size, "mem", &st, &e), ST_OK);
    safetensors_close(st);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define GOOD                     T("F32", "[2]", "[0,8]")

typedef struct lie {
    const char *header;
    size_t data_bytes;
    const char *word; /* in the error */
} lie;

static const lie lies[] = {
        {"", 8, "expected '{'"},
        {"[]", 0, "expected '{'"},
        {"{", 0, "expected '\"'"},
        {"{\"x\":" GOOD, 8, "expected '}'"},
        {"{\"x\":" GOOD "} x", 8, "something after the end"},
        {"{\"x\":" GOOD ",}", 8, "expected '\"'"},
        {"{\"x\":" GOOD ",\"x\":" T("F32", "[1]", "[8,12]") "}", 12, "twice"},
        {"{\"x\":" T("F99", "[2]", "[0,8]") "}", 8, "unknown dtype"},
        {"{\"x\":" T("F32", "[2]", "[0,4]") "}", 4, "need 8 bytes"},
        {"{\"x\":" T("F32", "[2]", "[0,8]") "}", 4, "[0, 8] in 4 bytes"},
        {"{\"x\":" T("F32", "[2]", "[8,0]") "}", 8, "[8, 0]"},
        {"{\"x\":" T("F32", "[2]", "[4,12]") "}", 12, "starts at 4"},
        {"{\"x\":" GOOD ",\"y\":" T("F32", "[2]", "[4,12]") "}", 12, "starts at 4"},
        {"{\"x\":" GOOD ",\"y\":" T("F32", "[2]", "[0,8]") "}", 8, "starts at 0"},
        {"{\"x\":" GOOD "}", 9, "end at 8"},
        {"{\"x\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "past 64 bits"},
        {"{\"x\":" T("F32", "[4611686018427387904,4]", "[0,0]") "}", 0, "past 64 bits"},
        {"{\"x\":" T("F32", "[18446744073709551616]", "[0,8]") "}", 8, "too large"},
        {"{\"x\":" T("F32", "[-2]", "[0,8]") "}", 8, "whole number"},
        {"{\"x\":" T("F32", "[2.0]", "[0,8]") "}", 8, "expected ']'"},
        {"{\"x\":" T("F32", "[02]", "[0,8]") "}", 8, "whole number"},
        {"{\"x\":" T("F32", "[2]", "[0,8,8]") "}", 8, "too many"},
        {"{\"x\":" T("F32", "[2]", "[0]") "}", 8, "two numbers"},
        {"{\"x\":" T("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "too many"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "needs dtype"},
        {"{\"x\":{}}", 8, "expected '\"'"},
        {"{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "twice"},
        {"{\"x\":{\"dtype\":\"F32\",\"stride\":[2],\"data_offsets\":[0,8]}}", 8, "unknown member"},
        {"{\"x\\u0000\":" GOOD "}", 8, "NUL"},
        {"{\"x\\ud800\":" GOOD "}", 8, "surrogate"},
        {"{\"x\\udc00\":" GOOD "}", 8, "surrogate"},
        {"{\"x\\q\":" GOOD "}", 8, "escape"},
        {"{\"x\\u12g4\":" GOOD "}", 8, "hexadecimal"},
        {"{\"x\n\":" GOOD "}", 8, "control character"},
        {"{\"x\xff\":" GOOD "}", 8, "UTF-8"},
        {"{\"__metadata__\":{},\"__metadata__\":{},\"x\":" GOOD "}", 8, "twice"},
        {"{\"__metadata__\":{\"n\":1},\"x\":" GOOD "}", 8, "expected '\"'"},
        {"{\"__metadata__\":\"n\",\"x\":" GOOD "}", 8, "expected '{'"},
};

static void refuses_every_lie(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        sample s;
        safetensors *st = NULL;
        err e = {0};
        make(&s, lies[i].header, lies[i].data_bytes);
        if (safetensors_open_memory(s.bytes, s.size, "file.st", &st, &e) != ST_ERR_FORMAT) {
            fail_msg("lie %zu passed: %s", i, lies[i].header);
        }
        assert_non_null(strstr(e.text, "file.st"));
        if (strstr(e.text, lies[i].word) == NULL) {
            fail_msg("lie %zu: \"%s\" does not say \"%s\"", i, e.text, lies[i].word);
        }
    }
}

static void refuses_every_cut(void **state)
{
    (void)state;
    sample s;
    make(&s, SAMPLE_HEADER, 18);
    for (size_t size = 0; size < s.size; size++) {
        safetensors *st = NULL;
        err e = {0};
        assert_int_equal(safetensors_open_memory(s.bytes, size, "cut", &st, &e), ST_ERR_FORMAT);
    }
    for (int byte = 2; byte < 8; byte++) { /* a header length past the file */
        safetensors *st = NULL;
        err e = {0};
        s.bytes[byte] = 0xff;
        assert_int_equal(safetensors_open_memory(s.bytes, s.size, "cut", &st, &e), ST_ERR_FORMAT);
        s.bytes[byte] = 0;
    }
}

static void name_longer_than_the_limit(void **state)
{
    (void)state;
    sample s;
    char header[1024];
    for (int length = 256; length <= 257; length++) {
        safetensors *st = NULL;
        err e = {0};
        (void)snprintf(header, sizeof header, "{\"%0*d\":" GOOD "}", length, 0);
        make(&s, header, 8);
        status expected = length == 256 ? ST_OK : ST_ERR_FORMAT;
        assert_int_equal(safetensors_open_memory(s.bytes, s.size, "long", &st, &e), expected);
        safetensors_close(st);
        st = NULL;
    }
}

static void survives_every_failed_allocation(void **state)
{
    (void)state;
    sample s;
    status result = ST_ERR_MEMORY;
    make(&s, SAMPLE_HEADER, 18);
    for (long n = 0; result != ST_OK; n++) {
        safetensors *st = NULL;
        err e = {0};
        base_fail_allocation(n);
        result = safetensors_open_memory(s.bytes, s.size, "oom", &st, &e);
        base_fail_allocation(-1);
        assert_true(result == ST_OK ? n >= 5 : result == ST_ERR_MEMORY && e.text[0] != '\0');
        safetensors_close(st);
    }
}

static void missing_file_is_named(void **state)
{
    (void)state;
    safetensors *st = NULL;
    err e = {0};
    assert_int_not_equal(safetensors_open("/nonexistent/model.safetensors", &st, &e), ST_OK);
    assert_non_null(strstr(e.text, "/nonexistent/model.safetensors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(reads_what_is_there),
            cmocka_unit_test(refuses_unaligned_tensor),
            cmocka_unit_test(empty_header_is_an_empty_file),
            cmocka_unit_test(refuses_every_lie),
            cmocka_unit_test(refuses_every_cut),
            cmocka_unit_test(name_longer_than_the_limit),
            cmocka_unit_test(survives_every_failed_allocation),
            cmocka_unit_test(missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
