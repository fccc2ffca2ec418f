/*
 * From a model's Jinja text to a chat_template. Jinja is not run: the family is told by the control words the text
 * contains, and the few things in which members of a family differ (spaces of Mistral, the default system prompt, BOS,
 * trimming) are read from the string literals around them. What none of the families explains is refused.
 */
#include <string.h>
#include <xxhash.h>

#include "agent/template_internal.h"

#define NAMES "chatml, llama3, mistral, gemma, phi3, zephyr"

/* A stretch of Jinja text. */
typedef struct span {
    const char *at;
    size_t n;
} span;

static const char *find(span s, const char *what)
{
    size_t n = strlen(what);
    for (size_t i = 0; n <= s.n && i <= s.n - n; i++) {
        const char *p = memchr(s.at + i, what[0], s.n - n - i + 1);
        if (p == NULL) {
            return NULL;
        }
        if (memcmp(p, what, n) == 0) {
            return p;
        }
        i = (size_t)(p - s.at);
    }
    return NULL;
}

static bool has(span s, const char *what)
{
    return find(s, what) != NULL;
}

/* What is left of s from p on. */
static span from(span s, const char *p)
{
    return (span){.at = p, .n = s.n - (size_t)(p - s.at)};
}

static bool starts(span s, const char *what)
{
    size_t n = strlen(what);
    return s.n >= n && memcmp(s.at, what, n) == 0;
}

static bool is_quote(char c)
{
    return c == '\'' || c == '"';
}

/* ---- details ---- */

/* The literal holds a newline here: itself, its escape, or a second literal that begins with the escape. */
static bool newline_follows(span s)
{
    return starts(s, "\n") || starts(s, "\\n") || starts(s, "' + '\\n") || starts(s, "' + '\n") ||
            starts(s, "\" + \"\\n") || starts(s, "\" + \"\n");
}

/* "content" through the filter trim, as content['content'] | trim, and not as a mere question (|trim|length). */
static bool trims_content(span s)
{
    for (const char *p = find(s, "content"); p != NULL; p = find(from(s, p + 1), "content")) {
        span rest = from(s, p + strlen("content"));
        while (rest.n > 0 && (is_quote(rest.at[0]) || rest.at[0] == ']' || rest.at[0] == ' ')) {
            rest = from(rest, rest.at + 1);
        }
        if ((starts(rest, "|trim") && !starts(rest, "|trim|")) ||
                (starts(rest, "| trim") && !starts(rest, "| trim |"))) {
            return true;
        }
    }
    return false;
}

/* The next Jinja expression from s on; n 0: none. */
static span next_expression(span s)
{
    const char *open = find(s, "{{"), *close = open == NULL ? NULL : find(from(s, open), "}}");
    span x = {.at = open, .n = close == NULL ? 0 : (size_t)(close - open)};
    return x;
}

/* The expression that writes an answer: it has both the content and the end token. */
static span answer_expression(span s)
{
    span x = next_expression(s);
    while (x.n > 0 && !(has(x, "content") && has(x, "eos_token"))) {
        s = from(s, x.at + x.n);
        x = next_expression(s);
    }
    return x;
}

/* Reads a string literal whose first character is s.at[0], up to `end` (NULL: the closing quote); quote 0: template text
 * outside of expressions, where nothing is escaped. Nothing is left in out when the literal ends otherwise. */
static status read_literal(span s, char quote, const char *end, base_buf *out)
{
    while (s.n > 0) {
        if (end != NULL ? starts(s, end) : s.at[0] == quote) {
            return ST_OK;
        }
        if ((quote != 0 && s.at[0] == quote) || (quote == 0 && (starts(s, "{{") || starts(s, "{%")))) {
            break;
        }
        char c = s.at[0];
        size_t used = 1;
        if (quote != 0 && c == '\\' && s.n > 1) {
            c = s.at[1] == 'n' ? '\n' : s.at[1] == 't' ? '\t' : s.at[1];
            used = 2;
        }
        TRY(base_buf_append(out, &c, 1));
        s = from(s, s.at + used);
    }
    out->size = 0;
    return ST_OK;
}

