/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues of work and when it runs. An operation has its effect at one moment, that of its
 * completion, and none before. Operations of a queue run in order.
 *
 * Every operation keeps the spans it uses and its place in its queue, so that an observer can
 * compare what the program ordered with what memory saw.
 */
#include "vmm/virtual/work/work.h"

#include "vmm/base/array.h"
#include "vmm/base/check.h"
#include "vmm/base/lock.h"
#include "vmm/virtual/addresses/content.h"
#include "vmm/virtual/memory/memory.h"
#include "vmm/virtual/race/order.h"
#include "vmm/virtual/race/race.h"
#include "vmm/virtual/state/clock.h"
#include "vmm/virtual/state/slots.h"
#include "vmm/virtual/state/state.h"
#include "vmm/virtual/state/watch.h"

#include <stdlib.h>
#include <string.h>

/* ---- Markers and operations ---------------------------------------------------------------- */

vgpu_marker *dvmm_vgpu_marker_new(vgpu_queue *queue) {
    vgpu_marker *marker = malloc(sizeof(*marker));
    if (marker != NULL) {
        *marker = (vgpu_marker){.n_refs = 1, .queue = queue};
    }
    return marker;
}

void dvmm_vgpu_marker_drop(vgpu_marker *marker) {
    if (marker != NULL && --marker->n_refs == 0) {
        while (marker->n_parts != 0) {
            dvmm_vgpu_marker_drop(marker->parts[--marker->n_parts]);
        }
        free(marker->parts);
        dvmm_vgpu_clock_fini(&marker->after);
        free(marker);
    }
}

/* Forgets the parts that are done. */
static bool parts_are_done(vgpu_marker *marker) {
    while (marker->n_parts != 0 && marker->parts[marker->n_parts - 1]->is_done) {
        dvmm_vgpu_marker_drop(marker->parts[--marker->n_parts]);
    }
    return marker->n_parts == 0;
}

vgpu_op *dvmm_vgpu_op_new(vgpu_op_kind kind, size_t n_uses) {
    if (n_uses > (SIZE_MAX - sizeof(vgpu_op)) / sizeof(ductile_virtual_use)) {
        return NULL;
    }
    vgpu_op *op = malloc(sizeof(*op) + n_uses * sizeof(op->uses[0]));
    if (op != NULL) {
        *op = (vgpu_op){.kind = kind, .n_uses = n_uses};
    }
    return op;
}

vgpu_op *dvmm_vgpu_marker_op(vgpu_op_kind kind, vgpu_marker *marker) {
    vgpu_op *op = dvmm_vgpu_op_new(kind, 0);
    if (op != NULL) {
        op->marker = marker;
        marker->n_refs++;
    }
    return op;
}

void dvmm_vgpu_op_free(vgpu_op *op) {
    if (op == NULL) {
        return;
    }
    dvmm_vgpu_marker_drop(op->marker);
    free(op->bytes);
    free(op->owners);
    free(op);
}

/* ---- Queues -------------------------------------------------------------------------------- */

vgpu_queue *dvmm_vgpu_queue_new(vgpu *gpu) {
    vgpu_queue *queue = calloc(1, sizeof(*queue));
    if (queue != NULL) {
        queue->has_stream = true;
        queue->id = ++gpu->work.next_id;
    }
    return queue;
}

static void link_busy(vgpu_work *work, vgpu_queue *queue) {
    queue->prev_busy = NULL;
    queue->next_busy = work->busy;
    if (work->busy != NULL) {
        work->busy->prev_busy = queue;
    }
    work->busy = queue;
}

static void unlink_busy(vgpu_work *work, vgpu_queue *queue) {
    if (queue->prev_busy != NULL) {
        queue->prev_busy->next_busy = queue->next_busy;
    } else {
        work->busy = queue->next_busy;
    }
    if (queue->next_busy != NULL) {
        queue->next_busy->prev_busy = queue->prev_busy;
    }
}

static void append(vgpu_work *work, vgpu_queue *queue, vgpu_op *op) {
    op->schedule = work->schedule;
    op->due = work->now + work->lag;
    if (queue->first == NULL) {
        queue->first = op;
        link_busy(work, queue);
    } else {
        queue->last->next = op;
    }
    queue->last = op;
}

static void link_blocking(vgpu *gpu, vgpu_queue *queue) {
    queue->is_blocking = true;
    queue->next_blocking = gpu->work.blocking;
    gpu->work.blocking = queue;
}

