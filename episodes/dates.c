#include "episodes/dates_internal.h"

#include <string.h>

#include "episodes/text_internal.h"

static const int64_t day_us = (int64_t)24 * 3600 * 1000000;
/* Times outside the years 1 to 9999 are clamped: everything below is safe arithmetic then. */
enum { YEAR_MIN = 1, YEAR_MAX = 9999 };

/* ---- calendar (proleptic Gregorian, UTC) ---- */

static int64_t days_of_year(int64_t year) /* days from 1970-01-01 to the first of January */
{
    int64_t y = year - 1;
    return 365 * y + y / 4 - y / 100 + y / 400 - 719162;
}

static bool is_leap(int64_t year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static int month_days(int64_t year, int month)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[month - 1] + (month == 2 && is_leap(year));
}

static int64_t days_of_month(int64_t year, int month) /* month may be 13: the next January */
{
    int64_t days = days_of_year(year);
    for (int m = 1; m < month; m++) {
        days += month_days(year, m);
    }
    return days;
}

typedef struct civil {
    int64_t year;
    int month, day;
    int64_t days; /* since 1970-01-01 */
} civil;

static civil civil_of(int64_t time_us)
{
    int64_t days = time_us / day_us - (time_us % day_us < 0);
    int64_t first = days_of_year(YEAR_MIN), last = days_of_year(YEAR_MAX + 1) - 1;
    days = days < first ? first : days > last ? last : days;
    int64_t year = 1970 + days / 366;
    year = year < YEAR_MIN ? YEAR_MIN : year;
    while (days_of_year(year) > days) {
        year--;
    }
    while (days_of_year(year + 1) <= days) {
        year++;
    }
    int month = 1;
    while (days_of_month(year, month + 1) <= days) {
        month++;
    }
    return (civil){year, month, (int)(days - days_of_month(year, month)) + 1, days};
}

/* ---- words of the question ---- */

typedef struct token {
    ep_word word;
    char before; /* the byte in front of it */
    int number;  /* of at most four digits ("8", "8th", "eight"), or -1 */
    int digits;
    int month; /* 1..12 or 0 */
} token;

typedef struct parse {
    const char *text;
    const ep_time_frame *frame;
    token words[EP_TIME_WORDS_MAX];
    int n;
    ep_time_span *out;
    int n_out;
} parse;

static bool is_word(const parse *p, int i, const char *wanted)
{
    size_t n = strlen(wanted);
    return i >= 0 && i < p->n && p->words[i].word.folded_bytes == n &&
            memcmp(p->words[i].word.folded, wanted, n) == 0;
}

static int find_word(const parse *p, int i, const char *const *list, int n)
{
    for (int k = 0; k < n; k++) {
        if (is_word(p, i, list[k])) {
            return k;
        }
    }
    return -1;
}
#define FIND_WORD(p, i, list) find_word((p), (i), (list), (int)(sizeof(list) / sizeof *(list)))

static const char *const month_names[] = {"january", "february", "march", "april", "may", "june", "july",
        "august", "september", "october", "november", "december", "jan", "feb", "mar", "apr", "may", "jun",
        "jul", "aug", "sep", "oct", "nov", "dec"};
static const char *const number_names[] = {"zero", "one", "two", "three", "four", "five", "six", "seven",
        "eight", "nine", "ten", "eleven", "twelve"};
static const char *const weekday_names[] = {
        "monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"};

static void read_number(token *t)
{
    const char *s = t->word.folded;
    size_t n = t->word.folded_bytes, digits = 0;
    int value = 0;
    while (digits < n && digits < 5 && s[digits] >= '0' && s[digits] <= '9') {
        value = value * 10 + (s[digits] - '0');
        digits++;
    }
    bool ordinal = digits > 0 && n == digits + 2 &&
            (memcmp(s + digits, "st", 2) == 0 || memcmp(s + digits, "nd", 2) == 0 ||
                    memcmp(s + digits, "rd", 2) == 0 || memcmp(s + digits, "th", 2) == 0);
    if (digits > 0 && digits <= 4 && (n == digits || ordinal)) {
        t->number = value;
        t->digits = (int)digits;
    }
}

