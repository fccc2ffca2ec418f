/* base: errors, memory, buffers, time, text, half floats, file maps, log. See base.h for the contracts. */
#define _POSIX_C_SOURCE 200809L
#include "kernels/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char *status_name(status s)
{
    switch (s) {
#define STATUS_NAME(code, value, text) \
    case code:                         \
        return #code;
        STATUS_TABLE(STATUS_NAME)
#undef STATUS_NAME
    }
    return "ST_UNKNOWN";
}

const char *status_text(status s)
{
    switch (s) {
#define STATUS_TEXT(code, value, text) \
    case code:                         \
        return text;
        STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

status err_set(err *e, status code, int os_code, const char *file, int line, const char *format, ...)
{
    if (e != NULL) {
        va_list args;
        e->code = code;
        e->os_code = os_code;
        e->file = file;
        e->line = line;
        va_start(args, format);
        (void)vsnprintf(e->text, sizeof e->text, format, args);
        va_end(args);
    }
    return code;
}

_Noreturn void base_require_failed(const char *cond, const char *file, int line)
{
    (void)fprintf(stderr, "epimem: internal error at %s:%d: %s does not hold\n", file, line, cond);
    abort();
}

/* ---- memory ---- */

static atomic_long allocations;
static atomic_long fail_countdown = -1;

void base_fail_allocation(long countdown)
{
    atomic_store(&fail_countdown, countdown);
}

long base_allocation_count(void)
{
    return atomic_load(&allocations);
}

static bool allocation_must_fail(void)
{
    atomic_fetch_add(&allocations, 1);
    if (atomic_load(&fail_countdown) < 0) {
        return false;
    }
    return atomic_fetch_sub(&fail_countdown, 1) == 0;
}

void *base_alloc(size_t bytes)
{
    size_t rounded = (bytes + 63u) & ~(size_t)63u;
    if (rounded < bytes || allocation_must_fail()) {
        return NULL;
    }
    return aligned_alloc(64, rounded == 0 ? 64 : rounded);
}

void *base_zalloc(size_t count, size_t bytes_each)
{
    uint64_t total;
    if (!base_mul(count, bytes_each, &total) || total > SIZE_MAX / 2) {
        return NULL;
    }
    void *p = base_alloc((size_t)total);
    if (p != NULL) {
        memset(p, 0, (size_t)total);
    }
    return p;
}

void *base_realloc(void *p, size_t old_bytes, size_t new_bytes)
{
    void *q = base_alloc(new_bytes);
    if (q != NULL && p != NULL) {
        memcpy(q, p, old_bytes < new_bytes ? old_bytes : new_bytes);
        base_free(p);
    }
    return q;
}

char *base_strndup(const char *text, size_t bytes)
{
    char *copy = base_alloc(bytes + 1);
    if (copy != NULL) {
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

char *base_strdup(const char *text)
{
    return base_strndup(text, strlen(text));
}

void base_free(void *p)
{
    free(p);
}

bool base_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

bool base_add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

status base_grow(void **items, size_t *cap, size_t need, size_t max, size_t item_bytes)
{
    if (need <= *cap) {
        return ST_OK;
    }
    if (need > max) {
        return ST_ERR_LIMIT;
    }
    size_t bigger = *cap < 8 ? 8 : *cap * 2;
    bigger = bigger < need ? need : bigger;
    bigger = bigger > max ? max : bigger;
    uint64_t bytes;
    if (!base_mul(bigger, item_bytes, &bytes)) {
        return ST_ERR_LIMIT;
    }
    void *p = base_realloc(*items, *cap * item_bytes, (size_t)bytes);
    if (p == NULL) {
        return ST_ERR_MEMORY;
    }
    *items = p;
    *cap = bigger;
    return ST_OK;
}

status base_buf_reserve(base_buf *b, size_t bytes)
{
    if (bytes > b->max - b->size) {
        return ST_ERR_LIMIT;
    }
    void *data = b->data;
    TRY(base_grow(&data, &b->cap, b->size + bytes, b->max, 1));
    b->data = data;
    return ST_OK;
}

status base_buf_append(base_buf *b, const void *data, size_t bytes)
{
    if (bytes == 0) {
        return ST_OK;
    }
    TRY(base_buf_reserve(b, bytes));
    memcpy(b->data + b->size, data, bytes);
    b->size += bytes;
    return ST_OK;
}

void base_buf_free(base_buf *b)
{
    base_free(b->data);
    b->data = NULL;
    b->size = b->cap = 0;
}

/* ---- time ---- */

static int64_t clock_us(clockid_t clock)
{
    struct timespec t;
    REQUIRE(clock_gettime(clock, &t) == 0);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t base_monotonic_us(void)
{
    return clock_us(CLOCK_MONOTONIC);
}

int64_t base_wall_us(void)
{
    return clock_us(CLOCK_REALTIME);
}

/* ---- text ---- */

/* Unicode 15, table 3-7: the second byte's range depends on the first; no surrogates, nothing above U+10FFFF. */
size_t base_utf8_next(const void *text, size_t bytes, uint32_t *code_point)
{
    const uint8_t *s = text;
    if (bytes == 0) {
        return 0;
    }
    if (s[0] < 0x80) {
        *code_point = s[0];
        return 1;
    }
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || bytes < n) {
        return 0;
    }
    uint8_t low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) {
        return 0;
    }
    uint32_t c = s[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) {
            return 0;
        }
        c = (c << 6) | (s[i] & 0x3fu);
    }
    *code_point = c;
    return n;
}

bool base_utf8_valid(const void *text, size_t bytes)
{
    const uint8_t *s = text;
    size_t at = 0;
    while (at < bytes) {
        uint32_t c;
        size_t n = base_utf8_next(s + at, bytes - at, &c);
        if (n == 0) {
            return false;
        }
        at += n;
    }
    return true;
}

/* ---- half floats ---- */

typedef union bits32 {
    uint32_t u;
    float f;
} bits32;

float base_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, fraction = h & 0x3ffu;
    bits32 x;
    if (exponent == 31) {
        x.u = sign | 0x7f800000u | (fraction << 13);
    } else if (exponent != 0) {
        x.u = sign | ((exponent + 112) << 23) | (fraction << 13);
    } else {
        x.f = (float)fraction * 0x1p-24f; /* zero and subnormals are exact multiples of 2^-24 */
        x.u |= sign;
    }
    return x.f;
}

uint16_t base_f32_to_f16(float f)
{
    bits32 x = {.f = f};
    uint32_t sign = (x.u >> 16) & 0x8000u, magnitude = x.u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: let the FPU round at 2^-24 */
        bits32 y = {.u = magnitude};
        y.f += 0.5f; /* 0.5 has an ulp of 2^-24 */
        return (uint16_t)(sign | (y.u - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

/* ---- file maps ---- */

status base_map_open(const char *path, base_map *out, err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return FAIL_OS(
                e, errno == ENOENT ? ST_ERR_NOT_FOUND : ST_ERR_IO, errno, "%s: %s", path, strerror(errno));
    }
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        (void)close(fd);
        return FAIL(e, ST_ERR_IO, "%s: not a regular file", path);
    }
    base_map m = {.data = NULL, .size = (size_t)st.st_size};
    if (m.size > 0) {
        void *p = mmap(NULL, m.size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED) {
            int code = errno;
            (void)close(fd);
            return FAIL_OS(e, ST_ERR_IO, code, "%s: cannot map %zu bytes: %s", path, m.size, strerror(code));
        }
        m.data = p;
    }
    (void)close(fd);
    *out = m;
    return ST_OK;
}

void base_map_close(base_map *m)
{
    if (m->data != NULL) {
        (void)munmap((void *)(uintptr_t)m->data, m->size);
    }
    *m = (base_map){0};
}

/* ---- log ---- */

static _Atomic log_level level_now = LOG_INFO;

void log_set_level(log_level level)
{
    level_now = level;
}

void log_line(log_level level, const char *format, ...)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if (level < level_now) {
        return;
    }
    char line[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n < 0) {
        return;
    }
    int64_t now = base_wall_us();
    time_t seconds = (time_t)(now / 1000000);
    struct tm tm;
    char when[32] = "";
    if (gmtime_r(&seconds, &tm) != NULL) {
        (void)strftime(when, sizeof when, "%H:%M:%S", &tm);
    }
    (void)fprintf(stderr, "%s.%03d %s %s\n", when, (int)(now / 1000 % 1000), names[level], line);
}
