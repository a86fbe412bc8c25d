/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of sets of pools that sleep and wake together. */
#include "tests/model/player.h"

#include <string.h>

enum { N_SETS = N_PLAIN_POOLS + 1 }; /* pool 0 is the default one */

static const struct {
    const char *name;
    ductile_contents contents;
} contents_names[] = {{"keep", DUCTILE_CONTENTS_KEEP},
                      {"drop", DUCTILE_CONTENTS_DROP},
                      {"zero", DUCTILE_CONTENTS_ZERO},
                      {"poison", DUCTILE_CONTENTS_POISON}};

/* POLICY: the word is none of these. */
static ductile_contents contents_of(const char *word) {
    for (size_t i = 0; i < sizeof contents_names / sizeof *contents_names; i++) {
        if (strcmp(word, contents_names[i].name) == 0) {
            return contents_names[i].contents;
        }
    }
    return DUCTILE_CONTENTS_POLICY;
}

static ductile_pool_id id_of(uint64_t pool) {
    return pool == 0 ? (ductile_pool_id){0, 0} : (ductile_pool_id){pool, 7};
}

/* "tag 1 weights keep" */
VERB(play_tag, "tag") {
    uint64_t pool = 0;
    TRY(number_at(w, 1, &pool));
    return answers(p, w,
                   ductile_pool_set_tag(p->s.f.allocator, id_of(pool), word_at(w, 2),
                                        contents_of(word_at(w, 3))));
}

/* ---- The request --------------------------------------------------------------------------- */

typedef struct set_words {
    ductile_sleep_tag tags[MOST_WORDS];
    const char *except[MOST_WORDS];
    ductile_sleep_request request;
    uint64_t bypass;
} set_words;

/* A tag, "weights:zero" with contents of its own. */
static void add_tag(set_words *s, char *word) {
    char *contents = strchr(word, ':');
    if (contents != NULL) {
        *contents++ = '\0';
    }
    s->tags[s->request.n_tags++] =
        (ductile_sleep_tag){word, contents_of(contents != NULL ? contents : "")};
}

/* "all lenient drop except cache bypass 3 weights:zero retain", in any order. */
static const char *read_set(const words *w, set_words *s, char (*text)[WORD_BYTES]) {
    *s = (set_words){.request = {.struct_size = sizeof s->request}};
    for (size_t i = 1; i < w->n; i++) {
        const char *word = w->at[i];
        NEED(strlen(word) < WORD_BYTES, "a word that is too long");
        (void)strcpy(text[i], word);
        if (strcmp(word, "except") == 0) {
            s->except[s->request.n_except_tags++] = word_at(w, ++i);
        } else if (strcmp(word, "bypass") == 0) {
            TRY(number_at(w, ++i, &s->bypass));
            s->request.bypass = id_of(s->bypass);
        } else if (contents_of(word) != DUCTILE_CONTENTS_POLICY) {
            s->request.contents = contents_of(word);
        } else if (strcmp(word, "all") == 0 || strcmp(word, "lenient") == 0 ||
                   strcmp(word, "retain") == 0) {
            s->request.all |= word[0] == 'a';
            s->request.lenient |= word[0] == 'l';
            s->request.retain |= word[0] == 'r';
        } else {
            add_tag(s, text[i]);
        }
    }
    s->request.tags = s->tags;
    s->request.except_tags = s->except;
    return NULL;
}

/* ---- What the model knows of it ------------------------------------------------------------ */

static ductile_pool_info info_of(const player *p, unsigned pool) {
    ductile_pool_info info = {.struct_size = sizeof info};
    ductile_pool_id id = id_of(pool);
    (void)!ductile_list_pools(p->s.f.allocator, &id, &info, 1, NULL);
    return info;
}

static void take_contents(subject *s, unsigned pool, ductile_contents contents) {
    for (size_t i = 0; i < s->m.n; i++) {
        model_block *b = &s->m.blocks[i];
        bool is_new = contents == DUCTILE_CONTENTS_ZERO || contents == DUCTILE_CONTENTS_POISON;
        if (b->pool == pool && is_new) {
            b->pattern = contents == DUCTILE_CONTENTS_ZERO ? 0 : 0xFF;
            b->is_blank = false;
        }
    }
}