static void read_words(parse *p, size_t bytes)
{
    size_t at = 0;
    while (p->n < EP_TIME_WORDS_MAX && ep_word_next(p->text, bytes, &at, &p->words[p->n].word)) {
        token *t = &p->words[p->n];
        t->before = t->word.at > 0 ? p->text[t->word.at - 1] : ' ';
        t->number = -1;
        t->digits = 0;
        read_number(t);
        p->n++;
        int month = FIND_WORD(p, p->n - 1, month_names);
        t->month = month < 0 ? (is_word(p, p->n - 1, "sept") ? 9 : 0) : month % 12 + 1;
        int number = FIND_WORD(p, p->n - 1, number_names);
        t->number = number >= 0 ? number : t->number;
    }
}

static int number_at(const parse *p, int i)
{
    return i >= 0 && i < p->n ? p->words[i].number : -1;
}

static int month_at(const parse *p, int i)
{
    return i >= 0 && i < p->n ? p->words[i].month : 0;
}

static bool is_year(const parse *p, int i)
{
    return i >= 0 && i < p->n && p->words[i].digits == 4 && p->words[i].number >= 1900 &&
            p->words[i].number < 2200;
}

static bool is_day(const parse *p, int i)
{
    int n = number_at(p, i);
    return n >= 1 && n <= 31 && p->words[i].digits > 0 && p->words[i].digits <= 2;
}

/* ---- spans ---- */

/* How far around a time people speak of it (dates_internal.h), in days: full weight, none. */
typedef struct margin {
    int full, zero;
} margin;
static const margin day_margin = {2, 7}, month_margin = {3, 21}, year_margin = {3, 30};

static void add_days(parse *p, int64_t from, int64_t to, margin m, bool strict)
{
    if (p->n_out < EP_TIME_SPANS_MAX) {
        p->out[p->n_out++] =
                (ep_time_span){from * day_us, to * day_us, m.full * day_us, m.zero * day_us, strict};
    }
}

/* "before 8 May", "as of June": i is where the time starts. */
static bool is_bound(const parse *p, int i)
{
    static const char *const bounds[] = {
            "before", "by", "until", "till", "since", "after", "between", "than"};
    i -= is_word(p, i - 1, "the");
    return FIND_WORD(p, i - 1, bounds) >= 0 || (is_word(p, i - 1, "of") && is_word(p, i - 2, "as"));
}

static void add_month(parse *p, int start, int64_t year, int month)
{
    if (!is_bound(p, start)) {
        add_days(p, days_of_month(year, month), days_of_month(year, month + 1), month_margin, true);
    }
}

static void add_year(parse *p, int64_t year)
{
    add_days(p, days_of_year(year), days_of_year(year + 1), year_margin, true);
}

/* year < 0: of each year of the log, at most a few. */
static void add_date(parse *p, int start, int64_t year, int month, int day)
{
    enum { YEARS_MAX = 20 };
    int64_t first = year, last = year;
    if (year < 0) {
        last = civil_of(p->frame->log_to_us).year;
        first = civil_of(p->frame->log_from_us).year;
        first = last - first > YEARS_MAX ? last - YEARS_MAX : first;
    }
    for (int64_t y = first; y <= last; y++) {
        if (day == 0) {
            add_month(p, start, y, month);
        } else if (day <= month_days(y, month)) {
            int64_t days = days_of_month(y, month) + day - 1;
            add_days(p, days, days + 1, day_margin, !is_bound(p, start));
        }
    }
}

/* 2023-05-08 and 8.5.2023, 8/5/2023 (day first, unless only the other way makes a date). Returns the words taken. */
static int take_numeric_date(parse *p, int i)
{
    if (i + 2 >= p->n || p->words[i + 1].before != p->words[i + 2].before ||
            p->words[i + 1].word.at != p->words[i].word.at + p->words[i].word.bytes + 1 ||
            p->words[i + 2].word.at != p->words[i + 1].word.at + p->words[i + 1].word.bytes + 1) {
        return 0;
    }
    char mark = p->words[i + 1].before;
    int a = number_at(p, i), b = number_at(p, i + 1), c = number_at(p, i + 2);
    if (mark == '-' && is_year(p, i) && b >= 1 && b <= 12 && is_day(p, i + 2)) {
        add_date(p, i, a, b, c);
        return 3;
    }
    if ((mark != '.' && mark != '/') || !is_year(p, i + 2) || !is_day(p, i) || !is_day(p, i + 1)) {
        return 0;
    }
    if (b <= 12) {
        add_date(p, i, c, b, a);
    } else if (a <= 12) {
        add_date(p, i, c, a, b);
    } else {
        return 0;
    }
    return 3;
}