/* The legacy stream comes after the work of a blocking one, also once that one is gone. */
static void unblock(vgpu *gpu, vgpu_queue *queue) {
    if (gpu->work.legacy != NULL) {
        dvmm_vgpu_order_after_queue(gpu, gpu->work.legacy, queue);
    }
    DTI_UNLINK(gpu->work.blocking, queue, next_blocking);
}

static void free_queue(vgpu *gpu, vgpu_queue *queue) {
    if (queue->is_blocking) {
        unblock(gpu, queue);
    }
    dvmm_vgpu_order_fini_queue(gpu, queue);
    free(queue);
}

/* Afterwards the queue may be gone: the caller must not touch it again unless it has a stream. */
static void remove_first(vgpu *gpu, vgpu_queue *queue) {
    vgpu_op *op = queue->first;
    queue->first = op->next;
    dvmm_vgpu_op_free(op);
    if (queue->first == NULL) {
        unlink_busy(&gpu->work, queue);
        if (!queue->has_stream) {
            free_queue(gpu, queue);
        }
    }
}

void dvmm_vgpu_queue_orphan(vgpu *gpu, vgpu_queue *queue) {
    queue->has_stream = false;
    if (queue->first == NULL) {
        free_queue(gpu, queue);
    }
}

/* ---- Running ------------------------------------------------------------------------------- */

static bool word_is_reached(const vgpu_op *op) {
    if (op->word == NULL) {
        return true;
    }
    uint64_t now = __atomic_load_n(op->word, __ATOMIC_ACQUIRE);
    return (int64_t)(now - op->value) >= 0; /* cyclic, as the hardware compares */
}

static bool is_blocked(const vgpu_op *op) {
    switch (op->kind) {
    case VGPU_OP_WAIT:
        return !op->marker->is_done;
    case VGPU_OP_WAIT_VALUE:
        return !word_is_reached(op);
    case VGPU_OP_RECORD:
        return !parts_are_done(op->marker);
    case VGPU_OP_USE:
    case VGPU_OP_FILL:
    case VGPU_OP_COPY:
    case VGPU_OP_UPLOAD:
    case VGPU_OP_DOWNLOAD:
        return false;
    }
    return false;
}

static bool is_due(const vgpu *gpu, const vgpu_op *op) {
    switch (op->schedule) {
    case DUCTILE_SCHEDULE_EAGER:
        return true;
    case DUCTILE_SCHEDULE_LAGGING:
        return gpu->work.now >= op->due;
    case DUCTILE_SCHEDULE_RANDOM:
        return op->is_chosen;
    case DUCTILE_SCHEDULE_LAZY:
        return false;
    }
    return false;
}

static bool uses_are_accessible(const vgpu *gpu, const vgpu_op *op, int device) {
    for (size_t i = 0; i < op->n_uses; i++) {
        const ductile_virtual_use *use = &op->uses[i];
        dvmm_access access = use->writes ? DVMM_ACCESS_RW : DVMM_ACCESS_READ;
        if (!dvmm_vgpu_is_accessible(gpu, use->address, use->size, device, access)) {
            return false;
        }
    }
    return true;
}

/* Bytes that are all alike take no room. Host memory that has gone leaves nothing. */
static bool upload(vgpu *gpu, const vgpu_op *op) {
    const ductile_virtual_use *to = &op->uses[0];
    const uint8_t *from = op->bytes != NULL ? op->bytes : op->host;
    if (from == NULL || to->size == 0) {
        return true;
    }
    bool is_one_value = memcmp(from, from + 1, to->size - 1) == 0;
    return is_one_value ? dvmm_vgpu_write_value(gpu, to->address, from[0], to->size)
                        : dvmm_vgpu_write_bytes(gpu, to->address, from, to->size);
}

/* A kernel's own results are not modelled: what it writes stays as it was. */
static bool change_memory(vgpu *gpu, vgpu_op *op) {
    const ductile_virtual_use *to = &op->uses[0];
    switch (op->kind) {
    case VGPU_OP_FILL:
        return dvmm_vgpu_write_value(gpu, to->address, (uint8_t)op->value, to->size);
    case VGPU_OP_COPY:
        return dvmm_vgpu_copy_bytes(gpu, to->address, op->uses[1].address, to->size);
    case VGPU_OP_UPLOAD:
        return upload(gpu, op);
    case VGPU_OP_DOWNLOAD:
        if (op->host != NULL) {
            dvmm_vgpu_read_bytes(gpu, op->host, to->address, to->size);
        }
        return true;
    case VGPU_OP_RECORD:
        op->marker->is_done = true;
        return true;
    case VGPU_OP_USE:
    case VGPU_OP_WAIT:
    case VGPU_OP_WAIT_VALUE:
        return true;
    }
    return true;
}

