/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is order of work on one stream order of use, when the memory has two addresses? Ductile maps
 * recycled memory at its new address while work on the old one is still under way.
 * Each probe writes by one address and looks by the other, many times, and counts words that are
 * not what the order of the stream promises.
 *
 *     alias_probes [--device N] [--rounds N] [--probe NAME]
 *
 * Prints "probe | rounds | mismatches | promise". A probe whose promise is "hazard" leaves out the
 * wait that a dependent kernel owes its predecessor: it shows what an order that was not asked for
 * looks like, and its mismatches are no failure; the same holds for "event", which asks whether an
 * event between two kernels makes up for the wait. The first probe has to find mismatches. Ends
 * with 1 when a promise was broken, 77 without a device, 3 when it ran out of time.
 */
#include "tests/conformance/alias_bench.h"
#include "tests/support/command.h"
#include "vmm/cuda/open.h"

#include <stdio.h>
#include <string.h>

enum { SECONDS_IN_ALL = 270 };

static const char *promise_word(alias_promise p) {
    static const char *const words[] = {"kept", "event", "hazard", "must differ"};
    return words[p];
}

static bool is_broken(alias_promise p, uint64_t mismatches) {
    return (p == PROMISE_KEPT && mismatches > 0) || (p == PROMISE_DIFFERENT && mismatches == 0);
}

static const char *run_rounds(alias_bench *t, const alias_probe *p, unsigned rounds,
                              uint64_t *mismatches) {
    TRY(alias_clear_counter(t));
    for (unsigned i = 0; i < rounds; i++) {
        TRY(alias_play(t, p->steps));
    }
    return alias_read_counter(t, mismatches);
}

/* Returns 0 when nothing that was promised was broken. An error is final: the device may be lost.
 */
static int run_probe(alias_bench *t, const alias_probe *p, unsigned rounds) {
    uint64_t mismatches = 0;
    if (p->is_dependent && !gpu_has_dependent_launch(t->gpu)) {
        (void)printf("%s | 0 | - | not supported here\n", p->name);
        return 0;
    }
    const char *why = run_rounds(t, p, rounds, &mismatches);
    if (why != NULL) {
        (void)printf("%s | error | %s (driver's code %d)\n", p->name, why, dvmm_last_code());
        return -1;
    }
    (void)printf("%s | %u | %llu | %s\n", p->name, rounds, (unsigned long long)mismatches,
                 promise_word(p->promise));
    (void)fflush(stdout);
    return is_broken(p->promise, mismatches) ? COMMAND_BROKEN : 0;
}

/* ---- The program --------------------------------------------------------------------------- */

typedef struct request {
    int device;
    uint64_t rounds;
    const char *only;
} request;

static void read_request(request *r, int argc, char **argv) {
    const command_option options[] = {
        {"--device", .device = &r->device},
        {"--rounds", .number = &r->rounds},
        {"--probe", .text = &r->only, .placeholder = "NAME"},
    };
    command_read("alias_probes", options, sizeof options / sizeof *options, argc, argv);
}

static int run_probes(alias_bench *t, const request *r) {
    int result = 0;
    size_t n_run = 0;
    for (size_t i = 0; i < n_alias_probes; i++) {
        if (r->only != NULL && strcmp(r->only, alias_probes[i].name) != 0) {
            continue;
        }
        int code = run_probe(t, &alias_probes[i], (unsigned)r->rounds);
        if (code < 0) {
            return COMMAND_BROKEN;
        }
        result = code != 0 ? code : result;
        n_run++;
    }
    if (n_run == 0) {
        command_refuse("no probe has that name");
    }
    return result;
}

static int run_on_device(const request *r, alias_bench *t) {
    const char *why = gpu_open(r->device, &t->gpu);
    why = why == NULL ? alias_make(t) : why;
    if (why != NULL) {
        return command_end(why);
    }
    const dvmm_caps *caps = dvmm_get_caps(t->driver);
    (void)printf("# %s, driver %s, %u handles\n", caps->name, caps->driver_version, ALIAS_HANDLES);
    (void)printf("# probe | rounds | mismatches | promise\n");
    int result = run_probes(t, r);
    if (dvmm_usable(t->driver) == DUCTILE_OK) {
        alias_drop(t);
        gpu_close(t->gpu);
    }
    return result;
}

int main(int argc, char **argv) {
    static alias_bench t;
    request r = {.rounds = 200};
    char reason[512];
    read_request(&r, argc, argv);
    if (dvmm_open_cuda(r.device, &t.driver, reason, sizeof reason) != DUCTILE_OK) {
        command_skip(reason);
    }
    command_end_after(SECONDS_IN_ALL);
    int result = run_on_device(&r, &t);
    dvmm_close(t.driver);
    return result;
}
