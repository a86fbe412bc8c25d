/* SPDX-License-Identifier: Apache-2.0 */
/* Formats a report as text and as JSON. The functions depend on the report alone. */
#include <ductile.h>

#include "vmm/base/align.h"
#include "vmm/base/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct writer {
    char *buffer;
    size_t size;
    size_t length; /* of all text, whether it fits or not */
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *w, const char *format, ...) {
    size_t room = w->length < w->size ? w->size - w->length : 0;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(room > 0 ? w->buffer + w->length : NULL, room, format, args);
    va_end(args);
    w->length += n > 0 ? (size_t)n : 0;
}

/* Formats a size for reading, in a buffer of its own. */
typedef struct size_text {
    char text[32];
} size_text;

static size_text text_of(uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_text t;
    double n = (double)bytes;
    unsigned unit = 0;
    while (n >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        n /= 1024;
        unit++;
    }
    (void)snprintf(t.text, sizeof t.text, unit == 0 ? "%.0f %s" : "%.2f %s", n, units[unit]);
    return t;
}

/* The next size that is written with two digits and no others: what is written is not less. */
static uint64_t up(uint64_t bytes) {
    uint64_t unit = 1;
    while (bytes / unit >= 1024 && unit < DTI_TIB) {
        unit *= 1024;
    }
    uint64_t hundredths = (bytes % unit * 100 + unit - 1) / unit;
    return bytes / unit * unit + hundredths * unit / 100;
}

#define SIZE(bytes) text_of(bytes).text

/* ---- Who refused it ------------------------------------------------------------------------ */

/* What is held and free is that of one moment: when what had been created for the request was
 * given back. */
static uint64_t to_create(const ductile_oom_report *r) {
    return r->needed_bytes > r->held_bytes ? r->needed_bytes - r->held_bytes : 0;
}

static bool is_limited(const ductile_oom_report *r) {
    return r->needed_bytes > r->limit_bytes && r->limit_bytes < r->device_bytes;
}

/* What the device lacks, whatever the limit is; the margin is not counted. */
static uint64_t device_lacks(const ductile_oom_report *r) {
    uint64_t bytes = to_create(r);
    return bytes > r->device_free_bytes ? bytes - r->device_free_bytes : 0;
}

static bool is_in_margin(const ductile_oom_report *r) {
    return r->margin_bytes > 0 && device_lacks(r) == 0 &&
           r->device_free_bytes - to_create(r) < r->margin_bytes;
}

static const char *limit_name(const ductile_oom_report *r) {
    return r->limit_name != NULL ? r->limit_name : "limit_bytes";
}

static bool can_never_fit(const ductile_oom_report *r) {
    return r->rounded_bytes > r->limit_bytes;
}

/* ---- What would help ----------------------------------------------------------------------- */

/* Writes a sentence, or nothing where it does not apply. Each is a remedy that has an effect on
 * this refusal, or says that there is none. */
typedef void (*advice_fn)(writer *w, const ductile_oom_report *r);

static void advise_size(writer *w, const ductile_oom_report *r) {
    if (can_never_fit(r)) {
        put(w, "The request is larger than the limit of %s.", SIZE(r->limit_bytes));
    }
}

static void advise_limit(writer *w, const ductile_oom_report *r) {
    if (!is_limited(r)) {
        return;
    }
    put(w, "The limit of %s is reached, ", SIZE(r->limit_bytes));
    if (device_lacks(r) == 0) {
        put(w, "but the device has %s free: ", SIZE(r->device_free_bytes));
    } else {
        put(w, "and the device has only %s free: free %s of it, and ", SIZE(r->device_free_bytes),
            SIZE(up(device_lacks(r))));
    }
    put(w, "raise %s to %s.", limit_name(r), SIZE(up(r->needed_bytes)));
}

static void advise_margin(writer *w, const ductile_oom_report *r) {
    if (is_in_margin(r)) {
        put(w, "%s of the device are kept free for others (ductile_set_margin): keep %s.",
            SIZE(r->margin_bytes), SIZE(r->device_free_bytes - to_create(r)));
    }
}

static void advise_others(writer *w, const ductile_oom_report *r) {
    if (device_lacks(r) > 0 && r->others_bytes >= device_lacks(r)) {
        put(w,
            "%s of the device are used outside this allocator: by other processes, CUDA contexts "
            "or libraries. The request needs %s of them.",
            SIZE(r->others_bytes), SIZE(up(device_lacks(r))));
    }
}

