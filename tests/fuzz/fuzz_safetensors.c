/* Any bytes as a safetensors file: refused, or every tensor readable to its last byte. */
#include <stddef.h>
#include <stdint.h>

#include "agent/encoder_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    safetensors *st = NULL;
    err e = {0};
    if (safetensors_open_memory(data, size, "fuzz", &st, &e) != ST_OK) {
        REQUIRE(st == NULL && e.text[0] != '\0');
        return 0;
    }
    static const char *const names[] = {"x", "a", "b", ""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        safetensor t;
        if (safetensors_find(st, names[i], &t, &e) == ST_OK) {
            uint64_t elements = 1;
            for (int axis = 0; axis < t.rank; axis++) {
                elements *= (uint64_t)t.size[axis];
            }
            REQUIRE(elements * (uint64_t)krn_type_block_bytes(t.type) == t.bytes);
            REQUIRE((const uint8_t *)t.data >= data && (const uint8_t *)t.data + t.bytes <= data + size);
        }
    }
    safetensors_close(st);
    return 0;
}
