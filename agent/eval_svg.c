/* Pictures of measurements: the frame of an SVG file. What is in it is printed by whoever draws. */
#include <errno.h>
#include <string.h>

#include "agent/eval_internal.h"

bool eval_svg_accepts(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".svg") == 0;
}

status eval_svg_open(const char *path, int width, int height, FILE **out, err *e)
{
    FILE *f = fopen(path, "w");
    if (f == NULL) {
        return FAIL_OS(e, ST_ERR_IO, errno, "%.300s cannot be written", path);
    }
    (void)fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
            "font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
            width, height, width, height);
    *out = f;
    return ST_OK;
}

status eval_svg_close(FILE *f, const char *path, err *e)
{
    bool ok = fputs("</svg>\n", f) >= 0 && ferror(f) == 0;
    ok = fclose(f) == 0 && ok;
    return ok ? ST_OK : FAIL(e, ST_ERR_IO, "%.300s cannot be written", path);
}
