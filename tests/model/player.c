/* SPDX-License-Identifier: Apache-2.0 */
/* From the text of a scenario to operations, and a play from its beginning to its end. */
#include "tests/model/player.h"

#include "pool/base/allocator.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEPT_ADDRESSES (512 * GIB) /* many devices are made: their tables are small */

const char *answers(const player *p, const words *w, ductile_status got) {
    const char *name = ductile_status_name(got);
    const char *expected = w->status != NULL ? w->status : "OK";
    size_t prefix = got == DUCTILE_OK ? strlen("DUCTILE_") : strlen("DUCTILE_ERR_");
    bool is_it = strcmp(name + prefix, expected) == 0 || strcmp(expected, "any") == 0;
    NEED(p->how.is_lenient || is_it, "%s, not %s", name, expected);
    return NULL;
}

/* ---- Operations ---------------------------------------------------------------------------- */

static void print(const player *p, const char *operation) {
    if (p->how.is_listed) {
        (void)printf("    %s\n", operation);
        (void)fflush(stdout);
    }
}

static struct {
    const char *word;
    player_verb verb;
} verbs[128];
static size_t n_verbs;

void player_add_verb(const char *word, player_verb verb) {
    if (n_verbs == sizeof verbs / sizeof *verbs) {
        abort();
    }
    verbs[n_verbs].word = word;
    verbs[n_verbs++].verb = verb;
}

static player_verb find_verb(const char *word) {
    for (size_t i = 0; i < n_verbs; i++) {
        if (strcmp(word, verbs[i].word) == 0) {
            return verbs[i].verb;
        }
    }
    return NULL;
}

const char *player_do(player *p, const char *operation) {
    words w;
    TRY(words_read(&w, operation));
    player_verb verb = find_verb(word_at(&w, 0));
    NEED(verb != NULL, "no operation is called %s", word_at(&w, 0));
    print(p, operation);
    const char *why = verb(p, &w);
    NEED(why == NULL, "%s: %s", operation, why);
    p->n_operations++;
    return NULL;
}

static bool is_swept(const player *p) {
    return p->how.sites != NULL || p->how.fault.nth > 0;
}

static const char *do_here(subject *s, void *argument) {
    return player_do((player *)s, argument);
}

/* By the thread whose turn it is; what the device sees is looked at at once. */
static const char *step(player *p, char *operation) {
    subject *s = &p->s;
    const char *why = on_thread(s, s->crew.next, do_here, operation);
    const char *seen = no_violation(s); /* the device is told of a block before the model */
    NEED(seen == NULL, "%s: %s", operation, seen);
    s->is_over |= is_swept(p) && fixture_state(&s->f).poisoned != 0;
    TRY(s->is_over ? NULL : why);
    if (p->is_over) {
        return NULL;
    }
    s->step++;
    NEED(s->wrong == NULL || p->how.detects_only, "%s", s->wrong);
    return NULL;
}

static const char *do_line(player *p, char *line) {
    char *rest = NULL;
    for (char *each = strtok_r(line, ";", &rest); each != NULL && !p->is_over;
         each = strtok_r(NULL, ";", &rest)) {
        each += strspn(each, " ");
        TRY(*each != '\0' ? step(p, each) : NULL);
    }
    return NULL;
}

static const char *audit(player *p) {
    bool ends = p->is_over || p->s.is_over || p->how.detects_only;
    return ends ? NULL : subject_audit(&p->s);
}

/* An audit looks at every block: one behind each round of a long loop that makes blocks would take
 * the square of its length. */
static bool is_audited(unsigned long long left, unsigned long long rounds) {
    enum { MOST_AUDITS = 64 };
    return left % (rounds / MOST_AUDITS + 1) == 0;
}

static const char *with_number(const char *line, uint64_t number, char *out, size_t size) {
    size_t n = 0;
    for (; *line != '\0' && n + 24 < size; line++) {
        n += (size_t)(*line == '@' ? snprintf(out + n, size - n, "%llu", (unsigned long long)number)
                                   : snprintf(out + n, size - n, "%c", *line));
    }
    NEED(*line == '\0', "a line that is too long");
    return NULL;
}

/* "for A..B: OPERATIONS", "for A..B/STEP: OPERATIONS": @ is the number; down, if A is above B. */
static const char *do_all(player *p, const char *line) {
    unsigned long long first = 0;
    unsigned long long last = 0;
    unsigned long long by = 1;
    int length = 0;
    char each[1024];
    if (strncmp(line, "for ", 4) != 0) {
        TRY(with_number(line, 0, each, sizeof each));
        TRY(do_line(p, each));
        return audit(p);
    }
    bool is_read = sscanf(line, "for %llu..%llu/%llu:%n", &first, &last, &by, &length) == 3 ||
                   sscanf(line, "for %llu..%llu:%n", &first, &last, &length) == 2;
    NEED(is_read && length > 0 && by > 0, "no loop: %s", line);
    bool falls = first > last;
    unsigned long long rounds = (falls ? first - last : last - first) / by + 1;
    for (unsigned long long left = rounds; left-- > 0 && !p->is_over;) {
        TRY(with_number(line + length, first, each, sizeof each));
        TRY(do_line(p, each));
        TRY(is_audited(left, rounds) ? audit(p) : NULL);
        first = falls ? first - by : first + by;
    }
    return NULL;
}

/* ---- Between two steps of the allocator ------------------------------------------------------ */

