/*
 * commit: applies a batch. Steps, and what a crash after each leaves:
 *   1. wipe what earlier batches unlinked          nothing changes for readers
 *   2. commit new blobs (and delete wiped ones)    blobs without entry: dropped at open
 *   3. commit the index: entries, values           the whole batch is visible and durable
 *   4. after an erase: wipe and delete at once     payloads without entry: wiped and dropped at open
 * A failure in 2 or 3 undoes the batch. LMDB ties a write transaction to its thread: each begins and ends in here.
 */
#include "store/store_internal.h"

#include <string.h>

enum {
    BLOB_TXN_BYTES_MAX = 64 << 20, /* LMDB holds a transaction's pages in memory: bounds that. Arbitrary */
    INDEX_SPARE_PAGES =
            16, /* inner pages and free list, more than one batch adds to a tree; measured 4 to 9 */
    ERASE_WAIT_US = 5000000 /* for readers to end; they take milliseconds */
};

/* ---- own cap ---- */

static void pages_needed(const store *s, const store_batch *b, uint64_t *pages)
{
    uint64_t payload_pages = 0, entry_bytes = 0;
    for (size_t i = 0; i < b->n_ops; i++) {
        const store_op *op = &b->ops[i];
        if (op->type != OP_PUT) {
            continue;
        }
        const uint64_t node_bytes = 16;
        entry_bytes += node_bytes + (uint64_t)2 * op->key.size + RECORD_HEADER_BYTES;
        if (record_kind_is_inline((store_kind)op->key.bytes[0])) {
            entry_bytes += op->bytes;
        } else {
            payload_pages += store_payload_pages(&s->index, op->bytes) + 1;
        }
    }
    /* Half-filled leaves are the worst that a split leaves. The page more per payload is leaf and free list. */
    *pages = entry_bytes == 0 ? 0 : payload_pages + 2 * entry_bytes / s->index.page_bytes + INDEX_SPARE_PAGES;
}

static status pages_in_use(store *s, uint64_t *index_pages, uint64_t *blob_pages, err *e)
{
    store_snapshot snapshot;
    MDB_dbi index_tables[] = {s->entries, s->payloads[PLACE_VALUES]};
    TRY(store_snapshot_begin(s, &snapshot, e));
    status result = store_env_pages_in_use(&s->index, snapshot.index, index_tables, 2, index_pages);
    if (result == ST_OK) { /* the one table of blobs is the table of tables, counted already */
        result = store_env_pages_in_use(&s->blobs, snapshot.blobs, NULL, 0, blob_pages);
    }
    store_snapshot_end(&snapshot);
    if (result != ST_OK) {
        return FAIL(e, result, "store: cannot count pages in use");
    }
    *index_pages -= store_unlinked_pages(s, PLACE_VALUES);
    *blob_pages -= store_unlinked_pages(s, PLACE_BLOBS);
    return ST_OK;
}

static status check_cap(store *s, const store_batch *b, err *e)
{
    uint64_t needed, index_pages = 0, blob_pages = 0;
    pages_needed(s, b, &needed);
    if (s->cap_bytes == 0 || needed == 0) {
        return ST_OK;
    }
    TRY(pages_in_use(s, &index_pages, &blob_pages, e));
    uint64_t used_bytes = (index_pages + blob_pages) * s->index.page_bytes;
    uint64_t needed_bytes = needed * s->index.page_bytes;
    if (used_bytes > s->cap_bytes || needed_bytes > s->cap_bytes - used_bytes) {
        return FAIL(e, ST_ERR_FULL, "store: %llu bytes in use and %llu more would pass the cap of %llu",
                (unsigned long long)used_bytes, (unsigned long long)needed_bytes,
                (unsigned long long)s->cap_bytes);
    }
    return ST_OK;
}

void store_get_stats(store *s, store_stats *out)
{
    *out = (store_stats){.cap_bytes = s->cap_bytes,
            .checksum_failures = atomic_load(&s->checksum_failures),
            .dropped_at_open = atomic_load(&s->dropped_at_open),
            .commits = atomic_load(&s->commits)};
    store_snapshot snapshot;
    uint64_t index_pages = 0, blob_pages = 0;
    MDB_stat entries, blobs;
    (void)pthread_mutex_lock(&s->commit_lock);
    if (pages_in_use(s, &index_pages, &blob_pages, NULL) == ST_OK &&
            store_snapshot_begin(s, &snapshot, NULL) == ST_OK) {
        out->index_bytes = index_pages * s->index.page_bytes;
        out->blob_bytes = blob_pages * s->blobs.page_bytes;
        if (mdb_stat(snapshot.index, s->entries, &entries) == MDB_SUCCESS &&
                mdb_stat(snapshot.blobs, s->payloads[PLACE_BLOBS], &blobs) == MDB_SUCCESS) {
            uint64_t waiting = 0;
            for (size_t i = 0; i < s->n_unlinked; i++) {
                waiting += s->unlinked[i].place == PLACE_BLOBS;
            }
            out->blobs = blobs.ms_entries - waiting;
            out->records = entries.ms_entries - out->blobs;
        }
        store_snapshot_end(&snapshot);
    }
    (void)pthread_mutex_unlock(&s->commit_lock);
}

