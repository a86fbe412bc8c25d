/* SPDX-License-Identifier: Apache-2.0 */
/* The few opcodes of pickle, protocol 2, that a snapshot needs. Each writes at a place with enough
 * room and returns the place behind it. */
#ifndef DUCTILE_RECORDING_PICKLING_H
#define DUCTILE_RECORDING_PICKLING_H

#include "recording.h"

#include <stdint.h>
#include <string.h>

/* Places in the unpickler's memory, known to _recording.py: texts first, then (0, 0) and stacks.
 * They are filled in order, without a gap, as some readers want it. */
enum {
    MEMO_ACTION = 0,
    MEMO_ADDR = 1,
    MEMO_SIZE = 2,
    MEMO_STREAM = 3,
    MEMO_TIME = 4,
    MEMO_FRAMES = 5,
    MEMO_NAME = 6,
    MEMO_FILENAME = 7,
    MEMO_LINE = 8,
    MEMO_DEVICE_FREE = 9, /* in place of the address where memory was refused */
    MEMO_POOL_ID = 10,
    MEMO_ACTIONS = 11,                                 /* and one for each action */
    MEMO_NO_POOL = MEMO_ACTIONS + RECORDING_N_ACTIONS, /* (0, 0) */
    MEMO_STACKS                                        /* and one for each stack */
};

static inline char *pickle_op(char *at, char op) {
    *at = op;
    return at + 1;
}

/* What stands at a place below 256 of the memory. */
static inline char *pickle_get(char *at, unsigned place) {
    at[0] = 'h';
    at[1] = (char)place;
    return at + 2;
}

static inline char *pickle_u32(char *at, char op, uint32_t value) {
    at[0] = op;
    memcpy(at + 1, &value, 4); /* pickle is little-endian, as every machine with such a GPU is */
    return at + 5;
}

static inline char *pickle_int(char *at, uint64_t value) {
    if (value <= INT32_MAX) {
        return pickle_u32(at, 'J', (uint32_t)value);
    }
    uint8_t n = value > INT64_MAX ? 9 : 8; /* LONG1: a signed number of so many bytes */
    at[0] = (char)0x8a;
    at[1] = (char)n;
    memcpy(at + 2, &value, 8);
    at[10] = 0;
    return at + 2 + n;
}

/* At most `length` bytes of UTF-8. */
static inline char *pickle_text(char *at, const char *text, uint32_t length) {
    at = pickle_u32(at, 'X', length);
    memcpy(at, text, length);
    return at + length;
}

#endif
