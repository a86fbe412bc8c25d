/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the virtual GPU's driver calls: from which places they are made, and what the failed ones
 * were about. A program that uses this is linked with --wrap=dvmm_vgpu_log, which each call ends
 * in.
 */
#ifndef TESTS_SUPPORT_FAULT_SITES_H
#define TESTS_SUPPORT_FAULT_SITES_H

#include "vmm/driver/driver.h"

/* One driver call of a run. Its site is its kind and the way that led to it: the return addresses
 * from the driver up to the line of the test. */
typedef struct fault_site {
    dvmm_call call;
    uint64_t nth; /* of its kind, from 1                    */
    uint64_t way; /* a hash                                 */
    bool is_new;  /* no earlier call was made from here     */
    bool in_end;  /* made after fault_sites_mark_end        */
} fault_site;

enum { N_FAULT_SITES_MAX = 4096 };

typedef struct fault_sites {
    size_t n;
    bool in_end;
    fault_site list[N_FAULT_SITES_MAX];
} fault_sites;

/* Writes down all calls from here on. NULL: no more. */
void fault_sites_record(fault_sites *sites);
void fault_sites_mark_end(void);

/* Sums over calls that failed, and the largest handle that was made. */
typedef struct failed_calls {
    const char *first; /* of them, its name; NULL: none */
    uint64_t unmap_bytes, releases, address_frees, event_destroys, syncs, marks;
    uint64_t largest_handle;
} failed_calls;

/* Since the last reset. */
failed_calls failed_calls_get(void);
void failed_calls_reset(void);

#endif
