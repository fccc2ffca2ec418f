/*
 * store_crash [KILLS] [SEED]: a child applies numbered batches and acknowledges each through a pipe; it is killed with
 * SIGKILL at a random moment; the store is opened again and compared with what the numbers say. 50 times by default.
 *
 * Batch i, in one commit: the session record says i; turn i; columns 2i and 2i+1; tail i mod 8, which overwrites;
 * columns of before batch i-KEPT are deleted, as are turns; in every 64th batch the session is erased first. So after
 * batch i exactly the records that `is_there` names exist, each with the bytes `fill` gives for its kind, number and
 * batch. Checked after each kill:
 * 1. no batch that was acknowledged is missing;
 * 2. no part of a batch is visible without the rest;
 * 3. store_check finds no damage and no orphan;
 * 4. the text of a dropped or overwritten value is not in the files any more once the store has been opened.
 * Exit status 0 when all hold.
 */
#define _GNU_SOURCE
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "store/store.h"

enum { KEPT = 24, TAILS = 8, ERASE_EVERY = 64, TAG_BYTES = 32 };

static char folder[PATH_MAX];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static size_t size_of(store_kind kind, uint64_t batch)
{
    size_t step = (size_t)(batch * 2654435761u % 50);
    return TAG_BYTES + (kind == STORE_COLUMN || kind == STORE_TAIL ? 20000 + 3000 * step : 40 * step);
}

/* A readable tag, then noise: both depend on kind, number and batch. */
static size_t fill(uint8_t *out, store_kind kind, uint64_t number, uint64_t batch)
{
    size_t bytes = size_of(kind, batch);
    uint64_t x = batch * 1000003u + number * 31u + kind + 1;
    memset(out, '.', TAG_BYTES);
    int n = snprintf((char *)out, TAG_BYTES, "<k%d n%llu b%llu>", (int)kind, (unsigned long long)number,
            (unsigned long long)batch);
    out[n] = '.';
    for (size_t i = TAG_BYTES; i < bytes; i++) {
        out[i] = (uint8_t)next_random(&x);
    }
    return bytes;
}

static store_key key_of(store_kind kind, uint64_t number)
{
    return (store_key){.kind = kind, .tenant = "crash", .session = "one", .number = number};
}

/* ---- the child ---- */

typedef struct builder {
    store_batch *batch;
    uint8_t *space;
    size_t used;
    status result;
} builder;

static void put(builder *b, store_kind kind, uint64_t number, uint64_t batch)
{
    store_key key = key_of(kind, number);
    size_t bytes = fill(b->space + b->used, kind, number, batch);
    status s = store_batch_put(b->batch, &key, b->space + b->used, bytes);
    b->result = b->result == ST_OK ? s : b->result;
    b->used += bytes;
}

static void delete_one(builder *b, store_kind kind, uint64_t number)
{
    store_key key = key_of(kind, number);
    status s = store_batch_delete(b->batch, &key);
    b->result = b->result == ST_OK ? s : b->result;
}

static status apply(store *s, uint64_t i, uint8_t *space)
{
    builder b = {.batch = store_batch_create(), .space = space};
    if (i % ERASE_EVERY == 0) {
        b.result = store_batch_erase_session(b.batch, "crash", "one");
    }
    put(&b, STORE_COLUMN, 2 * i, i);
    put(&b, STORE_COLUMN, 2 * i + 1, i);
    put(&b, STORE_TURN, i, i);
    put(&b, STORE_TAIL, i % TAILS, i);
    put(&b, STORE_SESSION, 0, i);
    if (i >= KEPT) {
        delete_one(&b, STORE_COLUMN, 2 * (i - KEPT));
        delete_one(&b, STORE_COLUMN, 2 * (i - KEPT) + 1);
        delete_one(&b, STORE_TURN, i - KEPT);
    }
    status result = b.result == ST_OK ? store_commit(s, b.batch, NULL) : b.result;
    store_batch_free(b.batch);
    return result;
}

