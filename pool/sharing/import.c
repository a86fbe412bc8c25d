/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/sharing/import.h"

#include "pool/base/map_callbacks.h"
#include "pool/streams/host_waits.h"
#include "vmm/base/array.h"

#include <stdlib.h>

/* ---- Records ------------------------------------------------------------------------------- */

/* Grows the array under the index lock, because readers hold no other lock. The array is short and
 * rarely grows. */
ductile_status dpool_import_register(ductile_allocator *a, const dpool_import *import) {
    dpool_import *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    *copy = *import;
    dti_lock_acquire(&a->index_lock);
    dpool_imports *all = &a->imports;
    bool has_room = dti_have_room(&all->items, sizeof *all->items, &all->capacity, all->count + 1);
    if (has_room) {
        all->items[all->count++] = copy;
        a->counts.imported += copy->in.mapped_bytes;
    }
    dti_lock_release(&a->index_lock);
    if (!has_room) {
        free(copy);
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    return DUCTILE_OK;
}

static void unregister(ductile_allocator *a, uint32_t i) {
    dti_lock_acquire(&a->index_lock);
    a->counts.imported -= a->imports.items[i]->in.mapped_bytes;
    a->imports.items[i] = a->imports.items[--a->imports.count];
    dti_lock_release(&a->index_lock);
}

static dpool_import *find_live_locked(const ductile_allocator *a, ductile_addr addr) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (uint32_t i = 0; i < a->imports.count; i++) {
        dpool_import *import = a->imports.items[i];
        if (import->addr == addr && import->state == DPOOL_IMPORT_LIVE) {
            return import;
        }
    }
    return NULL;
}

/* ---- Announcing ----------------------------------------------------------------------------- */

void dpool_announce_import(ductile_allocator *a, ductile_map_change change, const dseg_foreign *in,
                           ductile_stream stream) {
    if (!dpool_announces(a)) {
        return;
    }
    ductile_map_event event = dpool_new_map_event(a, change);
    event.address = in->range.addr;
    event.size = in->range.size;
    event.stream = stream;
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dpool_announce(a, &event);
    dvmm_capture_restore(a->driver, mode);
}

/* ---- Closing ------------------------------------------------------------------------------- */

static dpool_import *begin_leaving(ductile_allocator *a, ductile_addr addr) {
    dti_lock_acquire(&a->index_lock);
    dpool_import *import = find_live_locked(a, addr);
    if (import != NULL) {
        import->state = DPOOL_IMPORT_LEAVING;
    }
    dti_lock_release(&a->index_lock);
    return import;
}

static void set_state(ductile_allocator *a, dpool_import *import, dpool_import_state state) {
    dti_lock_acquire(&a->index_lock);
    import->state = state;
    dti_lock_release(&a->index_lock);
}

/* False when a thread that ends the stream is marking the import now. *names: this thread must
 * record the marker, and may use the stream. */
static bool try_to_mark(ductile_allocator *a, dpool_import *import, bool *names) {
    dti_lock_acquire(&a->index_lock);
    bool is_free = !import->is_marking;
    *names = is_free && !import->is_gone;
    import->is_marking |= *names;
    dti_lock_release(&a->index_lock);
    return is_free;
}

static void end_marking(ductile_allocator *a, dpool_import *import) {
    dti_lock_acquire(&a->index_lock);
    import->is_marking = false;
    dti_lock_release(&a->index_lock);
}

/* The marker of a stream that is gone was recorded when the stream ended; without one, only a wait
 * for the whole device tells when the work is done. */
static ductile_status mark(ductile_allocator *a, dpool_import *import) {
    bool names = false;
    while (!try_to_mark(a, import, &names)) {
        dpool_wait_briefly();
    }
    if (!names) {
        return import->marker == NULL ? dpool_wait_for_all_work(a, &import->idle) : DUCTILE_OK;
    }
    ductile_status status = dvmm_marker_record(&a->markers, import->stream, &import->marker);
    end_marking(a, import);
    return status;
}

static ductile_status mark_leaving(ductile_allocator *a, dpool_import *import) {
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = mark(a, import);
    dvmm_capture_restore(a->driver, mode);
    return status;
}

ductile_status dpool_import_leave(ductile_allocator *a, ductile_addr addr) {
    dpool_import *import = begin_leaving(a, addr);
    if (import == NULL) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    dpool_announce_import(a, DUCTILE_MAP_LEAVING, &import->in, import->stream);
    ductile_status status = mark_leaving(a, import);
    if (status != DUCTILE_OK) {
        dpool_announce_import(a, DUCTILE_MAP_MAPPED, &import->in, import->stream);
    }
    set_state(a, import, status == DUCTILE_OK ? DPOOL_IMPORT_CLOSED : DPOOL_IMPORT_LIVE);
    return status;
}

static bool may_go(ductile_allocator *a, const dpool_import *import) {
    dti_lock_acquire(&a->index_lock);
    bool has_left = import->state == DPOOL_IMPORT_CLOSED;
    dti_lock_release(&a->index_lock);
    return has_left &&
           (import->marker == NULL || dvmm_marker_query(&a->markers, import->marker) == DUCTILE_OK);
}

static void free_import(ductile_allocator *a, dpool_import *import) {
    dvmm_marker_drop(&a->markers, import->marker);
    free(import);
}

static ductile_status unmap(ductile_allocator *a, dpool_import *import) {
    /* other streams' work is ordered before the close (ductile_import) */
    dseg_idle idle = import->marker != NULL
                         ? dseg_idle_if_joined(dseg_stream_idle_by_marker(import->marker))
                         : import->idle;
    ductile_status status = dseg_foreign_close(&a->store, &import->in, idle);
    free_import(a, import);
    return status;
}

