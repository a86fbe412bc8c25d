/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of the virtual GPU, shared by the driver_virtual*.c files and nobody else.
 *
 *   driver_virtual.c            life, the call pipeline, the table of the seam
 *   driver_virtual_addresses.c  reservations, and which granule maps what
 *   driver_virtual_memory.c     physical handles and mappings
 *   driver_virtual_alloc.c      cuMemAlloc
 *   driver_virtual_content.c    what the bytes are
 *   driver_virtual_work.c       queues of work, and when it runs
 *   driver_virtual_streams.c    streams and events
 *   driver_virtual_capture.c    stream capture
 *   driver_virtual_watch.c      planned faults, violations, the call log
 *   driver_virtual_cost.c       what a call costs
 *   driver_virtual_api.c        the functions of ductile_virtual.h
 *
 * Unless a comment says otherwise, every function here is called with gpu->lock held and returns
 * the driver's code.
 */
#ifndef DUCTILE_VMM_DRIVER_VIRTUAL_H
#define DUCTILE_VMM_DRIVER_VIRTUAL_H

#include "vmm/base/lock.h"
#include "vmm/driver.h"
#include "vmm/driver_virtual_slots.h"

#include <ductile_virtual.h>

typedef struct ductile_virtual_gpu vgpu;

/* ---- Memory -------------------------------------------------------------------------------- */

/* One address reservation. Kept in an array, ascending and disjoint. */
typedef struct vgpu_range {
    ductile_addr start;
    uint64_t size;
    uint64_t n_mappings;
} vgpu_range;

/* Contents of a handle: pieces that tile it, ascending. One byte value over the whole piece, or
 * its bytes. See driver_virtual_content.c. */
typedef struct vgpu_piece {
    uint64_t start;
    uint8_t *bytes; /* owned; NULL: the piece is uniform */
    uint8_t value;  /* valid when uniform                */
} vgpu_piece;

typedef struct vgpu_content {
    vgpu_piece *pieces; /* NULL: all zero, as fresh memory reads on the hardware modelled */
    size_t n_pieces;
    size_t room;
} vgpu_content;

/* Physical memory: alive while it is referenced or mapped anywhere. */
typedef struct vgpu_phys {
    dvmm_slot slot;
    uint64_t size;
    uint32_t n_refs;
    uint32_t n_mappings;
    struct vgpu_slab *slab; /* small cuMemAlloc allocations live in it; NULL: none do */
    vgpu_content content;
} vgpu_phys;

/* The whole of one handle at one address. */
typedef struct vgpu_mapping {
    dvmm_slot slot;
    ductile_addr start;
    vgpu_phys *phys;
    dvmm_access access;
} vgpu_mapping;

/* Free address spans of one size for cuMemAlloc, last freed first. */
typedef struct vgpu_spans {
    ductile_addr *free;
    size_t n_free;
    size_t n_carved; /* spans of this size that exist; `free` has room for all */
} vgpu_spans;

enum { VGPU_SPAN_SIZES = 40 }; /* 1, 2, 4, ... granules */

/*
 * The address space: [base, alloc_base) is for reservations, [alloc_base, end) for cuMemAlloc.
 * `leaves` is a two-level table from granule to mapping number, as a device's page table is.
 */
typedef struct vgpu_memory {
    ductile_addr base, alloc_base, alloc_next, end; /* all but alloc_next constant */
    uint32_t **leaves;
    size_t n_leaves;

    vgpu_range *ranges;
    size_t n_ranges, ranges_room;
    uint64_t reserved_bytes;
    uint64_t placements; /* state of the choice where the next one goes, from the seed */

    dvmm_slots handles;  /* of vgpu_phys; a dvmm_phys is generation << 32 | number */
    dvmm_slots mappings; /* of vgpu_mapping */
    uint64_t used_bytes, used_peak_bytes, external_bytes;

    vgpu_spans spans[VGPU_SPAN_SIZES];
    struct vgpu_slab *slabs;
    uint64_t n_allocations;
} vgpu_memory;

/* ---- Work ---------------------------------------------------------------------------------- */

/* Whether one recording of an event has been reached. Shared by the event, the operation that
 * records it and the operations that wait for it; the last one frees it. */
