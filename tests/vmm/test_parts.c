/* SPDX-License-Identifier: Apache-2.0 */
/* The handle store, the host arena, address ranges, markers and what is asked of device and kernel,
 * in text (parts.txt): what they hold and count, what they ask of the driver, and what a refusal
 * leaves. */
#include "tests/vmm/played.h"
#include "vmm/driver/probe.h"
#include "vmm/handle.h"
#include "vmm/host_arena.h"
#include "vmm/host_pages.h"
#include "vmm/marker.h"
#include "vmm/range.h"

#include <sys/stat.h>
#include <unistd.h>

#define GRANULE ((uint64_t)2 << 20)
#define BUDGET ((uint64_t)64 << 30) /* of addresses */

enum { LIMIT = 16, LETTERS = 'z' - 'a' + 1 }; /* granules of the store; names */

static struct {
    device_fixture r;
    dvmm_handle_store store;
    dvmm_host_arena arena;
    dvmm_marker_pool markers;
    ductile_stream stream;
    bool may_leave;
    char root[64]; /* of control groups; "": none */
    dvmm_handle *handles[LETTERS];
    dvmm_host_span spans[LETTERS];
    dvmm_range ranges[LETTERS];
    dvmm_marker *events[LETTERS];
} s;

/* "all": more than the machine has; "nearly": with what others need. */
static bool is_place(const char *text, uint64_t *out) {
    bool is_all = strcmp(text, "all") == 0;
    *out = is_all ? UINT64_MAX : dvmm_host_pages_total() - DVMM_HUGE_PAGE;
    return is_all || strcmp(text, "nearly") == 0;
}

static size_t letter(unsigned i) {
    cr_assert(word[i] != NULL && word[i][0] >= 'a' && word[i][1] == '\0', "%s is no name", word[i]);
    return (size_t)(word[i][0] - 'a');
}

/* ---- The driver ---------------------------------------------------------------------------- */

PLAY_EVERY_DEVICE(&s.r)

/* "used 3": granules of the device. */
static void play_used(void) {
    assert_u64(device_state(&s.r).used_bytes / GRANULE, number(word[1]));
}

/* What fails from here on may leave something. */
static void play_leaves(void) {
    s.may_leave = true;
}

/* "probe", "probe says cuMemMap unsupported": of handles that are exported. */
static void play_probe(void) {
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FD};
    char reason[512] = "";
    const char *says = behind("says");
    gave(dvmm_probe_props(s.r.d, &props, reason, sizeof reason));
    cr_assert(says == NULL ? reason[0] == '\0' || last_is("device_lost")
                           : strstr(reason, says) != NULL,
              "%s", reason);
}

/* ---- The handle store: sizes are granules -------------------------------------------------- */

static void make_handle(size_t name, uint32_t n_granules) {
    const char *within = behind("within");
    dvmm_handle **h = &s.handles[name];
    *h = NULL;
    gave(dvmm_store_create(&s.store, n_granules,
                           within != NULL ? number(within) * GRANULE : UINT64_MAX, h));
    cr_assert(*h == NULL || (*h)->n_granules == n_granules);
}

/* "create a 3", "create a 2 full", "create a 1 within 3" */
static void play_create(void) {
    make_handle(letter(1), (uint32_t)number(word[2]));
}

static void play_put(void) {
    dvmm_store_put(&s.store, s.handles[letter(1)]);
}

/* "cache 1 4 2": one of each, in that order. */
static void play_cache(void) {
    for (unsigned i = 1; i < MOST_WORDS && word[i] != NULL; i++) {
        dvmm_handle *h = NULL;
        assert_ok(dvmm_store_create(&s.store, (uint32_t)number(word[i]), UINT64_MAX, &h));
        dvmm_store_put(&s.store, h);
    }
}

static void took(dvmm_handle *h) {
    s.handles[letter(1)] = h;
    assert_u64(h != NULL ? h->n_granules : 0, number(word[3]));
}

/* "take a 3 2": of at most three granules it is one of two; 0: none. */
static void play_take(void) {
    took(dvmm_store_take(&s.store, (uint32_t)number(word[2])));
}

static void play_exact(void) {
    took(dvmm_store_take_exact(&s.store, (uint32_t)number(word[2])));
}

static void play_shrink(void) {
    gave(dvmm_store_shrink_cache(&s.store, number(word[1]) * GRANULE));
}

static void play_release(void) {
    gave(dvmm_store_release_cached(&s.store, number(word[1]) * GRANULE));
}

static void play_lose(void) {
    dvmm_store_lose(&s.store, s.handles[letter(1)]);
}

/* Mapped at an address that was never unmapped. */
static void play_stuck(void) {
    s.handles[letter(1)]->n_mappings = 1;
}

static void play_pin(void) {
    dvmm_handle_pin(&s.store, s.handles[letter(1)]);
}

static void play_unpin(void) {
    dvmm_handle_unpin(&s.store, s.handles[letter(1)]);
}

