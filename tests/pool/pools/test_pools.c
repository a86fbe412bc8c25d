/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that name no pool and no kind. What pools are for is in tests/scenarios/pools.txt. */
#include "tests/support/one_fixture.h"

Test(pools, neither_a_kind_nor_a_name_is_taken_that_is_none) {
    const ductile_pool_id none = {0, 0}, one = {1, 0};
    open_fixture(NULL);
    assert_ok(ductile_pool_retain(f.allocator, one));
    assert_status(ductile_pool_set_kind(f.allocator, one, (ductile_pool_kind)2),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_pool_release(f.allocator, one));
    assert_status(ductile_pool_retain(f.allocator, none), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(ductile_pool_begin(f.allocator, none, NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    close_audited();
}
