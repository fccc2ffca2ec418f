/* What the tokenizers ask of Unicode: the four classes of the pre-tokenizers, white space, and the repair of ill-formed
 * UTF-8. Categories come from utf8proc, so a character younger than its Unicode version counts as unassigned. */
#ifndef EPIMEM_AGENT_UNICODE_INTERNAL_H
#define EPIMEM_AGENT_UNICODE_INTERNAL_H

#include "kernels/base.h"

typedef enum unicode_class {
    UNICODE_LETTER, /* \p{L} */
    UNICODE_NUMBER, /* \p{N}: Nd, Nl and No */
    UNICODE_SPACE,  /* \s: the property White_Space */
    UNICODE_OTHER   /* the rest: marks, punctuation, symbols, controls, unassigned */
} unicode_class;

unicode_class unicode_class_of(uint32_t code_point);
bool unicode_is_space(uint32_t code_point);

/* Bytes of the ill-formed sequence at the start of the text that become one U+FFFD (Unicode 15, section 3.9: the maximal
 * subpart of a well-formed sequence, else one byte). Only meaningful where base_utf8_next says 0 and bytes > 0. */
size_t unicode_ill_formed_bytes(const uint8_t *text, size_t bytes);

#endif
