/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims in text, which a test file plays by verbs of its own: each is operations between
 * semicolons, of a verb and its words. tests/support/script.h says how such a file looks.
 */
#ifndef TESTS_VMM_PLAYED_H
#define TESTS_VMM_PLAYED_H

#include "tests/support/device_fixture.h"
#include "tests/support/numbered.h"
#include "tests/support/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WORDS = 8 };

typedef struct verb {
    const char *name;
    void (*play)(void);
} verb;

#define VERB(name)                                                                                 \
    { #name, play_##name }

static char *word[MOST_WORDS]; /* of the operation */

static inline bool is(unsigned i, const char *text) {
    return word[i] != NULL && strcmp(word[i], text) == 0;
}

/* What a word of the file means in numbers. False: none. */
static bool is_place(const char *text, uint64_t *out);

/* "4096", "2M-512", "pair+2M" */
static inline uint64_t number(const char *text) {
    uint64_t sum = 0;
    char piece[32];
    for (char sign = '+'; text != NULL && *text != '\0';) {
        uint64_t part = 0;
        size_t n = strcspn(text, "+-");
        (void)snprintf(piece, sizeof piece, "%.*s", (int)n, text);
        cr_assert(is_place(piece, &part) || script_number(piece, &part), "%s is no number", piece);
        sum = sign == '+' ? sum + part : sum - part;
        sign = text[n];
        text += n + (sign != '\0');
    }
    return sum;
}

/* The word behind `name`, or NULL. */
static inline const char *behind(const char *name) {
    for (unsigned i = 1; i + 1 < MOST_WORDS; i++) {
        if (is(i, name)) {
            return word[i + 1];
        }
    }
    return NULL;
}

static inline bool last_is(const char *name) {
    unsigned last = 0;
    while (last + 1 < MOST_WORDS && word[last + 1] != NULL) {
        last++;
    }
    return is(last, name);
}

/* The operation gave what the last word says; nothing says that it succeeded. */
static inline void gave(ductile_status status) {
    static const struct {
        const char *name;
        ductile_status status;
    } all[] = {{"refused", DUCTILE_ERR_CAPTURING},
               {"unsupported", DUCTILE_ERR_UNSUPPORTED},
               {"failed", DUCTILE_ERR_DRIVER},
               {"device_lost", DUCTILE_ERR_DEVICE_LOST}};
    ductile_status expected = DUCTILE_OK;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        expected = last_is(all[i].name) ? all[i].status : expected;
    }
    assert_status(status, expected);
}

/* ---- Of every device ----------------------------------------------------------------------- */

/* "fault map", "fault unmap effect 2", "fault phys_create code 2 nth 3 on"; "fault any" */
static inline void fault(const device_fixture *r) {
    const char *nth = behind("nth");
    const char *code = behind("code");
    const char *effect = behind("effect");
    const ductile_virtual_fault it = {.struct_size = sizeof it,
                                      .call = is(1, "any") ? NULL : word[1],
                                      .nth = nth != NULL ? number(nth) : 1,
                                      .code = code != NULL ? (int)number(code) : DVMM_INVALID_VALUE,
                                      .effect = effect != NULL ? (int)number(effect) : 0,
                                      .persistent = last_is("on")};
    assert_ok(ductile_virtual_inject(r->gpu, &it));
}

/* "called unmap 2": since the beginning. */
static inline void called(const device_fixture *r) {
    assert_u64(ductile_virtual_count(r->gpu, word[1]), number(word[2]));
}

/* "fired 4": so often the fault. */
static inline void fired(const device_fixture *r) {
    assert_u64(ductile_virtual_faults_fired(r->gpu), number(word[1]));
}

/* "mark", and "asked 0": driver calls since. */
static uint64_t marked;

static inline void mark(const device_fixture *r) {
    marked = device_state(r).calls;
}

static inline void asked(const device_fixture *r) {
    assert_u64(device_state(r).calls - marked, number(word[1]));
}

#define OF_EVERY_DEVICE VERB(fault), VERB(mend), VERB(called), VERB(fired), VERB(mark), VERB(asked)

/* The verbs of these names, for a file whose device is `r`. */
#define PLAY_EVERY_DEVICE(r)                                                                       \
    static void play_fault(void) {                                                                 \
        fault(r);                                                                                  \
    }                                                                                              \
    static void play_mend(void) {                                                                  \
        device_recover(r);                                                                         \
    }                                                                                              \
    static void play_called(void) {                                                                \
        called(r);                                                                                 \
    }                                                                                              \
    static void play_fired(void) {                                                                 \
        fired(r);                                                                                  \
    }                                                                                              \
    static void play_mark(void) {                                                                  \
        mark(r);                                                                                   \
    }                                                                                              \
    static void play_asked(void) {                                                                 \
        asked(r);                                                                                  \
    }

/* ---- Playing ------------------------------------------------------------------------------- */

static const scenario *now;
static unsigned now_schedule;
static char now_text[64]; /* what is played */

static inline void play_operation(char *text, const verb *verbs, size_t n) {
    char *rest_of = NULL;
    for (unsigned i = 0; i < MOST_WORDS; i++) {
        word[i] = strtok_r(i == 0 ? text : NULL, " ", &rest_of);
    }
    for (size_t i = 0; i < n; i++) {
        if (is(0, verbs[i].name)) {
            verbs[i].play();
            return;
        }
    }
    cr_assert_fail("what is %s?", word[0]);
}

static inline void play_lines(const scenario *claim, unsigned schedule, const verb *verbs,
                              size_t n) {
    char text[1024];
    now = claim;
    now_schedule = schedule;
    for (size_t i = 0; i < claim->n_lines; i++) {
        char *rest_of = NULL;
        (void)snprintf(text, sizeof text, "%s", claim->lines[i]);
        for (char *at = strtok_r(text, ";", &rest_of); at != NULL;
             at = strtok_r(NULL, ";", &rest_of)) {
            (void)snprintf(now_text, sizeof now_text, "line %u:%s", claim->numbers[i], at);
            play_operation(at, verbs, n);
        }
    }
}

static inline void say_what_failed(void) {
    if (now != NULL) {
        cr_log_error("%s: schedule %u, %s", now->name, now_schedule, now_text);
    }
}

/* A test of each claim of the file, under each schedule that it names, by the verbs of `verbs`
 * between open(schedule, claim) and close(). A file that cannot be read fails one test: where the
 * parameters are made, nothing can fail. */
#define PLAY_EACH(suite, file, open, close)                                                        \
    ParameterizedTestParameters(suite, hold) {                                                     \
        script claims;                                                                             \
        bool is_read = script_read(&claims, file) == NULL;                                         \
        return numbered(0, is_read ? claims.n : 1);                                                \
    }                                                                                              \
    ParameterizedTest(uint64_t *i, suite, hold, .fini = say_what_failed) {                         \
        script claims;                                                                             \
        assert_fine(script_read(&claims, file));                                                   \
        const scenario *claim = &claims.all[*i];                                                   \
        for (unsigned schedule = 0; schedule < 4; schedule++) {                                    \
            if ((claim->schedules >> schedule & 1) != 0) {                                         \
                open(schedule, claim);                                                             \
                play_lines(claim, schedule, verbs, sizeof verbs / sizeof *verbs);                  \
                close();                                                                           \
                now = NULL;                                                                        \
            }                                                                                      \
        }                                                                                          \
        free(claims.all);                                                                          \
        free(claims.text);                                                                         \
    }

#endif
