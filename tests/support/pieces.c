/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/pieces.h"

#include "tests/support/complain.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#define FORM "pieces %" PRIu64 "\nseed %" PRIu64 "\noperations %" PRIu64 "\nseconds %" PRIu64 "\n"
#define SCAN "pieces %" SCNu64 " seed %" SCNu64 " operations %" SCNu64 " seconds %" SCNu64

enum { MOST_PATH = 1024 };

const char *pieces_read(const char *path, pieces *p) {
    FILE *file = fopen(path, "r");
    if (file == NULL && errno == ENOENT) {
        return NULL;
    }
    NEED(file != NULL, "%s cannot be read", path);
    pieces found = {0};
    int n = fscanf(file, SCAN, &found.pieces, &found.seed, &found.operations, &found.seconds);
    (void)fclose(file);
    NEED(n == 4, "%s does not say where a run ended", path);
    *p = found;
    return NULL;
}

const char *pieces_write(const char *path, const pieces *p) {
    char next[MOST_PATH];
    NEED((size_t)snprintf(next, sizeof next, "%s.next", path) < sizeof next, "a long path");
    FILE *file = fopen(next, "w");
    NEED(file != NULL, "%s cannot be written", next);
    bool wrote = fprintf(file, FORM, p->pieces, p->seed, p->operations, p->seconds) > 0;
    bool is_whole = fclose(file) == 0 && wrote && rename(next, path) == 0;
    NEED(is_whole, "%s cannot be written", path);
    return NULL;
}
