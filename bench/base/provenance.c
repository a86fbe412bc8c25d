/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/base/provenance.h"

#include <stdlib.h>
#include <string.h>

#if defined(__has_include)
#if __has_include("commit.h")
#include "commit.h"
#endif
#endif

#ifndef DUCTILE_COMMIT
#define DUCTILE_COMMIT "unknown"
#endif

static int command_argc;
static char **command_argv;

void provenance_set_command(int argc, char **argv) {
    command_argc = argc;
    command_argv = argv;
}

/* ---- Text ---------------------------------------------------------------------------------- */

static bool needs_quotes(const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./=:,+@%";
    return word[0] == '\0' || word[strspn(word, plain)] != '\0';
}

/* Quoted as a shell needs it. */
static void print_word(FILE *out, const char *word) {
    if (!needs_quotes(word)) {
        (void)fputs(word, out);
        return;
    }
    (void)putc('\'', out);
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            (void)fputs("'\\''", out);
        } else {
            (void)putc(*word == '\n' ? ' ' : *word, out);
        }
    }
    (void)putc('\'', out);
}

static void print_command(FILE *out) {
    (void)fputs("ductile-bench", out);
    for (int i = 1; i < command_argc; i++) {
        (void)putc(' ', out);
        print_word(out, command_argv[i]);
    }
}

void provenance_print_heading(FILE *out, const bench_device *device) {
    const char *conf = getenv("DUCTILE_CONF");
    (void)fprintf(out, "Ductile %s, commit %s\n", ductile_version(), DUCTILE_COMMIT);
    (void)fprintf(out, "device   %s, driver %s\n", device->caps.name, device->caps.driver_version);
    (void)fputs("command  ", out);
    print_command(out);
    (void)fputs("\n", out);
    if (conf != NULL && conf[0] != '\0') {
        (void)fprintf(out, "DUCTILE_CONF  %s\n", conf);
    }
}

/* ---- JSON ---------------------------------------------------------------------------------- */

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

static void print_member(FILE *out, const char *name, const char *text) {
    (void)fprintf(out, "\"%s\":", name);
    print_json_string(out, text);
    (void)putc(',', out);
}

static void print_command_member(FILE *out) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory == NULL) {
        return;
    }
    print_command(memory);
    if (fclose(memory) == 0) {
        print_member(out, "command", text);
    }
    free(text);
}

void provenance_print_json(FILE *out, const bench_device *device) {
    const char *conf = getenv("DUCTILE_CONF");
    print_member(out, "device", device->caps.name);
    print_member(out, "driver", device->caps.driver_version);
    print_member(out, "version", ductile_version());
    print_member(out, "commit", DUCTILE_COMMIT);
    print_command_member(out);
    if (conf != NULL && conf[0] != '\0') {
        print_member(out, "conf", conf);
    }
}