enum { DEFAULT_SYSTEM_BYTES_MAX = 1 << 20 };

/* A literal that opens a system message and goes on with its text up to the end token. */
static status find_system_message(span jinja, const template_part *system, base_buf *out)
{
    char opening[64] = "";
    size_t n = strlen(system->open);
    while (n > 0 && system->open[n - 1] == '\n') {
        n--;
    }
    if (n == 0 || n >= sizeof opening) {
        return ST_OK;
    }
    memcpy(opening, system->open, n);
    const char *p = find(jinja, opening);
    for (; p != NULL && out->size == 0; p = find(from(jinja, p + 1), opening)) {
        char quote = p > jinja.at && is_quote(p[-1]) ? p[-1] : 0;
        span rest = from(jinja, p + n);
        while (starts(rest, "\n") || starts(rest, "\\n")) {
            rest = from(rest, rest.at + (rest.at[0] == '\n' ? 1 : 2));
        }
        TRY(read_literal(rest, quote, system->end, out));
    }
    return ST_OK;
}

/* The default system prompt as the template's text has it; nothing is appended when it has none. */
static status find_default_system(span jinja, const template_part *system, base_buf *out)
{
    static const char set[] = "set system_message = ";
    TRY(find_system_message(jinja, system, out));
    const char *p = out->size > 0 ? NULL : find(jinja, set);
    if (p == NULL) {
        return ST_OK;
    }
    span rest = from(jinja, p + sizeof set - 1);
    return rest.n > 1 && is_quote(rest.at[0]) ? read_literal(from(rest, rest.at + 1), rest.at[0], NULL, out)
                                              : ST_OK;
}

/* ---- families ---- */

static void set_parts(chat_template *c,
        const char *system,
        const char *user,
        const char *assistant,
        const char *end,
        const char *tail,
        bool trim)
{
    const char *open[ROLE_COUNT] = {system, user, assistant};
    for (int r = 0; r < ROLE_COUNT; r++) {
        c->part[r] = (template_part){.open = open[r], .end = end, .tail = tail, .trim = trim};
    }
    c->generation = assistant;
}

static void make_chatml(chat_template *c, span jinja)
{
    set_parts(c, "<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>", "\n",
            trims_content(jinja));
}

static void make_llama3(chat_template *c, span jinja)
{
    set_parts(c, "<|start_header_id|>system<|end_header_id|>\n\n",
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", "",
            jinja.n == 0 || trims_content(jinja));
    if (has(jinja,
                "Cutting Knowledge Date: December 2023")) { /* Llama 3.1 and later, with the date they default to */
        c->system_head = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    }
}

static void make_gemma(chat_template *c, span jinja)
{
    set_parts(c, "<start_of_turn>user\n", "<start_of_turn>user\n", "<start_of_turn>model\n", "<end_of_turn>",
            "\n", jinja.n == 0 || trims_content(jinja));
    c->part[ROLE_SYSTEM].trim = false;
    c->system_joins_user = true;
}

static void make_phi3(chat_template *c, span jinja)
{
    set_parts(c, "<|system|>\n", "<|user|>\n", "<|assistant|>\n", "<|end|>", "\n", trims_content(jinja));
}

static void make_zephyr(chat_template *c, span jinja)
{
    set_parts(c, "<|system|>\n", "<|user|>\n", "<|assistant|>\n", c->eos, "\n", trims_content(jinja));
}

