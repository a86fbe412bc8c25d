/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that pause and resume sets of pools: which pools, and what a call reports. */
#include "pool/base/guards.h"
#include "pool/base/log.h"
#include "pool/blocks/address_map.h"
#include "pool/blocks/arena.h"
#include "pool/pools/pause.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Tags ---------------------------------------------------------------------------------- */

static bool is_contents(ductile_contents contents) {
    return (unsigned)contents <= DUCTILE_CONTENTS_POISON;
}

static ductile_status set_tag_locked(ductile_allocator *a, ductile_pool_id id, const char *tag,
                                     ductile_contents contents) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *pool = dpool_find_pool_locked(a, id);
    if (pool == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (pool->phase != DPOOL_RUNNING) {
        return pool->phase == DPOOL_PAUSED_PHASE ? DUCTILE_ERR_ASLEEP : DUCTILE_ERR_BUSY;
    }
    memset(pool->tag, 0, sizeof pool->tag);
    memcpy(pool->tag, tag, strlen(tag));
    pool->policy = contents;
    return DUCTILE_OK;
}

ductile_status ductile_pool_set_tag(ductile_allocator *a, ductile_pool_id id, const char *tag,
                                    ductile_contents contents) {
    tag = tag != NULL ? tag : "";
    if (a == NULL || !is_contents(contents) ||
        strnlen(tag, DUCTILE_TAG_BYTES) == DUCTILE_TAG_BYTES) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    ductile_status status = dvmm_usable(a->driver);
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&a->index_lock);
        status = set_tag_locked(a, id, tag, contents);
        dti_lock_release(&a->index_lock);
    }
    return status;
}

/* ---- Refusals ------------------------------------------------------------------------------ */

static _Thread_local struct {
    uint64_t instance_id; /* 0: none */
    ductile_refusal what;
} latest_refusal;

void dpool_note_refusal_locked(const ductile_allocator *a, const dpool_private_pool *pool,
                               uint64_t bytes) {
    DTI_ASSERT_HELD(&a->index_lock);
    latest_refusal.instance_id = a->instance_id;
    latest_refusal.what = (ductile_refusal){.pool = pool->id, .bytes = bytes};
    memcpy(latest_refusal.what.tag, pool->tag, sizeof pool->tag);
}

ductile_status ductile_sleep_refusal(ductile_allocator *a, ductile_refusal *out) {
    ductile_status status = dpool_may_fill(a, out, sizeof *out);
    if (status == DUCTILE_OK && latest_refusal.instance_id != a->instance_id) {
        status = DUCTILE_ERR_NOT_LIVE;
    }
    if (status == DUCTILE_OK) {
        ductile_refusal what = latest_refusal.what;
        what.struct_size = out->struct_size;
        memcpy(out, &what, out->struct_size);
    }
    return status;
}

/* ---- Which pools --------------------------------------------------------------------------- */

/* One call for a set. */
typedef struct set_call {
    ductile_allocator *a;
    const ductile_sleep_request *request;
    bool pauses;
    dpool_private_pool *set; /* linked by next_in_set */
    ductile_sleep_report report;
} set_call;

static __attribute__((format(printf, 2, 3))) void explain(set_call *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(c->report.message, sizeof c->report.message, format, args);
    va_end(args);
}

static void name_pool(set_call *c, const dpool_private_pool *pool) {
    c->report.pool = dpool_id_of(pool);
    if (pool != NULL) {
        memcpy(c->report.tag, pool->tag, sizeof pool->tag);
    }
}

static bool has_tag(const dpool_private_pool *pool, const char *tag) {
    return tag[0] != '\0' && strncmp(pool->tag, tag, sizeof pool->tag) == 0;
}

static const ductile_sleep_tag *find_tag(const ductile_sleep_request *r,
                                         const dpool_private_pool *pool) {
    for (size_t i = 0; i < r->n_tags; i++) {
        if (has_tag(pool, r->tags[i].tag)) {
            return &r->tags[i];
        }
    }
    return NULL;
}

static bool lists_pool(const ductile_pool_id *ids, size_t n, const dpool_private_pool *pool) {
    size_t i = 0;
    while (i < n && !dpool_is_same_pool(ids[i], pool->id)) {
        i++;
    }
    return i < n;
}

static bool is_excepted(const ductile_sleep_request *r, const dpool_private_pool *pool) {
    bool is = lists_pool(r->except_pools, r->n_except_pools, pool);
    for (size_t i = 0; i < r->n_except_tags && !is; i++) {
        is = has_tag(pool, r->except_tags[i]);
    }
    return is;
}

