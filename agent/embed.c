/* `epimem embed`: JSON lines of texts in, word pieces and unit vectors out. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/encoder_internal.h"
#include "agent/jsonl_internal.h"

enum { IDS_MAX_OPTION = 512, THREADS_MAX_OPTION = 1024 };

static const char usage[] =
        "usage: epimem embed -e FOLDER [--threads N] [--max-ids N]\n"
        "\n"
        "Reads one JSON object per line from standard input, {\"text\": \"...\"} or {\"b64\": \"...\"}, and "
        "writes for each\n"
        "{\"ids\": [...], \"embedding\": [...]}: the text's word pieces and its vector of unit length. A bad "
        "line is\n"
        "answered by {\"error\": \"...\"} and makes the exit status 1.\n"
        "\n"
        "  -e, --encoder FOLDER  config.json, vocab.txt and model.safetensors of a BERT sentence encoder\n"
        "  -t, --threads N       threads (default: one per core)\n"
        "      --max-ids N       cut a text at N word pieces, [CLS] and [SEP] counted (default: as the "
        "encoder says)\n"
        "  -h, --help            this text\n";

typedef struct embed_options {
    const char *encoder;
    long threads, max_ids;
    bool help;
} embed_options;

/* A whole number in [min, max]; false on anything else. */
static bool parse_number(const char *text, long min, long max, long *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || value < min || value > max) {
        return false;
    }
    *out = value;
    return true;
}

static bool parse_options(int argc, char **argv, embed_options *o)
{
    static const struct option names[] = {{"encoder", required_argument, NULL, 'e'},
            {"threads", required_argument, NULL, 't'}, {"max-ids", required_argument, NULL, 'm'},
            {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    int option;
    *o = (embed_options){0};
    optind = 1;
    while ((option = getopt_long(argc, argv, "e:t:h", names, NULL)) != -1) {
        bool good = option != '?';
        if (option == 'e') {
            o->encoder = optarg;
        } else if (option == 't') {
            good = parse_number(optarg, 1, THREADS_MAX_OPTION, &o->threads);
        } else if (option == 'm') {
            good = parse_number(optarg, 2, IDS_MAX_OPTION, &o->max_ids);
        } else if (option == 'h') {
            o->help = true;
        }
        if (!good) {
            if (option != '?') {
                (void)fprintf(stderr, "epimem embed: \"%s\" is out of range\n", optarg);
            }
            return false;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "epimem embed: unexpected argument \"%s\"\n", argv[optind]);
        return false;
    }
    if (o->encoder == NULL && !o->help) {
        (void)fprintf(stderr, "epimem embed: -e FOLDER is missing\n");
        return false;
    }
    return true;
}

typedef struct embedder {
    encoder *encoder;
    int max_ids;
    float *vector;
    base_buf text;
    token_list ids;
} embedder;

static status answer_text(void *ctx, const cJSON *request, cJSON *reply, err *e)
{
    embedder *m = ctx;
    TRY(jsonl_get_text(request, &m->text, e));
    m->ids.n = 0;
    TRY(encoder_tokenize(m->encoder, m->text.data, m->text.size, m->max_ids, &m->ids, e));
    int ids_each = (int)m->ids.n;
    TRY(encoder_embed_ids(m->encoder, m->ids.ids, &ids_each, 1, m->vector, e));
    if (jsonl_add_ids(reply, "ids", m->ids.ids, m->ids.n) != ST_OK ||
            jsonl_add_floats(reply, "embedding", m->vector, (size_t)encoder_dim(m->encoder)) != ST_OK) {
        return FAIL(e, ST_ERR_MEMORY, "no memory for the answer");
    }
    return ST_OK;
}

int agent_embed_main(int argc, char **argv)
{
    embed_options o;
    embedder m = {0};
    krn_pool *pool = NULL;
    err e = {0};
    int exit_status = 1;
    if (!parse_options(argc, argv, &o)) {
        (void)fputs(usage, stderr);
        return 2;
    }
    if (o.help) {
        return fputs(usage, stdout) < 0 ? 1 : 0;
    }
    m.max_ids = (int)o.max_ids;
    if (krn_pool_open((int)o.threads, &pool, &e) != ST_OK ||
            encoder_open(pool, o.encoder, &m.encoder, &e) != ST_OK) {
        (void)fprintf(stderr, "epimem embed: %s\n", e.text);
    } else if ((m.vector = base_zalloc((size_t)encoder_dim(m.encoder), sizeof(float))) == NULL) {
        (void)fprintf(stderr, "epimem embed: out of memory\n");
    } else {
        exit_status = jsonl_run(stdin, stdout, answer_text, &m);
    }
    token_list_free(&m.ids);
    base_buf_free(&m.text);
    base_free(m.vector);
    encoder_close(m.encoder);
    krn_pool_close(pool);
    return exit_status;
}
