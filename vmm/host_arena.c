/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/host_arena.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/captures.h"
#include "vmm/host_pages.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_SHARE = 8
}; /* memory that is made at first use is at least this part of what is there */

void dvmm_host_arena_init(dvmm_host_arena *arena, dvmm_driver *driver) {
    *arena = (dvmm_host_arena){.driver = driver, .has_batches = dvmm_get_caps(driver)->has_batches};
    dti_lock_init(&arena->making, DTI_RANK_HOST);
    dti_lock_init(&arena->lock, DTI_RANK_LEAF);
}

/* ---- Memory -------------------------------------------------------------------------------- */

/* Written once: copies under way read it without a lock. */
static ductile_status reserve_addresses(dvmm_host_arena *arena) {
    if (arena->base != NULL) {
        return DUCTILE_OK;
    }
    uint64_t size = dvmm_host_pages_total();
    uint8_t *base = dvmm_host_pages_reserve(size);
    if (base == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_acquire(&arena->lock);
    arena->base = base;
    arena->most_bytes = size;
    dti_lock_release(&arena->lock);
    return DUCTILE_OK;
}

static bool make_room_for_extent(dvmm_host_arena *arena) {
    dti_lock_acquire(&arena->lock);
    bool has_room = dti_have_room(&arena->ends, sizeof *arena->ends, &arena->extents_room,
                                  arena->n_extents + 1);
    dti_lock_release(&arena->lock);
    return has_room;
}

/* What the driver lacks to lock pages is host memory, whatever its code says. A failed call may
 * have locked them. */
static ductile_status lock_pages(dvmm_host_arena *arena, uint8_t *memory, uint64_t size) {
    ductile_status status = dvmm_host_register(arena->driver, memory, size);
    if (status != DUCTILE_OK) {
        (void)dvmm_host_unregister(arena->driver, memory);
    }
    return status == DUCTILE_ERR_OUT_OF_MEMORY ? DUCTILE_ERR_OUT_OF_HOST_MEMORY : status;
}

static void append_extent(dvmm_host_arena *arena, uint64_t size) {
    dti_lock_acquire(&arena->lock);
    arena->bytes += size;
    arena->ends[arena->n_extents++] = arena->bytes;
    dti_lock_release(&arena->lock);
}

/* An extent of `made` bytes whose memory is there above the last extent, and `size` new ones. */
static ductile_status add_extent(dvmm_host_arena *arena, uint64_t made, uint64_t size) {
    uint8_t *memory = arena->base + arena->bytes;
    if (size > arena->most_bytes - arena->bytes - made || !make_room_for_extent(arena) ||
        (size > 0 && !dvmm_host_pages_make(memory + made, size))) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = lock_pages(arena, memory, made + size);
    if (status == DUCTILE_OK) {
        append_extent(arena, made + size);
    } else if (size > 0) {
        dvmm_host_pages_drop(memory + made, size);
    }
    return status;
}

ductile_status dvmm_host_arena_reserve(dvmm_host_arena *arena, uint64_t bytes) {
    dti_lock_acquire(&arena->making);
    ductile_status status = DUCTILE_OK;
    if (bytes > arena->bytes) {
        status = reserve_addresses(arena);
        if (status == DUCTILE_OK && bytes > arena->most_bytes) {
            status = DUCTILE_ERR_OUT_OF_HOST_MEMORY;
        }
        uint64_t size = bytes - arena->bytes;
        status = status == DUCTILE_OK ? add_extent(arena, 0, dti_round_up(size, DVMM_HUGE_PAGE))
                                      : status;
    }
    dti_lock_release(&arena->making);
    return status;
}

/* The last extent leaves the arena before its memory goes, so that no thread takes a span of it. */
static uint64_t shorten(dvmm_host_arena *arena, uint64_t keep_bytes) {
    dti_lock_acquire(&arena->lock);
    const dvmm_host_span *last = arena->n_taken > 0 ? &arena->taken[arena->n_taken - 1] : NULL;
    uint64_t keep = dti_max(keep_bytes, last != NULL ? last->at + last->size : 0);
    uint64_t from = arena->n_extents > 1 ? arena->ends[arena->n_extents - 2] : 0;
    uint64_t size = arena->n_extents > 0 && from >= keep ? arena->bytes - from : 0;
    if (size > 0) {
        arena->n_extents--;
        arena->bytes = from;
    }
    dti_lock_release(&arena->lock);
    return size;
}

ductile_status dvmm_host_arena_release(dvmm_host_arena *arena, uint64_t keep_bytes,
                                       uint64_t *released) {
    ductile_status status = DUCTILE_OK;
    dti_lock_acquire(&arena->making);
    for (uint64_t size = shorten(arena, keep_bytes); size > 0 && status == DUCTILE_OK;
         size = status == DUCTILE_OK ? shorten(arena, keep_bytes) : 0) {
        uint8_t *memory = arena->base + arena->bytes;
        status = dvmm_host_unregister(arena->driver, memory);
        if (status != DUCTILE_OK) {
            append_extent(arena, size);
        } else {
            dvmm_host_pages_drop(memory, size);
            *released += size;
        }
    }
    dti_lock_release(&arena->making);
    return status;
}

static ductile_status release_all(dvmm_host_arena *arena) {
    uint64_t released = 0;
    dvmm_capture_mode mode = dvmm_capture_relax(arena->driver);
    ductile_status status = dvmm_host_arena_release(arena, 0, &released);
    dvmm_capture_restore(arena->driver, mode);
    return status == DUCTILE_OK ? dvmm_usable(arena->driver) : status;
}

/* Extents at the top of which nothing is taken leave the arena, and their memory stays. */
static uint64_t open_free_top(dvmm_host_arena *arena) {
    uint64_t opened = 0;
    for (uint64_t size = shorten(arena, 0); size > 0; size = shorten(arena, 0)) {
        if (dvmm_host_unregister(arena->driver, arena->base + arena->bytes) != DUCTILE_OK) {
            append_extent(arena, size);
            break;
        }
        opened += size;
    }
    return opened;
}

/* Makes an extent with room for `size`, of free ones at the top and what they lack. */
static ductile_status grow_by(dvmm_host_arena *arena, uint64_t size) {
    if (reserve_addresses(arena) != DUCTILE_OK || size > arena->most_bytes) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    uint64_t least = dti_round_up(arena->bytes / MOST_SHARE, DVMM_HUGE_PAGE);
    uint64_t made = open_free_top(arena);
    uint64_t needed = dti_round_up(size, DVMM_HUGE_PAGE);
    needed = needed > made ? needed - made : 0;
    uint64_t wished = needed > 0 ? dti_max(needed, least) : 0;
    ductile_status status = add_extent(arena, made, wished);
    if (status != DUCTILE_OK && wished > needed) {
        status = add_extent(arena, made, needed);
    }
    if (status != DUCTILE_OK && made > 0 && add_extent(arena, made, 0) != DUCTILE_OK) {
        dvmm_host_pages_drop(arena->base + arena->bytes, made);
    }
    return status;
}

ductile_status dvmm_host_arena_fini(dvmm_host_arena *arena) {
    bool is_usable = dvmm_usable(arena->driver) == DUCTILE_OK;
    bool has_any = is_usable && arena->n_extents > 0;
    arena->n_taken = 0;
    ductile_status status = has_any ? release_all(arena) : DUCTILE_OK;
    if (arena->n_extents == 0 && arena->base != NULL) {
        dvmm_host_pages_unreserve(arena->base, arena->most_bytes);
    }
    free(arena->ends);
    free(arena->taken);
    *arena = (dvmm_host_arena){0};
    return status;
}

/* ---- Spans --------------------------------------------------------------------------------- */

static bool insert_locked(dvmm_host_arena *arena, uint32_t i, dvmm_host_span span) {
    DTI_ASSERT_HELD(&arena->lock);
    if (!dti_have_room(&arena->taken, sizeof *arena->taken, &arena->taken_room,
                       arena->n_taken + 1)) {
        return false;
    }
    dti_insert(arena->taken, sizeof span, &arena->n_taken, i, &span);
    return true;
}

typedef struct place {
    uint64_t at;
    uint64_t room;  /* 0: there is none */
    uint32_t index; /* of the span behind it */
} place;

/* The lowest place that has room, in one extent. */
static place find_place_locked(const dvmm_host_arena *arena, uint64_t size) {
    DTI_ASSERT_HELD(&arena->lock);
    uint32_t i = 0;
    for (uint32_t e = 0; e < arena->n_extents; e++) {
        uint64_t at = e > 0 ? arena->ends[e - 1] : 0;
        while (i < arena->n_taken && arena->taken[i].at < arena->ends[e] &&
               arena->taken[i].at - at < size) {
            at = arena->taken[i].at + arena->taken[i].size;
            i++;
        }
        bool is_before = i < arena->n_taken && arena->taken[i].at < arena->ends[e];
        uint64_t end = is_before ? arena->taken[i].at : arena->ends[e];
        if (end - at >= size) {
            return (place){at, end - at, i};
        }
    }
    return (place){0, 0, 0};
}

/* ERR_NOT_READY: there is no room. */
static ductile_status try_to_take(dvmm_host_arena *arena, uint64_t size, uint64_t least,
                                  dvmm_host_span *out) {
    dti_lock_acquire(&arena->lock);
    place found = find_place_locked(arena, size);
    found = found.room > 0 ? found : find_place_locked(arena, least);
    dvmm_host_span span = {found.at, dti_min(size, found.room)};
    ductile_status status = DUCTILE_ERR_NOT_READY;
    if (found.room > 0) {
        status =
            insert_locked(arena, found.index, span) ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    dti_lock_release(&arena->lock);
    *out = status == DUCTILE_OK ? span : (dvmm_host_span){0, 0};
    return status;
}

ductile_status dvmm_host_arena_take(dvmm_host_arena *arena, uint64_t size, uint64_t least,
                                    dvmm_host_span *out) {
    size = dti_round_up(size, DVMM_HOST_LINE);
    least = dti_round_up(least, DVMM_HOST_LINE);
    ductile_status status = try_to_take(arena, size, least, out);
    while (status == DUCTILE_ERR_NOT_READY) { /* other threads may take the room first */
        dti_lock_acquire(&arena->making);
        status = grow_by(arena, size);
        status = status == DUCTILE_OK ? try_to_take(arena, size, least, out) : status;
        dti_lock_release(&arena->making);
    }
    return status;
}

static uint32_t find_taken_locked(const dvmm_host_arena *arena, uint64_t at) {
    DTI_ASSERT_HELD(&arena->lock);
    uint32_t i = 0;
    while (i < arena->n_taken && arena->taken[i].at != at) {
        i++;
    }
    return i;
}

void dvmm_host_arena_cut(dvmm_host_arena *arena, dvmm_host_span *span, uint64_t size) {
    dti_lock_acquire(&arena->lock);
    uint32_t i = find_taken_locked(arena, span->at);
    span->size = dti_round_up(size, DVMM_HOST_LINE);
    arena->taken[i].size = span->size;
    dti_lock_release(&arena->lock);
}

void dvmm_host_arena_give(dvmm_host_arena *arena, dvmm_host_span span) {
    dti_lock_acquire(&arena->lock);
    uint32_t i = find_taken_locked(arena, span.at);
    if (i < arena->n_taken) {
        dti_remove(arena->taken, sizeof *arena->taken, &arena->n_taken, i);
    }
    dti_lock_release(&arena->lock);
}

uint64_t dvmm_host_arena_bytes(dvmm_host_arena *arena) {
    dti_lock_acquire(&arena->lock);
    uint64_t bytes = arena->bytes;
    dti_lock_release(&arena->lock);
    return bytes;
}

uint64_t dvmm_host_arena_rest(dvmm_host_arena *arena, uint64_t at) {
    dti_lock_acquire(&arena->lock);
    uint32_t i = 0;
    while (i + 1 < arena->n_extents && arena->ends[i] <= at) {
        i++;
    }
    uint64_t rest = arena->ends[i] - at;
    dti_lock_release(&arena->lock);
    return rest;
}
