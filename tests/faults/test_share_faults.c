/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: while a block passes from one allocator to another, with peers enabled, every driver
 * call of either side fails in turn, before or after its deed. Both sides get a clean status, both
 * heaps are whole, no descriptor and no mapping is left, and the next attempt succeeds.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/numbered.h"
#include "tests/support/two_ends.h"
#include "vmm/driver/driver.h"

#include <sys/socket.h>

#define GRANULE FIXTURE_GRANULE

enum { BLOCK_GRANULES = 5, MOST_CALLS = 500 };

static const char *check_side(ductile_allocator *a, const char *who) {
    char report[256] = "";
    NEED(ductile_check(a, report, sizeof report) == DUCTILE_OK, "%s: %s", who, report);
    return NULL;
}

static const char *check_contents(const two_ends *t, ductile_addr addr, uint8_t expected) {
    uint8_t byte = 0;
    NEED_OK(ductile_virtual_read_back(t->f.gpu, &byte, addr + 4 * GRANULE, 1, t->f.streams[0]));
    NEED(byte == expected, "the bytes are %02x, not %02x", byte, expected);
    return NULL;
}

/* A whole passage; *clean tells whether every step of it succeeded. */
static const char *pass_once(two_ends *t, ductile_addr block, bool *clean, ductile_addr *left) {
    *clean = false;
    *left = 0;
    passed p = two_ends_pass(t, block);
    NEED(p.imported != DUCTILE_ERR_BUSY && p.exported != DUCTILE_ERR_BUSY, "a side never began");
    NEED((p.addr != 0) == (p.imported == DUCTILE_OK), "an address with a failure, or none without");
    if (p.imported == DUCTILE_OK) {
        TRY(check_contents(t, p.addr, 0x5A));
        NEED(ductile_virtual_access(t->f.gpu, p.addr, 1) == 3,
             "the peer does not reach the import");
    }
    bool closed =
        p.imported == DUCTILE_OK && ductile_import_close(t->importer, p.addr) == DUCTILE_OK;
    *left = closed ? 0 : p.addr;
    if (p.exported == DUCTILE_OK) {
        NEED_OK(ductile_unexport(t->f.allocator, block));
    }
    *clean = p.imported == DUCTILE_OK && p.exported == DUCTILE_OK && closed;
    return NULL;
}

/* What the driver kept because it would not undo is no leak of ours. */
static bool may_leave_something(const char *call) {
    static const char *const undoing[] = {"unmap", "phys_release", "address_free"};
    for (size_t i = 0; i < sizeof undoing / sizeof undoing[0]; i++) {
        if (strcmp(call, undoing[i]) == 0) {
            return true;
        }
    }
    return false;
}

static const char *run_with_fault(const ductile_virtual_fault *fault, bool *fired) {
    two_ends t;
    bool clean = false;
    ductile_addr left = 0;
    const fixture_setup setup = {.capacity_bytes = 64 * MIB, .n_devices = 2};
    TRY(two_ends_open(&t, &setup, SOCK_STREAM));
    NEED_OK(ductile_enable_peer(t.f.allocator, 1));
    NEED_OK(ductile_enable_peer(t.importer, 1));
    ductile_addr block = 0;
    NEED_OK(ductile_alloc(t.f.allocator, BLOCK_GRANULES * GRANULE, t.f.streams[0], &block));
    NEED_OK(ductile_virtual_fill(t.f.gpu, block, 0x5A, BLOCK_GRANULES * GRANULE, t.f.streams[0]));
    size_t open = count_descriptors();
    ductile_virtual_state before = fixture_state(&t.f);
    NEED_OK(ductile_virtual_inject(t.f.gpu, fault));
    TRY(pass_once(&t, block, &clean, &left));
    *fired = ductile_virtual_faults_fired(t.f.gpu) > 0;
    NEED(*fired || clean, "nothing failed, and yet it did not work");
    NEED_OK(ductile_virtual_inject(t.f.gpu, NULL));
    if (left != 0 && !may_leave_something(fault->call)) { /* refused, it is still there */
        NEED_OK(ductile_import_close(t.importer, left));
    }
    TRY(check_side(t.f.allocator, "exporter"));
    TRY(check_side(t.importer, "importer"));
    NEED(ductile_trim(t.importer, NULL, 0, NULL) == DUCTILE_OK, "a trim of the importer");
    ductile_virtual_state after = fixture_state(&t.f);
    NEED(count_descriptors() == open, "%zu descriptors, %zu before", count_descriptors(), open);
    NEED(fixture_stats(t.f.allocator).exported_bytes == 0, "something is still exported");
    NEED(may_leave_something(fault->call) ||
             (after.mappings == before.mappings && after.reservations == before.reservations &&
              after.handles == before.handles),
         "%llu mappings, %llu ranges are left",
         (unsigned long long)(after.mappings - before.mappings),
         (unsigned long long)(after.reservations - before.reservations));
    TRY(two_ends_reconnect(&t, SOCK_STREAM));
    TRY(pass_once(&t, block, &clean, &left));
    NEED(clean, "the next passage did not succeed");
    if (may_leave_something(fault->call)) {
        two_ends_abandon(&t);
        return NULL;
    }
    NEED_OK(ductile_free(t.f.allocator, block));
    return two_ends_close(&t);
}