typedef struct vgpu_marker {
    uint32_t n_refs;
    bool is_done;
    struct vgpu_queue *queue; /* where it is recorded; valid until done */
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
    size_t n_uses;
    ductile_virtual_use uses[];
} vgpu_op;

/* The work of one stream, in order. Outlives the stream's handle until it has all run. */
typedef struct vgpu_queue {
    struct vgpu_queue *next_busy, *prev_busy; /* valid while `first` is not NULL */
    vgpu_op *first, *last;
    bool has_stream;              /* some stream handle names it     */
    uint64_t id;                  /* never reused                    */
    struct vgpu_capture *capture; /* the capture it is in, or NULL   */
    struct vgpu_queue *next_captured;
} vgpu_queue;

typedef struct vgpu_stream {
    dvmm_slot slot;
    vgpu_queue *queue;
} vgpu_stream;

typedef struct vgpu_event {
    dvmm_slot slot;
    vgpu_marker *marker; /* of the newest recording; NULL: never recorded, or captured */
    uint64_t capture_id; /* not 0: the capture it was last recorded in                 */
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
    vgpu_thread_stream *thread_streams;
    vgpu_queue *busy; /* queues with work in them */
    vgpu_capture *captures;
    uint64_t next_id; /* of queues and captures */
    vgpu_host_block *host_blocks;
} vgpu_work;

/* ---- What it saw --------------------------------------------------------------------------- */

typedef struct vgpu_log_entry {
    uint64_t number;
    dvmm_call call;
    int code;
    uint64_t address;
    uint64_t size;
} vgpu_log_entry;

typedef struct vgpu_watch {
    uint64_t calls[DVMM_N_CALLS];
    uint64_t n_calls;

    bool has_fault;
    dvmm_call fault_call; /* DVMM_N_CALLS: any */
    ductile_virtual_fault fault;
    uint64_t fault_seen;
    uint64_t fault_fired;

    uint64_t n_violations;
    char violation[160];

    vgpu_log_entry *log; /* a ring of log_room */
    uint64_t log_room;
} vgpu_watch;

struct ductile_virtual_gpu {
    /* constant after creation */
    ductile_virtual_options options; /* no field means "default" any more */
    unsigned granule_shift;
    bool is_private; /* closing the driver destroys it */

    _Atomic uint64_t time_ns; /* written under the lock, read without */

    dti_lock lock; /* guards everything below */
    int poison;    /* 0, or the first sticky code */
    vgpu_memory memory;
    vgpu_work work;
    vgpu_watch watch;
};

/* ---- driver_virtual_addresses.c ------------------------------------------------------------ */

bool dvmm_vgpu_addresses_init(vgpu *gpu);
void dvmm_vgpu_addresses_fini(vgpu *gpu);
bool dvmm_vgpu_is_granules(const vgpu *gpu, uint64_t n);
/* The reservation that holds all of the span, or NULL; valid until the next reservation. */
vgpu_range *dvmm_vgpu_range_of(const vgpu *gpu, ductile_addr addr, uint64_t size);
int dvmm_vgpu_address_reserve(vgpu *gpu, uint64_t size, uint64_t alignment, ductile_addr hint,
                              ductile_addr *out);
int dvmm_vgpu_address_free(vgpu *gpu, ductile_addr addr, uint64_t size);
/* The mapping that holds the address, or NULL. */
vgpu_mapping *dvmm_vgpu_mapping_at(const vgpu *gpu, ductile_addr addr);
/* Points the granules of a span at a mapping; 0 always succeeds. Pre: inside the space. */
bool dvmm_vgpu_point_at(vgpu *gpu, ductile_addr addr, uint64_t size, uint32_t mapping_number);

/* ---- driver_virtual_memory.c --------------------------------------------------------------- */

