/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tool that listens to NVTX in this process: the library that NVTX_INJECTION64_PATH names, as
 * profilers and checkers set it for the programs they start. It is asked once for the process, and
 * stays loaded.
 */
#ifndef DUCTILE_VMM_NVTX_ATTACH_H
#define DUCTILE_VMM_NVTX_ATTACH_H

#include "vmm/nvtx/interface.h"

#include <stdbool.h>

/* Functions of memory that the tool does not serve do nothing. */
typedef struct nvtx_tool {
    nvtx_heap_register heap_register;
    nvtx_heap_unregister heap_unregister;
    nvtx_regions_register regions_register;
    nvtx_regions_unregister regions_unregister;
    nvtx_regions_name regions_name;
    nvtx_domain domain; /* "ductile" */
    bool has_memory;    /* all functions of memory are the tool's; only asked for when wanted */
} nvtx_tool;

/* A tool may take and leave the slots of ranges at any time, so that each call looks at them. NULL
 * in one: the tool does not listen now. */
void dvmm_nvtx_tool_push(const nvtx_tool *tool, const nvtx_event *event);
void dvmm_nvtx_tool_pop(const nvtx_tool *tool);

/*
 * The tool, or NULL when none is there, or none that works: then `message` says in one sentence
 * why, or is empty when none is named. With wants_memory the memory extension is asked for, too; a
 * tool without it is returned all the same, and `message` says so.
 */
const nvtx_tool *dvmm_nvtx_attach(bool wants_memory, char *message, size_t size);

#endif