static void play_share(void) {
    dvmm_handle_add_export(&s.store, s.handles[letter(1)]);
}

static void play_unshare(void) {
    dvmm_handle_drop_export(&s.store, s.handles[letter(1)]);
}

/* "held 5 cached 3 lost 0", "pinned 2", "handles 1": each total as it is named. */
static void play_total(void) {
    const dvmm_store_totals *t = &s.store.totals;
    const struct {
        const char *name;
        uint64_t now;
    } all[] = {{"held", t->held_bytes / GRANULE},
               {"cached", t->cached_bytes / GRANULE},
               {"lost", t->lost_bytes / GRANULE},
               {"created", t->created_bytes / GRANULE},
               {"pinned", t->pinned_bytes / GRANULE},
               {"exported", t->exported_bytes / GRANULE},
               {"handles", t->n_handles}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *expected = behind(all[i].name);
        cr_assert(expected == NULL || all[i].now == number(expected), "%s is %llu", all[i].name,
                  (unsigned long long)all[i].now);
    }
}

/* "again 3000": released and made; nothing of the host is used up. */
static void play_again(void) {
    uint64_t host_bytes = s.store.totals.host_bytes;
    for (uint64_t n = number(word[1]); n > 0; n--) {
        dvmm_handle *h = NULL;
        assert_ok(dvmm_store_release_cached(&s.store, 0));
        assert_ok(dvmm_store_create(&s.store, 1, UINT64_MAX, &h));
        dvmm_store_put(&s.store, h);
    }
    assert_u64(s.store.totals.host_bytes, host_bytes);
}

/* ---- The host arena ------------------------------------------------------------------------ */

/* "span a 3M 0": it lies at 0; "span a 3M no_host_memory". */
static void play_span(void) {
    dvmm_host_span *span = &s.spans[letter(1)];
    uint64_t size = number(word[2]);
    ductile_status status = dvmm_host_arena_take(&s.arena, size, size, span);
    gave(status);
    if (status == DUCTILE_OK) {
        assert_u64(span->at, number(word[3]));
        memset(s.arena.base + span->at, (int)size, size); /* it is there */
    } else {
        assert_u64(span->size, 0);
    }
}

/* "part a 8M 2M 2M+4M": of 8M, of which 2M would do, there are 4M at 2M. */
static void play_part(void) {
    dvmm_host_span *span = &s.spans[letter(1)];
    assert_ok(dvmm_host_arena_take(&s.arena, number(word[2]), number(word[3]), span));
    assert_u64(span->at, number(word[4]));
    assert_u64(span->size, number(word[5]));
}

static void play_cut(void) {
    dvmm_host_span *span = &s.spans[letter(1)];
    dvmm_host_arena_cut(&s.arena, span, number(word[2]));
    assert_u64(span->size, number(word[3]));
}

static void play_give(void) {
    dvmm_host_arena_give(&s.arena, s.spans[letter(1)]);
}

static void play_grow(void) {
    gave(dvmm_host_arena_reserve(&s.arena, number(word[1])));
}

/* "keep 4M 6M": down to 4M, of which 6M are above. */
static void play_keep(void) {
    uint64_t released = 0;
    gave(dvmm_host_arena_release(&s.arena, number(word[1]), &released));
    assert_u64(released, number(word[2]));
}

static void play_bytes(void) {
    assert_u64(dvmm_host_arena_bytes(&s.arena), number(word[1]));
}

/* "room 4M 2M": from there on. */
static void play_room(void) {
    assert_u64(dvmm_host_arena_rest(&s.arena, number(word[1])), number(word[2]));
}

/* ---- Address ranges ------------------------------------------------------------------------ */

/* "range a 2M 1G 512M": needed, wished and got; 0 where nothing is. */
static void play_range(void) {
    dvmm_range *range = &s.ranges[letter(1)];
    *range = (dvmm_range){1, 1, 0};
    gave(dvmm_range_reserve(s.r.d, number(word[2]), number(word[3]), 0, BUDGET, GRANULE, range));
    assert_u64(range->size, number(word[4]));
    cr_assert_eq(range->addr != 0, range->size != 0);
}

static void play_unrange(void) {
    gave(dvmm_range_free(s.r.d, &s.ranges[letter(1)]));
}

/* Of the process. */
static void play_ranges(void) {
    assert_u64(dvmm_range_process_total(), number(word[1]));
}

/* ---- Markers ------------------------------------------------------------------------------- */

/* "record a", "record_all a": of the context; they may be refused. */
static void recorded(ductile_status status) {
    gave(status);
    cr_assert_eq(s.events[letter(1)] != NULL, status == DUCTILE_OK);
}

static void play_record(void) {
    recorded(dvmm_marker_record(&s.markers, s.stream, &s.events[letter(1)]));
}

static void play_record_all(void) {
    recorded(dvmm_marker_record_context(&s.markers, &s.events[letter(1)]));
}

