/* SPDX-License-Identifier: Apache-2.0 */
/* Work of the virtual GPU: queues, streams, events, captures, graphs. */
#ifndef DUCTILE_VMM_VIRTUAL_STATE_WORK_STATE_H
#define DUCTILE_VMM_VIRTUAL_STATE_WORK_STATE_H

#include "vmm/driver/driver.h"
#include "vmm/virtual/state/clock.h"
#include "vmm/virtual/state/slots.h"

#include <ductile_virtual.h>

/* Whether one recording of an event has been reached. Shared by the event, the operation that
 * records it and the operations that wait for it; the last one frees it. */
typedef struct vgpu_marker {
    uint32_t n_refs;
    bool is_done;
    struct vgpu_queue *queue;   /* where it is recorded; valid until done */
    vgpu_clock after;           /* the work it stands for                 */
    struct vgpu_marker **parts; /* of the context: those to be reached first; owned */
    size_t n_parts;
} vgpu_marker;

typedef enum vgpu_op_kind {
    VGPU_OP_USE = 0,    /* a kernel: reads and writes the spans */
    VGPU_OP_FILL,       /* uses[0] is written                   */
    VGPU_OP_COPY,       /* uses[0] is written, uses[1] read     */
    VGPU_OP_UPLOAD,     /* uses[0] is written                   */
    VGPU_OP_DOWNLOAD,   /* uses[0] is read                      */
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
    uint8_t *bytes;            /* UPLOAD: owned; NULL: see host      */
    uint8_t *host;             /* UPLOAD, DOWNLOAD: in a host block; NULL when that has gone */
    uint64_t *owners;          /* captured: the block of each use; owned. NULL: look when issued */
    size_t n_uses;
    ductile_virtual_use uses[];
} vgpu_op;

/* Work in the order of its capture, and the mappings it uses, by number and generation. */
typedef struct vgpu_script {
    vgpu_op *first, *last;
    dvmm_slot *held;
    uint32_t n_held, held_room;
} vgpu_script;

/* The work of one stream, in order. Outlives the stream's handle until it has all run. */
typedef struct vgpu_queue {
    struct vgpu_queue *next_busy, *prev_busy; /* valid while `first` is not NULL */
    vgpu_op *first, *last;
    bool has_stream;              /* some stream handle names it     */
    int device;                   /* of the machine; 0: this one     */
    bool is_foreign;              /* of another context than the driver's, on whatever device */
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
    bool is_registered; /* the memory is the caller's */
} vgpu_host_block;

typedef struct vgpu_work {
    ductile_schedule schedule;
    uint64_t lag;
    uint64_t now; /* in advances */
    uint64_t dice;
    dvmm_slots streams; /* of vgpu_stream */
    dvmm_slots events;  /* of vgpu_event  */
    vgpu_queue *legacy;
    vgpu_queue *context;  /* of events behind all work of the context */
    vgpu_queue *blocking; /* all blocking queues */
    uint64_t n_barriers;
    uint64_t n_foreign; /* streams of other contexts, since the beginning */
    vgpu_thread_stream *thread_streams;
    vgpu_queue *busy; /* queues with work in them */
    vgpu_capture *captures;
    uint64_t next_id; /* of queues and captures */
    vgpu_host_block *host_blocks;
} vgpu_work;

struct ductile_virtual_graph {
    struct ductile_virtual_gpu *gpu;
    vgpu_script script;
    vgpu_marker *launched; /* the latest launch; NULL: none */
    bool rests;            /* its pool is asleep: it holds no memory */
};

#endif
