/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the driver's functions, or says in one sentence why not. */
#ifndef DUCTILE_VMM_CUDA_LOAD_H
#define DUCTILE_VMM_CUDA_LOAD_H

#include "vmm/cuda/abi.h"
#include "vmm/driver/probe.h"

/* One function, and where its pointer goes. */
typedef struct cu_wanted {
    const char *name;     /* without version: what the driver's own search is asked for */
    const char *exported; /* with version suffix: what the library exports              */
    int version;
    size_t offset; /* of its pointer in the struct of pointers that is filled */
    bool is_required;
} cu_wanted;

/* The row of a list X(function, exported symbol, version, parameters). */
#define CU_WANTED(api, name, exported, version, is_required)                                       \
    { #name, exported, version, offsetof(api, name), is_required }

/* Loads the library, which stays, and finds the functions in it: NULL where one that is not
 * required is missing. Returns OK, ERR_NO_LIBRARY or ERR_DRIVER_TOO_OLD. */
ductile_status dvmm_cuda_find(const cu_wanted *wanted, size_t n, void *api, dvmm_reason why);

/* Those that the library calls, once for the process. Returns the same. */
ductile_status dvmm_cuda_load(const cu_api **out, dvmm_reason why);

#endif
