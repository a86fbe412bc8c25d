/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that neither wait on the GPU nor are waited for, such as those of NCCL. */
#include "pool/blocks/arena.h"
#include "pool/streams/gpu_waits.h"

#include <stdlib.h>

static dpool_barred **link_of(ductile_allocator *a, ductile_stream stream, uint64_t thread) {
    dpool_barred **at = &a->barred;
    while (*at != NULL && ((*at)->stream != stream || (*at)->thread != thread)) {
        at = &(*at)->next;
    }
    return at;
}

bool dpool_is_barred_locked(const ductile_allocator *a, ductile_stream stream, uint64_t thread) {
    const dpool_barred *at = a->barred;
    stream = dpool_canonical_stream(stream);
    while (at != NULL && (at->stream != stream || at->thread != thread)) {
        at = at->next;
    }
    return at != NULL;
}

/* Takes the node over, or returns it when it is not needed. */
static dpool_barred *bar_locked(ductile_allocator *a, dpool_barred *barred) {
    dpool_barred **at = link_of(a, barred->stream, barred->thread);
    if (*at != NULL) {
        return barred;
    }
    *at = barred;
    for (dpool_arena *arena = a->arenas; arena != NULL; arena = arena->next) {
        arena->never_waits |= dpool_arena_is_of(arena, barred->stream);
    }
    dpool_wait_bar_locked(a, barred->stream, barred->thread);
    a->counts.table_host_bytes += sizeof *barred;
    return NULL;
}

void dpool_unbar_locked(ductile_allocator *a, ductile_stream stream) {
    stream = dpool_canonical_stream(stream);
    dpool_barred **at = link_of(a, stream, dpool_thread_of(stream));
    dpool_barred *gone = *at;
    if (gone != NULL) {
        *at = gone->next;
        a->counts.table_host_bytes -= sizeof *gone;
        free(gone);
    }
}

void dpool_barred_fini(ductile_allocator *a) {
    while (a->barred != NULL) {
        dpool_barred *next = a->barred->next;
        free(a->barred);
        a->barred = next;
    }
}

ductile_status ductile_stream_never_wait(ductile_allocator *a, ductile_stream stream) {
    if (a == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK) {
        return status;
    }
    dpool_barred *barred = malloc(sizeof *barred);
    if (barred == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    stream = dpool_canonical_stream(stream);
    *barred = (dpool_barred){.stream = stream, .thread = dpool_thread_of(stream)};
    dti_lock_acquire(&a->index_lock);
    barred = bar_locked(a, barred);
    dti_lock_release(&a->index_lock);
    free(barred);
    return DUCTILE_OK;
}