/* Who keeps most for graphs: in the pool of the request, or in others. */
static const ductile_oom_holder *keeps_most(const ductile_oom_report *r, bool is_own) {
    const ductile_oom_holder *most = NULL;
    for (size_t i = 0; i < DUCTILE_OOM_HOLDERS; i++) {
        const ductile_oom_holder *h = &r->holders[i];
        bool is_of_request = h->pool.first == r->pool.first && h->pool.second == r->pool.second;
        if (is_of_request == is_own && h->kept_bytes >= r->granule_bytes &&
            (most == NULL || h->kept_bytes > most->kept_bytes)) {
            most = h;
        }
    }
    return r->granule_bytes > 0 ? most : NULL;
}

static void advise_pools(writer *w, const ductile_oom_report *r) {
    const ductile_oom_holder *h = keeps_most(r, false);
    if (r->kept_bytes < r->granule_bytes) {
        return;
    }
    put(w, "%s are free in pools that keep them for graphs", SIZE(r->kept_bytes));
    if (h != NULL) {
        put(w, ", %s of them in pool {%" PRIu64 ",%" PRIu64 "}", SIZE(h->kept_bytes), h->pool.first,
            h->pool.second);
    }
    put(w, ": destroy the graphs and release the pool (ductile_pool_release; of PyTorch, delete "
           "the graphs and their MemPool).");
}

static void advise_one_stream(writer *w, const ductile_oom_report *r) {
    const ductile_oom_holder *h = keeps_most(r, true);
    if (h != NULL) {
        put(w,
            "%s are free in the pool of the request on stream %p: a capture pool serves each "
            "stream from memory of its own. Capture on one stream.",
            SIZE(h->kept_bytes), (void *)h->stream);
    }
}

/* Outside a capture the allocator has waited for all work before it refused. */
static void advise_streams(writer *w, const ductile_oom_report *r) {
    if (r->unproven_bytes < r->granule_bytes) {
        return;
    }
    put(w, "%s are free on other streams, or in an elastic range, whose work is not proven done: ",
        SIZE(r->unproven_bytes));
    put(w, "%s",
        r->captured != 0 ? "a stream was being captured, so the allocator could not wait. Allocate "
                           "before the capture begins, or when it has ended."
                         : "the driver did not wait for it. Try again.");
}

static void advise_pending(writer *w, const ductile_oom_report *r) {
    if (r->pending_bytes < r->granule_bytes) {
        return;
    }
    put(w, "%s are freed, but recorded on other streams, ", SIZE(r->pending_bytes));
    put(w, "%s",
        r->captured != 0 ? "and come back when the capture has ended. Let the stream of the block "
                           "wait for the others before it is freed, and do not record them."
                         : "and the driver did not wait for them. Try again.");
}

static void advise_pinned(writer *w, const ductile_oom_report *r) {
    if (r->pinned_bytes >= r->granule_bytes && r->pinned_bytes >= r->missing_bytes) {
        put(w,
            "%s are free, but live blocks use parts of the same %s granules: allocate long-lived "
            "blocks first.",
            SIZE(r->pinned_bytes), SIZE(r->granule_bytes));
    }
}

static void advise_lost(writer *w, const ductile_oom_report *r) {
    if (r->quarantined_bytes > 0) {
        put(w, "%s are lost to driver failures until the process ends.",
            SIZE(r->quarantined_bytes));
    }
}

static void advise_less(writer *w, const ductile_oom_report *r) {
    if (!can_never_fit(r) && r->live_bytes >= r->held_bytes / 2) {
        put(w, "%s of the %s held are in live blocks: ", SIZE(r->live_bytes), SIZE(r->held_bytes));
        put(w, "the program needs to use %s less, for example with a smaller batch.",
            SIZE(up(r->missing_bytes)));
    }
}

static const advice_fn advice[] = {advise_size,   advise_limit,      advise_margin,  advise_others,
                                   advise_pools,  advise_one_stream, advise_streams, advise_pending,
                                   advise_pinned, advise_lost,       advise_less};

/* What is advised first, second, ...: NULL when there is no more, "" where it does not apply. */
typedef struct sentence {
    char text[512];
} sentence;

