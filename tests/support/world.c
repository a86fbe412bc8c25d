/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/world.h"

#include "tests/support/audit.h"
#include "tests/support/complain.h"
#include "tests/support/limits.h"

#include <string.h>

#define ULL(x) ((unsigned long long)(x))

const char *world_open(world *w, const fixture_setup *setup, bool has_contents) {
    memset(w, 0, sizeof *w);
    model_init(&w->m);
    w->has_contents = has_contents;
    TRY(fixture_open(&w->f, setup));
    w->limit_bytes = w->f.capacity_bytes;
    return NULL;
}

void world_end_blocks(world *w) {
    for (size_t i = 0; i < w->m.n && w->f.gpu != NULL; i++) {
        ductile_virtual_block_end(w->f.gpu, w->m.blocks[i].address);
    }
}

const char *world_close(world *w) {
    world_end_blocks(w);
    model_fini(&w->m);
    return fixture_close(&w->f);
}

/* ---- Contents ------------------------------------------------------------------------------ */

/* How many bytes are read back from each end of a granule's worth. */
#define SAMPLE_BYTES 64

static const char *fill(world *w, const model_block *b, size_t stream) {
    ductile_status status =
        ductile_virtual_fill(w->f.gpu, b->address, b->pattern, b->size, w->f.streams[stream]);
    NEED(status == DUCTILE_OK, "block %llx of %llu bytes cannot be written: %s", b->address,
         ULL(b->size), ductile_status_name(status));
    return NULL;
}

static const char *verify_sample(world *w, const model_block *b, uint64_t offset) {
    uint8_t bytes[SAMPLE_BYTES];
    uint64_t n = b->size - offset < sizeof bytes ? b->size - offset : sizeof bytes;
    ductile_status status =
        ductile_virtual_read_back(w->f.gpu, bytes, b->address + offset, n, w->f.streams[b->stream]);
    NEED(status == DUCTILE_OK, "block %llx cannot be read: %s", b->address,
         ductile_status_name(status));
    for (size_t i = 0; i < n; i++) {
        NEED(bytes[i] == b->pattern, "block %llx of %llu bytes holds %02x at %llu, not %02x",
             b->address, ULL(b->size), bytes[i], ULL(offset + i), b->pattern);
    }
    return NULL;
}

/* Both ends of the block and a place in each granule's worth: what another block of any size at
 * any place would have overwritten, as blocks of different handles do. */
static const char *verify_block(world *w, const model_block *b) {
    for (uint64_t offset = 0; offset < b->size; offset += FIXTURE_GRANULE / 2) {
        TRY(verify_sample(w, b, offset));
    }
    return verify_sample(w, b, b->size - SAMPLE_BYTES);
}

const char *world_verify(world *w, size_t i) {
    return w->has_contents ? verify_block(w, &w->m.blocks[i]) : NULL;
}

const char *world_verify_all(world *w) {
    TRY(fixture_sync_all(&w->f));
    for (size_t i = 0; i < w->m.n; i++) {
        TRY(world_verify(w, i));
    }
    return NULL;
}

/* A user's first write: with contents a fill, without a kernel, so that a block that is not
 * mapped is seen in either mode. */
static const char *first_use(world *w, const model_block *b, size_t stream) {
    if (w->expects_faults && fixture_state(&w->f).poisoned != 0) {
        return NULL; /* a fault took the device: nothing runs on it any more */
    }
    if (w->has_contents) {
        return fill(w, b, stream);
    }
    ductile_virtual_use use = {.address = b->address, .size = b->size, .writes = 1};
    NEED_OK(ductile_virtual_launch(w->f.gpu, w->f.streams[stream], &use, 1));
    return NULL;
}

/* ---- Allocate ------------------------------------------------------------------------------ */

