/* SPDX-License-Identifier: Apache-2.0 */
/* Rows about addresses, handles, mappings and access: what is refused, and what stays after. */
#include "tests/conformance/conformance_lab.h"

#define ROWS memory_rows
lab_rows memory_rows;

/* ---- Creating handles ---------------------------------------------------------------------- */

static void try_create(lab *l, uint64_t size, uint32_t handle_types, bool rdma) {
    const dvmm_phys_props props = {.handle_types = handle_types, .rdma = rdma};
    dvmm_phys phys = 0;
    if (say(l, CALL(l, phys_create, size, &props, &phys)) == DVMM_SUCCESS) {
        say(l, CALL(l, phys_release, phys));
    }
}

ROW_OF("create.one", "create a granule, release it", try_create(l, l->granule, 0, false))
ROW_OF("create.zero", "create 0 bytes", try_create(l, 0, 0, false))
ROW_OF("create.half", "create half a granule", try_create(l, l->granule / 2, 0, false))
ROW_OF("create.one_byte_more", "create a granule and a byte",
       try_create(l, l->granule + 1, 0, false))
ROW_OF("create.one_and_a_half", "create a granule and a half",
       try_create(l, l->granule + l->granule / 2, 0, false))
ROW_OF("create.too_large", "create a granule more than the device has",
       try_create(l, (l->total / l->granule + 1) * l->granule, 0, false))
ROW_OF("create.absurd", "create a PiB", try_create(l, (uint64_t)1 << 50, 0, false))
ROW_OF("create.fd", "create exportable as file descriptor, release",
       try_create(l, l->granule, 1, false))
ROW_OF("create.fabric", "create exportable to the fabric, release",
       try_create(l, l->granule, 8, false))

ROW("create.rdma", "create for RDMA, map, access, unmap, release") {
    const dvmm_phys_props props = {.rdma = true};
    dvmm_phys phys = 0;
    if (say(l, CALL(l, phys_create, l->granule, &props, &phys)) != DVMM_SUCCESS) {
        return;
    }
    ductile_addr addr = reserve(l, 1);
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    say(l, CALL(l, set_access, addr, l->granule, DVMM_ACCESS_RW));
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, phys_release, phys));
}

/* ---- Reserving and freeing addresses ------------------------------------------------------- */

static ductile_addr try_reserve(lab *l, uint64_t size, uint64_t alignment, ductile_addr hint) {
    ductile_addr addr = 0;
    if (say(l, CALL(l, address_reserve, size, alignment, hint, &addr)) == DVMM_SUCCESS) {
        need(l, "free", CALL(l, address_free, addr, size));
    }
    return addr;
}

ROW("reserve.one", "reserve a granule") {
    ductile_addr addr = try_reserve(l, l->granule, 0, 0);
    note(l, "aligned=%s", addr % l->granule == 0 ? "yes" : "no");
}

ROW_OF("reserve.zero", "reserve 0 bytes", (void)try_reserve(l, 0, 0, 0))
ROW_OF("reserve.one_byte", "reserve a byte", (void)try_reserve(l, 1, 0, 0))
ROW_OF("reserve.4096", "reserve a host page", (void)try_reserve(l, 4096, 0, 0))
ROW_OF("reserve.one_and_a_half", "reserve a granule and a half",
       (void)try_reserve(l, l->granule + l->granule / 2, 0, 0))
ROW_OF("reserve.align_3", "reserve, alignment 3", (void)try_reserve(l, l->granule, 3, 0))

ROW("reserve.align_4_granules", "reserve, alignment 4 granules") {
    ductile_addr addr = try_reserve(l, l->granule, 4 * l->granule, 0);
    note(l, "aligned=%s", addr % (4 * l->granule) == 0 ? "yes" : "no");
}

ROW("reserve.huge", "reserve 64 TiB") {
    ductile_addr addr = try_reserve(l, (uint64_t)64 << 40, 0, 0);
    note(l, "got=%s", addr != 0 ? "yes" : "no");
}

ROW_OF("reserve.absurd", "reserve 1 EiB", (void)try_reserve(l, (uint64_t)1 << 60, 0, 0))

