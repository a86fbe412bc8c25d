/* SPDX-License-Identifier: Apache-2.0 */
/* The gate every test of the driver seam leaves through: nothing it made is left on the device.
 * Streams count too, unlike in fixture_leak_gate, whose device keeps its test's streams. */
#ifndef TESTS_SUPPORT_LEAK_GATE_H
#define TESTS_SUPPORT_LEAK_GATE_H

#include "tests/support/complain.h"

#include <ductile_virtual.h>

/* NULL, or what is left. */
static inline const char *leak_gate(ductile_virtual_gpu *gpu) {
    ductile_virtual_state s = {.struct_size = sizeof(s)};
    NEED_OK(ductile_virtual_get_state(gpu, &s));
    NEED(s.handles == 0 && s.used_bytes == 0, "%llu handles of %llu bytes are left",
         (unsigned long long)s.handles, (unsigned long long)s.used_bytes);
    NEED(s.mappings == 0, "%llu mappings are left", (unsigned long long)s.mappings);
    NEED(s.reservations == 0 && s.reserved_address_bytes == 0, "%llu reservations are left",
         (unsigned long long)s.reservations);
    NEED(s.allocations == 0, "%llu allocations are left", (unsigned long long)s.allocations);
    NEED(s.streams == 0, "%llu streams are left", (unsigned long long)s.streams);
    NEED(s.events == 0, "%llu events are left", (unsigned long long)s.events);
    return NULL;
}

#endif
