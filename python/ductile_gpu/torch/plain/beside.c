/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of Ductile beside PyTorch's own allocator (torch.cuda.MemPool with an allocator). PyTorch
 * says neither which of its pools a request is for, nor on which thread it will come: a capture
 * asks from several. So each pool has an allocation function of its own, a slot, and its requests
 * are served from the pool of Ductile's that the slot stands for.
 */
#include "ductile_torch.h"

#include <pthread.h>
#include <string.h>

#define SLOTS 128

/* The first number of these pools' ids; the second one counts. */
#define BESIDE UINT64_C(0x6475637473)

typedef struct slot {
    int is_taken;
    ductile_pool_id id;
    char tag[DUCTILE_TAG_BYTES];
    ductile_contents contents;
    unsigned char is_held[MAX_DEVICES]; /* the device's allocator has the pool, and a reference */
} slot;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards all of this */
static slot slots[SLOTS];
static uint64_t counted;

static int find_free(void) {
    for (int i = 0; i < SLOTS; i++) {
        if (!slots[i].is_taken) {
            return i;
        }
    }
    return -1;
}

/* A slot for a new pool with this tag, on whatever devices it is used; -1: all are taken. `second`
 * receives the second number of the pool's id. For the Python side. */
TORCH_API int ductile_torch_beside_take(const char *tag, ductile_contents contents,
                                        uint64_t *second) {
    (void)pthread_mutex_lock(&mutex);
    int found = find_free();
    if (found >= 0) {
        slot *s = &slots[found];
        *s = (slot){.is_taken = 1, .id = {BESIDE, ++counted}, .contents = contents};
        (void)strncpy(s->tag, tag, sizeof s->tag - 1);
        *second = s->id.second;
    }
    (void)pthread_mutex_unlock(&mutex);
    return found;
}

TORCH_API uint64_t ductile_torch_beside_first(void) {
    return BESIDE;
}

/* The slot serves no more requests. Its blocks stay until they are freed. */
TORCH_API void ductile_torch_beside_give(int number) {
    (void)pthread_mutex_lock(&mutex);
    slot *s = &slots[number];
    for (int device = 0; device < MAX_DEVICES; device++) {
        if (s->is_held[device]) {
            (void)ductile_pool_release(ductile_torch_allocator_of(device), s->id);
        }
    }
    s->is_taken = 0;
    (void)pthread_mutex_unlock(&mutex);
}

/* Makes the pool on this device. mutex held. */
static ductile_status hold(slot *s, ductile_allocator *a, int device) {
    ductile_status status = ductile_pool_retain(a, s->id);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = ductile_pool_set_kind(a, s->id, DUCTILE_POOL_PLAIN);
    if (status == DUCTILE_OK) {
        status = ductile_pool_set_tag(a, s->id, s->tag, s->contents);
    }
    if (status != DUCTILE_OK) {
        (void)ductile_pool_release(a, s->id);
        return status;
    }
    s->is_held[device] = 1;
    return DUCTILE_OK;
}

static ductile_status find_pool(int number, ductile_allocator *a, int device, ductile_pool_id *id) {
    (void)pthread_mutex_lock(&mutex);
    slot *s = &slots[number];
    ductile_status status = s->is_held[device] ? DUCTILE_OK : hold(s, a, device);
    *id = s->id;
    (void)pthread_mutex_unlock(&mutex);
    return status;
}

static ductile_status take(int number, size_t size, int device, ductile_stream stream,
                           ductile_addr *out) {
    ductile_allocator *a = ductile_torch_allocator_of(device);
    if (a == NULL) {
        return DUCTILE_ERR_NO_DEVICE;
    }
    ductile_pool_id id;
    ductile_status status = find_pool(number, a, device, &id);
    if (status == DUCTILE_OK) {
        status = ductile_pool_begin(a, id, NULL, NULL);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    status = ductile_alloc(a, size, stream, out);
    (void)ductile_pool_end(a, id);
    (void)ductile_pool_release(a, id);
    return status;
}

/* NULL has PyTorch free what it caches, ask again, and raise its OutOfMemoryError. */
static void *take_or_refuse(int number, size_t size, int device, ductile_stream stream) {
    ductile_addr address = 0;
    if (size == 0) {
        return NULL;
    }
    ductile_status status = take(number, size, device, stream, &address);
    if (status != DUCTILE_OK && status != DUCTILE_ERR_OUT_OF_MEMORY) {
        ductile_torch_refuse(device, size, status);
    }
    return (void *)(uintptr_t)address;
}

/* PyTorch frees what it caches no longer, and counts on it that the device has it back. */
TORCH_API void ductile_torch_beside_free(void *ptr, size_t size, int device, ductile_stream stream);
TORCH_API void ductile_torch_beside_free(void *ptr, size_t size, int device,
                                         ductile_stream stream) {
    (void)size;
    (void)stream;
    ductile_allocator *a = ptr != NULL ? ductile_torch_allocator_of(device) : NULL;
    ductile_block_info info = {.struct_size = sizeof info};
    ductile_addr address = (ductile_addr)(uintptr_t)ptr;
    if (a == NULL || ductile_query_block(a, address, &info) != DUCTILE_OK) {
        return;
    }
    if (ductile_free(a, address) == DUCTILE_OK) {
        ductile_status status = ductile_trim(a, &info.pool, 0, NULL);
        (void)status; /* what could not go back now goes later */
    }
}

#define SLOT(n)                                                                                    \
    TORCH_API void *ductile_torch_malloc_##n(size_t size, int device, ductile_stream stream);      \
    TORCH_API void *ductile_torch_malloc_##n(size_t size, int device, ductile_stream stream) {     \
        return take_or_refuse(0x##n, size, device, stream);                                        \
    }
#define SLOTS_16(h)                                                                                \
    SLOT(h##0)                                                                                     \
    SLOT(h##1)                                                                                     \
    SLOT(h##2)                                                                                     \
    SLOT(h##3)                                                                                     \
    SLOT(h##4)                                                                                     \
    SLOT(h##5) SLOT(h##6) SLOT(h##7) SLOT(h##8) SLOT(h##9) SLOT(h##a) SLOT(h##b) SLOT(h##c)        \
        SLOT(h##d) SLOT(h##e) SLOT(h##f)
SLOTS_16(0)
SLOTS_16(1)
SLOTS_16(2)
SLOTS_16(3)
SLOTS_16(4)
SLOTS_16(5)
SLOTS_16(6)
SLOTS_16(7)