ROW("reserve.hint_free", "reserve at a free address") {
    ductile_addr base = try_reserve(l, 8 * l->granule, 0, 0);
    ductile_addr again = try_reserve(l, l->granule, 0, base + l->granule);
    note(l, "taken=%s", again == base + l->granule ? "yes" : "no");
}

ROW("reserve.hint_unaligned", "reserve at half a granule") {
    ductile_addr base = try_reserve(l, 8 * l->granule, 0, 0);
    ductile_addr again = try_reserve(l, l->granule, 0, base + l->granule / 2);
    note(l, "taken=%s", again == base + l->granule / 2 ? "yes" : "no");
}

ROW("reserve.hint_in_use", "reserve where something is reserved") {
    ductile_addr base = reserve(l, 8);
    ductile_addr again = try_reserve(l, l->granule, 0, base + l->granule);
    note(l, "taken=%s", again == base + l->granule ? "yes" : "no");
}

ROW("free.while_mapped", "free a range with a mapping in it") {
    ductile_addr addr = mapped(l, 1, NULL);
    if (say(l, CALL(l, address_free, addr, l->granule)) == DVMM_SUCCESS) {
        forget_range(l, addr);
    }
    note_access(l, "access", addr);
}

static void try_free(lab *l, ductile_addr addr, int64_t shift_granules, uint64_t n_granules) {
    ductile_addr at = addr + (uint64_t)shift_granules * l->granule;
    if (say(l, CALL(l, address_free, at, n_granules * l->granule)) == DVMM_SUCCESS) {
        forget_range(l, addr);
    }
}

ROW_OF("free.too_short", "free half of a range", try_free(l, reserve(l, 4), 0, 2))
ROW_OF("free.too_long", "free twice the size of a range", try_free(l, reserve(l, 4), 0, 8))
ROW_OF("free.inside", "free from inside a range", try_free(l, reserve(l, 4), 1, 3))

ROW("free.twice", "free a range twice") {
    ductile_addr addr = reserve(l, 4);
    try_free(l, addr, 0, 4);
    try_free(l, addr, 0, 4);
}

/* ---- Mapping ------------------------------------------------------------------------------- */

/* The map under test; when it succeeds, says at which granules it can be seen. */
static void try_map(lab *l, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys) {
    if (say(l, CALL(l, map, addr, size, offset, phys)) == DVMM_SUCCESS) {
        note_access(l, "access", addr);
    }
}

ROW("map.plain", "map a handle, ask access there and beside") {
    ductile_addr addr = reserve(l, 2);
    try_map(l, addr, l->granule, 0, create(l, 1));
    note_access(l, "beside", addr + l->granule);
}

ROW("map.over_mapped", "map over a mapping") {
    ductile_addr addr = mapped(l, 1, NULL);
    try_map(l, addr, l->granule, 0, create(l, 1));
    note_access(l, "first", addr);
}

ROW("map.overlapping", "map two granules over one mapped and one free") {
    ductile_addr addr = mapped_row(l, 1, 3);
    dvmm_phys two = create(l, 2);
    say(l, CALL(l, map, addr, 2 * l->granule, 0, two));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

ROW("map.outside", "map where nothing is reserved") {
    ductile_addr addr = reserve(l, 1);
    need(l, "free", CALL(l, address_free, addr, l->granule));
    forget_range(l, addr);
    try_map(l, addr, l->granule, 0, create(l, 1));
}

ROW("map.past_the_end", "map past the end of a range") {
    ductile_addr middle = reserve(l, 2) + l->granule;
    try_map(l, middle, 2 * l->granule, 0, create(l, 2));
    (void)CALL(l, unmap, middle, 2 * l->granule); /* or it stays in the way of the next rows */
}

/* Two reservations side by side stay two. */
ROW("map.across_two", "map across two ranges side by side") {
    ductile_addr base = 0;
    need(l, "reserve", CALL(l, address_reserve, 4 * l->granule, 0, 0, &base));
    need(l, "free", CALL(l, address_free, base, 4 * l->granule));
    ductile_addr halves[2] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        ductile_addr hint = base + i * 2 * l->granule;
        need(l, "reserve", CALL(l, address_reserve, 2 * l->granule, 0, hint, &halves[i]));
    }
    if (halves[0] == base && halves[1] == base + 2 * l->granule) {
        ductile_addr middle = base + l->granule;
        if (say(l, CALL(l, map, middle, 2 * l->granule, 0, create(l, 2))) == DVMM_SUCCESS) {
            need(l, "unmap", CALL(l, unmap, middle, 2 * l->granule));
        }
    } else {
        note(l, "not side by side");
    }
    for (size_t i = 0; i < 2; i++) {
        (void)CALL(l, address_free, halves[i], 2 * l->granule);
    }
}

