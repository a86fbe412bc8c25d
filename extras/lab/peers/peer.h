/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays traces through an allocator that is no contender of ductile-bench, for `bench/run
 * compare`: told line by line what to measure, it prints one JSON object for each, a row as
 * `ductile-bench replay --json` prints it. The replay drives the allocator as it drives contenders.
 *
 *   peer.c      the program: command line, lines, rows
 *   peer.hpp    a peer in C++
 */
#ifndef DUCTILE_LAB_PEER_H
#define DUCTILE_LAB_PEER_H

#ifdef __cplusplus
extern "C" {
#endif

#include "bench/contenders/contender.h"

/* The one allocator of the process, behind a contender's table: init and fini leave it empty, and a
 * block's address is its own choice. Where a call returns another error than ERR_OUT_OF_MEMORY,
 * fault says in a line what it was. */
typedef struct peer_ops {
    contender_ops contender; /* without trim and walk; of stats, 0 is what it does not know */
    uint64_t most_forced;    /* as gates_patience */
    /* For the streams of a trace, by their numbers. They live as long as the process. */
    ductile_status (*find_streams)(const uint64_t *numbers, size_t n, ductile_stream *out);
    const char *(*fault)(void); /* since the last init; empty: there was none */
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
int peer_serve(const peer_ops *peer, const peer_options *options);

#ifdef __cplusplus
}
#endif

#endif
