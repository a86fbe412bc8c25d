/* SPDX-License-Identifier: Apache-2.0 */
/* A program that has never heard of the virtual GPU. Prints what ductile_create said. */
#include <ductile.h>

#include <stdio.h>

int main(void) {
    ductile_allocator *allocator;
    ductile_status status = ductile_create(&allocator, NULL);
    puts(ductile_create_error());
    puts(ductile_status_name(status));
    return status != DUCTILE_OK || ductile_destroy(allocator) != DUCTILE_OK;
}
