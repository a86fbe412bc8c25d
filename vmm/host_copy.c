/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/host_copy.h"

#include "vmm/base/align.h"
#include "vmm/base/array.h"
#include "vmm/captures.h"

#include <stdlib.h>

static const uint64_t least_step_bytes = 128 * DTI_MIB;

/* ---- Copies -------------------------------------------------------------------------------- */

typedef struct moving {
    dvmm_piece run; /* pieces side by side; size 0: none */
    uint64_t since_step;
    dvmm_batch batch; /* copies not issued yet */
} moving;

static ductile_status copy_singly(dvmm_host_copy *saved, const dvmm_batch *batch) {
    ductile_status status = DUCTILE_OK;
    for (uint32_t i = 0; i < batch->n && status == DUCTILE_OK; i++) {
        void *host = (void *)(uintptr_t)batch->host[i];
        status =
            batch->is_out
                ? dvmm_download(saved->driver, host, batch->device[i], batch->sizes[i], saved->busy)
                : dvmm_upload(saved->driver, batch->device[i], host, batch->sizes[i], saved->busy);
    }
    return status;
}

/* The driver has the call and the device may still not serve it: that is asked once. */
static ductile_status copy_together(dvmm_host_copy *saved, dvmm_batch *batch) {
    _Atomic bool *has_batches = &saved->arena->has_batches;
    if (batch->n < 2 || !atomic_load_explicit(has_batches, memory_order_relaxed)) {
        return DUCTILE_ERR_UNSUPPORTED;
    }
    ductile_status status = dvmm_copy_batch(saved->driver, batch, saved->busy);
    if (status == DUCTILE_ERR_UNSUPPORTED) {
        atomic_store_explicit(has_batches, false, memory_order_relaxed);
    }
    return status;
}

static ductile_status issue(dvmm_host_copy *saved, dvmm_batch *batch) {
    ductile_status status = copy_together(saved, batch);
    status = status == DUCTILE_ERR_UNSUPPORTED ? copy_singly(saved, batch) : status;
    saved->copied_bytes += batch->bytes;
    batch->n = 0;
    batch->bytes = 0;
    return status;
}

static ductile_status add_copy(dvmm_host_copy *saved, dvmm_batch *batch, dvmm_piece copy) {
    ductile_status status = batch->n == DVMM_BATCH_COPIES ? issue(saved, batch) : DUCTILE_OK;
    batch->device[batch->n] = copy.addr;
    batch->host[batch->n] = (ductile_addr)(uintptr_t)(saved->arena->base + copy.at);
    batch->sizes[batch->n++] = copy.size;
    batch->bytes += copy.size;
    return status;
}

/* One copy for each extent of the arena that the bytes lie in. */
static ductile_status add_copies(dvmm_host_copy *saved, dvmm_batch *batch, dvmm_piece run) {
    ductile_status status = DUCTILE_OK;
    while (run.size > 0 && status == DUCTILE_OK) {
        uint64_t part = dti_min(run.size, dvmm_host_arena_rest(saved->arena, run.at));
        status = add_copy(saved, batch, (dvmm_piece){.addr = run.addr, .at = run.at, .size = part});
        run.addr += part;
        run.at += part;
        run.size -= part;
    }
    return status;
}

static void drop_steps(dvmm_host_copy *saved) {
    while (saved->next_step < saved->n_steps) {
        (void)dvmm_event_destroy(saved->driver, saved->steps[saved->next_step++].event);
    }
    saved->n_steps = saved->next_step = 0;
}

/* Waits for the copies. A stream whose wait failed is kept: its copies may land at any time, and a
 * later wait may see their end. */
static ductile_status finish(dvmm_host_copy *saved) {
    ductile_status status =
        saved->busy != NULL ? dvmm_stream_sync(saved->driver, saved->busy) : DUCTILE_OK;
    if (status == DUCTILE_OK && saved->busy != NULL) {
        (void)dvmm_stream_destroy(saved->driver, saved->busy);
        saved->busy = NULL;
        drop_steps(saved);
    }
    return status;
}

