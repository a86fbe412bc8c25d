/* SPDX-License-Identifier: Apache-2.0 */
/* Work of the virtual GPU: queues, streams, events, captures.
 * Every function is called with gpu->lock held; those that return int return the driver's code. */
#ifndef DUCTILE_VMM_VIRTUAL_WORK_WORK_H
#define DUCTILE_VMM_VIRTUAL_WORK_WORK_H

#include "vmm/driver/driver.h"
#include "vmm/virtual/race/race.h"
#include "vmm/virtual/slots.h"

#include <ductile_virtual.h>

typedef struct ductile_virtual_gpu vgpu;

/* Whether one recording of an event has been reached. Shared by the event, the operation that
 * records it and the operations that wait for it; the last one frees it. */
typedef struct vgpu_marker {
    uint32_t n_refs;
    bool is_done;
    struct vgpu_queue *queue; /* where it is recorded; valid until done */
    vgpu_clock after;         /* the work it stands for                 */
} vgpu_marker;

typedef enum vgpu_op_kind {
    VGPU_OP_USE = 0,    /* a kernel: reads and writes the spans */
    VGPU_OP_FILL,       /* uses[0] is written                   */
    VGPU_OP_COPY,       /* uses[0] is written, uses[1] read     */
    VGPU_OP_UPLOAD,     /* uses[0] is written                   */
    VGPU_OP_RECORD,     /* reaches the marker                   */
    VGPU_OP_WAIT,       /* for the marker                       */
    VGPU_OP_WAIT_VALUE, /* for the host's word                  */
} vgpu_op_kind;

/* One operation in a queue. Owned by the queue. */
typedef struct vgpu_op {
    struct vgpu_op *next;
    vgpu_op_kind kind;
    ductile_schedule schedule; /* as of its issue                    */
    uint64_t due;              /* LAGGING: the moment it may run     */
    bool is_chosen;            /* RANDOM: the dice have said yes     */
    vgpu_marker *marker;       /* RECORD, WAIT: holds a reference    */
    const uint64_t *word;      /* WAIT_VALUE: NULL when it was freed */
    uint64_t value;            /* WAIT_VALUE; FILL: the byte         */
    uint8_t *bytes;            /* UPLOAD: owned                      */
    uint64_t *owners;          /* captured: the block of each use; owned. NULL: look when issued */
    size_t n_uses;
    ductile_virtual_use uses[];
} vgpu_op;

/* Work in the order of its capture, and the mappings it uses, by number and generation. */
typedef struct vgpu_script {
    vgpu_op *first, *last;
    dvmm_slot *held;
    size_t n_held, held_room;
} vgpu_script;

/* The work of one stream, in order. Outlives the stream's handle until it has all run. */
typedef struct vgpu_queue {
    struct vgpu_queue *next_busy, *prev_busy; /* valid while `first` is not NULL */
    vgpu_op *first, *last;
    bool has_stream;              /* some stream handle names it     */
    int device;                   /* of the machine; 0: this one     */
    uint64_t id;                  /* never reused                    */
    struct vgpu_capture *capture; /* the capture it is in, or NULL   */
    struct vgpu_queue *next_captured;
    uint64_t loose_step;   /* captured: of its last work, which no member has waited for; 0: none */
    ductile_stream handle; /* for reports                                       */
    bool is_blocking;      /* waits for the legacy stream's work, and it for ours */
    struct vgpu_queue *next_blocking; /* valid while is_blocking                           */
    uint64_t last_barrier;            /* the latest of the legacy stream that waits for it */
    bool has_lane;                    /* detection: it has had work                        */
    uint32_t lane;                    /* of its work                                       */
    uint64_t n_work;                  /* pieces of work so far                             */
    vgpu_clock after;                 /* what its later work comes after, besides its own  */
} vgpu_queue;

typedef struct vgpu_stream {
    dvmm_slot slot;
    vgpu_queue *queue;
} vgpu_stream;

typedef struct vgpu_event {
    dvmm_slot slot;
    vgpu_marker *marker; /* of the newest recording; NULL: never recorded, or captured */
    uint64_t capture_id; /* not 0: the capture it was last recorded in, and where in it */
    uint64_t captured_queue, captured_step;
} vgpu_event;

/* A capture under way. */
typedef struct vgpu_capture {
    struct vgpu_capture *next;
    uint64_t id;
    uint64_t thread; /* that began it */
    dvmm_capture_mode mode;
    bool is_broken;
    vgpu_queue *origin;
    vgpu_queue *members; /* the queues in it, origin included */
    uint64_t n_steps;    /* operations recorded so far */
    vgpu_script script;
} vgpu_capture;

/* The default stream of one thread (CU_STREAM_PER_THREAD). */
typedef struct vgpu_thread_stream {
    struct vgpu_thread_stream *next;
    uint64_t thread;
    vgpu_queue *queue;
} vgpu_thread_stream;

