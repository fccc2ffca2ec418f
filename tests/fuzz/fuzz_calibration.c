/* Any bytes as a calibration file: refused or taken, never trapped. */
#include "kvq/kvq.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvq_calibration c = {0};
    err e;
    if (kvq_calibration_read_memory(data, size, "fuzz", &c, &e) == ST_OK) {
        REQUIRE(c.k_bits != NULL && (c.k_rotation != NULL || c.shared_k_rotation != NULL));
    } else {
        REQUIRE(e.text[0] != '\0');
    }
    kvq_calibration_free(&c);
    return 0;
}