/* The spaces around the words differ from version to version. Without a text: the first version's. */
static void make_mistral(chat_template *c, span jinja)
{
    static const char *const opens[2][2] = {{"[INST]", "[INST] "}, {" [INST]", " [INST] "}};
    const char *inst = find(jinja, "[INST]"), *end = find(jinja, "[/INST]");
    bool before = inst != NULL && inst > jinja.at && inst[-1] == ' ';
    bool after = inst == NULL || starts(from(jinja, inst), "[INST] ");
    bool before_end = end == NULL || (end > jinja.at && end[-1] == ' ');
    span answer = answer_expression(jinja);
    const char *content = find(answer, "content"), *eos = find(answer, "eos_token");
    span ahead = {.at = answer.at, .n = content == NULL ? 0 : (size_t)(content - answer.at)};
    span behind = {.at = eos, .n = eos == NULL ? 0 : from(answer, eos).n};
    bool space_ahead = has(ahead, "' '") || has(ahead, "\" \"");
    bool space_behind = has(behind, "' '") || has(behind, "\" \"");
    c->part[ROLE_USER] = (template_part){
            .open = opens[before][after], .end = before_end ? " [/INST]" : "[/INST]", .tail = ""};
    c->part[ROLE_SYSTEM] = c->part[ROLE_USER];
    c->part[ROLE_ASSISTANT] = (template_part){.open = space_ahead ? " " : "",
            .end = c->eos,
            .tail = space_behind ? " " : "",
            .trim = trims_content(answer)};
    c->generation = "";
    c->system_joins_user = !has(jinja, "[SYSTEM_PROMPT]");
    if (!c->system_joins_user) {
        c->part[ROLE_SYSTEM] = (template_part){
                .open = has(jinja, "[SYSTEM_PROMPT] ") ? "[SYSTEM_PROMPT] " : "[SYSTEM_PROMPT]",
                .end = "[/SYSTEM_PROMPT]",
                .tail = ""};
    }
}

static bool is_chatml(span j)
{
    return has(j, "<|im_start|>") && has(j, "<|im_end|>") &&
            !has(j, "<|im_sep|>"); /* Phi-4 puts that one inside */
}

static bool is_llama3(span j)
{
    return has(j, "<|start_header_id|>") && has(j, "<|end_header_id|>") && has(j, "<|eot_id|>");
}

static bool is_mistral(span j)
{
    return has(j, "[INST]") && has(j, "[/INST]") && has(j, "eos_token") &&
            !has(j, "<<SYS>>"); /* that is Llama 2 */
}

static bool is_gemma(span j)
{
    return has(j, "<start_of_turn>") && has(j, "<end_of_turn>");
}

/* Phi-4-mini has the same words without newlines. */
static bool is_phi3(span j)
{
    const char *word = find(j, "<|assistant|>");
    return has(j, "<|end|>") && word != NULL && newline_follows(from(j, word + strlen("<|assistant|>")));
}

/* Others with these words do not end a user's message by the end token. */
static bool is_zephyr(span j)
{
    const char *user = find(j, "<|user|>");
    if (user == NULL || !has(j, "<|assistant|>") || !newline_follows(from(j, user + strlen("<|user|>")))) {
        return false;
    }
    const char *close = find(from(j, user), "}}");
    span rest = {.at = user, .n = close == NULL ? 0 : (size_t)(close - user)};
    return has(rest, "eos_token");
}

