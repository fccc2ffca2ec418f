/* What gguf.c (reading) and gguf_get.c (looking up) share. */
#ifndef EPIMEM_AGENT_GGUF_LAYOUT_INTERNAL_H
#define EPIMEM_AGENT_GGUF_LAYOUT_INTERNAL_H

#include "agent/gguf_internal.h"

/* Value types as the format numbers them. */
typedef enum gguf_value_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPE_COUNT
} gguf_value_type;

typedef struct gguf_key {
    gguf_string name;
    gguf_value_type type;
    gguf_value_type item_type; /* of an array */
    uint64_t count;            /* of an array, or the bytes of a string */
    const uint8_t *value;      /* into the map, any alignment; a string's first byte, an array's first item */
    void *items;               /* arrays of strings, 32-bit integers and F32: decoded, owned; else NULL */
} gguf_key;

struct gguf {
    base_map map; /* data NULL when the bytes are borrowed */
    char *name;   /* last component of the path, for messages */
    char *path;
    gguf_key *keys;       /* sorted by name once open */
    gguf_tensor *tensors; /* in file order */
    uint32_t *by_name;    /* tensor indices sorted by name */
    size_t n_keys, n_tensors;
};

/* A name fit for a message: at most 64 bytes, unprintable ones as '?'. */
typedef struct gguf_shown {
    char text[68];
} gguf_shown;
gguf_shown gguf_show(gguf_string s);
int gguf_compare(gguf_string a, gguf_string b);
const char *gguf_value_type_name(gguf_value_type type);

#endif
