/* env: one LMDB environment. See store_internal.h. Flags are LMDB's defaults but for MDB_NOTLS: every commit is synced. */
#include "store/store_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum {
    READERS_MAX = 512, /* arbitrary; a slot is 64 bytes of the lock file */
    TABLES_MAX = 4,
    PAGE_BYTES = 4096,        /* what the payload's alignment is built on */
    OVERFLOW_HEAD_BYTES = 16, /* LMDB's page header: number (8), pad (2), flags (2), count (4) */
    OVERFLOW_FLAG = 4
};
static const uint64_t map_bytes_min = (uint64_t)64 << 20;

/* A write that does not fit comes back as ENOSPC, EDQUOT or EFBIG when nothing was written, but as EIO from LMDB when
 * the last of it was cut short. So EIO on a disk with no room for the write is a full disk. */
static bool is_out_of_space(const store_env *v)
{
    struct statvfs fs;
    struct stat file;
    struct rlimit limit;
    const uint64_t room_bytes = (uint64_t)1 << 20; /* less than this left: arbitrary */
    if (v->env == NULL || fstatvfs(v->fd, &fs) != 0 || fstat(v->fd, &file) != 0) {
        return false;
    }
    if ((uint64_t)fs.f_bavail * fs.f_frsize < room_bytes) {
        return true;
    }
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
            (uint64_t)file.st_size + room_bytes > limit.rlim_cur;
}

status store_env_status(const store_env *v, int rc)
{
    switch (rc) {
    case MDB_SUCCESS:
        return ST_OK;
    case MDB_NOTFOUND:
        return ST_ERR_NOT_FOUND;
    case MDB_MAP_FULL:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ST_ERR_FULL;
    case EIO:
        return is_out_of_space(v) ? ST_ERR_FULL : ST_ERR_IO;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH:
        return ST_ERR_CORRUPT;
    case MDB_READERS_FULL:
        return ST_ERR_BUSY;
    case MDB_TXN_FULL:
        return ST_ERR_LIMIT;
    case ENOMEM:
        return ST_ERR_MEMORY;
    default:
        return ST_ERR_IO;
    }
}

static int open_with_map(store_env *v, const char *path, uint64_t map_bytes, bool read_only)
{
    int rc = mdb_env_create(&v->env);
    if (rc != MDB_SUCCESS) {
        v->env = NULL;
        return rc;
    }
    rc = mdb_env_set_mapsize(v->env, (size_t)map_bytes);
    if (rc == MDB_SUCCESS) {
        rc = mdb_env_set_maxreaders(v->env, READERS_MAX);
    }
    if (rc == MDB_SUCCESS) {
        rc = mdb_env_set_maxdbs(v->env, TABLES_MAX);
    }
    if (rc == MDB_SUCCESS) {
        rc = mdb_env_open(v->env, path, MDB_NOTLS | (read_only ? (unsigned)MDB_RDONLY : 0u), 0600);
    }
    if (rc != MDB_SUCCESS) {
        mdb_env_close(v->env);
        v->env = NULL;
    }
    return rc;
}

/* Touching the map behind the end of the file is a SIGBUS. The file may end early: when it was cut, but also when a
 * transaction gave back the last pages it took before writing them. */
static status ensure_file_is_whole(store_env *v, bool read_only, err *e)
{
    MDB_envinfo info;
    MDB_stat stat_out;
    struct stat file;
    int rc = mdb_env_info(v->env, &info);
    if (rc == MDB_SUCCESS) {
        rc = mdb_env_stat(v->env, &stat_out);
    }
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, v, rc, "reading the header");
    }
    if (stat_out.ms_psize != PAGE_BYTES) {
        return FAIL(e, ST_ERR_UNSUPPORTED, "store: %s has pages of %u bytes, only %d are supported", v->name,
                stat_out.ms_psize, PAGE_BYTES);
    }
    v->page_bytes = stat_out.ms_psize;
    if (fstat(v->fd, &file) != 0) {
        return FAIL_OS(e, ST_ERR_IO, errno, "store: %s: %s", v->name, strerror(errno));
    }
    uint64_t expected_bytes = ((uint64_t)info.me_last_pgno + 1) * v->page_bytes;
    if (expected_bytes > info.me_mapsize) {
        return FAIL(e, ST_ERR_CORRUPT, "store: %s: its header names a page behind its map", v->name);
    }
    if ((uint64_t)file.st_size >= expected_bytes) {
        return ST_OK;
    }
    if (read_only) {
        return FAIL(e, ST_ERR_CORRUPT,
                "store: %s ends at %lld of %llu bytes; opening it for use mends what can be", v->name,
                (long long)file.st_size, (unsigned long long)expected_bytes);
    }
    LOG_W("store: %s ends at %lld of %llu bytes", v->name, (long long)file.st_size,
            (unsigned long long)expected_bytes);
    if (ftruncate(v->fd, (off_t)expected_bytes) != 0) {
        return FAIL_OS(e, errno == ENOSPC ? ST_ERR_FULL : ST_ERR_IO, errno, "store: %s: %s", v->name,
                strerror(errno));
    }
    return ST_OK;
}

