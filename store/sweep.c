/*
 * sweep: payloads that no entry points to: superseded, deleted, or of a commit that failed half-way. Each is
 *   1. unlinked  (commit.c, open) noted with the index transaction that did it;
 *   2. wiped     store_wipe: once no reader's snapshot is older, zeros over its bytes in the file, in place;
 *   3. deleted   store_delete_wiped: its pages given back, in a later write transaction, whose sync also covers 2.
 * The list is in memory only: after a crash store_drop_halves finds the same payloads by their lack of an entry.
 * All functions run under the commit lock.
 */
#include "store/store_internal.h"

#include <time.h>

store_id_key store_id_encode(uint64_t id)
{
    store_id_key k;
    for (int i = 0; i < 8; i++) {
        k.bytes[i] = (uint8_t)(id >> (56 - 8 * i));
    }
    return k;
}

uint64_t store_id_decode(const MDB_val *key)
{
    const uint8_t *bytes = key->mv_data;
    uint64_t id = 0;
    for (size_t i = 0; i < 8 && key->mv_size == 8; i++) {
        id = id << 8 | bytes[i];
    }
    return id;
}

uint64_t store_payload_pages(const store_env *v, uint64_t payload_bytes)
{
    const uint64_t page_head_bytes = 16;
    return (page_head_bytes + RECORD_PAYLOAD_AT + payload_bytes + v->page_bytes - 1) / v->page_bytes;
}

/* ---- the list ---- */

status store_unlinked_reserve(store *s, size_t more)
{
    void *items = s->unlinked;
    TRY(base_grow(&items, &s->unlinked_cap, s->n_unlinked + more, SIZE_MAX / sizeof *s->unlinked,
            sizeof *s->unlinked));
    s->unlinked = items;
    return ST_OK;
}

void store_unlinked_add(store *s, store_place place, uint64_t id, uint64_t txn_id, uint64_t payload_bytes)
{
    REQUIRE(s->n_unlinked < s->unlinked_cap);
    s->unlinked[s->n_unlinked++] = (store_unlinked){.place = place,
            .id = id,
            .txn_id = txn_id,
            .pages = store_payload_pages(store_place_env(s, place), payload_bytes)};
}

uint64_t store_unlinked_pages(const store *s, store_place place)
{
    uint64_t pages = 0;
    for (size_t i = 0; i < s->n_unlinked; i++) {
        pages += s->unlinked[i].place == place ? s->unlinked[i].pages : 0;
    }
    return pages;
}

bool store_has_wiped(const store *s, store_place place)
{
    for (size_t i = 0; i < s->n_unlinked; i++) {
        if (s->unlinked[i].place == place && s->unlinked[i].wiped) {
            return true;
        }
    }
    return false;
}

void store_forget_wiped(store *s, store_place place)
{
    size_t kept = 0;
    for (size_t i = 0; i < s->n_unlinked; i++) {
        if (s->unlinked[i].place != place || !s->unlinked[i].wiped) {
            s->unlinked[kept++] = s->unlinked[i];
        }
    }
    s->n_unlinked = kept;
}

/* ---- wiping ---- */

/* *given_up: its page header is damaged, so that neither wiping nor deleting can be trusted to hit it alone. */
static status wipe_one(const store *s, const store_unlinked *item, MDB_txn *txn, bool *given_up, err *e)
{
    const store_env *v = store_place_env(s, item->place);
    store_id_key id = store_id_encode(item->id);
    MDB_val key = {.mv_size = sizeof id, .mv_data = &id}, value;
    off_t at;
    *given_up = false;
    int rc = mdb_get(txn, s->payloads[item->place], &key, &value);
    if (rc == MDB_NOTFOUND) {
        return ST_OK;
    }
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, v, rc, "finding erased bytes");
    }
    if (value.mv_size < RECORD_PAYLOAD_AT) {
        return ST_OK; /* none of ours, cut short by somebody: it lies among others and is only deleted */
    }
    status found = store_env_value_offset(v, &value, &at);
    if (found == ST_ERR_UNSUPPORTED) {
        return FAIL(
                e, found, "store: %s: this LMDB does not place large values behind a page header", v->name);
    }
    if (found != ST_OK) {
        LOG_E("store: payload %llu of %s cannot be freed: its page is damaged", (unsigned long long)item->id,
                v->name);
        *given_up = true;
        return ST_OK;
    }
    return store_env_write_zeros(v, at, value.mv_size, e);
}

status store_wipe(store *s, err *e)
{
    uint64_t oldest = UINT64_MAX;
    size_t ready = 0, kept = 0;
    store_snapshot snapshot;
    if (s->n_unlinked > 0) {
        oldest = store_env_oldest_reader(&s->index);
    }
    for (size_t i = 0; i < s->n_unlinked; i++) {
        ready += !s->unlinked[i].wiped && s->unlinked[i].txn_id <= oldest;
    }
    if (ready == 0) {
        return ST_OK;
    }
    TRY(store_snapshot_begin(s, &snapshot, e));
    status result = ST_OK;
    for (size_t i = 0; i < s->n_unlinked; i++) {
        store_unlinked *item = &s->unlinked[i];
        bool given_up = false;
        if (result == ST_OK && !item->wiped && item->txn_id <= oldest) {
            MDB_txn *txn = item->place == PLACE_BLOBS ? snapshot.blobs : snapshot.index;
            result = wipe_one(s, item, txn, &given_up, e);
            item->wiped = result == ST_OK;
        }
        if (!given_up) {
            s->unlinked[kept++] = *item;
        }
    }
    s->n_unlinked = kept;
    store_snapshot_end(&snapshot);
    return result;
}

/* ---- deleting ---- */

status store_delete_wiped(store *s, store_place place, MDB_txn *txn, err *e)
{
    for (size_t i = 0; i < s->n_unlinked; i++) {
        if (s->unlinked[i].place != place || !s->unlinked[i].wiped) {
            continue;
        }
        store_id_key id = store_id_encode(s->unlinked[i].id);
        MDB_val key = {.mv_size = sizeof id, .mv_data = &id};
        int rc = mdb_del(txn, s->payloads[place], &key, NULL);
        if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND) {
            return FAIL_MDB(e, store_place_env(s, place), rc, "freeing");
        }
    }
    return ST_OK;
}

static status delete_now(store *s, store_place place, err *e)
{
    const store_env *v = store_place_env(s, place);
    MDB_txn *txn;
    if (!store_has_wiped(s, place)) {
        return ST_OK;
    }
    TRY(store_env_begin(v, true, &txn, e));
    status result = store_delete_wiped(s, place, txn, e);
    if (result != ST_OK) {
        mdb_txn_abort(txn);
        return result;
    }
    int rc = mdb_txn_commit(txn);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, v, rc, "freeing");
    }
    store_forget_wiped(s, place);
    return ST_OK;
}

status store_sweep(store *s, int64_t wait_us, err *e)
{
    int64_t deadline_us = base_monotonic_us() + wait_us;
    for (;;) {
        TRY(store_wipe(s, e));
        TRY(delete_now(s, PLACE_BLOBS, e));
        TRY(delete_now(s, PLACE_VALUES, e));
        if (s->n_unlinked == 0) {
            return ST_OK;
        }
        if (base_monotonic_us() >= deadline_us) {
            return FAIL(e, ST_ERR_BUSY,
                    "store: a reader still holds what was removed; it is overwritten once that ends");
        }
        int dead;
        (void)mdb_reader_check(s->index.env, &dead); /* a killed reader never ends by itself */
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}
