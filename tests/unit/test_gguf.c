/* The GGUF reader: 27 damaged files are refused by name, quickly and cheaply; a good file reads as written; and a
 * good file damaged at any byte is refused or read, never worse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "agent/gguf_internal.h"

#define CORPUS EPIMEM_SOURCE_DIR "/tests/fuzz/corpus/gguf/"

typedef struct damaged {
    const char *file;
    const char *words[5]; /* the message holds one of them */
} damaged;

static const damaged cases[] = {
        {"01-alignment-zero", {"general.alignment"}},
        {"02-alignment-24", {"general.alignment"}},
        {"03-alignment-2-to-31", {"general.alignment"}},
        {"04-alignment-is-text", {"general.alignment"}},
        {"05-size-zero", {"output_norm.weight"}},
        {"06-sizes-wrap-around", {"token_embd.weight"}},
        {"07-size-negative", {"output_norm.weight"}},
        {"08-rank-9", {"output_norm.weight"}},
        {"09-rank-4-billion", {"output_norm.weight"}},
        {"10-key-length-2-to-63", {"key", "length", "offset 24"}},
        {"11-value-length-past-end", {"general.architecture"}},
        {"12-key-count-2-to-40", {"1099511627776"}},
        {"13-tensor-count-2-to-61", {"2305843009213693952"}},
        {"14-array-count-wraps", {"x.a"}},
        {"15-array-nested-1000-deep", {"x.deep"}},
        {"16-unknown-value-type", {"x.a"}},
        {"17-unknown-tensor-type", {"output_norm.weight"}},
        {"18-offset-past-end", {"output_norm.weight"}},
        {"19-offset-plus-size-wraps", {"output_norm.weight"}},
        {"20-data-cut-short", {"output_norm.weight"}},
        {"21-same-tensor-twice", {"output_norm.weight"}},
        {"22-same-key-twice", {"general.architecture"}},
        {"23-version-0", {"version"}},
        {"24-big-endian-version", {"endian"}},
        {"25-only-the-magic", {"truncated"}},
        {"26-empty", {"empty"}},
        {"27-not-a-model", {"magic"}},
};

static long peak_kib(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

static void damaged_files_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        char name[80];
        err e = {0};
        gguf *g = NULL;
        (void)snprintf(path, sizeof path, "%s%s.gguf", CORPUS, cases[i].file);
        (void)snprintf(name, sizeof name, "%s.gguf: ", cases[i].file);
        int64_t start_us = base_monotonic_us();
        long before_kib = peak_kib();
        assert_int_not_equal(gguf_open(path, &g, &e), ST_OK);
        assert_null(g);
        assert_true(base_monotonic_us() - start_us < 2000000);
        assert_true(peak_kib() - before_kib < 65536);
        bool named = false;
        for (int w = 0; cases[i].words[w] != NULL; w++) {
            named = named || strstr(e.text, cases[i].words[w]) != NULL;
        }
        if (!named || strstr(e.text, name) == NULL) {
            fail_msg("%s: \"%s\"", cases[i].file, e.text);
        }
    }
}

/* ---- a file made here ---- */

static void put(base_buf *b, uint64_t value, size_t bytes)
{
    uint8_t le[8];
    for (size_t i = 0; i < 8; i++) {
        le[i] = (uint8_t)(value >> (8 * i));
    }
    assert_int_equal(base_buf_append(b, le, bytes), ST_OK);
}

static void put_text(base_buf *b, const char *text)
{
    put(b, strlen(text), 8);
    assert_int_equal(base_buf_append(b, text, strlen(text)), ST_OK);
}

static void put_f32(base_buf *b, float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    put(b, u, 4);
}

