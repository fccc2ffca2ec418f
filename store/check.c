/*
 * check: which payload belongs to which entry. At open it drops what interrupted writes left; store_check reports the
 * same and verifies every value. Pairing looks at entries and ids alone, under one snapshot: a payload's pages are not
 * touched. Verifying renews its snapshot now and then, so that a long check does not keep pages from being reused.
 */
#include "store/store_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VERIFY_RECORDS_MAX = 1024, VERIFY_BYTES_MAX = 64 << 20 }; /* per snapshot; arbitrary */

typedef struct id_list {
    uint64_t *ids;
    size_t n_ids, cap;
} id_list;

typedef struct pairing {
    id_list named[PLACE_COUNT];    /* ids that entries point to, sorted */
    id_list orphans[PLACE_COUNT];  /* ids that none points to */
    uint64_t last_id[PLACE_COUNT]; /* of the tables */
    record_key *halves;            /* blob entries without payload */
    size_t n_halves, halves_cap;
    uint64_t damaged_entries;
} pairing;

static status id_list_add(id_list *l, uint64_t id)
{
    void *ids = l->ids;
    TRY(base_grow(&ids, &l->cap, l->n_ids + 1, SIZE_MAX / sizeof *l->ids, sizeof *l->ids));
    l->ids = ids;
    l->ids[l->n_ids++] = id;
    return ST_OK;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static void pairing_free(pairing *p)
{
    for (int place = 0; place < PLACE_COUNT; place++) {
        base_free(p->named[place].ids);
        base_free(p->orphans[place].ids);
    }
    base_free(p->halves);
}

/* ---- pairing ---- */

static bool payload_exists(const store *s, const store_snapshot *snapshot, store_place place, uint64_t number)
{
    store_id_key id = store_id_encode(number);
    MDB_val key = {.mv_size = sizeof id, .mv_data = &id}, value;
    return mdb_get(place == PLACE_BLOBS ? snapshot->blobs : snapshot->index, s->payloads[place], &key,
                   &value) != MDB_NOTFOUND;
}

static status pair_entry(
        const store *s, const store_snapshot *snapshot, pairing *p, const MDB_val *key, const MDB_val *entry)
{
    record_fields f, named;
    if (!record_key_decode(key->mv_data, key->mv_size, &named) ||
            record_parse(entry->mv_data, entry->mv_size, &f) != NULL || !record_matches_key(&f, &named)) {
        p->damaged_entries++;
        return ST_OK;
    }
    if (f.role != ROLE_POINTER) {
        return ST_OK;
    }
    store_place place = record_kind_is_blob(f.kind) ? PLACE_BLOBS : PLACE_VALUES;
    if (place == PLACE_BLOBS && !payload_exists(s, snapshot, place, f.id)) {
        void *halves = p->halves;
        TRY(base_grow(
                &halves, &p->halves_cap, p->n_halves + 1, SIZE_MAX / sizeof *p->halves, sizeof *p->halves));
        p->halves = halves;
        p->halves[p->n_halves].size = (uint16_t)key->mv_size;
        memcpy(p->halves[p->n_halves++].bytes, key->mv_data, key->mv_size);
    }
    return id_list_add(&p->named[place], f.id);
}

static status pair_entries(const store *s, const store_snapshot *snapshot, pairing *p, err *e)
{
    MDB_cursor *cursor;
    MDB_val key, entry;
    int rc = mdb_cursor_open(snapshot->index, s->entries, &cursor);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, &s->index, rc, "pairing");
    }
    status result = ST_OK;
    while (result == ST_OK && (rc = mdb_cursor_get(cursor, &key, &entry, MDB_NEXT)) == MDB_SUCCESS) {
        result = pair_entry(s, snapshot, p, &key, &entry);
    }
    mdb_cursor_close(cursor);
    if (result != ST_OK) {
        return FAIL(e, result, "store: out of memory pairing entries and payloads");
    }
    return rc == MDB_NOTFOUND ? ST_OK : FAIL_MDB(e, &s->index, rc, "pairing");
}

static status find_orphans(
        const store *s, const store_snapshot *snapshot, pairing *p, store_place place, err *e)
{
    id_list *named = &p->named[place];
    MDB_cursor *cursor;
    MDB_val key, value;
    if (named->n_ids > 0) {
        qsort(named->ids, named->n_ids, sizeof *named->ids, compare_ids);
    }
    const store_env *v = store_place_env(s, place);
    int rc = mdb_cursor_open(
            place == PLACE_BLOBS ? snapshot->blobs : snapshot->index, s->payloads[place], &cursor);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, v, rc, "pairing");
    }
    status result = ST_OK;
    size_t at = 0; /* both are sorted: one pass */
    while (result == ST_OK && (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == MDB_SUCCESS) {
        uint64_t id = store_id_decode(&key);
        p->last_id[place] = id > p->last_id[place] ? id : p->last_id[place];
        while (at < named->n_ids && named->ids[at] < id) {
            at++;
        }
        if (at == named->n_ids || named->ids[at] != id) {
            result = id_list_add(&p->orphans[place], id);
        }
    }
    mdb_cursor_close(cursor);
    if (result != ST_OK) {
        return FAIL(e, result, "store: out of memory pairing entries and payloads");
    }
    return rc == MDB_NOTFOUND ? ST_OK : FAIL_MDB(e, v, rc, "pairing");
}

