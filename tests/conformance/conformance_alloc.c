/* SPDX-License-Identifier: Apache-2.0 */
/* Rows about classic, stream-ordered and host memory, a full device, and threads without a
 * context. */
#include "tests/conformance/conformance_lab.h"

#define ROWS alloc_rows
lab_rows alloc_rows;

/* ---- Memory of other kinds ----------------------------------------------------------------- */

ROW("alloc.free", "cuMemAlloc 1000 bytes, free") {
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc, 1000, &addr));
    note(l, "aligned512=%s", addr % 512 == 0 ? "yes" : "no");
    say(l, CALL(l, mem_free, addr));
}

ROW("alloc.zero", "cuMemAlloc 0 bytes") {
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc, 0, &addr));
    note(l, "address=%s", addr == 0 ? "0" : "some");
}

ROW("alloc.too_large", "cuMemAlloc more than the device has, and a PiB") {
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc, l->total + 1, &addr));
    say(l, CALL(l, mem_alloc, (uint64_t)1 << 50, &addr));
}

ROW("alloc.free_wrong", "free inside, nowhere, 0, right, twice") {
    ductile_addr addr = 0;
    need(l, "mem_alloc", CALL(l, mem_alloc, l->granule, &addr));
    say(l, CALL(l, mem_free, addr + 512));
    say(l, CALL(l, mem_free, 4096));
    say(l, CALL(l, mem_free, 0));
    say(l, CALL(l, mem_free, addr));
    say(l, CALL(l, mem_free, addr));
}

ROW("alloc.free_of_mapping", "cuMemFree of a mapping") {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, mem_free, addr));
    note_access(l, "access", addr);
}

ROW("async.alloc_free", "allocate and free in stream order") {
    ductile_stream stream = new_stream(l);
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc_async, l->granule, stream, &addr));
    say(l, CALL(l, mem_free_async, addr, stream));
    say(l, CALL(l, stream_sync, stream));
}

ROW("async.zero", "allocate 0 bytes in stream order") {
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc_async, 0, new_stream(l), &addr));
}

ROW("async.too_large", "allocate a PiB in stream order") {
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc_async, (uint64_t)1 << 50, new_stream(l), &addr));
}

ROW("async.free_classic", "cuMemFree of stream-ordered memory") {
    ductile_stream stream = new_stream(l);
    ductile_addr addr = 0;
    say(l, CALL(l, mem_alloc_async, l->granule, stream, &addr));
    say(l, CALL(l, stream_sync, stream));
    say(l, CALL(l, mem_free, addr));
}

ROW("async.pool", "what the pool keeps, before and after a trim") {
    ductile_stream stream = new_stream(l);
    ductile_addr addr = 0;
    uint64_t now = 0;
    uint64_t peak = 0;
    need(l, "alloc", CALL(l, mem_alloc_async, 64 * l->granule, stream, &addr));
    need(l, "free", CALL(l, mem_free_async, addr, stream));
    need(l, "sync", CALL(l, stream_sync, stream));
    say(l, CALL(l, async_pool_info, &now, &peak));
    note(l, "kept=%s", now >= 64 * l->granule ? "yes" : "no");
    say(l, CALL(l, async_pool_trim, 0));
    say(l, CALL(l, async_pool_info, &now, &peak));
    note(l, "after trim=%s peak=%s", now == 0 ? "0" : "some",
         peak >= 64 * l->granule ? "kept" : "lost");
}

ROW("host.free_wrong", "free host memory that is not page-locked") {
    uint64_t word = 0;
    say(l, CALL(l, host_free, &word));
}

/* ---- No context ---------------------------------------------------------------------------- */

static void use_memory(void *argument) {
    lab *l = argument;
    const dvmm_phys_props plain = {0};
    ductile_addr addr = 0;
    dvmm_phys phys = 0;
    say(l, CALL(l, address_reserve, l->granule, 0, 0, &addr));
    say(l, CALL(l, phys_create, l->granule, &plain, &phys));
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    say(l, CALL(l, set_access, addr, l->granule, DVMM_ACCESS_RW));
    note_access(l, "access", addr);
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, phys_release, phys));
    say(l, CALL(l, address_free, addr, l->granule));
}

ROW("memory.in_new_thread", "all mapping calls without a context") {
    on_other_thread(l, use_memory, l);
}

/* Every call that needs a context brings its own. */
static void use_rest(void *argument) {
    lab *l = argument;
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    ductile_addr addr = 0;
    void *host = NULL;
    say(l, CALL(l, mem_info, &free_bytes, &total_bytes));
    say(l, CALL(l, mem_alloc, l->granule, &addr));
    say(l, CALL(l, fill, addr, 1, l->granule, NULL));
    say(l, CALL(l, stream_sync, NULL));
    say(l, CALL(l, mem_free, addr));
    say(l, CALL(l, host_alloc, 4096, &host));
    say(l, CALL(l, host_free, host));
    say(l, l->ops->context_sync(l->ctx));
}

ROW("rest.in_new_thread", "calls that need a context, without one") {
    on_other_thread(l, use_rest, l);
}

/* ---- Out of memory ------------------------------------------------------------------------- */

enum { MOST_HANDLES = 4096 };

/* Creates until the driver refuses; the refusal is said. */
static size_t create_all(lab *l, uint64_t size, dvmm_phys *handles, size_t n) {
    const dvmm_phys_props plain = {0};
    for (; n < MOST_HANDLES; n++) {
        int code = CALL(l, phys_create, size, &plain, &handles[n]);
        if (code != DVMM_SUCCESS) {
            say(l, code);
            return n;
        }
    }
    note(l, "never refused");
    return n;
}

static bool can_create(lab *l, uint64_t size) {
    const dvmm_phys_props plain = {0};
    dvmm_phys phys = 0;
    if (CALL(l, phys_create, size, &plain, &phys) != DVMM_SUCCESS) {
        return false;
    }
    need(l, "release", CALL(l, phys_release, phys));
    return true;
}

/* A device filled to the last granule: what creating, mapping and classic allocation say, and
 * whether one release makes room again. */
ROW_IN_OWN_PROCESS("oom.all", "fill the device, map, allocate, release all") {
    static dvmm_phys handles[MOST_HANDLES];
    uint64_t large = 512 * l->granule;
    ductile_addr addr = reserve(l, 512);
    size_t n = create_all(l, large, handles, 0);
    n = create_all(l, l->granule, handles, n);
    if (n > 0) {
        say(l, CALL(l, map, addr, large, 0, handles[0]));
        say(l, CALL(l, set_access, addr, large, DVMM_ACCESS_RW));
        say(l, CALL(l, unmap, addr, large));
    }
    ductile_addr classic = 0;
    say(l, CALL(l, mem_alloc, large, &classic));
    for (size_t i = n; i > 0; i--) {
        need(l, "release", CALL(l, phys_release, handles[i - 1]));
    }
    note(l, "room again=%s", can_create(l, large) ? "yes" : "no");
}