static bool is_of_set(const player *p, const set_words *set, unsigned pool) {
    const ductile_sleep_request *r = &set->request;
    ductile_pool_info info = info_of(p, pool);
    bool is_named = r->all && (set->bypass == 0 || set->bypass != pool);
    for (size_t i = 0; i < r->n_tags; i++) {
        is_named |= strcmp(info.tag, r->tags[i].tag) == 0;
    }
    for (size_t i = 0; i < r->n_except_tags; i++) {
        is_named &= strcmp(info.tag, r->except_tags[i]) != 0;
    }
    return is_named;
}

/* All pools of the set have changed, or none. */
static const char *look_at(player *p, unsigned pool, ductile_status status) {
    subject *s = &p->s;
    ductile_pool_info info = info_of(p, pool);
    bool sleeps = info.state == DUCTILE_POOL_ASLEEP;
    bool slept = s->pools[pool].is_paused;
    NEED(status == DUCTILE_OK || sleeps == slept, "pool %u has changed, with %s", pool,
         ductile_status_name(status));
    if (sleeps && slept) {
        return NULL;
    }
    s->pools[pool].keeps_contents = sleeps && info.contents != DUCTILE_CONTENTS_DROP;
    TRY(pool_sleeps(s, pool, sleeps));
    take_contents(s, pool, sleeps ? info.contents : DUCTILE_CONTENTS_POLICY);
    return NULL;
}

/* To the device they have not ended, but use nothing meanwhile. */
static void let_graphs_rest(subject *s, bool rest) {
    for (size_t i = 0; i < N_GRAPHS; i++) {
        if (s->graphs[i].graph != NULL) {
            ductile_virtual_graph_rest(s->graphs[i].graph, rest);
        }
    }
}

static bool is_any_asleep(const subject *s) {
    bool is_any = false;
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        is_any |= s->pools[pool].is_paused;
    }
    return is_any;
}

static const char *call_set(player *p, const words *w, bool pauses) {
    subject *s = &p->s;
    set_words set;
    char text[MOST_WORDS][WORD_BYTES];
    bool is_meant[N_SETS];
    TRY(read_set(w, &set, text));
    p->report = (ductile_sleep_report){.struct_size = sizeof p->report};
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        is_meant[pool] = is_of_set(p, &set, pool);
        if (pauses && is_meant[pool] && !s->pools[pool].is_paused) {
            pool_may_sleep(s, pool);
        }
    }
    s->moving_pool = ANY_POOL;
    let_graphs_rest(s, true);
    ductile_status status = pauses ? ductile_pause_set(s->f.allocator, &set.request, &p->report)
                                   : ductile_resume_set(s->f.allocator, &set.request, &p->report);
    s->moving_pool = 0;
    s->bypass = pauses && status == DUCTILE_OK ? (unsigned)set.bypass : s->bypass;
    for (unsigned pool = 0; pool < N_SETS && fixture_state(&s->f).poisoned == 0; pool++) {
        bool is_same = !is_meant[pool] || (!pauses && !s->pools[pool].is_paused);
        TRY(is_same ? NULL : look_at(p, pool, status));
    }
    let_graphs_rest(s, is_any_asleep(s));
    return answers(p, w, status);
}

VERB(play_sleep, "sleep") {
    return call_set(p, w, true);
}

VERB(play_wake, "wake") {
    return call_set(p, w, false);
}

/* "asleep": a bit for each pool; "host_arena": bytes for contents; "report:pools" and others: of
 * the latest call. */
bool figure_of_sleep(const player *p, const char *name, uint64_t *out) {
    static const words_field fields[] = {
        WORDS_FIELD(ductile_sleep_report, pools),
        WORDS_FIELD(ductile_sleep_report, passed_over),
        WORDS_FIELD(ductile_sleep_report, bytes),
        {"copied", offsetof(ductile_sleep_report, copied_bytes)},
        {"stayed", offsetof(ductile_sleep_report, stayed_bytes)},
        {"missing", offsetof(ductile_sleep_report, missing_bytes)},
        {"stopped_by", offsetof(ductile_sleep_report, pool.first)}};
    if (strcmp(name, "host_arena") == 0) {
        return ductile_sleep_reserve(p->s.f.allocator, 0, out) == DUCTILE_OK;
    }
    if (strcmp(name, "asleep") == 0) {
        for (unsigned pool = 0, bit = 1; pool < N_SETS; pool++, bit <<= 1) {
            *out |= info_of(p, pool).state == DUCTILE_POOL_ASLEEP ? bit : 0;
        }
        return true;
    }
    if (strncmp(name, "report:", 7) == 0) {
        return words_field_of(&p->report, fields, sizeof fields / sizeof *fields, name + 7, out);
    }
    return false;
}
