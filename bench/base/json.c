/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/json.h"

#include <inttypes.h>
#include <math.h>

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

static size_t print_json_character(FILE *out, const unsigned char *text) {
    size_t length = utf8_length(text);
    if (length == 0) {
        (void)fputs("\\ufffd", out);
        return 1;
    }
    if (*text == '"' || *text == '\\') {
        (void)fprintf(out, "\\%c", *text);
    } else if (*text < 0x20 || *text == 0x7f) {
        (void)fprintf(out, "\\u%04x", *text);
    } else {
        (void)fwrite(text, 1, length, out);
    }
    return length;
}

void print_json_string(FILE *out, const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    (void)putc('"', out);
    while (*at != '\0') {
        at += print_json_character(out, at);
    }
    (void)putc('"', out);
}

/* What comes before a value. */
static void begin(json *j, const char *name) {
    (void)fputs(j->has_before ? "," : "", j->out);
    if (name != NULL) {
        (void)fprintf(j->out, "\"%s\":", name);
    }
    j->has_before = true;
}

void json_open(json *j, const char *name, char bracket) {
    begin(j, name);
    (void)putc(bracket, j->out);
    j->has_before = false;
}

void json_close(json *j, char bracket) {
    (void)putc(bracket, j->out);
    j->has_before = true;
}

void json_raw(json *j, const char *name, const char *value) {
    begin(j, name);
    (void)fputs(value, j->out);
}

void json_null(json *j, const char *name) {
    json_raw(j, name, "null");
}

void json_bool(json *j, const char *name, bool value) {
    json_raw(j, name, value ? "true" : "false");
}

void json_number(json *j, const char *name, uint64_t value) {
    begin(j, name);
    (void)fprintf(j->out, "%" PRIu64, value);
}

void json_signed(json *j, const char *name, int64_t value) {
    begin(j, name);
    (void)fprintf(j->out, "%" PRId64, value);
}

void json_real(json *j, const char *name, double value, int digits) {
    if (isnan(value)) {
        json_null(j, name);
        return;
    }
    begin(j, name);
    (void)fprintf(j->out, "%.*f", digits, value);
}

void json_text(json *j, const char *name, const char *text) {
    begin(j, name);
    print_json_string(j->out, text);
}

void json_texts(json *j, const char *name, const char *const *texts, size_t n) {
    json_open(j, name, '[');
    for (size_t i = 0; i < n; i++) {
        json_text(j, NULL, texts[i]);
    }
    json_close(j, ']');
}

json json_begin_line(FILE *out) {
    json j = {.out = out};
    json_open(&j, NULL, '{');
    return j;
}

void json_end_line(json *j) {
    json_close(j, '}');
    (void)putc('\n', j->out);
}
