/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of the host: addresses without memory, and memory behind them that is there at once. */
#ifndef DUCTILE_VMM_HOST_PAGES_H
#define DUCTILE_VMM_HOST_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#define DVMM_HUGE_PAGE (UINT64_C(2) << 20)
#define DVMM_HOST_LINE UINT64_C(512) /* of a span: so that copies begin where transfers do */

/* All memory of the machine, in whole huge pages. */
uint64_t dvmm_host_pages_total(void);

/*
 * Control groups: containers and batch systems give a process less memory than the machine has. The
 * kernel ends a process that touches more, without an error that it could see.
 *
 * The bytes that this process may still take, as all its groups say, in version 1 or 2 of the
 * kernel's interface; UINT64_MAX where none has a limit, or none can be read. What a group holds of
 * files counts as free, since the kernel drops that first. groups: "/proc/self/cgroup"; root:
 * "/sys/fs/cgroup".
 */
uint64_t dvmm_control_group_rest(const char *groups, const char *root);

/* What memory of the machine there is, in bytes. */
typedef struct dvmm_host_room {
    uint64_t total;
    uint64_t available;
    uint64_t group_rest; /* of dvmm_control_group_rest */
} dvmm_host_room;

/* May the driver lock so much of it, where it locks `before` already? A part of the machine stays
 * free, and of each group a little. The driver's pages count in no control group, so that those are
 * asked as if they did. A machine whose memory grows as it is used allows more later. */
bool dvmm_host_pages_may_lock(uint64_t size, uint64_t before);
bool dvmm_host_room_has(const dvmm_host_room *room, uint64_t size, uint64_t before);

/* Reserves addresses, the first at a huge page. NULL: there are none. */
uint8_t *dvmm_host_pages_reserve(uint64_t size);
void dvmm_host_pages_unreserve(uint8_t *base, uint64_t size);

/* Puts memory behind reserved addresses, in huge pages where the kernel has them, and touches it
 * with several threads. A forked child does not get it: pages that a device writes must not be
 * shared. False when the machine, or a control group of the process, has less memory left than
 * that, or the kernel refuses: then there is none. Pre: whole huge pages. */
bool dvmm_host_pages_make(uint8_t *memory, uint64_t size);

/* Takes the memory away, and keeps the addresses. */
void dvmm_host_pages_drop(uint8_t *memory, uint64_t size);

#endif