static const char *const calls[] = {"address_reserve", "phys_import",  "map",
                                    "set_access_for",  "phys_release", "phys_export",
                                    "unmap",           "address_free", "event_create",
                                    "event_record",    "event_query",  "capture_status"};
#define N_CALLS (sizeof calls / sizeof calls[0])

/* "Done, then the error" only where what was done is not a name that is never learned. */
static int last_effect(const char *call) {
    return may_leave_something(call) || strcmp(call, "set_access_for") == 0 ? 1 : 0;
}

ParameterizedTestParameters(share_faults, each_call_of_a_passage_may_fail) {
    return numbered(0, N_CALLS);
}

ParameterizedTest(uint64_t *index, share_faults, each_call_of_a_passage_may_fail) {
    static const int codes[] = {DVMM_INVALID_VALUE, DVMM_OUT_OF_MEMORY, DVMM_UNKNOWN};
    const char *call = calls[*index];
    size_t n_fired = 0;
    for (size_t c = 0; c < sizeof codes / sizeof codes[0]; c++) {
        for (int effect = 0; effect <= last_effect(call); effect++) {
            bool fired = true;
            for (uint64_t nth = 1; fired && nth < MOST_CALLS; nth++) {
                const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                                     .call = call,
                                                     .nth = nth,
                                                     .code = codes[c],
                                                     .effect = effect};
                const char *why = run_with_fault(&fault, &fired);
                cr_assert(why == NULL, "call %llu of %s, code %d, effect %d: %s",
                          (unsigned long long)nth, call, codes[c], effect, why);
                n_fired += fired;
            }
            cr_assert_not(fired, "%s: no end", call);
        }
    }
    cr_assert_gt(n_fired, 0, "%s was never called", call);
}

/* ---- Whose fault it is --------------------------------------------------------------------- */

/* The codes of the driver for a descriptor that is none of its own, or for a wrong size. */
Test(share_faults, a_descriptor_that_the_driver_does_not_know_is_the_senders_fault) {
    static const struct {
        int code;
        ductile_status status;
    } cases[] = {{DVMM_INVALID_VALUE, DUCTILE_ERR_BAD_MESSAGE},
                 {DVMM_NOT_SUPPORTED, DUCTILE_ERR_BAD_MESSAGE},
                 {DVMM_INVALID_HANDLE, DUCTILE_ERR_BAD_MESSAGE},
                 {DVMM_OPERATING_SYSTEM, DUCTILE_ERR_BAD_MESSAGE},
                 {DVMM_UNKNOWN, DUCTILE_ERR_BAD_MESSAGE},
                 {DVMM_OUT_OF_MEMORY, DUCTILE_ERR_OUT_OF_MEMORY},
                 {DVMM_ILLEGAL_STATE, DUCTILE_ERR_DRIVER}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        two_ends t;
        ductile_addr block = 0;
        assert_fine(two_ends_open(&t, NULL, SOCK_STREAM));
        assert_ok(ductile_alloc(t.f.allocator, GRANULE, t.f.streams[0], &block));
        const ductile_virtual_fault fault = {
            .struct_size = sizeof fault, .call = "phys_import", .nth = 1, .code = cases[i].code};
        assert_ok(ductile_virtual_inject(t.f.gpu, &fault));
        passed p = two_ends_pass(&t, block);
        assert_ok(ductile_virtual_inject(t.f.gpu, NULL));
        cr_assert_eq(p.imported, cases[i].status, "code %d: %s", cases[i].code,
                     ductile_status_name(p.imported));
        assert_u64(p.addr, 0);
        if (p.exported == DUCTILE_OK) {
            assert_ok(ductile_unexport(t.f.allocator, block));
        }
        assert_ok(ductile_free(t.f.allocator, block));
        assert_fine(two_ends_close(&t));
    }
}

/* ---- Several imports ----------------------------------------------------------------------- */

enum { N_IMPORTS = 3 };

typedef struct imports {
    two_ends t;
    ductile_addr blocks[N_IMPORTS];
    ductile_addr there[N_IMPORTS];
} imports;

static void open_imports(imports *m, ductile_schedule schedule) {
    const fixture_setup setup = {
        .capacity_bytes = 64 * MIB, .schedule = schedule, .n_streams = 2, .n_devices = 2};
    assert_fine(two_ends_open(&m->t, &setup, SOCK_STREAM));
    for (size_t i = 0; i < N_IMPORTS; i++) {
        assert_ok(ductile_alloc(m->t.f.allocator, 2 * GRANULE, m->t.f.streams[0], &m->blocks[i]));
        passed p = two_ends_pass(&m->t, m->blocks[i]);
        assert_ok(p.imported);
        assert_ok(p.exported);
        m->there[i] = p.addr;
    }
}

