/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contenders, in the order of every table: their names on the command line and in JSON, and
 * what pages, pictures and tables call them. The only list: the Python package is built from it
 * (python/tools/make_abi.py), and the scripts of bench read it (bench/contender_titles.py).
 */
#ifndef DUCTILE_BENCH_CONTENDERS_NAMES_H
#define DUCTILE_BENCH_CONTENDERS_NAMES_H

/* clang-format off */
#define DUCTILE_CONTENDERS_MAP(X)                                                                  \
    X(ductile, "Ductile")                                                                          \
    X(expandable, "expandable segments")                                                           \
    X(classic, "native")                                                                           \
    X(cumemalloc, "cudaMalloc")                                                                    \
    X(cumemallocasync, "cudaMallocAsync")
/* clang-format on */

#define DUCTILE_COUNT_CONTENDER(name, title) +1
enum { N_CONTENDERS = DUCTILE_CONTENDERS_MAP(DUCTILE_COUNT_CONTENDER) };
#undef DUCTILE_COUNT_CONTENDER

#endif
