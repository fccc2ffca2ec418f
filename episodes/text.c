#include "episodes/text_internal.h"

#include <string.h>

/* ---- characters ---- */

static bool is_between(uint32_t c, uint32_t first, uint32_t last)
{
    return c >= first && c <= last;
}

/* Scripts written without spaces: each character stands alone. */
static bool is_ideograph(uint32_t c)
{
    return is_between(c, 0x3040, 0x30ff) || is_between(c, 0x3400, 0x4dbf) || is_between(c, 0x4e00, 0x9fff) ||
            is_between(c, 0xf900, 0xfaff) || is_between(c, 0x20000, 0x3ffff);
}

/* Letters and digits. Beyond ASCII everything counts that is not in a block of punctuation, symbols or emoji. */
static bool is_word_char(uint32_t c)
{
    if (c < 0x80) {
        return is_between(c, '0', '9') || is_between(c, 'a', 'z') || is_between(c, 'A', 'Z');
    }
    if (c < 0xc0) {
        return c == 0xaa || c == 0xb5 || c == 0xba;
    }
    return c != 0xd7 && c != 0xf7 && !is_between(c, 0x2000, 0x206f) && !is_between(c, 0x20a0, 0x20cf) &&
            !is_between(c, 0x2190, 0x2bff) && !is_between(c, 0x2e00, 0x2e7f) &&
            !is_between(c, 0x3000, 0x303f) && !is_between(c, 0xe000, 0xf8ff) &&
            !is_between(c, 0xfe00, 0xfe0f) && !is_between(c, 0xff00, 0xff0f) &&
            !is_between(c, 0xff1a, 0xff20) && c != 0xfeff && c != 0xfffd && !is_between(c, 0x1f000, 0x1faff);
}

/* Latin Extended-A: pairs of capital and small letter, whose parity turns twice. */
static uint32_t fold_latin_extended(uint32_t c)
{
    if (c == 0x130) {
        return 'i';
    }
    if (c == 0x178) {
        return 0xff;
    }
    bool odd_is_capital = is_between(c, 0x139, 0x148) || is_between(c, 0x179, 0x17e);
    if (c == 0x131 || c == 0x138 || c == 0x149 || c == 0x17f) {
        return c;
    }
    return (c & 1u) == (odd_is_capital ? 1u : 0u) ? c + 1 : c;
}

static uint32_t fold_greek(uint32_t c)
{
    if (is_between(c, 0x391, 0x3a9) && c != 0x3a2) {
        return c + 0x20;
    }
    switch (c) {
    case 0x386:
        return 0x3ac;
    case 0x388:
    case 0x389:
    case 0x38a:
        return c + 0x25;
    case 0x38c:
        return 0x3cc;
    case 0x38e:
    case 0x38f:
        return c + 0x3f;
    case 0x3c2:
        return 0x3c3; /* final sigma */
    default:
        return c;
    }
}

static uint32_t fold_cyrillic(uint32_t c)
{
    if (is_between(c, 0x410, 0x42f)) {
        return c + 0x20;
    }
    if (is_between(c, 0x400, 0x40f)) {
        return c + 0x50;
    }
    if (is_between(c, 0x460, 0x481) || is_between(c, 0x48a, 0x4bf) || is_between(c, 0x4d0, 0x52f)) {
        return c | 1u;
    }
    return c;
}

static uint32_t fold_char(uint32_t c)
{
    if (c < 0x80) {
        return is_between(c, 'A', 'Z') ? c + 0x20 : c;
    }
    if (is_between(c, 0xc0, 0xde)) {
        return c == 0xd7 ? c : c + 0x20;
    }
    if (is_between(c, 0x100, 0x17f)) {
        return fold_latin_extended(c);
    }
    if (is_between(c, 0x386, 0x3c2)) {
        return fold_greek(c);
    }
    if (is_between(c, 0x400, 0x52f)) {
        return fold_cyrillic(c);
    }
    return c;
}

/* c < 0x110000 and no surrogate: it came out of valid UTF-8 or out of fold_char. */
static size_t put_char(char *out, uint32_t c)
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0u | (c >> 6));
        out[1] = (char)(0x80u | (c & 0x3fu));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0u | (c >> 12));
        out[1] = (char)(0x80u | ((c >> 6) & 0x3fu));
        out[2] = (char)(0x80u | (c & 0x3fu));
        return 3;
    }
    out[0] = (char)(0xf0u | (c >> 18));
    out[1] = (char)(0x80u | ((c >> 12) & 0x3fu));
    out[2] = (char)(0x80u | ((c >> 6) & 0x3fu));
    out[3] = (char)(0x80u | (c & 0x3fu));
    return 4;
}

/* Next character; an ill-formed byte counts as one space. */
static size_t next_char(const char *text, size_t bytes, uint32_t *c)
{
    size_t n = base_utf8_next(text, bytes, c);
    if (n == 0 && bytes > 0) {
        *c = ' ';
        return 1;
    }
    return n;
}

