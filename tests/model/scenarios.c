/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/model/scenarios.h"

#include "tests/model/child.h"
#include "tests/model/player.h"
#include "tests/support/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const schedules[] = {"eager", "lagging", "lazy", "random"};

typedef struct one_play {
    const scenario *of;
    play_setup how;
} one_play;

typedef struct tally {
    uint64_t scenarios, plays, operations, findings;
} tally;

static const char *play(void *user, bool trace, uint64_t *n_operations) {
    one_play *it = user;
    it->how.is_listed = trace;
    return player_run(it->of, &it->how, n_operations);
}

static uint64_t play_once(one_play *it, const scenarios_setup *setup, tally *t) {
    outcome o = child_run(play, it, setup->is_listed);
    t->plays++;
    t->operations += o.n_operations;
    if (o.is_broken) {
        t->findings++;
        (void)printf("%s, %s", it->of->name, schedules[it->how.schedule]);
        if (it->how.fault > 0) {
            (void)printf(", call %llu fails", (unsigned long long)it->how.fault);
        }
        (void)printf(": %s\n", o.why);
    }
    return o.n_operations;
}

/* Until no call is left that could fail: then as much is done as without a fault. */
static void play_with_faults(one_play *it, const scenarios_setup *setup, tally *t) {
    enum { MOST = 4000 };
    for (it->how.fault = 1; it->how.fault < MOST; it->how.fault += setup->fault_step) {
        if (play_once(it, setup, t) == 0) {
            return;
        }
    }
}

static void play_all(const scenario *of, const scenarios_setup *setup, tally *t) {
    t->scenarios++;
    for (int i = 0; i < 4; i++) {
        bool is_asked = setup->schedule == NULL
                            ? (of->schedules >> i & 1) != 0 || setup->detects_only
                            : strcmp(setup->schedule, schedules[i]) == 0;
        one_play it = {of,
                       {.schedule = (ductile_schedule)i,
                        .conf = setup->conf,
                        .detects_only = setup->detects_only,
                        .is_lenient = setup->detects_only || setup->conf != NULL ||
                                      setup->fault_step > 0 || (of->schedules >> i & 1) == 0}};
        if (is_asked && setup->fault_step > 0) {
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
    tally t = {0};
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
