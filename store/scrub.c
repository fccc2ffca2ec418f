/*
 * scrub: clears the pages of a file that hold nothing. A commit that was killed, or failed, has written pages that no
 * snapshot names: their bytes lie in free pages until LMDB takes those again, out of reach of sweep.c. So after an
 * unclean end, or a failed commit, all free pages are cleared once: at open, at the next erasing, at close.
 *
 * Safe because this process is the only writer, and pages that an older snapshot may use (freed by a transaction that
 * some reader does not see yet) are left out.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* fallocate */
#endif
#include "store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Punching a hole takes the bytes away without writing as many zeros; not every file system can. */
static status clear_pages(const store_env *v, uint64_t first_page, uint64_t n_pages, err *e)
{
    off_t at = (off_t)(first_page * v->page_bytes), bytes = (off_t)(n_pages * v->page_bytes);
    if (fallocate(v->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, bytes) == 0) {
        return ST_OK;
    }
    return store_env_write_zeros(v, at, (uint64_t)bytes, e);
}

/* A record of LMDB's free list: a count, then page numbers in falling order. */
static status clear_record(const store_env *v, const MDB_val *value, uint64_t last_page, err *e)
{
    const size_t *words = value->mv_data;
    size_t count, page, run_end = 0, run_pages = 0;
    memcpy(&count, words, sizeof count);
    if (count > value->mv_size / sizeof count - 1) {
        return FAIL(e, ST_ERR_CORRUPT, "store: %s: its list of free pages is damaged", v->name);
    }
    for (size_t i = 1; i <= count; i++) {
        memcpy(&page, words + i, sizeof page);
        if (page < 2 || page > last_page) {
            return FAIL(e, ST_ERR_CORRUPT, "store: %s: its list of free pages is damaged", v->name);
        }
        if (run_pages > 0 && page == run_end - run_pages) {
            run_pages++;
            continue;
        }
        if (run_pages > 0) {
            TRY(clear_pages(v, run_end - run_pages + 1, run_pages, e));
        }
        run_end = page;
        run_pages = 1;
    }
    return run_pages > 0 ? clear_pages(v, run_end - run_pages + 1, run_pages, e) : ST_OK;
}

/* Behind the last page lies only what a commit wrote that never was. */
static status cut_tail(const store_env *v, uint64_t last_page, err *e)
{
    struct stat file;
    off_t end = (off_t)((last_page + 1) * v->page_bytes);
    if (fstat(v->fd, &file) != 0 || (file.st_size > end && ftruncate(v->fd, end) != 0)) {
        return FAIL_OS(e, ST_ERR_IO, errno, "store: %s: %s", v->name, strerror(errno));
    }
    return ST_OK;
}

static status scrub_env(const store_env *v, bool *all, err *e)
{
    MDB_txn *txn;
    MDB_cursor *cursor;
    MDB_envinfo info;
    MDB_val key, value;
    const MDB_dbi free_list = 0; /* LMDB's own table; open to read transactions */
    uint64_t oldest = store_env_oldest_reader(v);
    TRY(store_env_begin(v, false, &txn, e));
    int rc = mdb_env_info(v->env, &info);
    if (rc == MDB_SUCCESS) {
        rc = mdb_cursor_open(txn, free_list, &cursor);
    }
    if (rc != MDB_SUCCESS) {
        mdb_txn_abort(txn);
        return FAIL_MDB(e, v, rc, "scrubbing");
    }
    status result = cut_tail(v, info.me_last_pgno, e);
    while (result == ST_OK && (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == MDB_SUCCESS) {
        size_t freed_by = SIZE_MAX;
        if (key.mv_size == sizeof freed_by && value.mv_size >= sizeof freed_by) {
            memcpy(&freed_by, key.mv_data, sizeof freed_by);
        }
        if (freed_by > oldest) {
            *all = false;
        } else {
            result = clear_record(v, &value, info.me_last_pgno, e);
        }
    }
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    if (result == ST_OK && rc != MDB_NOTFOUND) {
        return FAIL_MDB(e, v, rc, "scrubbing");
    }
    if (result == ST_OK && fdatasync(v->fd) != 0) {
        return FAIL_OS(e, store_env_status(v, errno), errno, "store: %s: %s", v->name, strerror(errno));
    }
    return result;
}

status store_scrub(store *s, err *e)
{
    bool all = true;
    if (!s->scrub_needed) {
        return ST_OK;
    }
    TRY(scrub_env(&s->blobs, &all, e));
    TRY(scrub_env(&s->index, &all, e));
    s->scrub_needed = !all;
    return all ? ST_OK
               : FAIL(e, ST_ERR_BUSY,
                         "store: a reader still holds pages that a failed commit may have left bytes in");
}
