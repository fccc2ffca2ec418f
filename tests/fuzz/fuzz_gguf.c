/* The GGUF reader on arbitrary bytes: it must refuse or open, and every getter must survive what it opened. */
#include "agent/gguf_internal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Touches the first and the last byte, so that a sanitizer sees a range that is not there. */
static unsigned touch(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    return bytes == 0 ? 0u : (unsigned)p[0] + p[bytes - 1];
}

static unsigned use_keys(const gguf *g)
{
    static const char *const keys[] = {
            "general.architecture", "general.alignment", "tokenizer.ggml.tokens", "x.a", "x.deep", ""};
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        err e;
        uint64_t u;
        double f;
        bool b;
        gguf_string text;
        const gguf_string *strings;
        const int32_t *ints;
        const float *floats;
        size_t n;
        sum += gguf_get_u64(g, keys[i], &u, &e) == ST_OK;
        sum += gguf_get_f64(g, keys[i], &f, &e) == ST_OK;
        sum += gguf_get_bool(g, keys[i], &b, &e) == ST_OK;
        sum += gguf_get_string(g, keys[i], &text, &e) == ST_OK ? touch(text.data, text.bytes) : 0;
        sum += gguf_get_i32_array(g, keys[i], &ints, &n, &e) == ST_OK ? touch(ints, n * sizeof *ints) : 0;
        sum += gguf_get_f32_array(g, keys[i], &floats, &n, &e) == ST_OK ? touch(floats, n * sizeof *floats)
                                                                        : 0;
        if (gguf_get_string_array(g, keys[i], &strings, &n, &e) == ST_OK) {
            for (size_t j = 0; j < n; j++) {
                sum += touch(strings[j].data, strings[j].bytes);
            }
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    gguf *g;
    err e;
    static volatile unsigned sink;
    /* A copy, aligned as a map is: the reader promises tensors that can be read in place. */
    uint8_t *copy = base_alloc(size);
    if (copy == NULL) {
        return 0;
    }
    if (size > 0) {
        memcpy(copy, data, size);
    }
    if (gguf_open_memory(copy, size, "fuzz.gguf", &g, &e) == ST_OK) {
        unsigned sum = use_keys(g);
        for (size_t i = 0; i < gguf_tensor_count(g); i++) {
            const gguf_tensor *t = gguf_tensor_at(g, i);
            sum += touch(t->data, (size_t)t->bytes) + touch(t->name.data, t->name.bytes);
        }
        sink = sum;
        (void)sink;
        gguf_close(g);
    } else {
        REQUIRE(memchr(e.text, '\0', sizeof e.text) != NULL && strncmp(e.text, "fuzz.gguf: ", 11) == 0);
    }
    base_free(copy);
    return 0;
}