static const char *advise(const ductile_oom_report *r, size_t i, sentence *out) {
    if (r->number == 0 || i == sizeof advice / sizeof advice[0]) {
        return NULL;
    }
    writer w = {out->text, sizeof out->text, 0};
    out->text[0] = '\0';
    advice[i](&w, r);
    return out->text;
}

/* ---- Text ---------------------------------------------------------------------------------- */

static void put_head(writer *w, const ductile_oom_report *r) {
    put(w, "Out of memory: %s requested on stream %p of device %d", SIZE(r->requested_bytes),
        (void *)r->stream, r->device);
    put(w, ", %s of device memory missing: ", SIZE(r->missing_bytes));
    if (is_limited(r)) {
        put(w, "%s allows %s.\n", limit_name(r), SIZE(r->limit_bytes));
    } else if (is_in_margin(r)) {
        put(w, "a margin of %s is kept free.\n", SIZE(r->margin_bytes));
    } else {
        put(w, "the device has no more.\n");
    }
    put(w, "Device: %s, %s free, %s used outside this allocator.\n", SIZE(r->device_bytes),
        SIZE(r->device_free_bytes), SIZE(r->others_bytes));
    put(w, "Held here: %s of a limit of %s: ", SIZE(r->held_bytes), SIZE(r->limit_bytes));
    put(w, "%s live, %s free, %s waiting for other streams, ", SIZE(r->live_bytes),
        SIZE(r->free_bytes), SIZE(r->pending_bytes));
    put(w, "%s in unmapped handles, %s lost.\n", SIZE(r->cached_bytes), SIZE(r->quarantined_bytes));
    if (r->spill_limit_bytes > 0) {
        put(w, "Spilled: %s to the host, which has locked %s of at most %s.\n",
            SIZE(r->spilled_bytes), SIZE(r->spill_locked_bytes), SIZE(r->spill_limit_bytes));
    }
}

static void put_free(writer *w, const ductile_oom_report *r) {
    put(w, "Largest free block: %s on this stream, %s on any. ", SIZE(r->largest_free_here_bytes),
        SIZE(r->largest_free_bytes));
    put(w, "Free but fixed: %s beside live blocks, %s not proven done, ", SIZE(r->pinned_bytes),
        SIZE(r->unproven_bytes));
    put(w, "%s kept for graphs.\n", SIZE(r->kept_bytes));
    for (unsigned i = 0; i < DUCTILE_OOM_SIZES; i++) {
        if (r->free_blocks_by_size[i] > 0) {
            put(w, "  free blocks from %s: %" PRIu64 ", %s in all\n", SIZE((uint64_t)512 << i),
                r->free_blocks_by_size[i], SIZE(r->free_bytes_by_size[i]));
        }
    }
    if (r->unvisited_bytes > 0) {
        put(w, "  smaller ones: %s in all\n", SIZE(r->unvisited_bytes));
    }
}

static uint64_t n_kept(const ductile_oom_report *r) {
    return dti_min(r->n_holders, DUCTILE_OOM_HOLDERS);
}

static void put_holder(writer *w, const ductile_oom_holder *h) {
    put(w, "  stream %p", (void *)h->stream);
    if (h->pool.first != 0 || h->pool.second != 0) {
        put(w, ", pool {%" PRIu64 ",%" PRIu64 "}", h->pool.first, h->pool.second);
    }
    put(w, ": %s held, %s live, ", SIZE(h->held_bytes), SIZE(h->live_bytes));
    put(w, "%s free (largest block %s), %s waiting for other streams\n", SIZE(h->free_bytes),
        SIZE(h->largest_free_bytes), SIZE(h->pending_bytes));
}

static void put_holders(writer *w, const ductile_oom_report *r) {
    for (uint64_t i = 0; i < n_kept(r); i++) {
        put_holder(w, &r->holders[i]);
    }
    if (r->n_holders > n_kept(r)) {
        put(w, "  %" PRIu64 " more streams hold less\n", r->n_holders - n_kept(r));
    }
}

static void put_advice(writer *w, const ductile_oom_report *r) {
    sentence s;
    for (size_t i = 0; advise(r, i, &s) != NULL; i++) {
        if (s.text[0] != '\0') {
            put(w, "  - %s\n", s.text);
        }
    }
}

