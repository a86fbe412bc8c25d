/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/json_check.h"

#include "tests/support/complain.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64

typedef struct reader {
    const char *start, *at;
    int depth;
} reader;

static void skip_space(reader *r) {
    r->at += strspn(r->at, " \t\r\n");
}

static bool take(reader *r, char c) {
    if (*r->at != c) {
        return false;
    }
    r->at++;
    return true;
}

static const char *wrong(const reader *r, const char *what) {
    return complain("%s at byte %zu: %.20s", what, (size_t)(r->at - r->start), r->at);
}

static const char *escape(reader *r) {
    if (take(r, 'u')) {
        for (int i = 0; i < 4; i++, r->at++) {
            if (!isxdigit((unsigned char)*r->at)) {
                return wrong(r, "not a hexadecimal digit");
            }
        }
        return NULL;
    }
    if (*r->at == '\0' || strchr("\"\\/bfnrt", *r->at) == NULL) {
        return wrong(r, "not an escape");
    }
    r->at++;
    return NULL;
}

static const char *string(reader *r) {
    if (!take(r, '"')) {
        return wrong(r, "not a string");
    }
    while (!take(r, '"')) {
        if ((unsigned char)*r->at < 0x20) {
            return wrong(r, "a control character or the end in a string");
        }
        if (take(r, '\\')) {
            TRY(escape(r));
        } else {
            r->at++;
        }
    }
    return NULL;
}

static const char *digits(reader *r) {
    if (!isdigit((unsigned char)*r->at)) {
        return wrong(r, "not a digit");
    }
    while (isdigit((unsigned char)*r->at)) {
        r->at++;
    }
    return NULL;
}

static const char *number(reader *r) {
    (void)take(r, '-');
    if (!take(r, '0')) {
        TRY(digits(r));
    }
    if (take(r, '.')) {
        TRY(digits(r));
    }
    if (take(r, 'e') || take(r, 'E')) {
        (void)(take(r, '+') || take(r, '-'));
        TRY(digits(r));
    }
    return NULL;
}

static const char *value(reader *r);

static const char *member(reader *r, bool is_object) {
    if (is_object) {
        skip_space(r);
        TRY(string(r));
        skip_space(r);
        if (!take(r, ':')) {
            return wrong(r, "no colon");
        }
    }
    return value(r);
}

static const char *members(reader *r, bool is_object) {
    char close = is_object ? '}' : ']';
    skip_space(r);
    if (take(r, close)) {
        return NULL;
    }
    do {
        TRY(member(r, is_object));
        skip_space(r);
    } while (take(r, ','));
    return take(r, close) ? NULL : wrong(r, "no comma and no end");
}

static const char *word(reader *r) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        if (strncmp(r->at, words[i], strlen(words[i])) == 0) {
            r->at += strlen(words[i]);
            return NULL;
        }
    }
    return wrong(r, "no value");
}

static const char *value(reader *r) {
    if (++r->depth > DEPTH_MAX) {
        return wrong(r, "too deep");
    }
    skip_space(r);
    const char *why = NULL;
    if (*r->at == '"') {
        why = string(r);
    } else if (take(r, '{')) {
        why = members(r, true);
    } else if (take(r, '[')) {
        why = members(r, false);
    } else if (*r->at == '-' || isdigit((unsigned char)*r->at)) {
        why = number(r);
    } else {
        why = word(r);
    }
    r->depth--;
    return why;
}

const char *json_check(const char *text) {
    reader r = {.start = text, .at = text};
    TRY(value(&r));
    skip_space(&r);
    return *r.at == '\0' ? NULL : wrong(&r, "more after the value");
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
