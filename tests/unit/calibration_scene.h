/* Small calibrations for tests: orthogonal rotations, a few four-bit layers. */
#ifndef EPIMEM_TESTS_CALIBRATION_SCENE_H
#define EPIMEM_TESTS_CALIBRATION_SCENE_H

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "kvq/kvq.h"

/* A Householder reflection of a vector that depends on `seed`: orthogonal, dense, symmetric. */
static inline void scene_reflection(int d, unsigned seed, float *r)
{
    double w[256], squares = 0.0;
    for (int i = 0; i < d; i++) {
        w[i] = sin(1.0 + i * 0.7 + seed);
        squares += w[i] * w[i];
    }
    for (int i = 0; i < d; i++) {
        for (int j = 0; j < d; j++) {
            r[i * d + j] = (float)((i == j ? 1.0 : 0.0) - 2.0 * w[i] * w[j] / squares);
        }
    }
}

/* Odd layers have four-bit keys. */
static inline kvq_calibration scene_calibration(int layers, int kv_heads, int d)
{
    kvq_calibration c = {0};
    kvq_shape shape = {.layers = layers, .kv_heads = kv_heads, .d = d};
    err e;
    REQUIRE(kvq_calibration_create(&shape, KVQ_CALIBRATION_HEADS | KVQ_CALIBRATION_SHARED, &c, &e) == ST_OK);
    size_t size = (size_t)d * (size_t)d;
    for (int i = 0; i < layers * kv_heads; i++) {
        scene_reflection(d, (unsigned)i, c.k_rotation + (size_t)i * size);
        for (int k = 0; k < d; k++) {
            c.k_mean[i * d + k] = (float)sin(i + k);
            c.q_eigenvalues[i * d + k] = (float)k;
        }
    }
    for (int layer = 0; layer < layers; layer++) {
        scene_reflection(d, 100u + (unsigned)layer, c.shared_k_rotation + (size_t)layer * size);
        scene_reflection(d, 200u + (unsigned)layer, c.shared_v_rotation + (size_t)layer * size);
        c.k_bits[layer] = layer % 2 == 1 ? 4 : 2;
    }
    (void)snprintf(c.model, sizeof c.model, "scene");
    c.weights = 0x1234abcd5678ef90u;
    c.tokens = 4321;
    return c;
}

/* A file name of this process; the caller unlinks it. */
static inline const char *scene_path(char path[128])
{
    (void)snprintf(path, 128, "/tmp/epimem-test-calibration-%ld", (long)getpid());
    return path;
}

/* A codec of a calibration, by way of its file. */
static inline kvq_codec *scene_open(const char *name, const kvq_calibration *c)
{
    char path[128];
    kvq_codec *codec = NULL;
    err e;
    REQUIRE(kvq_calibration_write(c, scene_path(path), &e) == ST_OK);
    REQUIRE(kvq_codec_open(name, &c->shape, path, &codec, &e) == ST_OK);
    (void)unlink(path);
    return codec;
}

#endif