/* ---- putting one record ---- */

static record_fields fields_of(const store *s, const store_op *op, record_role role)
{
    record_fields f;
    REQUIRE(record_key_decode(op->key.bytes, op->key.size, &f));
    f.role = role;
    f.id = op->id;
    f.payload_bytes = op->bytes;
    f.payload_hash = op->hash;
    f.fingerprint = s->fingerprint;
    return f;
}

static int put_payload(store *s, store_place place, MDB_txn *txn, const store_op *op)
{
    record_fields f = fields_of(s, op, ROLE_PAYLOAD);
    store_id_key id = store_id_encode(op->id);
    MDB_val key = {.mv_size = sizeof id, .mv_data = &id}, value = {.mv_size = record_size(&f)};
    int rc = mdb_put(txn, s->payloads[place], &key, &value, MDB_RESERVE | MDB_NOOVERWRITE);
    if (rc == MDB_SUCCESS) {
        record_write_header(&f, value.mv_data);
        if (op->bytes > 0) {
            memcpy((uint8_t *)value.mv_data + RECORD_PAYLOAD_AT, op->data, op->bytes);
        }
    }
    return rc;
}

static int put_entry(const store *s, MDB_txn *txn, const store_op *op)
{
    bool is_inline = record_kind_is_inline((store_kind)op->key.bytes[0]);
    record_fields f = fields_of(s, op, is_inline ? ROLE_INLINE : ROLE_POINTER);
    MDB_val key = {.mv_size = op->key.size, .mv_data = (void *)(uintptr_t)op->key.bytes};
    MDB_val value = {.mv_size = record_size(&f)};
    int rc = mdb_put(txn, s->entries, &key, &value, MDB_RESERVE);
    if (rc == MDB_SUCCESS) {
        record_write_header(&f, value.mv_data);
        if (is_inline && op->bytes > 0) {
            memcpy((uint8_t *)value.mv_data + record_payload_at(&f), op->data, op->bytes);
        }
    }
    return rc;
}

/* ---- step 2: blobs ---- */

static bool is_blob_put(const store_op *op)
{
    return op->type == OP_PUT && record_kind_is_blob((store_kind)op->key.bytes[0]);
}

/* One transaction of blobs from ops[*at] on; moves *at past what it committed. */
static status write_blobs_once(store *s, store_batch *b, size_t *at, err *e)
{
    MDB_txn *txn;
    size_t i = *at, bytes = 0;
    TRY(store_env_begin(&s->blobs, true, &txn, e));
    status result = store_delete_wiped(s, PLACE_BLOBS, txn, e);
    for (; result == ST_OK && i < b->n_ops && bytes < BLOB_TXN_BYTES_MAX; i++) {
        if (!is_blob_put(&b->ops[i])) {
            continue;
        }
        b->ops[i].id = s->next_id[PLACE_BLOBS]++;
        int rc = put_payload(s, PLACE_BLOBS, txn, &b->ops[i]);
        result = rc == MDB_SUCCESS ? ST_OK : FAIL_MDB(e, &s->blobs, rc, "writing");
        bytes += b->ops[i].bytes;
    }
    if (result != ST_OK) {
        mdb_txn_abort(txn);
        return result;
    }
    int rc = mdb_txn_commit(txn);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, &s->blobs, rc, "committing");
    }
    store_forget_wiped(s, PLACE_BLOBS);
    *at = i;
    return ST_OK;
}

static size_t next_blob_put(const store_batch *b, size_t at)
{
    while (at < b->n_ops && !is_blob_put(&b->ops[at])) {
        at++;
    }
    return at;
}

static status write_blobs(store *s, store_batch *b, size_t *at, err *e)
{
    while (next_blob_put(b, *at) < b->n_ops || store_has_wiped(s, PLACE_BLOBS)) {
        TRY(write_blobs_once(s, b, at, e));
    }
    return ST_OK;
}

/* ---- step 3: index ---- */

