/* SPDX-License-Identifier: Apache-2.0 */
/* What programs ask about memory. */
#include "counts.h"
#include "device.h"
#include "real.h"

#include <string.h>

/* ---- How much there is --------------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* What requests may still get: what the driver has and what Ductile holds free of the device's,
 * up to the limit. */
static size_t still_to_be_had(ductile_allocator *a, size_t of_driver) {
    ductile_stats stats = {.struct_size = sizeof(stats)};
    ductile_limits limits = {.struct_size = sizeof(limits)};
    if (ductile_get_stats(a, NULL, &stats) != DUCTILE_OK ||
        ductile_get_limits(a, &limits) != DUCTILE_OK) {
        return of_driver;
    }
    uint64_t of_host = least(stats.spilled_live_bytes, stats.allocated_bytes);
    uint64_t in_use = stats.allocated_bytes - of_host + stats.quarantined_bytes;
    uint64_t allowed = limits.limit_bytes - least(in_use, limits.limit_bytes);
    uint64_t idle = stats.reserved_bytes - least(in_use, stats.reserved_bytes);
    return (size_t)least(of_driver + idle, allowed);
}

/* A program that only asks makes no allocator. */
static dpre_device *enter_current_if_open(void) {
    int device = dpre_served() != DPRE_OFF ? dpre_current_device() : -1;
    dpre_device *d = device >= 0 && device < dpre_n_devices() ? dpre_enter_open(device) : NULL;
    return d;
}

cu_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    cu_result code = REAL(cuMemGetInfo_v2, free_bytes, total_bytes);
    dpre_device *d = code == CU_SUCCESS && free_bytes != NULL ? enter_current_if_open() : NULL;
    if (d != NULL) {
        *free_bytes = still_to_be_had(dpre_allocator(d), *free_bytes);
    }
    dpre_leave(d);
    return code;
}

/* ---- Which allocation an address belongs to ------------------------------------------------ */

typedef struct search {
    ductile_addr address;
    ductile_block_info *found;
} search;

static int look_at(void *user, const ductile_block_info *block) {
    search *s = user;
    bool is_it = block->state == DUCTILE_BLOCK_LIVE && s->address >= block->address &&
                 s->address - block->address < block->size;
    if (is_it) {
        *s->found = *block;
    }
    return is_it;
}

/* The allocation that holds an address, and its device, which is entered. NULL: not ours. */
static dpre_device *find_allocation(ductile_addr address, ductile_block_info *block) {
    dpre_device *d = dpre_enter_owner(address, block);
    if (d != NULL && block->address == 0) {
        search s = {address, block};
        (void)!ductile_walk(dpre_allocator(d), NULL, look_at, &s);
    }
    if (d != NULL && block->address == 0) { /* freed meanwhile */
        dpre_leave(d);
        return NULL;
    }
    return d;
}

cu_result cuMemGetAddressRange_v2(ductile_addr *base, size_t *size, ductile_addr addr) {
    ductile_block_info block;
    dpre_device *d = find_allocation(addr, &block);
    if (d == NULL) {
        return REAL(cuMemGetAddressRange_v2, base, size, addr);
    }
    dpre_leave(d);
    if (base != NULL) {
        *base = block.address;
    }
    if (size != NULL) {
        *size = (size_t)block.requested_size;
    }
    return CU_SUCCESS;
}

/* ---- Attributes of an address --------------------------------------------------------------- */

static bool is_answered_here(int attribute) {
    return attribute == CU_POINTER_CONTEXT || attribute == CU_POINTER_RANGE_START ||
           attribute == CU_POINTER_RANGE_SIZE;
}

static void answer(int attribute, const dpre_device *d, const ductile_block_info *block,
                   void *data) {
    size_t size = (size_t)block->requested_size;
    cu_context context = dpre_context(d);
    switch (attribute) {
    case CU_POINTER_CONTEXT:
        memcpy(data, &context, sizeof(context));
        break;
    case CU_POINTER_RANGE_START:
        memcpy(data, &block->address, sizeof(block->address));
        break;
    case CU_POINTER_RANGE_SIZE:
        memcpy(data, &size, sizeof(size));
        break;
    default:
        break;
    }
}

cu_result cuPointerGetAttribute(void *data, int attribute, ductile_addr addr) {
    ductile_block_info block;
    dpre_device *d =
        data != NULL && is_answered_here(attribute) ? find_allocation(addr, &block) : NULL;
    if (d == NULL) {
        return REAL(cuPointerGetAttribute, data, attribute, addr);
    }
    answer(attribute, d, &block, data);
    dpre_leave(d);
    return CU_SUCCESS;
}

static bool asks_here(unsigned int n, const int *attributes) {
    for (unsigned int i = 0; i < n; i++) {
        if (is_answered_here(attributes[i])) {
            return true;
        }
    }
    return false;
}

/* The driver answers all, then ours are put right. */
cu_result cuPointerGetAttributes(unsigned int n, int *attributes, void **data, ductile_addr addr) {
    ductile_block_info block;
    cu_result code = REAL(cuPointerGetAttributes, n, attributes, data, addr);
    dpre_device *d =
        code == CU_SUCCESS && asks_here(n, attributes) ? find_allocation(addr, &block) : NULL;
    for (unsigned int i = 0; d != NULL && i < n; i++) {
        if (data[i] != NULL) {
            answer(attributes[i], d, &block, data[i]);
        }
    }
    dpre_leave(d);
    return code;
}

/* ---- Passing it to another process ---------------------------------------------------------- */

cu_result cuIpcGetMemHandle(void *handle, ductile_addr addr) {
    ductile_block_info block;
    dpre_device *d = dpre_enter_owner(addr, &block);
    if (d == NULL) {
        return REAL(cuIpcGetMemHandle, handle, addr);
    }
    dpre_leave(d);
    dpre_note("memory of Ductile has no CUDA IPC handle: with DUCTILE_PRELOAD=async, cudaMalloc "
              "stays the driver's, whose memory has one");
    return CU_NOT_SUPPORTED;
}
