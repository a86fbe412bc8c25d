/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/json_check.h"

#include "tests/support/complain.h"

#include <regex.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 64 };

#define STRING "\"([^\"\\[:cntrl:]]|\\\\([\"\\/bfnrt]|u[[:xdigit:]]{4}))*\""
#define SCALAR "^(" STRING "|-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null)"

typedef struct reader {
    const char *start, *at, *end;
    regex_t scalar;
    int depth;
} reader;

static const char *wrong(const reader *r, const char *what) {
    return complain("%s at byte %zu: %.20s", what, (size_t)(r->at - r->start), r->at);
}

static bool take(reader *r, char c) {
    r->at += strspn(r->at, " \t\r\n");
    if (*r->at != c) {
        return false;
    }
    r->at++;
    return true;
}

/* A string, a number or a word. */
static const char *scalar(reader *r) {
    r->at += strspn(r->at, " \t\r\n");
    regmatch_t found = {.rm_so = 0, .rm_eo = (regoff_t)(r->end - r->at)};
    if (regexec(&r->scalar, r->at, 1, &found, REG_STARTEND) != 0) {
        return wrong(r, "no value");
    }
    r->at += found.rm_eo;
    return NULL;
}

static const char *value(reader *r);

static const char *members(reader *r, bool is_object) {
    char close = is_object ? '}' : ']';
    if (take(r, close)) {
        return NULL;
    }
    do {
        if (is_object) {
            r->at += strspn(r->at, " \t\r\n");
            TRY(*r->at == '"' ? scalar(r) : wrong(r, "not a string"));
            TRY(take(r, ':') ? NULL : wrong(r, "no colon"));
        }
        TRY(value(r));
    } while (take(r, ','));
    return take(r, close) ? NULL : wrong(r, "no comma and no end");
}

static const char *value(reader *r) {
    if (++r->depth > DEPTH_MAX) {
        return wrong(r, "too deep");
    }
    bool is_object = take(r, '{');
    bool is_list = !is_object && take(r, '[');
    const char *why = is_object || is_list ? members(r, is_object) : scalar(r);
    r->depth--;
    return why;
}

const char *json_check(const char *text) {
    reader r = {.start = text, .at = text, .end = text + strlen(text)};
    if (regcomp(&r.scalar, SCALAR, REG_EXTENDED) != 0) {
        return "the expression is wrong";
    }
    const char *why = value(&r);
    regfree(&r.scalar);
    r.at += strspn(r.at, " \t\r\n");
    return why != NULL ? why : *r.at == '\0' ? NULL : wrong(&r, "more after the value");
}

int text_sink_write(void *user, const char *text, size_t length) {
    text_sink *sink = user;
    if (sink->length + length + 1 > sink->capacity) {
        size_t capacity = 2 * (sink->length + length + 1);
        char *grown = realloc(sink->text, capacity);
        if (grown == NULL) {
            return 1;
        }
        sink->text = grown;
        sink->capacity = capacity;
    }
    memcpy(sink->text + sink->length, text, length);
    sink->length += length;
    sink->text[sink->length] = '\0';
    return 0;
}
