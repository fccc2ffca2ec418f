/* The writer thread: applies KV batches in order, behind the engine. What it writes is derived and can be rebuilt, so a
 * failure is logged and counted, and the session's KV state on disk stays what it was. */
#ifndef EPIMEM_AGENT_WRITER_INTERNAL_H
#define EPIMEM_AGENT_WRITER_INTERNAL_H

#include "store/store.h"

typedef struct writer writer;

/* A batch and what it borrows; freed by the writer once written. */
typedef struct writer_job {
    store_batch *batch;
    void (*release)(void *owned); /* called with owned after the commit, whatever came of it */
    void *owned;
} writer_job;

status writer_open(store *s, int queue_max, writer **out, err *e);
void writer_close(writer *w); /* writes what is queued first */
/* Takes the job over; waits while the queue is full. */
void writer_submit(writer *w, const writer_job *job);
/* Returns when everything submitted so far is written. */
void writer_flush(writer *w);
/* Batches that could not be written since open. */
uint64_t writer_failures(const writer *w);

#endif
