/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a call asks for, a failure answers with nothing: no caller meets what a driver left. */
#include "bench/driver/bench_calls.h"
#include "tests/support/device_fixture.h"

#include <fcntl.h>
#include <unistd.h>

static device_fixture r;

static void open_device(void) {
    device_open_devices(&r, 2);
}

static void close_device(void) {
    device_recover(&r);
    device_close(&r);
}

TestSuite(driver_outputs, .init = open_device, .fini = close_device);

#define assert_asked(call)                                                                         \
    do {                                                                                           \
        device_fail(&r, NULL, 1, DVMM_INVALID_VALUE);                                              \
        assert_status(call, DUCTILE_ERR_DRIVER);                                                   \
    } while (0)

Test(driver_outputs, numbers_are_zero) {
    uint64_t first = 9;
    uint64_t second = 9;
    assert_asked(dvmm_mem_info(r.d, &first, &second));
    assert_u64(first + second, 0);
    first = second = 9;
    assert_asked(bench_async_pool_info(r.d, &first, &second));
    assert_u64(first + second, 0);
}

Test(driver_outputs, access_is_none) {
    dvmm_access access = DVMM_ACCESS_RW;
    assert_asked(dvmm_get_access(r.d, r.granule, &access));
    assert_u64(access, DVMM_ACCESS_NONE);
    access = DVMM_ACCESS_RW;
    assert_asked(bench_get_access_for(r.d, r.granule, 1, &access));
    assert_u64(access, DVMM_ACCESS_NONE);
    bool can = true;
    assert_asked(dvmm_can_access_peer(r.d, 1, &can));
    cr_assert_not(can);
}

Test(driver_outputs, what_is_made_is_nothing) {
    const dvmm_phys_props props = {0};
    ductile_addr addr = 1;
    dvmm_phys phys = 1;
    ductile_stream stream = (ductile_stream)&r;
    dvmm_event event = (dvmm_event)&r;
    assert_asked(dvmm_address_reserve(r.d, r.granule, &addr));
    assert_asked(dvmm_phys_create(r.d, r.granule, &props, &phys));
    assert_asked(dvmm_stream_create(r.d, &stream));
    assert_asked(dvmm_event_create(r.d, &event));
    assert_u64(addr, 0);
    assert_u64(phys, 0);
    cr_assert_null(stream);
    cr_assert_null(event);
}

/* A second time may meet the number in other hands. */
Test(driver_outputs, a_descriptor_is_closed_once) {
    dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = open("/dev/null", O_RDONLY)};
    const int number = shared.fd;
    cr_assert_geq(number, 0);
    dvmm_shared_drop(&shared);
    cr_assert_eq(fcntl(number, F_GETFD), -1);
    cr_assert_lt(shared.fd, 0, "it names descriptor %d", shared.fd);
}