ROW_OF("map.offset", "map the second granule of a handle",
       try_map(l, reserve(l, 2), l->granule, l->granule, create(l, 2)))

ROW("map.less_than_handle", "map the first granule of a handle of two") {
    ductile_addr addr = reserve(l, 2);
    try_map(l, addr, l->granule, 0, create(l, 2));
}

ROW_OF("map.more_than_handle", "map two granules of a handle of one",
       try_map(l, reserve(l, 2), 2 * l->granule, 0, create(l, 1)))
ROW_OF("map.unaligned", "map at an odd address",
       try_map(l, reserve(l, 2) + 4096, l->granule, 0, create(l, 1)))
ROW_OF("map.odd_size", "map an odd size",
       try_map(l, reserve(l, 2), l->granule + 4096, 0, create(l, 1)))
ROW_OF("map.zero", "map 0 bytes", try_map(l, reserve(l, 2), 0, 0, create(l, 1)))

ROW("map.alias", "map a handle twice, access, unmap the first") {
    dvmm_phys phys;
    ductile_addr first = mapped(l, 1, &phys);
    ductile_addr second = reserve(l, 1);
    say(l, CALL(l, map, second, l->granule, 0, phys));
    note_access(l, "first", first);
    note_access(l, "second", second);
    say(l, CALL(l, set_access, second, l->granule, DVMM_ACCESS_RW));
    say(l, CALL(l, unmap, first, l->granule));
    note_access(l, "first", first);
    note_access(l, "second", second);
}

ROW("map.alias_same_range", "map a handle twice side by side") {
    ductile_addr addr = reserve(l, 2);
    dvmm_phys phys = create(l, 1);
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    say(l, CALL(l, map, addr + l->granule, l->granule, 0, phys));
}

ROW("map.again", "unmap, map again at the same address") {
    dvmm_phys phys;
    ductile_addr addr = mapped(l, 1, &phys);
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    note_access(l, "access", addr);
}

/* ---- Unmapping ----------------------------------------------------------------------------- */

ROW("unmap.half", "unmap the first half of a mapping") {
    ductile_addr addr = mapped(l, 2, NULL);
    say(l, CALL(l, unmap, addr, l->granule));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

ROW("unmap.upper_half", "unmap the second half of a mapping") {
    ductile_addr addr = mapped(l, 2, NULL);
    say(l, CALL(l, unmap, addr + l->granule, l->granule));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

ROW("unmap.unaligned", "unmap half a granule") {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, unmap, addr, l->granule / 2));
    note_access(l, "access", addr);
}

ROW("unmap.two", "unmap two mappings at once") {
    ductile_addr addr = mapped_row(l, 2, 0);
    say(l, CALL(l, unmap, addr, 2 * l->granule));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

/* One whole mapping, then half of one: is the whole one gone after the failure? */
ROW("unmap.whole_and_half", "unmap a mapping and half of the next") {
    ductile_addr addr = reserve(l, 3);
    map(l, addr, 1, create(l, 1));
    map(l, addr + l->granule, 2, create(l, 2));
    open_access(l, addr, 3);
    say(l, CALL(l, unmap, addr, 2 * l->granule));
    note_access(l, "whole", addr);
    note_access(l, "cut", addr + l->granule);
}

ROW("unmap.with_hole", "unmap mapping, hole, mapping") {
    ductile_addr addr = reserve(l, 3);
    map(l, addr, 1, create(l, 1));
    map(l, addr + 2 * l->granule, 1, create(l, 1));
    say(l, CALL(l, unmap, addr, 3 * l->granule));
    note_access(l, "first", addr);
    note_access(l, "last", addr + 2 * l->granule);
}

ROW("unmap.partly_unmapped", "unmap a mapping and a hole") {
    ductile_addr addr = mapped_row(l, 1, 1);
    say(l, CALL(l, unmap, addr, 2 * l->granule));
    note_access(l, "first", addr);
}

ROW_OF("unmap.unmapped", "unmap what is reserved only",
       say(l, CALL(l, unmap, reserve(l, 1), l->granule)))

ROW("unmap.twice", "unmap twice") {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, unmap, addr, l->granule));
}

