/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVTX's binary interface that Ductile uses, in its own words, so that no toolkit is
 * needed to build: how a program and a tool find each other, and ranges.
 * interface_check.c compares every line with NVIDIA's headers where there are some. Programs
 * compile this interface into themselves, so tools keep it as it is.
 */
#ifndef DUCTILE_POOL_SERVICES_PROFILING_INTERFACE_H
#define DUCTILE_POOL_SERVICES_PROFILING_INTERFACE_H

#include <stddef.h>
#include <stdint.h>

enum { NVTX_INTERFACE_VERSION = 3 };

/* ---- Functions of a tool --------------------------------------------------------------------- */

typedef void (*nvtx_function)(void); /* converted to its own type before it is called */

/* Function tables of the program, by number. A table is a list of the addresses of slots: the tool
 * stores its functions there. Entry 0 is NULL. */
enum {
    NVTX_TABLE_CORE = 1,
    NVTX_TABLE_CUDA = 2,
    NVTX_TABLE_OPENCL = 3,
    NVTX_TABLE_CUDART = 4,
    NVTX_TABLE_CORE2 = 5,
    NVTX_TABLE_SYNC = 6,
    NVTX_N_TABLES
};

enum {
    NVTX_CORE_SLOTS = 16,
    NVTX_CUDA_SLOTS = 9,
    NVTX_OPENCL_SLOTS = 15,
    NVTX_CUDART_SLOTS = 7,
    NVTX_CORE2_SLOTS = 16,
    NVTX_SYNC_SLOTS = 7
};

/* Slots of NVTX_TABLE_CORE2 that Ductile calls. */
enum { NVTX_SLOT_PUSH = 4, NVTX_SLOT_POP = 5, NVTX_SLOT_DOMAIN_CREATE = 12 };

/* ---- A program and its tool ------------------------------------------------------------------ */

enum { NVTX_EXPORT_CALLBACKS = 1, NVTX_EXPORT_VERSION = 3 };

typedef struct nvtx_export_callbacks {
    size_t struct_size;
    int (*get_table)(int table, nvtx_function ***slots, unsigned *n_slots); /* 0: no such table */
} nvtx_export_callbacks;

typedef struct nvtx_export_version {
    size_t struct_size;
    uint32_t version;
    uint32_t reserved;
    void (*set_tool_version)(uint32_t version);
} nvtx_export_version;

typedef const void *(*nvtx_get_export)(uint32_t export_id);

/* The tool's entry point: it asks for the tables and fills their slots. 0: it does not want to. */
#define NVTX_ENTRY "InitializeInjectionNvtx2"
typedef int (*nvtx_entry)(nvtx_get_export get);

#define NVTX_TOOL_VARIABLE "NVTX_INJECTION64_PATH"

/* ---- Ranges ---------------------------------------------------------------------------------- */

typedef struct nvtxDomainRegistration_st *nvtx_domain;

enum { NVTX_MESSAGE_ASCII = 1, NVTX_PAYLOAD_UINT64 = 1 };

typedef union nvtx_message {
    const char *ascii;
    const void *registered;
} nvtx_message;

typedef struct nvtx_event {
    uint16_t version;
    uint16_t size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    nvtx_message message;
} nvtx_event;

typedef nvtx_domain (*nvtx_domain_create)(const char *name);
typedef int (*nvtx_push)(nvtx_domain domain, const nvtx_event *event);
typedef int (*nvtx_pop)(nvtx_domain domain);

#endif
