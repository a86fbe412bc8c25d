/* SPDX-License-Identifier: Apache-2.0 */
/* This library, through its public headers only. */
#include "bench/contenders/contender.h"
#include "bench/contenders/settings.h"
#include "vmm/base/status.h"

#include <ductile_pools.h>

#include <stdio.h>

static bool choose_options(const contender_env *env, ductile_options *options, char *message,
                           size_t size) {
    ductile_options_init(options);
    if (!settings_apply(options, env->settings, env->n_settings, message, size)) {
        return false;
    }
    options->driver = env->gpu != NULL ? DUCTILE_DRIVER_VIRTUAL : DUCTILE_DRIVER_CUDA;
    options->virtual_gpu = env->gpu;
    options->device = env->device;
    options->limit_bytes = env->capacity_bytes;
    return true;
}

static ductile_status start(const contender_env *env, void **self, char *message, size_t size) {
    ductile_options options;
    ductile_allocator *allocator = NULL;
    *self = NULL;
    if (!choose_options(env, &options, message, size)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = ductile_create(&allocator, &options);
    if (status != DUCTILE_OK) {
        (void)snprintf(message, size, "%s", ductile_create_error());
    } else if (!env->is_untimed) {
        ductile_time_driver_calls(allocator);
    }
    *self = allocator;
    return status;
}

static void end(void *self) {
    (void)ductile_destroy(self);
}

static ductile_status alloc(void *self, uint64_t size, ductile_stream stream, ductile_addr *out) {
    return ductile_alloc(self, size, stream, out);
}

static ductile_status release(void *self, ductile_addr address) {
    return ductile_free(self, address);
}

static ductile_status record_stream(void *self, ductile_addr address, ductile_stream stream) {
    return ductile_record_stream(self, address, stream);
}

static ductile_status stream_done(void *self, ductile_stream stream) {
    return ductile_stream_done(self, stream);
}

static bool is_none(ductile_pool_id pool) {
    return pool.first == 0 && pool.second == 0;
}

/* Of the references to a pool, of which each opening adds one, one is kept. */
static ductile_status open_pool(ductile_allocator *allocator, ductile_pool_id pool) {
    ductile_pool_info info = {.struct_size = sizeof info};
    DTI_TRY(ductile_pool_begin(allocator, pool, NULL, NULL));
    DTI_TRY(ductile_list_pools(allocator, &pool, &info, 1, NULL));
    return info.references > 1 ? ductile_pool_release(allocator, pool) : DUCTILE_OK;
}

/* A capture pool, whatever it is for: pools of programs serve captures, too, and in PyTorch none of
 * them serves others. */
static ductile_status use_pool(void *self, ductile_pool_id from, ductile_pool_id to) {
    DTI_TRY(is_none(from) ? DUCTILE_OK : ductile_pool_end(self, from));
    return is_none(to) ? DUCTILE_OK : open_pool(self, to);
}

static ductile_status end_pool(void *self, ductile_pool_id pool) {
    return ductile_pool_release(self, pool);
}

static ductile_status trim(void *self) {
    return ductile_trim(self, NULL, 0, NULL);
}

static void read_stats(void *self, contender_stats *out) {
    ductile_stats stats = {.struct_size = sizeof stats};
    *out = (contender_stats){0};
    if (ductile_get_stats(self, NULL, &stats) != DUCTILE_OK) {
        return;
    }
    *out = (contender_stats){
        .reserved_bytes = stats.reserved_bytes,
        .reserved_peak_bytes = stats.reserved_peak_bytes,
        .creates = stats.creates,
        .releases = stats.releases,
        .maps = stats.maps,
        .unmaps = stats.unmaps,
        .stream_syncs = stats.stream_syncs,
        .event_waits = stats.event_waits,
        .pressure_waits = stats.pressure_waits,
        .pressure_returns = stats.pressure_returns,
        .pressure_returned_bytes = stats.pressure_returned_total_bytes,
        .address_span_bytes = stats.address_span_peak_bytes,
        .driver_time_ns = stats.driver_time_ns,
        .driver_host_ns = stats.driver_host_ns,
    };
}

/* Of memory that moved, the old address is RETIRING, and its memory is counted at the new one. */
static int visit_block(void *user, const ductile_block_info *block) {
    const contender_walk *to = user;
    contender_span span = {.address = block->address,
                           .size = block->size,
                           .state = SPAN_PENDING,
                           .begins = block->address == block->segment,
                           .stream = block->stream,
                           .pool = block->pool,
                           .most = UINT64_MAX};
    switch (block->state) {
    case DUCTILE_BLOCK_LIVE:
        span.state = SPAN_LIVE;
        break;
    case DUCTILE_BLOCK_FREE:
        span.state = SPAN_FREE;
        break;
    case DUCTILE_BLOCK_PENDING:
    case DUCTILE_BLOCK_BUSY:
        break;
    case DUCTILE_BLOCK_GAP:
    case DUCTILE_BLOCK_RETIRING:
    case DUCTILE_BLOCK_QUARANTINED:
    case DUCTILE_BLOCK_IMPORTED:
    case DUCTILE_BLOCK_ASLEEP:
        return 0;
    }
    to->visit(to->user, &span);
    return 0;
}

static void walk(void *self, contender_visit visit, void *user) {
    contender_walk to = {visit, user};
    (void)!ductile_walk(self, NULL, visit_block, &to);
}

const contender_ops contender_ductile = {
    .name = "ductile",
    .summary = "this library; --set changes its options",
    .init = start,
    .fini = end,
    .alloc = alloc,
    .free = release,
    .record_stream = record_stream,
    .stream_done = stream_done,
    .use_pool = use_pool,
    .end_pool = end_pool,
    .trim = trim,
    .stats = read_stats,
    .walk = walk,
};
