/*
 * dates: the time a question names ("yesterday", "last May", "in June 2023", "8 May", "two weeks ago"), as spans.
 *
 * People tell of a day on that day or a little later, so each span has a margin: full weight inside it and `full_us`
 * around it, falling to nothing at `zero_us`. Measured: of the evidence for 70 dated questions all but four pieces lie
 * within the margins (README.md). A time behind "before", "until", "as of" and the like is no span unless it is a day, and then not a
 * strict one. A month without a year means that month of every year of the log. Words that need the present ("yesterday")
 * count only when it is known. English only.
 */
#ifndef EPIMEM_EPISODES_DATES_INTERNAL_H
#define EPIMEM_EPISODES_DATES_INTERNAL_H

#include "kernels/base.h"

enum { EP_TIME_SPANS_MAX = 32, EP_TIME_WORDS_MAX = 256 /* later words of a question are not looked at */ };

typedef struct ep_time_span {
    int64_t from_us, to_us; /* half open */
    int64_t full_us, zero_us;
    bool strict; /* what lies outside is not meant */
} ep_time_span;

typedef struct ep_time_frame {
    bool has_now;
    int64_t now_us;
    int64_t log_from_us, log_to_us; /* the times of the log */
} ep_time_frame;

/* Returns how many spans the text names, at most EP_TIME_SPANS_MAX. */
int ep_time_spans(const char *text, size_t bytes, const ep_time_frame *frame, ep_time_span *out);
/* The greatest weight of a moment in any of the spans, 0 to 1. */
float ep_time_weight(const ep_time_span *spans, int n, int64_t time_us);

#endif
