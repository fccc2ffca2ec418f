/* open: opening and closing a store. A store is usable from store_open to store_close; there is no state in between. */
#include "store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Address space, not disk. Under the thread sanitizer little of it is free. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const uint64_t map_bytes_wanted = (uint64_t)16 << 30;
#else
static const uint64_t map_bytes_wanted = (uint64_t)1 << 40;
#endif

static status open_env(const store *s, store_env *v, const char *name, uint64_t map_bytes, err *e)
{
    size_t path_bytes = strlen(s->path) + strlen(name) + 2;
    char *path = base_alloc(path_bytes);
    if (path == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "store: out of memory opening %s", s->path);
    }
    (void)snprintf(path, path_bytes, "%s/%s", s->path, name);
    status result = store_env_open(v, path, name, map_bytes, s->read_only, e);
    base_free(path);
    return result;
}

/* The blob environment has only its unnamed table. */
static status open_tables(store *s, err *e)
{
    MDB_txn *txn;
    unsigned flags = s->read_only ? 0 : MDB_CREATE;
    TRY(store_env_begin(&s->index, !s->read_only, &txn, e));
    int rc = mdb_dbi_open(txn, "entries", flags, &s->entries);
    if (rc == MDB_SUCCESS) {
        rc = mdb_dbi_open(txn, "values", flags, &s->payloads[PLACE_VALUES]);
    }
    if (rc != MDB_SUCCESS) {
        mdb_txn_abort(txn);
        return FAIL_MDB(e, &s->index, rc, "opening its tables");
    }
    rc = mdb_txn_commit(txn);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, &s->index, rc, "opening its tables");
    }
    TRY(store_env_begin(&s->blobs, false, &txn, e));
    rc = mdb_dbi_open(txn, NULL, 0, &s->payloads[PLACE_BLOBS]);
    int committed = mdb_txn_commit(txn);
    rc = rc == MDB_SUCCESS ? committed : rc;
    return rc == MDB_SUCCESS ? ST_OK : FAIL_MDB(e, &s->blobs, rc, "opening its table");
}

/* A new file is only durable with the folder that names it. */
static void sync_folders(const store *s)
{
    static const char *const names[] = {"index", "blobs", "."};
    for (size_t i = 0; i < 3; i++) {
        int fd = openat(s->folder_fd, names[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || fsync(fd) != 0) {
            LOG_W("store: cannot sync %s/%s: %s", s->path, names[i], strerror(errno));
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
}

static status open_all(store *s, const store_options *o, uint64_t map_bytes, err *e)
{
    TRY(store_folder_open(s, o, e));
    TRY(open_env(s, &s->index, "index", map_bytes, e));
    TRY(open_env(s, &s->blobs, "blobs", map_bytes, e));
    TRY(open_tables(s, e));
    if (s->read_only) {
        return ST_OK;
    }
    sync_folders(s);
    TRY(store_drop_halves(s, e));
    err scrub_error = {0};
    if (store_scrub(s, &scrub_error) != ST_OK) {
        LOG_W("%s", scrub_error.text); /* again at the next erasing, and at close */
    }
    return ST_OK;
}

status store_open_sized(const store_options *o, uint64_t map_bytes, store **out, err *e)
{
    int major, minor, patch;
    (void)mdb_version(&major, &minor, &patch);
    if (major != 0 || minor != 9) { /* the placing of values and the page header are those of 0.9 */
        return FAIL(e, ST_ERR_UNSUPPORTED, "store: LMDB %d.%d, built for 0.9", major, minor);
    }
    if (o->path == NULL || o->path[0] == '\0' || (o->fingerprint == NULL && !o->read_only) ||
            (o->fingerprint != NULL && strlen(o->fingerprint) > FORMAT_TEXT_BYTES_MAX)) {
        return FAIL(e, ST_ERR_ARG, "store: needs a path, and a fingerprint of at most %d bytes",
                FORMAT_TEXT_BYTES_MAX);
    }
    store *s = base_zalloc(1, sizeof *s);
    if (s == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "store: out of memory opening %s", o->path);
    }
    s->folder_fd = s->lock_fd = -1;
    s->read_only = o->read_only;
    s->cap_bytes = o->cap_bytes;
    (void)pthread_mutex_init(&s->commit_lock, NULL); /* with default attributes it cannot fail on Linux */
    s->path = base_strdup(o->path);
    status result = s->path == NULL ? FAIL(e, ST_ERR_MEMORY, "store: out of memory opening %s", o->path)
                                    : open_all(s, o, map_bytes, e);
    if (result != ST_OK) {
        store_close(s);
        return result;
    }
    *out = s;
    return ST_OK;
}

status store_open(const store_options *o, store **out, err *e)
{
    uint64_t twice_cap_bytes = o->cap_bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 : 2 * o->cap_bytes;
    return store_open_sized(
            o, twice_cap_bytes > map_bytes_wanted ? twice_cap_bytes : map_bytes_wanted, out, e);
}

void store_close(store *s)
{
    if (s == NULL) {
        return;
    }
    if (s->blobs.env != NULL && s->index.env != NULL && !s->read_only) {
        (void)store_sweep(s, 0, NULL); /* else the next open does it */
        (void)store_scrub(s, NULL);
    }
    store_env_close(&s->blobs);
    store_env_close(&s->index);
    store_folder_close(s);
    (void)pthread_mutex_destroy(&s->commit_lock);
    base_free(s->unlinked);
    base_free(s->path);
    base_free(s);
}