/* ---- words ---- */

bool ep_word_next(const char *text, size_t bytes, size_t *at, ep_word *out)
{
    uint32_t c = 0;
    size_t i = *at, n = 0;
    while (i < bytes && (n = next_char(text + i, bytes - i, &c)) > 0 && !is_word_char(c)) {
        i += n;
    }
    out->at = i;
    out->folded_bytes = 0;
    while (i < bytes && (n = next_char(text + i, bytes - i, &c)) > 0 && is_word_char(c)) {
        if (is_ideograph(c) && i > out->at) {
            break;
        }
        if (out->folded_bytes + 4 <= EP_WORD_BYTES_MAX) {
            out->folded_bytes += put_char(out->folded + out->folded_bytes, fold_char(c));
        }
        i += n;
        if (is_ideograph(c)) {
            break;
        }
    }
    out->bytes = i - out->at;
    *at = i;
    return out->bytes > 0;
}

/* English function words and the remains of contractions, sorted for the binary search. They are in nearly every
 * message and say nothing about its topic. */
static const char *const stop_words[] = {"a", "about", "above", "after", "again", "against", "all", "almost",
        "also", "although", "always", "am", "among", "an", "and", "another", "any", "anyone", "anything",
        "are", "aren", "around", "as", "at", "be", "because", "been", "before", "being", "below", "between",
        "both", "but", "by", "can", "cannot", "could", "couldn", "did", "didn", "do", "does", "doesn",
        "doing", "don", "done", "down", "during", "each", "either", "else", "ever", "every", "everyone",
        "everything", "few", "for", "from", "further", "get", "go", "had", "hadn", "has", "hasn", "have",
        "haven", "having", "he", "hence", "her", "here", "hers", "herself", "him", "himself", "his", "how",
        "however", "i", "if", "in", "into", "is", "isn", "it", "its", "itself", "just", "least", "less", "ll",
        "many", "may", "me", "might", "mine", "more", "most", "much", "must", "my", "myself", "neither",
        "never", "no", "nor", "not", "nothing", "now", "of", "off", "often", "on", "once", "one", "only",
        "onto", "or", "other", "others", "our", "ours", "ourselves", "out", "over", "own", "per", "perhaps",
        "quite", "rather", "re", "same", "see", "several", "shall", "she", "should", "shouldn", "since", "so",
        "some", "someone", "something", "still", "such", "than", "that", "the", "their", "theirs", "them",
        "themselves", "then", "there", "these", "they", "this", "those", "though", "through", "to",
        "together", "too", "toward", "towards", "under", "until", "up", "upon", "us", "ve", "very", "was",
        "wasn", "we", "well", "were", "weren", "what", "whatever", "when", "where", "whether", "which",
        "while", "who", "whom", "whose", "why", "will", "with", "within", "without", "won", "would", "wouldn",
        "yet", "you", "your", "yours", "yourself", "yourselves"};

static bool is_stop_word(const char *word, size_t bytes)
{
    size_t lo = 0, hi = sizeof stop_words / sizeof *stop_words;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        size_t n = strlen(stop_words[mid]);
        int order = memcmp(stop_words[mid], word, n < bytes ? n : bytes);
        if (order == 0 && n == bytes) {
            return true;
        }
        if (order < 0 || (order == 0 && n < bytes)) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return false;
}

static bool ends_with(const char *word, size_t bytes, const char *ending, size_t ending_bytes)
{
    return bytes >= ending_bytes + 3 && memcmp(word + bytes - ending_bytes, ending, ending_bytes) == 0;
}

/* Strips a plural s, then one of -ing, -ed, -er, -ly (with the doubled consonant before it), then a mute e; a last y
 * becomes i. Crude on purpose: stems are compared, never shown. Worth four points of recall at a small budget over
 * stripping plurals alone (README.md). Returns the stem's length. */
static size_t stem_english(char *w, size_t n)
{
    static const struct {
        char text[4];
        size_t bytes;
    } endings[] = {{"ing", 3}, {"ed", 2}, {"er", 2}, {"ly", 2}};
    if (n > 3 && w[n - 1] == 's') {
        n--;
    }
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        if (ends_with(w, n, endings[i].text, endings[i].bytes)) {
            n -= endings[i].bytes;
            if (n > 3 && w[n - 1] == w[n - 2] && w[n - 1] != 'l' && w[n - 1] != 's') {
                n--;
            }
            break;
        }
    }
    if (n > 3 && w[n - 1] == 'e') {
        n--;
    }
    if (n > 3 && w[n - 1] == 'y') {
        w[n - 1] = 'i';
    }
    return n;
}

