/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program, which sees the public headers alone: one block on a virtual GPU. */
#include <ductile.h>
#include <ductile_virtual.h>

static int use(ductile_allocator *allocator) {
    ductile_addr address;
    if (ductile_alloc(allocator, 1000, NULL, &address) != DUCTILE_OK) {
        return 1;
    }
    return ductile_free(allocator, address) == DUCTILE_OK ? 0 : 1;
}

int main(void) {
    ductile_virtual_gpu *gpu;
    ductile_allocator *allocator;
    ductile_options options;
    ductile_options_init(&options);
    if (ductile_virtual_create(&gpu, NULL) != DUCTILE_OK) {
        return 1;
    }
    options.driver = DUCTILE_DRIVER_VIRTUAL;
    options.virtual_gpu = gpu;
    if (ductile_create(&allocator, &options) != DUCTILE_OK) {
        return 1;
    }
    int failed = use(allocator);
    failed |= ductile_destroy(allocator) != DUCTILE_OK;
    ductile_virtual_destroy(gpu);
    return failed;
}