static void put_tensor(
        base_buf *b, const char *name, uint32_t type, uint64_t cols, uint64_t rows, uint64_t offset)
{
    put_text(b, name);
    put(b, 2, 4);
    put(b, cols, 8);
    put(b, rows, 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static base_buf make_file(uint32_t version)
{
    base_buf b = {.max = 1 << 16};
    assert_int_equal(base_buf_append(&b, "GGUF", 4), ST_OK);
    put(&b, version, 4);
    put(&b, 2, 8);
    put(&b, 8, 8);
    put_text(&b, "z.u8"), put(&b, 0, 4), put(&b, 200, 1);
    put_text(&b, "a.i32"), put(&b, 5, 4), put(&b, (uint32_t)-7, 4);
    put_text(&b, "m.f32"), put(&b, 6, 4), put_f32(&b, 0.5f);
    put_text(&b, "m.bool"), put(&b, 7, 4), put(&b, 1, 1);
    put_text(&b, "m.text"), put(&b, 8, 4), put_text(&b, "hello");
    put_text(&b, "m.names"), put(&b, 9, 4), put(&b, 8, 4), put(&b, 2, 8), put_text(&b, "one"),
            put_text(&b, "");
    put_text(&b, "m.ints"), put(&b, 9, 4), put(&b, 5, 4), put(&b, 2, 8), put(&b, 3, 4),
            put(&b, (uint32_t)-4, 4);
    put_text(&b, "m.u64"), put(&b, 10, 4), put(&b, UINT64_MAX, 8);
    put_tensor(&b, "second", 0, 3, 2, 32);
    put_tensor(&b, "first", 8, 32, 1, 0);
    while (b.size % 32 != 0) {
        put(&b, 0, 1);
    }
    size_t start = b.size;
    for (unsigned i = 0; i < 34; i++) {
        put(&b, i, 1);
    }
    b.size =
            start + 32; /* Q8_0: 34 bytes would overlap the next; the reader does not mind who shares bytes */
    for (unsigned i = 0; i < 6; i++) {
        put_f32(&b, (float)i);
    }
    return b;
}

static void a_good_file_reads_as_written(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        base_buf b = make_file(version);
        err e = {0};
        gguf *g = NULL;
        uint64_t u = 0;
        double f = 0;
        bool flag = false;
        gguf_string text;
        const gguf_string *names;
        const int32_t *ints;
        size_t n;
        assert_int_equal(gguf_open_memory(b.data, b.size, "dir/good.gguf", &g, &e), ST_OK);
        assert_int_equal(gguf_get_u64(g, "z.u8", &u, &e), ST_OK);
        assert_int_equal(u, 200);
        assert_int_equal(gguf_get_u64(g, "m.u64", &u, &e), ST_OK);
        assert_true(u == UINT64_MAX);
        assert_int_equal(gguf_get_u64(g, "a.i32", &u, &e), ST_ERR_FORMAT);
        assert_non_null(strstr(e.text, "good.gguf: key a.i32 is -7"));
        assert_int_equal(gguf_get_u64(g, "none", &u, &e), ST_ERR_NOT_FOUND);
        assert_non_null(strstr(e.text, "none"));
        assert_int_equal(gguf_get_f64(g, "m.f32", &f, &e), ST_OK);
        assert_true(f == 0.5);
        assert_int_equal(gguf_get_f64(g, "m.text", &f, &e), ST_ERR_FORMAT);
        assert_non_null(strstr(e.text, "key m.text is string, must be F32"));
        assert_int_equal(gguf_get_bool(g, "m.bool", &flag, &e), ST_OK);
        assert_true(flag);
        assert_int_equal(gguf_get_string(g, "m.text", &text, &e), ST_OK);
        assert_int_equal(text.bytes, 5);
        assert_memory_equal(text.data, "hello", 5);
        assert_int_equal(gguf_get_string_array(g, "m.names", &names, &n, &e), ST_OK);
        assert_int_equal(n, 2);
        assert_memory_equal(names[0].data, "one", 3);
        assert_int_equal(names[1].bytes, 0);
        assert_int_equal(gguf_get_i32_array(g, "m.ints", &ints, &n, &e), ST_OK);
        assert_int_equal(n, 2);
        assert_int_equal(ints[1], -4);
        assert_int_equal(gguf_get_i32_array(g, "m.names", &ints, &n, &e), ST_ERR_FORMAT);
        assert_int_equal(gguf_tensor_count(g), 2);
        const gguf_tensor *t = gguf_find(g, "second");
        assert_non_null(t);
        assert_ptr_equal(t, gguf_tensor_at(g, 0));
        assert_int_equal(t->type, KRN_F32);
        assert_int_equal(t->rank, 2);
        assert_int_equal(t->size[0], 3);
        assert_int_equal(t->size[1], 2);
        assert_int_equal(t->size[3], 1);
        assert_int_equal(t->bytes, 24);
        assert_true(((const float *)t->data)[5] == 5.0f);
        assert_int_equal(gguf_find(g, "first")->bytes, 34);
        assert_null(gguf_find(g, "third"));
        gguf_close(g);
        base_buf_free(&b);
    }
}

/* Every prefix is refused; every single-byte change is refused or read, and what is read can be closed. */
static void any_damage_is_survived(void **state)
{
    (void)state;
    base_buf b = make_file(3);
    for (size_t bytes = 0; bytes < b.size; bytes++) {
        err e;
        gguf *g = NULL;
        uint8_t *cut = base_alloc(bytes); /* on its own, so that a sanitizer sees a read past it */
        assert_non_null(cut);
        memcpy(cut, b.data, bytes);
        assert_int_not_equal(gguf_open_memory(cut, bytes, "cut", &g, &e), ST_OK);
        base_free(cut);
    }
    for (size_t at = 0; at < b.size; at++) {
        for (unsigned change = 1; change < 256; change <<= 1) {
            err e;
            gguf *g = NULL;
            b.data[at] ^= (uint8_t)change;
            if (gguf_open_memory(b.data, b.size, "changed", &g, &e) == ST_OK) {
                gguf_close(g);
            }
            b.data[at] ^= (uint8_t)change;
        }
    }
    base_buf_free(&b);
}

static void memory_running_out_is_an_error(void **state)
{
    (void)state;
    base_buf b = make_file(3);
    for (long i = 0; i < 100; i++) {
        err e;
        gguf *g = NULL;
        base_fail_allocation(i);
        status s = gguf_open_memory(b.data, b.size, "x", &g, &e);
        base_fail_allocation(-1);
        if (s == ST_OK) {
            assert_true(i > 5);
            gguf_close(g);
            base_buf_free(&b);
            return;
        }
        assert_int_equal(s, ST_ERR_MEMORY);
    }
    fail_msg("never opened");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
            cmocka_unit_test(damaged_files_are_refused_by_name),
            cmocka_unit_test(a_good_file_reads_as_written),
            cmocka_unit_test(any_damage_is_survived),
            cmocka_unit_test(memory_running_out_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