static bool is_in_set(const ductile_sleep_request *r, const dpool_private_pool *pool) {
    bool is_named =
        r->all != 0 || find_tag(r, pool) != NULL || lists_pool(r->pools, r->n_pools, pool);
    return is_named && !is_excepted(r, pool);
}

static ductile_contents contents_for(const ductile_sleep_request *r,
                                     const dpool_private_pool *pool) {
    const ductile_sleep_tag *tag = find_tag(r, pool);
    ductile_contents contents = tag != NULL ? tag->contents : DUCTILE_CONTENTS_POLICY;
    contents = contents != DUCTILE_CONTENTS_POLICY ? contents : r->contents;
    contents = contents != DUCTILE_CONTENTS_POLICY ? contents : pool->policy;
    return contents != DUCTILE_CONTENTS_POLICY ? contents : DUCTILE_CONTENTS_DROP;
}

/* ---- Bad requests -------------------------------------------------------------------------- */

static bool is_list(const void *items, size_t n) {
    return items != NULL || n == 0;
}

static bool are_tags(const ductile_sleep_request *r) {
    bool are = true;
    for (size_t i = 0; i < r->n_tags; i++) {
        are &=
            r->tags[i].tag != NULL && r->tags[i].tag[0] != '\0' && is_contents(r->tags[i].contents);
    }
    for (size_t i = 0; i < r->n_except_tags; i++) {
        are &= r->except_tags[i] != NULL;
    }
    return are;
}

static ductile_status check_request(set_call *c) {
    const ductile_sleep_request *r = c->request;
    bool is_good = is_list(r->tags, r->n_tags) && is_list(r->pools, r->n_pools) &&
                   is_list(r->except_tags, r->n_except_tags) &&
                   is_list(r->except_pools, r->n_except_pools) && is_contents(r->contents) &&
                   are_tags(r);
    if (!is_good) {
        explain(c, "the request has a NULL list or tag, an empty tag, or an unknown policy");
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    if (r->all == 0 && r->n_tags == 0 && r->n_pools == 0) {
        explain(c, "the request names no pool: set `all`, tags or pools");
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    return DUCTILE_OK;
}

static bool has_any_locked(const ductile_allocator *a, const char *tag) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_private_pool *pool = a->pools;
    while (pool != NULL && !has_tag(pool, tag)) {
        pool = pool->next;
    }
    return pool != NULL;
}

/* All names are of something, or the caller is lenient. */
static ductile_status check_names_locked(set_call *c) {
    const ductile_sleep_request *r = c->request;
    for (size_t i = 0; i < r->n_tags && r->all == 0; i++) {
        if (has_any_locked(c->a, r->tags[i].tag)) {
            continue;
        }
        if (r->lenient == 0) {
            (void)snprintf(c->report.tag, sizeof c->report.tag, "%s", r->tags[i].tag);
            explain(c, "no pool has the tag \"%.63s\"", r->tags[i].tag);
            return DUCTILE_ERR_INVALID_ARGUMENT;
        }
        c->report.passed_over++;
    }
    for (size_t i = 0; i < r->n_pools; i++) {
        if (dpool_find_pool_locked(c->a, r->pools[i]) != NULL) {
            continue;
        }
        if (r->lenient == 0) {
            c->report.pool = r->pools[i];
            explain(c, "there is no pool {%llu,%llu}", (unsigned long long)r->pools[i].first,
                    (unsigned long long)r->pools[i].second);
            return DUCTILE_ERR_INVALID_ARGUMENT;
        }
        c->report.passed_over++;
    }
    return DUCTILE_OK;
}

/* ---- Claiming the set ---------------------------------------------------------------------- */

static ductile_status stop_at(set_call *c, const dpool_private_pool *pool, ductile_status status,
                              const char *why) {
    name_pool(c, pool);
    explain(c, "pool {%llu,%llu} \"%s\" %s", (unsigned long long)pool->id.first,
            (unsigned long long)pool->id.second, pool->tag, why);
    return status;
}

/* Adds the pool to the set, passes over it, or says why neither. */
static ductile_status choose_locked(set_call *c, dpool_private_pool *pool) {
    dpool_phase from = c->pauses ? DPOOL_RUNNING : DPOOL_PAUSED_PHASE;
    dpool_phase already = c->pauses ? DPOOL_PAUSED_PHASE : DPOOL_RUNNING;
    if (pool->phase == already) {
        c->report.passed_over++;
        if (c->request->all != 0 || c->request->lenient != 0) {
            return DUCTILE_OK;
        }
        return c->pauses ? stop_at(c, pool, DUCTILE_ERR_ASLEEP, "sleeps already")
                         : stop_at(c, pool, DUCTILE_ERR_AWAKE, "does not sleep");
    }
    if (pool->phase != from) {
        return stop_at(c, pool, DUCTILE_ERR_BUSY, "is being paused or resumed by another thread");
    }
    /* The request that asks an out-of-memory callback may be one of the pool's users. */
    if (c->pauses && pool->n_users > 0 && dpool_is_inside_callback(DPOOL_CALLBACK_OOM)) {
        return stop_at(c, pool, DUCTILE_ERR_BUSY,
                       "has requests under way, and this is an out-of-memory callback");
    }
    pool->next_in_set = c->set;
    c->set = pool;
    return DUCTILE_OK;
}

static void claim_all_locked(set_call *c) {
    for (dpool_private_pool *pool = c->set; pool != NULL; pool = pool->next_in_set) {
        pool->phase = c->pauses ? DPOOL_PAUSING : DPOOL_RESUMING;
        pool->n_users++;
        if (c->pauses) {
            pool->contents = contents_for(c->request, pool);
        }
        c->report.pools++;
    }
}

static ductile_status claim_locked(set_call *c) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    ductile_status status = check_names_locked(c);
    for (dpool_private_pool *pool = c->a->pools; pool != NULL && status == DUCTILE_OK;
         pool = pool->next) {
        if (is_in_set(c->request, pool)) {
            status = choose_locked(c, pool);
        }
    }
    if (status == DUCTILE_OK) {
        claim_all_locked(c);
    }
    return status;
}

