/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control groups: containers and batch systems give a process less memory than the machine has. The
 * kernel ends a process that touches more, without an error that it could see.
 */
#ifndef DUCTILE_VMM_CONTROL_GROUP_H
#define DUCTILE_VMM_CONTROL_GROUP_H

#include <stdint.h>

/*
 * The bytes that this process may still take, as all its groups say, in version 1 or 2 of the
 * kernel's interface; UINT64_MAX where none has a limit, or none can be read. What a group holds of
 * files counts as free, since the kernel drops that first. groups: "/proc/self/cgroup"; root:
 * "/sys/fs/cgroup".
 */
uint64_t dvmm_control_group_rest(const char *groups, const char *root);

#endif
