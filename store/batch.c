/* batch: the list of operations a caller collects before store_commit. Keys are copied, data is borrowed. */
#include "store/store_internal.h"

enum { OPS_MAX = 1 << 24 }; /* arbitrary: five gigabytes of operations */

store_batch *store_batch_create(void)
{
    return base_zalloc(1, sizeof(store_batch));
}

void store_batch_free(store_batch *b)
{
    if (b != NULL) {
        base_free(b->ops);
        base_free(b);
    }
}

static status append(store_batch *b, const store_op *op)
{
    void *ops = b->ops;
    TRY(base_grow(&ops, &b->ops_cap, b->n_ops + 1, OPS_MAX, sizeof *b->ops));
    b->ops = ops;
    b->ops[b->n_ops++] = *op;
    return ST_OK;
}

status store_batch_put(store_batch *b, const store_key *key, const void *data, size_t bytes)
{
    store_op op = {.type = OP_PUT, .data = data, .bytes = bytes};
    if (bytes > 0 && data == NULL) {
        return ST_ERR_ARG;
    }
    if (bytes > RECORD_PAYLOAD_BYTES_MAX) {
        return ST_ERR_LIMIT;
    }
    TRY(record_key_encode(key, &op.key));
    return append(b, &op);
}

status store_batch_delete(store_batch *b, const store_key *key)
{
    store_op op = {.type = OP_DELETE};
    TRY(record_key_encode(key, &op.key));
    return append(b, &op);
}

status store_batch_delete_from(store_batch *b, const store_key *key)
{
    store_op op = {.type = OP_DELETE_FROM};
    TRY(record_key_encode(key, &op.key));
    return append(b, &op);
}

status store_batch_erase_session(store_batch *b, const char *tenant, const char *session)
{
    store_op op = {.type = OP_ERASE_SESSION};
    store_key key = {.kind = STORE_SESSION, .tenant = tenant, .session = session};
    TRY(record_key_encode(&key, &op.key));
    return append(b, &op);
}
