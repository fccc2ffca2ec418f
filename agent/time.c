/* time: the spellings of a time that conversations come with. All are read as UTC unless they carry an offset. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "agent/agent.h"

/* Days since 1970-01-01 of a civil date, proleptic Gregorian (H. Hinnant, "chrono-compatible low-level date
 * algorithms", days_from_civil). */
static int64_t days_of(int64_t y, int m, int d)
{
    y -= m <= 2;
    int64_t era = (y >= 0 ? y : y - 399) / 400, yoe = y - era * 400;
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1, doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    return era * 146097 + doe - 719468;
}

static bool make_time(int y, int mon, int d, int h, int min, double s, int64_t offset_s, int64_t *out)
{
    static const int days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    if (y < 1 || y > 9999 || mon < 1 || mon > 12 || d < 1 || d > days[mon - 1] ||
            (mon == 2 && d == 29 && !leap) || h < 0 || h > 23 || min < 0 || min > 59 || !(s >= 0 && s < 61)) {
        return false;
    }
    int64_t seconds = days_of(y, mon, d) * 86400 + h * 3600 + min * 60 - offset_s;
    *out = seconds * 1000000 + (int64_t)(s * 1e6);
    return true;
}

static int month_of(const char *name)
{
    static const char *const months[] = {"January", "February", "March", "April", "May", "June", "July",
            "August", "September", "October", "November", "December"};
    for (int i = 0; i < 12; i++) {
        if (strcasecmp(name, months[i]) == 0) {
            return i + 1;
        }
    }
    return 0;
}

/* "2023-05-08T13:56:00.5+02:00", "2023-05-08 13:56", "2023-05-08" */
static bool parse_rfc3339(const char *t, int64_t *out)
{
    int y, mon, d, h = 0, min = 0, n = 0, oh, om;
    double s = 0;
    if (sscanf(t, "%4d-%2d-%2d%n", &y, &mon, &d, &n) != 3 || n != 10) {
        return false;
    }
    t += n;
    if (*t == '\0') {
        return make_time(y, mon, d, 0, 0, 0, 0, out);
    }
    if ((*t != 'T' && *t != 't' && *t != ' ') || sscanf(t + 1, "%2d:%2d%n", &h, &min, &n) != 2 || n != 5) {
        return false;
    }
    t += 1 + n;
    if (*t == ':') {
        if (!isdigit((unsigned char)t[1]) || sscanf(t + 1, "%lf%n", &s, &n) != 1) {
            return false;
        }
        t += 1 + n;
    }
    int64_t offset = 0;
    if (*t == '+' || *t == '-') {
        if (sscanf(t + 1, "%2d:%2d%n", &oh, &om, &n) != 2 || n != 5 || oh > 23 || om > 59) {
            return false;
        }
        offset = (*t == '-' ? -1 : 1) * (oh * 3600 + om * 60);
        t += 1 + n;
    } else if (*t == 'Z' || *t == 'z') {
        t++;
    }
    return *t == '\0' && make_time(y, mon, d, h, min, s, offset, out);
}

/* "1:56 pm on 8 May, 2023" */
static bool parse_locomo(const char *t, int64_t *out)
{
    int h, min, d, y, n = 0;
    char half[3], month[16];
    if (sscanf(t, "%2d:%2d %2[apmAPM] on %2d %15[A-Za-z], %4d%n", &h, &min, half, &d, month, &y, &n) != 6 ||
            t[n] != '\0' || h < 1 || h > 12) {
        return false;
    }
    bool pm = half[0] == 'p' || half[0] == 'P';
    return make_time(y, month_of(month), d, h % 12 + (pm ? 12 : 0), min, 0, 0, out);
}

/* "29.12.2023, 22:42:04" */
static bool parse_realtalk(const char *t, int64_t *out)
{
    int d, mon, y, h, min, s, n = 0;
    return sscanf(t, "%2d.%2d.%4d, %2d:%2d:%2d%n", &d, &mon, &y, &h, &min, &s, &n) == 6 && t[n] == '\0' &&
            make_time(y, mon, d, h, min, s, 0, out);
}

status agent_time_parse(const char *text, int64_t *time_us)
{
    return parse_rfc3339(text, time_us) || parse_locomo(text, time_us) || parse_realtalk(text, time_us)
            ? ST_OK
            : ST_ERR_FORMAT;
}

void agent_time_format(int64_t time_us, char out[32])
{
    int64_t seconds = time_us / 1000000 - (time_us % 1000000 < 0);
    time_t t = (time_t)seconds;
    struct tm tm;
    out[0] = '\0';
    if (gmtime_r(&t, &tm) != NULL && tm.tm_year >= -1899 && tm.tm_year <= 8099) {
        (void)strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
    }
}
