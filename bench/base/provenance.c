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

enum { FORMAT = 1 };

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

static void print_command_member(dti_json *j) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    if (memory == NULL) {
        return;
    }
    print_command(memory);
    if (fclose(memory) == 0) {
        dti_json_text(j, "command", text);
    }
    free(text);
}

dti_json provenance_begin_row(FILE *out) {
    dti_json j = dti_json_begin_line(out);
    dti_json_number(&j, "format", FORMAT);
    return j;
}

void provenance_json(dti_json *j, const bench_device *device) {
    const char *conf = getenv("DUCTILE_CONF");
    dti_json_text(j, "device", device->caps.name);
    dti_json_text(j, "driver", device->caps.driver_version);
    dti_json_text(j, "version", ductile_version());
    dti_json_text(j, "commit", DUCTILE_COMMIT);
    print_command_member(j);
    if (conf != NULL && conf[0] != '\0') {
        dti_json_text(j, "conf", conf);
    }
}