/* Only the holder of the grow lock removes records, so the indexes of earlier ones stay valid. */
ductile_status dpool_imports_poll(ductile_allocator *a) {
    ductile_status first = DUCTILE_OK;
    for (uint32_t i = a->imports.count; i-- > 0;) {
        dpool_import *import = a->imports.items[i];
        if (may_go(a, import)) {
            unregister(a, i);
            first = dti_first_error(first, unmap(a, import));
        }
    }
    return first;
}

ductile_status dpool_import_close(ductile_allocator *a, ductile_addr addr, bool *has_left) {
    *has_left = addr == 0;
    ductile_status status = dvmm_usable(a->driver);
    if (status != DUCTILE_OK || addr == 0) {
        return status;
    }
    status = dpool_import_leave(a, addr);
    if (status != DUCTILE_OK) { /* the call that finds the device lost may only say "capturing" */
        return dti_first_error(dvmm_usable(a->driver), status);
    }
    *has_left = true;
    dvmm_capture_mode mode = dpool_grow_lock(a);
    status = dpool_imports_poll(a);
    dpool_grow_unlock(a, mode);
    return status;
}

/* ---- The end of a stream ------------------------------------------------------------------- */

static bool is_of(const dpool_import *import, ductile_stream stream) {
    return import->stream == dpool_canonical_stream(stream) && !import->is_gone;
}

bool dpool_imports_name_locked(const ductile_allocator *a, ductile_stream stream) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (uint32_t i = 0; i < a->imports.count; i++) {
        if (is_of(a->imports.items[i], stream) && a->imports.items[i]->is_marking) {
            return true;
        }
    }
    return false;
}

/* Detaches an import from the stream and returns it; NULL when none is left, except perhaps one
 * that another thread is marking. */
static dpool_import *next_of_stream(ductile_allocator *a, ductile_stream stream, bool *is_named) {
    dpool_import *found = NULL;
    dti_lock_acquire(&a->index_lock);
    for (uint32_t i = 0; i < a->imports.count && found == NULL; i++) {
        dpool_import *import = a->imports.items[i];
        if (is_of(import, stream) && !import->is_marking) {
            import->is_gone = true;
            import->is_marking =
                import->marker == NULL; /* otherwise its close recorded the marker */
            found = import->is_marking ? import : NULL;
        }
    }
    *is_named = dpool_imports_name_locked(a, stream);
    dti_lock_release(&a->index_lock);
    return found;
}

ductile_status dpool_imports_end(ductile_allocator *a, ductile_stream stream, bool *is_named) {
    ductile_status first = DUCTILE_OK;
    dpool_import *import;
    while ((import = next_of_stream(a, stream, is_named)) != NULL) {
        first = dti_first_error(first, dvmm_marker_record(&a->markers, stream, &import->marker));
        end_marking(a, import);
    }
    return first;
}

/* ---- Devices ------------------------------------------------------------------------------- */

ductile_status dpool_imports_set_device(ductile_allocator *a, int device, bool may_access) {
    uint32_t i = 0;
    ductile_status status = DUCTILE_OK;
    for (; i < a->imports.count && status == DUCTILE_OK; i++) {
        status = dseg_foreign_set_device(&a->store, &a->imports.items[i]->in, device, may_access);
    }
    while (status != DUCTILE_OK && i-- > 0) {
        (void)dseg_foreign_set_device(&a->store, &a->imports.items[i]->in, device, !may_access);
    }
    return status;
}

/* ---- Looking ------------------------------------------------------------------------------- */

static void describe(const dpool_import *import, ductile_block_info *info) {
    size_t size = info->struct_size;
    *info = (ductile_block_info){
        .struct_size = size,
        .address = import->addr,
        .size = import->size,
        .requested_size = import->size,
        .state = DUCTILE_BLOCK_IMPORTED,
        .stream = import->stream,
        .segment = import->in.range.addr,
        .segment_bytes = import->in.range.size,
    };
}

bool dpool_import_describe_locked(const ductile_allocator *a, ductile_addr addr,
                                  ductile_block_info *info) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_import *import = find_live_locked(a, addr);
    if (import != NULL) {
        describe(import, info);
    }
    return import != NULL;
}

void dpool_imports_walk_locked(const ductile_allocator *a, ductile_walk_fn visit, void *user) {
    DTI_ASSERT_HELD(&a->index_lock);
    int ended = 0;
    for (uint32_t i = 0; i < a->imports.count && ended == 0; i++) {
        if (a->imports.items[i]->state == DPOOL_IMPORT_LIVE) {
            ductile_block_info info = {.struct_size = sizeof info};
            describe(a->imports.items[i], &info);
            ended = visit(user, &info);
        }
    }
}

/* ---- Recounting ---------------------------------------------------------------------------- */

void dpool_imports_check_locked(const ductile_allocator *a, dti_fault *fault) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_imports *all = &a->imports;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < all->count; i++) {
        const dpool_import *import = all->items[i];
        dti_expect_equal(fault, "P11", "an import's range", import->in.range.size,
                         import->in.mapped_bytes, import->addr);
        bytes += import->in.mapped_bytes;
    }
    dti_expect_equal(fault, "P11", "imported bytes", a->counts.imported, bytes, 0);
}

/* ---- Destroying ---------------------------------------------------------------------------- */

ductile_status dpool_imports_fini(ductile_allocator *a, bool may_unmap, dseg_idle idle) {
    ductile_status first = DUCTILE_OK;
    while (a->imports.count > 0) {
        dpool_import *import = a->imports.items[--a->imports.count];
        if (may_unmap) {
            first = dti_first_error(first, dseg_foreign_close(&a->store, &import->in, idle));
        }
        free_import(a, import);
    }
    free(a->imports.items);
    return first;
}