void dvmm_vgpu_memory_init(vgpu *gpu);
void dvmm_vgpu_memory_fini(vgpu *gpu);
int dvmm_vgpu_phys_create(vgpu *gpu, uint64_t size, dvmm_phys *out);
int dvmm_vgpu_phys_release(vgpu *gpu, dvmm_phys phys);
vgpu_phys *dvmm_vgpu_find_phys(const vgpu *gpu, dvmm_phys phys);
int dvmm_vgpu_map(vgpu *gpu, ductile_addr addr, uint64_t size, uint64_t offset, dvmm_phys phys);
int dvmm_vgpu_unmap(vgpu *gpu, ductile_addr addr, uint64_t size);
int dvmm_vgpu_set_access(vgpu *gpu, ductile_addr addr, uint64_t size, dvmm_access access);
int dvmm_vgpu_get_access(vgpu *gpu, ductile_addr addr, dvmm_access *out);
/* Maps without asking for a reservation. */
int dvmm_vgpu_map_anywhere(vgpu *gpu, ductile_addr addr, vgpu_phys *phys, dvmm_access access);
void dvmm_vgpu_drop_mapping(vgpu *gpu, vgpu_mapping *mapping);
void dvmm_vgpu_drop_ref(vgpu *gpu, vgpu_phys *phys);
/* Whether all of the span is mapped with at least that access. */
bool dvmm_vgpu_is_accessible(const vgpu *gpu, ductile_addr addr, uint64_t size, dvmm_access access);
uint64_t dvmm_vgpu_count_mappings(const vgpu *gpu, ductile_addr addr, uint64_t size);

/* ---- driver_virtual_alloc.c ---------------------------------------------------------------- */

void dvmm_vgpu_alloc_fini(vgpu *gpu);
int dvmm_vgpu_mem_alloc(vgpu *gpu, uint64_t size, ductile_addr *out);
int dvmm_vgpu_mem_free(vgpu *gpu, ductile_addr addr);
/* Size of the live allocation that starts there; 0: none does. */
uint64_t dvmm_vgpu_allocation_size(const vgpu *gpu, ductile_addr addr);

/* ---- driver_virtual_content.c -------------------------------------------------------------- */

/* Pre of all: the span is mapped. False: the host has no memory left; contents are lost. */
bool dvmm_vgpu_write_value(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size);
bool dvmm_vgpu_write_bytes(vgpu *gpu, ductile_addr to, const uint8_t *bytes, uint64_t size);
bool dvmm_vgpu_copy_bytes(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size);
void dvmm_vgpu_read_bytes(const vgpu *gpu, uint8_t *to, ductile_addr from, uint64_t size);
void dvmm_vgpu_content_fini(vgpu_content *content);

/* ---- driver_virtual_work.c ----------------------------------------------------------------- */

void dvmm_vgpu_work_fini(vgpu *gpu);
vgpu_queue *dvmm_vgpu_queue_new(vgpu *gpu);
/* The stream's handle is gone: the queue goes once it has run. */
void dvmm_vgpu_queue_orphan(vgpu_queue *queue);
/* NULL when the host has no memory. */
vgpu_op *dvmm_vgpu_op_new(vgpu_op_kind kind, size_t n_uses);
void dvmm_vgpu_op_free(vgpu_op *op);
/* Takes the operation over. Pre: the queue is in no capture. */
void dvmm_vgpu_issue(vgpu *gpu, vgpu_queue *queue, vgpu_op *op);
vgpu_marker *dvmm_vgpu_marker_new(vgpu_queue *queue);
void dvmm_vgpu_marker_drop(vgpu_marker *marker);
/* Runs what may run; with `roll` the dice of the random schedule are thrown. */
void dvmm_vgpu_progress(vgpu *gpu, bool roll);
/* Run what is needed. UNKNOWN: it waits for a word that nobody can write any more. */
int dvmm_vgpu_force_queue(vgpu *gpu, vgpu_queue *queue);
int dvmm_vgpu_force_marker(vgpu *gpu, vgpu_marker *marker);
int dvmm_vgpu_force_all(vgpu *gpu);
/* Operations that wait for a word in that memory wait no more. */
void dvmm_vgpu_forget_words(vgpu *gpu, const vgpu_host_block *block);

/* ---- driver_virtual_streams.c -------------------------------------------------------------- */