/* Notes the payload of an entry that is about to go. A damaged entry's payload is found at the next open instead. */
static status unlink_payload(store *s, MDB_txn *txn, const MDB_val *entry)
{
    record_fields f;
    if (record_parse(entry->mv_data, entry->mv_size, &f) != NULL || f.role != ROLE_POINTER) {
        return ST_OK;
    }
    TRY(store_unlinked_reserve(s, 1));
    store_unlinked_add(s, record_kind_is_blob(f.kind) ? PLACE_BLOBS : PLACE_VALUES, f.id, mdb_txn_id(txn),
            f.payload_bytes);
    return ST_OK;
}

static status apply_put(store *s, MDB_txn *txn, store_op *op, err *e)
{
    store_kind kind = (store_kind)op->key.bytes[0];
    MDB_val key = {.mv_size = op->key.size, .mv_data = op->key.bytes}, old;
    int rc = mdb_get(txn, s->entries, &key, &old);
    if (rc == MDB_SUCCESS) {
        TRY(unlink_payload(s, txn, &old));
    } else if (rc != MDB_NOTFOUND) {
        return FAIL_MDB(e, &s->index, rc, "looking up");
    }
    rc = MDB_SUCCESS;
    if (!record_kind_is_blob(kind) && !record_kind_is_inline(kind)) {
        op->id = s->next_id[PLACE_VALUES]++;
        rc = put_payload(s, PLACE_VALUES, txn, op);
    }
    if (rc == MDB_SUCCESS) {
        rc = put_entry(s, txn, op);
    }
    return rc == MDB_SUCCESS ? ST_OK : FAIL_MDB(e, &s->index, rc, "writing");
}

/* Deletes entries from `first` on that share its first prefix_bytes; with only_one, `first` itself. */
static status apply_delete(store *s, MDB_txn *txn, const record_key *first, bool only_one, err *e)
{
    size_t prefix_bytes = only_one ? first->size : first->size - 8u;
    for (;;) {
        MDB_cursor *cursor;
        MDB_val key = {.mv_size = first->size, .mv_data = (void *)(uintptr_t)first->bytes}, value;
        int rc = mdb_cursor_open(txn, s->entries, &cursor);
        if (rc != MDB_SUCCESS) {
            return FAIL_MDB(e, &s->index, rc, "deleting");
        }
        status result = ST_OK;
        rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        bool hit = rc == MDB_SUCCESS && key.mv_size == first->size &&
                memcmp(key.mv_data, first->bytes, prefix_bytes) == 0;
        if (hit) {
            result = unlink_payload(s, txn, &value);
            rc = result == ST_OK ? mdb_cursor_del(cursor, 0) : MDB_SUCCESS;
        }
        mdb_cursor_close(cursor);
        TRY(result);
        if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND) {
            return FAIL_MDB(e, &s->index, rc, "deleting");
        }
        if (!hit || only_one) {
            return ST_OK;
        }
    }
}

/* Everything keyed by the session. A STORE_NAME record has a hash in the place of the session's name: not ours. */
static status apply_erase(store *s, MDB_txn *txn, const record_key *any, err *e)
{
    record_key first = *any;
    memset(first.bytes + first.size - 8, 0, 8);
    for (int kind = STORE_SESSION; record_kind_valid(kind); kind++) {
        if (kind != STORE_NAME) {
            first.bytes[0] = (uint8_t)kind;
            TRY(apply_delete(s, txn, &first, false, e));
        }
    }
    return ST_OK;
}

static status apply(store *s, MDB_txn *txn, store_batch *b, err *e)
{
    TRY(store_delete_wiped(s, PLACE_VALUES, txn, e));
    for (size_t i = 0; i < b->n_ops; i++) {
        store_op *op = &b->ops[i];
        switch (op->type) {
        case OP_PUT:
            TRY(apply_put(s, txn, op, e));
            break;
        case OP_DELETE:
            TRY(apply_delete(s, txn, &op->key, true, e));
            break;
        case OP_DELETE_FROM:
            TRY(apply_delete(s, txn, &op->key, false, e));
            break;
        case OP_ERASE_SESSION:
            TRY(apply_erase(s, txn, &op->key, e));
            break;
        }
    }
    return ST_OK;
}

