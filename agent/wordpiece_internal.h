/* Characters as the reference WordPiece sees them. */
#ifndef EPIMEM_AGENT_WORDPIECE_INTERNAL_H
#define EPIMEM_AGENT_WORDPIECE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

bool wordpiece_drops(uint32_t code_point);      /* controls, formats, private use, U+FFFD; not tab, CR, LF */
bool wordpiece_drops_mark(uint32_t code_point); /* nonspacing marks, after decomposition */
bool wordpiece_is_punctuation(uint32_t code_point); /* a word of its own */
bool wordpiece_is_ideograph(uint32_t code_point);   /* a word of its own */

#endif
