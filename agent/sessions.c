/* sessions: those in memory, least recently used first out; and two indexes over all stored ones: the chain of messages
 * of nameless sessions (to continue one) and fork points (to share the KV of a common beginning). */
#include "agent/engine_internal.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { TABLE_MAX = 1 << 24 };

/* What is known of a stored session without loading it. */
typedef struct known {
    char *tenant, *name;
    bool nameless;
    uint64_t chain;
    int64_t last_used_us;
    session_fork_point points[SESSION_FORK_POINTS_MAX];
    size_t n_points;
} known;

struct sessions {
    agent_engine *engine;
    session **resident;
    size_t n_resident, resident_cap;
    known *known;
    size_t n_known, known_cap;
    uint64_t name_seed;
};

static known *find_known(const sessions *t, const char *tenant, const char *name)
{
    for (size_t i = 0; i < t->n_known; i++) {
        if (strcmp(t->known[i].name, name) == 0 && strcmp(t->known[i].tenant, tenant) == 0) {
            return &t->known[i];
        }
    }
    return NULL;
}

static known *append_known(sessions *t, const char *tenant, const char *name)
{
    void *list = t->known;
    if (base_grow(&list, &t->known_cap, t->n_known + 1, TABLE_MAX, sizeof *t->known) != ST_OK) {
        return NULL;
    }
    t->known = list;
    known fresh = {.tenant = base_strdup(tenant), .name = base_strdup(name)};
    if (fresh.tenant == NULL || fresh.name == NULL) {
        base_free(fresh.tenant);
        base_free(fresh.name);
        return NULL;
    }
    t->known[t->n_known] = fresh;
    return &t->known[t->n_known++];
}

static known *add_known(sessions *t, const char *tenant, const char *name)
{
    known *k = find_known(t, tenant, name);
    return k != NULL ? k : append_known(t, tenant, name);
}

static void forget_known(sessions *t, const char *tenant, const char *name)
{
    known *k = find_known(t, tenant, name);
    if (k != NULL) {
        base_free(k->tenant);
        base_free(k->name);
        *k = t->known[--t->n_known];
    }
}

/* ---- start-up ---- */

static status note_header(void *ctx, const store_key *key, const void *data, size_t bytes)
{
    sessions *t = ctx;
    session_header h;
    if (data == NULL) {
        return ST_OK; /* named when somebody asks for it */
    }
    if (key->number == 0 && session_header_parse(data, bytes, &h) == ST_OK) {
        known *k = append_known(t, key->tenant, key->session); /* keys come in order: no two are alike */
        if (k == NULL) {
            return ST_ERR_MEMORY;
        }
        k->nameless = h.nameless;
        k->chain = h.chain;
        k->last_used_us = h.last_used_us;
    } else if (key->number == 1) {
        known *k = t->n_known > 0 ? &t->known[t->n_known - 1] : NULL;
        int64_t tokens, columns, exact_from;
        if (k != NULL && strcmp(k->name, key->session) == 0 && strcmp(k->tenant, key->tenant) == 0 &&
                session_state_parse(data, bytes, &tokens, &columns, &exact_from, k->points, &k->n_points) !=
                        ST_OK) {
            k->n_points = 0;
        }
    }
    return ST_OK;
}