/* ---- Steps of a save ----------------------------------------------------------------------- */

/* Without an event the step is part of the next, or of the wait for all. */
static void end_step(dvmm_host_copy *saved, uint64_t n_pieces) {
    dvmm_event event = NULL;
    if (saved->n_steps == DVMM_COPY_STEPS ||
        dvmm_event_create(saved->driver, &event) != DUCTILE_OK) {
        return;
    }
    if (dvmm_event_record(saved->driver, event, saved->busy) == DUCTILE_OK) {
        saved->steps[saved->n_steps++] = (dvmm_copy_step){event, n_pieces};
    } else {
        (void)dvmm_event_destroy(saved->driver, event);
    }
}

static ductile_status wait_for_step(dvmm_host_copy *saved, ductile_addr *until) {
    dvmm_copy_step step = saved->steps[saved->next_step];
    ductile_status status = dvmm_event_sync(saved->driver, step.event);
    if (status == DUCTILE_OK) {
        (void)dvmm_event_destroy(saved->driver, step.event);
        saved->next_step++;
        saved->n_saved = step.n_pieces;
        *until = saved->pieces[step.n_pieces - 1].addr + saved->pieces[step.n_pieces - 1].size;
    }
    return status;
}

ductile_status dvmm_host_copy_wait_next(dvmm_host_copy *saved, ductile_addr *until) {
    if (saved->next_step < saved->n_steps && wait_for_step(saved, until) == DUCTILE_OK) {
        return DUCTILE_OK;
    }
    ductile_status status = finish(saved);
    if (status == DUCTILE_OK) {
        saved->n_saved = saved->n_pieces;
        *until = UINT64_MAX;
    }
    return status;
}

/* ---- Runs of pieces ------------------------------------------------------------------------ */

static bool follows(const dvmm_piece *run, const dvmm_piece *piece) {
    return run->addr + run->size == piece->addr && run->at + run->size == piece->at;
}

static ductile_status end_run(dvmm_host_copy *saved, moving *m) {
    dvmm_piece run = m->run;
    m->run.size = 0;
    m->since_step += run.size;
    if (saved->fills && run.size > 0) {
        return dvmm_fill(saved->driver, run.addr, saved->value, run.size, saved->busy);
    }
    return add_copies(saved, &m->batch, run);
}

static ductile_status issue_all(dvmm_host_copy *saved, moving *m) {
    ductile_status status = end_run(saved, m);
    return status == DUCTILE_OK && m->batch.n > 0 ? issue(saved, &m->batch) : status;
}

static ductile_status add_piece(dvmm_host_copy *saved, moving *m, const dvmm_piece *piece) {
    ductile_status status = DUCTILE_OK;
    if (m->run.size == 0 || !follows(&m->run, piece)) {
        status = end_run(saved, m);
        m->run = *piece;
    } else {
        m->run.size += piece->size;
    }
    return status;
}

static ductile_status maybe_end_step(dvmm_host_copy *saved, moving *m, uint64_t n_pieces,
                                     uint64_t step_bytes) {
    if (m->since_step + m->run.size < step_bytes) {
        return DUCTILE_OK;
    }
    ductile_status status = issue_all(saved, m);
    if (status == DUCTILE_OK && n_pieces < saved->n_pieces) {
        end_step(saved, n_pieces);
    }
    m->since_step = 0;
    return status;
}

static ductile_status save_pieces(dvmm_host_copy *saved) {
    uint64_t step_bytes = dti_max(saved->bytes / DVMM_COPY_STEPS, least_step_bytes);
    moving m = {.batch.is_out = true};
    ductile_status status = DUCTILE_OK;
    saved->copied_bytes = 0;
    for (uint64_t i = 0; i < saved->n_pieces && status == DUCTILE_OK; i++) {
        status = add_piece(saved, &m, &saved->pieces[i]);
        if (status == DUCTILE_OK) {
            status = maybe_end_step(saved, &m, i + 1, step_bytes);
        }
    }
    return status == DUCTILE_OK ? issue_all(saved, &m) : status;
}

