/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of callbacks that are asked for memory,
 * and of the report of a refusal. */
#include "tests/model/player.h"

#include <ductile_pressure.h>

#include <stdio.h>
#include <string.h>

/* What it does when it is asked for the first time, the second, ...; at last nothing. */
static const char *turn_of(helper *h) {
    const char *turn = h->turns;
    for (uint64_t i = 0; i < h->n_asked && turn != NULL; i++) {
        turn = strchr(turn, '|');
        turn = turn != NULL ? turn + 1 : NULL;
    }
    h->n_asked++;
    return turn != NULL ? turn : "nothing";
}

static void act(player *p, const char *turn) {
    char text[sizeof p->helpers[0].turns];
    char *rest = NULL;
    (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(turn, "|"), turn);
    for (char *each = strtok_r(text, ",", &rest); each != NULL; each = strtok_r(NULL, ",", &rest)) {
        const char *why = player_do(p, each);
        p->s.wrong = p->s.wrong != NULL ? p->s.wrong : why;
    }
}

/* Returns what the program has freed meanwhile. */
static uint64_t ask(void *user, ductile_allocator *a, uint64_t missing, ductile_stream stream) {
    helper *h = user;
    player *p = h->of;
    uint64_t before = p->s.live_bytes;
    (void)a;
    const char *turn = turn_of(h);
    p->missing = missing;
    p->asking = stream;
    if (p->n_asked + 1 < sizeof p->asked) {
        p->asked[p->n_asked++] = h->name[0];
    }
    if (strncmp(h->turns, "lies", 4) == 0) {
        return 1;
    }
    if (strncmp(turn, "nothing", 7) != 0) {
        act(p, turn + strspn(turn, " "));
    }
    return p->s.live_bytes < before ? before - p->s.live_bytes : 0;
}

/* "helper a -5 free b | free c , d = alloc 1M 0": a callback of that priority, and what it does
 * each time that it is asked; "=> STATUS" is the answer of such an operation; "nothing"; "lies",
 * that it has given something. */
VERB(play_helper, "helper") {
    int priority = 0;
    NEED(p->n_helpers < MOST_HELPERS && w->n > 3, "no helper");
    NEED(sscanf(word_at(w, 2), "%d", &priority) == 1, "no priority");
    helper *h = &p->helpers[p->n_helpers++];
    *h = (helper){.of = p};
    (void)snprintf(h->name, sizeof h->name, "%s", word_at(w, 1));
    size_t n = 0;
    for (size_t i = 3; i < w->n && n < sizeof h->turns; i++) {
        const char *word = strcmp(w->at[i], "=>") == 0 ? "->" : w->at[i];
        n += (size_t)snprintf(h->turns + n, sizeof h->turns - n, "%s ", word);
    }
    return answers(p, w, ductile_add_oom_callback(p->s.f.allocator, ask, h, priority, &h->id));
}

/* "dismiss a": the callback is removed. */
VERB(play_dismiss, "dismiss") {
    for (size_t i = 0; i < p->n_helpers; i++) {
        if (strcmp(p->helpers[i].name, word_at(w, 1)) == 0) {
            return answers(p, w, ductile_remove_oom_callback(p->s.f.allocator, p->helpers[i].id));
        }
    }
    return complain("no helper has that name");
}

/* ---- Figures ------------------------------------------------------------------------------- */

#define FIELD(name) WORDS_FIELD(ductile_oom_report, name)

static const words_field fields[] = {FIELD(number),
                                     FIELD(requested_bytes),
                                     FIELD(rounded_bytes),
                                     FIELD(missing_bytes),
                                     FIELD(limit_bytes),
                                     FIELD(device_bytes),
                                     FIELD(others_bytes),
                                     FIELD(device_free_bytes),
                                     FIELD(held_bytes),
                                     FIELD(live_bytes),
                                     FIELD(free_bytes),
                                     FIELD(pending_bytes),
                                     FIELD(cached_bytes),
                                     FIELD(quarantined_bytes),
                                     FIELD(unproven_bytes),
                                     FIELD(pinned_bytes),
                                     FIELD(n_holders),
                                     FIELD(largest_free_bytes),
                                     FIELD(free_blocks_by_size[11]),
                                     FIELD(largest_free_here_bytes)};

/* "oom:held_bytes", of the report of this thread's latest refusal. */
static bool of_report(const player *p, const char *name, uint64_t *out) {
    ductile_oom_report r = {.struct_size = sizeof r};
    (void)!ductile_get_oom_report(p->s.f.allocator, &r);
    if (words_field_of(&r, fields, sizeof fields / sizeof *fields, name, out)) {
        return true;
    }
    *out = (uint64_t)r.captured;
    return strcmp(name, "captured") == 0;
}

/* "asked:aab": those who were asked, in this order, are 1 (or not, 0); "missing", as the latest was
 * told; "asking:1": whether that was stream 1. */
bool figure_of_asked(const player *p, const char *name, uint64_t *out) {
    if (strncmp(name, "oom:", 4) == 0) {
        return of_report(p, name + 4, out);
    }
    uint64_t slot = 0;
    if (strncmp(name, "asking:", 7) == 0 && script_number(name + 7, &slot) && slot < N_NAMED) {
        *out = p->asking == p->s.slots[slot].stream;
        return true;
    }
    *out = p->missing;
    if (strncmp(name, "asked:", 6) == 0) {
        *out = strcmp(p->asked, name + 6) == 0;
        return true;
    }
    return strcmp(name, "missing") == 0;
}
