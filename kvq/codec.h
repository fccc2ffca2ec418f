/*
 * A codec inside kvq: what its folder under kvq/codecs fills in. One line in kvq/codecs.def registers it.
 */
#ifndef EPIMEM_KVQ_CODEC_H
#define EPIMEM_KVQ_CODEC_H

#include "kvq/kvq.h"
#include "kvq/page.h"
#include "kvq/rows.h"

/* How one layer's rows become codes. A bf16 layer has no encoders. */
typedef struct kvq_layer {
    krn_page_format format;
    kvq_row_encoder encode_k, encode_v;
} kvq_layer;

/* Codes and decodes rows [rows][d] of a page in place, in stored space; see trial.h. */
typedef status (*kvq_page_coder)(const kvq_codec *c, float *k, float *v, int rows, err *e);

struct kvq_codec {
    const char *name;
    kvq_shape shape;
    bool is_bf16;
    kvq_page_coder trial_coder; /* NULL: a codec that is stored */
    double trial_bits;          /* of an element, mean of K and V */
    kvq_layer *layers;          /* [layers] */
    krn_rotation *k_rotations;  /* [layers][kv_heads] */
    krn_rotation *v_rotations;
    size_t *layer_at; /* [layers + 1] offset of a layer's first page in a column */
    uint64_t fingerprint;
    kvq_calibration *calibration; /* owned; NULL: the codec needs none. Rotations may point into it */
};

/* Fills layers and rotations of a codec whose arrays are allocated and zeroed. */
typedef status (*kvq_codec_opener)(kvq_codec *c, const char *calibration_path, err *e);

#define X(name, opener) status opener(kvq_codec *c, const char *calibration_path, err *e);
#include "kvq/codecs.def"
#undef X

/* Sets every rotation of the codec to one kind without mean. */
void kvq_codec_rotate_all(kvq_codec *c, krn_rotation_kind kind);
/* Sets every layer to one page format (offsets are laid out here) and encoders. */
void kvq_codec_set_layers(kvq_codec *c, krn_page_format format, kvq_row_encoder k, kvq_row_encoder v);
/* Pages of BF16 rows. */
void kvq_codec_store_bf16(kvq_codec *c);
/* ST_ERR_ARG when a codec that needs no calibration is given one. */
status kvq_refuse_calibration(const kvq_codec *c, const char *calibration_path, err *e);

#endif
