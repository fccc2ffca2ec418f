/* Any bytes as a torch.save file: the archive, the pickle in it, and the bytes themselves as a pickle. */
#include "kvq/calibration_import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_pickle(const uint8_t *data, size_t size)
{
    pickle p = {0};
    err e;
    if (kvq_pickle_read(data, size, &p, &e) == ST_OK) {
        const pickle_value *layers = kvq_pickle_member(&p, &p.values[p.root], "layers");
        if (layers != NULL && kvq_pickle_count(&p, layers) > 0) {
            (void)kvq_pickle_entry(&p, layers, 0);
        }
        kvq_pickle_free(&p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *entry = NULL;
    size_t bytes = 0;
    err e;
    if (kvq_zip_find(data, size, "data.pkl", &entry, &bytes, &e) == ST_OK) {
        read_pickle(entry, bytes);
    }
    read_pickle(data, size);
    return 0;
}
