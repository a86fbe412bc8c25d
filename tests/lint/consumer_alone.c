/* SPDX-License-Identifier: Apache-2.0 */
/* A program that has never heard of the virtual GPU. Prints what ductile_create said. */
#include <ductile.h>

#include <stdio.h>

static void print(void *user, ductile_log_level level, const char *message) {
    (void)user, (void)level;
    puts(message);
}

int main(void) {
    ductile_allocator *allocator;
    ductile_options options;
    ductile_options_init(&options);
    options.log = print;
    ductile_status status = ductile_create(&allocator, &options);
    puts(ductile_status_name(status));
    return status != DUCTILE_OK || ductile_destroy(allocator) != DUCTILE_OK;
}
