/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: adapter STATIC_LIBRARY|SHARED_LIBRARY
 *
 * An adapter in a process with libductile_preload.so and the fake driver. Where both use one shared
 * libductile, the allocator that it is given has the memory of the interposed calls; an adapter
 * with an archive of its own is given none. Exit status: 0, or 1 and a line.
 */
#include "../abi.h"

#include <ductile_process.h>
#include <stdio.h>
#include <string.h>

#pragma weak ductile_process_open

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                  \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static ductile_allocator *open_shared(void) {
    ductile_status (*create)(ductile_allocator **, const ductile_options *) = ductile_create;
    const void *ours;
    memcpy(&ours, &create, sizeof(ours));
    return ductile_process_open(ours, 0, NULL);
}

int main(int n, char **words) {
    CHECK(n == 2 && ductile_process_open != NULL);
    ductile_allocator *a = open_shared();
    if (strcmp(words[1], "STATIC_LIBRARY") == 0) {
        CHECK(a == NULL);
        return 0;
    }
    ductile_addr of_driver = 0, of_adapter = 0;
    ductile_block_info block = {.struct_size = sizeof(block)};
    CHECK(a != NULL && open_shared() == a);
    CHECK(cuMemAlloc_v2(&of_driver, 1 << 20) == CU_SUCCESS);
    CHECK(ductile_query_block(a, of_driver, &block) == DUCTILE_OK);
    CHECK(ductile_alloc(a, 1 << 20, NULL, &of_adapter) == DUCTILE_OK);
    CHECK(cuMemFree_v2(of_adapter) == CU_SUCCESS);
    CHECK(ductile_free(a, of_driver) == DUCTILE_OK);
    return 0;
}