static void play_query(void) {
    gave(dvmm_marker_query(&s.markers, s.events[letter(1)]));
}

static void play_wait(void) {
    assert_ok(dvmm_marker_wait(&s.markers, s.events[letter(1)]));
}

static void play_wait_on(void) {
    assert_ok(dvmm_marker_wait_on(&s.markers, s.stream, s.events[letter(1)]));
}

static void play_undone(void) {
    cr_assert(!dvmm_marker_is_done(s.events[letter(1)]));
}

static void play_hold(void) {
    dvmm_marker_hold(s.events[letter(1)]);
}

static void play_drop(void) {
    dvmm_marker_drop(&s.markers, s.events[letter(1)]);
}

static void play_same(void) {
    cr_assert_eq(s.events[letter(1)], s.events[letter(2)]);
}

static void play_others(void) {
    cr_assert_neq(s.events[letter(1)]->event, s.events[letter(2)]->event);
}

/* ---- What a container may take: files as the kernel shows them ------------------------------ */

static const char *path_of(const char *name) {
    static char path[256];
    if (s.root[0] == '\0') {
        (void)snprintf(s.root, sizeof s.root, "%s/control_group.XXXXXX", P_tmpdir);
        cr_assert_not_null(mkdtemp(s.root));
    }
    (void)snprintf(path, sizeof path, "%s/%s", s.root, name);
    return path;
}

/* "file job/memory.stat anon 550": one more line of it, in folders that are made. */
static void play_file(void) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s", path_of(word[1]));
    for (char *at = path + strlen(s.root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0700);
        *at = '/';
    }
    FILE *file = fopen(path, "a");
    cr_assert_not_null(file);
    (void)fprintf(file, "%s%s%s\n", word[2], word[3] != NULL ? " " : "",
                  word[3] != NULL ? word[3] : "");
    cr_assert_eq(fclose(file), 0);
}

/* "remains 450", "remains all": of the groups that the file "groups" names, which goes. */
static void play_remains(void) {
    char groups[256];
    (void)snprintf(groups, sizeof groups, "%s", path_of("groups"));
    assert_u64(dvmm_control_group_rest(groups, s.root), number(word[1]));
    (void)unlink(groups);
}

static void remove_root(void) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -r '%s'", s.root);
    cr_assert_eq(system(command), 0);
}

/* ---- Playing ------------------------------------------------------------------------------- */

static const verb verbs[] = {
    OF_EVERY_DEVICE, VERB(leaves),     VERB(probe), VERB(used),   VERB(create),  VERB(put),
    VERB(cache),     VERB(take),       VERB(exact), VERB(shrink), VERB(release), VERB(lose),
    VERB(stuck),     VERB(pin),        VERB(unpin), VERB(share),  VERB(unshare), VERB(total),
    VERB(again),     VERB(span),       VERB(part),  VERB(cut),    VERB(give),    VERB(grow),
    VERB(keep),      VERB(bytes),      VERB(room),  VERB(range),  VERB(unrange), VERB(ranges),
    VERB(record),    VERB(record_all), VERB(query), VERB(wait),   VERB(wait_on), VERB(undone),
    VERB(hold),      VERB(drop),       VERB(same),  VERB(others), VERB(file),    VERB(remains)};

static void open_parts(unsigned schedule, const scenario *claim) {
    (void)claim;
    memset(&s, 0, sizeof s);
    device_open_scheduled(&s.r, (ductile_schedule)schedule, 3, 11);
    dvmm_store_init(&s.store, s.r.d, GRANULE, LIMIT * GRANULE, (dvmm_phys_props){0});
    dvmm_host_arena_init(&s.arena, s.r.d);
    dvmm_markers_init(&s.markers, s.r.d);
    s.stream = device_stream(&s.r);
}

/* Nothing is left, but for what the store has lost. */
static void close_parts(void) {
    if (s.root[0] != '\0') {
        remove_root();
    }
    if (device_state(&s.r).poisoned != 0) {
        device_abandon(&s.r);
        return;
    }
    bool has_lost = s.store.totals.lost_bytes > 0;
    bool counts = ductile_virtual_faults_fired(s.r.gpu) == 0;
    device_recover(&s.r);
    dvmm_store_fini(&s.store);
    assert_ok(dvmm_host_arena_fini(&s.arena));
    assert_ok(dvmm_context_sync(s.r.d));
    assert_ok(dvmm_markers_fini(&s.markers));
    assert_ok(dvmm_stream_destroy(s.r.d, s.stream));
    assert_u64(dvmm_range_process_total(), 0);
    cr_assert(!counts || ductile_virtual_count(s.r.gpu, "host_register") ==
                             ductile_virtual_count(s.r.gpu, "host_unregister"));
    if (has_lost || s.may_leave) {
        device_abandon(&s.r);
    } else {
        device_close(&s.r);
    }
}

PLAY_EACH(parts, PARTS, open_parts, close_parts)
