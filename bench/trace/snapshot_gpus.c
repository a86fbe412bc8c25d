/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/snapshot_gpus.h"

#include "bench/trace/trace_build.h"

#include "vmm/base/align.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the entries of a history have added so far, and at most. Unsigned: what a file says may be
 * anything. */
typedef struct rise {
    uint64_t now, most;
} rise;

static void add(rise *r, uint64_t size) {
    r->now += size;
    r->most = (int64_t)r->now > (int64_t)r->most ? r->now : r->most;
}

/* At the end there was so much: then before the history there was less by what it added. */
static uint64_t peak_of(const rise *r, uint64_t end) {
    uint64_t before = end - r->now;
    return (int64_t)before > 0 ? before + r->most : r->most;
}

/* ---- One GPU ------------------------------------------------------------------------------- */

static void follow(const history_entry *e, recorded_gpu *g, rise *held, rise *live) {
    switch ((history_action)e->action) {
    case HISTORY_ALLOC:
        add(live, e->size);
        break;
    case HISTORY_COMPLETE:
        add(live, -e->size);
        break;
    case HISTORY_FREE:
        break;
    case HISTORY_SEGMENT_ALLOC:
    case HISTORY_SEGMENT_MAP:
        add(held, e->size);
        return;
    case HISTORY_SEGMENT_FREE:
    case HISTORY_SEGMENT_UNMAP:
        add(held, -e->size);
        return;
    case HISTORY_REFUSAL:
        g->n_refusals += e->has_size && e->size > 0;
        return;
    case HISTORY_OTHER:
        return;
    }
    g->n_events++;
}

static void survey(const history *h, const pickle_value *entries, bool has_segments,
                   recorded_gpu *g) {
    rise held = {0};
    rise live = {0};
    for (size_t i = 0; i < pickle_count(entries); i++) {
        const history_entry *e = history_at(h, entries, i);
        if (e != NULL) {
            follow(e, g, &held, &live);
        }
    }
    if (!has_segments) {
        g->held_bytes = held.now;
        g->live_bytes = live.now;
    }
    g->held_peak = peak_of(&held, g->held_bytes);
    g->live_peak = peak_of(&live, g->live_bytes);
}

/* Early versions wrote fewer sums. */
static uint64_t sum_of(const pickle_value *segment, const char *first, const char *second) {
    uint64_t sum = 0;
    if (!pickle_get_unsigned(pickle_find(segment, first), &sum)) {
        (void)pickle_get_unsigned(pickle_find(segment, second), &sum);
    }
    return sum;
}

static bool gpu_of(const pickle_value *segment, uint64_t *gpu) {
    return pickle_get_unsigned(pickle_find(segment, "device"), gpu) && *gpu < HISTORY_MAX_GPUS;
}

static void add_segments(const pickle_value *segments, recorded_memory *to) {
    for (size_t i = 0; i < pickle_count(segments); i++) {
        const pickle_value *segment = pickle_item(segments, i);
        uint64_t gpu;
        if (gpu_of(segment, &gpu)) {
            to->gpus[gpu].held_bytes += sum_of(segment, "total_size", "total_size");
            to->gpus[gpu].live_bytes += sum_of(segment, "active_size", "allocated_size");
        }
    }
}

/* ---- All of them --------------------------------------------------------------------------- */

static size_t count_gpus(const pickle_value *traces, const pickle_value *segments) {
    size_t n = pickle_count(traces);
    for (size_t i = 0; i < pickle_count(segments); i++) {
        uint64_t gpu;
        if (gpu_of(pickle_item(segments, i), &gpu)) {
            n = dti_max(n, (size_t)gpu + 1);
        }
    }
    return n;
}

static bool has_history(const recorded_gpu *g) {
    return g->n_events > 0 || g->n_refusals > 0;
}

static bool is_used(const recorded_gpu *g) {
    return has_history(g) || g->held_bytes > 0;
}