static ductile_status claim(set_call *c) {
    ductile_status status = check_request(c);
    if (status == DUCTILE_OK && dpool_is_inside_callback(DPOOL_CALLBACK_MAP)) {
        explain(c, "a map callback must not pause or resume"); /* it would wait for itself */
        status = DUCTILE_ERR_BUSY;
    }
    if (status == DUCTILE_OK) {
        dti_lock_acquire(&c->a->index_lock);
        status = claim_locked(c);
        dti_lock_release(&c->a->index_lock);
    }
    return status;
}

/* ---- The calls ----------------------------------------------------------------------------- */

static void report_failure(set_call *c, ductile_status status, const dpool_private_pool *stopped) {
    name_pool(c, stopped);
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && !c->pauses) {
        c->report.missing_bytes = dpool_missing_bytes(c->a, c->set);
        explain(c, "%llu more bytes must be free on the device, or under the limit",
                (unsigned long long)c->report.missing_bytes);
    } else {
        explain(c, "%s failed: %s", c->pauses ? "the pause" : "the resume",
                ductile_status_string(status));
    }
}

static void unpin_all(set_call *c) {
    dpool_private_pool *next = NULL;
    for (dpool_private_pool *pool = c->set; pool != NULL; pool = next) {
        next = pool->next_in_set;
        dpool_unpin(c->a, pool);
    }
}

static ductile_status run_claimed(set_call *c) {
    ductile_allocator *a = c->a;
    const dpool_private_pool *stopped = NULL;
    dpool_forget_failure();
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    dvmm_nvtx_push(dvmm_nvtx_of(a->driver), c->pauses ? "pause" : "resume", 0);
    uint64_t before = dvmm_store_read(&a->store).held_bytes;
    ductile_status status =
        c->pauses ? dpool_pause_set(a, c->set, &stopped) : dpool_resume_set(a, c->set, &stopped);
    uint64_t after = dvmm_store_read(&a->store).held_bytes;
    c->report.bytes = c->pauses ? before - after : after - before;
    if (status != DUCTILE_OK) {
        report_failure(c, status, stopped);
    }
    dvmm_nvtx_pop(dvmm_nvtx_of(a->driver));
    dvmm_capture_restore(a->driver, mode);
    dpool_log_losses(a);
    return status;
}

static ductile_status run(set_call *c) {
    ductile_status status = dvmm_usable(c->a->driver);
    if (status == DUCTILE_OK) {
        status = claim(c);
    }
    if (status != DUCTILE_OK) {
        return status;
    }
    status = run_claimed(c);
    unpin_all(c);
    return status;
}

