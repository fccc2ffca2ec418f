/*
 * The character classes of the reference WordPiece (Hugging Face tokenizers). Its tables are of Unicode 8: what came later
 * has no category there, so it is neither a mark nor punctuation nor a control, and a handful has changed category since.
 * Going by the newer tables of utf8proc alone would give other ids for such text, and other ids after an update of it.
 */
#include "agent/wordpiece_internal.h"

#include <utf8proc.h>

/* Stretches that hold marks, punctuation or controls of later versions and none of Unicode 8; found by asking the
 * reference about every code point up to Unicode 15, the blocks of Unicode 16 added. */
static const struct {
    uint32_t first, last;
} later[] = {
        {0x61d, 0x61d},
        {0x7fd, 0x7fd},
        {0x890, 0x8e2},
        {0x9fd, 0x9fe},
        {0xa76, 0xa76},
        {0xafa, 0xaff},
        {0xb55, 0xb55},
        {0xc04, 0xc3c},
        {0xc77, 0xc77},
        {0xc84, 0xc84},
        {0xd00, 0xd00},
        {0xd3b, 0xd3c},
        {0xd81, 0xd81},
        {0xeba, 0xeba},
        {0xece, 0xece},
        {0x180f, 0x1886},
        {0x1abf, 0x1ace},
        {0x1b4e, 0x1b4f},
        {0x1b7d, 0x1b7f},
        {0x1df6, 0x1dfb},
        {0x2e43, 0x2e5d},
        {0xa82c, 0xa82c},
        {0xa8c5, 0xa8c5},
        {0xa8ff, 0xa8ff},
        {0xa9bd, 0xa9bd},
        {0x10d24, 0x10f89},
        {0x11070, 0x11074},
        {0x110c2, 0x110cd},
        {0x111cf, 0x111cf},
        {0x1123e, 0x11241},
        {0x1133b, 0x1133b},
        {0x11380, 0x113e2},
        {0x11438, 0x1145e},
        {0x11660, 0x1166c},
        {0x116b9, 0x116b9},
        {0x1182f, 0x11fff},
        {0x12ff1, 0x13455},
        {0x16100, 0x1613f},
        {0x16d40, 0x16d7f},
        {0x16e97, 0x16f4f},
        {0x16fe2, 0x16fe4},
        {0x1cf00, 0x1cf46},
        {0x1e000, 0x1e5ff},
        {0x1e944, 0x1e95f},
};

static bool came_later(uint32_t c)
{
    for (unsigned i = 0; i < sizeof later / sizeof later[0] && later[i].first <= c; i++) {
        if (c <= later[i].last) {
            return true;
        }
    }
    return false;
}

bool wordpiece_drops(uint32_t c)
{
    if (c < 0x80) {
        return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
    }
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    bool control = k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
    return c == 0xfffd || (control && !came_later(c));
}

bool wordpiece_drops_mark(uint32_t c)
{
    if (c < 0x300) {
        return false;
    }
    bool mark = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN;
    return c == 0x1734 || (mark && c != 0x111c9 && !came_later(c));
}

bool wordpiece_is_punctuation(uint32_t c)
{
    if (c < 0x80) { /* every ASCII symbol counts */
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
                (c >= '{' && c <= '~');
    }
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    bool punctuation = k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
    return c == 0x166d || c == 0x111c9 || (punctuation && !came_later(c));
}

/* The blocks of ideographs of its time; the gap before 2B920 is the reference's. */
bool wordpiece_is_ideograph(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
            (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) ||
            (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}
