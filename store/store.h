/*
 * store: durable records over LMDB; the only user of mdb_*.
 *
 * Two environments in one data folder: `index` (small records: the truth) and `blobs` (KV columns and tails: derived,
 * large, few sizes). A record is (kind, tenant, session, number) -> bytes. A write is a BATCH, applied whole or not
 * at all: blobs are committed first, then one index transaction makes everything visible, so a blob without its
 * entry, or an entry without its blob, never reaches a reader (the left-overs of a crash are dropped at open).
 * When store_commit has returned ST_OK the batch is on disk. Every value carries magic, version, the store's
 * fingerprint, its own key, length and XXH3-64, checked before a single byte is handed out; a value that fails is
 * ST_ERR_CORRUPT and is counted. Pointers into LMDB never leave this folder.
 *
 * Keys are length-prefixed fields, never glued names. Tenant and session: 1 to 128 bytes, any byte.
 * Threads: all functions may be called from any thread; commits are serialised inside.
 */
#ifndef EPIMEM_STORE_STORE_H
#define EPIMEM_STORE_STORE_H

#include "kernels/base.h"

typedef struct store store;

typedef struct store_options {
    const char *path; /* data folder, made (0700) when missing */
    const char *
            fingerprint; /* text naming model, tokenizer, codec... (at most 4096 bytes); compared with what the
                              * folder was made with. With read_only NULL takes any */
    uint64_t cap_bytes;  /* own cap on pages in use over both environments; 0: none. ST_ERR_FULL past it */
    bool read_only;      /* check, backup: no exclusive lock, no clean-up */
} store_options;

/* ST_ERR_BUSY names the pid that holds the folder, which may be our own: a folder is opened once per process, for
 * reading only as well. ST_ERR_MISMATCH names both fingerprints. */
status store_open(const store_options *o, store **out, err *e);
void store_close(store *s);

/* Removes a closed store's files and the folder, which must hold nothing else. */
status store_remove_folder(const char *path);

typedef enum store_kind { /* values are on disk: append only */
    STORE_SESSION = 1,    /* one per session, number 0: header of the session */
    STORE_TURN = 2,       /* number = turn: token log and text of one message */
    STORE_EPISODES = 3,   /* number 0: the episode index of a session (derived) */
    STORE_NAME = 4,       /* chain hash or idempotency key -> session (session field holds the hash bytes) */
    STORE_COLUMN = 5,     /* blob: number = column index */
    STORE_TAIL = 6,       /* blob: number = first token / 16 of a BF16 piece */
    STORE_VECTORS = 7     /* number = piece: window vectors of a session (derived) */
} store_kind;

typedef struct store_key {
    store_kind kind;
    const char *tenant, *session; /* NUL-terminated */
    uint64_t number;
} store_key;

/* A batch borrows `data` until commit returns. Later entries win over earlier ones with the same key. */
typedef struct store_batch store_batch;
store_batch *store_batch_create(void); /* NULL when memory is out */
void store_batch_free(store_batch *b);
status store_batch_put(store_batch *b, const store_key *key, const void *data, size_t bytes);
status store_batch_delete(store_batch *b, const store_key *key);
/* Deletes number >= key->number of that kind in that session. */
status store_batch_delete_from(store_batch *b, const store_key *key);
/* Deletes everything of a session but its STORE_NAME records (their session field is a hash: delete those by key).
 * The commit returns when the bytes of all its values, old versions included, are overwritten in the files. It waits up
 * to 5 s for readers that still hold them; ST_ERR_BUSY or ST_ERR_IO then says that the session is deleted, durably, and
 * the overwriting follows with a later commit, or at close or open. */
status store_batch_erase_session(store_batch *b, const char *tenant, const char *session);
/* Blobs of more than 64 MiB together are written in several transactions, visible all at once all the same.
 * ST_ERR_FULL: the cap, or the disk; nothing of the batch is kept. Other errors: likewise, unless the error is LMDB's
 * own panic after a failed write of its header, when only a new store_open knows. The batch may be committed again. */
status store_commit(store *s, store_batch *b, err *e);

/* Calls visit(ctx, data, bytes) once with the verified value, inside the read transaction; visit must only copy.
 * ST_ERR_NOT_FOUND, ST_ERR_CORRUPT, or what visit returned. */
typedef status (*store_visit)(void *ctx, const void *data, size_t bytes);
status store_read(store *s, const store_key *key, store_visit visit, void *ctx, err *e);
/* Copies the value into a fresh buffer the caller frees with base_free. */
status store_read_copy(store *s, const store_key *key, void **data, size_t *bytes, err *e);

/* Walks records of one kind in key order (sessions by length of their names, then by bytes): of one session, of all
 * sessions of a tenant (session NULL; `prefix` filters names, `after` starts behind one) or of all (tenant NULL too). A record that fails its check is passed
 * with data NULL. Stops when visit returns other than ST_OK and returns that. */
typedef status (*store_visit_record)(void *ctx, const store_key *key, const void *data, size_t bytes);
status store_walk(store *s,
        store_kind kind,
        const char *tenant,
        const char *session,
        const char *prefix,
        const char *after,
        store_visit_record visit,
        void *ctx,
        err *e);

typedef struct store_stats {
    uint64_t index_bytes, blob_bytes; /* pages in use */
    uint64_t cap_bytes;
    uint64_t records, blobs;
    uint64_t checksum_failures; /* since open */
    uint64_t dropped_at_open;   /* halves of interrupted writes removed */
    uint64_t commits;
} store_stats;
void store_get_stats(store *s, store_stats *out);

/* Verifies every value of both environments and the pairing of entries and blobs. report may be NULL. */
typedef struct store_check_result {
    uint64_t records, blobs, damaged, orphans;
} store_check_result;
status store_check(
        store *s, void (*report)(void *ctx, const char *line), void *ctx, store_check_result *out, err *e);
/* The fingerprint a folder was made with, without opening it for use; text NUL-terminated. */
status store_peek_fingerprint(const char *path, char *text, size_t text_bytes, err *e);

#endif