static void run_first(vgpu *gpu, vgpu_queue *queue) {
    vgpu_op *op = queue->first;
    if (!uses_are_accessible(gpu, op, queue->device)) {
        dvmm_vgpu_poison(gpu, DVMM_ILLEGAL_ADDRESS);
    } else if (!change_memory(gpu, op)) {
        dvmm_vgpu_violation(gpu, "the host has no memory left to keep the contents of the device");
        dvmm_vgpu_poison(gpu, DVMM_UNKNOWN);
    }
    remove_first(gpu, queue);
}

/* How many ran. A poisoned device runs nothing more. */
static uint64_t run_ready(vgpu *gpu, vgpu_queue *queue) {
    uint64_t n = 0;
    bool is_last = false;
    while (!is_last && gpu->poison == 0 && is_due(gpu, queue->first) && !is_blocked(queue->first)) {
        is_last = queue->first->next == NULL; /* after it the queue may be gone */
        run_first(gpu, queue);
        n++;
    }
    return n;
}

/* ---- The dice ------------------------------------------------------------------------------ */

static bool coin(vgpu_work *work) {
    work->dice ^= work->dice << 13;
    work->dice ^= work->dice >> 7;
    work->dice ^= work->dice << 17;
    return ((work->dice >> 32) & 1) != 0;
}

static void roll_for(vgpu_work *work, vgpu_queue *queue) {
    for (vgpu_op *op = queue->first; op != NULL && coin(work); op = op->next) {
        op->is_chosen = true;
    }
}

static void roll_for_all(vgpu_work *work) {
    for (vgpu_queue *queue = work->busy; queue != NULL; queue = queue->next_busy) {
        roll_for(work, queue);
    }
}

/* ---- Progress ------------------------------------------------------------------------------ */

/* One queue's progress may unblock another, so this goes on until nothing moves. */
void dvmm_vgpu_progress(vgpu *gpu, bool roll) {
    DTI_ASSERT_HELD(&gpu->lock);
    if (roll) {
        roll_for_all(&gpu->work);
    }
    uint64_t n_run;
    do {
        n_run = 0;
        vgpu_queue *next;
        for (vgpu_queue *queue = gpu->work.busy; queue != NULL; queue = next) {
            next = queue->next_busy;
            n_run += run_ready(gpu, queue);
        }
    } while (n_run != 0 && gpu->work.busy != NULL);
}

void dvmm_vgpu_enqueue(vgpu *gpu, vgpu_queue *queue, vgpu_op *op) {
    dvmm_vgpu_race_issue(gpu, queue, op);
    append(&gpu->work, queue, op);
    dvmm_vgpu_progress(gpu, false);
}

/* ---- The legacy stream --------------------------------------------------------------------- */

/* Later work of `queue` waits for the work of `on` so far. */
static int wait_for_queue(vgpu *gpu, vgpu_queue *queue, vgpu_queue *on) {
    dvmm_vgpu_order_after_queue(gpu, queue, on);
    if (on->first == NULL) {
        return DVMM_SUCCESS;
    }
    vgpu_marker *marker = dvmm_vgpu_marker_new(on);
    vgpu_op *record = marker != NULL ? dvmm_vgpu_marker_op(VGPU_OP_RECORD, marker) : NULL;
    vgpu_op *wait = record != NULL ? dvmm_vgpu_marker_op(VGPU_OP_WAIT, marker) : NULL;
    dvmm_vgpu_marker_drop(marker);
    if (wait == NULL) {
        if (record != NULL) {
            dvmm_vgpu_op_free(record);
        }
        return DVMM_OUT_OF_MEMORY;
    }
    dvmm_vgpu_enqueue(gpu, on, record);
    dvmm_vgpu_enqueue(gpu, queue, wait);
    return DVMM_SUCCESS;
}

static vgpu_queue *next_to_wait_for(const vgpu_work *work) {
    vgpu_queue *queue = work->blocking;
    while (queue != NULL && queue->last_barrier == work->n_barriers) {
        queue = queue->next_blocking;
    }
    return queue;
}

/* Queues without a stream may run and be gone while this goes on: so it starts again after each. */
static int wait_for_blocking(vgpu *gpu, vgpu_queue *queue) {
    int code = DVMM_SUCCESS;
    vgpu_queue *on;
    gpu->work.n_barriers++;
    while (code == DVMM_SUCCESS && (on = next_to_wait_for(&gpu->work)) != NULL) {
        on->last_barrier = gpu->work.n_barriers;
        code = wait_for_queue(gpu, queue, on);
    }
    return code;
}