static ductile_status call_for_set(ductile_allocator *a, const ductile_sleep_request *request,
                                   ductile_sleep_report *report, bool pauses) {
    ductile_sleep_request known = {.struct_size = sizeof known};
    bool is_good = a != NULL && request != NULL && request->struct_size >= sizeof(size_t) &&
                   request->struct_size <= sizeof known &&
                   (report == NULL || (report->struct_size >= sizeof(size_t) &&
                                       report->struct_size <= sizeof *report));
    if (!is_good) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    memcpy(&known, request, request->struct_size);
    set_call c = {.a = a, .request = &known, .pauses = pauses};
    ductile_status status = run(&c);
    if (status != DUCTILE_OK) {
        c.report.pools = c.report.bytes = 0;
    }
    if (report != NULL) {
        c.report.struct_size = report->struct_size;
        memcpy(report, &c.report, report->struct_size);
    }
    return status;
}

ductile_status ductile_pause_set(ductile_allocator *a, const ductile_sleep_request *request,
                                 ductile_sleep_report *report) {
    return call_for_set(a, request, report, true);
}

ductile_status ductile_resume_set(ductile_allocator *a, const ductile_sleep_request *request,
                                  ductile_sleep_report *report) {
    return call_for_set(a, request, report, false);
}

ductile_status ductile_pause(ductile_allocator *a, ductile_pool_id id, ductile_contents contents) {
    ductile_sleep_request one = {
        .struct_size = sizeof one, .pools = &id, .n_pools = 1, .contents = contents};
    return ductile_pause_set(a, &one, NULL);
}

ductile_status ductile_resume(ductile_allocator *a, ductile_pool_id id) {
    ductile_sleep_request one = {.struct_size = sizeof one, .pools = &id, .n_pools = 1};
    return ductile_resume_set(a, &one, NULL);
}

/* ---- Kept contents ------------------------------------------------------------------------- */

/* No call that resumes the pool is under way, so that its host copy does not change. */
static ductile_status find_kept_locked(const ductile_allocator *a, const dpool_block *b,
                                       ductile_addr address, void **host, uint64_t *bytes) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dpool_private_pool *pool = b->region->arena->pool;
    if (b->state != DPOOL_PAUSED) {
        return DUCTILE_ERR_AWAKE;
    }
    if (pool->phase != DPOOL_PAUSED_PHASE) {
        return DUCTILE_ERR_NOT_READY;
    }
    *host = dvmm_host_copy_find(&pool->host_copy, address, bytes);
    return *host != NULL ? DUCTILE_OK : DUCTILE_ERR_UNSUPPORTED;
}

/* The live or paused block that holds the address. */
static ductile_status find_block_locked(const ductile_allocator *a, ductile_addr address,
                                        const dpool_block **out) {
    DTI_ASSERT_HELD(&a->index_lock);
    const dseg_segment *seg = dseg_set_find(&a->segments, address);
    if (seg == NULL) {
        return DUCTILE_ERR_FOREIGN_POINTER;
    }
    const dpool_block *b = ((const dpool_region *)seg->owner)->first;
    while (dpool_end(b) <= address) {
        b = b->next;
    }
    *out = b;
    return b->state == DPOOL_LIVE || b->state == DPOOL_PAUSED ? DUCTILE_OK : DUCTILE_ERR_NOT_LIVE;
}

ductile_status ductile_kept_contents(ductile_allocator *a, ductile_addr address, void **host,
                                     uint64_t *bytes) {
    uint64_t ignored = 0;
    bytes = bytes != NULL ? bytes : &ignored;
    *bytes = 0;
    if (host == NULL) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    *host = NULL;
    ductile_status status = dpool_may_read(a);
    if (status != DUCTILE_OK) {
        return status;
    }
    const dpool_block *b = NULL;
    dti_lock_acquire(&a->index_lock);
    status = find_block_locked(a, address, &b);
    if (status == DUCTILE_OK) {
        status = find_kept_locked(a, b, address, host, bytes);
    }
    dti_lock_release(&a->index_lock);
    *bytes = status == DUCTILE_OK ? *bytes : 0;
    return status;
}

/* ---- Host memory --------------------------------------------------------------------------- */

ductile_status ductile_sleep_reserve(ductile_allocator *a, uint64_t bytes, uint64_t *held) {
    (void)bytes;
    if (held != NULL) {
        *held = 0;
    }
    return a == NULL ? DUCTILE_ERR_INVALID_ARGUMENT : DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_sleep_release(ductile_allocator *a, uint64_t keep_bytes,
                                     uint64_t *released) {
    (void)keep_bytes;
    if (released != NULL) {
        *released = 0;
    }
    return a == NULL ? DUCTILE_ERR_INVALID_ARGUMENT : dvmm_usable(a->driver);
}