void dvmm_vgpu_streams_init(vgpu *gpu);
void dvmm_vgpu_streams_fini(vgpu *gpu);
int dvmm_vgpu_stream_create(vgpu *gpu, ductile_stream *out);
int dvmm_vgpu_stream_destroy(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_find_queue(vgpu *gpu, ductile_stream stream, vgpu_queue **out);
int dvmm_vgpu_stream_sync(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_stream_query(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_context_sync(vgpu *gpu);
int dvmm_vgpu_stream_wait_event(vgpu *gpu, ductile_stream stream, dvmm_event event);
int dvmm_vgpu_stream_wait_value(vgpu *gpu, ductile_stream stream, const uint64_t *word,
                                uint64_t value);
int dvmm_vgpu_stream_wait_stream(vgpu *gpu, ductile_stream stream, ductile_stream on);
int dvmm_vgpu_stream_id(vgpu *gpu, ductile_stream stream, uint64_t *out);
int dvmm_vgpu_event_create(vgpu *gpu, dvmm_event *out);
int dvmm_vgpu_event_destroy(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_record(vgpu *gpu, dvmm_event event, ductile_stream stream);
int dvmm_vgpu_event_query(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_event_sync(vgpu *gpu, dvmm_event event);
int dvmm_vgpu_host_alloc(vgpu *gpu, uint64_t size, void **out);
int dvmm_vgpu_host_free(vgpu *gpu, void *memory);

/* Work with memory; spans are checked now, and again when the work runs. */
int dvmm_vgpu_launch(vgpu *gpu, ductile_stream stream, const ductile_virtual_use *uses,
                     size_t n_uses);
int dvmm_vgpu_fill(vgpu *gpu, ductile_addr to, uint8_t value, uint64_t size, ductile_stream stream);
int dvmm_vgpu_copy(vgpu *gpu, ductile_addr to, ductile_addr from, uint64_t size,
                   ductile_stream stream);
int dvmm_vgpu_upload(vgpu *gpu, ductile_addr to, const void *from, uint64_t size,
                     ductile_stream stream);
int dvmm_vgpu_read_back(vgpu *gpu, void *to, ductile_addr from, uint64_t size,
                        ductile_stream stream);

/* ---- driver_virtual_capture.c -------------------------------------------------------------- */

void dvmm_vgpu_capture_fini(vgpu *gpu);
/* A number that names the calling thread for the life of the process. Needs no lock. */
uint64_t dvmm_vgpu_this_thread(void);
/* SUCCESS when this thread may make a call that capture prohibits; otherwise CAPTURE_UNSUPPORTED,
 * and the captures in the way are broken, as on hardware. */
int dvmm_vgpu_check_prohibited(vgpu *gpu);
/* The same for a call that waits for or asks about the queue: never while it is captured. */
int dvmm_vgpu_check_prohibited_on(vgpu *gpu, const vgpu_queue *queue);
/* SUCCESS when the operation may be recorded on the queue, which is captured: it is dropped. */
int dvmm_vgpu_record_captured(const vgpu_queue *queue);
/* What a wait for the event means when the queue or the event is captured: joins, or refuses. */
int dvmm_vgpu_wait_captured(vgpu *gpu, vgpu_queue *queue, const vgpu_event *event);
/* The stream's handle is gone. */
void dvmm_vgpu_capture_lost_stream(vgpu *gpu, vgpu_queue *queue);
int dvmm_vgpu_capture_status_of(vgpu *gpu, ductile_stream stream, dvmm_capture_status *out);
int dvmm_vgpu_capture_begin(vgpu *gpu, ductile_stream stream, dvmm_capture_mode mode);
int dvmm_vgpu_capture_end(vgpu *gpu, ductile_stream stream);
int dvmm_vgpu_capture_exchange_mode(dvmm_capture_mode *mode);

/* ---- driver_virtual_watch.c ---------------------------------------------------------------- */

bool dvmm_vgpu_watch_init(vgpu *gpu);
void dvmm_vgpu_watch_fini(vgpu *gpu);
/* The planned fault, if this call is the one; NULL otherwise. */
const ductile_virtual_fault *dvmm_vgpu_fault_for(vgpu *gpu, dvmm_call call);
void dvmm_vgpu_log(vgpu *gpu, dvmm_call call, uint64_t address, uint64_t size, int code);
/* A mistake that the hardware lets pass. */
void dvmm_vgpu_violation(vgpu *gpu, const char *format, ...) __attribute__((format(printf, 2, 3)));
void dvmm_vgpu_poison(vgpu *gpu, int code);

/* ---- driver_virtual_cost.c ----------------------------------------------------------------- */

/* What one call costs, in ns; `n` is how many mappings of `size` bytes in all it touches. Pure. */
uint64_t dvmm_vgpu_cost_ns(dvmm_call call, uint64_t size, uint64_t n);

#endif
