#include "episodes/index_internal.h"
#include "episodes/text_internal.h"

#include <string.h>

static bool is_role(const char *name, size_t bytes)
{
    static const char *const roles[] = {"user", "assistant", "system", "tool", "human", "bot", "ai"};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strlen(roles[i]) == bytes && memcmp(roles[i], name, bytes) == 0) {
            return true;
        }
    }
    return false;
}

int32_t ep_speaker_add(ep_index *x, const char *name, size_t bytes)
{
    ep_speaker s = {.name = 0xcbf29ce484222325u};
    for (size_t i = 0; i < bytes; i++) {
        s.name = (s.name ^ (unsigned char)name[i]) * 0x100000001b3u;
    }
    for (int32_t i = 0; i < x->n_speakers; i++) {
        if (x->speakers[i].name == s.name) {
            return i;
        }
    }
    size_t at = 0;
    ep_word word;
    while (!is_role(name, bytes) && s.n_words < EP_NAME_WORDS_MAX && ep_word_next(name, bytes, &at, &word)) {
        if (ep_word_key(&word) !=
                0) { /* initials and names that are function words, such as Will, tell nothing */
            s.words[s.n_words++] = ep_word_hash(&word);
        }
    }
    REQUIRE((size_t)x->n_speakers < x->speakers_cap);
    x->speakers[x->n_speakers] = s;
    return x->n_speakers++;
}

/* The only speaker with that word in the name; -1 for none, -2 for several. */
static int32_t owner_of(const ep_index *x, uint64_t word)
{
    int32_t owner = -1;
    for (int32_t i = 0; i < x->n_speakers; i++) {
        for (int k = 0; k < x->speakers[i].n_words; k++) {
            if (x->speakers[i].words[k] == word && owner != i) {
                owner = owner == -1 ? i : -2;
            }
        }
    }
    return owner;
}

/* End of a name in the text: an apostrophe with s (ASCII or U+2019) belongs to it. */
static size_t possessive_end(const char *text, size_t bytes, size_t at)
{
    size_t mark = at < bytes && text[at] == '\'' ? 1 : 0;
    if (bytes - at >= 3 && memcmp(text + at, "\xe2\x80\x99", 3) == 0) {
        mark = 3;
    }
    return mark > 0 && at + mark < bytes && text[at + mark] == 's' ? at + mark + 1 : at;
}

int32_t ep_speaker_named(const ep_index *x, const char *text, size_t bytes, char *bare, size_t *bare_bytes)
{
    size_t at = 0, kept = 0, copied = 0;
    int32_t named = -1;
    ep_word word;
    while (ep_word_next(text, bytes, &at, &word)) {
        int32_t owner = ep_word_key(&word) == 0 ? -1 : owner_of(x, ep_word_hash(&word));
        if (owner < 0) {
            continue;
        }
        named = named == -1 || named == owner ? owner : -2;
        memcpy(bare + kept, text + copied, word.at - copied);
        kept += word.at - copied;
        copied = possessive_end(text, bytes, word.at + word.bytes);
        at = copied;
    }
    memcpy(bare + kept, text + copied, bytes - copied);
    kept += bytes - copied;
    bare[kept] = '\0';
    *bare_bytes = kept;
    return named < 0 ? -1 : named;
}
