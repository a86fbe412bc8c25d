/* SPDX-License-Identifier: Apache-2.0 */
/* The file of lines that a real device gave. */
#include "tests/conformance/conformance.h"
#include "tests/support/script.h"

#include <stdlib.h>
#include <string.h>

/* The file's text, cut into lines in place. Owned by the caller of golden_read. */
struct golden_lines {
    char *text;
    char **lines;
    size_t n_lines;
};

static void cut_lines(golden_lines *golden) {
    char *rest = NULL;
    for (char *line = strtok_r(golden->text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        if (line[0] != '#') {
            golden->lines[golden->n_lines++] = line;
        }
    }
}

static size_t count_lines(const char *text) {
    size_t n = 1;
    for (const char *c = text; *c != '\0'; c++) {
        n += *c == '\n';
    }
    return n;
}

golden_lines *golden_read(const char *path) {
    char *text = NULL;
    if (script_text(path, &text) != NULL) {
        free(text);
        return NULL;
    }
    golden_lines *golden = calloc(1, sizeof(*golden));
    char **lines = text != NULL ? calloc(count_lines(text), sizeof(*lines)) : NULL;
    if (golden == NULL || lines == NULL) {
        free(golden);
        free(text);
        return NULL;
    }
    golden->text = text;
    golden->lines = lines;
    cut_lines(golden);
    return golden;
}

void golden_free(golden_lines *golden) {
    if (golden != NULL) {
        free(golden->lines);
        free(golden->text);
        free(golden);
    }
}

const char *golden_find(const golden_lines *golden, const char *row_name) {
    size_t length = strlen(row_name);
    for (size_t i = 0; i < golden->n_lines; i++) {
        const char *line = golden->lines[i];
        if (strncmp(line, row_name, length) == 0 && strncmp(line + length, " | ", 3) == 0) {
            return line;
        }
    }
    return NULL;
}

const char *golden_default_path(void) {
    return CONFORMANCE_LINES;
}
