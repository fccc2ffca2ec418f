/* The parts of `epimem calibrate`. */
#ifndef EPIMEM_AGENT_CALIBRATE_INTERNAL_H
#define EPIMEM_AGENT_CALIBRATE_INTERNAL_H

#include "agent/eval_internal.h"

typedef struct calibrate_options {
    model_tool tool;
    const char **texts; /* files; none: the built-in texts */
    int n_texts;
    const char *out_path;
    char out_default[4096];          /* beside the model, unless one is named */
    const char *import_k, *import_v; /* RotationZoo files instead of texts; NULL: none */
    int tokens;                      /* of a text, at most */
    double bits;                     /* <= 0: 2.4 at d 64, 2.3 otherwise */
} calibrate_options;

/* The texts that come with the program: dialogue, prose in several languages, code, lists. */
enum { CALIBRATE_TEXTS = 3 };
enum {
    CALIBRATE_TEXTS_RANKED = 2
}; /* layers are ranked on the first texts only: it takes most of the time */
extern const char *const calibrate_texts[CALIBRATE_TEXTS];

/* KL that coding one layer's keys at two bits costs, for each layer, added to damage [layers], on the last tokens of a
 * text whose keys and values have been captured. codec: keys at two bits. A text too short for it adds nothing. */
status calibrate_rank_layers(const model_tool *t,
        const kvq_codec *codec,
        const token_list *text,
        const eval_capture *capture,
        double *damage,
        void (*on_layer)(int done, int all),
        err *e);
/* Four bits for the keys of the layers with the most damage, as long as the mean of K and V bits stays within `bits`. */
void calibrate_assign_bits(kvq_calibration *c, const double *damage, double bits);

#endif