/* FNV-1a in 64 bits, never 0: two words of a session do not meet in practice. */
static uint64_t hash_bytes(const char *s, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        hash = (hash ^ (unsigned char)s[i]) * 0x100000001b3u;
    }
    return hash == 0 ? 1 : hash;
}

uint64_t ep_word_hash(const ep_word *w)
{
    return hash_bytes(w->folded, w->folded_bytes);
}

uint64_t ep_word_key(const ep_word *w)
{
    char stem[EP_WORD_BYTES_MAX];
    size_t n = w->folded_bytes;
    memcpy(stem, w->folded, n);
    bool ascii = true, letters = false;
    for (size_t i = 0; i < n; i++) {
        ascii = ascii && (unsigned char)stem[i] < 0x80;
        letters = letters || is_between((unsigned char)stem[i], 'a', 'z');
    }
    if (ascii && letters) {
        if (n == 1 || is_stop_word(stem, n)) {
            return 0;
        }
        n = stem_english(stem, n);
    }
    return hash_bytes(stem, n);
}

int ep_text_keys(const char *text, size_t bytes, uint64_t *keys, uint16_t *counts, int max, int *total)
{
    int n = 0;
    size_t at = 0;
    ep_word word;
    *total = 0;
    while (ep_word_next(text, bytes, &at, &word)) {
        uint64_t key = ep_word_key(&word);
        if (key == 0) {
            continue;
        }
        ++*total;
        int i = 0;
        while (i < n && keys[i] != key) {
            i++;
        }
        if (i < n) {
            counts[i] = (uint16_t)(counts[i] + (counts[i] < UINT16_MAX));
        } else if (n < max) {
            keys[n] = key;
            counts[n++] = 1;
        }
    }
    return n;
}

int ep_text_words(const char *text, size_t bytes, int max)
{
    int n = 0;
    size_t at = 0;
    ep_word word;
    while (n < max && ep_word_next(text, bytes, &at, &word)) {
        n++;
    }
    return n;
}

/* ---- sentences and pieces ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* End of the sentence that starts at `from`: behind . ! ? and closing quotes that a space follows, behind a CJK full
 * stop, or behind a line break. */
static size_t sentence_end(const char *text, size_t bytes, size_t from)
{
    size_t i = from;
    while (i < bytes) {
        uint32_t c = 0;
        size_t n = next_char(text + i, bytes - i, &c);
        i += n;
        if (c == '\n' || c == 0x3002 || c == 0xff01 || c == 0xff1f) {
            return i;
        }
        if (c != '.' && c != '!' && c != '?') {
            continue;
        }
        while (i < bytes && (text[i] == '"' || text[i] == '\'' || text[i] == ')' || text[i] == ']')) {
            i++;
        }
        if (i == bytes || is_space(text[i])) {
            return i;
        }
    }
    return bytes;
}

static ep_slice trimmed(const char *text, size_t from, size_t to)
{
    while (from < to && is_space(text[from])) {
        from++;
    }
    while (to > from && is_space(text[to - 1])) {
        to--;
    }
    return (ep_slice){from, to - from};
}

/* End of a sentence too long for a piece: behind its EP_CHUNK_WORDS_MAX-th word. */
static size_t words_end(const char *text, size_t bytes, size_t from)
{
    size_t at = from;
    ep_word word;
    for (int n = 0; n < EP_CHUNK_WORDS_MAX; n++) {
        if (!ep_word_next(text, bytes, &at, &word)) {
            return bytes;
        }
    }
    return at;
}

bool ep_chunk_next(const char *text, size_t bytes, size_t *at, ep_slice *out)
{
    size_t from = *at, end = from, last_start = from;
    int sentences = 0, words = 0;
    while (sentences < EP_CHUNK_SENTENCES_MAX && end < bytes) {
        size_t next = sentence_end(text, bytes, end);
        int n = ep_text_words(text + end, next - end, EP_CHUNK_WORDS_MAX + 1);
        if (n > EP_CHUNK_WORDS_MAX && words == 0) {
            end = words_end(text, next, end);
            last_start = end;
            words = EP_CHUNK_WORDS_MAX;
            break;
        }
        if (words + n > EP_CHUNK_WORDS_MAX) {
            break;
        }
        if (n > 0) {
            sentences++;
            last_start = end;
        }
        words += n;
        end = next;
    }
    if (words == 0) {
        *at = bytes;
        return false;
    }
    *out = trimmed(text, from, end);
    /* The next piece starts with this one's last sentence, so that a fact told over two is whole in one of them. */
    *at = end < bytes && sentences > 1 ? last_start : end;
    return true;
}

size_t ep_text_cut(const char *text, size_t bytes, size_t max)
{
    if (bytes <= max) {
        return bytes;
    }
    size_t n = max;
    while (n > 0 && ((unsigned char)text[n] & 0xc0u) == 0x80u) {
        n--;
    }
    return n;
}