static const struct {
    const char *name;
    bool (*is)(span jinja);
    void (*make)(chat_template *c, span jinja);
    bool writes_bos; /* when there is no text to tell */
} families[] = {
        {"chatml", is_chatml, make_chatml, false},
        {"llama3", is_llama3, make_llama3, true},
        {"mistral", is_mistral, make_mistral, true},
        {"gemma", is_gemma, make_gemma, true},
        {"phi3", is_phi3, make_phi3, false},
        {"zephyr", is_zephyr, make_zephyr, false},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* ---- building ---- */

static status find_family(const char *name, span jinja, int *out, err *e)
{
    for (int i = 0; i < FAMILIES; i++) {
        if (name != NULL ? strcmp(name, families[i].name) == 0 : families[i].is(jinja)) {
            *out = i;
            return ST_OK;
        }
    }
    if (name != NULL) {
        return FAIL(
                e, ST_ERR_UNSUPPORTED, "chat template '%.40s' is not known; expected one of " NAMES, name);
    }
    return FAIL(e, ST_ERR_UNSUPPORTED, "%s; name one of " NAMES,
            jinja.n == 0 ? "the model file has no chat template"
                         : "the model's chat template is of no known kind");
}

static status set_default_system(chat_template *c, span jinja)
{
    base_buf text = {.max = DEFAULT_SYSTEM_BYTES_MAX};
    status s = c->system_joins_user ? ST_OK : find_default_system(jinja, &c->part[ROLE_SYSTEM], &text);
    if (s == ST_OK && (text.size > 0 || c->system_head[0] != '\0')) {
        c->default_system = base_strndup(text.size > 0 ? (const char *)text.data : "", text.size);
        s = c->default_system == NULL ? ST_ERR_MEMORY : ST_OK;
    }
    base_buf_free(&text);
    return s;
}

static status fill(chat_template *c, int family, span jinja, const char *bos, const char *eos)
{
    bool writes_bos = jinja.n == 0 ? families[family].writes_bos : has(jinja, "bos_token");
    c->name = families[family].name;
    c->bos = base_strdup(writes_bos ? bos : "");
    c->eos = base_strdup(eos);
    if (c->bos == NULL || c->eos == NULL) {
        return ST_ERR_MEMORY;
    }
    families[family].make(c, jinja);
    return set_default_system(c, jinja);
}

status chat_template_build(const char *name,
        const char *jinja,
        size_t jinja_bytes,
        const char *bos,
        const char *eos,
        const chat_template **out,
        err *e)
{
    span text = {.at = jinja == NULL ? "" : jinja, .n = jinja == NULL ? 0 : jinja_bytes};
    int family = 0;
    TRY(find_family(name, text, &family, e));
    if (name != NULL &&
            !families[family].is(text)) { /* the file's own text is another family's: it says nothing here */
        text = (span){.at = ""};
    }
    chat_template *c = base_zalloc(1, sizeof *c);
    if (c == NULL) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for a chat template");
    }
    c->system_head = "";
    status s = fill(c, family, text, bos, eos);
    if (s != ST_OK) {
        chat_template_close(c);
        return FAIL(e, s, "no room for the chat template's default system prompt");
    }
    *out = c;
    return ST_OK;
}

void chat_template_close(const chat_template *c)
{
    if (c != NULL) {
        base_free(c->bos);
        base_free(c->eos);
        base_free(c->default_system);
        base_free((void *)c);
    }
}

/* Text of the token that a key names; "" when it is missing or out of range. Freed by the caller; NULL: no memory. */
static char *token_text(const gguf *g, const char *key)
{
    const gguf_string *tokens;
    size_t n;
    uint64_t id;
    if (g == NULL || gguf_get_u64(g, key, &id, NULL) != ST_OK ||
            gguf_get_string_array(g, "tokenizer.ggml.tokens", &tokens, &n, NULL) != ST_OK || id >= n) {
        return base_strdup("");
    }
    return base_strndup(tokens[id].data, tokens[id].bytes);
}

status chat_template_open(const gguf *g, const char *name, const chat_template **out, err *e)
{
    gguf_string jinja = {0};
    if (g != NULL && gguf_has(g, "tokenizer.chat_template")) {
        TRY(gguf_get_string(g, "tokenizer.chat_template", &jinja, e));
    }
    char *bos = token_text(g, "tokenizer.ggml.bos_token_id"),
         *eos = token_text(g, "tokenizer.ggml.eos_token_id");
    status s = bos == NULL || eos == NULL
            ? FAIL(e, ST_ERR_MEMORY, "no memory for a chat template")
            : chat_template_build(name, jinja.data, jinja.bytes, bos, eos, out, e);
    base_free(bos);
    base_free(eos);
    return s;
}

static XXH64_hash_t mix(XXH64_hash_t h, const char *text)
{
    return XXH3_64bits_withSeed(text, strlen(text) + 1, h);
}

uint64_t chat_template_fingerprint(const chat_template *c)
{
    XXH64_hash_t h = mix(0, c->name);
    h = mix(mix(mix(h, c->bos), c->system_head), c->generation);
    h = mix(h, c->default_system == NULL ? "\1" : c->default_system);
    for (int r = 0; r < ROLE_COUNT; r++) {
        const template_part *p = &c->part[r];
        h = mix(mix(mix(mix(h, p->open), p->end), p->tail), p->trim ? "trim" : "");
    }
    return mix(h, c->system_joins_user ? "joins" : "");
}
