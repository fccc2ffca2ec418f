/* Stored entries of a zip archive, found by its central directory (PKWARE's APPNOTE, 4.3). */
#include <string.h>

#include "kvq/calibration_import.h"

enum { END_BYTES = 22, COMMENT_BYTES_MAX = 65535, ENTRY_BYTES = 46, LOCAL_BYTES = 30 };

static uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | get16(p + 2) << 16;
}

/* The end record is the last thing but for a comment. */
static const uint8_t *find_end(const uint8_t *zip, size_t bytes)
{
    for (size_t back = END_BYTES; back <= bytes && back <= END_BYTES + COMMENT_BYTES_MAX; back++) {
        const uint8_t *p = zip + bytes - back;
        if (memcmp(p, "PK\5\6", 4) == 0 && get16(p + 20) == back - END_BYTES) {
            return p;
        }
    }
    return NULL;
}

/* "FOLDER/suffix", FOLDER without a slash. */
static bool name_matches(const char *name, size_t n, const char *suffix)
{
    const char *slash = memchr(name, '/', n);
    size_t folder = slash != NULL ? (size_t)(slash - name) + 1 : 0;
    return folder > 0 && n - folder == strlen(suffix) && memcmp(name + folder, suffix, n - folder) == 0;
}

static status open_entry(
        const uint8_t *zip, size_t bytes, const uint8_t *p, const uint8_t **data, size_t *size, err *e)
{
    size_t stored = get32(p + 20), unpacked = get32(p + 24), local = get32(p + 42);
    if ((get16(p + 8) & 1) != 0 || get16(p + 10) != 0 || stored != unpacked) {
        return FAIL(e, ST_ERR_FORMAT, "an entry of the archive is compressed or encrypted");
    }
    if (bytes < LOCAL_BYTES || local > bytes - LOCAL_BYTES || memcmp(zip + local, "PK\3\4", 4) != 0) {
        return FAIL(e, ST_ERR_FORMAT, "an entry of the archive lies outside of it");
    }
    size_t from = local + LOCAL_BYTES + get16(zip + local + 26) + get16(zip + local + 28);
    if (from > bytes || stored > bytes - from) {
        return FAIL(e, ST_ERR_FORMAT, "an entry of the archive is cut off");
    }
    *data = zip + from;
    *size = stored;
    return ST_OK;
}

status kvq_zip_find(
        const uint8_t *zip, size_t bytes, const char *suffix, const uint8_t **data, size_t *size, err *e)
{
    const uint8_t *end = find_end(zip, bytes);
    if (end == NULL) {
        return FAIL(e, ST_ERR_FORMAT, "no zip archive, as torch.save writes it");
    }
    size_t entries = get16(end + 10), at = get32(end + 16), limit = (size_t)(end - zip);
    for (size_t i = 0; i < entries; i++) {
        if (at > limit || limit - at < ENTRY_BYTES || memcmp(zip + at, "PK\1\2", 4) != 0) {
            return FAIL(e, ST_ERR_FORMAT, "the archive's directory is damaged");
        }
        const uint8_t *p = zip + at;
        size_t name = get16(p + 28), rest = (size_t)get16(p + 30) + get16(p + 32);
        if (name + rest > limit - at - ENTRY_BYTES) {
            return FAIL(e, ST_ERR_FORMAT, "the archive's directory is damaged");
        }
        if (name_matches((const char *)p + ENTRY_BYTES, name, suffix)) {
            return open_entry(zip, bytes, p, data, size, e);
        }
        at += ENTRY_BYTES + name + rest;
    }
    return FAIL(e, ST_ERR_NOT_FOUND, "the archive has no %.40s", suffix);
}
