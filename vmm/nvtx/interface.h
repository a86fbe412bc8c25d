/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVTX's binary interface that Ductile uses, in its own words, so that no toolkit is
 * needed to build: how a program and a tool find each other, ranges, and the memory extension.
 * interface_check.c compares every line with NVIDIA's headers where there are some. Programs
 * compile this interface into themselves, so tools keep it as it is.
 */
#ifndef DUCTILE_VMM_NVTX_INTERFACE_H
#define DUCTILE_VMM_NVTX_INTERFACE_H

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

/* ---- The memory extension -------------------------------------------------------------------- */

/* An extension has one list of slots. 0 in a slot: the tool has not filled it. */
typedef struct nvtx_segment {
    size_t id;
    size_t n_slots;
    intptr_t *slots;
} nvtx_segment;

typedef struct nvtx_module {
    uint16_t version;
    uint16_t struct_size;
    uint16_t id;
    uint16_t compat_id;
    size_t n_segments;
    nvtx_segment *segments;
    intptr_t (*get_function)(uint32_t id);
    const void *info;
} nvtx_module;

#define NVTX_EXTENSION_ENTRY "InitializeInjectionNvtxExtension"
typedef int (*nvtx_extension_entry)(nvtx_module *module);

enum {
    NVTX_MEMORY_MODULE = 1,
    NVTX_MEMORY_COMPAT = 0x0102,
    NVTX_MEMORY_SLOTS = 63,
    NVTX_SLOT_HEAP_REGISTER = 0,
    NVTX_SLOT_HEAP_UNREGISTER = 1,
    NVTX_SLOT_REGIONS_REGISTER = 3,
    NVTX_SLOT_REGIONS_UNREGISTER = 5,
    NVTX_SLOT_REGIONS_NAME = 6,
    NVTX_HEAP_SUB_ALLOCATOR = 1,
    NVTX_MEMORY_VIRTUAL_ADDRESS = 1,
    NVTX_REFERENCE_POINTER = 1
};

typedef struct nvtxMemHeap_v1 *nvtx_heap;
typedef struct nvtxMemRegion_v1 *nvtx_region;

/* What stands for a heap where no tool is. */
#define NVTX_NO_HEAP ((nvtx_heap)(intptr_t)-1)

typedef struct nvtx_span {
    size_t size;
    const void *address;
} nvtx_span;

typedef struct nvtx_heap_description {
    uint16_t compat_id;
    uint16_t struct_size;
    uint32_t reserved;
    uint32_t usage;
    uint32_t type;
    size_t type_size;
    const void *type_description;
    uint32_t category;
    uint32_t message_type;
    nvtx_message message;
} nvtx_heap_description;

typedef struct nvtx_register_batch {
    uint16_t compat_id;
    uint16_t struct_size;
    uint32_t type;
    nvtx_heap heap;
    size_t n_regions;
    size_t region_size;
    const void *regions;
    nvtx_region *handles_out;
} nvtx_register_batch;

typedef union nvtx_reference {
    const void *pointer;
    nvtx_region handle;
} nvtx_reference;

typedef struct nvtx_unregister_batch {
    uint16_t compat_id;
    uint16_t struct_size;
    uint32_t reference_type;
    size_t n_references;
    size_t reference_size;
    const nvtx_reference *references;
} nvtx_unregister_batch;

typedef struct nvtx_name {
    uint32_t reference_type;
    uint32_t name_type;
    nvtx_reference region;
    nvtx_message name;
    uint32_t category;
    uint32_t reserved;
} nvtx_name;

typedef struct nvtx_name_batch {
    uint16_t compat_id;
    uint16_t struct_size;
    uint32_t reserved0;
    size_t n_names;
    size_t name_size;
    const nvtx_name *names;
    size_t reserved1;
} nvtx_name_batch;

typedef nvtx_heap (*nvtx_heap_register)(nvtx_domain domain, const nvtx_heap_description *heap);
typedef void (*nvtx_heap_unregister)(nvtx_domain domain, nvtx_heap heap);
typedef void (*nvtx_regions_register)(nvtx_domain domain, const nvtx_register_batch *batch);
typedef void (*nvtx_regions_unregister)(nvtx_domain domain, const nvtx_unregister_batch *batch);
typedef void (*nvtx_regions_name)(nvtx_domain domain, const nvtx_name_batch *batch);

#endif
