/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows about stream captures: which calls they prohibit, and which end them. Every call of the
 * seam is made while a stream is captured, in each of the three modes, by the capturing thread
 * and by another one, each plainly and inside an exchange to the relaxed mode. So a row has four
 * codes, in this order, and its state has four words "capture status/code of its end":
 * own thread, own thread relaxed, other thread, other thread relaxed.
 */
#include "tests/conformance/conformance_lab.h"

#include <string.h>

lab_rows capture_rows;

/* What the calls need, made before the capture begins. `side` is not captured. */
typedef struct kit {
    lab *l;
    ductile_stream captured;
    ductile_stream side;
    dvmm_event recorded;       /* on side, complete */
    ductile_addr buffer;       /* a granule, mapped and open */
    ductile_addr spare_range;  /* a granule, reserved */
    dvmm_phys spare_handle;    /* mapped nowhere */
    ductile_addr classic;      /* of mem_alloc */
    ductile_addr stream_alloc; /* of mem_alloc_async on side */
    void *host;                /* a page of page-locked memory */
} kit;

static kit make_kit(lab *l) {
    kit k = {.l = l, .captured = new_stream(l), .side = new_stream(l), .recorded = new_event(l)};
    k.buffer = mapped(l, 1, NULL);
    k.spare_range = reserve(l, 1);
    k.spare_handle = create(l, 1);
    need(l, "mem_alloc", CALL(l, mem_alloc, 4096, &k.classic));
    if (l->has_async_pool) {
        need(l, "mem_alloc_async", CALL(l, mem_alloc_async, 4096, k.side, &k.stream_alloc));
    }
    need(l, "host_alloc", CALL(l, host_alloc, 4096, &k.host));
    if (k.host != NULL) {
        memset(k.host, 0, 4096); /* a wait for a word of it must end at once */
    }
    need(l, "record", CALL(l, event_record, k.recorded, k.side));
    need(l, "sync", CALL(l, stream_sync, k.side));
    return k;
}

/* What the lab does not remember. Calls under test that freed something have set it to 0. */
static void drop_kit(kit *k) {
    lab *l = k->l;
    if (k->classic != 0) {
        (void)CALL(l, mem_free, k->classic);
    }
    if (k->stream_alloc != 0) {
        (void)CALL(l, mem_free_async, k->stream_alloc, k->side);
    }
    if (k->host != NULL) {
        (void)CALL(l, host_free, k->host);
    }
}

/* ---- The calls ----------------------------------------------------------------------------- */

static void capture_row(lab *l, const conformance_row *row);

static int (*captured_calls[LAB_MOST_ROWS / 3])(kit *k);
static int n_captured_calls;

#define ADD_IN_MODE(name, mode_name, mode)                                                         \
    add_row(&capture_rows,                                                                         \
            (conformance_row){"capture." mode_name "." #name,                                      \
                              #name " while a stream is captured, " mode_name " mode",             \
                              capture_row, 0, n_captured_calls, mode})

/* The head of a call, and a row for each mode. */
#define CAPTURED_CALL(name)                                                                        \
    static int call_##name(kit *k);                                                                \
    __attribute__((constructor)) static void add_##name(void) {                                    \
        ADD_IN_MODE(name, "global", DVMM_CAPTURE_GLOBAL);                                          \
        ADD_IN_MODE(name, "thread", DVMM_CAPTURE_THREAD_LOCAL);                                    \
        ADD_IN_MODE(name, "relaxed", DVMM_CAPTURE_RELAXED);                                        \
        captured_calls[n_captured_calls++] = call_##name;                                          \
    }                                                                                              \
    static int call_##name(kit *k)

/* One that is made as it stands. */
#define DIRECT_CALL(name, ...)                                                                     \
    CAPTURED_CALL(name) {                                                                          \
        return CALL(k->l, __VA_ARGS__);                                                            \
    }

CAPTURED_CALL(mem_info) {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
    return CALL(k->l, mem_info, &free_bytes, &total_bytes);
}

