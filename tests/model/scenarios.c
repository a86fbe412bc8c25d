/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/scenarios.h"

#include "tests/model/child.h"
#include "tests/model/player.h"
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct one_play {
    const scenario *of;
    play_setup how;
} one_play;

typedef struct counts {
    uint64_t scenarios, plays, operations, findings;
} counts;

static const char *play(void *user, bool trace, uint64_t *n_operations) {
    one_play *it = user;
    it->how.is_listed = trace;
    return player_run(it->of, &it->how, n_operations);
}

static void print_finding(const one_play *it, const outcome *o) {
    const play_fault *f = &it->how.fault;
    (void)printf("%s, %s", it->of->name, schedule_names[it->how.schedule]);
    if (f->nth > 0) {
        (void)printf(", call %llu%s%s answers %d%s, effect %d%s", (unsigned long long)f->nth,
                     f->call != NULL ? " of " : "", f->call != NULL ? f->call : "", f->code,
                     f->persistent ? " from then on" : "", f->effect,
                     f->stays ? ", also at the end" : "");
    }
    (void)printf(": %s\n", o->why);
}

static uint64_t play_once(one_play *it, const scenarios_setup *setup, counts *t) {
    outcome o = child_run(play, it, setup->is_listed);
    t->plays++;
    t->operations += o.n_operations;
    if (o.is_broken) {
        t->findings++;
        print_finding(it, &o);
    }
    return o.n_operations;
}

/* Until no call is left that could fail: then as much is done as without a fault. */
static void play_with_faults(one_play *it, const scenarios_setup *setup, counts *t) {
    enum { MOST = 4000 };
    it->how.fault = (play_fault){.nth = 1, .code = 1};
    for (; it->how.fault.nth < MOST; it->how.fault.nth += setup->fault_step) {
        if (play_once(it, setup, t) == 0) {
            return;
        }
    }
}

/* ---- Every call of every kind -------------------------------------------------------------- */

/* "Done, then the error" where the caller learns the name of what was made, and where the driver is
 * not documented to do all or nothing; "done in part" where a call is about several things. */
static int count_effects(const char *call) {
    static const char *const done[] = {"phys_release",  "address_free", "event_record",
                                       "event_destroy", "event_sync",   "stream_sync",
                                       "context_sync"};
    bool has_parts = strcmp(call, "unmap") == 0 || strcmp(call, "set_access") == 0 ||
                     strcmp(call, "copy_batch") == 0;
    int n = has_parts ? 3 : 1;
    for (size_t i = 0; i < sizeof done / sizeof *done; i++) {
        n += strcmp(call, done[i]) == 0;
    }
    return n;
}

static const int codes[] = {DVMM_INVALID_VALUE, DVMM_OUT_OF_MEMORY, DVMM_UNKNOWN};

enum { N_WHOLE_WAYS = 3, N_WAYS = 12 /* of one effect */ };

/* The first ways are of the whole driver: the context is lost; no call works from then on. The
 * others are of calls of the site's kind: with each code, once or from then on. */
static play_fault way_to_fail(const fault_site *site, uint64_t order, int way) {
    if (way < N_WHOLE_WAYS) {
        return (play_fault){.nth = order,
                            .code = way == 0 ? DVMM_ILLEGAL_ADDRESS : DVMM_UNKNOWN,
                            .persistent = way > 0,
                            .stays = site->in_end || way == 2};
    }
    way -= N_WHOLE_WAYS;
    return (play_fault){.call = dvmm_call_name(site->call),
                        .nth = site->nth,
                        .code = codes[way % 3],
                        .persistent = way / 3 % 2 != 0,
                        .stays = way / 6 % 2 != 0,
                        .effect = way / N_WAYS};
}

static bool tries_all(void) {
    return getenv("DUCTILE_TEST_ALL") != NULL;
}

/* The codes come by turns. Once and from then on, mended and through the end: that is enough for
 * most places to meet all. */
static bool is_turn(const fault_site *site, const play_fault *f) {
    uint64_t way = f->persistent + 2u * f->stays + (unsigned)f->effect;
    return f->call == NULL || f->code == codes[(site->nth + (IS_SANITIZED ? 0 : way)) % 3];
}

/* A call from a new place fails in every way, with one code each. Another fails with each code, and
 * all after it; but not in sanitized runs, nor with other options, which are to lead to other
 * places. The whole sweep is for DUCTILE_TEST_ALL=1. */
