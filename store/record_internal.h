/*
 * record: the bytes of a stored value, and of the key it is found under. store/README.md lists every byte.
 *
 * Every value in both environments is a RECORD: a header of 64 bytes, the names of tenant and session, and (by role)
 * the payload. Three roles:
 *   INLINE   an entry that holds its payload (names: small, never secret)
 *   POINTER  an entry whose payload is a PAYLOAD record elsewhere, found by id
 *   PAYLOAD  the payload, at byte 4,080, where LMDB's placing of large values (16 mod 4096) makes it page-aligned
 *
 * Invariants
 * 1. One flipped bit anywhere in a record is noticed: the header hash covers everything before the payload but itself,
 *    the payload hash the rest, and the length has to be exact.
 * 2. A record names its own key, so that it cannot be served for another.
 *
 * Everything here is a pure function of bytes that may come from anywhere; nothing allocates. Any thread.
 */
#ifndef EPIMEM_STORE_RECORD_INTERNAL_H
#define EPIMEM_STORE_RECORD_INTERNAL_H

#include "store/store.h"

enum {
    RECORD_HEADER_BYTES = 64,
    RECORD_NAME_BYTES_MAX = 128,
    RECORD_KEY_BYTES_MAX = 1 + 1 + RECORD_NAME_BYTES_MAX + 1 + RECORD_NAME_BYTES_MAX + 8,
    RECORD_PAYLOAD_AT = 4080, /* 4096 less the 16 bytes of LMDB's own page header */
    RECORD_VERSION = 1
};
#define RECORD_PAYLOAD_BYTES_MAX ((uint64_t)1 << 30) /* arbitrary; LMDB itself ends at 4 GiB */

typedef enum record_role { ROLE_INLINE = 1, ROLE_POINTER = 2, ROLE_PAYLOAD = 3 } record_role;

typedef struct record_key { /* encoded; bytes compare as LMDB orders them */
    uint16_t size;
    uint8_t bytes[RECORD_KEY_BYTES_MAX];
} record_key;

typedef struct record_fields {
    record_role role;
    store_kind kind;
    uint8_t tenant_bytes, session_bytes;
    const uint8_t *tenant, *session; /* not NUL-terminated; in a parsed record they point into it */
    uint64_t number, id;
    uint64_t payload_bytes, payload_hash, fingerprint;
} record_fields;

bool record_kind_valid(int kind);
bool record_kind_is_blob(store_kind kind);   /* payload lives in the blob environment */
bool record_kind_is_inline(store_kind kind); /* payload lives in the entry */
const char *record_kind_name(store_kind kind);

/* Key of a record; ST_ERR_ARG when a name is missing, empty or longer than 128 bytes, or the kind is none. */
status record_key_encode(const store_key *key, record_key *out);
/* The bytes that all keys of a kind and tenant start with, and, with a session, of that session. */
status record_key_encode_prefix(store_kind kind, const char *tenant, const char *session, record_key *out);
/* Splits an encoded key into kind, names and number; false when it is none. role, id and hashes are left 0. */
bool record_key_decode(const void *bytes, size_t size, record_fields *out);
/* The same key as a record's own fields say. */
bool record_matches_key(const record_fields *r, const record_fields *key);

uint64_t record_hash(const void *bytes, size_t size); /* XXH3-64 */

/* Where the payload of such a record starts, and its whole size without and with payload. */
size_t record_payload_at(const record_fields *f);
size_t record_size(const record_fields *f);
/* Writes everything before the payload: record_payload_at(f) bytes. */
void record_write_header(const record_fields *f, uint8_t *out);

/* Sets the hash of a header whose other bytes are in place; nothing when it says it is larger than size. */
void record_seal_header(uint8_t *record, size_t size);

/* Checks all but the payload's hash and points *out into the bytes. NULL when it holds, else what is wrong. */
const char *record_parse(const void *bytes, size_t size, record_fields *out);
/* The payload of a parsed INLINE or PAYLOAD record, NULL when its hash differs. */
const uint8_t *record_payload(const record_fields *f, const void *bytes);

/* The `format` file: what a data folder was made with. Text is not NUL-terminated. */
enum { FORMAT_TEXT_BYTES_MAX = 4096, FORMAT_FILE_BYTES_MAX = FORMAT_TEXT_BYTES_MAX + 128 };
size_t format_write(const char *fingerprint, size_t fingerprint_bytes, char out[FORMAT_FILE_BYTES_MAX]);
const char *format_parse(const void *bytes, size_t size, const char **fingerprint, size_t *fingerprint_bytes);

#endif
