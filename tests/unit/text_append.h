/* Text that a test puts together piece by piece, in an array that must be large enough. Include after cmocka.h. */
#ifndef EPIMEM_TEST_TEXT_APPEND_H
#define EPIMEM_TEST_TEXT_APPEND_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static inline void text_append(
        char *text, size_t bytes_max, const char *format, ...)
{
    size_t bytes = strlen(text);
    va_list list;
    va_start(list, format);
    int more = vsnprintf(text + bytes, bytes_max - bytes, format, list);
    va_end(list);
    assert_true(more >= 0 && bytes + (size_t)more < bytes_max);
}

#endif
