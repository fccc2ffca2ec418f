/* Character classes over utf8proc's categories, with a short cut for ASCII. */
#include "agent/unicode_internal.h"

#include <utf8proc.h>

bool unicode_is_space(uint32_t c)
{
    switch (c) {
    case 0x20:
    case 0x85:
    case 0xa0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202f:
    case 0x205f:
    case 0x3000:
        return true;
    default:
        return (c >= 0x09 && c <= 0x0d) || (c >= 0x2000 && c <= 0x200a);
    }
}

static unicode_class class_of_ascii(uint32_t c)
{
    uint32_t lower = c | 0x20u;
    if (lower >= 'a' && lower <= 'z') {
        return UNICODE_LETTER;
    }
    if (c >= '0' && c <= '9') {
        return UNICODE_NUMBER;
    }
    return c == ' ' || (c >= 0x09 && c <= 0x0d) ? UNICODE_SPACE : UNICODE_OTHER;
}

unicode_class unicode_class_of(uint32_t c)
{
    if (c < 0x80) {
        return class_of_ascii(c);
    }
    if (unicode_is_space(c)) {
        return UNICODE_SPACE;
    }
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return UNICODE_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return UNICODE_NUMBER;
    default:
        return UNICODE_OTHER;
    }
}

size_t unicode_ill_formed_bytes(const uint8_t *s, size_t bytes)
{
    if (s[0] < 0xc2 || s[0] > 0xf4) {
        return 1;
    }
    /* The second byte's range depends on the first (Unicode 15, table 3-7); later ones are 80..BF. */
    uint8_t low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    size_t whole = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    size_t n = 1;
    while (n < whole && n < bytes && s[n] >= low && s[n] <= high) {
        low = 0x80;
        high = 0xbf;
        n++;
    }
    return n;
}
