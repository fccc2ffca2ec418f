/*
 * folder: the data folder of a store: made when missing, held by one process, named by its format file.
 *
 * `lock` is held with flock and holds the pid of its holder as text. A holder that ends well empties it; one that dies
 * leaves its text, not its lock: so a text that nobody holds the lock for tells of an unclean end.
 * `format` is written once, to a temporary name first, and never changes.
 *
 * LMDB must not open an environment twice in one process, so the process keeps a list of its open folders: the one
 * piece of static state here, guarded by its own lock.
 */
#include "store/store_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t open_stores_lock = PTHREAD_MUTEX_INITIALIZER;
static store *open_stores;

static status registry_add(store *s, err *e)
{
    struct stat st;
    if (fstat(s->folder_fd, &st) != 0) {
        return FAIL_OS(e, ST_ERR_IO, errno, "store: %s: %s", s->path, strerror(errno));
    }
    status result = ST_OK;
    (void)pthread_mutex_lock(&open_stores_lock);
    for (const store *other = open_stores; other != NULL; other = other->next_open) {
        if (other->folder_device == st.st_dev && other->folder_inode == st.st_ino) {
            result = FAIL(e, ST_ERR_BUSY, "store: %s is open in this process already (pid %ld)", s->path,
                    (long)getpid());
        }
    }
    if (result == ST_OK) {
        s->folder_device = st.st_dev;
        s->folder_inode = st.st_ino;
        s->next_open = open_stores;
        open_stores = s;
    }
    (void)pthread_mutex_unlock(&open_stores_lock);
    return result;
}

static void registry_remove(const store *s)
{
    (void)pthread_mutex_lock(&open_stores_lock);
    for (store **at = &open_stores; *at != NULL; at = &(*at)->next_open) {
        if (*at == s) {
            *at = s->next_open;
            break;
        }
    }
    (void)pthread_mutex_unlock(&open_stores_lock);
}

/* Makes the folder and those above it; an existing one is left as it is. */
static status make_folders(char *path, err *e)
{
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != '\0') {
            continue;
        }
        char rest = *at;
        *at = '\0';
        int failed = mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
        if (failed != 0 && access(path, F_OK) == 0) {
            failed = 0; /* a folder above that we may not write to, but that is there */
        }
        if (failed != 0) {
            status s = FAIL_OS(e, failed == ENOSPC ? ST_ERR_FULL : ST_ERR_IO, failed,
                    "store: cannot make %s: %s", path, strerror(failed));
            *at = rest;
            return s;
        }
        *at = rest;
        if (rest == '\0') {
            return ST_OK;
        }
    }
}

static status take_lock(store *s, err *e)
{
    s->lock_fd = openat(s->folder_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock_fd < 0) {
        return FAIL_OS(e, errno == ENOSPC ? ST_ERR_FULL : ST_ERR_IO, errno, "store: cannot open %s/lock: %s",
                s->path, strerror(errno));
    }
    char pid[32] = "";
    int failed = flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
    for (int i = 0; failed == EWOULDBLOCK && i < 5;
            i++) { /* a reader may just be asking whether it is held */
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        failed = flock(s->lock_fd, LOCK_EX | LOCK_NB) != 0 ? errno : 0;
    }
    if (failed != 0) {
        s->scrub_needed = true; /* not ours to empty */
        if (failed != EWOULDBLOCK) {
            return FAIL_OS(e, ST_ERR_IO, failed, "store: cannot lock %s: %s", s->path, strerror(failed));
        }
        ssize_t n = pread(s->lock_fd, pid, sizeof pid - 1, 0);
        pid[n < 0 ? 0 : n] = '\0';
        pid[strspn(pid, "0123456789")] = '\0';
        return FAIL(e, ST_ERR_BUSY, "store: %s is held by process %s", s->path, pid[0] == '\0' ? "?" : pid);
    }
    struct stat st;
    s->scrub_needed = fstat(s->lock_fd, &st) != 0 || st.st_size > 0;
    int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(s->lock_fd, 0) != 0 || pwrite(s->lock_fd, pid, (size_t)n, 0) != n) {
        LOG_W("store: cannot write the process id into %s/lock: %s", s->path,
                strerror(errno)); /* held all the same */
    }
    return ST_OK;
}

