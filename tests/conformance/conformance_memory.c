/* SPDX-License-Identifier: Apache-2.0 */
/* Rows about addresses, handles, mappings and access: what is refused, and what stays after. */
#include "tests/conformance/conformance_lab.h"

/* ---- Creating handles ---------------------------------------------------------------------- */

static void try_create(lab *l, uint64_t size, uint32_t handle_types, bool rdma) {
    const dvmm_phys_props props = {.handle_types = handle_types, .rdma = rdma};
    dvmm_phys phys = 0;
    if (say(l, CALL(l, phys_create, size, &props, &phys)) == DVMM_SUCCESS) {
        say(l, CALL(l, phys_release, phys));
    }
}

EXPERIMENT_OF(create_one, try_create(l, l->granule, 0, false))
EXPERIMENT_OF(create_zero, try_create(l, 0, 0, false))
EXPERIMENT_OF(create_half, try_create(l, l->granule / 2, 0, false))
EXPERIMENT_OF(create_one_byte_more, try_create(l, l->granule + 1, 0, false))
EXPERIMENT_OF(create_one_and_a_half, try_create(l, l->granule + l->granule / 2, 0, false))
EXPERIMENT_OF(create_too_large, try_create(l, (l->total / l->granule + 1) * l->granule, 0, false))
EXPERIMENT_OF(create_absurd, try_create(l, (uint64_t)1 << 50, 0, false))
EXPERIMENT_OF(create_fd, try_create(l, l->granule, 1, false))
EXPERIMENT_OF(create_fabric, try_create(l, l->granule, 8, false))

