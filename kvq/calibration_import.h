/* Reading torch.save files: a zip of stored entries, and the pickle in it as plain values. Nothing is ever executed. */
#ifndef EPIMEM_KVQ_CALIBRATION_IMPORT_H
#define EPIMEM_KVQ_CALIBRATION_IMPORT_H

#include "kvq/kvq.h"

/* ---- zip ---- */

/* The entry whose name ends in `suffix` after its first folder ("data.pkl", "data/3"). Only stored, unencrypted entries of
 * archives below 4 GiB. ST_ERR_NOT_FOUND, or ST_ERR_FORMAT when the archive is not as it should be. */
status kvq_zip_find(
        const uint8_t *zip, size_t bytes, const char *suffix, const uint8_t **data, size_t *size, err *e);

/* ---- pickle ---- */

typedef enum pickle_kind {
    PICKLE_NONE,
    PICKLE_INT,
    PICKLE_STRING,
    PICKLE_TUPLE,
    PICKLE_DICT,
    PICKLE_GLOBAL,  /* a name, nothing more */
    PICKLE_STORAGE, /* of floats: key in the archive, number of elements */
    PICKLE_TENSOR
} pickle_kind;

typedef struct pickle_value {
    pickle_kind kind;
    int64_t number;   /* INT; STORAGE: elements; TENSOR: first element in its storage */
    const char *text; /* STRING and GLOBAL ("module name"); STORAGE: key. Not terminated */
    size_t text_bytes;
    int first,
            count; /* TUPLE: items [first, first + count) in `items`; DICT: chain of pairs; TENSOR: its storage */
    int64_t size[2], stride[2]; /* TENSOR of one or two axes */
    int rank;
} pickle_value;

typedef struct pickle_pair {
    int key, value, next; /* value numbers; next pair or -1 */
} pickle_pair;

typedef struct pickle {
    pickle_value *values; /* by number */
    size_t n_values, values_cap;
    int *items;
    size_t n_items, items_cap;
    pickle_pair *pairs;
    size_t n_pairs, pairs_cap;
    int root;
} pickle;

/* Protocol 2, the opcodes and the two constructors that state dictionaries use; anything else is ST_ERR_FORMAT that names
 * it. Texts point into `data`. */
status kvq_pickle_read(const uint8_t *data, size_t bytes, pickle *out, err *e);
void kvq_pickle_free(pickle *p);
/* The value under a text or an integer key, NULL when there is none. */
const pickle_value *kvq_pickle_member(const pickle *p, const pickle_value *dict, const char *key);
const pickle_value *kvq_pickle_entry(const pickle *p, const pickle_value *dict, int64_t key);
int64_t kvq_pickle_count(const pickle *p, const pickle_value *dict);

#endif
