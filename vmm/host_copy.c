/* SPDX-License-Identifier: Apache-2.0 */
#include "vmm/host_copy.h"

#include "vmm/base/align.h"
#include "vmm/capture_mode.h"

#include <stdlib.h>

#define BUFFER_BYTES (64 * DTI_MIB)

/* ---- Buffers ------------------------------------------------------------------------------- */

static ductile_status make_buffers(dvmm_host_copy *saved) {
    uint64_t n = (saved->bytes + BUFFER_BYTES - 1) / BUFFER_BYTES;
    saved->buffers = calloc(n + 1, sizeof *saved->buffers);
    if (saved->buffers == NULL) {
        return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    ductile_status status = DUCTILE_OK;
    while (saved->n_buffers < n && status == DUCTILE_OK) {
        uint64_t left = saved->bytes - saved->n_buffers * BUFFER_BYTES;
        void *memory = NULL;
        status = dvmm_host_alloc(saved->driver, dti_min(left, BUFFER_BYTES), &memory);
        if (status == DUCTILE_OK) {
            saved->buffers[saved->n_buffers++] = memory;
        }
    }
    return status;
}

/* ---- Copies -------------------------------------------------------------------------------- */

typedef ductile_status (*copy_fn)(dvmm_driver *driver, uint8_t *host, ductile_addr addr,
                                  uint64_t size, ductile_stream stream);

static ductile_status copy_out(dvmm_driver *driver, uint8_t *host, ductile_addr addr, uint64_t size,
                               ductile_stream stream) {
    return dvmm_read_back(driver, host, addr, size, stream);
}

static ductile_status copy_in(dvmm_driver *driver, uint8_t *host, ductile_addr addr, uint64_t size,
                              ductile_stream stream) {
    return dvmm_upload(driver, addr, host, size, stream);
}

/* A piece that begins at `at` of all bytes may go on in the next buffer. */
static ductile_status copy_piece(const dvmm_host_copy *saved, const dvmm_piece *piece, uint64_t at,
                                 ductile_stream stream, copy_fn copy) {
    ductile_status status = DUCTILE_OK;
    if (saved->fills) {
        return dvmm_fill(saved->driver, piece->addr, saved->value, piece->size, stream);
    }
    for (uint64_t done = 0; done < piece->size && status == DUCTILE_OK;) {
        uint64_t from = at + done;
        uint64_t part = dti_min(piece->size - done, BUFFER_BYTES - from % BUFFER_BYTES);
        uint8_t *host = saved->buffers[from / BUFFER_BYTES] + from % BUFFER_BYTES;
        status = copy(saved->driver, host, piece->addr + done, part, stream);
        done += part;
    }
    return status;
}

static bool wants_all(void *user, ductile_addr addr) {
    (void)user;
    (void)addr;
    return true;
}

static ductile_status copy_on(dvmm_host_copy *saved, ductile_stream stream, copy_fn copy,
                              bool (*wants)(void *user, ductile_addr addr), void *user) {
    uint64_t at = 0;
    ductile_status status = DUCTILE_OK;
    saved->copied_bytes = 0;
    for (uint64_t i = 0; i < saved->n_pieces && status == DUCTILE_OK; i++) {
        const dvmm_piece *piece = &saved->pieces[i];
        if (!piece->has_stayed && wants(user, piece->addr)) {
            status = copy_piece(saved, piece, at, stream, copy);
            saved->copied_bytes += saved->fills ? 0 : piece->size;
        }
        at += piece->size;
    }
    return status;
}

/* Waits for the copies. A stream whose wait failed is kept: its copies may land at any time. */
static ductile_status finish(dvmm_host_copy *saved) {
    ductile_status status =
        saved->busy != NULL ? dvmm_stream_sync(saved->driver, saved->busy) : DUCTILE_OK;
    if (status == DUCTILE_OK && saved->busy != NULL) {
        (void)dvmm_stream_destroy(saved->driver, saved->busy);
        saved->busy = NULL;
    }
    return status;
}

static ductile_status copy_all(dvmm_host_copy *saved, copy_fn copy,
                               bool (*wants)(void *user, ductile_addr addr), void *user) {
    ductile_status status = finish(saved); /* the copies of an earlier attempt */
    if (status != DUCTILE_OK || saved->n_pieces == 0) {
        return status;
    }
    status = dvmm_stream_create(saved->driver, &saved->busy);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = copy_on(saved, saved->busy, copy, wants, user);
    ductile_status finished = finish(saved);
    return status == DUCTILE_OK ? finished : status;
}

/* Leaves page-locked memory that a copy may still read to the end of the process. */
static void free_buffers(dvmm_host_copy *saved) {
    dvmm_capture_mode mode = dvmm_capture_relax(saved->driver);
    bool is_idle = finish(saved) == DUCTILE_OK;
    while (is_idle && saved->n_buffers > 0) {
        (void)dvmm_host_free(saved->driver, saved->buffers[--saved->n_buffers]);
    }
    dvmm_capture_restore(saved->driver, mode);
}

void dvmm_host_copy_drop(dvmm_host_copy *saved) {
    if (saved->n_buffers > 0) {
        free_buffers(saved);
    }
    free(saved->buffers);
    free(saved->pieces);
    *saved = (dvmm_host_copy){0};
}

/* ---- Saving and restoring ------------------------------------------------------------------ */

ductile_status dvmm_host_copy_save(dvmm_host_copy *saved, dvmm_driver *driver, dvmm_piece *pieces,
                                   uint64_t n_pieces) {
    *saved = (dvmm_host_copy){.driver = driver, .pieces = pieces, .n_pieces = n_pieces};
    for (uint64_t i = 0; i < n_pieces; i++) {
        saved->bytes += pieces[i].size;
    }
    ductile_status status = make_buffers(saved);
    if (status == DUCTILE_OK) {
        status = copy_all(saved, copy_out, wants_all, NULL);
    }
    if (status != DUCTILE_OK) {
        dvmm_host_copy_drop(saved);
    }
    return status;
}

void dvmm_host_copy_fill(dvmm_host_copy *saved, dvmm_driver *driver, dvmm_piece *pieces,
                         uint64_t n_pieces, uint8_t value) {
    *saved = (dvmm_host_copy){
        .driver = driver, .pieces = pieces, .n_pieces = n_pieces, .fills = true, .value = value};
}

uint8_t *dvmm_host_copy_find(const dvmm_host_copy *saved, ductile_addr addr, uint64_t *bytes) {
    uint64_t at = 0;
    for (uint64_t i = 0; i < saved->n_pieces && !saved->fills; i++) {
        const dvmm_piece *piece = &saved->pieces[i];
        uint64_t offset = addr - piece->addr;
        if (offset < piece->size) {
            uint64_t from = at + offset;
            *bytes = dti_min(piece->size - offset, BUFFER_BYTES - from % BUFFER_BYTES);
            return piece->has_stayed ? NULL
                                     : saved->buffers[from / BUFFER_BYTES] + from % BUFFER_BYTES;
        }
        at += piece->size;
    }
    return NULL;
}

ductile_status dvmm_host_copy_restore(dvmm_host_copy *saved,
                                      bool (*wants)(void *user, ductile_addr addr), void *user) {
    return copy_all(saved, copy_in, wants, user);
}