static int child_main(uint64_t first, int acknowledge)
{
    store_options o = {.path = folder, .fingerprint = "crash test"};
    store *s;
    err e = {0};
    uint8_t *space = malloc(4 << 20);
    if (space == NULL || store_open(&o, &s, &e) != ST_OK) {
        (void)fprintf(stderr, "child: %s\n", e.text);
        return 2;
    }
    for (uint64_t i = first;; i++) {
        status result = apply(s, i, space);
        if (result != ST_OK || write(acknowledge, &i, sizeof i) != (ssize_t)sizeof i) {
            (void)fprintf(stderr, "child: batch %llu: %s\n", (unsigned long long)i, status_name(result));
            return 3;
        }
    }
}

/* ---- the check ---- */

/* Whether a record exists after batch `last`, and which batch wrote it. */
static bool is_there(store_kind kind, uint64_t number, uint64_t last, uint64_t *batch)
{
    uint64_t erased_before = last / ERASE_EVERY * ERASE_EVERY;
    switch (kind) {
    case STORE_SESSION:
        *batch = last;
        return number == 0;
    case STORE_TURN:
        *batch = number;
        break;
    case STORE_COLUMN:
        *batch = number / 2;
        break;
    case STORE_TAIL:
        if (number >= TAILS || last < number) {
            return false;
        }
        *batch = last - (last - number) % TAILS;
        return *batch >= erased_before;
    default:
        return false;
    }
    return *batch <= last && *batch + KEPT > last && *batch >= erased_before;
}

typedef struct walk_state {
    uint64_t last, seen, wrong;
    uint8_t *space;
} walk_state;

static status check_record(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    walk_state *w = ctx;
    uint64_t batch = 0;
    w->seen++;
    if (data == NULL || !is_there(key->kind, key->number, w->last, &batch) ||
            fill(w->space, key->kind, key->number, batch) != bytes || memcmp(w->space, data, bytes) != 0) {
        (void)fprintf(stderr, "kind %d number %llu is wrong after batch %llu\n", (int)key->kind,
                (unsigned long long)key->number, (unsigned long long)w->last);
        w->wrong++;
    }
    return ST_OK;
}

static uint64_t count_expected(store_kind kind, uint64_t last)
{
    uint64_t count = 0, batch;
    for (uint64_t number = 0; number <= 2 * last + 1; number++) {
        count += is_there(kind, number, last, &batch);
    }
    return count;
}

static status note_last(void *ctx, const void *data, size_t bytes)
{
    char tag[TAG_BYTES + 1] = "";
    unsigned long long batch = 0;
    memcpy(tag, data, bytes < TAG_BYTES ? bytes : TAG_BYTES);
    if (sscanf(tag, "<k1 n0 b%llu>", &batch) != 1) {
        return ST_ERR_CORRUPT;
    }
    *(uint64_t *)ctx = batch;
    return ST_OK;
}

