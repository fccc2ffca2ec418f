/*
 * A pickle as values. A pickle is a program for a stack machine; of its instructions those are known that build numbers,
 * texts, tuples and dictionaries. GLOBAL makes a name, never a lookup; REDUCE knows the names of a tensor and of an
 * ordered dictionary and builds a description of them. So reading a file can do nothing but fill these arrays.
 */
#include <string.h>

#include "kvq/calibration_import.h"

enum { VALUES_MAX = 1 << 18, STACK_MAX = 4096, MARKS_MAX = 256, MEMO_MAX = 1 << 16 };

typedef struct machine {
    pickle *p;
    const uint8_t *at, *end;
    int stack[STACK_MAX];
    int depth;
    int marks[MARKS_MAX];
    int n_marks;
    int *memo; /* [MEMO_MAX], -1: empty */
    err *e;
} machine;

static status wrong(const machine *m, const char *what)
{
    return FAIL(m->e, ST_ERR_FORMAT, "pickle: %s", what);
}

static status add_value(machine *m, pickle_value v, int *number)
{
    pickle *p = m->p;
    if (base_grow((void **)&p->values, &p->values_cap, p->n_values + 1, VALUES_MAX, sizeof *p->values) !=
            ST_OK) {
        return FAIL(m->e, ST_ERR_LIMIT, "pickle: too many values");
    }
    *number = (int)p->n_values;
    p->values[p->n_values++] = v;
    return ST_OK;
}

static status push(machine *m, int value)
{
    if (m->depth == STACK_MAX) {
        return wrong(m, "too deep");
    }
    m->stack[m->depth++] = value;
    return ST_OK;
}

static status push_new(machine *m, pickle_value v)
{
    int number = 0;
    TRY(add_value(m, v, &number));
    return push(m, number);
}

/* Values above the last mark may be popped, those below only together with it. */
static int floor_of(const machine *m)
{
    return m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0;
}

static bool pop(machine *m, int *value)
{
    if (m->depth <= floor_of(m)) {
        return false;
    }
    *value = m->stack[--m->depth];
    return true;
}

static bool take(machine *m, size_t n, const uint8_t **out)
{
    if ((size_t)(m->end - m->at) < n) {
        return false;
    }
    *out = m->at;
    m->at += n;
    return true;
}

static bool take_number(machine *m, size_t n, uint32_t *out)
{
    const uint8_t *p;
    if (!take(m, n, &p)) {
        return false;
    }
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        *out |= (uint32_t)p[i] << (8 * i);
    }
    return true;
}

/* ---- instructions ---- */

static status make_tuple(machine *m, int from)
{
    pickle *p = m->p;
    size_t n = (size_t)(m->depth - from);
    if (base_grow((void **)&p->items, &p->items_cap, p->n_items + n + 1, VALUES_MAX, sizeof *p->items) !=
            ST_OK) {
        return FAIL(m->e, ST_ERR_LIMIT, "pickle: too many values");
    }
    pickle_value tuple = {.kind = PICKLE_TUPLE, .first = (int)p->n_items, .count = (int)n};
    for (size_t i = 0; i < n; i++) {
        p->items[p->n_items++] = m->stack[from + (int)i];
    }
    m->depth = from;
    return push_new(m, tuple);
}

static status small_tuple(machine *m, int n)
{
    return m->depth - floor_of(m) < n ? wrong(m, "stack underflow") : make_tuple(m, m->depth - n);
}

static bool pop_mark(machine *m, int *from)
{
    if (m->n_marks == 0) {
        return false;
    }
    *from = m->marks[--m->n_marks];
    return true;
}

static status set_items(machine *m, int from)
{
    pickle *p = m->p;
    if (from <= floor_of(m) || (m->depth - from) % 2 != 0 ||
            p->values[m->stack[from - 1]].kind != PICKLE_DICT) {
        return wrong(m, "items for something that is no dictionary");
    }
    int dict = m->stack[from - 1];
    for (int i = from; i < m->depth; i += 2) {
        if (base_grow((void **)&p->pairs, &p->pairs_cap, p->n_pairs + 1, VALUES_MAX, sizeof *p->pairs) !=
                ST_OK) {
            return FAIL(m->e, ST_ERR_LIMIT, "pickle: too many values");
        }
        p->pairs[p->n_pairs] =
                (pickle_pair){.key = m->stack[i], .value = m->stack[i + 1], .next = p->values[dict].first};
        p->values[dict].first = (int)p->n_pairs++;
        p->values[dict].count++;
    }
    m->depth = from;
    return ST_OK;
}

static bool is_text(const pickle_value *v, pickle_kind kind, const char *text)
{
    return v->kind == kind && v->text_bytes == strlen(text) && memcmp(v->text, text, v->text_bytes) == 0;
}

static const pickle_value *item(const pickle *p, const pickle_value *tuple, int i)
{
    return &p->values[p->items[tuple->first + i]];
}