/* ---- Saving and restoring ------------------------------------------------------------------ */

static int by_address(const void *l, const void *r) {
    const dvmm_piece *left = l;
    const dvmm_piece *right = r;
    return (left->addr > right->addr) - (left->addr < right->addr);
}

static void sort(dvmm_host_copy *saved) {
    qsort(saved->pieces, saved->n_pieces, sizeof *saved->pieces, by_address);
    for (uint64_t i = 0; i < saved->n_pieces; i++) {
        saved->bytes += saved->pieces[i].size;
    }
}

static void give_spans(dvmm_host_copy *saved) {
    for (uint32_t i = 0; i < saved->n_spans; i++) {
        dvmm_host_arena_give(saved->arena, saved->spans[i]);
    }
    saved->n_spans = 0;
}

/* The places of the copy before, where each piece is as large as then. */
static bool keep_places(dvmm_host_copy *saved, const dvmm_host_copy *before) {
    bool is_same = before->n_pieces == saved->n_pieces && before->n_spans > 0;
    for (uint64_t i = 0; i < saved->n_pieces && is_same; i++) {
        is_same = before->pieces[i].size == saved->pieces[i].size;
        saved->pieces[i].at = before->pieces[i].at;
    }
    return is_same;
}

static dvmm_host_span *add_span(dvmm_host_copy *saved, uint64_t size, uint64_t least,
                                ductile_status *status) {
    bool has_room =
        dti_have_room(&saved->spans, sizeof *saved->spans, &saved->spans_room, saved->n_spans + 1);
    dvmm_host_span *span = has_room ? &saved->spans[saved->n_spans] : NULL;
    *status = has_room ? dvmm_host_arena_take(saved->arena, size, least, span)
                       : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    saved->n_spans += *status == DUCTILE_OK;
    return span;
}

/* Places pieces from *next on in the span, as many as it has room for; returns their bytes. */
static uint64_t fill_span(dvmm_host_copy *saved, dvmm_host_span *span, uint64_t *next) {
    uint64_t used = 0;
    for (; *next < saved->n_pieces && saved->pieces[*next].size <= span->size - used; ++*next) {
        saved->pieces[*next].at = span->at + used;
        used += saved->pieces[*next].size;
    }
    dvmm_host_arena_cut(saved->arena, span, used);
    return used;
}

static ductile_status take_places(dvmm_host_copy *saved) {
    ductile_status status = DUCTILE_OK;
    uint64_t left = saved->bytes;
    for (uint64_t i = 0; i < saved->n_pieces && status == DUCTILE_OK;) {
        dvmm_host_span *span = add_span(saved, left, saved->pieces[i].size, &status);
        left -= status == DUCTILE_OK ? fill_span(saved, span, &i) : 0;
    }
    return status;
}

/* Takes over the host memory of `before`. */
static ductile_status find_places(dvmm_host_copy *saved, dvmm_host_copy *before) {
    saved->spans = before->spans;
    saved->n_spans = before->n_spans;
    saved->spans_room = before->spans_room;
    if (keep_places(saved, before)) {
        return DUCTILE_OK;
    }
    give_spans(saved);
    return take_places(saved);
}

static ductile_status begin_save(dvmm_host_copy *saved) {
    DTI_TRY(dvmm_stream_create(saved->driver, &saved->busy));
    return save_pieces(saved);
}

