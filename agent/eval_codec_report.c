/* Results of `epimem eval codec`: a table for people, JSON lines for programs. */
#include <math.h>
#include <stdio.h>

#include "agent/eval_codec_internal.h"

static double share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0.0;
}

static double mean(double sum, int64_t n)
{
    return n > 0 ? sum / (double)n : 0.0;
}

double eval_attention_error(const eval_attention *a, int layer)
{
    return a->power[layer] > 0.0 ? sqrt(a->noise[layer] / a->power[layer]) : 0.0;
}

static double mean_attention_error(const eval_attention *a, int layers)
{
    double sum = 0.0;
    for (int layer = 0; layer < layers; layer++) {
        sum += eval_attention_error(a, layer);
    }
    return sum / layers;
}

static int print_json(const eval_codec_result *r, int layers)
{
    const eval_damage *d = &r->damage;
    int written = printf(
            "{\"codec\":\"%s\",\"bits\":%.4f,\"kl\":%.6f,\"kl_se\":%.6f,\"top1\":%.5f,"
            "\"added_nll\":%.6f,\"tokens\":%lld,\"bytes_per_token\":%.1f,\"encode_us_per_token\":%.2f,"
            "\"decode_us_per_token\":%.2f,\"attend_us\":%.0f,\"attention_error\":%.5f,"
            "\"attention_error_by_layer\":[",
            kvq_codec_name(r->codec), kvq_codec_bits(r->codec), eval_damage_kl(d), eval_damage_kl_error(d),
            share(d->top1_kept, d->tokens), mean(d->added_nll, d->gold_tokens), (long long)d->tokens,
            kvq_codec_token_bytes(r->codec), mean(r->encode_us, r->coded_tokens),
            mean(r->decode_us, r->coded_tokens), mean(r->attention.token_us, r->attention.tokens_timed),
            mean_attention_error(&r->attention, layers));
    for (int layer = 0; written >= 0 && layer < layers; layer++) {
        written = printf("%s%.5f", layer > 0 ? "," : "", eval_attention_error(&r->attention, layer));
    }
    return written >= 0 ? printf("]}\n") : written;
}

static int print_row(const eval_codec_result *r, int layers)
{
    const eval_damage *d = &r->damage;
    return printf("%-14s %6.3f %8.4f (%.4f) %7.4f %+9.4f %9.4f %11.0f %9.1f %9.1f %9.0f\n",
            kvq_codec_name(r->codec), kvq_codec_bits(r->codec), eval_damage_kl(d), eval_damage_kl_error(d),
            share(d->top1_kept, d->tokens), mean(d->added_nll, d->gold_tokens),
            mean_attention_error(&r->attention, layers), kvq_codec_token_bytes(r->codec),
            mean(r->encode_us, r->coded_tokens), mean(r->decode_us, r->coded_tokens),
            mean(r->attention.token_us, r->attention.tokens_timed));
}

status eval_codec_report(const eval_codec_run *r, err *e)
{
    int written = 0;
    if (!r->o->json) {
        written = printf("%-14s %6s %8s %8s %7s %9s %9s %11s %9s %9s %9s\n", "codec", "bits", "KL", "(error)",
                "top-1", "added NLL", "attention", "bytes/token", "encode us", "decode us", "attend us");
    }
    for (int i = 0; written >= 0 && i < r->codecs.n; i++) {
        written = r->o->json ? print_json(&r->results[i], r->layers) : print_row(&r->results[i], r->layers);
    }
    return written >= 0 && fflush(stdout) == 0 ? ST_OK
                                               : FAIL(e, ST_ERR_IO, "standard output could not be written");
}