/* ('storage', FloatStorage, key, device, elements) */
static status make_storage(machine *m)
{
    int top;
    if (!pop(m, &top)) {
        return wrong(m, "stack underflow");
    }
    const pickle *p = m->p;
    const pickle_value *t = &p->values[top];
    if (t->kind != PICKLE_TUPLE || t->count != 5 || !is_text(item(p, t, 0), PICKLE_STRING, "storage") ||
            item(p, t, 2)->kind != PICKLE_STRING || item(p, t, 4)->kind != PICKLE_INT) {
        return wrong(m, "a persistent id that is no storage");
    }
    if (!is_text(item(p, t, 1), PICKLE_GLOBAL, "torch\nFloatStorage")) {
        return wrong(m, "a storage that is not of 32-bit floats");
    }
    return push_new(m,
            (pickle_value){.kind = PICKLE_STORAGE,
                    .number = item(p, t, 4)->number,
                    .text = item(p, t, 2)->text,
                    .text_bytes = item(p, t, 2)->text_bytes});
}

static bool take_axes(const pickle *p, const pickle_value *tuple, int64_t out[2])
{
    if (tuple->kind != PICKLE_TUPLE || tuple->count < 1 || tuple->count > 2) {
        return false;
    }
    for (int i = 0; i < tuple->count; i++) {
        if (item(p, tuple, i)->kind != PICKLE_INT || item(p, tuple, i)->number < 0) {
            return false;
        }
        out[i] = item(p, tuple, i)->number;
    }
    return true;
}

/* (storage, first element, size, stride, requires_grad, hooks) */
static status make_tensor(machine *m, const pickle_value *arguments)
{
    const pickle *p = m->p;
    pickle_value t = {.kind = PICKLE_TENSOR};
    bool good = arguments->count >= 4 && item(p, arguments, 0)->kind == PICKLE_STORAGE &&
            item(p, arguments, 1)->kind == PICKLE_INT && item(p, arguments, 1)->number >= 0 &&
            take_axes(p, item(p, arguments, 2), t.size) && take_axes(p, item(p, arguments, 3), t.stride) &&
            item(p, arguments, 2)->count == item(p, arguments, 3)->count;
    if (!good) {
        return wrong(m, "a tensor that is not of one or two axes of floats");
    }
    t.number = item(p, arguments, 1)->number;
    t.first = p->items[arguments->first];
    t.rank = item(p, arguments, 2)->count;
    return push_new(m, t);
}

static status reduce(machine *m)
{
    int arguments, callable;
    if (!pop(m, &arguments) || !pop(m, &callable)) {
        return wrong(m, "stack underflow");
    }
    const pickle_value *f = &m->p->values[callable], *a = &m->p->values[arguments];
    if (a->kind == PICKLE_TUPLE && is_text(f, PICKLE_GLOBAL, "torch._utils\n_rebuild_tensor_v2")) {
        pickle_value copy = *a;
        return make_tensor(m, &copy);
    }
    if (a->kind == PICKLE_TUPLE && a->count == 0 && is_text(f, PICKLE_GLOBAL, "collections\nOrderedDict")) {
        return push_new(m, (pickle_value){.kind = PICKLE_DICT, .first = -1});
    }
    return FAIL(m->e, ST_ERR_FORMAT, "pickle: it wants to call %.*s, which is not done",
            f->kind == PICKLE_GLOBAL && f->text_bytes < 100 ? (int)f->text_bytes : 9,
            f->kind == PICKLE_GLOBAL ? f->text : "something");
}

/* Two lines: module, name. */
static status global(machine *m)
{
    const uint8_t *from = m->at, *line = memchr(from, '\n', (size_t)(m->end - from));
    line = line != NULL ? memchr(line + 1, '\n', (size_t)(m->end - line - 1)) : NULL;
    if (line == NULL) {
        return wrong(m, "cut off");
    }
    m->at = line + 1;
    return push_new(m,
            (pickle_value){
                    .kind = PICKLE_GLOBAL, .text = (const char *)from, .text_bytes = (size_t)(line - from)});
}

static status text(machine *m)
{
    uint32_t n = 0;
    const uint8_t *bytes = NULL;
    if (!take_number(m, 4, &n) || !take(m, n, &bytes)) {
        return wrong(m, "cut off");
    }
    return push_new(m, (pickle_value){.kind = PICKLE_STRING, .text = (const char *)bytes, .text_bytes = n});
}

static status integer(machine *m, size_t bytes)
{
    uint32_t n = 0;
    if (!take_number(m, bytes, &n)) {
        return wrong(m, "cut off");
    }
    return push_new(m, (pickle_value){.kind = PICKLE_INT, .number = bytes == 4 ? (int32_t)n : (int64_t)n});
}

static status put(machine *m, size_t bytes)
{
    uint32_t n = 0;
    if (!take_number(m, bytes, &n) || n >= MEMO_MAX || m->depth <= floor_of(m)) {
        return wrong(m, "a memo that cannot be");
    }
    m->memo[n] = m->stack[m->depth - 1];
    return ST_OK;
}