ductile_status dvmm_host_copy_save(dvmm_host_copy *saved, dvmm_host_arena *arena,
                                   dvmm_piece *pieces, uint64_t n_pieces) {
    dvmm_host_copy before = *saved;
    *saved = (dvmm_host_copy){
        .driver = arena->driver, .arena = arena, .pieces = pieces, .n_pieces = n_pieces};
    sort(saved);
    ductile_status status = find_places(saved, &before);
    free(before.pieces);
    if (status == DUCTILE_OK && n_pieces > 0) {
        status = begin_save(saved);
    }
    if (status != DUCTILE_OK) {
        dvmm_host_copy_drop(saved);
    }
    return status;
}

void dvmm_host_copy_fill(dvmm_host_copy *saved, dvmm_driver *driver, dvmm_piece *pieces,
                         uint64_t n_pieces, uint8_t value) {
    *saved = (dvmm_host_copy){.driver = driver,
                              .pieces = pieces,
                              .n_pieces = n_pieces,
                              .n_saved = n_pieces,
                              .fills = true,
                              .value = value};
    sort(saved);
}

ductile_status dvmm_host_copy_begin_restore(dvmm_host_copy *saved) {
    ductile_status status = finish(saved); /* the copies of an earlier attempt */
    saved->copied_bytes = 0;
    bool has_some = status == DUCTILE_OK && saved->n_pieces > 0;
    return has_some ? dvmm_stream_create(saved->driver, &saved->busy) : status;
}

/* The number of the first piece that ends above the address. */
static uint64_t first_above(const dvmm_host_copy *saved, ductile_addr addr) {
    uint64_t at = 0;
    DTI_FIRST(at, saved->n_pieces, saved->pieces[at].addr + saved->pieces[at].size > addr);
    return at;
}

static dvmm_piece part_between(const dvmm_piece *piece, ductile_addr from, ductile_addr to) {
    ductile_addr first = dti_max(piece->addr, from);
    ductile_addr end = dti_min(piece->addr + piece->size, to);
    return (dvmm_piece){.addr = first, .size = end - first, .at = piece->at + first - piece->addr};
}

ductile_status dvmm_host_copy_restore_between(dvmm_host_copy *saved, ductile_addr from,
                                              ductile_addr to,
                                              bool (*wants)(void *user, ductile_addr addr),
                                              void *user) {
    moving m = {.batch.is_out = false};
    ductile_status status = DUCTILE_OK;
    for (uint64_t i = first_above(saved, from);
         i < saved->n_pieces && saved->pieces[i].addr < to && status == DUCTILE_OK; i++) {
        const dvmm_piece *piece = &saved->pieces[i];
        if (!piece->has_stayed && wants(user, piece->addr)) {
            dvmm_piece part = part_between(piece, from, to);
            status = add_piece(saved, &m, &part);
        }
    }
    return status == DUCTILE_OK ? issue_all(saved, &m) : status;
}

ductile_status dvmm_host_copy_end_restore(dvmm_host_copy *saved) {
    return finish(saved);
}

/* ---- Reading and dropping ------------------------------------------------------------------ */

uint8_t *dvmm_host_copy_find(const dvmm_host_copy *saved, ductile_addr addr, uint64_t *bytes) {
    uint64_t i = saved->fills ? saved->n_pieces : first_above(saved, addr);
    const dvmm_piece *piece = i < saved->n_pieces ? &saved->pieces[i] : NULL;
    if (piece == NULL || addr < piece->addr) {
        return NULL;
    }
    *bytes = piece->size - (addr - piece->addr);
    return piece->has_stayed ? NULL : saved->arena->base + piece->at + (addr - piece->addr);
}

/* Leaves spans that a copy may still use to the end of the process. */
void dvmm_host_copy_drop(dvmm_host_copy *saved) {
    if (saved->busy != NULL) { /* without its stream a copy has no steps */
        dvmm_capture_mode mode = dvmm_capture_relax(saved->driver);
        (void)finish(saved);
        drop_steps(saved);
        dvmm_capture_restore(saved->driver, mode);
    }
    if (saved->busy == NULL) {
        give_spans(saved);
    }
    free(saved->spans);
    free(saved->pieces);
    *saved = (dvmm_host_copy){0};
}
