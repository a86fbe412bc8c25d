/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tool is told through NVTX (option nvtx): ranges of the slow paths. The tool is the library
 * that NVTX_INJECTION64_PATH names, as profilers set it for the programs they start. It is asked
 * once for the process, and stays loaded.
 */
#ifndef DUCTILE_POOL_SERVICES_PROFILING_NVTX_H
#define DUCTILE_POOL_SERVICES_PROFILING_NVTX_H

#include "vmm/driver/driver.h"

/* The tool, or NULL when none is there, or none that works: then `message` says in one sentence
 * why, or is empty when none is named. */
const dvmm_sections *dpool_nvtx_attach(char *message, size_t size);

/* DUCTILE_OK always; a tool that does not work is logged. */
ductile_status dpool_nvtx_begin(ductile_allocator *a);

#endif
