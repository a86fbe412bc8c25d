/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of pools that sleep and wake: one, and sets. */
#include "tests/model/player.h"

#include <ctype.h>
#include <string.h>

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

/* "tag 1 weights keep" */
VERB(play_tag, "tag") {
    uint64_t pool = 0;
    TRY(number_at(w, 1, &pool));
    return answers(p, w,
                   ductile_pool_set_tag(p->s.f.allocator, pool_id_of(pool), word_at(w, 2),
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
            s->request.bypass = pool_id_of(s->bypass);
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

static bool is_of_set(const player *p, const set_words *set, unsigned pool) {
    const ductile_sleep_request *r = &set->request;
    ductile_pool_info info = pool_info_of(&p->s, pool);
    bool is_named = r->all && (set->bypass == 0 || set->bypass != pool);
    for (size_t i = 0; i < r->n_tags; i++) {
        is_named |= strcmp(info.tag, r->tags[i].tag) == 0;
    }
    for (size_t i = 0; i < r->n_except_tags; i++) {
        is_named &= strcmp(info.tag, r->except_tags[i]) != 0;
    }
    return is_named;
}

static const char *call_set(player *p, const words *w, bool sleeps) {
    set_words set;
    char text[MOST_WORDS][WORD_BYTES];
    bool is_meant[N_SETS];
    ductile_status status = DUCTILE_OK;
    TRY(read_set(w, &set, text));
    for (unsigned pool = 0; pool < N_SETS; pool++) {
        is_meant[pool] = is_of_set(p, &set, pool);
    }
    TRY(change_set(&p->s, &set.request, is_meant, sleeps, &p->report, &status));
    p->s.bypass = sleeps && status == DUCTILE_OK ? (unsigned)set.bypass : p->s.bypass;
    return answers(p, w, status);
}

/* "sleep 1" keeps the contents, "sleep 1 drop" does not. */
static const char *sleep_one(player *p, const words *w) {
    POOL(pool);
    if (p->s.pools[pool].is_asleep) {
        return answers(p, w,
                       ductile_sleep(p->s.f.allocator, p->s.pools[pool].id, DUCTILE_CONTENTS_DROP));
    }
    ductile_contents contents = has_word(w, "drop") ? DUCTILE_CONTENTS_DROP : DUCTILE_CONTENTS_KEEP;
    TRY(sleep_pool(&p->s, pool, contents));
    return answers(p, w, p->s.status);
}

static const char *wake_one(player *p, const words *w) {
    POOL(pool);
    if (!p->s.pools[pool].is_asleep) {
        return answers(p, w, ductile_wake(p->s.f.allocator, p->s.pools[pool].id));
    }
    TRY(wake_pool(&p->s, pool));
    return answers(p, w, p->s.status);
}

/* A pool has a number, a tag a name. */
static bool is_one_pool(const words *w) {
    return isdigit((unsigned char)*word_at(w, 1));
}

VERB(play_sleep, "sleep") {
    return is_one_pool(w) ? sleep_one(p, w) : call_set(p, w, true);
}

VERB(play_wake, "wake") {
    return is_one_pool(w) ? wake_one(p, w) : call_set(p, w, false);
}

VERB(play_promote, "promote") {
    ductile_status status = DUCTILE_OK;
    TRY(promote(&p->s, &p->report, &status));
    return answers(p, w, status);
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
        return ductile_sleep_host_reserve(p->s.f.allocator, 0, out) == DUCTILE_OK;
    }
    if (strcmp(name, "asleep") == 0) {
        for (unsigned pool = 0, bit = 1; pool < N_SETS; pool++, bit <<= 1) {
            *out |= pool_info_of(&p->s, pool).state == DUCTILE_POOL_ASLEEP ? bit : 0;
        }
        return true;
    }
    if (strncmp(name, "report:", 7) == 0) {
        return words_field_of(&p->report, fields, sizeof fields / sizeof *fields, name + 7, out);
    }
    return false;
}