EXPERIMENT(create_rdma) {
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

EXPERIMENT(reserve_one) {
    ductile_addr addr = try_reserve(l, l->granule, 0, 0);
    note(l, "aligned=%s", addr % l->granule == 0 ? "yes" : "no");
}

EXPERIMENT_OF(reserve_zero, (void)try_reserve(l, 0, 0, 0))
EXPERIMENT_OF(reserve_one_byte, (void)try_reserve(l, 1, 0, 0))
EXPERIMENT_OF(reserve_4096, (void)try_reserve(l, 4096, 0, 0))
EXPERIMENT_OF(reserve_one_and_a_half, (void)try_reserve(l, l->granule + l->granule / 2, 0, 0))
EXPERIMENT_OF(reserve_align_3, (void)try_reserve(l, l->granule, 3, 0))

EXPERIMENT(reserve_align_4_granules) {
    ductile_addr addr = try_reserve(l, l->granule, 4 * l->granule, 0);
    note(l, "aligned=%s", addr % (4 * l->granule) == 0 ? "yes" : "no");
}

EXPERIMENT(reserve_huge) {
    ductile_addr addr = try_reserve(l, (uint64_t)64 << 40, 0, 0);
    note(l, "got=%s", addr != 0 ? "yes" : "no");
}

EXPERIMENT_OF(reserve_absurd, (void)try_reserve(l, (uint64_t)1 << 60, 0, 0))

EXPERIMENT(reserve_hint_free) {
    ductile_addr base = try_reserve(l, 8 * l->granule, 0, 0);
    ductile_addr again = try_reserve(l, l->granule, 0, base + l->granule);
    note(l, "taken=%s", again == base + l->granule ? "yes" : "no");
}

EXPERIMENT(reserve_hint_unaligned) {
    ductile_addr base = try_reserve(l, 8 * l->granule, 0, 0);
    ductile_addr again = try_reserve(l, l->granule, 0, base + l->granule / 2);
    note(l, "taken=%s", again == base + l->granule / 2 ? "yes" : "no");
}

EXPERIMENT(reserve_hint_in_use) {
    ductile_addr base = reserve(l, 8);
    ductile_addr again = try_reserve(l, l->granule, 0, base + l->granule);
    note(l, "taken=%s", again == base + l->granule ? "yes" : "no");
}

EXPERIMENT(free_while_mapped) {
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

EXPERIMENT_OF(free_too_short, try_free(l, reserve(l, 4), 0, 2))
EXPERIMENT_OF(free_too_long, try_free(l, reserve(l, 4), 0, 8))
EXPERIMENT_OF(free_inside, try_free(l, reserve(l, 4), 1, 3))

EXPERIMENT(free_twice) {
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

EXPERIMENT(map_plain) {
    ductile_addr addr = reserve(l, 2);
    try_map(l, addr, l->granule, 0, create(l, 1));
    note_access(l, "beside", addr + l->granule);
}

EXPERIMENT(map_over_mapped) {
    ductile_addr addr = mapped(l, 1, NULL);
    try_map(l, addr, l->granule, 0, create(l, 1));
    note_access(l, "first", addr);
}

EXPERIMENT(map_overlapping) {
    ductile_addr addr = mapped_row(l, 1, 3);
    dvmm_phys two = create(l, 2);
    say(l, CALL(l, map, addr, 2 * l->granule, 0, two));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

EXPERIMENT(map_outside) {
    ductile_addr addr = reserve(l, 1);
    need(l, "free", CALL(l, address_free, addr, l->granule));
    forget_range(l, addr);
    try_map(l, addr, l->granule, 0, create(l, 1));
}

EXPERIMENT(map_past_the_end) {
    ductile_addr middle = reserve(l, 2) + l->granule;
    try_map(l, middle, 2 * l->granule, 0, create(l, 2));
    (void)CALL(l, unmap, middle, 2 * l->granule); /* or it stays in the way of the next rows */
}

/* Two reservations side by side stay two. */
EXPERIMENT(map_across_two) {
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

EXPERIMENT_OF(map_offset, try_map(l, reserve(l, 2), l->granule, l->granule, create(l, 2)))

EXPERIMENT(map_less_than_handle) {
    ductile_addr addr = reserve(l, 2);
    try_map(l, addr, l->granule, 0, create(l, 2));
}

EXPERIMENT_OF(map_more_than_handle, try_map(l, reserve(l, 2), 2 * l->granule, 0, create(l, 1)))
EXPERIMENT_OF(map_unaligned, try_map(l, reserve(l, 2) + 4096, l->granule, 0, create(l, 1)))
EXPERIMENT_OF(map_odd_size, try_map(l, reserve(l, 2), l->granule + 4096, 0, create(l, 1)))
EXPERIMENT_OF(map_zero, try_map(l, reserve(l, 2), 0, 0, create(l, 1)))

EXPERIMENT(map_alias) {
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

EXPERIMENT(map_alias_same_range) {
    ductile_addr addr = reserve(l, 2);
    dvmm_phys phys = create(l, 1);
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    say(l, CALL(l, map, addr + l->granule, l->granule, 0, phys));
}

EXPERIMENT(map_again_after_unmap) {
    dvmm_phys phys;
    ductile_addr addr = mapped(l, 1, &phys);
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, map, addr, l->granule, 0, phys));
    note_access(l, "access", addr);
}

/* ---- Unmapping ----------------------------------------------------------------------------- */

EXPERIMENT(unmap_half) {
    ductile_addr addr = mapped(l, 2, NULL);
    say(l, CALL(l, unmap, addr, l->granule));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

EXPERIMENT(unmap_upper_half) {
    ductile_addr addr = mapped(l, 2, NULL);
    say(l, CALL(l, unmap, addr + l->granule, l->granule));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

EXPERIMENT(unmap_unaligned) {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, unmap, addr, l->granule / 2));
    note_access(l, "access", addr);
}

EXPERIMENT(unmap_two) {
    ductile_addr addr = mapped_row(l, 2, 0);
    say(l, CALL(l, unmap, addr, 2 * l->granule));
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

/* One whole mapping, then half of one: is the whole one gone after the failure? */
EXPERIMENT(unmap_whole_and_half) {
    ductile_addr addr = reserve(l, 3);
    map(l, addr, 1, create(l, 1));
    map(l, addr + l->granule, 2, create(l, 2));
    open_access(l, addr, 3);
    say(l, CALL(l, unmap, addr, 2 * l->granule));
    note_access(l, "whole", addr);
    note_access(l, "cut", addr + l->granule);
}

EXPERIMENT(unmap_with_hole) {
    ductile_addr addr = reserve(l, 3);
    map(l, addr, 1, create(l, 1));
    map(l, addr + 2 * l->granule, 1, create(l, 1));
    say(l, CALL(l, unmap, addr, 3 * l->granule));
    note_access(l, "first", addr);
    note_access(l, "last", addr + 2 * l->granule);
}

EXPERIMENT(unmap_partly_unmapped) {
    ductile_addr addr = mapped_row(l, 1, 1);
    say(l, CALL(l, unmap, addr, 2 * l->granule));
    note_access(l, "first", addr);
}

EXPERIMENT_OF(unmap_unmapped, say(l, CALL(l, unmap, reserve(l, 1), l->granule)))

EXPERIMENT(unmap_twice) {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, unmap, addr, l->granule));
    say(l, CALL(l, unmap, addr, l->granule));
}

EXPERIMENT(unmap_outside) {
    ductile_addr addr = reserve(l, 1);
    need(l, "free", CALL(l, address_free, addr, l->granule));
    forget_range(l, addr);
    say(l, CALL(l, unmap, addr, l->granule));
}

EXPERIMENT(unmap_zero) {
    ductile_addr addr = mapped(l, 1, NULL);
    say(l, CALL(l, unmap, addr, 0));
    note_access(l, "access", addr);
}

/* ---- Access -------------------------------------------------------------------------------- */

static void try_access(lab *l, ductile_addr addr, uint64_t size, int access) {
    say(l, CALL(l, set_access, addr, size, (dvmm_access)access));
}

EXPERIMENT(access_half) {
    ductile_addr addr = reserve(l, 2);
    map(l, addr, 2, create(l, 2));
    try_access(l, addr, l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

EXPERIMENT(access_two) {
    ductile_addr addr = reserve(l, 2);
    map(l, addr, 1, create(l, 1));
    map(l, addr + l->granule, 1, create(l, 1));
    try_access(l, addr, 2 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

EXPERIMENT(access_with_hole) {
    ductile_addr addr = reserve(l, 3);
    map(l, addr, 1, create(l, 1));
    map(l, addr + 2 * l->granule, 1, create(l, 1));
    try_access(l, addr, 3 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "last", addr + 2 * l->granule);
}

EXPERIMENT(access_partly_unmapped) {
    ductile_addr addr = reserve(l, 2);
    map(l, addr, 1, create(l, 1));
    try_access(l, addr, 2 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
}

EXPERIMENT_OF(access_unmapped, try_access(l, reserve(l, 1), l->granule, DVMM_ACCESS_RW))

EXPERIMENT(access_zero_size) {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, 0, DVMM_ACCESS_READ);
    note_access(l, "access", addr);
}

EXPERIMENT(access_unaligned) {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr + 4096, l->granule - 4096, DVMM_ACCESS_READ);
    note_access(l, "access", addr);
}

EXPERIMENT(access_bad_flag) {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, l->granule, 2);
    note_access(l, "access", addr);
}

EXPERIMENT(access_to_read) {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, l->granule, DVMM_ACCESS_READ);
    note_access(l, "access", addr);
}

EXPERIMENT(access_to_none) {
    ductile_addr addr = mapped(l, 1, NULL);
    try_access(l, addr, l->granule, DVMM_ACCESS_NONE);
    note_access(l, "access", addr);
    try_access(l, addr, l->granule, DVMM_ACCESS_RW);
    note_access(l, "again", addr);
}

EXPERIMENT(access_twice) {
    ductile_addr addr = mapped_row(l, 2, 0);
    try_access(l, addr, l->granule, DVMM_ACCESS_READ);
    try_access(l, addr, 2 * l->granule, DVMM_ACCESS_RW);
    note_access(l, "first", addr);
    note_access(l, "second", addr + l->granule);
}

EXPERIMENT(access_asked_inside) {
    ductile_addr addr = mapped(l, 1, NULL);
    note_access(l, "inside", addr + l->granule / 2 + 1);
}

EXPERIMENT(access_asked_unmapped) {
    note_access(l, "reserved", reserve(l, 1));
    note_access(l, "nowhere", 4096);
}

/* ---- Releasing ----------------------------------------------------------------------------- */

/* The memory stays usable through its mapping, and its contents with it. */
EXPERIMENT(release_while_mapped) {
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

/* ---- The rows ------------------------------------------------------------------------------ */

#define ROW(name, what, run)                                                                       \
    { name, what, run, 0, 0, 0 }

const conformance_row memory_rows[] = {
    ROW("create.one", "create a granule, release it", create_one),
    ROW("create.zero", "create 0 bytes", create_zero),
    ROW("create.half", "create half a granule", create_half),
    ROW("create.one_byte_more", "create a granule and a byte", create_one_byte_more),
    ROW("create.one_and_a_half", "create a granule and a half", create_one_and_a_half),
    ROW("create.too_large", "create a granule more than the device has", create_too_large),
    ROW("create.absurd", "create a PiB", create_absurd),
    ROW("create.fd", "create exportable as file descriptor, release", create_fd),
    ROW("create.fabric", "create exportable to the fabric, release", create_fabric),
    ROW("create.rdma", "create for RDMA, map, access, unmap, release", create_rdma),

    ROW("reserve.one", "reserve a granule", reserve_one),
    ROW("reserve.zero", "reserve 0 bytes", reserve_zero),
    ROW("reserve.one_byte", "reserve a byte", reserve_one_byte),
    ROW("reserve.4096", "reserve a host page", reserve_4096),
    ROW("reserve.one_and_a_half", "reserve a granule and a half", reserve_one_and_a_half),
    ROW("reserve.align_3", "reserve, alignment 3", reserve_align_3),
    ROW("reserve.align_4_granules", "reserve, alignment 4 granules", reserve_align_4_granules),
    ROW("reserve.huge", "reserve 64 TiB", reserve_huge),
    ROW("reserve.absurd", "reserve 1 EiB", reserve_absurd),
    ROW("reserve.hint_free", "reserve at a free address", reserve_hint_free),
    ROW("reserve.hint_unaligned", "reserve at half a granule", reserve_hint_unaligned),
    ROW("reserve.hint_in_use", "reserve where something is reserved", reserve_hint_in_use),

    ROW("free.while_mapped", "free a range with a mapping in it", free_while_mapped),
    ROW("free.too_short", "free half of a range", free_too_short),
    ROW("free.too_long", "free twice the size of a range", free_too_long),
    ROW("free.inside", "free from inside a range", free_inside),
    ROW("free.twice", "free a range twice", free_twice),

    ROW("map.plain", "map a handle, ask access there and beside", map_plain),
    ROW("map.over_mapped", "map over a mapping", map_over_mapped),
    ROW("map.overlapping", "map two granules over one mapped and one free", map_overlapping),
    ROW("map.outside", "map where nothing is reserved", map_outside),
    ROW("map.past_the_end", "map past the end of a range", map_past_the_end),
    ROW("map.across_two", "map across two ranges side by side", map_across_two),
    ROW("map.offset", "map the second granule of a handle", map_offset),
    ROW("map.less_than_handle", "map the first granule of a handle of two", map_less_than_handle),
    ROW("map.more_than_handle", "map two granules of a handle of one", map_more_than_handle),
    ROW("map.unaligned", "map at an odd address", map_unaligned),
    ROW("map.odd_size", "map an odd size", map_odd_size),
    ROW("map.zero", "map 0 bytes", map_zero),
    ROW("map.alias", "map a handle twice, access, unmap the first", map_alias),
    ROW("map.alias_same_range", "map a handle twice side by side", map_alias_same_range),
    ROW("map.again", "unmap, map again at the same address", map_again_after_unmap),

    ROW("unmap.half", "unmap the first half of a mapping", unmap_half),
    ROW("unmap.upper_half", "unmap the second half of a mapping", unmap_upper_half),
    ROW("unmap.unaligned", "unmap half a granule", unmap_unaligned),
    ROW("unmap.two", "unmap two mappings at once", unmap_two),
    ROW("unmap.whole_and_half", "unmap a mapping and half of the next", unmap_whole_and_half),
    ROW("unmap.with_hole", "unmap mapping, hole, mapping", unmap_with_hole),
    ROW("unmap.partly_unmapped", "unmap a mapping and a hole", unmap_partly_unmapped),
    ROW("unmap.unmapped", "unmap what is reserved only", unmap_unmapped),
    ROW("unmap.twice", "unmap twice", unmap_twice),
    ROW("unmap.outside", "unmap where nothing is reserved", unmap_outside),
    ROW("unmap.zero", "unmap 0 bytes", unmap_zero),

    ROW("access.half", "open half of a mapping", access_half),
    ROW("access.two", "open two mappings at once", access_two),
    ROW("access.with_hole", "open mapping, hole, mapping", access_with_hole),
    ROW("access.partly_unmapped", "open a mapping and a hole", access_partly_unmapped),
    ROW("access.unmapped", "open what is reserved only", access_unmapped),
    ROW("access.zero_size", "set access on 0 bytes", access_zero_size),
    ROW("access.unaligned", "set access from an odd address", access_unaligned),
    ROW("access.bad_flag", "set access 2, which does not exist", access_bad_flag),
    ROW("access.to_read", "narrow access to reading", access_to_read),
    ROW("access.to_none", "take access away, give it again", access_to_none),
    ROW("access.twice", "set access per mapping, then over both", access_twice),
    ROW("access.asked_inside", "ask access inside a mapping", access_asked_inside),
    ROW("access.asked_unmapped", "ask access of a hole and of nowhere", access_asked_unmapped),

    ROW("release.while_mapped", "release a mapped handle, fill, read", release_while_mapped),
};

const size_t n_memory_rows = COUNT_OF(memory_rows);