typedef struct vgpu_host_block {
    struct vgpu_host_block *next;
    void *memory;
    uint64_t size;
} vgpu_host_block;

typedef struct vgpu_work {
    ductile_schedule schedule;
    uint64_t lag;
    uint64_t now; /* in advances */
    uint64_t dice;
    dvmm_slots streams; /* of vgpu_stream */
    dvmm_slots events;  /* of vgpu_event  */
    vgpu_queue *legacy;
    vgpu_queue *blocking; /* all blocking queues */
    uint64_t n_barriers;
    uint64_t n_elsewhere; /* streams of other devices, since the beginning */
    vgpu_thread_stream *thread_streams;
    vgpu_queue *busy; /* queues with work in them */
    vgpu_capture *captures;
    uint64_t next_id; /* of queues and captures */
    vgpu_host_block *host_blocks;
} vgpu_work;

/* ---- driver_virtual_work.c ----------------------------------------------------------------- */

void dvmm_vgpu_work_fini(vgpu *gpu);
vgpu_queue *dvmm_vgpu_queue_new(vgpu *gpu);
/* The stream's handle is gone: the queue goes once it has run. */
void dvmm_vgpu_queue_orphan(vgpu *gpu, vgpu_queue *queue);
/* From now on the queue and the legacy stream wait for each other. */
void dvmm_vgpu_queue_block(vgpu *gpu, vgpu_queue *queue);
/* Makes later work of the queue wait for what the legacy stream's rules say. */
int dvmm_vgpu_barrier(vgpu *gpu, vgpu_queue *queue);
/* NULL when the host has no memory. */
vgpu_op *dvmm_vgpu_op_new(vgpu_op_kind kind, size_t n_uses);
void dvmm_vgpu_op_free(vgpu_op *op);
/* Takes the operation over. Pre: the queue is in no capture. */
void dvmm_vgpu_enqueue(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
/* An operation that holds one more reference to the marker; NULL: the host has no memory. */
vgpu_op *dvmm_vgpu_marker_op(vgpu_op_kind kind, vgpu_marker *marker);
vgpu_marker *dvmm_vgpu_marker_new(vgpu_queue *queue);
void dvmm_vgpu_marker_drop(vgpu_marker *marker);
/* Runs what may run; with `roll` the dice of the random schedule are thrown. */
void dvmm_vgpu_progress(vgpu *gpu, bool roll);
/* Run what is needed. UNKNOWN: it waits for a word that nobody can write any more. */
int dvmm_vgpu_force_queue(vgpu *gpu, vgpu_queue *queue);
int dvmm_vgpu_force_marker(vgpu *gpu, vgpu_marker *marker);
int dvmm_vgpu_force_device(vgpu *gpu);
/* Operations that wait for a word in that memory wait no more. */
void dvmm_vgpu_forget_words(vgpu *gpu, const vgpu_host_block *block);

/* ---- driver_virtual_streams.c -------------------------------------------------------------- */

void dvmm_vgpu_streams_init(vgpu *gpu);
void dvmm_vgpu_streams_fini(vgpu *gpu);
int dvmm_vgpu_stream_create(vgpu *gpu, ductile_stream *out);
int dvmm_vgpu_stream_create_blocking(vgpu *gpu, ductile_stream *out);
int dvmm_vgpu_stream_create_on(vgpu *gpu, int device, ductile_stream *out);
int dvmm_vgpu_stream_destroy(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_find_queue(vgpu *gpu, ductile_stream stream, vgpu_queue **out);
int dvmm_vgpu_stream_id(vgpu *gpu, ductile_stream stream, uint64_t *out);
int dvmm_vgpu_stream_sync(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_stream_query(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_context_sync(vgpu *gpu);
/* Runs all work of this device, and what that waits for. */
int dvmm_vgpu_drain(vgpu *gpu);
/* Appends work to a stream, or lets the capture it is in record it. Takes `op` over, also when it
 * fails; NULL stands for a host without memory. */
int dvmm_vgpu_issue_on(vgpu *gpu, ductile_stream stream, vgpu_op *op);
int dvmm_vgpu_issue_in(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
/* Work that was only waiting for what just completed completes too; then `code`, or the poison. */
int dvmm_vgpu_settle(vgpu *gpu, int code);

/* ---- driver_virtual_events.c --------------------------------------------------------------- */

void dvmm_vgpu_events_fini(vgpu_work *work);
int dvmm_vgpu_event_create(vgpu *gpu, dvmm_event *out);
int dvmm_vgpu_event_destroy(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_record(vgpu *gpu, dvmm_event event, ductile_stream stream);
int dvmm_vgpu_event_query(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_sync(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_stream_wait_event(vgpu *gpu, ductile_stream stream, dvmm_event event);
int dvmm_vgpu_stream_wait_stream(vgpu *gpu, ductile_stream stream, ductile_stream on);
/* Pre: the queue is in no capture. */
int dvmm_vgpu_wait_in(vgpu *gpu, vgpu_queue *queue, vgpu_marker *marker);
int dvmm_vgpu_record_in(vgpu *gpu, vgpu_queue *queue, vgpu_marker **out);

/* ---- driver_virtual_uses.c ----------------------------------------------------------------- */

/* Work with memory. Copies and fills check their spans now and again when they run; a kernel's
 * are nobody's business before it runs. */
int dvmm_vgpu_launch(vgpu *gpu, ductile_stream stream, const ductile_virtual_use *uses,
                     size_t n_uses);
int dvmm_vgpu_fill(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size, ductile_stream stream);
int dvmm_vgpu_copy(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size,
                   ductile_stream stream);
int dvmm_vgpu_upload(vgpu *gpu, ductile_addr to, const void *from, uint64_t size,
                     ductile_stream stream);
int dvmm_vgpu_read_back(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                        ductile_stream stream);

/* Host memory, and waits for a word in it. */
void dvmm_vgpu_host_fini(vgpu *gpu);
int dvmm_vgpu_host_alloc(vgpu *gpu, uint64_t size, void **out);
int dvmm_vgpu_host_free(vgpu *gpu, void *memory);
int dvmm_vgpu_stream_wait_value(vgpu *gpu, ductile_stream stream, const uint64_t *word,
                                uint64_t value);

/* ---- driver_virtual_capture.c -------------------------------------------------------------- */

void dvmm_vgpu_capture_fini(vgpu *gpu);
/* A number that names the calling thread for the life of the process. Needs no lock. */
uint64_t dvmm_vgpu_this_thread(void);
/* SUCCESS when this thread may make a call that capture prohibits; otherwise CAPTURE_UNSUPPORTED,
 * and the captures in the way are broken, as on hardware. */
int dvmm_vgpu_check_prohibited(vgpu *gpu);
/* The same for a call that waits for or asks about the queue: never while it is captured. */
int dvmm_vgpu_check_prohibited_on(vgpu *gpu, const vgpu_queue *queue);
/* The same for a call that no mode makes legal while anything is captured. */
int dvmm_vgpu_check_no_capture(vgpu *gpu);
/* The same for a call that no mode makes legal on a captured queue. */
int dvmm_vgpu_check_not_captured(const vgpu_queue *queue);
/* SUCCESS when the capture that the queue is in still records. */
int dvmm_vgpu_check_recording(const vgpu_queue *queue);
/* Collects an operation of the queue, which is captured. Takes it over, also when it fails. */
int dvmm_vgpu_record_captured(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
/* What it means to wait for or ask about an event of a capture: never anything good. */
int dvmm_vgpu_watch_captured(vgpu *gpu, const vgpu_event *event);
/* What a wait for the event means when the queue or the event is captured: joins, or refuses. */
int dvmm_vgpu_wait_captured(vgpu *gpu, vgpu_queue *queue, const vgpu_event *event);
/* The stream's handle is gone. */
void dvmm_vgpu_capture_lost_stream(vgpu *gpu, vgpu_queue *queue);
int dvmm_vgpu_capture_status_of(vgpu *gpu, ductile_stream stream, dvmm_capture_status *out);
int dvmm_vgpu_capture_begin(vgpu *gpu, ductile_stream stream, dvmm_capture_mode mode);
/* graph: NULL drops what was captured. */
int dvmm_vgpu_capture_end(vgpu *gpu, ductile_stream stream, ductile_virtual_graph **graph);
int dvmm_vgpu_capture_exchange_mode(vgpu *gpu, dvmm_capture_mode *mode);
/* Work with the legacy stream while a blocking one is captured would be captured with it. */
int dvmm_vgpu_check_implicit(vgpu *gpu, const vgpu_queue *queue);

/* ---- driver_virtual_graph.c ---------------------------------------------------------------- */

/* Takes the operation over, also when it fails. */
int dvmm_vgpu_script_add(vgpu *gpu, vgpu_script *script, vgpu_op *op);
void dvmm_vgpu_script_fini(vgpu *gpu, vgpu_script *script);
/* Takes the script over on success. */
int dvmm_vgpu_graph_new(vgpu *gpu, vgpu_script *script, ductile_virtual_graph **out);
int dvmm_vgpu_graph_launch(ductile_virtual_graph *graph, ductile_stream stream);
void dvmm_vgpu_graph_destroy(ductile_virtual_graph *graph);
/* Needs no lock. */
ductile_virtual_gpu *dvmm_vgpu_gpu_of(const ductile_virtual_graph *graph);

#endif
