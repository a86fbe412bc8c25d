/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a scenario says of figures: "expect reserved_bytes = 40M", "expect reserved_bytes + 2M"
 * since the latest note, "expect calls:map <= 3" since then, "expect address:b = a+2M". Only under
 * the options of the scenario.
 */
#include "tests/model/player.h"

#include <string.h>

/* ---- Figures ------------------------------------------------------------------------------- */

#define FIELD_OF_STATS(name, meaning) WORDS_FIELD(ductile_stats, name),

static bool statistic(const ductile_stats *stats, const char *name, uint64_t *out) {
    static const words_field fields[] = {DUCTILE_STATS_MAP(FIELD_OF_STATS)};
    return words_field_of(stats, fields, sizeof fields / sizeof *fields, name, out);
}

bool count_calls(const player *p, const char *name, uint64_t *out) {
    uint64_t sum = 0;
    bool is_all = strcmp(name, "all") == 0;
    bool is_known = is_all || strcmp(name, "host_waits") == 0 || strcmp(name, "questions") == 0;
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        const char *call = dvmm_call_name((dvmm_call)i);
        bool is_wait = strcmp(call, "event_sync") == 0 || strcmp(call, "stream_sync") == 0 ||
                       strcmp(call, "context_sync") == 0;
        bool is_question = strcmp(call, "event_sync") == 0 || strcmp(call, "event_query") == 0;
        bool counts = strcmp(name, "host_waits") == 0  ? is_wait
                      : strcmp(name, "questions") == 0 ? is_question
                                                       : strcmp(name, call) == 0;
        counts |= is_all;
        is_known |= counts;
        sum += counts ? ductile_virtual_count(p->s.f.gpu, call) - p->noted_calls[i] : 0;
    }
    *out = sum;
    return is_known;
}

VERB(play_note, "note") {
    p->noted = fixture_stats(p->s.f.allocator);
    p->noted_state = fixture_state(&p->s.f); /* and looks which descriptors are closed */
    p->noted_descriptors = count_descriptors();
    p->log[0] = '\0';
    p->n_logged = 0;
    for (int i = 0; i < DVMM_N_CALLS; i++) {
        p->noted_calls[i] = ductile_virtual_count(p->s.f.gpu, dvmm_call_name((dvmm_call)i));
    }
    return NULL;
}

static bool of_state(const ductile_virtual_state *s, const char *name, uint64_t *out) {
    static const words_field fields[] = {
        {"used", offsetof(ductile_virtual_state, used_bytes)},
        {"mappings", offsetof(ductile_virtual_state, mappings)},
        {"device:handles", offsetof(ductile_virtual_state, handles)},
        {"device:ranges", offsetof(ductile_virtual_state, reservations)},
        {"device:addresses", offsetof(ductile_virtual_state, reserved_address_bytes)},
        {"device:streams", offsetof(ductile_virtual_state, streams)},
        {"device:events", offsetof(ductile_virtual_state, events)}};
    *out = (uint64_t)s->poisoned;
    return strcmp(name, "poisoned") == 0 ||
           words_field_of(s, fields, sizeof fields / sizeof *fields, name, out);
}

static bool of_device(const player *p, const char *name, uint64_t *out) {
    ductile_virtual_state state = fixture_state(&p->s.f);
    const struct {
        const char *name;
        uint64_t value;
    } known[] = {{"logged", p->n_logged},
                 {"faults", ductile_virtual_faults_fired(p->s.f.gpu)},
                 {"told_mapped", p->s.listener.n_mapped},
                 {"told_leaving", p->s.listener.n_left}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].value;
            return true;
        }
    }
    return of_state(&state, name, out);
}

/* "held:1", "live:1", "segments:1", "span:1", "references:1", "open:1", "plain:1", "asleep:1",
 * "kept:1"; a pool that is none holds 0. */
static bool of_pool(const player *p, const char *name, uint64_t *out) {
    const char *number = strchr(name, ':');
    ductile_pool_info info = {.struct_size = sizeof info};
    ductile_stats stats = {.struct_size = sizeof stats};
    uint64_t pool = 0;
    if (number == NULL || !script_number(number + 1, &pool) || pool > N_PLAIN_POOLS) {
        return false;
    }
    ductile_pool_id id = p->s.pools[pool].id;
    (void)!ductile_get_stats(p->s.f.allocator, &id, &stats);
    bool exists = ductile_list_pools(p->s.f.allocator, &id, &info, 1, NULL) == DUCTILE_OK;
    const struct {
        const char *name;
        uint64_t value;
    } known[] = {{"held:", stats.reserved_bytes},     {"live:", stats.live_blocks},
                 {"retiring:", stats.retiring_bytes}, {"exists:", exists},
                 {"pending:", stats.pending_blocks},  {"pending_bytes:", stats.pending_bytes},
                 {"references:", info.references},    {"open:", info.open},
                 {"asleep:", info.asleep != 0},       {"plain:", info.kind == DUCTILE_POOL_PLAIN},
                 {"segments:", stats.segments},       {"span:", stats.address_span_bytes},
                 {"kept:", info.kept_bytes}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strncmp(known[i].name, name, strlen(known[i].name)) == 0) {
            *out = known[i].value;
            return true;
        }
    }
    return false;
}

