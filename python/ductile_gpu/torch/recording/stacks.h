/* SPDX-License-Identifier: Apache-2.0 */
/* The Python stack of this thread as a number. The interpreter's functions are looked up at run
 * time: one library serves every Python. */
#ifndef DUCTILE_RECORDING_STACKS_H
#define DUCTILE_RECORDING_STACKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    STACK_NONE = 0, /* the thread does not run Python: backward, or another library */
    STACK_FULL = 1, /* the table of stacks is full */
    STACK_FIRST = 2
};

/* A frame, for as long as the call that gets it lasts. */
typedef struct stack_frame {
    const char *name;
    size_t name_length;
    const char *filename;
    size_t filename_length;
    int line;
} stack_frame;

/* Gets each new stack once, innermost frame first. */
typedef void (*stack_write_fn)(uint32_t number, const stack_frame *frames, int n);

/* False: this process has no Python, or the host has no memory. */
bool stacks_init(void);
void stacks_fini(void);

/* Waits for Python's lock, on a thread that Python knows. The mutex guards the table: init,
 * fini and count are called, and `write` is, with it held. Python is never called then, for it may
 * free a tensor, whose allocator may wait for a thread that waits for the mutex.
 * Pre: init has been called. */
uint32_t stacks_find(pthread_mutex_t *mutex, stack_write_fn write);
uint64_t stacks_count(void);

#endif
