/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows about mistakes: using memory that is not there, releasing twice. On hardware some of them
 * end the context or the process, so each runs in a process of its own.
 */
#include "tests/conformance/conformance_lab.h"

#define ROWS fault_rows
lab_rows fault_rows;

/* What a device says after a mistake: is it lost, and which calls notice? Codes, in order:
 * stream sync, event query, fill of good memory, create, map, set access, unmap, release, free. */
static void say_aftermath(lab *l, ductile_stream stream, dvmm_event recorded) {
    const dvmm_phys_props plain = {0};
    ductile_addr addr = 0;
    dvmm_phys phys = 0;
    need(l, "reserve", CALL(l, address_reserve, l->granule, 0, 0, &addr));
    note(l, "after:");
    say(l, CALL(l, stream_sync, stream));
    say(l, CALL(l, event_query, recorded));
    say(l, CALL(l, phys_create, l->granule, &plain, &phys));
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    say(l, CALL(l, set_access, addr, l->granule, DVMM_ACCESS_RW));
    note_access(l, "access", addr);
    say(l, CALL(l, fill, addr, 1, l->granule, stream));
    say(l, CALL(l, stream_sync, stream));
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, phys_release, phys));
    say(l, CALL(l, address_free, addr, l->granule));
}

/* One operation on a span that must not be used, then the aftermath. */
typedef enum misuse { MISUSE_FILL, MISUSE_COPY_FROM, MISUSE_UPLOAD, MISUSE_READ_BACK } misuse;

static void use_badly(lab *l, misuse how, ductile_addr bad, uint64_t size) {
    ductile_stream stream = new_stream(l);
    dvmm_event event = new_event(l);
    ductile_addr good = mapped(l, 1, NULL);
    uint8_t bytes[64] = {0};
    need(l, "record", CALL(l, event_record, event, stream));
    switch (how) {
    case MISUSE_FILL:
        say(l, CALL(l, fill, bad, 1, size, stream));
        break;
    case MISUSE_COPY_FROM:
        say(l, CALL(l, copy, good, bad, size, stream));
        break;
    case MISUSE_UPLOAD:
        say(l, CALL(l, upload, bad, bytes, sizeof(bytes), stream));
        break;
    case MISUSE_READ_BACK:
        say(l, CALL(l, read_back, bytes, bad, sizeof(bytes), stream));
        break;
    }
    say_aftermath(l, stream, event);
}

static void misuse_unmapped(lab *l, const conformance_row *row) {
    use_badly(l, (misuse)row->subject, reserve(l, 1), l->granule);
}

ADD_ROW("misuse.fill_unmapped", "fill a hole", misuse_unmapped, ROW_ALONE, MISUSE_FILL, 0)
ADD_ROW("misuse.copy_unmapped", "copy from a hole", misuse_unmapped, ROW_ALONE, MISUSE_COPY_FROM, 0)
ADD_ROW("misuse.upload_unmapped", "upload to a hole", misuse_unmapped, ROW_ALONE, MISUSE_UPLOAD, 0)
ADD_ROW("misuse.read_back_unmapped", "read a hole", misuse_unmapped, ROW_ALONE, MISUSE_READ_BACK, 0)

static void misuse_closed(lab *l, const conformance_row *row) {
    ductile_addr addr = reserve(l, 1);
    map(l, addr, 1, create(l, 1));
    use_badly(l, (misuse)row->subject, addr, l->granule);
}

ADD_ROW("misuse.fill_closed", "fill a mapping without access", misuse_closed, ROW_ALONE,
        MISUSE_FILL, 0)
ADD_ROW("misuse.copy_closed", "copy from a mapping without access", misuse_closed, ROW_ALONE,
        MISUSE_COPY_FROM, 0)

ROW_IN_OWN_PROCESS("misuse.fill_read_only", "fill a mapping for reading") {
    ductile_addr addr = mapped(l, 1, NULL);
    need(l, "narrow", CALL(l, set_access, addr, l->granule, DVMM_ACCESS_READ));
    use_badly(l, MISUSE_FILL, addr, l->granule);
}

ROW_IN_OWN_PROCESS("misuse.fill_past_the_end", "fill a mapping and a hole") {
    ductile_addr addr = mapped_row(l, 1, 1);
    use_badly(l, MISUSE_FILL, addr, 2 * l->granule);
}

ROW_IN_OWN_PROCESS("misuse.fill_nowhere", "fill what is not reserved") {
    use_badly(l, MISUSE_FILL, 4096, 4096);
}

/* The unmap is ordered by the host: it succeeds, and the work behind it faults. */
ROW_IN_OWN_PROCESS("misuse.unmap_under_work", "unmap while a fill waits to run") {
    ductile_addr addr = mapped(l, 1, NULL);
    ductile_stream stream = new_stream(l);
    dvmm_event event = new_event(l);
    uint64_t *word = new_host_word(l);
    need(l, "wait_value", CALL(l, stream_wait_value, stream, word, 1));
    need(l, "fill", CALL(l, fill, addr, 1, l->granule, stream));
    need(l, "record", CALL(l, event_record, event, stream));
    say(l, CALL(l, unmap, addr, l->granule));
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    say_aftermath(l, stream, event);
}

ROW_IN_OWN_PROCESS("misuse.release_twice", "release a handle twice") {
    dvmm_phys phys = create(l, 1);
    forget_handle(l, phys);
    say(l, CALL(l, phys_release, phys));
    say(l, CALL(l, phys_release, phys));
}

ROW_IN_OWN_PROCESS("misuse.release_nothing", "release handle 0") {
    say(l, CALL(l, phys_release, 0));
}

ROW_IN_OWN_PROCESS("misuse.map_nothing", "map handle 0") {
    say(l, CALL(l, map, reserve(l, 1), l->granule, 0, 0));
}

ROW_IN_OWN_PROCESS("misuse.map_released", "map a released handle") {
    dvmm_phys phys = create(l, 1);
    ductile_addr addr = reserve(l, 1);
    forget_handle(l, phys);
    need(l, "release", CALL(l, phys_release, phys));
    say(l, CALL(l, map, addr, l->granule, 0, phys));
}

/* Released but alive through its mapping: may it be mapped once more? */
ROW_IN_OWN_PROCESS("misuse.map_released_but_mapped",
                   "map a released handle that is mapped elsewhere") {
    dvmm_phys phys;
    (void)mapped(l, 1, &phys);
    ductile_addr second = reserve(l, 1);
    forget_handle(l, phys);
    need(l, "release", CALL(l, phys_release, phys));
    say(l, CALL(l, map, second, l->granule, 0, phys));
}