int dvmm_vgpu_barrier(vgpu *gpu, vgpu_queue *queue) {
    if (queue == gpu->work.legacy) {
        return wait_for_blocking(gpu, queue);
    }
    bool waits = queue->is_blocking && gpu->work.legacy != NULL;
    return waits ? wait_for_queue(gpu, queue, gpu->work.legacy) : DVMM_SUCCESS;
}

/* ---- The context --------------------------------------------------------------------------- */

/* The marker that ends the queue is a part already. A new one would keep the queue at work. */
static bool share_last(const vgpu_queue *queue, vgpu_marker *whole) {
    vgpu_marker *last = queue->last->kind == VGPU_OP_RECORD ? queue->last->marker : NULL;
    if (last != NULL) {
        last->n_refs++;
        whole->parts[whole->n_parts++] = last;
    }
    return last != NULL;
}

/* A part is no work: it is done with the work before it. */
static bool add_part(vgpu *gpu, vgpu_queue *queue, vgpu_marker *whole) {
    if (share_last(queue, whole)) {
        return true;
    }
    vgpu_marker *part = dvmm_vgpu_marker_new(queue);
    vgpu_op *record = part != NULL ? dvmm_vgpu_marker_op(VGPU_OP_RECORD, part) : NULL;
    if (record == NULL) {
        dvmm_vgpu_marker_drop(part);
        return false;
    }
    whole->parts[whole->n_parts++] = part;
    append(&gpu->work, queue, record);
    record->schedule = DUCTILE_SCHEDULE_EAGER;
    return true;
}

static size_t count_busy(const vgpu_work *work) {
    size_t n = 0;
    for (const vgpu_queue *queue = work->busy; queue != NULL; queue = queue->next_busy) {
        n++;
    }
    return n;
}

/* Nothing runs meanwhile, so the queues at work stay. Earlier events of the context are no work. */
bool dvmm_vgpu_add_parts(vgpu *gpu, vgpu_marker *marker) {
    const vgpu_work *work = &gpu->work;
    marker->parts = calloc(count_busy(work) + 1, sizeof(vgpu_marker *));
    bool has_memory = marker->parts != NULL;
    for (vgpu_queue *queue = work->busy; has_memory && queue != NULL; queue = queue->next_busy) {
        if (!queue->is_foreign && queue != work->context) {
            has_memory = add_part(gpu, queue, marker);
        }
    }
    return has_memory;
}

/* ---- Forcing ------------------------------------------------------------------------------- */

static int report_stuck(vgpu *gpu) {
    dvmm_vgpu_violation(gpu,
                        "a wait for work that itself waits for a value that has not been written");
    return DVMM_UNKNOWN;
}

static int force_parts(vgpu *gpu, vgpu_marker *marker) {
    int code = DVMM_SUCCESS;
    while (code == DVMM_SUCCESS && !parts_are_done(marker)) {
        code = dvmm_vgpu_force_marker(gpu, marker->parts[marker->n_parts - 1]);
    }
    return code;
}

/* Runs what the operation waits for. */
static int force_before(vgpu *gpu, const vgpu_op *op) {
    if (op->kind == VGPU_OP_WAIT) {
        return dvmm_vgpu_force_marker(gpu, op->marker);
    }
    return op->kind == VGPU_OP_RECORD ? force_parts(gpu, op->marker) : DVMM_SUCCESS;
}

/* Runs the first operation of a queue, whatever its schedule says. */
static int force_first(vgpu *gpu, vgpu_queue *queue) {
    vgpu_op *op = queue->first;
    DTI_TRY(force_before(gpu, op));
    if (is_blocked(op)) {
        return report_stuck(gpu);
    }
    run_first(gpu, queue);
    return gpu->poison;
}

/* The recursion through force_first ends: an operation waits only for markers recorded before it
 * was issued, so no queue is entered twice. */
int dvmm_vgpu_force_marker(vgpu *gpu, vgpu_marker *marker) {
    int code = gpu->poison;
    while (code == DVMM_SUCCESS && !marker->is_done) {
        code = force_first(gpu, marker->queue);
    }
    return code;
}

int dvmm_vgpu_force_queue(vgpu *gpu, vgpu_queue *queue) {
    int code = gpu->poison;
    while (code == DVMM_SUCCESS && queue->first != NULL) {
        code = force_first(gpu, queue);
    }
    return code;
}