ROW("unmap.outside", "unmap where nothing is reserved") {
    ductile_addr addr = reserve(l, 1);
    need(l, "free", CALL(l, address_free, addr, l->granule));
    forget_range(l, addr);
    say(l, CALL(l, unmap, addr, l->granule));
}

ROW("unmap.zero", "unmap 0 bytes") {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, unmap, addr, 0));
    note_access(l, "access", addr);
}

/* ---- Access -------------------------------------------------------------------------------- */

static void try_access(lab *l, ductile_addr addr, uint64_t size, int access) {
    say(l, CALL(l, set_access, addr, size, (dvmm_access)access));
}

ROW("access.half", "open half of a mapping") {
    ductile_addr addr = reserve(l, 2);
    map(l, addr, 2, create(l, 2));
    try_access(l, addr, l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

ROW("access.two", "open two mappings at once") {
    ductile_addr addr = reserve(l, 2);
    map(l, addr, 1, create(l, 1));
    map(l, addr + l->granule, 1, create(l, 1));
    try_access(l, addr, 2 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

ROW("access.with_hole", "open mapping, hole, mapping") {
    ductile_addr addr = reserve(l, 3);
    map(l, addr, 1, create(l, 1));
    map(l, addr + 2 * l->granule, 1, create(l, 1));
    try_access(l, addr, 3 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "last", addr + 2 * l->granule);
}

ROW("access.partly_unmapped", "open a mapping and a hole") {
    ductile_addr addr = reserve(l, 2);
    map(l, addr, 1, create(l, 1));
    try_access(l, addr, 2 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
}

ROW_OF("access.unmapped", "open what is reserved only",
       try_access(l, reserve(l, 1), l->granule, DVMM_ACCESS_RW))

ROW("access.zero_size", "set access on 0 bytes") {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, 0, DVMM_ACCESS_READ);
    note_access(l, "access", addr);
}

ROW("access.unaligned", "set access from an odd address") {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr + 4096, l->granule - 4096, DVMM_ACCESS_READ);
    note_access(l, "access", addr);
}

ROW("access.bad_flag", "set access 2, which does not exist") {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, l->granule, 2);
    note_access(l, "access", addr);
}

ROW("access.to_read", "narrow access to reading") {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, l->granule, DVMM_ACCESS_READ);
    note_access(l, "access", addr);
}

ROW("access.to_none", "take access away, give it again") {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, l->granule, DVMM_ACCESS_NONE);
    note_access(l, "access", addr);
    try_access(l, addr, l->granule, DVMM_ACCESS_RW);
    note_access(l, "again", addr);
}

ROW("access.twice", "set access per mapping, then over both") {
    ductile_addr addr = mapped_row(l, 2, 0);
    try_access(l, addr, l->granule, DVMM_ACCESS_READ);
    try_access(l, addr, 2 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

ROW("access.asked_inside", "ask access inside a mapping") {
    ductile_addr addr = mapped(l, 1, NULL);
    note_access(l, "inside", addr + l->granule / 2 + 1);
}

ROW("access.asked_unmapped", "ask access of a hole and of nowhere") {
    note_access(l, "reserved", reserve(l, 1));
    note_access(l, "nowhere", 4096);
}

/* ---- Releasing ----------------------------------------------------------------------------- */

/* The memory stays usable through its mapping, and its contents with it. */
ROW("release.while_mapped", "release a mapped handle, fill, read") {
    dvmm_phys phys;
    ductile_addr addr = mapped(l, 1, &phys);
    say(l, CALL(l, phys_release, phys));
    forget_handle(l, phys);
    ductile_stream stream = new_stream(l);
    say(l, CALL(l, fill, addr, 0x5A, l->granule, stream));
    uint8_t seen = 0;
    say(l, CALL(l, read_back, &seen, addr + 4097, 1, stream));
    note(l, "byte=%02x", seen);
    note_access(l, "access", addr);
}