/* Out of memory is admissible only when whole granules without a live byte are too few. */
static const char *justified_refusal(const world *w, uint64_t size) {
    uint64_t rounded = model_rounded(size);
    uint64_t needed = rounded / FIXTURE_GRANULE + (rounded % FIXTURE_GRANULE != 0);
    uint64_t held = model_pinned_granules(&w->m, FIXTURE_GRANULE) +
                    fixture_stats(w->f.allocator).quarantined_bytes / FIXTURE_GRANULE;
    uint64_t allowed = w->limit_bytes / FIXTURE_GRANULE;
    NEED(w->status == DUCTILE_ERR_OUT_OF_MEMORY, "alloc of %llu: %s", ULL(size),
         ductile_status_name(w->status));
    NEED(held + needed > allowed || w->may_refuse,
         "alloc of %llu refused, though of %llu granules only %llu hold "
         "live bytes",
         ULL(size), ULL(allowed), ULL(held));
    return NULL;
}

/* What a call may answer when the driver fails under it. */
static const char *clean_status(const world *w, const char *call) {
    bool is_clean = w->status == DUCTILE_OK || w->status == DUCTILE_ERR_OUT_OF_MEMORY ||
                    w->status == DUCTILE_ERR_OUT_OF_ADDRESSES || w->status == DUCTILE_ERR_DRIVER ||
                    w->status == DUCTILE_ERR_DEVICE_LOST;
    NEED(is_clean, "%s under a driver fault: %s", call, ductile_status_name(w->status));
    return NULL;
}

static const char *refused(world *w, uint64_t size, ductile_addr address) {
    NEED(address == 0, "a failed alloc wrote address %llx", address);
    return w->expects_faults ? clean_status(w, "alloc") : justified_refusal(w, size);
}

static const char *admit(world *w, model_block *b) {
    b->size = model_rounded(b->requested);
    b->pattern = ++w->next_pattern;
    TRY(model_add(&w->m, b));
    ductile_virtual_block_begin(w->f.gpu, b->address, b->size);
    return first_use(w, b, b->stream);
}

const char *world_alloc(world *w, uint64_t size, size_t stream) {
    model_block b = {.address = 0xBAD, .requested = size, .stream = stream};
    w->status = ductile_alloc(w->f.allocator, size, w->f.streams[stream], &b.address);
    if (w->status != DUCTILE_OK) {
        return refused(w, size, b.address);
    }
    if (size == 0) {
        NEED(b.address == 0, "an alloc of 0 bytes gave address %llx", b.address);
        return NULL;
    }
    return admit(w, &b);
}

const char *world_alloc_dedicated(world *w, uint64_t size, size_t stream) {
    model_block b = {.address = 0xBAD, .requested = size, .stream = stream};
    w->status = ductile_alloc_dedicated(w->f.allocator, size, w->f.streams[stream], &b.address);
    return w->status != DUCTILE_OK ? refused(w, size, b.address) : admit(w, &b);
}

const char *world_must_alloc(world *w, uint64_t size, size_t stream) {
    TRY(world_alloc(w, size, stream));
    NEED(w->status == DUCTILE_OK, "alloc of %llu: %s", ULL(size), ductile_status_name(w->status));
    return NULL;
}

/* ---- Free ---------------------------------------------------------------------------------- */

static const char *freed(world *w, size_t i) {
    if (w->status == DUCTILE_OK) {
        (void)model_remove(&w->m, i);
        return NULL;
    }
    const model_block *b = &w->m.blocks[i];
    ductile_virtual_block_begin(w->f.gpu, b->address, b->size);
    NEED(w->expects_faults, "free of live block %llx: %s", b->address,
         ductile_status_name(w->status));
    return clean_status(w, "free");
}

const char *world_free(world *w, size_t i) {
    ductile_virtual_block_end(w->f.gpu, w->m.blocks[i].address);
    w->status = ductile_free(w->f.allocator, w->m.blocks[i].address);
    return freed(w, i);
}

const char *world_free_on(world *w, size_t i, size_t stream) {
    ductile_virtual_block_end(w->f.gpu, w->m.blocks[i].address);
    w->status = ductile_free_on(w->f.allocator, w->m.blocks[i].address, w->f.streams[stream]);
    return freed(w, i);
}