static vgpu_queue *first_busy_here(const vgpu *gpu) {
    vgpu_queue *queue = gpu->work.busy;
    while (queue != NULL && queue->is_foreign) {
        queue = queue->next_busy;
    }
    return queue;
}

int dvmm_vgpu_force_context(vgpu *gpu) {
    int code = gpu->poison;
    vgpu_queue *queue = NULL;
    while (code == DVMM_SUCCESS && (queue = first_busy_here(gpu)) != NULL) {
        code = force_first(gpu, queue);
    }
    return code;
}

void dvmm_vgpu_forget_words(vgpu *gpu, const vgpu_host_block *block) {
    for (vgpu_queue *queue = gpu->work.busy; queue != NULL; queue = queue->next_busy) {
        for (vgpu_op *op = queue->first; op != NULL; op = op->next) {
            uintptr_t distance = (uintptr_t)op->word - (uintptr_t)block->memory;
            if (op->word != NULL && distance < block->size) {
                dvmm_vgpu_violation(gpu, "host_free of memory that a stream waits for");
                op->word = NULL;
            }
            uintptr_t offset = (uintptr_t)op->host - (uintptr_t)block->memory;
            if (op->host != NULL && offset < block->size) {
                dvmm_vgpu_violation(gpu, "host memory goes while a copy of it is under way");
                op->host = NULL;
            }
        }
    }
}

void dvmm_vgpu_work_fini(vgpu *gpu) {
    while (gpu->work.busy != NULL) {
        remove_first(gpu, gpu->work.busy);
    }
}

/* ---- The queue of a stream ------------------------------------------------------------------ */

enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

static int have_queue(vgpu *gpu, vgpu_queue **queue) {
    if (*queue == NULL) {
        *queue = dvmm_vgpu_queue_new(gpu);
    }
    return *queue != NULL ? DVMM_SUCCESS : DVMM_OUT_OF_MEMORY;
}

static vgpu_thread_stream *thread_stream(vgpu *gpu) {
    uint64_t thread = dti_thread_number();
    vgpu_thread_stream *stream = gpu->work.thread_streams;
    while (stream != NULL && stream->thread != thread) {
        stream = stream->next;
    }
    if (stream == NULL && (stream = calloc(1, sizeof(*stream))) != NULL) {
        stream->thread = thread;
        stream->next = gpu->work.thread_streams;
        gpu->work.thread_streams = stream;
    }
    return stream;
}

static int legacy_queue(vgpu *gpu, vgpu_queue **out) {
    int code = have_queue(gpu, &gpu->work.legacy);
    *out = gpu->work.legacy;
    return code;
}

int dvmm_vgpu_context_queue(vgpu *gpu, vgpu_queue **out) {
    int code = have_queue(gpu, &gpu->work.context);
    *out = gpu->work.context;
    return code;
}

/* The legacy stream has to be there to come after the queue's work when that is gone. */
int dvmm_vgpu_queue_block(vgpu *gpu, vgpu_queue *queue) {
    vgpu_queue *legacy;
    int code = legacy_queue(gpu, &legacy);
    if (code == DVMM_SUCCESS) {
        link_blocking(gpu, queue);
    }
    return code;
}

static int per_thread_queue(vgpu *gpu, vgpu_queue **out) {
    vgpu_thread_stream *stream = thread_stream(gpu);
    if (stream == NULL) {
        return DVMM_OUT_OF_MEMORY;
    }
    int code = have_queue(gpu, &stream->queue);
    if (code == DVMM_SUCCESS && !stream->queue->is_blocking) {
        stream->queue->handle = (ductile_stream)PER_THREAD_STREAM;
        code = dvmm_vgpu_queue_block(gpu, stream->queue);
    }
    *out = stream->queue;
    return code;
}

int dvmm_vgpu_find_queue(vgpu *gpu, ductile_stream stream, vgpu_queue **out) {
    if (stream == NULL || (uintptr_t)stream == LEGACY_STREAM) {
        return legacy_queue(gpu, out);
    }
    if ((uintptr_t)stream == PER_THREAD_STREAM) {
        return per_thread_queue(gpu, out);
    }
    vgpu_stream *found = dvmm_slots_find_handle(&gpu->work.streams, stream);
    if (found == NULL) {
        dvmm_vgpu_violation(gpu, "use of stream %p, which does not exist", (void *)stream);
        return DVMM_INVALID_HANDLE;
    }
    *out = found->queue;
    return DVMM_SUCCESS;
}
