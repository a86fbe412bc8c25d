/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that put sets of pools to sleep and wake them: which pools, and what a call
 * reports. */
#include "pool/base/guards.h"
#include "pool/base/log.h"
#include "pool/blocks/phase.h"
#include "pool/pools/asleep.h"
#include "pool/pools/promote.h"
#include "pool/pools/sleep.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Which pools --------------------------------------------------------------------------- */

/* One call for a set. */
typedef struct set_call {
    ductile_allocator *a;
    const ductile_sleep_request *request;
    bool sleeps;
    bool promotes;             /* sleeps: only for as long as the call lasts, */
    bool sleeps_on;            /* but for the pool of the report              */
    dpool_private_pool *set;   /* linked by next_in_set */
    dpool_private_pool *spare; /* for a bypass that does not exist */
    bool has_default;          /* the default pool is in the set */
    ductile_sleep_report report;
} set_call;

static __attribute__((format(printf, 2, 3))) void explain(set_call *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(c->report.message, sizeof c->report.message, format, args);
    va_end(args);
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

static bool is_named(const ductile_sleep_request *r, const dpool_private_pool *pool) {
    return find_tag(r, pool) != NULL || lists_pool(r->pools, r->n_pools, pool);
}

/* The bypass is in no set unless it is named. */
static bool is_in_set(const ductile_sleep_request *r, const dpool_private_pool *pool) {
    bool is_bypass = !dpool_is_default(pool) && dpool_is_same_pool(r->bypass, pool->id);
    bool is_one_of_all = r->all != 0 && !is_bypass;
    return (is_one_of_all || is_named(r, pool)) && !is_excepted(r, pool);
}

static ductile_contents contents_for(const ductile_sleep_request *r,
                                     const dpool_private_pool *pool) {
    const ductile_sleep_tag *tag = find_tag(r, pool);
    ductile_contents contents = tag != NULL ? tag->contents : DUCTILE_CONTENTS_POLICY;
    contents = contents != DUCTILE_CONTENTS_POLICY ? contents : r->contents;
    contents = contents != DUCTILE_CONTENTS_POLICY ? contents : pool->policy;
    if (contents != DUCTILE_CONTENTS_POLICY) {
        return contents;
    }
    return dpool_is_default(pool) || pool->has_captured ? DUCTILE_CONTENTS_KEEP
                                                        : DUCTILE_CONTENTS_DROP;
}

static bool has_bypass(const set_call *c) {
    const ductile_pool_id id = c->request->bypass;
    return c->sleeps && (id.first != 0 || id.second != 0);
}

/* ---- Bad requests -------------------------------------------------------------------------- */

static bool is_list(const void *items, size_t n) {
    return items != NULL || n == 0;
}

static bool are_tags(const ductile_sleep_request *r) {
    bool are = true;
    for (size_t i = 0; i < r->n_tags; i++) {
        are &= r->tags[i].tag != NULL && r->tags[i].tag[0] != '\0' &&
               dpool_is_contents(r->tags[i].contents);
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
                   is_list(r->except_pools, r->n_except_pools) && dpool_is_contents(r->contents) &&
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
    DTI_ASSERT_HELD(&c->a->index_lock);
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
    dpool_report_pool(&c->report, pool);
    explain(c, "pool {%llu,%llu} \"%s\" %s", (unsigned long long)pool->id.first,
            (unsigned long long)pool->id.second, pool->tag, why);
    return status;
}

/* Adds the pool to the set, passes over it, or says why neither. */
static ductile_status choose_locked(set_call *c, dpool_private_pool *pool) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    dpool_readiness readiness = dpool_readiness_of(pool, c->sleeps);
    if (c->promotes && (readiness != DPOOL_READY || !dpool_has_spilled_locked(c->a, pool))) {
        c->report.passed_over += readiness != DPOOL_READY; /* whose memory may change just now */
        return DUCTILE_OK;
    }
    if (readiness == DPOOL_ALREADY) {
        bool has_woken = !c->sleeps && dpool_is_released(pool); /* perhaps by itself */
        c->report.passed_over++;
        if (c->request->all != 0 || c->request->lenient != 0 || has_woken) {
            return DUCTILE_OK;
        }
        return c->sleeps ? stop_at(c, pool, DUCTILE_ERR_ASLEEP, "sleeps already")
                         : stop_at(c, pool, DUCTILE_ERR_AWAKE, "does not sleep");
    }
    if (readiness == DPOOL_TAKEN) {
        return stop_at(c, pool, DUCTILE_ERR_BUSY,
                       "is falling asleep or being woken by another thread");
    }
    /* The request that asks an out-of-memory callback may be one of the pool's users. */
    if (c->sleeps && pool->n_users > 0 && dpool_is_inside_callback(DPOOL_CALLBACK_OOM)) {
        return stop_at(c, pool, DUCTILE_ERR_BUSY,
                       "has requests under way, and this is an out-of-memory callback");
    }
    pool->next_in_set = c->set;
    c->set = pool;
    return DUCTILE_OK;
}

/* The bypass must be able to serve, and stays so by itself: it is not in the set. */
static ductile_status check_bypass_locked(set_call *c) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    const dpool_private_pool *bypass = dpool_find_pool_locked(c->a, c->request->bypass);
    if (!has_bypass(c) || bypass == NULL) {
        return DUCTILE_OK;
    }
    if (is_in_set(c->request, bypass)) {
        return stop_at(c, bypass, DUCTILE_ERR_INVALID_ARGUMENT, "is the bypass, and in the set");
    }
    return dpool_need_awake(bypass) == DUCTILE_OK
               ? DUCTILE_OK
               : stop_at(c, bypass, DUCTILE_ERR_ASLEEP, "is the bypass, and sleeps");
}