CAPTURED_CALL(address_reserve) {
    ductile_addr addr = 0;
    int code = CALL(k->l, address_reserve, k->l->granule, 0, 0, &addr);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, address_free, addr, k->l->granule);
    }
    return code;
}

CAPTURED_CALL(address_free) {
    int code = CALL(k->l, address_free, k->spare_range, k->l->granule);
    if (code == DVMM_SUCCESS) {
        forget_range(k->l, k->spare_range);
    }
    return code;
}

CAPTURED_CALL(phys_create) {
    const dvmm_phys_props plain = {0};
    dvmm_phys phys = 0;
    int code = CALL(k->l, phys_create, k->l->granule, &plain, &phys);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, phys_release, phys);
    }
    return code;
}

CAPTURED_CALL(phys_release) {
    forget_handle(k->l, k->spare_handle);
    return CALL(k->l, phys_release, k->spare_handle);
}

DIRECT_CALL(map, map, k->spare_range, k->l->granule, 0, k->spare_handle)
DIRECT_CALL(unmap, unmap, k->buffer, k->l->granule)
DIRECT_CALL(set_access, set_access, k->buffer, k->l->granule, DVMM_ACCESS_RW)

CAPTURED_CALL(get_access) {
    dvmm_access access = DVMM_ACCESS_NONE;
    return CALL(k->l, get_access, k->buffer, &access);
}

CAPTURED_CALL(mem_alloc) {
    ductile_addr addr = 0;
    int code = CALL(k->l, mem_alloc, 4096, &addr);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, mem_free, addr);
    }
    return code;
}

CAPTURED_CALL(mem_free) {
    int code = CALL(k->l, mem_free, k->classic);
    if (code == DVMM_SUCCESS) {
        k->classic = 0;
    }
    return code;
}

CAPTURED_CALL(mem_alloc_async) {
    ductile_addr addr = 0;
    int code = CALL(k->l, mem_alloc_async, 4096, k->side, &addr);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, mem_free_async, addr, k->side);
    }
    return code;
}

CAPTURED_CALL(mem_free_async) {
    int code = CALL(k->l, mem_free_async, k->stream_alloc, k->side);
    if (code == DVMM_SUCCESS) {
        k->stream_alloc = 0;
    }
    return code;
}

CAPTURED_CALL(async_pool_info) {
    uint64_t reserved = 0;
    uint64_t peak = 0;
    return CALL(k->l, async_pool_info, &reserved, &peak);
}

DIRECT_CALL(async_pool_trim, async_pool_trim, UINT64_MAX / 2)

CAPTURED_CALL(stream_create) {
    ductile_stream stream = NULL;
    int code = CALL(k->l, stream_create, &stream);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, stream_destroy, stream);
    }
    return code;
}

CAPTURED_CALL(stream_destroy) {
    forget_stream(k->l, k->side);
    int code = CALL(k->l, stream_destroy, k->side);
    k->side = NULL;
    return code;
}

DIRECT_CALL(stream_sync, stream_sync, k->side)
DIRECT_CALL(stream_query, stream_query, k->side)
DIRECT_CALL(stream_wait_event, stream_wait_event, k->side, k->recorded)
DIRECT_CALL(stream_wait_value, stream_wait_value, k->side, k->host, 0)

CAPTURED_CALL(capture_status) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    return CALL(k->l, capture_status, k->side, &status);
}

CAPTURED_CALL(context_sync) {
    return k->l->ops->context_sync(k->l->ctx);
}

DIRECT_CALL(context_record, context_record, k->recorded)

CAPTURED_CALL(event_create) {
    dvmm_event event = NULL;
    int code = CALL(k->l, event_create, &event);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, event_destroy, event);
    }
    return code;
}

CAPTURED_CALL(event_destroy) {
    forget_event(k->l, k->recorded);
    return CALL(k->l, event_destroy, k->recorded);
}

DIRECT_CALL(event_record, event_record, k->recorded, k->side)
DIRECT_CALL(event_query, event_query, k->recorded)
DIRECT_CALL(event_sync, event_sync, k->recorded)

