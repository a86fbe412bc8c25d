/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C names of torch_memory_saver, for programs that look them up on its library: what the
 * calling thread's region is, and calls that are passed to Python. Named in LD_PRELOAD, the file
 * also tells ductile_gpu_memory_saver.py that the process is to have Ductile in
 * torch_memory_saver's place; by itself it replaces no function and needs no library.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

#define TAG_BYTES 64
#define NOT_READY 3 /* cudaErrorInitializationError: Python has not connected */

typedef struct handlers {
    int (*pause)(const char *tag); /* a cudaError_t; NULL: every tag */
    int (*resume)(const char *tag);
    void (*set_margin)(uint64_t bytes);
    uint8_t *(*find_backup)(const uint8_t *address, uint64_t size);
    void (*changed)(void); /* the calling thread's region is another now */
} handlers;

static handlers connected;
static atomic_int is_connected;

/* Passes calls to these functions from now on. They must stay valid. For the Python side. */
API void ductile_memory_saver_connect(const handlers *to) {
    connected = *to;
    atomic_store_explicit(&is_connected, 1, memory_order_release);
}

static bool has_handlers(void) {
    return atomic_load_explicit(&is_connected, memory_order_acquire) != 0;
}

/* ---- The calling thread's region ------------------------------------------------------------ */

typedef struct region {
    bool is_known; /* the environment was read */
    bool is_active;
    bool cpu_backup;
    bool mmap;
    char tag[TAG_BYTES];
} region;

static _Thread_local region of_thread;

static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value != NULL &&
           (strcmp(value, "1") == 0 || strcmp(value, "true") == 0 || strcmp(value, "TRUE") == 0 ||
            strcmp(value, "yes") == 0 || strcmp(value, "YES") == 0);
}

static region *current(void) {
    region *r = &of_thread;
    if (!r->is_known) {
        const char *backend = getenv("TMS_INIT_CPU_BACKUP_BACKEND");
        r->is_known = true;
        r->is_active = is_set("TMS_INIT_ENABLE");
        r->cpu_backup = is_set("TMS_INIT_ENABLE_CPU_BACKUP");
        r->mmap = backend != NULL && strcmp(backend, "mmap") == 0;
        (void)strcpy(r->tag, "default");
    }
    return r;
}

static void tell_changed(void) {
    if (has_handlers()) {
        connected.changed();
    }
}

API void tms_set_interesting_region(bool on) {
    current()->is_active = on;
    tell_changed();
}

API bool tms_get_interesting_region(void) {
    return current()->is_active;
}

/* A tag that is too long is cut; what allocates under it then is refused by its whole name. */
API void tms_set_current_tag(const char *tag) {
    region *r = current();
    (void)strncpy(r->tag, tag != NULL ? tag : "default", sizeof r->tag - 1);
    r->tag[sizeof r->tag - 1] = '\0';
    tell_changed();
}

API const char *tms_get_current_tag(void) {
    return current()->tag;
}

API void tms_set_enable_cpu_backup(bool on) {
    current()->cpu_backup = on;
    tell_changed();
}

API bool tms_get_enable_cpu_backup(void) {
    return current()->cpu_backup;
}

API void tms_set_cpu_backup_backend(const char *backend) {
    current()->mmap = backend != NULL && strcmp(backend, "mmap") == 0;
    tell_changed();
}

API const char *tms_get_cpu_backup_backend(void) {
    return current()->mmap ? "mmap" : "pinned";
}

/* Ductile writes no files: it stays off. */
API void tms_set_enable_disk_backup(bool on) {
    (void)on;
}

API bool tms_get_enable_disk_backup(void) {
    return false;
}

API void tms_set_disk_backup_dir(const char *folder) {
    (void)folder;
}

/* ---- Of the process ------------------------------------------------------------------------- */

static atomic_int retains = -1; /* -1: as the environment says */

API void tms_set_retain_cpu_backup(bool on) {
    atomic_store(&retains, on ? 1 : 0);
}

API bool tms_get_retain_cpu_backup(void) {
    int value = atomic_load(&retains);
    return value >= 0 ? value != 0 : is_set("TMS_RETAIN_CPU_BACKUP");
}

API int tms_pause(const char *tag) {
    return has_handlers() ? connected.pause(tag) : NOT_READY;
}

API int tms_resume(const char *tag) {
    return has_handlers() ? connected.resume(tag) : NOT_READY;
}

API void set_memory_margin_bytes(uint64_t bytes) {
    if (has_handlers()) {
        connected.set_margin(bytes);
    }
}

API uint8_t *tms_get_cpu_backup_pointer(const uint8_t *address, uint64_t size) {
    return has_handlers() ? connected.find_backup(address, size) : NULL;
}