/* Plain, unless the program holds it as a capture pool, or graphs may have used its memory. */
static void retain_bypass_locked(set_call *c) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    ductile_allocator *a = c->a;
    const dpool_private_pool *known = dpool_find_pool_locked(a, c->request->bypass);
    bool is_plain = known == NULL || known->kind == DUCTILE_POOL_PLAIN ||
                    (!dpool_is_held(known) && known->n_arenas == 0);
    a->bypass = dpool_retain_pool_locked(a, c->request->bypass, &c->spare);
    if (is_plain) {
        a->bypass->kind = DUCTILE_POOL_PLAIN;
    }
}

static void open_bypass_locked(set_call *c) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    if (has_bypass(c)) {
        retain_bypass_locked(c);
    }
    dpool_default_pool_changed_locked(c->a);
}

/* The default pool is awake again. Returns a pool to free without the lock, or NULL. */
static dpool_private_pool *close_bypass_locked(ductile_allocator *a) {
    DTI_ASSERT_HELD(&a->index_lock);
    dpool_private_pool *bypass = a->bypass;
    a->bypass = NULL;
    dpool_default_pool_changed_locked(a);
    return bypass != NULL ? dpool_drop_reference_locked(a, bypass) : NULL;
}

static void claim_all_locked(set_call *c) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    for (dpool_private_pool *pool = c->set; pool != NULL; pool = pool->next_in_set) {
        dpool_claim_locked(c->a, pool, c->sleeps);
        if (c->sleeps) { /* what was retained goes when it is replaced */
            pool->contents = contents_for(c->request, pool);
        } else {
            pool->retains = c->request->retain != 0 && pool->contents == DUCTILE_CONTENTS_KEEP;
        }
        c->has_default |= dpool_is_default(pool);
        c->report.pools++;
    }
    if (c->has_default && c->sleeps) {
        open_bypass_locked(c);
    }
}