static bool survey_all(const history *h, const pickle_value *root, uint64_t file_size,
                       recorded_memory *to, trace_error *error) {
    const pickle_value *traces = pickle_find(root, "device_traces");
    const pickle_value *segments = pickle_find(root, "segments");
    uint64_t visited = 0;
    size_t n = count_gpus(traces, segments);
    if (n > HISTORY_MAX_GPUS) {
        return trace_refuse(error, 0, "a history of %zu GPUs", n);
    }
    to->gpus = calloc(n + 1, sizeof *to->gpus);
    if (to->gpus == NULL) {
        return trace_refuse(error, 0, "the host has no memory left");
    }
    to->n_gpus = n;
    add_segments(segments, to);
    for (size_t i = 0; i < n; i++) {
        const pickle_value *entries = pickle_item(traces, i);
        visited += pickle_count(entries);
        if (visited > file_size) {
            return trace_refuse(error, 0, "more history entries than the file can hold");
        }
        survey(h, entries, pickle_count(segments) > 0, &to->gpus[i]);
    }
    return true;
}

/* ---- The choice ---------------------------------------------------------------------------- */

static uint64_t fullness(const recorded_gpu *g) {
    return dti_max(g->held_peak, g->live_peak);
}

static bool is_before(const recorded_gpu *a, const recorded_gpu *b) {
    bool refuses = a->n_refusals > 0;
    if (refuses != (b->n_refusals > 0)) {
        return refuses;
    }
    return fullness(a) != fullness(b) ? fullness(a) > fullness(b) : a->n_events > b->n_events;
}

static bool may_be_read(const recorded_gpu *g, snapshot_gpus_wish wish) {
    return has_history(g) || (wish.takes_held && g->held_bytes > 0);
}

static bool choose_first(const recorded_memory *m, snapshot_gpus_wish wish, uint64_t *gpu) {
    bool found = false;
    for (size_t i = 0; i < m->n_gpus; i++) {
        if (may_be_read(&m->gpus[i], wish) && (!found || is_before(&m->gpus[i], &m->gpus[*gpu]))) {
            *gpu = i;
            found = true;
        }
    }
    return found;
}

/* "GPU 0 (60.00 GiB held, 1 event), GPU 3 (2.00 MiB held, 96 events)". */
static void list_used(const recorded_memory *m, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < m->n_gpus && n + 64 < size; i++) {
        const recorded_gpu *g = &m->gpus[i];
        if (is_used(g)) {
            n += (size_t)snprintf(out + n, size - n, "%sGPU %zu (%.1f MiB held, %" PRIu64 " %s)",
                                  n > 0 ? ", " : "", i, (double)fullness(g) / DTI_MIB, g->n_events,
                                  g->n_events == 1 ? "event" : "events");
        }
    }
}

/* Where what was held would do, recording would not have changed that there is nothing. */
static bool refuse_all(const recorded_memory *m, snapshot_gpus_wish wish, trace_error *error) {
    bool is_any_used = false;
    for (size_t i = 0; i < m->n_gpus; i++) {
        is_any_used = is_any_used || is_used(&m->gpus[i]);
    }
    if (wish.takes_held && !is_any_used && m->n_gpus > 0) {
        return trace_refuse(error, 0,
                            "PyTorch held nothing on any of %zu GPU%s when the snapshot was "
                            "written, and recorded no event",
                            m->n_gpus, m->n_gpus == 1 ? "" : "s");
    }
    return trace_refuse(error, 0,
                        "no allocation history in the snapshot: call "
                        "torch.cuda.memory._record_memory_history() before the run");
}

static bool choose_wished(const recorded_memory *m, snapshot_gpus_wish wish, uint64_t *gpu,
                          trace_error *error) {
    char used[160];
    *gpu = (uint64_t)wish.gpu;
    if (*gpu < m->n_gpus && may_be_read(&m->gpus[*gpu], wish)) {
        return true;
    }
    list_used(m, used, sizeof used);
    if (used[0] == '\0') {
        return refuse_all(m, wish, error);
    }
    return *gpu < m->n_gpus
               ? trace_refuse(error, 0, "GPU %d of %zu has no event and holds nothing; %s",
                              wish.gpu, m->n_gpus, used)
               : trace_refuse(error, 0, "no GPU %d in the snapshot, which has %zu: %s", wish.gpu,
                              m->n_gpus, used);
}

bool snapshot_gpus_choose(const history *h, const pickle_value *root, snapshot_gpus_wish wish,
                          uint64_t file_size, recorded_memory *to, uint64_t *gpu,
                          trace_error *error) {
    if (!survey_all(h, root, file_size, to, error)) {
        return false;
    }
    if (wish.gpu != TRACE_FULLEST_GPU) {
        return choose_wished(to, wish, gpu, error);
    }
    return choose_first(to, wish, gpu) || refuse_all(to, wish, error);
}