static status get(machine *m, size_t bytes)
{
    uint32_t n = 0;
    if (!take_number(m, bytes, &n) || n >= MEMO_MAX || m->memo[n] < 0) {
        return wrong(m, "a memo that cannot be");
    }
    return push(m, m->memo[n]);
}

static status mark(machine *m)
{
    if (m->n_marks == MARKS_MAX) {
        return wrong(m, "too deep");
    }
    m->marks[m->n_marks++] = m->depth;
    return ST_OK;
}

static status at_mark(machine *m, status (*then)(machine *m, int from))
{
    int from = 0;
    return pop_mark(m, &from) ? then(m, from) : wrong(m, "no mark");
}

static status set_item(machine *m)
{
    return m->depth - floor_of(m) < 3 ? wrong(m, "stack underflow") : set_items(m, m->depth - 2);
}

static status step(machine *m, uint8_t op)
{
    switch (op) {
    case '}':
        return push_new(m, (pickle_value){.kind = PICKLE_DICT, .first = -1});
    case ')':
        return make_tuple(m, m->depth);
    case '(':
        return mark(m);
    case 't':
        return at_mark(m, make_tuple);
    case 'u':
        return at_mark(m, set_items);
    case 's':
        return set_item(m);
    case 0x85: /* TUPLE1, TUPLE2, TUPLE3 */
    case 0x86:
    case 0x87:
        return small_tuple(m, op - 0x84);
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return push_new(m, (pickle_value){.kind = PICKLE_INT, .number = op == 0x88});
    case 'N':
        return push_new(m, (pickle_value){.kind = PICKLE_NONE});
    case 'X':
        return text(m);
    case 'K':
        return integer(m, 1);
    case 'M':
        return integer(m, 2);
    case 'J':
        return integer(m, 4);
    case 'c':
        return global(m);
    case 'q':
        return put(m, 1);
    case 'r':
        return put(m, 4);
    case 'h':
        return get(m, 1);
    case 'j':
        return get(m, 4);
    case 'Q':
        return make_storage(m);
    case 'R':
        return reduce(m);
    default:
        return FAIL(m->e, ST_ERR_FORMAT, "pickle: instruction 0x%02x is not known here", op);
    }
}

static status run(machine *m)
{
    if (m->end - m->at < 2 || m->at[0] != 0x80 || m->at[1] != 2) {
        return wrong(m, "protocol 2 is expected");
    }
    m->at += 2;
    while (m->at < m->end) {
        uint8_t op = *m->at++;
        if (op == '.') {
            return pop(m, &m->p->root) && m->depth == 0 ? ST_OK
                                                        : wrong(m, "an end that leaves things behind");
        }
        TRY(step(m, op));
    }
    return wrong(m, "cut off");
}

status kvq_pickle_read(const uint8_t *data, size_t bytes, pickle *out, err *e)
{
    pickle p = {.root = -1};
    machine *m = base_zalloc(1, sizeof *m);
    int *memo = base_alloc(MEMO_MAX * sizeof *memo);
    status s = ST_ERR_MEMORY;
    if (m != NULL && memo != NULL) {
        memset(memo, 0xff, MEMO_MAX * sizeof *memo);
        *m = (machine){.p = &p, .at = data, .end = data + bytes, .memo = memo, .e = e};
        s = run(m);
    } else {
        s = FAIL(e, s, "out of memory for a pickle");
    }
    base_free(memo);
    base_free(m);
    if (s != ST_OK) {
        kvq_pickle_free(&p);
        return s;
    }
    *out = p;
    return ST_OK;
}

void kvq_pickle_free(pickle *p)
{
    base_free(p->values);
    base_free(p->items);
    base_free(p->pairs);
    *p = (pickle){0};
}

/* ---- reading dictionaries ---- */

const pickle_value *kvq_pickle_member(const pickle *p, const pickle_value *dict, const char *key)
{
    for (int i = dict->kind == PICKLE_DICT ? dict->first : -1; i >= 0; i = p->pairs[i].next) {
        if (is_text(&p->values[p->pairs[i].key], PICKLE_STRING, key)) {
            return &p->values[p->pairs[i].value];
        }
    }
    return NULL;
}

const pickle_value *kvq_pickle_entry(const pickle *p, const pickle_value *dict, int64_t key)
{
    for (int i = dict->kind == PICKLE_DICT ? dict->first : -1; i >= 0; i = p->pairs[i].next) {
        const pickle_value *k = &p->values[p->pairs[i].key];
        if (k->kind == PICKLE_INT && k->number == key) {
            return &p->values[p->pairs[i].value];
        }
    }
    return NULL;
}

int64_t kvq_pickle_count(const pickle *p, const pickle_value *dict)
{
    (void)p;
    return dict->kind == PICKLE_DICT ? dict->count : -1;
}