static bool is_tried(const fault_site *site, const play_fault *f, const char *conf) {
    rng r = rng_seeded(site->nth + (uint64_t)site->call);
    bool is_drawn = f->persistent && f->effect == 0 && f->stays == rng_percent(&r, 50);
    bool is_lost = f->code == DVMM_ILLEGAL_ADDRESS;
    if (!f->stays && site->in_end) {
        return false;
    }
    if (site->is_new) {
        return tries_all() || is_turn(site, f);
    }
    return tries_all() || (!IS_SANITIZED && conf == NULL && (is_drawn || is_lost));
}

/* In memory that the children share. */
typedef struct sweep_state {
    one_play *it;
    fault_sites sites;
    size_t now;        /* the site whose call fails */
    play_fault latest; /* how it did */
    uint64_t n_plays;
} sweep_state;

/* Several plays in a process, one after the other, until one finds something. */
static const char *play_site(void *user, bool trace, uint64_t *n_operations) {
    sweep_state *s = user;
    const fault_site *site = &s->sites.list[s->now];
    int n_ways = N_WHOLE_WAYS + count_effects(dvmm_call_name(site->call)) * N_WAYS;
    for (int way = 0; way < n_ways; way++) {
        s->latest = way_to_fail(site, s->now + 1, way);
        if (is_tried(site, &s->latest, s->it->how.conf)) {
            uint64_t before = *n_operations;
            s->it->how.fault = s->latest;
            s->n_plays++;
            TRY(play(s->it, trace, n_operations));
            NEED(*n_operations > before, "the call was never made");
        }
    }
    return NULL;
}

static void play_all_sites(sweep_state *s, const scenarios_setup *setup, counts *t) {
    for (s->now = 0; s->now < s->sites.n; s->now++) {
        outcome o = child_run(play_site, s, setup->is_listed);
        t->operations += o.n_operations;
        if (o.is_broken) {
            t->findings++;
            s->it->how.fault = s->latest;
            print_finding(s->it, &o);
        }
    }
    t->plays += s->n_plays;
}

static void sweep(one_play *it, const scenarios_setup *setup, counts *t) {
    sweep_state *s =
        mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED) {
        command_refuse("no host memory");
    }
    s->it = it;
    it->how.sites = &s->sites;
    (void)play_once(it, setup, t);
    it->how.sites = NULL;
    play_all_sites(s, setup, t);
    (void)munmap(s, sizeof *s);
}

static void play_all(const scenario *of, const scenarios_setup *setup, counts *t) {
    t->scenarios++;
    for (int i = 0; i < 4; i++) {
        bool is_asked = setup->schedule == NULL
                            ? (of->schedules >> i & 1) != 0 || setup->detects_only
                            : strcmp(setup->schedule, schedule_names[i]) == 0;
        one_play it = {of,
                       {.schedule = (ductile_schedule)i,
                        .conf = setup->conf,
                        .detects_only = setup->detects_only,
                        .is_lenient = setup->detects_only || setup->conf != NULL ||
                                      setup->fault_step > 0 || setup->sweeps ||
                                      (of->schedules >> i & 1) == 0}};
        if (is_asked && setup->sweeps) {
            sweep(&it, setup, t);
        } else if (is_asked && setup->fault_step > 0) {
            play_with_faults(&it, setup, t);
        } else if (is_asked) {
            (void)play_once(&it, setup, t);
        }
    }
}

static bool has_name(const script *all, const char *name) {
    bool is_name = false;
    for (size_t i = 0; i < all->n && name != NULL; i++) {
        is_name |= strcmp(all->all[i].name, name) == 0;
    }
    return is_name;
}

static bool is_chosen(const char *name, const char *only, bool is_name) {
    return only == NULL || (is_name ? strcmp(name, only) == 0 : strstr(name, only) != NULL);
}

bool scenarios_run(const scenarios_setup *setup) {
    script all;
    counts t = {0};
    const char *why = script_read(&all, setup->path);
    if (why != NULL) {
        command_refuse(why);
    }
    bool is_name = has_name(&all, setup->only);
    for (size_t i = 0; i < all.n; i++) {
        if (is_chosen(all.all[i].name, setup->only, is_name)) {
            play_all(&all.all[i], setup, &t);
        }
    }
    if (t.scenarios == 0) {
        command_refuse("no scenario has that name");
    }
    free(all.all);
    free(all.text);
    command_figure("scenarios", t.scenarios);
    command_figure("plays", t.plays);
    command_figure("operations", t.operations);
    command_figure("findings", t.findings);
    return t.findings == 0;
}