/* Tags in the file of values that should not be there. */
static uint64_t count_left_over(const char *name, uint64_t last)
{
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    uint64_t found = 0;
    uint8_t page[4096];
    while (f != NULL && fread(page, 1, sizeof page, f) == sizeof page) {
        unsigned kind;
        unsigned long long number, tagged;
        uint64_t batch = 0;
        page[sizeof page - 1] = '\0';
        if (sscanf((const char *)page, "<k%u n%llu b%llu>", &kind, &number, &tagged) == 3 &&
                (!is_there((store_kind)kind, number, last, &batch) || batch != tagged)) {
            (void)fprintf(
                    stderr, "%s still holds kind %u number %llu of batch %llu\n", name, kind, number, tagged);
            found++;
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return found;
}

static void print_line(void *ctx, const char *line)
{
    (void)ctx;
    (void)fprintf(stderr, "check: %s\n", line);
}

/* Opens and compares; *next is the batch after the last one found. */
static bool verify(uint64_t acknowledged, bool any, uint64_t *next, uint64_t *dropped, uint64_t *left_over)
{
    store_options o = {.path = folder, .fingerprint = "crash test"};
    store *s;
    err e = {0};
    store_check_result r = {0};
    store_stats st;
    walk_state w = {.space = malloc(1 << 20)};
    uint64_t expected = 0;
    if (w.space == NULL || store_open(&o, &s, &e) != ST_OK) {
        (void)fprintf(stderr, "cannot open: %s\n", e.text);
        return false;
    }
    store_key head = key_of(STORE_SESSION, 0);
    status result = store_read(s, &head, note_last, &w.last, &e);
    bool good = result == ST_OK || (result == ST_ERR_NOT_FOUND && !any);
    if (result == ST_OK) {
        good = !any || w.last == acknowledged || w.last == acknowledged + 1;
        *next = w.last + 1;
        for (int kind = STORE_SESSION; kind <= STORE_VECTORS; kind++) {
            good = store_walk(s, (store_kind)kind, "crash", NULL, NULL, NULL, check_record, &w, &e) ==
                            ST_OK &&
                    good;
            expected += count_expected((store_kind)kind, w.last);
        }
    }
    if (!good || w.wrong > 0 || w.seen != expected) {
        (void)fprintf(stderr, "acknowledged %llu, found %llu; %llu records, %llu expected, %llu wrong: %s\n",
                (unsigned long long)acknowledged, (unsigned long long)w.last, (unsigned long long)w.seen,
                (unsigned long long)expected, (unsigned long long)w.wrong, e.text);
        good = false;
    }
    store_get_stats(s, &st);
    *dropped += st.dropped_at_open;
    good = store_check(s, print_line, NULL, &r, &e) == ST_OK && r.damaged + r.orphans == 0 && good;
    store_close(s);
    free(w.space);
    uint64_t found = count_left_over("blobs/data.mdb", w.last) + count_left_over("index/data.mdb", w.last);
    *left_over += found;
    return good && found == 0;
}

static bool run_once(
        uint64_t *next, uint64_t delay_us, uint64_t *batches, uint64_t *dropped, uint64_t *left_over)
{
    int pipe_ends[2];
    uint64_t acknowledged = 0, number;
    bool any = *next > 0;
    if (pipe(pipe_ends) != 0) {
        return false;
    }
    pid_t child = fork();
    if (child == 0) {
        (void)close(pipe_ends[0]);
        _exit(child_main(*next, pipe_ends[1]));
    }
    (void)close(pipe_ends[1]);
    acknowledged = any ? *next - 1 : 0;
    struct timespec wait = {
            .tv_sec = (time_t)(delay_us / 1000000), .tv_nsec = (long)(delay_us % 1000000 * 1000)};
    (void)nanosleep(&wait, NULL);
    (void)kill(child, SIGKILL);
    int result;
    (void)waitpid(child, &result, 0);
    while (read(pipe_ends[0], &number, sizeof number) == (ssize_t)sizeof number) {
        acknowledged = number;
        any = true;
        ++*batches;
    }
    (void)close(pipe_ends[0]);
    if (!WIFSIGNALED(result)) {
        (void)fprintf(stderr, "the child ended by itself\n");
        return false;
    }
    return verify(acknowledged, any, next, dropped, left_over);
}

int main(int argc, char **argv)
{
    long kills = argc > 1 ? strtol(argv[1], NULL, 10) : 50;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    const char *base = getenv("TMPDIR");
    uint64_t random = seed * 2 + 1, next = 0, batches = 0, dropped = 0, left_over = 0;
    (void)snprintf(folder, sizeof folder, "%s/epimem-crash-XXXXXX", base == NULL ? "/tmp" : base);
    if (mkdtemp(folder) == NULL) {
        perror(folder);
        return 1;
    }
    bool good = true;
    long done = 0;
    while (good && done < kills) {
        good = run_once(&next, 1000 + next_random(&random) % 150000, &batches, &dropped, &left_over);
        done++;
    }
    (void)printf("store_crash: seed %llu, %ld kills, %llu batches acknowledged, %llu halves dropped, %llu "
                 "left over: %s\n",
            (unsigned long long)seed, done, (unsigned long long)batches, (unsigned long long)dropped,
            (unsigned long long)left_over, good ? "good" : "FAILED");
    if (good) {
        (void)nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    } else {
        (void)printf("kept: %s\n", folder);
    }
    return good ? 0 : 1;
}
