/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder for libFuzzer and AFL++, which choose the bytes by the code that they reach. */
#include "tests/model/decoder.h"

#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const char *why = decoder_run_bytes(bytes, size, false, NULL);
    if (why != NULL) {
        (void)fprintf(stderr, "%s\n", why);
        abort();
    }
    return 0;
}
