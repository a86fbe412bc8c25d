/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/shadow.h"

#include "pool/blocks/arena.h"
#include "pool/blocks/phase.h"
#include "pool/blocks/private_pool.h"
#include "pool/blocks/region.h"
#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"

#include <stdio.h>
#include <string.h>

static void complain_once(shadow *s, const char *what, const ductile_map_event *e) {
    if (s->complaint[0] == '\0') {
        (void)snprintf(s->complaint, sizeof s->complaint, "%s: %#llx, %llu bytes, handle %#llx",
                       what, (unsigned long long)e->address, (unsigned long long)e->size,
                       (unsigned long long)e->handle);
    }
}

static shadow_entry *find(shadow *s, ductile_addr address) {
    for (size_t i = 0; i < s->n; i++) {
        if (address >= s->entries[i].address &&
            address < s->entries[i].address + s->entries[i].size) {
            return &s->entries[i];
        }
    }
    return NULL;
}

static bool has_handle(const shadow *s, uint64_t handle) {
    for (size_t i = 0; i < s->n && handle != 0; i++) {
        if (s->entries[i].handle == handle) {
            return true;
        }
    }
    return false;
}

static bool is_open(const shadow *s, const ductile_map_event *e) {
    return ductile_virtual_access(s->gpu, e->address, 0) == 3 &&
           ductile_virtual_access(s->gpu, e->address + e->size - 1, 0) == 3;
}

static void note_mapped(shadow *s, const ductile_map_event *e) {
    s->n_mapped++;
    if (find(s, e->address) != NULL || find(s, e->address + e->size - 1) != NULL) {
        complain_once(s, "mapped twice", e);
    } else if (has_handle(s, e->handle)) {
        complain_once(s, "a handle at two addresses", e);
    } else if (s->n == SHADOW_SLOTS) {
        complain_once(s, "the table is full", e);
    } else {
        s->entries[s->n++] = (shadow_entry){e->address, e->size, e->handle};
    }
}

static void note_left(shadow *s, const ductile_map_event *e) {
    shadow_entry *entry = find(s, e->address);
    s->n_left++;
    if (entry == NULL || entry->address != e->address || entry->size != e->size ||
        entry->handle != e->handle) {
        complain_once(s, "leaves, but was not there", e);
    } else {
        *entry = s->entries[--s->n];
    }
}

static void listen_to(void *user, ductile_allocator *a, const ductile_map_event *e) {
    shadow *s = user;
    (void)pthread_mutex_lock(&s->lock);
    if (!is_open(s, e)) {
        complain_once(s, e->change == DUCTILE_MAP_MAPPED ? "not open yet" : "gone already", e);
    }
    if (e->change == DUCTILE_MAP_MAPPED) {
        note_mapped(s, e);
    } else {
        note_left(s, e);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (s->beside != NULL) {
        s->beside(s->user, a, e);
    }
}

const char *shadow_open(shadow *s, ductile_allocator *a, ductile_virtual_gpu *gpu) {
    s->gpu = gpu;
    (void)pthread_mutex_init(&s->lock, NULL);
    NEED_OK(ductile_add_map_callback(a, listen_to, s, 0, &s->id));
    return NULL;
}

const char *shadow_complaint(shadow *s) {
    (void)pthread_mutex_lock(&s->lock);
    const char *why = s->complaint[0] != '\0' ? complain("%s", s->complaint) : NULL;
    (void)pthread_mutex_unlock(&s->lock);
    return why;
}

const char *shadow_covers(shadow *s, ductile_addr address, uint64_t size) {
    const char *why = NULL;
    (void)pthread_mutex_lock(&s->lock);
    for (ductile_addr at = address; why == NULL && at < address + size;) {
        const shadow_entry *entry = find(s, at);
        if (entry == NULL) {
            why = complain("%#llx was not announced", (unsigned long long)at);
        } else {
            at = entry->address + entry->size;
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return why;
}

/* ---- Comparing with what is there ---------------------------------------------------------- */

typedef struct counts {
    uint64_t mapped;
    uint64_t retiring;    /* handles at old addresses */
    uint64_t unannounced; /* of pools that sleep, with copies under way */
} counts;

/* Where a wait for copies has failed, memory stays mapped behind a pool that sleeps. No callback
 * hears of it before the pool runs: until then it may go again at any time. */
static bool sleeps_with_copies(const ductile_allocator *a, const dseg_segment *seg) {
    for (const dpool_private_pool *pool = a->pools; pool != NULL; pool = pool->next) {
        for (const dpool_region *r = dpool_next_region(a, pool, NULL); r != NULL;
             r = dpool_next_region(a, pool, r)) {
            if (r->seg == seg) {
                return !dpool_is_awake(pool) && pool->host_copy.busy != NULL;
            }
        }
    }
    return false;
}

static const char *compare_segment(shadow *s, const ductile_allocator *a, const dseg_segment *seg,
                                   counts *t) {
    bool may_be_silent = sleeps_with_copies(a, seg);
    for (uint32_t g = seg->low; g < seg->high; g++) {
        const dseg_slot *slot = &seg->slots[g];
        ductile_addr address = dseg_addr(seg, g);
        const shadow_entry *entry = find(s, address);
        bool is_mapped = slot->state == DSEG_MAPPED;
        if (is_mapped && entry == NULL && may_be_silent) {
            t->unannounced += slot->offset == 0;
            continue;
        }
        NEED((entry != NULL) == is_mapped, "%#llx is %s, and the table says otherwise",
             (unsigned long long)address, is_mapped ? "mapped" : "not mapped");
        NEED(!is_mapped || entry->handle == slot->handle->phys, "another handle is at %#llx",
             (unsigned long long)address);
        t->mapped += is_mapped && slot->offset == 0;
        t->retiring += slot->state == DSEG_RETIRING && slot->offset == 0;
    }
    return NULL;
}

static const char *compare_segments(shadow *s, ductile_allocator *a, counts *t) {
    for (uint32_t i = 0; i < a->segments.count; i++) {
        TRY(compare_segment(s, a, a->segments.items[i], t));
    }
    NEED(t->mapped == s->n, "%zu mappings announced, %llu there", s->n,
         (unsigned long long)t->mapped);
    return NULL;
}

static const char *compare_all(shadow *s, ductile_allocator *a) {
    counts t = {0, 0, 0};
    ductile_virtual_state state = {.struct_size = sizeof state};
    TRY(compare_segments(s, a, &t));
    NEED_OK(ductile_virtual_get_state(s->gpu, &state));
    NEED(state.mappings == t.mapped + t.retiring + t.unannounced,
         "the device has %llu mappings, of which %llu are announced, %llu not yet, and %llu "
         "retiring",
         (unsigned long long)state.mappings, (unsigned long long)t.mapped,
         (unsigned long long)t.unannounced, (unsigned long long)t.retiring);
    return NULL;
}

const char *shadow_matches_segments(shadow *s, ductile_allocator *a) {
    counts t = {0, 0, 0};
    TRY(shadow_complaint(s));
    (void)pthread_mutex_lock(&s->lock);
    const char *why = compare_segments(s, a, &t);
    (void)pthread_mutex_unlock(&s->lock);
    return why;
}

const char *shadow_is_true(shadow *s, ductile_allocator *a) {
    TRY(shadow_complaint(s));
    (void)pthread_mutex_lock(&s->lock);
    const char *why = compare_all(s, a);
    (void)pthread_mutex_unlock(&s->lock);
    return why;
}
