/* A build without CUDA: there is no device. */
#include "agent/model_parts_internal.h"

status model_device_open(const model *m, uint64_t budget_bytes, model_device **out, err *e)
{
    (void)m;
    (void)budget_bytes;
    (void)out;
    return FAIL(e, ST_ERR_UNSUPPORTED, "this program was built without CUDA");
}

void model_device_close(model_device *d)
{
    REQUIRE(d == NULL);
}

const char *model_device_name(const model_device *d)
{
    (void)d;
    return "no device";
}

model_device_usage model_device_get_usage(const model_device *d)
{
    (void)d;
    return (model_device_usage){0};
}

status device_scratch_open(const model *m, int max_rows, device_scratch **out, err *e)
{
    (void)m;
    (void)max_rows;
    (void)out;
    return FAIL(e, ST_ERR_UNSUPPORTED, "this program was built without CUDA");
}

void device_scratch_close(device_scratch *s)
{
    REQUIRE(s == NULL);
}

status device_forward(device_scratch *s, const model_run *runs, int n_runs, int n, err *e)
{
    (void)s;
    (void)runs;
    (void)n_runs;
    (void)n;
    return FAIL(e, ST_ERR_UNSUPPORTED, "this program was built without CUDA");
}
