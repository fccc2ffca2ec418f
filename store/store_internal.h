/*
 * store_internal: what the files of this folder share. Who does what:
 *   folder.c   the data folder: making it, its lock, its format file, one opening per process
 *   env.c      one LMDB environment: opening, error codes, pages in use, oldest reader
 *   record.c   the bytes of a value
 *   batch.c    a batch as the caller builds it
 *   commit.c   applying a batch
 *   sweep.c    overwriting and deleting payloads that nothing points to any more
 *   scrub.c    clearing free pages after a commit that was killed or failed
 *   read.c     reading and walking
 *   check.c    pairing of entries and payloads at open, and store_check
 *   open.c     open, close, statistics
 *
 * Where things are. Environment `index` has two tables: `entries` (key -> INLINE or POINTER record) and `values`
 * (id -> PAYLOAD record of sessions, turns, episodes, vectors). Environment `blobs` has one: id -> PAYLOAD record.
 *
 * Invariants
 * 1. A payload is never changed while an entry points to it. An overwrite is a new payload under a fresh id.
 * 2. A payload is committed before, or together with, the entry that points to it.
 * 3. A payload is overwritten and deleted only when no reader's index snapshot is older than the transaction that
 *    unlinked it. So a reader that pins an index snapshot FIRST and opens `blobs` second finds every payload its
 *    entries name, whole.
 * 4. A payload's bytes are overwritten in the file, in place, before its pages are freed. An overwrite inside the
 *    transaction would not do: LMDB is copy-on-write, the old pages keep their bytes. Payload records span two pages
 *    or more, since LMDB recycles the buffers of single pages unwiped, and their bytes would show up in other pages.
 */
#ifndef EPIMEM_STORE_STORE_INTERNAL_H
#define EPIMEM_STORE_STORE_INTERNAL_H

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "store/record_internal.h"

/* ---- env.c ---- */

typedef struct store_env {
    MDB_env *env;
    int fd; /* LMDB's own descriptor of the data file */
    size_t page_bytes;
    const char *name; /* "index" or "blobs", for messages */
} store_env;

status store_env_open(
        store_env *v, const char *path, const char *name, uint64_t map_bytes, bool read_only, err *e);
void store_env_close(store_env *v);
/* LMDB's code as a status; a full disk in any of its disguises is ST_ERR_FULL. */
status store_env_status(const store_env *v, int rc);
#define FAIL_MDB(e, v, rc, doing)                                                                      \
    err_set((e), store_env_status((v), (rc)), (rc), __FILE__, __LINE__, "store: %s (%s): %s", (doing), \
            (v)->name, mdb_strerror(rc))
status store_env_begin(const store_env *v, bool write, MDB_txn **txn, err *e);
/* Pages that hold something: metas, tables, and the list of free pages. */
status store_env_pages_in_use(
        const store_env *v, MDB_txn *txn, const MDB_dbi *tables, int n_tables, uint64_t *pages);
/* Oldest snapshot any reader holds, in this process or another; UINT64_MAX when there is none. */
uint64_t store_env_oldest_reader(const store_env *v);
/* File offset of a large value that a clean page of the map holds; ST_ERR_UNSUPPORTED when LMDB does not place it as
 * the format relies on. */
status store_env_value_offset(const store_env *v, const MDB_val *value, off_t *offset);
status store_env_write_zeros(const store_env *v, off_t at, uint64_t bytes, err *e);

/* ---- the store ---- */

typedef enum store_place { PLACE_VALUES, PLACE_BLOBS, PLACE_COUNT } store_place;

typedef struct store_unlinked { /* a payload without an entry, waiting to be swept */
    store_place place;
    bool wiped; /* its bytes are overwritten: may be deleted */
    uint64_t id;
    uint64_t txn_id; /* index transaction that unlinked it; 0: was never visible */
    uint64_t pages;
} store_unlinked;

