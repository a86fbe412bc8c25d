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

#define SIZE(bytes) text_of(bytes).text

/* ---- What would help ----------------------------------------------------------------------- */

/* Writes a sentence, or nothing where it does not apply. */
typedef void (*advice_fn)(writer *w, const ductile_oom_report *r);

static bool is_limited(const ductile_oom_report *r) {
    return r->held_bytes + r->missing_bytes > r->limit_bytes;
}

static bool can_never_fit(const ductile_oom_report *r) {
    return r->rounded_bytes > r->limit_bytes;
}

static void advise_size(writer *w, const ductile_oom_report *r) {
    if (can_never_fit(r)) {
        put(w, "The request is larger than the limit of %s.", SIZE(r->limit_bytes));
    }
}

static void advise_limit(writer *w, const ductile_oom_report *r) {
    if (is_limited(r) && r->limit_bytes < r->device_bytes &&
        r->device_free_bytes >= r->missing_bytes) {
        put(w, "The limit of %s is reached, but the device has %s free: raise limit_bytes.",
            SIZE(r->limit_bytes), SIZE(r->device_free_bytes));
    }
}

static void advise_others(writer *w, const ductile_oom_report *r) {
    if (!is_limited(r) && r->others_bytes >= r->missing_bytes) {
        put(w,
            "%s of the device are used outside this allocator: by other processes, CUDA contexts "
            "or libraries.",
            SIZE(r->others_bytes));
    }
}

static void advise_streams(writer *w, const ductile_oom_report *r) {
    if (r->unproven_bytes < r->granule_bytes) {
        return;
    }
    if (r->reuse == DUCTILE_REUSE_STREAM) {
        put(w, "%s are free on other streams; reuse:stream keeps them there.",
            SIZE(r->unproven_bytes));
    } else {
        put(w,
            "%s are free on other streams whose work is not proven done: synchronise them, or call "
            "ductile_stream_done for streams no longer in use.",
            SIZE(r->unproven_bytes));
    }
}

static void advise_capture(writer *w, const ductile_oom_report *r) {
    if (r->captured != 0) {
        put(w, "A stream was being captured, so the allocator could not wait for work under way.");
    }
}

static void advise_pending(writer *w, const ductile_oom_report *r) {
    if (r->pending_bytes < r->granule_bytes) {
        return;
    }
    put(w, "%s are freed, but other streams may still use them", SIZE(r->pending_bytes));
    put(w, "%s",
        r->record_stream == DUCTILE_RECORD_POLL ? ": record_stream:wait reuses such memory at once."
                                                : ".");
}

static void advise_recycling(writer *w, const ductile_oom_report *r) {
    if (r->reuse == DUCTILE_REUSE_NEVER && r->free_bytes >= r->missing_bytes) {
        put(w, "reuse:never keeps %s of free memory in place: use reuse:streams.",
            SIZE(r->free_bytes));
    }
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
        put(w,
            "%s of the %s held are in live blocks: the program needs less memory, for example a "
            "smaller batch.",
            SIZE(r->live_bytes), SIZE(r->held_bytes));
    }
}

static const advice_fn advice[] = {advise_size,    advise_limit,   advise_others,    advise_streams,
                                   advise_capture, advise_pending, advise_recycling, advise_pinned,
                                   advise_lost,    advise_less};

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
    put(w, ", %s of device memory missing.\n", SIZE(r->missing_bytes));
    put(w, "Device: %s, %s free, %s used outside this allocator.\n", SIZE(r->device_bytes),
        SIZE(r->device_free_bytes), SIZE(r->others_bytes));
    put(w, "Held here: %s of a limit of %s: ", SIZE(r->held_bytes), SIZE(r->limit_bytes));
    put(w, "%s live, %s free, %s waiting for other streams, ", SIZE(r->live_bytes),
        SIZE(r->free_bytes), SIZE(r->pending_bytes));
    put(w, "%s in unmapped handles, %s lost.\n", SIZE(r->cached_bytes), SIZE(r->quarantined_bytes));
}

static void put_free(writer *w, const ductile_oom_report *r) {
    put(w, "Largest free block: %s on this stream, %s on any. ", SIZE(r->largest_free_here_bytes),
        SIZE(r->largest_free_bytes));
    put(w, "Free but fixed: %s beside live blocks, %s not proven done.\n", SIZE(r->pinned_bytes),
        SIZE(r->unproven_bytes));
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
    NUMBER(limit_bytes);
    NUMBER(soft_limit_bytes);
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
    NUMBER(pinned_bytes);
    NUMBER(largest_free_bytes);
    NUMBER(largest_free_here_bytes);
    NUMBER(unvisited_bytes);
    NUMBER(granule_bytes);
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
