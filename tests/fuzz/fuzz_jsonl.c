/* The strict JSON check on arbitrary bytes: what it lets through, cJSON must read whole. */
#include "agent/jsonl_internal.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    err e;
    cJSON *value = NULL;
    base_buf decoded = {.max = 1 << 20};
    status s = jsonl_parse((const char *)data, size, &value, &e);
    REQUIRE(s == ST_OK ||
            s == ST_ERR_FORMAT); /* a refusal by cJSON would be ST_ERR_MEMORY: the grammars differ */
    cJSON_Delete(value);
    (void)jsonl_base64_decode((const char *)data, size, &decoded, &e);
    base_buf_free(&decoded);
    return 0;
}