static void put_text(writer *w, const ductile_oom_report *r) {
    if (r->number == 0) {
        put(w, "No request was refused for lack of memory.\n");
        return;
    }
    put_head(w, r);
    put_free(w, r);
    put_holders(w, r);
    put(w, "What would help:\n");
    put_advice(w, r);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

#define NUMBER(field) dti_json_number(j, #field, r->field)

static void write_pool(dti_json *j, ductile_pool_id id) {
    const uint64_t numbers[] = {id.first, id.second};
    dti_json_numbers(j, "pool", numbers, 2);
}

static void write_numbers(dti_json *j, const ductile_oom_report *r) {
    dti_json_signed(j, "device", r->device);
    dti_json_signed(j, "captured", r->captured);
    dti_json_number(j, "stream", (uintptr_t)r->stream);
    NUMBER(number);
    write_pool(j, r->pool);
    NUMBER(requested_bytes);
    NUMBER(rounded_bytes);
    NUMBER(missing_bytes);
    NUMBER(needed_bytes);
    dti_json_text(j, "limit_name", limit_name(r));
    NUMBER(limit_bytes);
    NUMBER(soft_limit_bytes);
    NUMBER(margin_bytes);
    NUMBER(device_bytes);
    NUMBER(device_free_bytes);
    NUMBER(others_bytes);
    NUMBER(held_bytes);
    NUMBER(live_bytes);
    NUMBER(free_bytes);
    NUMBER(pending_bytes);
    NUMBER(cached_bytes);
    NUMBER(quarantined_bytes);
    NUMBER(retiring_bytes);
    NUMBER(unproven_bytes);
    NUMBER(kept_bytes);
    NUMBER(pinned_bytes);
    NUMBER(largest_free_bytes);
    NUMBER(largest_free_here_bytes);
    NUMBER(unvisited_bytes);
    NUMBER(granule_bytes);
    NUMBER(spilled_bytes);
    NUMBER(spill_locked_bytes);
    NUMBER(spill_limit_bytes);
    NUMBER(n_holders);
}

static void write_holders(dti_json *j, const ductile_oom_report *report) {
    dti_json_open(j, "holders", '[');
    for (uint64_t i = 0; i < n_kept(report); i++) {
        const ductile_oom_holder *r = &report->holders[i];
        dti_json_open(j, NULL, '{');
        dti_json_number(j, "stream", (uintptr_t)r->stream);
        write_pool(j, r->pool);
        NUMBER(held_bytes);
        NUMBER(live_bytes);
        NUMBER(free_bytes);
        NUMBER(pending_bytes);
        NUMBER(unproven_bytes);
        NUMBER(kept_bytes);
        NUMBER(largest_free_bytes);
        dti_json_close(j, '}');
    }
    dti_json_close(j, ']');
}

static void write_sizes(dti_json *j, const ductile_oom_report *r) {
    dti_json_open(j, "free_by_size", '[');
    for (unsigned i = 0; i < DUCTILE_OOM_SIZES; i++) {
        if (r->free_blocks_by_size[i] > 0) {
            dti_json_open(j, NULL, '{');
            dti_json_number(j, "from_bytes", (uint64_t)512 << i);
            dti_json_number(j, "blocks", r->free_blocks_by_size[i]);
            dti_json_number(j, "bytes", r->free_bytes_by_size[i]);
            dti_json_close(j, '}');
        }
    }
    dti_json_close(j, ']');
}

static void write_advice(dti_json *j, const ductile_oom_report *r) {
    sentence s;
    dti_json_open(j, "advice", '[');
    for (size_t i = 0; advise(r, i, &s) != NULL; i++) {
        if (s.text[0] != '\0') {
            dti_json_text(j, NULL, s.text);
        }
    }
    dti_json_close(j, ']');
}

static int put_piece(void *user, const char *text, size_t length) {
    put(user, "%.*s", (int)length, text);
    return 0;
}

static void put_json(writer *w, const ductile_oom_report *r) {
    dti_json j = {.write = put_piece, .user = w};
    dti_json_open(&j, NULL, '{');
    write_numbers(&j, r);
    write_holders(&j, r);
    write_sizes(&j, r);
    write_advice(&j, r);
    dti_json_close(&j, '}');
}

size_t ductile_oom_report_format(const ductile_oom_report *r, ductile_report_format format,
                                 char *buffer, size_t size) {
    writer w = {buffer, size, 0};
    if (format == DUCTILE_REPORT_JSON) {
        put_json(&w, r);
    } else {
        put_text(&w, r);
    }
    return w.length;
}