/* *unknown: the commit failed in a way that leaves open whether it happened (LMDB then refuses to go on). */
static status write_index(store *s, store_batch *b, bool *unknown, err *e)
{
    MDB_txn *txn;
    *unknown = false;
    TRY(store_env_begin(&s->index, true, &txn, e));
    status result = apply(s, txn, b, e);
    if (result != ST_OK) {
        mdb_txn_abort(txn);
        return result == ST_ERR_MEMORY ? FAIL(e, result, "store: out of memory in a commit") : result;
    }
    int rc = mdb_txn_commit(txn);
    if (rc != MDB_SUCCESS) {
        result = FAIL_MDB(e, &s->index, rc, "committing");
        *unknown = store_env_begin(&s->index, false, &txn, NULL) != ST_OK;
        if (!*unknown) {
            mdb_txn_abort(txn);
        }
        return result;
    }
    store_forget_wiped(s, PLACE_VALUES);
    return ST_OK;
}

/* ---- all of it ---- */

static bool prepare(store_batch *b, size_t *n_blobs)
{
    bool erases = false;
    *n_blobs = 0;
    for (size_t i = 0; i < b->n_ops; i++) {
        store_op *op = &b->ops[i];
        op->id = 0;
        op->hash = op->type == OP_PUT ? record_hash(op->data == NULL ? "" : op->data, op->bytes) : 0;
        *n_blobs += is_blob_put(op);
        erases = erases || op->type == OP_ERASE_SESSION;
    }
    return erases;
}

/* A commit that changes nothing. LMDB reuses pages only two commits after the one that freed them. */
static status commit_nothing(const store_env *v, MDB_dbi table, err *e)
{
    MDB_txn *txn;
    uint8_t zero = 0; /* no key of ours starts with it */
    MDB_val key = {.mv_size = 1, .mv_data = &zero}, value = {.mv_size = 1, .mv_data = &zero};
    TRY(store_env_begin(v, true, &txn, e));
    int rc = mdb_put(txn, table, &key, &value, 0);
    if (rc == MDB_SUCCESS) {
        rc = mdb_del(txn, table, &key, NULL);
    }
    if (rc != MDB_SUCCESS) {
        mdb_txn_abort(txn);
    } else {
        rc = mdb_txn_commit(txn);
    }
    return rc == MDB_SUCCESS ? ST_OK : FAIL_MDB(e, v, rc, "making room");
}

/* What earlier batches deleted becomes usable at once, where a commit left to itself would need more room first. */
static status make_room(store *s, err *e)
{
    status swept = store_sweep(s, 0, e);
    if (swept != ST_OK && swept != ST_ERR_BUSY) { /* busy: a reader holds some of it */
        return swept;
    }
    TRY(commit_nothing(&s->blobs, s->payloads[PLACE_BLOBS], e));
    return commit_nothing(&s->index, s->entries, e);
}

static status write_batch(store *s, store_batch *b, size_t n_blobs, err *e)
{
    bool unknown = false;
    size_t blob_ops_done = 0;
    if (store_unlinked_reserve(s, n_blobs) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "store: out of memory in a commit");
    }
    TRY(store_wipe(s, e));
    status result = write_blobs(s, b, &blob_ops_done, e);
    size_t n_before = s->n_unlinked;
    if (result == ST_OK) {
        result = write_index(s, b, &unknown, e);
    }
    if (result != ST_OK) {
        s->scrub_needed = true;
        s->n_unlinked = n_before; /* the index transaction unlinked nothing */
        for (size_t i = 0; i < blob_ops_done && !unknown; i++) {
            if (is_blob_put(&b->ops[i])) {
                store_unlinked_add(s, PLACE_BLOBS, b->ops[i].id, 0, b->ops[i].bytes);
            }
        }
        if (!unknown && blob_ops_done > 0) {
            (void)store_sweep(s, 0, NULL); /* else the next commit or open does it */
        }
    }
    return result;
}

static status commit_locked(store *s, store_batch *b, bool erases, size_t n_blobs, err *e)
{
    TRY(check_cap(s, b, e));
    status result = write_batch(s, b, n_blobs, e);
    if (result == ST_ERR_FULL && make_room(s, NULL) == ST_OK) {
        result = write_batch(s, b, n_blobs, e);
    }
    TRY(result);
    atomic_fetch_add(&s->commits, 1);
    if (erases) {
        TRY(store_sweep(s, ERASE_WAIT_US, e));
        TRY(store_scrub(s, e));
    }
    return ST_OK;
}

status store_commit(store *s, store_batch *b, err *e)
{
    size_t n_blobs;
    if (s->read_only) {
        return FAIL(e, ST_ERR_ARG, "store: opened for reading only");
    }
    if (b->n_ops == 0) {
        return ST_OK;
    }
    bool erases = prepare(b, &n_blobs);
    (void)pthread_mutex_lock(&s->commit_lock);
    status result = commit_locked(s, b, erases, n_blobs, e);
    (void)pthread_mutex_unlock(&s->commit_lock);
    return result;
}