static ductile_status claim_locked(set_call *c) {
    DTI_ASSERT_HELD(&c->a->index_lock);
    ductile_status status = check_names_locked(c);
    status = status == DUCTILE_OK ? check_bypass_locked(c) : status;
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
        /* It would wait for itself. */
        explain(c, "a map callback must put no pool to sleep, and wake none");
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

/* What failed, as far as it came. */
static const char *name_of(const set_call *c) {
    if (c->promotes) {
        return c->sleeps_on ? "a pool sleeps with its contents, wake it: the promotion"
                            : "the promotion";
    }
    return c->sleeps ? "the sleep" : "the wake";
}

/* Callers without a report read it in the log. */
static void explain_failure(set_call *c, ductile_status status) {
    char why[DPOOL_FAILURE_BYTES];
    const char *what = name_of(c);
    bool is_drivers = status == DUCTILE_ERR_DRIVER || status == DUCTILE_ERR_DEVICE_LOST;
    if (is_drivers && dpool_describe_failure(why, sizeof why)) {
        explain(c, "%s failed: %s", what, why);
        dpool_log(c->a, DUCTILE_LOG_ERROR, "%s", c->report.message);
    } else {
        explain(c, "%s failed: %s", what, ductile_status_string(status));
    }
}

static void report_failure(set_call *c, ductile_status status) {
    if (status == DUCTILE_ERR_OUT_OF_MEMORY && !c->sleeps) {
        c->report.missing_bytes = dpool_missing_bytes(c->a, c->set);
        explain(c, "%llu more bytes must be free on the device, or under the limit",
                (unsigned long long)c->report.missing_bytes);
    } else {
        explain_failure(c, status);
    }
}

/* From here on another call may have the pool. */
static void leave(ductile_allocator *a, dpool_private_pool *pool) {
    dti_lock_acquire(&a->index_lock);
    dpool_private_pool *gone = dpool_leave_claimed_locked(a, pool);
    dti_lock_release(&a->index_lock);
    dpool_free_pool(gone);
}

static void leave_all(set_call *c) {
    dpool_private_pool *next = NULL;
    for (dpool_private_pool *pool = c->set; pool != NULL; pool = next) {
        next = pool->next_in_set;
        leave(c->a, pool);
    }
}

static ductile_status carry_out(set_call *c) {
    if (c->promotes) {
        return dpool_promote_set(c->a, c->set, &c->report, &c->sleeps_on);
    }
    return c->sleeps ? dpool_sleep_set(c->a, c->set, &c->report)
                     : dpool_wake_set(c->a, c->set, &c->report);
}

static ductile_status run_claimed(set_call *c) {
    ductile_allocator *a = c->a;
    dpool_forget_failure();
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = carry_out(c);
    if (status != DUCTILE_OK) {
        report_failure(c, status);
    } else { /* of a first try */
        c->report.pool = (ductile_pool_id){0, 0};
        memset(c->report.tag, 0, sizeof c->report.tag);
    }
    dvmm_capture_restore(a->driver, mode);
    dpool_log_losses(a);
    return status;
}

/* The default pool has woken, or does not sleep after all. */
static void end_bypass(set_call *c) {
    dpool_private_pool *gone = NULL;
    dti_lock_acquire(&c->a->index_lock);
    if (c->has_default && dpool_need_awake(c->a->default_pool) == DUCTILE_OK) {
        gone = close_bypass_locked(c->a);
    }
    dti_lock_release(&c->a->index_lock);
    dpool_free_pool(gone);
}

static ductile_status run(set_call *c) {
    ductile_status status = dvmm_usable(c->a->driver);
    if (status == DUCTILE_OK && has_bypass(c)) {
        c->spare = calloc(1, sizeof *c->spare);
        status = c->spare != NULL ? DUCTILE_OK : DUCTILE_ERR_OUT_OF_HOST_MEMORY;
    }
    if (status == DUCTILE_OK) {
        status = claim(c);
    }
    free(c->spare);
    if (status != DUCTILE_OK) {
        return status;
    }
    status = run_claimed(c);
    end_bypass(c);
    leave_all(c);
    return status;
}

static bool is_request(const ductile_sleep_request *r) {
    return r != NULL && r->struct_size >= sizeof(size_t) && r->struct_size <= sizeof *r;
}

static bool is_report(const ductile_sleep_report *r) {
    return r == NULL || (r->struct_size >= sizeof(size_t) && r->struct_size <= sizeof *r);
}

/* Of a call that failed. Where nothing was explained yet, the status says all there is. */
static void end_report(set_call *c, ductile_status status) {
    ductile_sleep_report *r = &c->report;
    if (!c->promotes) {
        r->bytes = r->copied_bytes = r->stayed_bytes = 0;
    }
    r->pools = 0;
    if (r->message[0] == '\0') {
        explain(c, "%s failed: %s", name_of(c), ductile_status_string(status));
    }
}

static void hand_out(set_call *c, ductile_status status, ductile_sleep_report *report) {
    if (status != DUCTILE_OK) {
        end_report(c, status);
    }
    if (report != NULL) {
        c->report.struct_size = report->struct_size;
        memcpy(report, &c->report, report->struct_size);
    }
}

static ductile_status call_for_set(ductile_allocator *a, const ductile_sleep_request *request,
                                   ductile_sleep_report *report, bool sleeps) {
    ductile_sleep_request known = {.struct_size = sizeof known};
    if (!is_report(report)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    set_call c = {.a = a, .request = &known, .sleeps = sleeps};
    ductile_status status = DUCTILE_ERR_INVALID_ARGUMENT;
    if (a != NULL && is_request(request)) {
        memcpy(&known, request, request->struct_size);
        status = run(&c);
    }
    hand_out(&c, status, report);
    return status;
}

ductile_status ductile_sleep_set(ductile_allocator *a, const ductile_sleep_request *request,
                                 ductile_sleep_report *report) {
    return call_for_set(a, request, report, true);
}

ductile_status ductile_wake_set(ductile_allocator *a, const ductile_sleep_request *request,
                                ductile_sleep_report *report) {
    return call_for_set(a, request, report, false);
}

ductile_status ductile_promote(ductile_allocator *a, ductile_sleep_report *report) {
    const ductile_sleep_request all = {
        .struct_size = sizeof all, .all = 1, .contents = DUCTILE_CONTENTS_KEEP};
    if (!is_report(report)) {
        return DUCTILE_ERR_INVALID_ARGUMENT;
    }
    set_call c = {.a = a, .request = &all, .sleeps = true, .promotes = true};
    ductile_status status = dpool_may_change(a);
    if (status == DUCTILE_OK && dvmm_store_read(&a->store).spilled_bytes > 0) {
        dpool_make_room_for_spilled(a);
        status = run(&c);
    }
    hand_out(&c, status, report);
    return status;
}

ductile_status ductile_sleep(ductile_allocator *a, ductile_pool_id id, ductile_contents contents) {
    ductile_sleep_request one = {
        .struct_size = sizeof one, .pools = &id, .n_pools = 1, .contents = contents};
    return ductile_sleep_set(a, &one, NULL);
}

ductile_status ductile_wake(ductile_allocator *a, ductile_pool_id id) {
    ductile_sleep_request one = {.struct_size = sizeof one, .pools = &id, .n_pools = 1};
    return ductile_wake_set(a, &one, NULL);
}

/* ---- Host memory --------------------------------------------------------------------------- */

/* The locks of the arena order before those of the call that the callback runs in. */
static ductile_status may_change_host_memory(ductile_allocator *a) {
    DTI_TRY(dpool_may_change(a));
    return dpool_is_inside_callback(DPOOL_CALLBACK_MAP) ? DUCTILE_ERR_BUSY : DUCTILE_OK;
}

ductile_status ductile_sleep_host_reserve(ductile_allocator *a, uint64_t bytes, uint64_t *held) {
    if (held != NULL) {
        *held = 0;
    }
    DTI_TRY(may_change_host_memory(a));
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = dvmm_host_arena_reserve(&a->host_arena, bytes);
    dvmm_capture_restore(a->driver, mode);
    if (held != NULL) {
        *held = dvmm_host_arena_bytes(&a->host_arena);
    }
    return status;
}

ductile_status ductile_sleep_host_release(ductile_allocator *a, uint64_t keep_bytes,
                                          uint64_t *released) {
    uint64_t ignored = 0;
    released = released != NULL ? released : &ignored;
    *released = 0;
    DTI_TRY(may_change_host_memory(a));
    dvmm_capture_mode mode = dvmm_capture_relax(a->driver);
    ductile_status status = dvmm_host_arena_release(&a->host_arena, keep_bytes, released);
    dti_lock_acquire(&a->grow_lock);
    uint64_t locked = a->store.totals.spill_bytes;
    status = dti_first_error(status, dvmm_store_shrink_host(&a->store, 0));
    *released += locked - a->store.totals.spill_bytes;
    dti_lock_release(&a->grow_lock);
    dvmm_capture_restore(a->driver, mode);
    return status;
}