struct store {
    store_env index, blobs;
    MDB_dbi entries, payloads[PLACE_COUNT];
    bool read_only;
    char *path;
    int folder_fd, lock_fd;
    dev_t folder_device; /* with the next: who we are among the stores of this process */
    ino_t folder_inode;
    store *next_open;
    uint64_t fingerprint, cap_bytes;

    pthread_mutex_t commit_lock; /* guards what follows; held over a whole commit */
    uint64_t next_id[PLACE_COUNT];
    store_unlinked *unlinked;
    size_t n_unlinked, unlinked_cap;
    bool scrub_needed; /* free pages may hold bytes of a commit that was none */

    atomic_uint_fast64_t checksum_failures, dropped_at_open, commits;
};

static inline const store_env *store_place_env(const store *s, store_place place)
{
    return place == PLACE_BLOBS ? &s->blobs : &s->index;
}

/* 8 bytes, big-endian, so that LMDB's byte order is the order of ids. */
typedef struct store_id_key {
    uint8_t bytes[8];
} store_id_key;
store_id_key store_id_encode(uint64_t id);
uint64_t store_id_decode(const MDB_val *key); /* 0 when it is none */

/* Sizes of the maps; a test makes them small. */
status store_open_sized(const store_options *o, uint64_t map_bytes, store **out, err *e);

/* ---- folder.c ---- */

status store_folder_open(store *s, const store_options *o, err *e); /* folder, registry, lock, format file */
void store_folder_close(store *s);
/* Whether some process holds the folder for writing. */
bool store_folder_is_held(const store *s);

/* ---- batch.c ---- */

typedef enum store_op_type { OP_PUT, OP_DELETE, OP_DELETE_FROM, OP_ERASE_SESSION } store_op_type;

typedef struct store_op {
    store_op_type type;
    record_key key; /* OP_ERASE_SESSION: any key of that session */
    const void *data;
    size_t bytes;
    uint64_t id; /* of its payload, set while committing; 0: none */
    uint64_t hash;
} store_op;

struct store_batch {
    store_op *ops;
    size_t n_ops, ops_cap;
};

/* ---- sweep.c ---- */

/* Room for so many more unlinked payloads, so that noting them cannot fail later. */
status store_unlinked_reserve(store *s, size_t more);
void store_unlinked_add(store *s, store_place place, uint64_t id, uint64_t txn_id, uint64_t payload_bytes);
/* Overwrites in place what no reader can see any more. */
status store_wipe(store *s, err *e);
/* Deletes the wiped payloads of a place inside a write transaction; after its commit, forget them. */
status store_delete_wiped(store *s, store_place place, MDB_txn *txn, err *e);
void store_forget_wiped(store *s, store_place place);
bool store_has_wiped(const store *s, store_place place);
/* All of it at once, waiting for readers. ST_ERR_BUSY when one holds on for longer. */
status store_sweep(store *s, int64_t wait_us, err *e);
/* Pages of unlinked payloads of a place: they count as free. */
uint64_t store_unlinked_pages(const store *s, store_place place);
uint64_t store_payload_pages(const store_env *v, uint64_t payload_bytes);

/* ---- scrub.c ---- */

/* Clears free pages when that is needed. ST_ERR_BUSY: a reader may use some; those are left for the next time. */
status store_scrub(store *s, err *e);

/* ---- read.c ---- */

typedef struct store_snapshot {
    MDB_txn *index, *blobs;
} store_snapshot;
status store_snapshot_begin(store *s, store_snapshot *out, err *e);
void store_snapshot_end(store_snapshot *snapshot);

/* Checks entry and payload of a key. NULL with the payload set, else what is wrong. `key` as decoded. */
const char *store_verify(const store *s,
        const store_snapshot *snapshot,
        const record_fields *key,
        const MDB_val *entry,
        const uint8_t **payload,
        size_t *payload_bytes);
/* "turn 5 of tenant/session", odd bytes escaped. */
void store_key_print(const record_fields *key, char *out, size_t out_bytes);

/* ---- check.c ---- */

/* Drops payloads without entry and blob entries without payload. */
status store_drop_halves(store *s, err *e);

#endif
