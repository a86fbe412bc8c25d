/* SPDX-License-Identifier: Apache-2.0 */
/* Text of DUCTILE_CONF from any bytes: refused, or written and read again without a change. */
#include <ductile.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void need(int holds, const char *what) {
    if (!holds) {
        (void)fprintf(stderr, "%s\n", what);
        abort();
    }
}

static void repeat(const ductile_options *o) {
    char text[2048];
    char again[2048];
    ductile_options read;
    need(ductile_options_format(o, text, sizeof text) < sizeof text, "options without an end");
    ductile_options_init(&read);
    need(ductile_options_parse(&read, text, NULL, 0) == DUCTILE_OK, "written options are refused");
    (void)ductile_options_format(&read, again, sizeof again);
    need(strcmp(text, again) == 0, "options change when they are written and read");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char text[4096];
    char message[64] = "";
    ductile_options o;
    if (size >= sizeof text) {
        return 0;
    }
    memcpy(text, bytes, size);
    text[size] = '\0';
    ductile_options_init(&o);
    if (ductile_options_parse(&o, text, message, sizeof message) == DUCTILE_OK) {
        repeat(&o);
    } else {
        need(message[0] != '\0' && memchr(message, 0, sizeof message) != NULL, "no message");
        repeat(&o);
    }
    return 0;
}
