/*
 * read: one record or many, each verified before a byte is handed out. A reader pins its index snapshot first and opens
 * `blobs` second: so every payload its entries name is there, whole (invariant 3 of store_internal.h).
 */
#include "store/store_internal.h"

#include <stdio.h>
#include <string.h>

status store_snapshot_begin(store *s, store_snapshot *out, err *e)
{
    store_snapshot snapshot = {0};
    TRY(store_env_begin(&s->index, false, &snapshot.index, e));
    status result = store_env_begin(&s->blobs, false, &snapshot.blobs, e);
    if (result != ST_OK) {
        store_snapshot_end(&snapshot);
        return result;
    }
    *out = snapshot;
    return ST_OK;
}

void store_snapshot_end(store_snapshot *snapshot)
{
    if (snapshot->blobs != NULL) {
        mdb_txn_abort(snapshot->blobs);
    }
    if (snapshot->index != NULL) {
        mdb_txn_abort(snapshot->index); /* last: it is what keeps the payloads from being wiped */
    }
    *snapshot = (store_snapshot){0};
}

static size_t print_name(char *out, size_t room, const uint8_t *name, size_t bytes)
{
    size_t at = 0;
    for (size_t i = 0; i < bytes && at + 5 < room; i++) {
        if (name[i] > ' ' && name[i] < 127 && name[i] != '\\' && name[i] != '/') {
            out[at++] = (char)name[i];
        } else {
            at += (size_t)snprintf(out + at, room - at, "\\x%02x", name[i]);
        }
    }
    out[at] = '\0';
    return at;
}

void store_key_print(const record_fields *key, char *out, size_t out_bytes)
{
    char tenant[RECORD_NAME_BYTES_MAX + 1], session[RECORD_NAME_BYTES_MAX + 1];
    (void)print_name(tenant, sizeof tenant, key->tenant, key->tenant_bytes);
    (void)print_name(session, sizeof session, key->session, key->session_bytes);
    (void)snprintf(out, out_bytes, "%s %llu of %s/%s", record_kind_name(key->kind),
            (unsigned long long)key->number, tenant, session);
}

/* ---- verifying ---- */

static const char *verify_pointed(const store *s,
        const store_snapshot *snapshot,
        const record_fields *entry,
        const uint8_t **payload,
        size_t *payload_bytes)
{
    bool is_blob = record_kind_is_blob(entry->kind);
    store_id_key id = store_id_encode(entry->id);
    MDB_val key = {.mv_size = sizeof id, .mv_data = &id}, value;
    record_fields f;
    int rc = mdb_get(is_blob ? snapshot->blobs : snapshot->index,
            s->payloads[is_blob ? PLACE_BLOBS : PLACE_VALUES], &key, &value);
    if (rc != MDB_SUCCESS) {
        return rc == MDB_NOTFOUND ? "its payload is missing" : "the tree that holds its payload is damaged";
    }
    if (((uintptr_t)value.mv_data + RECORD_PAYLOAD_AT) % store_place_env(s, PLACE_BLOBS)->page_bytes != 0) {
        return "its payload does not start on a page";
    }
    const char *wrong = record_parse(value.mv_data, value.mv_size, &f);
    if (wrong != NULL) {
        return wrong;
    }
    if (f.role != ROLE_PAYLOAD || f.id != entry->id || !record_matches_key(&f, entry) ||
            f.fingerprint != entry->fingerprint || f.payload_bytes != entry->payload_bytes ||
            f.payload_hash != entry->payload_hash) {
        return "its payload belongs to something else";
    }
    *payload = record_payload(&f, value.mv_data);
    *payload_bytes = (size_t)f.payload_bytes;
    return *payload == NULL ? "payload checksum differs" : NULL;
}