/* "address:a"; "pool:a", the number of the pool that holds it; "backed:a": memory is behind it;
 * "pinned:a". */
static bool of_block(const player *p, const char *name, uint64_t *out) {
    ductile_block_info info = {.struct_size = sizeof info};
    uint64_t address = 0;
    const char *block = strchr(name, ':');
    if (block == NULL || names_value(&p->names, block + 1, &address) != NULL) {
        return false;
    }
    *out = address;
    if (strncmp(name, "pool:", 5) == 0) {
        bool is_live = ductile_query_block(p->s.f.allocator, address, &info) == DUCTILE_OK;
        *out = info.pool.first;
        return is_live;
    }
    if (strncmp(name, "pinned:", 7) == 0) {
        bool is_live = ductile_query_block(p->s.f.allocator, address, &info) == DUCTILE_OK;
        *out = (info.flags & DUCTILE_BLOCK_PINNED) != 0;
        return is_live;
    }
    if (strncmp(name, "backed:", 7) == 0) {
        *out = ductile_virtual_access(p->s.f.gpu, address, 0) == 3;
        return true;
    }
    return strncmp(name, "address:", 8) == 0;
}

typedef struct mapped_sum {
    ductile_stream stream;
    uint64_t bytes;
} mapped_sum;

static int add_mapped(void *user, const ductile_block_info *block) {
    mapped_sum *sum = user;
    bool is_mapped = block->state == DUCTILE_BLOCK_LIVE || block->state == DUCTILE_BLOCK_FREE ||
                     block->state == DUCTILE_BLOCK_PENDING;
    sum->bytes += is_mapped && block->stream == sum->stream ? block->size : 0;
    return 0;
}

/* "mapped:1": memory of stream 1, live or not. */
static bool of_stream(const player *p, const char *name, uint64_t *out) {
    uint64_t slot = 0;
    if (strncmp(name, "mapped:", 7) != 0 || !script_number(name + 7, &slot) || slot > 4) {
        return false;
    }
    mapped_sum sum = {.stream = p->s.slots[slot].stream};
    bool is_walked = ductile_walk(p->s.f.allocator, NULL, add_mapped, &sum) == DUCTILE_OK;
    *out = sum.bytes;
    return is_walked;
}

/* is_since: it counts from the latest note. */
static const char *figure(const player *p, const char *name, uint64_t *out, bool *is_since) {
    bool is_importers = strncmp(name, "importer:", 9) == 0;
    ductile_stats stats = fixture_stats(is_importers ? p->s.ends.importer : p->s.f.allocator);
    bool is_call = strncmp(name, "calls:", 6) == 0;
    *is_since = is_call || strcmp(name, "host_waits") == 0;
    bool is_known =
        *is_since ? count_calls(p, is_call ? name + 6 : name, out)
                  : statistic(&stats, name + (is_importers ? 9 : 0), out) ||
                        figure_of_sleep(p, name, out) || figure_of_asked(p, name, out) ||
                        figure_of_sharing(p, name, out) || of_device(p, name, out) ||
                        of_pool(p, name, out) || of_block(p, name, out) || of_stream(p, name, out);
    NEED(is_known, "no figure is called %s", name);
    return NULL;
}

/* ---- Comparing ----------------------------------------------------------------------------- */

/* "expect FIGURE = VALUE"; "+ VALUE" and "- VALUE": more or less than at the latest note. */
VERB(play_expect, "expect") {
    uint64_t got = 0;
    uint64_t value = 0;
    uint64_t before = 0;
    bool is_since = false;
    const char *how = word_at(w, 2);
    if (p->how.is_lenient) {
        return NULL;
    }
    NEED(w->n == 4, "an expectation has four words");
    TRY(figure(p, w->at[1], &got, &is_since));
    TRY(names_value(&p->names, w->at[3], &value));
    bool is_change = strcmp(how, "+") == 0 || strcmp(how, "-") == 0;
    if (is_change) {
        NEED(statistic(&p->noted, w->at[1], &before) ||
                 of_state(&p->noted_state, w->at[1], &before),
             "only statistics and what the device has are noted");
        value = how[0] == '+' ? before + value : before - value;
    }
    NEED(words_compare(got, is_change ? "=" : how, value), "it is %llu (%s %llu)",
         (unsigned long long)got, how, (unsigned long long)value);
    return NULL;
}
