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

static int print_json(const eval_codec_result *r)
{
    const eval_damage *d = &r->damage;
    return printf(
            "{\"codec\":\"%s\",\"bits\":%.4f,\"kl\":%.6f,\"kl_se\":%.6f,\"top1\":%.5f,"
            "\"added_nll\":%.6f,\"tokens\":%lld,\"bytes_per_token\":%.1f,\"encode_us_per_token\":%.2f}\n",
            r->name, kvq_codec_bits(r->codec), eval_damage_kl(d), eval_damage_kl_error(d),
            share(d->top1_kept, d->tokens), mean(d->added_nll, d->gold_tokens), (long long)d->tokens,
            kvq_codec_token_bytes(r->codec), mean(r->encode_us, r->coded_tokens));
}

static int print_row(const eval_codec_result *r)
{
    const eval_damage *d = &r->damage;
    return printf("%-20s %7.3f %9.4f (%.4f) %9.4f %+9.4f %12.0f %10.1f\n", r->name, kvq_codec_bits(r->codec),
            eval_damage_kl(d), eval_damage_kl_error(d), share(d->top1_kept, d->tokens),
            mean(d->added_nll, d->gold_tokens), kvq_codec_token_bytes(r->codec),
            mean(r->encode_us, r->coded_tokens));
}

status eval_codec_report(const eval_codec_run *r, err *e)
{
    int written = 0;
    if (!r->o->json) {
        written = printf("%-20s %7s %9s %8s %9s %9s %12s %10s\n", "codec", "bits", "KL", "(error)", "top-1",
                "added NLL", "bytes/token", "encode us");
    }
    for (int i = 0; written >= 0 && i < r->n_codecs; i++) {
        written = r->o->json ? print_json(&r->results[i]) : print_row(&r->results[i]);
    }
    return written >= 0 && fflush(stdout) == 0 ? ST_OK
                                               : FAIL(e, ST_ERR_IO, "standard output could not be written");
}
