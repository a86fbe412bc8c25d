/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a scenario (script.h) on the model's subject: blocks and addresses have names there. */
#ifndef TESTS_MODEL_PLAYER_H
#define TESTS_MODEL_PLAYER_H

#include "tests/model/subject.h"
#include "tests/support/fault_sites.h"
#include "tests/support/script.h"
#include "tests/support/words.h"

enum { MOST_AWAITED = 8, MOST_HELPERS = 4, MOST_TAGS = 4 };

/* A driver call that fails. */
typedef struct play_fault {
    const char *call; /* NULL: of any kind */
    uint64_t nth;     /* of its kind; 0: none fails */
    int code;
    int effect;      /* as in ductile_virtual_fault */
    bool persistent; /* all later ones fail, too */
    bool stays;      /* through the end, with live blocks; else the driver works again before it */
} play_fault;

/* How a scenario is played. */
typedef struct play_setup {
    ductile_schedule schedule;
    const char *conf; /* options behind those of the scenario; NULL: none */
    /* Other options, or a fault, or an allocator that is broken on purpose: what the scenario says
     * of statuses and figures need not hold, and steps that cannot be made are left out. */
    bool is_lenient;
    bool detects_only; /* what the device sees is all that counts */
    play_fault fault;
    fault_sites *sites; /* the driver calls that could fail are written down there; or NULL */
    bool is_listed;     /* each operation is printed */
} play_setup;

/* NULL, or what is wrong; then everything is left as it is, and the process had better end. */
const char *player_run(const scenario *of, const play_setup *how, uint64_t *n_operations);

/* ---- What the files of the player share ----------------------------------------------------- */

/* An operation of another thread, between a driver call and what its caller does next. */
typedef struct awaited {
    char call[WORD_BYTES];
    char operation[160];
} awaited;

/* A callback that is asked for memory. */
typedef struct helper {
    struct player *of;
    char name[WORD_BYTES];
    char turns[160]; /* operations, as in "between"; a turn ends with "|" */
    uint64_t id, n_asked;
} helper;

typedef struct player {
    subject s;
    const scenario *of;
    play_setup how;
    ductile_schedule schedule; /* now */
    uint64_t lag;
    names names; /* of blocks */
    ductile_stats noted;
    ductile_virtual_state noted_state;
    uint64_t noted_calls[DVMM_N_CALLS];
    ductile_sleep_report report; /* of the latest set that slept or woke */
    awaited awaited[MOST_AWAITED];
    size_t n_awaited;
    helper helpers[MOST_HELPERS];
    size_t n_helpers;
    char asked[32]; /* names of those who were asked */
    size_t n_asked;
    uint64_t missing;
    ductile_stream asking;
    char log[4096]; /* lines since the latest note */
    uint64_t n_logged;
    passing tags[MOST_TAGS]; /* that were exported or imported */
    size_t n_tags;
    uint64_t n_passed;               /* blocks and tags */
    ductile_status told_by_importer; /* its first failure */
    size_t noted_descriptors;
    bool is_over;    /* the allocator was destroyed */
    bool has_failed; /* the planned fault has come */
    uint64_t n_operations;
} player;

typedef const char *(*player_verb)(player *p, const words *w);

const char *player_do(player *p, const char *operation);
/* From here on the name means that address; NULL: nothing is named. */
const char *player_name(player *p, const char *name, ductile_addr address);
/* A trace of driver calls, in place of the allocator's, which writes down what fails; the user is
 * the player. */
void player_come_between(void *user, dvmm_call call, int code, uint64_t address, uint64_t size);
/* Is it the status that the operation is said to have? */
const char *answers(const player *p, const words *w, ductile_status got);

/* The head of an operation that begins with the word. */
void player_add_verb(const char *word, player_verb verb);
#define VERB(function, word)                                                                       \
    static const char *function(player *p, const words *w);                                        \
    __attribute__((constructor)) static void add_##function(void) {                                \
        player_add_verb(word, function);                                                           \
    }                                                                                              \
    static const char *function(player *p __attribute__((unused)),                                 \
                                const words *w __attribute__((unused)))

/* What the first word means; nothing can be done where no block had that name. */
#define ADDRESS(variable)                                                                          \
    uint64_t variable = 0;                                                                         \
    if (names_value(&p->names, word_at(w, 1), &variable) != NULL) {                                \
        return p->how.is_lenient ? NULL : complain("no block had that name");                      \
    }

/* ---- player_memory.c ---- */

/* A plain pool, by its number; 0 is the default one, which pool_at refuses. */
const char *pool_or_default_at(const words *w, size_t i, unsigned *out);
const char *pool_at(const words *w, size_t i, unsigned *out);
#define POOL(variable)                                                                             \
    unsigned variable = 0;                                                                         \
    TRY(pool_at(w, 1, &variable))

/* ---- player_faults.c ---- */

/* The device is as it was, or what is missing is what the failed calls were about. */
const char *play_end_after_fault(player *p);

/* ---- player_texts.c ---- */

/* A log callback; the user is the player. */
void player_log(void *user, ductile_log_level level, const char *text);

/* ---- player_share.c ---- */

/* Tags that were passed are given back; the importer's end says how that went. */
ductile_status play_end_sharing(player *p);
/* Some block passes, where the driver works again. */
const char *play_pass_once_more(player *p);
bool figure_of_sharing(const player *p, const char *name, uint64_t *out);

/* ---- player_asked.c, player_sleep.c and player_expect.c ---- */

bool figure_of_asked(const player *p, const char *name, uint64_t *out);
bool figure_of_sleep(const player *p, const char *name, uint64_t *out);
/* Calls of that name, or "host_waits", since the latest note. */
bool count_calls(const player *p, const char *name, uint64_t *out);

#endif
