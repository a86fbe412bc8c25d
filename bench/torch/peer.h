/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces through an allocator that is no contender of ductile-bench, for `bench/run
 * compare`: told line by line what to measure, it prints one JSON object for each, a row as
 * `ductile-bench replay --json` prints it. The replay drives the allocator as it drives contenders.
 *
 *   peer.c      the program: command line, lines, rows
 *   peer.hpp    a peer in C++
 */
#ifndef DUCTILE_BENCH_TORCH_PEER_H
#define DUCTILE_BENCH_TORCH_PEER_H

#include <ductile.h>

#ifdef __cplusplus
extern "C" {
#endif

/* So far, but for what is held. */
typedef struct peer_stats {
    uint64_t reserved_bytes;
    uint64_t reserved_peak_bytes; /* since start_afresh */
    uint64_t driver_ns;           /* of the host, in driver calls */
    uint64_t host_waits;
    uint64_t pressure_waits;   /* where memory was short: as contender_stats, */
    uint64_t pressure_returns; /* 0 where it is not known                     */
} peer_stats;

/* Each but fault returns OK, ERR_OUT_OF_MEMORY where a request is refused, or an error: then fault
 * says in a line what it was. A block's address is the peer's own choice. */
typedef struct peer_ops {
    const char *name;
    uint64_t most_forced;                         /* as gates_patience */
    ductile_status (*start_afresh)(uint64_t cap); /* holds nothing, and no more than cap; 0: any */
    ductile_status (*give_back)(void);            /* holds nothing until start_afresh */
    /* For the streams of a trace, by their numbers. They live as long as the process. */
    ductile_status (*find_streams)(const uint64_t *numbers, size_t n, ductile_stream *out);
    ductile_status (*alloc)(uint64_t size, ductile_stream stream, ductile_addr *out);
    ductile_status (*free)(ductile_addr block);
    ductile_status (*use)(ductile_addr block, ductile_stream stream); /* record_stream */
    ductile_status (*stats)(peer_stats *out);
    const char *(*fault)(void);
} peer_ops;

typedef struct peer_options {
    const char *given; /* of the program's own option; NULL: it was not */
    uint64_t repeat;   /* passes */
    double seconds;    /* no third pass begins later; and in timing calls */
    char **paths;      /* of traces */
    int n_paths;
} peer_options;

/* The program. own: its option that takes a value. run returns the exit status. */
int peer_main(int argc, char **argv, const char *own, int (*run)(const peer_options *options));

/* For run. Loads all traces and says so, then answers standard input line by line: `measure N`,
 * `capacity N` or `timeline N FILE`, N counts the traces. Pre: the device's context is current. */
int peer_serve(const peer_ops *ops, const peer_options *options);

#ifdef __cplusplus
}
#endif

#endif