status store_env_open(
        store_env *v, const char *path, const char *name, uint64_t map_bytes, bool read_only, err *e)
{
    *v = (store_env){.name = name, .fd = -1};
    int rc = open_with_map(v, path, map_bytes, read_only);
    while ((rc == ENOMEM || rc == EINVAL || rc == EFBIG) && map_bytes / 4 >= map_bytes_min) {
        map_bytes /= 4; /* the system grants less address space */
        rc = open_with_map(v, path, map_bytes, read_only);
    }
    if (rc != MDB_SUCCESS) {
        return err_set(e, rc == ENOENT ? ST_ERR_NOT_FOUND : store_env_status(v, rc), rc, __FILE__, __LINE__,
                "store: cannot open %s: %s", path, mdb_strerror(rc));
    }
    rc = mdb_env_get_fd(v->env, &v->fd);
    if (rc == MDB_SUCCESS && !read_only) {
        int dead;
        rc = mdb_reader_check(v->env, &dead); /* slots of processes that are gone pin old pages */
    }
    status s = rc == MDB_SUCCESS ? ensure_file_is_whole(v, read_only, e) : FAIL_MDB(e, v, rc, "opening");
    if (s != ST_OK) {
        store_env_close(v);
    }
    return s;
}

void store_env_close(store_env *v)
{
    if (v->env != NULL) {
        mdb_env_close(v->env);
    }
    v->env = NULL;
    v->fd = -1;
}

status store_env_begin(const store_env *v, bool write, MDB_txn **txn, err *e)
{
    MDB_txn *t = NULL;
    int rc = mdb_txn_begin(v->env, NULL, write ? 0 : MDB_RDONLY, &t);
    if (rc != MDB_SUCCESS) {
        return FAIL_MDB(e, v, rc, "beginning a transaction");
    }
    *txn = t;
    return ST_OK;
}

status store_env_pages_in_use(
        const store_env *v, MDB_txn *txn, const MDB_dbi *tables, int n_tables, uint64_t *pages)
{
    uint64_t sum = 2; /* the two meta pages */
    for (int i = -2; i < n_tables; i++) {
        MDB_stat st;
        MDB_dbi table =
                i < 0 ? (MDB_dbi)(i + 2) : tables[i]; /* 0: list of free pages, 1: the table of tables */
        int rc = mdb_stat(txn, table, &st);
        if (rc != MDB_SUCCESS) {
            return store_env_status(v, rc);
        }
        sum += st.ms_branch_pages + st.ms_leaf_pages + st.ms_overflow_pages;
    }
    *pages = sum;
    return ST_OK;
}

/* A line of mdb_reader_list: process, thread, snapshot ("-" when idle); also a headline. */
static int note_reader(const char *line, void *ctx)
{
    uint64_t *oldest = ctx, txn_id;
    char thread[32];
    int pid;
    if (sscanf(line, "%d %31s %" SCNu64, &pid, thread, &txn_id) == 3 && txn_id < *oldest) {
        *oldest = txn_id;
    }
    return 0;
}

uint64_t store_env_oldest_reader(const store_env *v)
{
    uint64_t oldest = UINT64_MAX;
    if (mdb_reader_list(v->env, note_reader, &oldest) < 0) {
        return 0; /* unknown: as if somebody read everything */
    }
    return oldest;
}

status store_env_value_offset(const store_env *v, const MDB_val *value, off_t *offset)
{
    uintptr_t address = (uintptr_t)value->mv_data;
    if (address % v->page_bytes != OVERFLOW_HEAD_BYTES) {
        return ST_ERR_UNSUPPORTED;
    }
    const uint8_t *head = (const uint8_t *)value->mv_data - OVERFLOW_HEAD_BYTES;
    uint64_t page, in_file[2];
    uint16_t flags;
    uint32_t pages;
    memcpy(&page, head, sizeof page);
    memcpy(&flags, head + 10, sizeof flags);
    memcpy(&pages, head + 12, sizeof pages);
    /* LMDB frees as many pages as the page header says, so a damaged one must not be deleted by. */
    if (page >= UINT64_MAX / 2 / v->page_bytes || flags != OVERFLOW_FLAG ||
            pages != (value->mv_size + OVERFLOW_HEAD_BYTES + v->page_bytes - 1) / v->page_bytes) {
        return ST_ERR_CORRUPT;
    }
    off_t at = (off_t)(page * v->page_bytes);
    /* What the file holds there has to be the page we look at. */
    if (pread(v->fd, in_file, sizeof in_file, at) != (ssize_t)sizeof in_file ||
            memcmp(in_file, head, sizeof in_file) != 0) {
        return ST_ERR_CORRUPT;
    }
    *offset = at + OVERFLOW_HEAD_BYTES;
    return ST_OK;
}

status store_env_write_zeros(const store_env *v, off_t at, uint64_t bytes, err *e)
{
    static const uint8_t zeros[1 << 16];
    while (bytes > 0) {
        ssize_t n = pwrite(v->fd, zeros, bytes < sizeof zeros ? (size_t)bytes : sizeof zeros, at);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return FAIL_OS(e, store_env_status(v, errno), errno, "store: overwriting erased bytes (%s): %s",
                    v->name, strerror(errno));
        }
        at += n;
        bytes -= (uint64_t)n;
    }
    return ST_OK;
}
