/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which live blocks keep free memory apart. At one moment of a replay, all memory of an allocator
 * lies side by side in its ranges of addresses:
 *
 *     free | A | free | B | pending | free | C | C | free       | next range
 *
 * A hole is free memory in one piece. Without some live blocks, neighbouring holes become one: an
 * opening is such a stretch, of free memory and live blocks that stand in it. It never reaches over
 * pending memory, addresses without memory, or the end of a range. Where a request was refused,
 * only memory counts that may serve it: of its stream and pool and, in PyTorch's allocators, of its
 * class of size. Else memory in pools does not count.
 */
#ifndef DUCTILE_BENCH_REPLAY_OPENINGS_H
#define DUCTILE_BENCH_REPLAY_OPENINGS_H

#include "bench/replay/replay_engine.h"

#define OPENINGS_NO_BLOCK UINT32_MAX

enum { OPENINGS_MAX_BLOCKS = 64, OPENINGS_WIDTHS = 7 };

/* One span of the allocator's memory. */
typedef struct opening_span {
    ductile_addr address;
    uint64_t size;
    uint64_t born;   /* of a live one: the event that allocated it */
    uint32_t block;  /* which allocation of the trace that is, from 0; or NO_BLOCK */
    uint16_t stream; /* index into the trace's streams */
    uint8_t state;   /* a contender_span_state */
    bool is_apart;   /* may not serve the request of the moment */
    uint64_t kind;   /* of requests that it may serve: holes of one kind take each other's blocks */
    uint16_t pool;   /* of the trace: what is free serves it alone; 0: none */
    bool begins;     /* a range */
} opening_span;

/* Spans [first, end). */
typedef struct opening {
    size_t first, end;
    uint64_t bytes;      /* of the hole that there would be */
    uint64_t live_bytes; /* of the blocks in it; the hole is as large when they move elsewhere */
    size_t n_blocks;
    bool moves; /* the blocks fit into other holes */
} opening;

typedef struct openings {
    opening_span *spans; /* by address */
    size_t n;
    uint32_t capacity;
    uint64_t event;
    uint64_t request_bytes; /* what was refused at this moment; 0: nothing was */
    uint64_t largest_hole;
    /* With at most 1, 2, 4, ... 64 blocks gone: the largest hole. As far as more blocks open a
     * larger one. */
    opening widest[OPENINGS_WIDTHS];
    size_t n_widest;
    /* That serves the request for the fewest live bytes, with at most 64 blocks. */
    bool has_least;
    opening least;
    bool is_known; /* a moment was looked at, and the host had memory for it */
} openings;

/* Looks at a moment. Release with openings_drop in every case. */
void openings_look(openings *o, const replay_spec *spec, const replay_moment *now);
/* What the recorded program's own allocator held at a refusal. */
void openings_look_at_recorded(openings *o, const trace *t, const trace_refusal *of);
void openings_drop(openings *o);

/* The largest opening with at most so many live blocks; of equals the one with the fewest live
 * bytes, of these the first. False: there is no free span. */
bool openings_widest(const opening_span *spans, size_t n, size_t max_blocks, opening *out);
/* The opening of `request` bytes or more with the fewest live bytes, and at most so many blocks. Of
 * equals the first, with the free memory on both sides. False: there is none. */
bool openings_least(const opening_span *spans, size_t n, uint64_t request, size_t max_blocks,
                    opening *out);
/* Whether the blocks of an opening fit into the other holes of its kind: the largest first, each
 * where it fits best. */
bool openings_fit_elsewhere(const opening_span *spans, size_t n, const opening *o);

#endif
