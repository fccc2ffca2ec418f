/* record: encode and check the bytes of keys, values and the format file. See record_internal.h. */
#include "store/record_internal.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const uint32_t record_magic = 0x524d5045u; /* "EPMR" */

/* Offsets of the header's fields; all numbers little-endian. */
enum {
    AT_MAGIC = 0,
    AT_VERSION = 4,
    AT_ROLE = 6,
    AT_KIND = 7,
    AT_TENANT_BYTES = 8,
    AT_SESSION_BYTES = 9,
    AT_ZERO = 10,
    AT_PAYLOAD_AT = 12,
    AT_NUMBER = 16,
    AT_ID = 24,
    AT_PAYLOAD_BYTES = 32,
    AT_PAYLOAD_HASH = 40,
    AT_FINGERPRINT = 48,
    AT_HEADER_HASH = 56
};
_Static_assert(AT_HEADER_HASH + 8 == RECORD_HEADER_BYTES, "the header hash ends the header");
_Static_assert(
        RECORD_HEADER_BYTES + 2 * RECORD_NAME_BYTES_MAX <= RECORD_PAYLOAD_AT, "names fit before a payload");
_Static_assert(RECORD_KEY_BYTES_MAX <= 511, "LMDB's largest key");

static void put_le(uint8_t *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (uint8_t)(value >> (8 * i));
    }
}

