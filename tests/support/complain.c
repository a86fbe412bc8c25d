/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/complain.h"

#include <stdarg.h>
#include <stdio.h>

/* A few buffers in turn: a complaint often quotes the one before. */
#define N_BUFFERS 4

const char *complain(const char *format, ...) {
    static _Thread_local char buffers[N_BUFFERS][4096];
    static _Thread_local unsigned turn;
    char *buffer = buffers[turn++ % N_BUFFERS];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(buffer, sizeof buffers[0], format, arguments);
    va_end(arguments);
    return buffer;
}