static status pair(const store *s, const store_snapshot *snapshot, pairing *p, err *e)
{
    TRY(pair_entries(s, snapshot, p, e));
    TRY(find_orphans(s, snapshot, p, PLACE_VALUES, e));
    return find_orphans(s, snapshot, p, PLACE_BLOBS, e);
}

/* ---- at open ---- */

static status drop_half_entries(store *s, const pairing *p, err *e)
{
    MDB_txn *txn;
    if (p->n_halves == 0) {
        return ST_OK;
    }
    TRY(store_env_begin(&s->index, true, &txn, e));
    int rc = MDB_SUCCESS;
    for (size_t i = 0; i < p->n_halves && (rc == MDB_SUCCESS || rc == MDB_NOTFOUND); i++) {
        MDB_val key = {.mv_size = p->halves[i].size, .mv_data = p->halves[i].bytes};
        rc = mdb_del(txn, s->entries, &key, NULL);
    }
    if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND) {
        mdb_txn_abort(txn);
        return FAIL_MDB(e, &s->index, rc, "dropping entries");
    }
    rc = mdb_txn_commit(txn);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, &s->index, rc, "dropping entries");
    }
    atomic_fetch_add(&s->dropped_at_open, p->n_halves);
    return ST_OK;
}

static status drop_orphans(store *s, const pairing *p, uint64_t txn_id, err *e)
{
    for (int place = 0; place < PLACE_COUNT; place++) {
        if (store_unlinked_reserve(s, p->orphans[place].n_ids) != ST_OK) {
            return FAIL(e, ST_ERR_MEMORY, "store: out of memory dropping interrupted writes");
        }
        for (size_t i = 0; i < p->orphans[place].n_ids; i++) {
            store_unlinked_add(s, (store_place)place, p->orphans[place].ids[i], txn_id, 0);
        }
    }
    atomic_fetch_add(&s->dropped_at_open, s->n_unlinked);
    if (store_sweep(s, 0, e) != ST_OK) {
        LOG_W("%s", e->text); /* a full disk or a reader: the next commit goes on with it */
    }
    return ST_OK;
}

status store_drop_halves(store *s, err *e)
{
    pairing p = {0};
    store_snapshot snapshot;
    err sweep_error = {0};
    TRY(store_snapshot_begin(s, &snapshot, e));
    uint64_t txn_id = mdb_txn_id(snapshot.index);
    status result = pair(s, &snapshot, &p, e);
    store_snapshot_end(&snapshot);
    if (result == ST_OK) {
        for (int place = 0; place < PLACE_COUNT; place++) {
            s->next_id[place] = p.last_id[place] + 1;
        }
        result = drop_half_entries(s, &p, e);
    }
    if (result == ST_OK && p.damaged_entries > 0) {
        /* A payload that looks abandoned may be that of a damaged entry: leave it for who repairs by hand. */
        LOG_W("store: %llu damaged entries in %s; left-overs of interrupted writes are kept",
                (unsigned long long)p.damaged_entries, s->path);
    } else if (result == ST_OK) {
        result = drop_orphans(s, &p, txn_id, &sweep_error);
        if (result != ST_OK && e != NULL) {
            *e = sweep_error;
        }
    }
    pairing_free(&p);
    return result;
}

/* ---- store_check ---- */

typedef struct check {
    store *s;
    void (*report)(void *ctx, const char *line);
    void *ctx;
    store_check_result result;
    record_key at; /* last key verified; size 0: none yet */
} check;

static void report(const check *c, const char *what, const char *wrong)
{
    char line[600];
    if (c->report != NULL) {
        (void)snprintf(line, sizeof line, "%s: %s", what, wrong);
        c->report(c->ctx, line);
    }
}

static void report_orphans(check *c, const pairing *p)
{
    static const char *const names[PLACE_COUNT] = {"value", "blob"};
    char what[64];
    for (int place = 0; place < PLACE_COUNT; place++) {
        for (size_t i = 0; i < p->orphans[place].n_ids; i++) {
            (void)snprintf(
                    what, sizeof what, "%s %llu", names[place], (unsigned long long)p->orphans[place].ids[i]);
            report(c, what, "no entry points to it");
            c->result.orphans++;
        }
    }
}