status sessions_open(agent_engine *g, sessions **out, err *e)
{
    sessions *t = base_zalloc(1, sizeof *t);
    if (t == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the session table");
    }
    t->engine = g;
    t->name_seed = (uint64_t)base_wall_us();
    status st = store_walk(g->store, STORE_SESSION, NULL, NULL, NULL, NULL, note_header, t, e);
    if (st != ST_OK) {
        sessions_close(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void sessions_close(sessions *t)
{
    if (t == NULL) {
        return;
    }
    for (size_t i = 0; i < t->n_resident; i++) {
        session_close(t->resident[i]);
    }
    for (size_t i = 0; i < t->n_known; i++) {
        base_free(t->known[i].tenant);
        base_free(t->known[i].name);
    }
    base_free(t->resident);
    base_free(t->known);
    base_free(t);
}

/* ---- residents ---- */

size_t sessions_resident_bytes(const sessions *t)
{
    size_t bytes = 0;
    for (size_t i = 0; i < t->n_resident; i++) {
        bytes += session_resident_bytes(t->resident[i]);
    }
    return bytes;
}

size_t sessions_resident_count(const sessions *t)
{
    return t->n_resident;
}

tiers_usage sessions_usage(const sessions *t)
{
    tiers_usage sum = {0};
    for (size_t i = 0; i < t->n_resident; i++) {
        tiers_add_usage(t->resident[i]->tiers, &sum);
    }
    return sum;
}

static void drop_resident(sessions *t, size_t i)
{
    session_close(t->resident[i]);
    memmove(t->resident + i, t->resident + i + 1, (t->n_resident - i - 1) * sizeof *t->resident);
    t->n_resident--;
}

static size_t find_resident(const sessions *t, const char *tenant, const char *name)
{
    size_t i = 0;
    while (i < t->n_resident &&
            (strcmp(t->resident[i]->name, name) != 0 || strcmp(t->resident[i]->tenant, tenant) != 0)) {
        i++;
    }
    return i;
}

/* Closes idle sessions, longest unused first, until the rest fits. */
static void trim(sessions *t)
{
    for (size_t i = 0;
            i < t->n_resident && sessions_resident_bytes(t) > t->engine->options.host_cache_bytes;) {
        if (t->resident[i]->busy) {
            i++;
        } else {
            drop_resident(t, i);
        }
    }
}

static status add_resident(sessions *t, session *s, err *e)
{
    void *list = t->resident;
    status st = base_grow(&list, &t->resident_cap, t->n_resident + 1, TABLE_MAX, sizeof *t->resident);
    t->resident = list;
    if (st != ST_OK) {
        session_close(s);
        return FAIL(e, st, "no memory for another session");
    }
    t->resident[t->n_resident++] = s;
    s->busy = true;
    return ST_OK;
}

static bool expired(const session *s)
{
    return s->ttl_s > 0 && base_wall_us() > s->last_used_us + s->ttl_s * 1000000;
}

status sessions_take(sessions *t, const char *tenant, const char *name, session **out, err *e)
{
    size_t i = find_resident(t, tenant, name);
    session *s;
    if (i < t->n_resident) {
        s = t->resident[i];
        if (s->busy) {
            return FAIL(e, ST_ERR_BUSY, "session %s is in use", name);
        }
        memmove(t->resident + i, t->resident + i + 1, (t->n_resident - i - 1) * sizeof *t->resident);
        t->resident[t->n_resident - 1] = s; /* most recently used last */
        s->busy = true;
    } else {
        if (find_known(t, tenant, name) == NULL) {
            return FAIL(e, ST_ERR_NOT_FOUND, "there is no session %s", name);
        }
        TRY(session_load(&t->engine->x, tenant, name, &s, e));
        t->engine->counters.corrupt_values += s->corrupt_seen;
        s->corrupt_seen = 0;
        TRY(add_resident(t, s, e));
    }
    if (expired(s)) {
        s->busy = false;
        TRY(sessions_erase(t, tenant, name, e));
        return FAIL(e, ST_ERR_NOT_FOUND, "session %s has expired", name);
    }
    *out = s;
    return ST_OK;
}

status sessions_make(sessions *t, const char *tenant, const char *name, bool nameless, session **out, err *e)
{
    session *s;
    TRY(session_new(&t->engine->x, tenant, name, nameless, &s, e));
    TRY(add_resident(t, s, e));
    *out = s;
    return ST_OK;
}

void sessions_give(sessions *t, session *s, bool keep)
{
    s->busy = false;
    t->engine->counters.corrupt_values += s->corrupt_seen;
    s->corrupt_seen = 0;
    if (!keep) {
        drop_resident(t, find_resident(t, s->tenant, s->name));
    }
    trim(t);
}

status sessions_erase(sessions *t, const char *tenant, const char *name, err *e)
{
    size_t i = find_resident(t, tenant, name);
    if (i < t->n_resident && t->resident[i]->busy) {
        return FAIL(e, ST_ERR_BUSY, "session %s is in use", name);
    }
    if (find_known(t, tenant, name) == NULL) {
        return FAIL(e, ST_ERR_NOT_FOUND, "there is no session %s", name);
    }
    writer_flush(t->engine->writer); /* nothing of it may land behind the erasure */
    store_batch *batch = store_batch_create();
    status st = batch == NULL ? ST_ERR_MEMORY : store_batch_erase_session(batch, tenant, name);
    st = st == ST_OK ? store_commit(t->engine->store, batch, e)
                     : FAIL(e, st, "no memory to erase session %s", name);
    store_batch_free(batch);
    if (st == ST_OK) {
        if (i < t->n_resident) {
            drop_resident(t, i);
        }
        forget_known(t, tenant, name);
    }
    return st;
}

/* ---- nameless sessions and forks ---- */

void sessions_fresh_name(sessions *t, char out[40])
{
    t->name_seed = t->name_seed * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
    (void)snprintf(out, 40, "~%016llx", (unsigned long long)(t->name_seed ^ (t->name_seed >> 29)));
}

const char *sessions_find_chain(const sessions *t, const char *tenant, uint64_t chain)
{
    for (size_t i = 0; i < t->n_known; i++) {
        if (t->known[i].nameless && t->known[i].chain == chain && strcmp(t->known[i].tenant, tenant) == 0) {
            return t->known[i].name;
        }
    }
    return NULL;
}

int64_t sessions_find_fork(
        const sessions *t, const char *tenant, const int32_t *ids, int64_t n, const char **name)
{
    for (int64_t b = tiers_block_of(n - 1); b >= 1; b--) {
        int64_t at = tiers_block_start(b);
        uint64_t hash = XXH3_64bits(ids, (size_t)at * sizeof *ids);
        for (size_t i = 0; i < t->n_known; i++) {
            const known *k = &t->known[i];
            for (size_t p = 0; p < k->n_points; p++) {
                if (k->points[p].hash == hash && k->points[p].tokens == at &&
                        strcmp(k->tenant, tenant) == 0) {
                    *name = k->name;
                    return at;
                }
            }
        }
    }
    return 0;
}

/* Erases the least recently used nameless sessions past the limit. */
static void trim_nameless(sessions *t)
{
    for (;;) {
        size_t count = 0, oldest = SIZE_MAX;
        for (size_t i = 0; i < t->n_known; i++) {
            const known *k = &t->known[i];
            size_t r = find_resident(t, k->tenant, k->name);
            count += k->nameless ? 1 : 0;
            if (k->nameless && (r == t->n_resident || !t->resident[r]->busy) &&
                    (oldest == SIZE_MAX || k->last_used_us < t->known[oldest].last_used_us)) {
                oldest = i;
            }
        }
        if (count <= ENGINE_NAMELESS_MAX || oldest == SIZE_MAX) {
            return;
        }
        char tenant[160], name[160]; /* the erasure frees the table's own */
        (void)snprintf(tenant, sizeof tenant, "%s", t->known[oldest].tenant);
        (void)snprintf(name, sizeof name, "%s", t->known[oldest].name);
        if (sessions_erase(t, tenant, name, NULL) != ST_OK) {
            return;
        }
    }
}

void sessions_note_saved(sessions *t, const session *s)
{
    known *k = add_known(t, s->tenant, s->name);
    if (k == NULL) {
        return; /* it can still be taken while resident; found again at the next start */
    }
    k->nameless = s->nameless;
    k->chain = s->chain;
    k->last_used_us = s->last_used_us;
    k->n_points = session_fork_points(s, k->points);
    trim_nameless(t);
}
