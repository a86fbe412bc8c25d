/* SPDX-License-Identifier: Apache-2.0 */
/* What the process has of its address space while pages of the host are reserved. What lies in them
 * is in tests/vmm/parts.txt, "The host arena". */
#include "tests/support/expect.h"
#include "vmm/host_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_PAGES = 3 };
#define SIZE (N_PAGES * DVMM_HUGE_PAGE)

/* Does the address belong to the process? */
static bool is_reserved(const uint8_t *at) {
    unsigned char is_there;
    return mincore((void *)(uintptr_t)at, 1, &is_there) == 0 || errno != ENOMEM;
}

/* In bytes. Read without memory of the heap, which would count. */
static uint64_t address_space(void) {
    char text[64] = "";
    int file = open("/proc/self/statm", O_RDONLY);
    cr_assert_gt(read(file, text, sizeof text - 1), 0);
    (void)close(file);
    return strtoull(text, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
}

Test(host_pages, a_reservation_begins_at_a_huge_page_and_holds_no_more_than_it_says) {
    uint64_t before = address_space();
    uint8_t *at = dvmm_host_pages_reserve(SIZE);
    cr_assert_not_null(at);
    assert_u64((uintptr_t)at % DVMM_HUGE_PAGE, 0);
    assert_u64(address_space(), before + SIZE);
    cr_assert(is_reserved(at) && is_reserved(at + SIZE - 1));
    cr_assert_not(is_reserved(at + SIZE), "what the alignment needed is still there");
    dvmm_host_pages_unreserve(at, SIZE);
    assert_u64(address_space(), before);
}
