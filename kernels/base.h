/*
 * base: what every folder stands on, with no CUDA and no third-party code in it.
 *
 * Errors are values. A fallible function returns `status` (0 is ok) and, where the reason needs words, fills
 * an `err` that the caller owns: the detail is written once, where the fault is first seen. Three classes:
 * our own mistake is a REQUIRE (always on, aborts); an operating error (memory, disk, client) is a status;
 * damaged stored bytes are ST_ERR_CORRUPT and lead to quarantine and rebuild, never to a crash.
 *
 * Everything here is thread-safe unless it takes a pointer to a caller's object.
 */
#ifndef EPIMEM_KERNELS_BASE_H
#define EPIMEM_KERNELS_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* code, name on the wire and in logs, text for people */
#define STATUS_TABLE(X)                                            \
    X(ST_OK, 0, "ok")                                              \
    X(ST_ERR_MEMORY, -1, "out of memory")                          \
    X(ST_ERR_ARG, -2, "bad argument")                              \
    X(ST_ERR_IO, -3, "input or output failed")                     \
    X(ST_ERR_FORMAT, -4, "malformed input")                        \
    X(ST_ERR_CORRUPT, -5, "stored bytes are damaged")              \
    X(ST_ERR_MISMATCH, -6, "made for something else")              \
    X(ST_ERR_NOT_FOUND, -7, "not found")                           \
    X(ST_ERR_LIMIT, -8, "over a limit")                            \
    X(ST_ERR_BUSY, -9, "busy")                                     \
    X(ST_ERR_FULL, -10, "store is full")                           \
    X(ST_ERR_CANCELLED, -11, "cancelled")                          \
    X(ST_ERR_UNENCODABLE, -12, "text the vocabulary cannot spell") \
    X(ST_ERR_UNSUPPORTED, -13, "not supported")                    \
    X(ST_ERR_DEVICE, -14, "device failed")                         \
    X(ST_ERR_EXISTS, -15, "exists already")

typedef enum status {
#define STATUS_ENUM(code, value, text) code = (value),
    STATUS_TABLE(STATUS_ENUM)
#undef STATUS_ENUM
} status;

const char *status_name(status s); /* "ST_ERR_IO" */
const char *status_text(status s); /* "input or output failed" */

/* Where and why something failed. Filled once by FAIL, passed up unchanged. */
typedef struct err {
    status code;
    int os_code; /* errno, LMDB or CUDA code; 0 when there is none */
    const char *file;
    int line;
    char text[400]; /* a sentence for people: what, where, what was expected */
} err;

/* Fills *e (which may be NULL) and returns code, so that a caller writes `return FAIL(e, ST_ERR_IO, ...)`. */
status err_set(err *e, status code, int os_code, const char *file, int line, const char *format, ...)
        __attribute__((format(printf, 6, 7)));
#ifdef __clang_analyzer__ /* it cannot see that err_set returns its argument, which is not ST_OK */
#define FAIL(e, code, ...)        ((void)err_set((e), (code), 0, __FILE__, __LINE__, __VA_ARGS__), (code))
#define FAIL_OS(e, code, os, ...) ((void)err_set((e), (code), (os), __FILE__, __LINE__, __VA_ARGS__), (code))
#else
#define FAIL(e, code, ...)        err_set((e), (code), 0, __FILE__, __LINE__, __VA_ARGS__)
#define FAIL_OS(e, code, os, ...) err_set((e), (code), (os), __FILE__, __LINE__, __VA_ARGS__)
#endif

/* Forwards a failing status to the caller. */
#define TRY(expr)                    \
    do {                             \
        status try_status_ = (expr); \
        if (try_status_ != ST_OK) {  \
            return try_status_;      \
        }                            \
    } while (0)

/* Checks our own promises; never reached by client input or stored bytes. Always on. */
#define REQUIRE(cond)                                       \
    do {                                                    \
        if (!(cond)) {                                      \
            base_require_failed(#cond, __FILE__, __LINE__); \
        }                                                   \
    } while (0)
_Noreturn void base_require_failed(const char *cond, const char *file, int line);

/*
 * Memory. The only door to the C heap. Results are 64-byte aligned; free accepts NULL. Each returns NULL when
 * memory is out, or when a test has asked for the failure (base_fail_allocation).
 */
void *base_alloc(size_t bytes) __attribute__((malloc));
void *base_zalloc(size_t count, size_t bytes_each) __attribute__((malloc)); /* NULL when the product wraps */
void *base_realloc(void *p, size_t old_bytes, size_t new_bytes);            /* old block kept on failure */
char *base_strndup(const char *text, size_t bytes);
char *base_strdup(const char *text);
void base_free(void *p);
void base_fail_allocation(
        long countdown);          /* tests: the countdown-th allocation from now fails; <0 is never */
long base_allocation_count(void); /* tests: allocations so far in this process */

/* Checked arithmetic: false, with *out untouched, when the result does not fit. */
bool base_mul(uint64_t a, uint64_t b, uint64_t *out);
bool base_add(uint64_t a, uint64_t b, uint64_t *out);

/* A byte buffer that grows up to a limit it is born with. Zero-initialised plus `max` is a valid empty one. */
typedef struct base_buf {
    uint8_t *data;
    size_t size, cap, max;
} base_buf;
status base_buf_append(
        base_buf *b, const void *data, size_t bytes); /* ST_ERR_LIMIT past max; old content kept */
status base_buf_reserve(base_buf *b, size_t bytes);   /* room for that many more */
void base_buf_free(base_buf *b);

/* Grows a typed array to hold `need` items: doubles the capacity, keeps the content. ST_ERR_LIMIT past max. */
status base_grow(void **items, size_t *cap, size_t need, size_t max, size_t item_bytes);

/* Time. */
int64_t base_monotonic_us(void);
int64_t base_wall_us(void); /* Unix time */

/* Text. */
bool base_utf8_valid(const void *text, size_t bytes);
/* Next code point and its length in bytes, 0 at the end or on an ill-formed sequence. */
size_t base_utf8_next(const void *text, size_t bytes, uint32_t *code_point);

/* Half-width floats. Conversions round to nearest even; NaN stays NaN. */
float base_f16_to_f32(uint16_t h);
uint16_t base_f32_to_f16(float f);
static inline float base_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } x = {.u = (uint32_t)h << 16};
    return x.f;
}
static inline uint16_t base_f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {.f = f};
    if ((x.u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((x.u >> 16) | 0x40u);
    }
    return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

/* A whole file mapped read-only. */
typedef struct base_map {
    const uint8_t *data;
    size_t size;
} base_map;
status base_map_open(const char *path, base_map *out, err *e); /* an empty file maps to size 0, data NULL */
void base_map_close(base_map *m);

/* Log: one line on stderr with time and level. Levels below the set one cost a comparison. */
typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR } log_level;
void log_set_level(log_level level);
void log_line(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define LOG_I(...) log_line(LOG_INFO, __VA_ARGS__)
#define LOG_W(...) log_line(LOG_WARN, __VA_ARGS__)
#define LOG_E(...) log_line(LOG_ERROR, __VA_ARGS__)

#endif