const char *world_free_all(world *w) {
    while (w->m.n > 0) {
        TRY(world_free(w, w->m.n - 1));
        if (w->status != DUCTILE_OK) {
            break;
        }
    }
    return NULL;
}

/* ---- Streams ------------------------------------------------------------------------------- */

const char *world_use_on(world *w, size_t i, size_t stream) {
    model_block *b = &w->m.blocks[i];
    NEED_OK(ductile_virtual_stream_wait(w->f.gpu, w->f.streams[stream], w->f.streams[b->stream]));
    TRY(first_use(w, b, stream));
    w->status = ductile_record_stream(w->f.allocator, b->address, w->f.streams[stream]);
    NEED(w->status == DUCTILE_OK || w->expects_faults, "record_stream: %s",
         ductile_status_name(w->status));
    if (w->status != DUCTILE_OK) {
        /* Not told, so not allowed: end the use before the block can be freed. */
        NEED_OK(ductile_virtual_stream_sync(w->f.gpu, w->f.streams[stream]));
        return clean_status(w, "record_stream");
    }
    b->recorded |= 1u << stream;
    return NULL;
}

/* ---- Give back ----------------------------------------------------------------------------- */

const char *world_trim(world *w, uint64_t keep_bytes) {
    w->status = ductile_trim(w->f.allocator, keep_bytes, NULL);
    NEED(w->status == DUCTILE_OK || w->expects_faults, "trim: %s", ductile_status_name(w->status));
    return clean_status(w, "trim");
}

/* ---- The whole ----------------------------------------------------------------------------- */

/* After a fault the allocator may take for lost what the device does have back, never the other
 * way round. */
static const char *audit_after_fault(world *w) {
    TRY(audit_allocator(w->f.allocator, &w->m));
    ductile_stats s = fixture_stats(w->f.allocator);
    ductile_virtual_state v = fixture_state(&w->f);
    NEED(v.violations == 0, "the device saw %llu violations", ULL(v.violations));
    NEED(v.used_bytes <= s.reserved_bytes,
         "the device has %llu bytes in use, the allocator knows "
         "of %llu",
         ULL(v.used_bytes), ULL(s.reserved_bytes));
    NEED(v.used_bytes >= s.reserved_bytes - s.quarantined_bytes,
         "the device has %llu bytes in "
         "use, the allocator believes in %llu",
         ULL(v.used_bytes), ULL(s.reserved_bytes - s.quarantined_bytes));
    return NULL;
}

const char *world_audit(world *w) {
    if (w->expects_faults) {
        return audit_after_fault(w);
    }
    TRY(audit_fixture(&w->f, &w->m));
    uint64_t used = fixture_state(&w->f).used_bytes;
    uint64_t reserved = fixture_stats(w->f.allocator).reserved_bytes;
    NEED(used == reserved, "the device has %llu bytes in use, the allocator holds %llu", ULL(used),
         ULL(reserved));
    NEED(reserved <= w->limit_bytes || reserved <= w->reserved_bytes,
         "grown to %llu bytes above the limit of %llu", ULL(reserved), ULL(w->limit_bytes));
    w->reserved_bytes = reserved;
    return NULL;
}

static void know_limit(world *w) {
    uint64_t left = w->f.capacity_bytes - w->external_bytes;
    w->limit_bytes = w->cap_bytes != 0 && w->cap_bytes < left ? w->cap_bytes : left;
}

const char *world_set_limit(world *w, uint64_t limit) {
    NEED_OK(set_limit(w->f.allocator, limit));
    w->cap_bytes = limit;
    know_limit(w);
    return NULL;
}

const char *world_set_external(world *w, uint64_t bytes) {
    uint64_t most = w->f.capacity_bytes - fixture_state(&w->f).used_bytes;
    w->external_bytes = bytes < most ? bytes : most;
    NEED_OK(ductile_virtual_set_external_bytes(w->f.gpu, w->external_bytes));
    know_limit(w);
    return NULL;
}