static uint64_t get_le(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

uint64_t record_hash(const void *bytes, size_t size)
{
    return XXH3_64bits(bytes, size);
}

/* ---- kinds ---- */

bool record_kind_valid(int kind)
{
    return kind >= STORE_SESSION && kind <= STORE_VECTORS;
}

bool record_kind_is_blob(store_kind kind)
{
    return kind == STORE_COLUMN || kind == STORE_TAIL;
}

bool record_kind_is_inline(store_kind kind)
{
    return kind == STORE_NAME;
}

const char *record_kind_name(store_kind kind)
{
    static const char *const names[] = {
            "?", "session", "turn", "episodes", "name", "column", "tail", "vectors"};
    return record_kind_valid((int)kind) ? names[kind] : names[0];
}

/* ---- keys ---- */

static bool append_name(record_key *k, const char *name)
{
    size_t bytes = name == NULL ? 0 : strnlen(name, RECORD_NAME_BYTES_MAX + 1);
    if (bytes == 0 || bytes > RECORD_NAME_BYTES_MAX) {
        return false;
    }
    k->bytes[k->size++] = (uint8_t)bytes;
    memcpy(k->bytes + k->size, name, bytes);
    k->size = (uint16_t)(k->size + bytes);
    return true;
}

status record_key_encode_prefix(store_kind kind, const char *tenant, const char *session, record_key *out)
{
    record_key k = {.size = 1};
    if (!record_kind_valid((int)kind)) {
        return ST_ERR_ARG;
    }
    k.bytes[0] = (uint8_t)kind;
    if (tenant == NULL ? session != NULL
                       : !append_name(&k, tenant) || (session != NULL && !append_name(&k, session))) {
        return ST_ERR_ARG;
    }
    *out = k;
    return ST_OK;
}

status record_key_encode(const store_key *key, record_key *out)
{
    record_key k;
    if (key->session == NULL) {
        return ST_ERR_ARG;
    }
    TRY(record_key_encode_prefix(key->kind, key->tenant, key->session, &k));
    for (int i = 0; i < 8; i++) { /* big-endian, so that LMDB's byte order is the order of numbers */
        k.bytes[k.size++] = (uint8_t)(key->number >> (56 - 8 * i));
    }
    *out = k;
    return ST_OK;
}

static bool name_valid(const uint8_t *name, size_t bytes)
{
    return bytes >= 1 && bytes <= RECORD_NAME_BYTES_MAX && memchr(name, 0, bytes) == NULL;
}

bool record_key_decode(const void *bytes, size_t size, record_fields *out)
{
    const uint8_t *k = bytes;
    record_fields f = {0};
    if (size < 1 + 2 + 2 + 8 || !record_kind_valid(k[0])) {
        return false;
    }
    f.kind = (store_kind)k[0];
    f.tenant_bytes = k[1];
    f.tenant = k + 2;
    if (size < 2u + f.tenant_bytes + 1u) {
        return false;
    }
    f.session_bytes = k[2 + f.tenant_bytes];
    f.session = f.tenant + f.tenant_bytes + 1;
    if (size != 3u + f.tenant_bytes + f.session_bytes + 8u || !name_valid(f.tenant, f.tenant_bytes) ||
            !name_valid(f.session, f.session_bytes)) {
        return false;
    }
    const uint8_t *number = f.session + f.session_bytes;
    for (int i = 0; i < 8; i++) {
        f.number = f.number << 8 | number[i];
    }
    *out = f;
    return true;
}

bool record_matches_key(const record_fields *r, const record_fields *key)
{
    return r->kind == key->kind && r->number == key->number && r->tenant_bytes == key->tenant_bytes &&
            r->session_bytes == key->session_bytes &&
            memcmp(r->tenant, key->tenant, key->tenant_bytes) == 0 &&
            memcmp(r->session, key->session, key->session_bytes) == 0;
}

/* ---- records ---- */

size_t record_payload_at(const record_fields *f)
{
    if (f->role == ROLE_PAYLOAD) {
        return RECORD_PAYLOAD_AT;
    }
    return RECORD_HEADER_BYTES + (size_t)f->tenant_bytes + f->session_bytes;
}

size_t record_size(const record_fields *f)
{
    return record_payload_at(f) + (f->role == ROLE_POINTER ? 0 : (size_t)f->payload_bytes);
}

/* Everything before the payload but the hash itself: the tail's hash seeded with the head's. */
static uint64_t header_hash(const uint8_t *record, size_t payload_at)
{
    return XXH3_64bits_withSeed(record + RECORD_HEADER_BYTES, payload_at - RECORD_HEADER_BYTES,
            XXH3_64bits(record, AT_HEADER_HASH));
}

void record_write_header(const record_fields *f, uint8_t *out)
{
    size_t payload_at = record_payload_at(f);
    memset(out, 0, payload_at);
    put_le(out + AT_MAGIC, record_magic, 4);
    put_le(out + AT_VERSION, RECORD_VERSION, 2);
    out[AT_ROLE] = (uint8_t)f->role;
    out[AT_KIND] = (uint8_t)f->kind;
    out[AT_TENANT_BYTES] = f->tenant_bytes;
    out[AT_SESSION_BYTES] = f->session_bytes;
    put_le(out + AT_PAYLOAD_AT, payload_at, 4);
    put_le(out + AT_NUMBER, f->number, 8);
    put_le(out + AT_ID, f->id, 8);
    put_le(out + AT_PAYLOAD_BYTES, f->payload_bytes, 8);
    put_le(out + AT_PAYLOAD_HASH, f->payload_hash, 8);
    put_le(out + AT_FINGERPRINT, f->fingerprint, 8);
    memcpy(out + RECORD_HEADER_BYTES, f->tenant, f->tenant_bytes);
    memcpy(out + RECORD_HEADER_BYTES + f->tenant_bytes, f->session, f->session_bytes);
    record_seal_header(out, payload_at);
}

void record_seal_header(uint8_t *record, size_t size)
{
    uint64_t payload_at = get_le(record + AT_PAYLOAD_AT, 4);
    if (payload_at >= RECORD_HEADER_BYTES && payload_at <= size) {
        put_le(record + AT_HEADER_HASH, header_hash(record, (size_t)payload_at), 8);
    }
}

const char *record_parse(const void *bytes, size_t size, record_fields *out)
{
    const uint8_t *h = bytes;
    if (size < RECORD_HEADER_BYTES) {
        return "shorter than a header";
    }
    if (get_le(h + AT_MAGIC, 4) != record_magic) {
        return "not a record (magic)";
    }
    uint64_t payload_at = get_le(h + AT_PAYLOAD_AT, 4);
    if (payload_at < RECORD_HEADER_BYTES || payload_at > size) {
        return "payload starts outside of the record";
    }
    if (get_le(h + AT_HEADER_HASH, 8) != header_hash(h, (size_t)payload_at)) {
        return "header checksum differs";
    }
    if (get_le(h + AT_VERSION, 2) != RECORD_VERSION) {
        return "made by another version";
    }
    record_fields f = {.role = (record_role)h[AT_ROLE],
            .kind = (store_kind)h[AT_KIND],
            .tenant_bytes = h[AT_TENANT_BYTES],
            .session_bytes = h[AT_SESSION_BYTES],
            .number = get_le(h + AT_NUMBER, 8),
            .id = get_le(h + AT_ID, 8),
            .payload_bytes = get_le(h + AT_PAYLOAD_BYTES, 8),
            .payload_hash = get_le(h + AT_PAYLOAD_HASH, 8),
            .fingerprint = get_le(h + AT_FINGERPRINT, 8)};
    if (h[AT_ROLE] < ROLE_INLINE || h[AT_ROLE] > ROLE_PAYLOAD || !record_kind_valid(h[AT_KIND]) ||
            get_le(h + AT_ZERO, 2) != 0 || f.payload_bytes > RECORD_PAYLOAD_BYTES_MAX) {
        return "header holds an unknown value";
    }
    if (payload_at != record_payload_at(&f) || size != record_size(&f)) {
        return "length differs from what the header says";
    }
    f.tenant = h + RECORD_HEADER_BYTES;
    f.session = f.tenant + f.tenant_bytes;
    if (!name_valid(f.tenant, f.tenant_bytes) || !name_valid(f.session, f.session_bytes)) {
        return "header holds no valid names";
    }
    *out = f;
    return NULL;
}

const uint8_t *record_payload(const record_fields *f, const void *bytes)
{
    const uint8_t *payload = (const uint8_t *)bytes + record_payload_at(f);
    return record_hash(payload, (size_t)f->payload_bytes) == f->payload_hash ? payload : NULL;
}

/* ---- format file ---- */

static const char format_head[] = "epimem store 1\nfingerprint ";

/* "epimem store 1\nfingerprint <16 hex digits of XXH3-64> <bytes>\n" and the text. */
size_t format_write(const char *fingerprint, size_t fingerprint_bytes, char out[FORMAT_FILE_BYTES_MAX])
{
    REQUIRE(fingerprint_bytes <= FORMAT_TEXT_BYTES_MAX);
    int n = snprintf(out, FORMAT_FILE_BYTES_MAX, "%s%016llx %04zu\n", format_head,
            (unsigned long long)record_hash(fingerprint, fingerprint_bytes), fingerprint_bytes);
    REQUIRE(n > 0 && (size_t)n + fingerprint_bytes <= FORMAT_FILE_BYTES_MAX);
    memcpy(out + n, fingerprint, fingerprint_bytes);
    return (size_t)n + fingerprint_bytes;
}

const char *format_parse(const void *bytes, size_t size, const char **fingerprint, size_t *fingerprint_bytes)
{
    enum { HEAD_BYTES = sizeof format_head - 1, LINE_BYTES = HEAD_BYTES + 16 + 1 + 4 + 1 };
    const char *text = bytes;
    if (size < LINE_BYTES || memcmp(text, format_head, HEAD_BYTES) != 0) {
        return "not a store of this version";
    }
    if (size - LINE_BYTES > FORMAT_TEXT_BYTES_MAX) {
        return "too long";
    }
    if (memchr(text, 0, size) != NULL) {
        return "holds a NUL byte";
    }
    char expected[FORMAT_FILE_BYTES_MAX];
    size_t expected_bytes = format_write(text + LINE_BYTES, size - LINE_BYTES, expected);
    if (expected_bytes != size || memcmp(expected, text, size) != 0) {
        return "checksum differs";
    }
    *fingerprint = text + LINE_BYTES;
    *fingerprint_bytes = size - LINE_BYTES;
    return NULL;
}
