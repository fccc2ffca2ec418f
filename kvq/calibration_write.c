/* A calibration as a safetensors file: 8 bytes of header length, the header in JSON, the tensors. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kvq/calibration_parts.h"

enum { HEADER_BYTES_MAX = 4096 };

/* The name without what JSON would have to escape. */
static void plain_name(const char *name, char out[64])
{
    size_t n = 0;
    for (; name[n] != '\0' && n < 63; n++) {
        unsigned char ch = (unsigned char)name[n];
        out[n] = ch < 0x20 || ch > 0x7e || ch == '"' || ch == '\\' ? '_' : (char)ch;
    }
    out[n] = '\0';
}

static int append_part(char *text, int at, const kvq_part *p, uint64_t begin)
{
    uint64_t bytes = 4 * (uint64_t)kvq_part_elements(p);
    at += snprintf(text + at, (size_t)(HEADER_BYTES_MAX - at), ",\"%s\":{\"dtype\":\"%s\",\"shape\":[",
            p->name, p->type);
    for (int i = 0; i < p->rank; i++) {
        at += snprintf(text + at, (size_t)(HEADER_BYTES_MAX - at), "%s%lld", i > 0 ? "," : "",
                (long long)p->size[i]);
    }
    return at +
            snprintf(text + at, (size_t)(HEADER_BYTES_MAX - at), "],\"data_offsets\":[%llu,%llu]}",
                    (unsigned long long)begin, (unsigned long long)(begin + bytes));
}

/* The header, padded with spaces to a multiple of 8; its length. */
static int make_header(const kvq_calibration *c, const kvq_part *parts, char text[HEADER_BYTES_MAX])
{
    char model[64];
    uint64_t begin = 0;
    plain_name(c->model, model);
    int at = snprintf(text, HEADER_BYTES_MAX,
            "{\"__metadata__\":{\"format\":\"%s\",\"model\":\"%s\",\"weights\":\"%016llx\",\"tokens\":\"%"
            "lld\","
            "\"layers\":\"%d\",\"kv_heads\":\"%d\",\"d\":\"%d\"}",
            KVQ_CALIBRATION_FORMAT, model, (unsigned long long)c->weights, (long long)c->tokens,
            c->shape.layers, c->shape.kv_heads, c->shape.d);
    for (int i = 0; i < KVQ_PART_COUNT; i++) {
        if (*parts[i].data != NULL) {
            at = append_part(text, at, &parts[i], begin);
            begin += 4 * (uint64_t)kvq_part_elements(&parts[i]);
        }
    }
    text[at++] = '}';
    while (at % 8 != 0) {
        text[at++] = ' ';
    }
    return at;
}

/* Values are four bytes each and little-endian in memory on every machine this is built for. */
static bool write_all(FILE *f, const kvq_part *parts, const char *header, int header_bytes)
{
    uint8_t length[8];
    for (int i = 0; i < 8; i++) {
        length[i] = (uint8_t)((uint64_t)header_bytes >> (8 * i));
    }
    bool ok = fwrite(length, 1, sizeof length, f) == sizeof length &&
            fwrite(header, 1, (size_t)header_bytes, f) == (size_t)header_bytes;
    for (int i = 0; ok && i < KVQ_PART_COUNT; i++) {
        size_t n = kvq_part_elements(&parts[i]);
        ok = *parts[i].data == NULL || fwrite(*parts[i].data, 4, n, f) == n;
    }
    return ok;
}

status kvq_calibration_write(const kvq_calibration *c, const char *path, err *e)
{
    char header[HEADER_BYTES_MAX], beside[4096];
    kvq_part parts[KVQ_PART_COUNT];
    kvq_calibration copy = *c; /* the table wants places of fields; nothing is changed */
    kvq_calibration_parts(&copy, parts);
    int header_bytes = make_header(c, parts, header);
    int n = snprintf(beside, sizeof beside, "%s.%ld.part", path, (long)getpid());
    if (n < 0 || n >= (int)sizeof beside) {
        return FAIL(e, ST_ERR_ARG, "the path of the calibration file is too long");
    }
    FILE *f = fopen(beside, "wb");
    if (f == NULL) {
        return FAIL_OS(e, ST_ERR_IO, errno, "%.300s cannot be written", beside);
    }
    bool ok = write_all(f, parts, header, header_bytes);
    ok = fflush(f) == 0 && ok;
    ok = fsync(fileno(f)) == 0 && ok;
    ok = fclose(f) == 0 && ok;
    if (!ok || rename(beside, path) != 0) {
        int why = errno;
        (void)remove(beside);
        return FAIL_OS(e, ST_ERR_IO, why, "%.300s cannot be written", path);
    }
    return ST_OK;
}
