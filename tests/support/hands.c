/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/hands.h"

#include "tests/support/complain.h"
#include "vmm/base/align.h"

#include <ductile_share.h>
#include <ductile_virtual.h>

enum { LATE_NS = 200000000 }; /* longer than a pause that does not wait */

const char *hands_open(hands *h, ductile_virtual_gpu *gpu) {
    TRY(painter_open(&h->painter, h->driver, h->device));
    if (gpu != NULL) {
        NEED_OK(ductile_virtual_stream_create_on(gpu, h->device, &h->stream));
    } else {
        NEED_OK(dvmm_stream_create(h->driver, &h->stream));
    }
    NEED_OK(dvmm_event_create(h->driver, &h->event));
    return NULL;
}

const char *hands_close(hands *h) {
    painter_close(&h->painter);
    NEED_OK(dvmm_event_destroy(h->driver, h->event));
    NEED_OK(dvmm_stream_destroy(h->driver, h->stream));
    return NULL;
}

const char *let_go_on(const hands *from, const hands *to) {
    NEED_OK(dvmm_event_record(from->driver, from->event, from->stream));
    NEED_OK(dvmm_stream_wait_event(to->driver, to->stream, from->event));
    return NULL;
}

/* ---- Memory of the peer -------------------------------------------------------------------- */

static const char *map_for_both(const hands *owner, const hands *peer, uint64_t size,
                                ductile_addr *out) {
    dvmm_driver *d = owner->driver;
    const dvmm_phys_props props = {0};
    const int both[] = {owner->device, peer->device};
    const uint64_t all = dti_round_up(size, dvmm_get_caps(d)->granule_bytes);
    dvmm_phys phys = 0;
    NEED_OK(dvmm_address_reserve(d, all, out));
    NEED_OK(dvmm_phys_create(d, all, &props, &phys));
    NEED_OK(dvmm_map(d, *out, all, phys));
    NEED_OK(dvmm_set_access_for(d, *out, all, DVMM_ACCESS_RW, both, 2));
    NEED_OK(dvmm_phys_release(d, phys));
    return NULL;
}

const char *far_open(const hands *owner, const hands *peer, uint64_t size, ductile_addr *out) {
    if (dvmm_get_caps(owner->driver)->is_virtual) {
        return map_for_both(owner, peer, size, out);
    }
    NEED_OK(dvmm_mem_alloc(peer->driver, size, out));
    return NULL;
}

const char *far_close(const hands *owner, const hands *peer, uint64_t size, ductile_addr far) {
    dvmm_driver *d = owner->driver;
    if (!dvmm_get_caps(d)->is_virtual) {
        NEED_OK(dvmm_mem_free(peer->driver, far));
        return NULL;
    }
    const uint64_t all = dti_round_up(size, dvmm_get_caps(d)->granule_bytes);
    NEED_OK(dvmm_unmap(d, far, all));
    NEED_OK(dvmm_address_free(d, far, all));
    return NULL;
}

/* ---- Work that is late --------------------------------------------------------------------- */

static const char *begin_late(late_work *l, ductile_allocator *a, canvas *c) {
    c->size = 10 * DTI_MIB + 512;
    c->id = l->id++;
    NEED_OK(ductile_alloc(a, c->size, l->owner->stream, &c->address));
    TRY(paint(&l->owner->painter, c, l->owner->stream));
    TRY(let_go_on(l->owner, l->peer));
    TRY(dawdle(&l->peer->painter, l->peer->stream, LATE_NS));
    c->id = l->id++;
    TRY(paint(&l->peer->painter, c, l->peer->stream));
    NEED_OK(dvmm_event_record(l->peer->driver, l->peer->event, l->peer->stream));
    NEED_OK(ductile_record_stream(a, c->address, l->peer->stream));
    return NULL;
}

static bool is_over(const late_work *l) {
    return dvmm_event_query(l->peer->driver, l->peer->event) == DUCTILE_OK;
}

const char *late_before_pause(late_work *l, ductile_allocator *a, unsigned flags) {
    canvas c;
    const ductile_pool_id pool = {9, l->id}; /* one that holds nothing yet */
    NEED_OK(ductile_pool_retain(a, pool));
    NEED_OK(ductile_pool_set_kind(a, pool, DUCTILE_POOL_PLAIN));
    NEED_OK(ductile_pool_begin(a, pool, NULL, NULL));
    TRY(begin_late(l, a, &c));
    NEED_OK(ductile_pool_end(a, pool));
    l->n_late += !is_over(l);
    NEED_OK(ductile_pause(a, pool, flags));
    NEED(is_over(l), "a pause did not wait for the peer's stream");
    NEED_OK(ductile_resume(a, pool));
    if ((flags & DUCTILE_CONTENTS_KEEP) != 0) {
        TRY(look(&l->owner->painter, &c, l->owner->stream));
    }
    NEED_OK(ductile_free(a, c.address));
    NEED_OK(ductile_pool_release(a, pool));
    NEED_OK(ductile_pool_release(a, pool));
    return NULL;
}

const char *late_before_destroy(late_work *l, ductile_allocator *a, bool is_freed) {
    canvas c;
    NEED_OK(ductile_enable_peer(a, l->peer->device));
    TRY(begin_late(l, a, &c));
    if (is_freed) {
        NEED_OK(ductile_free(a, c.address));
    }
    l->n_late += !is_over(l);
    NEED_OK(ductile_destroy(a));
    NEED(is_over(l), "an allocator ended and did not wait for the peer's stream");
    return NULL;
}