static void close_exports(imports *m) {
    for (size_t i = 0; i < N_IMPORTS; i++) {
        assert_ok(ductile_unexport(m->t.f.allocator, m->blocks[i]));
        assert_ok(ductile_free(m->t.f.allocator, m->blocks[i]));
    }
}

static void close_imports(imports *m) {
    for (size_t i = 0; i < N_IMPORTS; i++) {
        assert_ok(ductile_import_close(m->t.importer, m->there[i]));
    }
    close_exports(m);
    assert_fine(two_ends_close(&m->t));
}

static void fail_calls(imports *m, const char *call, uint64_t nth, int persistent) {
    const ductile_virtual_fault fault = {.struct_size = sizeof fault,
                                         .call = call,
                                         .nth = nth,
                                         .code = DVMM_UNKNOWN,
                                         .persistent = persistent};
    assert_ok(ductile_virtual_inject(m->t.f.gpu, call != NULL ? &fault : NULL));
}

static void assert_reached(const imports *m, int expected) {
    for (size_t i = 0; i < N_IMPORTS; i++) {
        cr_assert_eq(ductile_virtual_access(m->t.f.gpu, m->there[i], 1), expected, "import %zu", i);
    }
}

/* All of them, or none. */
static void change_peer_or_not(imports *m, ductile_status (*change)(ductile_allocator *, int),
                               int before, int after) {
    bool fired = true;
    for (uint64_t nth = 1; fired; nth++) {
        fail_calls(m, "set_access_for", nth, 0);
        ductile_status status = change(m->t.importer, 1);
        fired = ductile_virtual_faults_fired(m->t.f.gpu) > 0;
        assert_status(status, fired ? DUCTILE_ERR_DRIVER : DUCTILE_OK);
        assert_reached(m, fired ? before : after);
    }
    fail_calls(m, NULL, 0, 0);
}

Test(share_faults, a_peer_reaches_all_imports_or_none) {
    imports m;
    open_imports(&m, DUCTILE_SCHEDULE_EAGER);
    change_peer_or_not(&m, ductile_enable_peer, 0, 3);
    change_peer_or_not(&m, ductile_disable_peer, 3, 0);
    close_imports(&m);
}

/* The first failure is told, the imports are known as before, and go once the driver works again.
 */
Test(share_faults, imports_of_an_ended_stream_go_later_when_it_cannot_be_marked) {
    imports m;
    open_imports(&m, DUCTILE_SCHEDULE_LAZY);
    fail_calls(&m, "event_record", 1, 1);
    assert_status(ductile_stream_done(m.t.importer, m.t.f.streams[0]), DUCTILE_ERR_DRIVER);
    fail_calls(&m, NULL, 0, 0);
    assert_fine(check_side(m.t.importer, "importer"));
    for (size_t i = 0; i < N_IMPORTS; i++) {
        assert_ok(ductile_import_close(m.t.importer, m.there[i]));
    }
    assert_fine(fixture_sync_all(&m.t.f));
    assert_ok(ductile_trim(m.t.importer, NULL, 0, NULL));
    close_exports(&m);
    assert_fine(two_ends_close(&m.t));
}

/* Several that cannot be unmapped at once: destroying says so, and does not stop at the first. */
Test(share_faults, a_destroy_tries_every_import) {
    imports m;
    open_imports(&m, DUCTILE_SCHEDULE_EAGER);
    uint64_t before = ductile_virtual_count(m.t.f.gpu, "unmap");
    fail_calls(&m, "unmap", 1, 1);
    assert_status(ductile_destroy(m.t.importer), DUCTILE_ERR_DRIVER);
    m.t.importer = NULL;
    assert_u64(ductile_virtual_count(m.t.f.gpu, "unmap") - before, N_IMPORTS);
    fail_calls(&m, NULL, 0, 0);
    two_ends_abandon(&m.t);
}

/* Closed while the GPU works on them, they wait; then one poll meets several failures, and the trim
 * says so. */
Test(share_faults, a_poll_tries_every_import_that_may_go) {
    imports m;
    open_imports(&m, DUCTILE_SCHEDULE_LAZY);
    for (size_t i = 0; i < N_IMPORTS; i++) {
        assert_ok(ductile_virtual_fill(m.t.f.gpu, m.there[i], 1, GRANULE, m.t.f.streams[0]));
        assert_ok(ductile_import_close(m.t.importer, m.there[i]));
    }
    assert_fine(fixture_sync_all(&m.t.f));
    uint64_t before = ductile_virtual_count(m.t.f.gpu, "unmap");
    fail_calls(&m, "unmap", 1, 1);
    assert_status(ductile_trim(m.t.importer, NULL, 0, NULL), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_count(m.t.f.gpu, "unmap") - before, N_IMPORTS);
    fail_calls(&m, NULL, 0, 0);
    assert_fine(check_side(m.t.importer, "importer"));
    two_ends_abandon(&m.t);
}
