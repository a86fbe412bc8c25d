/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/cli/cli.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *program = "ductile-bench";

void bench_set_program(const char *path) {
    const char *slash = strrchr(path, '/');
    program = slash != NULL ? slash + 1 : path;
}

/* May this byte follow the first of a character of UTF-8? Neither C1 commands nor surrogates. */
static bool may_be_second(unsigned first, unsigned second) {
    unsigned least = first == 0xc2 || first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    return second >= least && second <= most;
}

/* How many bytes of a line a terminal may get as one character; 0: not even the first. */
static size_t visible_length(const char *at) {
    const unsigned char *c = (const unsigned char *)at;
    if (*c < 0x80) {
        return iscntrl(*c) ? 0 : 1;
    }
    size_t length = *c < 0xc2 || *c > 0xf4 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : 4;
    if (length == 0 || !may_be_second(c[0], c[1])) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((c[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

void bench_complain(const char *format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    for (char *c = line; *c != '\0';) {
        size_t length = visible_length(c);
        if (length == 0) {
            *c = '?';
        }
        c += length == 0 ? 1 : length;
    }
    (void)fprintf(stderr, "%s: %s\n", program, line);
}

void bench_complain_of(const char *path, uint64_t line, const char *reason) {
    if (line > 0) {
        bench_complain("%s:%" PRIu64 ": %s", path, line, reason);
    } else {
        bench_complain("%s: %s", path, reason);
    }
}

/* Reads digits at *text and moves past them. False: none, or more than 64 bits. */
static bool read_digits(const char **text, uint64_t *out) {
    const char *at = *text;
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return false;
        }
    }
    if (at == *text) {
        return false;
    }
    *text = at;
    *out = value;
    return true;
}

bool bench_parse_bytes(const char *text, uint64_t *out) {
    static const char suffixes[] = "KMGT";
    uint64_t value;
    if (!read_digits(&text, &value)) {
        return false;
    }
    if (*text != '\0') {
        const char *suffix = strchr(suffixes, toupper((unsigned char)*text));
        if (suffix == NULL || text[1] != '\0') {
            return false;
        }
        unsigned shift = 10u * (unsigned)(suffix - suffixes + 1);
        if (value > UINT64_MAX >> shift) {
            return false;
        }
        value <<= shift;
    }
    *out = value;
    return true;
}

bool bench_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    uint64_t value;
    if (!read_digits(&text, &value) || *text != '\0' || value < min || value > max) {
        return false;
    }
    *out = value;
    return true;
}
