/* SPDX-License-Identifier: Apache-2.0 */
/* The file of lines that a real device gave. */
#include "tests/conformance/conformance.h"
#include "tests/support/script.h"

#include <stdlib.h>
#include <string.h>

/* The file's text, cut into lines in place. Owned by the caller of golden_read. */
struct golden_lines {
    char *text, *end;
};

golden_lines *golden_read(const char *path) {
    golden_lines *golden = calloc(1, sizeof(*golden));
    if (golden == NULL || script_text(path, &golden->text) != NULL) {
        golden_free(golden);
        return NULL;
    }
    golden->end = golden->text + strlen(golden->text);
    for (char *c = golden->text; c < golden->end; c++) {
        *c = *c == '\n' ? '\0' : *c;
    }
    return golden;
}

void golden_free(golden_lines *golden) {
    if (golden != NULL) {
        free(golden->text);
        free(golden);
    }
}

const char *golden_find(const golden_lines *golden, const char *row_name) {
    size_t length = strlen(row_name);
    for (const char *line = golden->text; line < golden->end; line += strlen(line) + 1) {
        if (strncmp(line, row_name, length) == 0 && strncmp(line + length, " | ", 3) == 0) {
            return line;
        }
    }
    return NULL;
}

const char *golden_default_path(void) {
    return CONFORMANCE_LINES;
}
