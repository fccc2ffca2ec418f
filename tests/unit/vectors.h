/* Reading expected values in tests: a folder of .f32 files and a JSON file with one object per prompt. */
#ifndef EPIMEM_TESTS_VECTORS_H
#define EPIMEM_TESTS_VECTORS_H

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base.h"

/* A whole JSON file; NULL when it cannot be read. */
static inline cJSON *vectors_json(const char *path)
{
    base_map map;
    err e;
    if (base_map_open(path, &map, &e) != ST_OK) {
        return NULL;
    }
    cJSON *value = cJSON_ParseWithLength((const char *)map.data, map.size);
    base_map_close(&map);
    return value;
}

/* Floats of a file, NULL when it has not exactly n of them. Freed with base_free. */
static inline float *vectors_f32(const char *path, size_t n)
{
    base_map map;
    err e;
    float *x = NULL;
    if (base_map_open(path, &map, &e) == ST_OK) {
        if (map.size == n * sizeof *x && (x = base_alloc(map.size)) != NULL) {
            memcpy(x, map.data, map.size);
        }
        base_map_close(&map);
    }
    return x;
}

/* The object of an array whose member "name" is this. */
static inline const cJSON *vectors_named(const cJSON *array, const char *name)
{
    const cJSON *o;
    cJSON_ArrayForEach (o, array) {
        const cJSON *n = cJSON_GetObjectItemCaseSensitive(o, "name");
        if (cJSON_IsString(n) && strcmp(n->valuestring, name) == 0) {
            return o;
        }
    }
    return NULL;
}

/* A member that is an array of whole numbers. Freed with base_free. */
static inline int32_t *vectors_ids(const cJSON *o, const char *member, int *n)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(o, member);
    const cJSON *m;
    int32_t *ids = base_alloc((size_t)cJSON_GetArraySize(array) * sizeof *ids);
    *n = 0;
    if (ids != NULL) {
        cJSON_ArrayForEach (m, array) {
            ids[(*n)++] = m->valueint;
        }
    }
    return ids;
}

#endif