void player_come_between(void *user, dvmm_call call, int code, uint64_t address, uint64_t size) {
    player *p = user;
    (void)code, (void)address, (void)size;
    if (p->n_awaited == 0 || strcmp(p->awaited[0].call, dvmm_call_name(call)) != 0) {
        return;
    }
    awaited now = p->awaited[0];
    p->n_awaited--;
    memmove(p->awaited, p->awaited + 1, p->n_awaited * sizeof *p->awaited);
    char *rest = NULL;
    for (char *each = strtok_r(now.operation, ",", &rest); each != NULL;
         each = strtok_r(NULL, ",", &rest)) {
        const char *why = player_do(p, each);
        p->s.wrong = p->s.wrong != NULL ? p->s.wrong : why;
    }
}

/* ---- A play -------------------------------------------------------------------------------- */

static void choose(player *p) {
    subject *s = &p->s;
    const scenario *of = p->of;
    s->families = POOLS | CAPTURES | PINS | PEERS | PRESSURE | FOREIGN;
    s->families |= of->has_giver ? CALLBACKS : 0;
    s->is_listening = of->has_listener;
    s->granule = FIXTURE_GRANULE;
    s->setup = (fixture_setup){.capacity_bytes = of->capacity_bytes,
                               .granule_bytes = FIXTURE_GRANULE,
                               .schedule = p->how.schedule,
                               .lag = of->lag,
                               .seed = 1,
                               .n_devices = 2,
                               .address_bytes = is_swept(p) ? SWEPT_ADDRESSES : 0,
                               .no_context_events = of->has_old_driver,
                               .log = player_log,
                               .log_user = p,
                               .conf = s->conf};
    (void)snprintf(s->conf, sizeof s->conf, "%s%s%s", of->conf,
                   of->conf[0] != '\0' && p->how.conf != NULL ? "," : "",
                   p->how.conf != NULL ? p->how.conf : "");
    s->crew.n = of->n_threads;
    s->is_scripted = true;
    s->is_faulty = is_swept(p);
    s->has_context_events = !of->has_old_driver;
    s->audit_period = 1;
    p->schedule = p->how.schedule;
    p->lag = of->lag;
}

/* What the options mean for what the model may expect. */
static const char *read_options(subject *s) {
    ductile_options o;
    ductile_limits limits = {.struct_size = sizeof limits};
    ductile_options_init(&o);
    ductile_get_options(s->f.allocator, &o);
    NEED_OK(ductile_get_limits(s->f.allocator, &limits));
    s->captures = s->captures_at_first = o.captures;
    s->is_tight = o.sizes == s->granule;
    s->is_guarded = o.find == DUCTILE_FIND_OVERRUNS;
    s->caches = o.caching_off == 0;
    s->is_short_of_addresses = o.address_budget_bytes != 0;
    s->cap_bytes = limits.limit_bytes;
    return NULL;
}

/* Five ordinary streams; then those of the other kinds. */
static const char *make_plain_streams(subject *s) {
    NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, s->slots[3].stream));
    TRY(make_stream(s, 3, ORDINARY_STREAM));
    return make_stream(s, 4, ORDINARY_STREAM);
}

static bool says_may_fail(const scenario *of) {
    bool says = false;
    for (size_t i = 0; i < of->n_lines; i++) {
        says |= strstr(of->lines[i], "may_fail") != NULL;
    }
    return says;
}

static const char *begin(player *p) {
    subject *s = &p->s;
    choose(p);
    failed_calls_reset();
    TRY(subject_begin(s));
    TRY(read_options(s));
    TRY(make_plain_streams(s));
    TRY(says_may_fail(p->of) ? NULL : find_verb("may_fail")(p, NULL));
    return find_verb("note")(p, NULL);
}

static const char *end(player *p) {
    subject *s = &p->s;
    NEED(p->n_awaited == 0 || p->how.is_lenient, "no call of %s comes", p->awaited[0].call);
    p->has_failed = ductile_virtual_faults_fired(s->f.gpu) > 0;
    if (p->is_over) {
        TRY(no_violation(s));
        subject_abandon(s);
        return NULL;
    }
    dvmm_set_trace(s->f.allocator->driver, NULL, NULL, false);
    if (is_swept(p)) {
        return play_end_after_fault(p);
    }
    (void)play_end_sharing(p);
    NEED(s->n_imports == 0 && s->ends.importer == NULL, "the importer's end");
    s->is_scripted = false;
    TRY(sync_all(s));
    return subject_close(s);
}

static const char *play(player *p) {
    TRY(begin(p));
    for (size_t i = 0; i < p->of->n_lines && !p->is_over; i++) {
        const char *why = do_all(p, p->of->lines[i]);
        NEED(why == NULL, "line %u: %s", p->of->numbers[i], why);
        if (p->s.is_over) {
            break;
        }
    }
    const char *why = end(p);
    return why != NULL ? complain("at the end: %s", why) : NULL;
}

const char *player_run(const scenario *of, const play_setup *how, uint64_t *n_operations) {
    player *p = calloc(1, sizeof *p);
    NEED(p != NULL, "no host memory for the test");
    subject_init(&p->s);
    p->of = of;
    p->how = *how;
    size_t open = count_descriptors();
    const char *why = play(p);
    why = why == NULL && count_descriptors() != open ? "a descriptor is left open" : why;
    bool counts = p->how.fault.nth == 0 || p->has_failed || why != NULL;
    *n_operations += counts ? p->n_operations : 0;
    fault_sites_record(NULL);
    if (why == NULL) {
        free(p);
        return NULL;
    }
    const char *first = failed_calls_get().first;
    return first != NULL ? complain("%s (%s failed first)", why, first) : why;
}