bool store_folder_is_held(const store *s)
{
    int fd = openat(s->folder_fd, "lock", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
    if (fd >= 0) {
        (void)close(fd); /* lets go of the lock as well */
    }
    return held;
}

/* ---- format file ---- */

static status read_format(int folder_fd,
        const char *path,
        char file[FORMAT_FILE_BYTES_MAX + 1],
        const char **text,
        size_t *text_bytes,
        err *e)
{
    int fd = openat(folder_fd, "format", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return FAIL_OS(e, errno == ENOENT ? ST_ERR_NOT_FOUND : ST_ERR_IO, errno, "store: %s/format: %s", path,
                strerror(errno));
    }
    size_t size = 0;
    ssize_t n;
    do {
        n = read(fd, file + size, FORMAT_FILE_BYTES_MAX + 1 - size);
        size += n > 0 ? (size_t)n : 0;
    } while ((n > 0 && size <= FORMAT_FILE_BYTES_MAX) || (n < 0 && errno == EINTR));
    int failed = n < 0 ? errno : 0;
    (void)close(fd);
    if (failed != 0) {
        return FAIL_OS(e, ST_ERR_IO, failed, "store: %s/format: %s", path, strerror(failed));
    }
    const char *wrong = format_parse(file, size, text, text_bytes);
    if (wrong != NULL) {
        return FAIL(e, ST_ERR_CORRUPT, "store: %s/format: %s", path, wrong);
    }
    return ST_OK;
}

static status write_format(const store *s, const char *fingerprint, err *e)
{
    char file[FORMAT_FILE_BYTES_MAX];
    size_t size = format_write(fingerprint, strlen(fingerprint), file);
    int fd = openat(s->folder_fd, "format.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool done = fd >= 0;
    errno = done ? 0 : errno;
    if (done) {
        ssize_t n = write(fd, file, size);
        if (n >= 0 && (size_t)n < size) {
            errno = ENOSPC;
        }
        done = n == (ssize_t)size && fsync(fd) == 0;
        int failed = errno;
        (void)close(fd);
        errno = failed;
    }
    done = done && renameat(s->folder_fd, "format.new", s->folder_fd, "format") == 0 &&
            fsync(s->folder_fd) == 0;
    if (!done) {
        int failed = errno;
        return FAIL_OS(e, failed == ENOSPC || failed == EDQUOT || failed == EFBIG ? ST_ERR_FULL : ST_ERR_IO,
                failed, "store: cannot write %s/format: %s", s->path, strerror(failed));
    }
    return ST_OK;
}

/* Both texts in one message of limited length: each cut to a window around the first place where they differ. */
static status mismatch(const char *path, const char *stored, size_t stored_bytes, const char *asked, err *e)
{
    enum { WINDOW = 130, BEFORE = 20 };
    size_t asked_bytes = strlen(asked), same = 0, start = 0;
    while (same < stored_bytes && same < asked_bytes && stored[same] == asked[same]) {
        same++;
    }
    if ((stored_bytes > WINDOW || asked_bytes > WINDOW) && same > BEFORE) {
        start = same - BEFORE;
    }
    size_t stored_left = stored_bytes - start, asked_left = asked_bytes - start;
    const char *before = start > 0 ? "..." : "";
    return FAIL(e, ST_ERR_MISMATCH, "store: made for \"%s%.*s%s\", not for \"%s%.*s%s\" (%.60s)", before,
            (int)(stored_left > WINDOW ? WINDOW : stored_left), stored + start,
            stored_left > WINDOW ? "..." : "", before, (int)(asked_left > WINDOW ? WINDOW : asked_left),
            asked + start, asked_left > WINDOW ? "..." : "", path);
}

static status check_format(store *s, const store_options *o, err *e)
{
    char file[FORMAT_FILE_BYTES_MAX + 1];
    const char *stored;
    size_t stored_bytes;
    status result = read_format(s->folder_fd, s->path, file, &stored, &stored_bytes, e);
    if (result == ST_ERR_NOT_FOUND && !o->read_only) {
        if (faccessat(s->folder_fd, "index/data.mdb", F_OK, 0) == 0) {
            return FAIL(e, ST_ERR_CORRUPT, "store: %s holds data but no format file to say what made it",
                    s->path);
        }
        TRY(write_format(s, o->fingerprint, e));
        s->fingerprint = record_hash(o->fingerprint, strlen(o->fingerprint));
        return ST_OK;
    }
    TRY(result);
    if (o->fingerprint != NULL &&
            (strlen(o->fingerprint) != stored_bytes || memcmp(o->fingerprint, stored, stored_bytes) != 0)) {
        return mismatch(s->path, stored, stored_bytes, o->fingerprint, e);
    }
    s->fingerprint = record_hash(stored, stored_bytes);
    return ST_OK;
}

status store_peek_fingerprint(const char *path, char *text, size_t text_bytes, err *e)
{
    char file[FORMAT_FILE_BYTES_MAX + 1];
    const char *stored;
    size_t stored_bytes;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return FAIL_OS(e, errno == ENOENT ? ST_ERR_NOT_FOUND : ST_ERR_IO, errno, "store: %s: %s", path,
                strerror(errno));
    }
    status result = read_format(fd, path, file, &stored, &stored_bytes, e);
    (void)close(fd);
    TRY(result);
    if (stored_bytes >= text_bytes) {
        return FAIL(e, ST_ERR_LIMIT, "store: the fingerprint of %s has %zu bytes", path, stored_bytes);
    }
    memcpy(text, stored, stored_bytes);
    text[stored_bytes] = '\0';
    return ST_OK;
}

/* ---- open and close ---- */

status store_folder_open(store *s, const store_options *o, err *e)
{
    if (!o->read_only) {
        TRY(make_folders(s->path, e));
    }
    s->folder_fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->folder_fd < 0) {
        return FAIL_OS(e, errno == ENOENT ? ST_ERR_NOT_FOUND : ST_ERR_IO, errno, "store: %s: %s", s->path,
                strerror(errno));
    }
    TRY(registry_add(s, e));
    if (!o->read_only) {
        TRY(take_lock(s, e));
    }
    TRY(check_format(s, o, e));
    static const char *const names[] = {"index", "blobs"};
    for (size_t i = 0; i < 2 && !o->read_only; i++) {
        if (mkdirat(s->folder_fd, names[i], 0700) != 0 && errno != EEXIST) {
            return FAIL_OS(e, errno == ENOSPC ? ST_ERR_FULL : ST_ERR_IO, errno,
                    "store: cannot make %s/%s: %s", s->path, names[i], strerror(errno));
        }
    }
    return ST_OK;
}

void store_folder_close(store *s)
{
    registry_remove(s);
    if (s->lock_fd >= 0) {
        if (!s->scrub_needed && ftruncate(s->lock_fd, 0) != 0) {
            LOG_W("store: cannot empty %s/lock: %s", s->path, strerror(errno)); /* costs a scrub */
        }
        (void)close(s->lock_fd);
    }
    if (s->folder_fd >= 0) {
        (void)close(s->folder_fd);
    }
    s->lock_fd = s->folder_fd = -1;
}
