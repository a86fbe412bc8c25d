/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest capacity, to one granule, from which a replay completes.
 *
 * "From which": a policy need not be monotonic, more memory can make it fail where less sufficed.
 * The rule: bisect between what cannot suffice (less than the live peak) and what does (the peak
 * it reserved without a cap); then also try 1, 2, 4, 8, ... granules above the answer, up to that
 * peak. Where one of them fails, the answer lies above it: bisect again from there. Failing
 * capacities between the ones tried would go unseen. Nothing below the live peak is tried, although
 * a policy that waits on the host, and so ends uses earlier than the trace, could get by with less.
 *
 * A replay tells of more than its own capacity: where the contender asks its capacity nothing but
 * whether so much more fits, all capacities with the same answers end alike, and are not replayed.
 */
#ifndef DUCTILE_BENCH_REPLAY_MINCAP_H
#define DUCTILE_BENCH_REPLAY_MINCAP_H

#include "bench/replay/replay_engine.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether a capacity of that many granules suffices.
 * Sets *failed when that could not be found out. */
typedef bool (*mincap_probe)(void *user, uint64_t granules, bool *failed);

/*
 * too_few is known not to suffice; enough is a guess that is tried first and raised by an eighth
 * up to four times. 0: nothing suffices, or a probe failed.
 */
uint64_t mincap_search(mincap_probe probe, void *user, uint64_t too_few, uint64_t enough);

/* spec: of the uncapped run, whose result is `uncapped`. 0: no capacity suffices. */
uint64_t mincap_find(const replay_spec *spec, const replay_result *uncapped);

#endif