CAPTURED_CALL(host_alloc) {
    void *memory = NULL;
    int code = CALL(k->l, host_alloc, 4096, &memory);
    if (code == DVMM_SUCCESS) {
        (void)CALL(k->l, host_free, memory);
    }
    return code;
}

CAPTURED_CALL(host_free) {
    int code = CALL(k->l, host_free, k->host);
    if (code == DVMM_SUCCESS) {
        k->host = NULL;
    }
    return code;
}

DIRECT_CALL(fill, fill, k->buffer, 1, 4096, k->side)
DIRECT_CALL(copy, copy, k->buffer, k->buffer + 4096, 4096, k->side)
DIRECT_CALL(upload, upload, k->buffer, k->host, 64, k->side)
DIRECT_CALL(read_back, read_back, k->host, k->buffer, 64, k->side)

/* The same on the legacy stream, which waits for blocking streams and may be captured by them. */

DIRECT_CALL(event_record_legacy, event_record, k->recorded, NULL)
DIRECT_CALL(stream_query_legacy, stream_query, NULL)
DIRECT_CALL(stream_sync_legacy, stream_sync, NULL)

CAPTURED_CALL(capture_status_legacy) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    return CALL(k->l, capture_status, NULL, &status);
}

DIRECT_CALL(fill_legacy, fill, k->buffer, 1, 4096, NULL)

/* And on the captured stream itself. */

DIRECT_CALL(event_record_captured, event_record, k->recorded, k->captured)
DIRECT_CALL(stream_wait_event_captured, stream_wait_event, k->captured, k->recorded)
DIRECT_CALL(stream_query_captured, stream_query, k->captured)
DIRECT_CALL(stream_sync_captured, stream_sync, k->captured)

CAPTURED_CALL(capture_status_captured) {
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    return CALL(k->l, capture_status, k->captured, &status);
}

DIRECT_CALL(fill_captured, fill, k->buffer, 1, 4096, k->captured)
DIRECT_CALL(copy_captured, copy, k->buffer, k->buffer + 4096, 4096, k->captured)

/* A captured event asked while the capture goes on. */
CAPTURED_CALL(captured_event_query) {
    int code = CALL(k->l, event_record, k->recorded, k->captured);
    return code != DVMM_SUCCESS ? code : CALL(k->l, event_query, k->recorded);
}

CAPTURED_CALL(captured_event_sync) {
    int code = CALL(k->l, event_record, k->recorded, k->captured);
    return code != DVMM_SUCCESS ? code : CALL(k->l, event_sync, k->recorded);
}

/* ---- One call in one capture --------------------------------------------------------------- */

typedef struct attempt {
    kit *kit;
    int subject;
    bool relaxed; /* the calling thread exchanges its mode around the call */
    int code;
} attempt;

static void make_call(void *argument) {
    attempt *a = argument;
    lab *l = a->kit->l;
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    if (a->relaxed) {
        need(l, "exchange", CALL(l, capture_exchange_mode, &mode));
    }
    a->code = captured_calls[a->subject](a->kit);
    if (a->relaxed) {
        need(l, "exchange", CALL(l, capture_exchange_mode, &mode));
    }
}

static void attempt_in_capture(lab *l, const conformance_row *row, bool elsewhere, bool relaxed) {
    kit k = make_kit(l);
    attempt a = {.kit = &k, .subject = row->subject, .relaxed = relaxed};
    dvmm_capture_status status = DVMM_CAPTURE_NONE;
    need(l, "begin", CALL(l, capture_begin, k.captured, (dvmm_capture_mode)row->mode));
    if (elsewhere) {
        on_other_thread(l, make_call, &a);
    } else {
        make_call(&a);
    }
    say(l, a.code);
    need(l, "status", CALL(l, capture_status, k.captured, &status));
    note(l, "%s/%d", capture_word(status), CALL(l, capture_end, k.captured));
    drop_kit(&k);
}

static void capture_row(lab *l, const conformance_row *row) {
    attempt_in_capture(l, row, false, false);
    attempt_in_capture(l, row, false, true);
    attempt_in_capture(l, row, true, false);
    attempt_in_capture(l, row, true, true);
}
