/* What the store's tests share: temporary folders, values made from a seed, and short forms of the calls. */
#ifndef EPIMEM_TEST_STORE_UTIL_H
#define EPIMEM_TEST_STORE_UTIL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* nftw, unshare */
#endif
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/store_internal.h"

static const char util_fingerprint[] = "model=test tokenizer=t rope=1 codec=turboquant2";

static inline char *util_folder(char path[PATH_MAX])
{
    const char *base = getenv("TMPDIR");
    (void)snprintf(path, PATH_MAX, "%s/epimem-store-XXXXXX", base == NULL ? "/tmp" : base);
    return mkdtemp(path);
}

static inline int util_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static inline void util_remove(const char *path)
{
    (void)nftw(path, util_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static inline store *util_open(const char *path, uint64_t cap_bytes)
{
    store_options o = {.path = path, .fingerprint = util_fingerprint, .cap_bytes = cap_bytes};
    store *s = NULL;
    err e = {0};
    if (store_open(&o, &s, &e) != ST_OK) {
        (void)fprintf(stderr, "store_open: %s\n", e.text);
        return NULL;
    }
    return s;
}

static inline store_key util_key(store_kind kind, const char *session, uint64_t number)
{
    return (store_key){.kind = kind, .tenant = "tenant", .session = session, .number = number};
}

/* Bytes that depend on every argument, so that a wrong version, place or length shows. */
static inline void util_fill(uint8_t *out, size_t bytes, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < bytes; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out[i] = (uint8_t)(x >> 32);
    }
}

static inline status util_put(
        store *s, store_kind kind, const char *session, uint64_t number, const void *data, size_t bytes)
{
    store_key key = util_key(kind, session, number);
    store_batch *b = store_batch_create();
    err e = {0};
    status result = b == NULL ? ST_ERR_MEMORY : store_batch_put(b, &key, data, bytes);
    if (result == ST_OK) {
        result = store_commit(s, b, &e);
    }
    store_batch_free(b);
    return result;
}

static inline status util_put_seeded(
        store *s, store_kind kind, const char *session, uint64_t number, size_t bytes, uint64_t seed)
{
    uint8_t *data = malloc(bytes + 1);
    util_fill(data, bytes, seed);
    status result = util_put(s, kind, session, number, data, bytes);
    free(data);
    return result;
}

/* ST_OK when the value is exactly those bytes; ST_ERR_MISMATCH when it is others. */
static inline status util_expect(
        store *s, store_kind kind, const char *session, uint64_t number, const void *data, size_t bytes)
{
    store_key key = util_key(kind, session, number);
    void *got = NULL;
    size_t got_bytes = 0;
    err e = {0};
    status result = store_read_copy(s, &key, &got, &got_bytes, &e);
    if (result == ST_OK && (got_bytes != bytes || memcmp(got, data, bytes) != 0)) {
        result = ST_ERR_MISMATCH;
    }
    base_free(got);
    return result;
}

static inline status util_expect_seeded(
        store *s, store_kind kind, const char *session, uint64_t number, size_t bytes, uint64_t seed)
{
    uint8_t *data = malloc(bytes + 1);
    util_fill(data, bytes, seed);
    status result = util_expect(s, kind, session, number, data, bytes);
    free(data);
    return result;
}

static inline void util_print_line(void *ctx, const char *line)
{
    (void)ctx;
    (void)fprintf(stderr, "check: %s\n", line);
}

/* Damaged values and orphans, added. */
static inline uint64_t util_check(store *s)
{
    store_check_result r = {0};
    err e = {0};
    if (store_check(s, util_print_line, NULL, &r, &e) != ST_OK) {
        (void)fprintf(stderr, "store_check: %s\n", e.text);
        return UINT64_MAX;
    }
    return r.damaged + r.orphans;
}

/* Whole file, caller frees. */
static inline uint8_t *util_slurp(const char *folder, const char *name, size_t *bytes)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(f);
    rewind(f);
    uint8_t *data = malloc(*bytes + 1);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    (void)fclose(f);
    return data;
}

#endif
