/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "recording.h"

#include "pickling.h"
#include "stacks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 1 << 20,
    EVENT_BYTES = 128,      /* at most, pickled */
    EVENTS_PER_LIST = 1000, /* then APPENDS, so that a reader's stack stays short */
    TEXT_BYTES = 400,       /* of a name or a path; of longer ones the end */
    FRAME_BYTES = 2 * TEXT_BYTES + 64
};

/* A file with a buffer in front. */
typedef struct part {
    int fd; /* -1: not opened yet */
    size_t used;
    uint32_t in_list; /* entries since the last APPENDS */
    char *buffer;
} part;

static struct {
    pthread_mutex_t mutex; /* guards all below but is_on and number; Python is never called with it
                              held */
    atomic_bool is_on;
    atomic_uint number; /* of this recording in the process, from 1 on */
    int folder;
    int failure; /* errno of the first write that failed; nothing is written after it */
    part devices[RECORDING_MAX_DEVICES];
    part stacks;
    uint64_t last_us;    /* of the event before               */
    uint64_t last_freed; /* its address, if it requested a free */
    ductile_recording_counts counts;
} recording = {.mutex = PTHREAD_MUTEX_INITIALIZER, .folder = -1};

/* What this thread noted before the allocation that it is in. */
static _Thread_local struct {
    unsigned recording; /* 0: nothing */
    uint32_t stack;
} noted;

/* ---- Parts --------------------------------------------------------------------------------- */

static void fail(int error) {
    if (recording.failure == 0) {
        recording.failure = error;
    }
}

static void write_out(part *p) {
    size_t done = 0;
    while (done < p->used && recording.failure == 0) {
        ssize_t n = write(p->fd, p->buffer + done, p->used - done);
        if (n > 0) {
            done += (size_t)n;
        } else if (n < 0 && errno != EINTR) {
            fail(errno);
        }
    }
    p->used = 0;
}

/* Where so many bytes can be written. Pre: they fit into an empty buffer. */
static char *make_room(part *p, size_t bytes) {
    if (p->used + bytes > BUFFER_BYTES) {
        write_out(p);
    }
    return p->buffer + p->used;
}