const char *store_verify(const store *s,
        const store_snapshot *snapshot,
        const record_fields *key,
        const MDB_val *entry,
        const uint8_t **payload,
        size_t *payload_bytes)
{
    record_fields f;
    const char *wrong = record_parse(entry->mv_data, entry->mv_size, &f);
    if (wrong != NULL) {
        return wrong;
    }
    if (!record_matches_key(&f, key)) {
        return "entry belongs to another key";
    }
    if (f.fingerprint != s->fingerprint) {
        return "made with another fingerprint";
    }
    if (f.role != (record_kind_is_inline(f.kind) ? ROLE_INLINE : ROLE_POINTER)) {
        return "entry has the wrong role";
    }
    if (f.role == ROLE_POINTER) {
        return verify_pointed(s, snapshot, &f, payload, payload_bytes);
    }
    *payload = record_payload(&f, entry->mv_data);
    *payload_bytes = (size_t)f.payload_bytes;
    return *payload == NULL ? "payload checksum differs" : NULL;
}

/* ---- reading one ---- */

static status read_at(
        store *s, const store_snapshot *snapshot, const record_key *k, store_visit visit, void *ctx, err *e)
{
    record_fields key;
    char name[400];
    const uint8_t *payload;
    size_t payload_bytes;
    REQUIRE(record_key_decode(k->bytes, k->size, &key));
    MDB_val mdb_key = {.mv_size = k->size, .mv_data = (void *)(uintptr_t)k->bytes}, entry;
    int rc = mdb_get(snapshot->index, s->entries, &mdb_key, &entry);
    if (rc == MDB_NOTFOUND) {
        store_key_print(&key, name, sizeof name);
        return FAIL(e, ST_ERR_NOT_FOUND, "store: no %s", name);
    }
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, &s->index, rc, "reading");
    }
    const char *wrong = store_verify(s, snapshot, &key, &entry, &payload, &payload_bytes);
    if (wrong != NULL) {
        atomic_fetch_add(&s->checksum_failures, 1);
        store_key_print(&key, name, sizeof name);
        return FAIL(e, ST_ERR_CORRUPT, "store: %s: %s", name, wrong);
    }
    return visit(ctx, payload, payload_bytes);
}

status store_read(store *s, const store_key *key, store_visit visit, void *ctx, err *e)
{
    record_key k;
    store_snapshot snapshot;
    if (record_key_encode(key, &k) != ST_OK) {
        return FAIL(
                e, ST_ERR_ARG, "store: tenant and session have 1 to %d bytes each", RECORD_NAME_BYTES_MAX);
    }
    TRY(store_snapshot_begin(s, &snapshot, e));
    status result = read_at(s, &snapshot, &k, visit, ctx, e);
    store_snapshot_end(&snapshot);
    return result;
}

typedef struct copy_out {
    void *data;
    size_t bytes;
} copy_out;

static status copy_visit(void *ctx, const void *data, size_t bytes)
{
    copy_out *copy = ctx;
    copy->data = base_alloc(bytes);
    if (copy->data == NULL) {
        return ST_ERR_MEMORY;
    }
    memcpy(copy->data, data, bytes);
    copy->bytes = bytes;
    return ST_OK;
}

status store_read_copy(store *s, const store_key *key, void **data, size_t *bytes, err *e)
{
    copy_out copy = {0};
    status result = store_read(s, key, copy_visit, &copy, e);
    if (result == ST_ERR_MEMORY && copy.data == NULL) {
        return FAIL(e, result, "store: out of memory reading a record");
    }
    TRY(result);
    *data = copy.data;
    *bytes = copy.bytes;
    return ST_OK;
}

/* ---- walking ---- */

typedef struct walk {
    store *s;
    store_snapshot snapshot;
    MDB_cursor *cursor;
    record_key range;   /* what all keys start with */
    record_key seek;    /* where to go next, when seeking */
    const char *prefix; /* of session names; NULL: all */
    size_t prefix_bytes;
    const char *after; /* session whose own records are behind us; NULL: none */
    store_visit_record visit;
    void *ctx;
} walk;

/* Session names of a tenant are ordered by length, then by bytes: the first key behind `at` whose session can start
 * with the prefix. False when there is none. */
static bool seek_prefix(walk *w, const record_fields *at)
{
    size_t length = at->session_bytes;
    if (length < w->prefix_bytes) {
        length = w->prefix_bytes;
    } else if (memcmp(at->session, w->prefix, w->prefix_bytes) > 0) {
        length++;
    }
    if (length > RECORD_NAME_BYTES_MAX) {
        return false;
    }
    w->seek = w->range;
    w->seek.bytes[w->seek.size++] = (uint8_t)length;
    memcpy(w->seek.bytes + w->seek.size, w->prefix, w->prefix_bytes);
    w->seek.size = (uint16_t)(w->seek.size + w->prefix_bytes);
    return true;
}

