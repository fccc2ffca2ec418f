/*
 * kvq: what a token's key and value become when they are stored.
 *
 * A codec is, per (layer, KV head): a rotation and mean for K and V (krn_rotation), a level rule, a scale rule and an
 * encoder. All codecs share the packed page: 128 tokens of one (layer, KV head), laid out by kvq/page.h and read in
 * place by kernels' attention. So K and V in every tier live in the codec's stored space, and moving a token from
 * the BF16 tier into a page is a row-wise encode with no matrix product.
 *
 * A COLUMN is one page of every (layer, KV head) for the same 128 tokens, [layer][head] back to back: the unit that
 * is stored, checksummed and loaded. Encoding a row looks at nothing but that row's BF16 values (codecs with
 * cross-token groups look at their page alone): the same tokens give the same bytes however they arrived.
 *
 * Threads: a codec is immutable after open; all functions here are pure and may run on any thread.
 */
#ifndef EPIMEM_KVQ_KVQ_H
#define EPIMEM_KVQ_KVQ_H

#include "kernels/kernels.h"

typedef struct kvq_shape {
    int layers, kv_heads, d;
} kvq_shape;

typedef struct kvq_codec kvq_codec;

/* Opens a codec by name for a model shape. `calibration_path` NULL unless the codec needs one. ST_ERR_ARG names
 * the codecs there are when `name` is not one. */
status kvq_codec_open(
        const char *name, const kvq_shape *shape, const char *calibration_path, kvq_codec **out, err *e);
/* The same, and codecs that are measured and not stored (kvq/trials.def): kvq_codec_open refuses those, naming them. Their pages
 * are BF16 rows that were coded and decoded; kvq_codec_bits counts what a store of the codec would take. */
status kvq_codec_open_measured(
        const char *name, const kvq_shape *shape, const char *calibration_path, kvq_codec **out, err *e);
void kvq_codec_close(kvq_codec *c);
const char *kvq_codec_name(const kvq_codec *c);
uint64_t kvq_codec_fingerprint(const kvq_codec *c); /* of everything that changes stored bytes */
double kvq_codec_bits(const kvq_codec *c); /* stored bits per element, mean of K and V, of full pages */
double kvq_codec_token_bytes(const kvq_codec *c); /* the same as bytes of a token: K and V of all layers */

/* The stored space and page format of one head; pointers live as long as the codec. */
const krn_rotation *kvq_k_rotation(const kvq_codec *c, int layer, int head);
const krn_rotation *kvq_v_rotation(const kvq_codec *c, int layer, int head);
const krn_page_format *kvq_page_format(const kvq_codec *c, int layer);

size_t kvq_column_bytes(const kvq_codec *c);
size_t kvq_page_at(const kvq_codec *c, int layer, int head); /* offset of that page in a column */

/* Encodes rows [rows][d] of bf16 in stored space (row stride d) into a page; rows beyond are encoded as zeros.
 * ST_ERR_ARG on NaN or infinity, naming the row; ST_ERR_MEMORY from codecs that are only measured. */
status kvq_encode_page(const kvq_codec *c,
        int layer,
        int head,
        const uint16_t *k,
        const uint16_t *v,
        int rows,
        uint8_t *page,
        err *e);
/* Decodes to float in stored space, k and v [128][d]. The specification of what attention reads. */
void kvq_decode_page(const kvq_codec *c, int layer, int head, const uint8_t *page, float *k, float *v);
/* Moves the coded rows [src_row, src_row+n) of one page to dst_row.. of another: a bit shuffle, no re-coding. */
void kvq_gather_rows(
        const kvq_codec *c, int layer, const uint8_t *src, int src_row, uint8_t *dst, int dst_row, int n);
/* The span for the attention kernel. `bf16` columns give BF16 spans, coded ones PAGE spans. */
krn_span kvq_span(const kvq_codec *c, int layer, int head, const uint8_t *column, int rows);

/* ---- calibration: what a codec knows of one model (kvq/calibration.h says how it is computed) ---- */

/* Arrays are owned; [L] layers, [K] KV heads, rotations row-major, rows are x R. An imported calibration has only the
 * shared rotations: the parts it lacks are NULL. */
typedef struct kvq_calibration {
    kvq_shape shape;
    char model[64];    /* for people */
    uint64_t weights;  /* fingerprint of the model that it was made with */
    int64_t tokens;    /* that went into it */
    float *k_rotation; /* [L][K][d][d] eigenbasis of the head's queries, times Hadamard */
    float *k_mean; /* [L][K][d] of the mean before RoPE what is left when RoPE turns it through all positions */
    float *shared_k_rotation, *shared_v_rotation; /* [L][d][d] as OSCAR publishes them */
    float *q_eigenvalues;                         /* [L][K][d] rising */
    int32_t *k_bits;                              /* [L] 2 or 4; never NULL */
} kvq_calibration;
enum { KVQ_CALIBRATION_HEADS = 1, KVQ_CALIBRATION_SHARED = 2 }; /* which parts: per head, shared */

/* Zeroed arrays of the named parts, two bits everywhere. */
status kvq_calibration_create(const kvq_shape *shape, unsigned parts, kvq_calibration *out, err *e);
void kvq_calibration_free(kvq_calibration *c); /* leaves it empty */
/* safetensors. The writer replaces the file in one step; the reader believes nothing unchecked: shapes agree, numbers
 * are finite, rotations are orthogonal within 1e-4. */
status kvq_calibration_write(const kvq_calibration *c, const char *path, err *e);
status kvq_calibration_read(const char *path, kvq_calibration *out, err *e);
status kvq_calibration_read_memory(
        const void *data, size_t bytes, const char *name, kvq_calibration *out, err *e);
/* Rotations published by OSCAR (RotationZoo .pt files, one for K and one for V): a calibration of shared rotations. Checked
 * against the shape and for orthogonality; the files are read as data, nothing in them is executed. */
status kvq_calibration_import(
        const char *k_path, const char *v_path, const kvq_shape *shape, kvq_calibration *out, err *e);
/* ST_ERR_MISMATCH, naming both models, unless the file was made for these weights. */
status kvq_calibration_check(const char *path, const char *model, uint64_t weights, err *e);
/* Does the codec of this name take a calibration file? */
bool kvq_codec_is_calibrated(const char *name);

/* Second moments of queries, keys and values, summed in double in the order of the calls. */
typedef struct kvq_moments kvq_moments;
status kvq_moments_open(const kvq_shape *shape, kvq_moments **out, err *e);
void kvq_moments_close(kvq_moments *m);
/* n query rows [n][d] after RoPE, of all query heads that read this KV head. */
void kvq_moments_add_queries(kvq_moments *m, int layer, int head, const float *q, int n);
/* All keys (after RoPE) and values of the text whose queries were added last: [n][d] each. */
void kvq_moments_add_text(kvq_moments *m, int layer, int head, const float *k, const float *v, int n);
/* Rotations of all that was added; k_mean stays zero, since it takes the model's RoPE to know it. */
status kvq_moments_finish(const kvq_moments *m, kvq_calibration *out, err *e);
/* Figures of one head for the table. */
typedef struct kvq_head_figures {
    double participation;  /* (sum of eigenvalues)^2 / sum of squares, of the queries' moment: 1 to d */
    double condition;      /* largest over smallest eigenvalue */
    double mean_to_spread; /* |mean of K| over the root of its variance's trace */
} kvq_head_figures;
kvq_head_figures kvq_moments_figures(const kvq_moments *m, const kvq_calibration *c, int layer, int head);

#endif
