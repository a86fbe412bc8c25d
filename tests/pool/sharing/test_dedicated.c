/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of dedicated blocks. What they are for is in tests/scenarios/dedicated.txt. */
#include "tests/support/one_fixture.h"

#include <ductile_share.h>

Test(dedicated, arguments_are_those_of_an_allocation) {
    open_fixture(&(fixture_setup){.capacity_bytes = 32 * MIB});
    ductile_addr addr = 1;
    assert_ok(ductile_alloc_dedicated(f.allocator, 0, f.streams[0], &addr));
    cr_assert_eq(addr, 0);
    assert_status(ductile_alloc_dedicated(NULL, 1, f.streams[0], &addr),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_alloc_dedicated(f.allocator, 1, f.streams[0], NULL),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_alloc_dedicated(f.allocator, SIZE_MAX, f.streams[0], &addr),
                  DUCTILE_ERR_OUT_OF_MEMORY);
    close_audited();
}
