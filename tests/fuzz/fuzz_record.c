/* Fuzz target: bytes that claim to be a record, a key or a format file. What parses has to be in bounds, and to write the
 * same bytes again. */
#include <string.h>

#include "store/record_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_names(const record_fields *f)
{
    REQUIRE(f->tenant_bytes >= 1 && f->tenant_bytes <= RECORD_NAME_BYTES_MAX);
    REQUIRE(f->session_bytes >= 1 && f->session_bytes <= RECORD_NAME_BYTES_MAX);
    REQUIRE(record_kind_valid((int)f->kind));
}

static void try_record(const uint8_t *data, size_t size)
{
    record_fields f;
    uint8_t again[RECORD_PAYLOAD_AT];
    if (record_parse(data, size, &f) != NULL) {
        return;
    }
    check_names(&f);
    size_t payload_at = record_payload_at(&f);
    REQUIRE(payload_at <= size && record_size(&f) == size);
    record_write_header(&f, again);
    REQUIRE(f.role == ROLE_PAYLOAD || memcmp(again, data, payload_at) == 0);
    if (f.role != ROLE_POINTER) {
        const uint8_t *payload = record_payload(&f, data);
        REQUIRE(payload == NULL || payload == data + payload_at);
    }
}

static void try_key(const uint8_t *data, size_t size)
{
    record_fields f;
    record_key again;
    char tenant[RECORD_NAME_BYTES_MAX + 1] = "", session[RECORD_NAME_BYTES_MAX + 1] = "";
    if (!record_key_decode(data, size, &f)) {
        return;
    }
    check_names(&f);
    memcpy(tenant, f.tenant, f.tenant_bytes);
    memcpy(session, f.session, f.session_bytes);
    store_key key = {.kind = f.kind, .tenant = tenant, .session = session, .number = f.number};
    REQUIRE(record_key_encode(&key, &again) == ST_OK);
    REQUIRE(again.size == size && memcmp(again.bytes, data, size) == 0);
}

static void try_format(const uint8_t *data, size_t size)
{
    const char *text;
    size_t bytes;
    char again[FORMAT_FILE_BYTES_MAX];
    if (format_parse(data, size, &text, &bytes) == NULL) {
        REQUIRE(text + bytes == (const char *)data + size);
        REQUIRE(format_write(text, bytes, again) == size && memcmp(again, data, size) == 0);
    }
}

/* A fuzzer does not guess a hash: this makes the header's right, so that what follows it is reached. */
static void try_sealed_record(const uint8_t *data, size_t size)
{
    uint8_t copy[8192];
    if (size < RECORD_HEADER_BYTES || size > sizeof copy) {
        return;
    }
    memcpy(copy, data, size);
    record_seal_header(copy, size);
    try_record(copy, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    try_record(data, size);
    try_sealed_record(data, size);
    try_key(data, size);
    try_format(data, size);
    return 0;
}