/* Payloads on their way in or out are no orphans. Our own are known; beside a process that holds the folder, any may
 * be. */
static status check_pairing(check *c, err *e)
{
    pairing p = {0};
    store_snapshot snapshot;
    store *s = c->s;
    status result = ST_OK;
    (void)pthread_mutex_lock(&s->commit_lock);
    if (!s->read_only) {
        (void)store_sweep(s, 0, NULL); /* what it cannot sweep yet is taken as known */
    }
    for (size_t i = 0; i < s->n_unlinked && result == ST_OK; i++) {
        result = id_list_add(&p.named[s->unlinked[i].place], s->unlinked[i].id);
    }
    if (result == ST_OK) {
        result = store_snapshot_begin(s, &snapshot, e);
    } else {
        (void)FAIL(e, result, "store: out of memory in a check");
    }
    (void)pthread_mutex_unlock(&s->commit_lock);
    if (result == ST_OK) {
        result = pair(s, &snapshot, &p, e);
        store_snapshot_end(&snapshot);
        if (result == ST_OK && !(s->read_only && store_folder_is_held(s))) {
            report_orphans(c, &p);
        }
    }
    pairing_free(&p);
    return result;
}

static void verify_one(
        check *c, const store_snapshot *snapshot, const MDB_val *key, const MDB_val *entry, size_t *bytes)
{
    record_fields f;
    char what[400];
    const uint8_t *payload;
    if (!record_key_decode(key->mv_data, key->mv_size, &f)) {
        c->result.damaged++;
        report(c, "an entry", "its key is none");
        return;
    }
    if (record_kind_is_blob(f.kind)) {
        c->result.blobs++;
    } else {
        c->result.records++;
    }
    const char *wrong = store_verify(c->s, snapshot, &f, entry, &payload, bytes);
    if (wrong != NULL) {
        c->result.damaged++;
        *bytes = 0;
        store_key_print(&f, what, sizeof what);
        report(c, what, wrong);
    }
}

/* Goes on behind c->at until the snapshot is old enough; *done at the end of the table. */
static status verify_some(check *c, bool *done, err *e)
{
    store_snapshot snapshot;
    MDB_cursor *cursor;
    MDB_val key = {.mv_size = c->at.size, .mv_data = c->at.bytes}, entry;
    TRY(store_snapshot_begin(c->s, &snapshot, e));
    int rc = mdb_cursor_open(snapshot.index, c->s->entries, &cursor);
    if (rc != MDB_SUCCESS) {
        store_snapshot_end(&snapshot);
        return FAIL_MDB(e, &c->s->index, rc, "checking");
    }
    size_t bytes_seen = 0;
    bool resumed = c->at.size > 0;
    rc = mdb_cursor_get(cursor, &key, &entry, resumed ? MDB_SET_RANGE : MDB_FIRST);
    if (rc == MDB_SUCCESS && resumed && key.mv_size == c->at.size &&
            memcmp(key.mv_data, c->at.bytes, c->at.size) == 0) {
        rc = mdb_cursor_get(cursor, &key, &entry, MDB_NEXT);
    }
    for (int i = 0; rc == MDB_SUCCESS && i < VERIFY_RECORDS_MAX && bytes_seen < VERIFY_BYTES_MAX; i++) {
        size_t bytes = 0;
        verify_one(c, &snapshot, &key, &entry, &bytes);
        bytes_seen += bytes;
        c->at.size = (uint16_t)(key.mv_size < sizeof c->at.bytes ? key.mv_size : sizeof c->at.bytes);
        memcpy(c->at.bytes, key.mv_data, c->at.size);
        rc = mdb_cursor_get(cursor, &key, &entry, MDB_NEXT);
    }
    *done = rc != MDB_SUCCESS;
    if (rc != MDB_SUCCESS && rc != MDB_NOTFOUND) {
        c->result.damaged++;
        report(c, "the index", mdb_strerror(rc));
    }
    mdb_cursor_close(cursor);
    store_snapshot_end(&snapshot);
    return ST_OK;
}

status store_check(
        store *s, void (*on_line)(void *ctx, const char *line), void *ctx, store_check_result *out, err *e)
{
    check c = {.s = s, .report = on_line, .ctx = ctx};
    bool done = false;
    status paired = check_pairing(&c, e);
    if (paired == ST_ERR_CORRUPT) {
        c.result.damaged++;
        report(&c, "the index", "its tree is damaged");
    } else if (paired != ST_OK) {
        return paired;
    }
    while (!done) {
        TRY(verify_some(&c, &done, e));
    }
    *out = c.result;
    return ST_OK;
}
