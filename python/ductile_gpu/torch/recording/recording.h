/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams what PyTorch allocates to disk, with the Python stack of each allocation, in constant
 * memory: events go through one buffer for each device, and each stack is kept once, as a number.
 *
 * What it writes are the parts of a snapshot as PyTorch pickles it: stacks.part puts each stack
 * into the unpickler's memory, gpuN.part holds the entries of a device and names stacks by number.
 * _recording.py puts the parts together.
 *
 * The stack is taken before the allocation, where PyTorch asks for a context: the event comes when
 * the allocator is locked and Python is not.
 *
 *   recording.c   events, buffers, files
 *   stacks.c      Python's stack of this thread as a number
 *   interpreter.c the interpreter's functions
 *   pickling.h    the few opcodes of pickle that are needed
 */
#ifndef DUCTILE_RECORDING_H
#define DUCTILE_RECORDING_H

#include <stdint.h>

/* As PyTorch's TraceEntry::Action numbers them. */
enum {
    RECORDING_ALLOC,
    RECORDING_FREE_REQUESTED,
    RECORDING_FREE_COMPLETED,
    RECORDING_SEGMENT_ALLOC,
    RECORDING_SEGMENT_FREE,
    RECORDING_SEGMENT_MAP,
    RECORDING_SEGMENT_UNMAP,
    RECORDING_SNAPSHOT,
    RECORDING_OOM,
    RECORDING_N_ACTIONS
};

enum { RECORDING_MAX_DEVICES = 64, RECORDING_MAX_STACKS = 1 << 18, RECORDING_MAX_FRAMES = 64 };

#define RECORDING_API __attribute__((visibility("default")))

/* Begins a recording in an existing folder. 0, or an errno. EBUSY: one is under way. */
RECORDING_API int ductile_recording_open(const char *folder);

/* Notes this thread's stack for its next allocation. Waits for Python's lock on a thread that
 * Python knows: to be called while nothing is locked that others want while they hold that. Nothing
 * unless a recording is under way. */
RECORDING_API void ductile_recording_stack(void);

/* Any thread. Does nothing unless a recording is under way. Never calls Python and never waits for
 * its lock: an allocation has the stack that its thread noted since the one before. pool: the two
 * numbers of PyTorch's private pool, {0, 0} for none; NULL: it is not known. */
RECORDING_API void ductile_recording_event(int action, int device, uint64_t address, uint64_t size,
                                           uint64_t stream, const uint64_t *pool);

typedef struct ductile_recording_counts {
    uint64_t events;  /* written                                     */
    uint64_t lost;    /* that came after a write had failed          */
    uint64_t stacks;  /* different ones                              */
    uint64_t unnamed; /* events whose stack came after the table of stacks was full */
    uint64_t allocs;  /* allocations, granted or refused             */
    uint64_t bare;    /* those of them whose thread ran no Python, or noted nothing */
} ductile_recording_counts;

/* Ends it: all is on its way to disk. 0, or the errno of the first write that failed. */
RECORDING_API int ductile_recording_close(ductile_recording_counts *counts);

#endif