static status walk_visit(walk *w, const record_fields *f, const MDB_val *entry)
{
    char tenant[RECORD_NAME_BYTES_MAX + 1], session[RECORD_NAME_BYTES_MAX + 1];
    const uint8_t *payload = NULL;
    size_t payload_bytes = 0;
    memcpy(tenant, f->tenant, f->tenant_bytes);
    tenant[f->tenant_bytes] = '\0';
    memcpy(session, f->session, f->session_bytes);
    session[f->session_bytes] = '\0';
    store_key key = {.kind = f->kind, .tenant = tenant, .session = session, .number = f->number};
    if (store_verify(w->s, &w->snapshot, f, entry, &payload, &payload_bytes) != NULL) {
        atomic_fetch_add(&w->s->checksum_failures, 1);
        payload = NULL;
        payload_bytes = 0;
    }
    return w->visit(w->ctx, &key, payload, payload_bytes);
}

static status walk_all(walk *w, err *e)
{
    MDB_val key = {.mv_size = w->seek.size, .mv_data = w->seek.bytes}, entry;
    MDB_cursor_op op = MDB_SET_RANGE;
    for (;;) {
        record_fields f;
        int rc = mdb_cursor_get(w->cursor, &key, &entry, op);
        if (rc == MDB_NOTFOUND ||
                (rc == MDB_SUCCESS &&
                        (key.mv_size < w->range.size ||
                                memcmp(key.mv_data, w->range.bytes, w->range.size) != 0))) {
            return ST_OK;
        }
        if (rc != MDB_SUCCESS) {
            return FAIL_MDB(e, &w->s->index, rc, "walking");
        }
        op = MDB_NEXT;
        if (!record_key_decode(key.mv_data, key.mv_size, &f)) {
            atomic_fetch_add(&w->s->checksum_failures, 1);
            continue;
        }
        if (w->after != NULL && f.session_bytes == strlen(w->after) &&
                memcmp(f.session, w->after, f.session_bytes) == 0) {
            continue;
        }
        if (w->prefix != NULL &&
                (f.session_bytes < w->prefix_bytes || memcmp(f.session, w->prefix, w->prefix_bytes) != 0)) {
            if (!seek_prefix(w, &f)) {
                return ST_OK;
            }
            key = (MDB_val){.mv_size = w->seek.size, .mv_data = w->seek.bytes};
            op = MDB_SET_RANGE;
            continue;
        }
        TRY(walk_visit(w, &f, &entry));
    }
}

status store_walk(store *s,
        store_kind kind,
        const char *tenant,
        const char *session,
        const char *prefix,
        const char *after,
        store_visit_record visit,
        void *ctx,
        err *e)
{
    walk w = {.s = s, .visit = visit, .ctx = ctx};
    if (session == NULL && prefix != NULL && prefix[0] != '\0') {
        w.prefix = prefix;
        w.prefix_bytes = strlen(prefix);
    }
    if (session == NULL && after != NULL && after[0] != '\0') {
        w.after = after;
    }
    store_key start = {.kind = kind, .tenant = tenant, .session = w.after, .number = UINT64_MAX};
    if (record_key_encode_prefix(kind, tenant, session, &w.range) != ST_OK ||
            (w.after != NULL && record_key_encode(&start, &w.seek) != ST_OK)) {
        return FAIL(
                e, ST_ERR_ARG, "store: tenant and session have 1 to %d bytes each", RECORD_NAME_BYTES_MAX);
    }
    if (w.after == NULL) {
        w.seek = w.range;
    }
    TRY(store_snapshot_begin(s, &w.snapshot, e));
    int rc = mdb_cursor_open(w.snapshot.index, s->entries, &w.cursor);
    status result = rc == MDB_SUCCESS ? walk_all(&w, e) : FAIL_MDB(e, &s->index, rc, "walking");
    if (rc == MDB_SUCCESS) {
        mdb_cursor_close(w.cursor);
    }
    store_snapshot_end(&w.snapshot);
    return result;
}