/* "8 May [2023]", "8th of May [2023]", "May 8 [2023]", "May [of] 2023", "in May". */
static int take_month_date(parse *p, int i)
{
    static const char *const leads[] = {"in", "during", "of", "this", "early", "late", "mid", "since",
            "before", "after", "until", "by", "last"};
    int month, of;
    if (is_day(p, i)) {
        of = is_word(p, i + 1, "of") && month_at(p, i + 2) > 0;
        month = month_at(p, i + 1 + of);
        if (month > 0) {
            bool year = is_year(p, i + 2 + of);
            add_date(p, i, year ? number_at(p, i + 2 + of) : -1, month, number_at(p, i));
            return 2 + of + year;
        }
    }
    month = month_at(p, i);
    if (month == 0) {
        return 0;
    }
    if (is_day(p, i + 1)) {
        bool year = is_year(p, i + 2);
        add_date(p, i, year ? number_at(p, i + 2) : -1, month, number_at(p, i + 1));
        return 2 + year;
    }
    of = is_word(p, i + 1, "of");
    if (is_year(p, i + 1 + of)) {
        add_date(p, i, number_at(p, i + 1 + of), month, 0);
        return 2 + of;
    }
    /* "may" and "march" are words of their own: a month alone needs a word in front that says so. */
    if (FIND_WORD(p, i - 1, leads) >= 0) {
        add_date(p, i, -1, month, 0);
    }
    return 1;
}

/* Northern seasons; winter is named by the year it ends in. */
static int season_month(const parse *p, int i)
{
    static const char *const seasons[] = {"winter", "spring", "summer", "autumn", "fall"};
    int s = FIND_WORD(p, i, seasons);
    return s < 0 ? 0 : s == 4 ? 9 : 3 * s;
}

static void add_season(parse *p, int64_t year, int month)
{
    int64_t from = month == 0 ? days_of_month(year - 1, 12) : days_of_month(year, month);
    int64_t to = month == 0 ? days_of_month(year, 3) : days_of_month(year, month + 3);
    add_days(p, from, to, year_margin, true);
}

static int take_year(parse *p, int i)
{
    static const char *const leads[] = {"in", "during", "of", "year"};
    if (is_year(p, i) && FIND_WORD(p, i - 1, leads) >= 0) {
        if (!is_bound(p, i) && !is_bound(p, i - 1)) { /* "as of 2022", "before the year 2022" */
            add_year(p, number_at(p, i));
        }
        return 1;
    }
    return 0;
}

/* "last May", "this summer", "last week", "last Friday". Needs the present. */
static int take_last(parse *p, int i, const civil *now)
{
    bool last = is_word(p, i, "last") || is_word(p, i, "past"), this_one = is_word(p, i, "this");
    if (!last && !this_one) {
        return 0;
    }
    int j = i + 1, back = last ? 1 : 0, month = month_at(p, j), weekday = FIND_WORD(p, j, weekday_names);
    int64_t today = now->days, monday = today - ((today + 3) % 7 + 7) % 7; /* 1970-01-01 was a Thursday */
    if (month > 0) {
        add_date(p, i, last && month >= now->month ? now->year - 1 : now->year, month, 0);
    } else if (weekday >= 0) {
        int64_t day = monday + weekday;
        add_days(p, day >= today ? day - 7 : day, (day >= today ? day - 7 : day) + 1, day_margin, true);
    } else if (is_word(p, j, "night") || is_word(p, j, "evening") || is_word(p, j, "morning")) {
        add_days(p, today - back, today + 1, day_margin, true);
    } else if (is_word(p, j, "week")) {
        add_days(p, monday - 7 * back, monday - 7 * back + 7, day_margin, true);
    } else if (is_word(p, j, "weekend")) {
        int64_t saturday = monday + 5 - (monday + 5 >= today ? 7 : 0);
        add_days(p, saturday, saturday + 2, day_margin, true);
    } else if (is_word(p, j, "month")) {
        int64_t m = now->year * 12 + now->month - 1 - back;
        add_days(p, days_of_month(m / 12, (int)(m % 12) + 1), days_of_month(m / 12, (int)(m % 12) + 2),
                month_margin, true);
    } else if (is_word(p, j, "year")) {
        add_year(p, now->year - back);
    } else if (season_month(p, j) > 0 || is_word(p, j, "winter")) {
        month = season_month(p, j);
        int64_t year = now->year - (last && now->month < month + 3 && month > 0 ? 1 : 0);
        add_season(p, year, month);
    } else {
        return 0;
    }
    return 2;
}