static bool open_part(part *p, const char *name) {
    p->buffer = malloc(BUFFER_BYTES);
    p->fd = p->buffer != NULL
                ? openat(recording.folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                : -1;
    p->used = 0;
    p->in_list = 0;
    if (p->fd < 0) {
        fail(p->buffer != NULL ? errno : ENOMEM);
        free(p->buffer);
        p->buffer = NULL;
    }
    return p->fd >= 0;
}

static void close_part(part *p) {
    if (p->fd < 0) {
        return;
    }
    write_out(p);
    if (close(p->fd) != 0) {
        fail(errno);
    }
    free(p->buffer);
    *p = (part){.fd = -1};
}

static part *device_part(int device) {
    part *p = &recording.devices[device];
    if (p->fd < 0) {
        char name[32];
        (void)snprintf(name, sizeof name, "gpu%d.part", device);
        if (!open_part(p, name)) {
            return NULL;
        }
    }
    return p;
}

/* ---- Stacks -------------------------------------------------------------------------------- */

/* The end of a text that is too long, from the start of a character on: of a path it says more. */
static char *put_text(char *at, const char *text, size_t length) {
    if (length > TEXT_BYTES) {
        text += length - TEXT_BYTES;
        length = TEXT_BYTES;
        while (length > 0 && ((unsigned char)*text & 0xc0) == 0x80) {
            text++;
            length--;
        }
    }
    return pickle_text(at, text, (uint32_t)length);
}

static char *put_frame(char *at, const stack_frame *frame) {
    at = pickle_op(pickle_op(at, '}'), '(');
    at = put_text(pickle_get(at, MEMO_NAME), frame->name, frame->name_length);
    at = put_text(pickle_get(at, MEMO_FILENAME), frame->filename, frame->filename_length);
    at = pickle_int(pickle_get(at, MEMO_LINE), frame->line > 0 ? (uint64_t)frame->line : 0);
    return pickle_op(at, 'u');
}

/* A list that is put into the unpickler's memory and taken off its stack. */
static void write_stack(uint32_t number, const stack_frame *frames, int n) {
    part *p = &recording.stacks;
    char *at = make_room(p, (size_t)n * FRAME_BYTES + 64);
    at = pickle_u32(pickle_op(at, ']'), 'r', MEMO_STACKS + number);
    at = pickle_op(at, '(');
    for (int i = 0; i < n; i++) {
        at = put_frame(at, &frames[i]);
    }
    at = pickle_op(pickle_op(at, 'e'), '0');
    p->used = (size_t)(at - p->buffer);
}

static void write_stand_in(uint32_t number, const char *what) {
    const stack_frame frame = {.name = what, .name_length = strlen(what), .filename = ""};
    write_stack(number, &frame, 1);
}

/* ---- Events -------------------------------------------------------------------------------- */

static uint64_t now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Most frees complete right behind their request: then it is the same time, and the clock need not
 * be read. */
static uint64_t time_of(int action, uint64_t address) {
    if (action != RECORDING_FREE_COMPLETED || address != recording.last_freed) {
        recording.last_us = now_us();
    }
    recording.last_freed = action == RECORDING_FREE_REQUESTED ? address : 0;
    return recording.last_us;
}

static bool has_stack(int action) {
    return action == RECORDING_ALLOC || action == RECORDING_OOM ||
           action == RECORDING_SEGMENT_ALLOC || action == RECORDING_SEGMENT_MAP;
}

void ductile_recording_stack(void) {
    if (atomic_load_explicit(&recording.is_on, memory_order_acquire)) {
        unsigned current = atomic_load(&recording.number);
        noted.stack = stacks_find(&recording.mutex, write_stack);
        noted.recording = current;
    }
}

/* Memory that is obtained for an allocation is told of before the allocation itself, or its
 * refusal. */
static uint32_t take_stack(int action) {
    uint32_t number = noted.recording == atomic_load(&recording.number) ? noted.stack : STACK_NONE;
    if (action == RECORDING_ALLOC || action == RECORDING_OOM) {
        noted.recording = 0;
        recording.counts.allocs++;
        recording.counts.bare += number == STACK_NONE;
    }
    recording.counts.unnamed += number == STACK_FULL;
    return number;
}

static char *put_stack(char *at, uint32_t number) {
    return pickle_u32(pickle_get(at, MEMO_FRAMES), 'j', MEMO_STACKS + number);
}

/* A free is of the pool that the block is of. */
static bool has_pool(int action) {
    return action != RECORDING_FREE_REQUESTED && action != RECORDING_FREE_COMPLETED &&
           action != RECORDING_SNAPSHOT;
}

static char *put_pool(char *at, const uint64_t *pool) {
    at = pickle_get(at, MEMO_POOL_ID);
    if (pool[0] == 0 && pool[1] == 0) {
        return pickle_get(at, MEMO_NO_POOL);
    }
    return pickle_op(pickle_int(pickle_int(at, pool[0]), pool[1]), (char)0x86); /* TUPLE2 */
}

static void put_event(part *p, int action, uint64_t address, uint64_t size, uint64_t stream,
                      const uint64_t *pool) {
    char *at = make_room(p, EVENT_BYTES);
    if (p->in_list == 0) {
        at = pickle_op(at, '(');
    }
    at = pickle_op(pickle_op(at, '}'), '(');
    at = pickle_get(pickle_get(at, MEMO_ACTION), MEMO_ACTIONS + (unsigned)action);
    at =
        pickle_int(pickle_get(at, action == RECORDING_OOM ? MEMO_DEVICE_FREE : MEMO_ADDR), address);
    at = pickle_int(pickle_get(at, MEMO_SIZE), size);
    at = pickle_int(pickle_get(at, MEMO_STREAM), stream);
    at = pickle_int(pickle_get(at, MEMO_TIME), time_of(action, address));
    at = pool != NULL && has_pool(action) ? put_pool(at, pool) : at;
    at = pickle_op(has_stack(action) ? put_stack(at, take_stack(action)) : at, 'u');
    if (++p->in_list == EVENTS_PER_LIST) {
        at = pickle_op(at, 'e');
        p->in_list = 0;
    }
    p->used = (size_t)(at - p->buffer);
    recording.counts.events++;
}

void ductile_recording_event(int action, int device, uint64_t address, uint64_t size,
                             uint64_t stream, const uint64_t *pool) {
    if (!atomic_load_explicit(&recording.is_on, memory_order_relaxed) || action < 0 ||
        action >= RECORDING_N_ACTIONS || device < 0 || device >= RECORDING_MAX_DEVICES) {
        return;
    }
    (void)pthread_mutex_lock(&recording.mutex);
    if (atomic_load_explicit(&recording.is_on, memory_order_relaxed)) {
        part *p = recording.failure == 0 ? device_part(device) : NULL;
        if (p != NULL) {
            put_event(p, action, address, size, stream, pool);
        } else {
            recording.counts.lost++;
        }
    }
    (void)pthread_mutex_unlock(&recording.mutex);
}

/* ---- Beginning and ending ------------------------------------------------------------------ */

static void forget_parts(void) {
    for (int i = 0; i < RECORDING_MAX_DEVICES; i++) {
        recording.devices[i] = (part){.fd = -1};
    }
    recording.stacks = (part){.fd = -1};
    recording.counts = (ductile_recording_counts){0};
    recording.failure = 0;
    recording.last_freed = 0;
}

static int begin_locked(const char *folder) {
    if (atomic_load(&recording.is_on)) {
        return EBUSY;
    }
    forget_parts();
    if (!stacks_init()) {
        return ENOMEM;
    }
    recording.folder = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (recording.folder < 0) {
        fail(errno);
    } else if (open_part(&recording.stacks, "stacks.part")) {
        write_stand_in(STACK_NONE, "(no Python on this thread: backward, or another library)");
        write_stand_in(STACK_FULL, "(more stacks than are kept)");
        (void)atomic_fetch_add(&recording.number, 1);
        atomic_store(&recording.is_on, true);
        return 0;
    }
    stacks_fini();
    if (recording.folder >= 0) {
        (void)close(recording.folder);
    }
    return recording.failure;
}

/* In a child the recording is the parent's: what both wrote would stand in one file. */
static void end_in_child(void) {
    atomic_store(&recording.is_on, false);
    recording.mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

int ductile_recording_open(const char *folder) {
    static atomic_bool is_registered;
    if (!atomic_exchange(&is_registered, true)) {
        (void)pthread_atfork(NULL, NULL, end_in_child);
    }
    (void)pthread_mutex_lock(&recording.mutex);
    int error = begin_locked(folder);
    (void)pthread_mutex_unlock(&recording.mutex);
    return error;
}

static void end_list(part *p) {
    if (p->fd >= 0 && p->in_list > 0) {
        *make_room(p, 1) = 'e';
        p->used++;
        p->in_list = 0;
    }
}

int ductile_recording_close(ductile_recording_counts *counts) {
    (void)pthread_mutex_lock(&recording.mutex);
    if (atomic_exchange(&recording.is_on, false)) {
        for (int i = 0; i < RECORDING_MAX_DEVICES; i++) {
            end_list(&recording.devices[i]);
            close_part(&recording.devices[i]);
        }
        close_part(&recording.stacks);
        (void)close(recording.folder);
        recording.counts.stacks = stacks_count();
        stacks_fini();
    }
    *counts = recording.counts;
    int error = recording.failure;
    (void)pthread_mutex_unlock(&recording.mutex);
    return error;
}
