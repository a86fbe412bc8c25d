/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static void put(dti_json *j, const char *text, size_t length) {
    if (!j->has_ended && length > 0) {
        j->has_ended = j->write(j->user, text, length) != 0;
    }
}

static void put_string(dti_json *j, const char *text) {
    put(j, text, strlen(text));
}

/* For numbers, and what is as short. */
__attribute__((format(printf, 2, 3))) static void put_short(dti_json *j, const char *format, ...) {
    char text[400]; /* DBL_MAX has 309 digits */
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put(j, text, n > 0 && (size_t)n < sizeof text ? (size_t)n : 0);
}

static int write_to_file(void *user, const char *text, size_t length) {
    return fwrite(text, 1, length, user) != length; /* the stream keeps the error for the end */
}

dti_json dti_json_to_file(FILE *out) {
    return (dti_json){.write = write_to_file, .user = out};
}

/* ---- Text ---------------------------------------------------------------------------------- */

/* The length of the UTF-8 sequence at `text`, or 0 if there is none. Overlong forms, surrogates and
 * code points above U+10FFFF do not count. */
static size_t utf8_length(const unsigned char *text) {
    size_t length = text[0] < 0x80   ? 1
                    : text[0] < 0xc2 ? 0
                    : text[0] < 0xe0 ? 2
                    : text[0] < 0xf0 ? 3
                    : text[0] < 0xf5 ? 4
                                     : 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool is_bad = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xed && text[1] >= 0xa0) ||
                  (text[0] == 0xf0 && text[1] < 0x90) || (text[0] == 0xf4 && text[1] >= 0x90);
    return length > 1 && is_bad ? 0 : length;
}

/* Is it written as it stands? */
static bool is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

/* Returns the bytes that it wrote something for. */
static size_t put_character(dti_json *j, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    size_t length = utf8_length(at);
    if (length == 0) {
        put_string(j, "\\ufffd");
        return 1;
    }
    if (*at == '"' || *at == '\\') {
        put_short(j, "\\%c", *at);
    } else if (*at < 0x20 || *at == 0x7f) {
        put_short(j, "\\u%04x", *at);
    } else {
        put(j, text, length);
    }
    return length;
}

static void put_quoted(dti_json *j, const char *text) {
    put(j, "\"", 1);
    while (*text != '\0') {
        size_t n = 0;
        while (is_plain((unsigned char)text[n])) {
            n++;
        }
        put(j, text, n);
        text += n;
        text += *text != '\0' ? put_character(j, text) : 0;
    }
    put(j, "\"", 1);
}

/* ---- Values -------------------------------------------------------------------------------- */

/* What comes before a value. */
static void begin(dti_json *j, const char *name) {
    put_string(j, j->has_before ? "," : "");
    if (name != NULL) {
        put(j, "\"", 1);
        put_string(j, name);
        put(j, "\":", 2);
    }
    j->has_before = true;
}

void dti_json_open(dti_json *j, const char *name, char bracket) {
    begin(j, name);
    put(j, &bracket, 1);
    j->has_before = false;
}

void dti_json_close(dti_json *j, char bracket) {
    put(j, &bracket, 1);
    j->has_before = true;
}

static void put_word(dti_json *j, const char *name, const char *value) {
    begin(j, name);
    put_string(j, value);
}

void dti_json_null(dti_json *j, const char *name) {
    put_word(j, name, "null");
}

void dti_json_bool(dti_json *j, const char *name, bool value) {
    put_word(j, name, value ? "true" : "false");
}

void dti_json_number(dti_json *j, const char *name, uint64_t value) {
    begin(j, name);
    put_short(j, "%" PRIu64, value);
}

void dti_json_signed(dti_json *j, const char *name, int64_t value) {
    begin(j, name);
    put_short(j, "%" PRId64, value);
}

void dti_json_real(dti_json *j, const char *name, double value, int digits) {
    if (!isfinite(value)) {
        dti_json_null(j, name);
        return;
    }
    begin(j, name);
    put_short(j, "%.*f", digits, value);
}

void dti_json_text(dti_json *j, const char *name, const char *text) {
    begin(j, name);
    put_quoted(j, text);
}

/* ---- Lists and lines ----------------------------------------------------------------------- */

void dti_json_numbers(dti_json *j, const char *name, const uint64_t *all, size_t n) {
    dti_json_open(j, name, '[');
    for (size_t i = 0; i < n; i++) {
        dti_json_number(j, NULL, all[i]);
    }
    dti_json_close(j, ']');
}

void dti_json_texts(dti_json *j, const char *name, const char *const *texts, size_t n) {
    dti_json_open(j, name, '[');
    for (size_t i = 0; i < n; i++) {
        dti_json_text(j, NULL, texts[i]);
    }
    dti_json_close(j, ']');
}

dti_json dti_json_begin_line(FILE *out) {
    dti_json j = dti_json_to_file(out);
    dti_json_open(&j, NULL, '{');
    return j;
}

void dti_json_end_line(dti_json *j) {
    dti_json_close(j, '}');
    put(j, "\n", 1);
}