static int take_relative(parse *p, int i, const civil *now)
{
    int64_t today = now->days;
    if (is_word(p, i, "yesterday")) {
        add_days(p, today - 1, today, (margin){0, 2}, true);
        return 1;
    }
    if (is_word(p, i, "today") || is_word(p, i, "tonight")) {
        add_days(p, today, today + 1, (margin){0, 2}, true);
        return 1;
    }
    int count = is_word(p, i, "a") || is_word(p, i, "an") ? 1 : number_at(p, i);
    if (count < 1 || count > 1000 || !is_word(p, i + 2, "ago")) {
        return 0;
    }
    if (is_word(p, i + 1, "day") || is_word(p, i + 1, "days")) {
        add_days(p, today - count, today - count + 1, day_margin, true);
    } else if (is_word(p, i + 1, "week") || is_word(p, i + 1, "weeks")) {
        add_days(p, today - 7 * count - 3, today - 7 * count + 4, day_margin, true);
    } else if (is_word(p, i + 1, "month") || is_word(p, i + 1, "months")) {
        add_days(p, today - 30 * count - 15, today - 30 * count + 16, month_margin, true);
    } else if (is_word(p, i + 1, "year") || is_word(p, i + 1, "years")) {
        add_days(p, today - 365 * count - 182, today - 365 * count + 183, year_margin, true);
    } else {
        return 0;
    }
    return 3;
}

/* "summer of 2022", "winter 2021". */
static int take_season(parse *p, int i)
{
    int of = is_word(p, i + 1, "of");
    if ((season_month(p, i) > 0 || is_word(p, i, "winter")) && is_year(p, i + 1 + of)) {
        add_season(p, number_at(p, i + 1 + of), season_month(p, i));
        return 2 + of;
    }
    return 0;
}

int ep_time_spans(const char *text, size_t bytes, const ep_time_frame *frame, ep_time_span *out)
{
    parse p = {.text = text, .frame = frame, .out = out};
    civil now = civil_of(frame->now_us);
    read_words(&p, bytes);
    for (int i = 0; i < p.n;) {
        int taken = take_numeric_date(&p, i);
        taken = taken > 0 || !frame->has_now ? taken : take_last(&p, i, &now);
        taken = taken > 0 || !frame->has_now ? taken : take_relative(&p, i, &now);
        taken = taken > 0 ? taken : take_season(&p, i);
        taken = taken > 0 ? taken : take_month_date(&p, i);
        taken = taken > 0 ? taken : take_year(&p, i);
        i += taken > 0 ? taken : 1;
    }
    return p.n_out;
}

float ep_time_weight(const ep_time_span *spans, int n, int64_t time_us)
{
    float best = 0;
    for (int i = 0; i < n; i++) {
        const ep_time_span *s = &spans[i];
        double outside = time_us < s->from_us ? (double)s->from_us - (double)time_us
                : time_us >= s->to_us         ? (double)time_us - (double)s->to_us + 1
                                              : 0;
        double weight = ((double)s->zero_us - outside) / (double)(s->zero_us - s->full_us);
        weight = weight > 1 ? 1 : weight;
        best = weight > (double)best ? (float)weight : best;
    }
    return best;
}
