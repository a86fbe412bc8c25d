/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads on one allocator: random requests on shared streams, blocks that change hands and
 * are freed by others, threads that die and leave their blocks behind, and one thread that trims,
 * counts, walks and checks all the while. No two owners may hold the same bytes, no block may lose
 * its contents, every report must add up, all threads come to an end, and in the end nothing is
 * left. Made to run under the thread sanitizer, so it is a plain program: exit status 0, or 1 and
 * one line that says what went wrong and with which seed.
 *
 *     stress [--pools] [--crunch] [--callbacks] [--share] ...
 *
 * With --pools a pool is paused and resumed, graphs are captured and launched, and streams end
 * meanwhile; with
 * --devices 2 streams of another GPU use blocks, too. With --crunch the threads together want more
 * than the device has: callbacks free what others left, and the limits and the device's memory
 * change. With --callbacks a map callback keeps a table, which hears nothing out of order, and asks
 * for memory itself. With --share memory is pinned, passed to a second allocator, and opened to
 * peers. A round is a device with another seed, in --crunch with another schedule and other
 * options. It lasts --seconds, or --ops operations.
 */
#include "tests/stress/parts/stress_stage.h"

#include "tests/support/audit.h"
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/limits.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { MOST_ACTORS = 64, MOST_OTHERS = 6 };

/* ---- Who plays ------------------------------------------------------------------------------ */

static void *act(void *user) {
    actor *self = user;
    const char *why = NULL;
    while (why == NULL && !ending_is_over(&self->s->the_end)) {
        why = self->act(self);
    }
    ending_because(&self->s->the_end, why);
    return NULL;
}

static size_t cast(const stage *s, const char *(**acts)(actor *)) {
    size_t n = 0;
    acts[n++] = audit;
    if (s->plan.pools) {
        acts[n++] = pause_and_resume;
        acts[n++] = capture;
        acts[n++] = begin_and_end_stream;
    }
    if (s->plan.crunch) {
        acts[n++] = disturb;
    }
    if (s->plan.share) {
        acts[n++] = pass_one;
    }
    return n;
}

/* Was there anything to see? */
static const char *has_played(const stage *s) {
    const plan *p = &s->plan;
    NEED(s->n_blocks > 0 && s->n_lives > 0 && s->n_audits > 0, "no thread has played");
    NEED(!p->pools || (s->n_pauses > 0 && s->n_graphs > 0 && s->n_streams > 0),
         "%llu pauses, %llu graphs, %llu streams", (unsigned long long)s->n_pauses,
         (unsigned long long)s->n_graphs, (unsigned long long)s->n_streams);
    NEED(!p->crunch || (s->n_refused > 0 && s->n_asked > 0), "memory was never short");
    NEED(!p->callbacks || s->n_refused_inside > 0, "no callback asked for memory");
    NEED(!p->share || s->n_passed > 0, "nothing was passed");
    return NULL;
}

/* A machine that is loaded plays for longer: until there was something to see. */
static bool is_time_up(const stage *s, const struct timespec *start) {
    enum { PATIENCE = 20 };
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t seconds = (uint64_t)(now.tv_sec - start->tv_sec);
    bool is_late = seconds >= s->plan.seconds;
    bool has_done = s->plan.ops != 0 && atomic_load(&s->n_ops) >= s->plan.ops;
    bool has_seen = has_played(s) == NULL || seconds >= PATIENCE * s->plan.seconds;
    return ((is_late || has_done) && has_seen) || ending_is_over(&s->the_end);
}

static const char *play(stage *s) {
    static actor actors[MOST_ACTORS + MOST_OTHERS];
    const char *(*acts[MOST_OTHERS])(actor *);
    struct timespec start;
    size_t n_others = cast(s, acts);
    size_t n = 0;
    (void)clock_gettime(CLOCK_MONOTONIC, &start);
    for (; n < s->plan.threads + n_others; n++) {
        actors[n] = (actor){.s = s,
                            .act = n < n_others ? acts[n] : live_and_die,
                            .r = rng_seeded(s->plan.seed * 1000003 + n)};
        if (pthread_create(&actors[n].thread, NULL, act, &actors[n]) != 0) {
            ending_because(&s->the_end, "a thread cannot be made");
            break;
        }
    }
    while (!is_time_up(s, &start)) {
        rest_a_moment();
    }
    ending_now(&s->the_end);
    while (n > 0) {
        (void)pthread_join(actors[--n].thread, NULL);
    }
    return ending_why(&s->the_end);
}

/* ---- A round ------------------------------------------------------------------------------- */

static const char *open_stage(stage *s) {
    const plan *p = &s->plan;
    const fixture_setup setup = {.capacity_bytes = p->capacity_mib * MIB,
                                 .schedule = p->schedule,
                                 .lag = 20,
                                 .seed = p->seed,
                                 .n_streams = p->streams + 1,
                                 .n_devices = (uint32_t)p->devices,
                                 .conf = p->conf};
    uint64_t id = 0;
    TRY(p->share ? two_ends_open(&s->t, &setup, SOCK_STREAM) : fixture_open(&s->t.f, &setup));
    s->n_common = p->streams;
    s->life = 1;
    if (p->devices > 1 && p->pools) {
        NEED_OK(ductile_enable_peer(allocator_of(s), 1));
        NEED_OK(ductile_virtual_stream_create_on(s->t.f.gpu, 1, &s->theirs));
    }
    if (p->crunch) {
        NEED_OK(ductile_add_oom_callback(allocator_of(s), free_what_lies_about, s, 0, &id));
    }
    if (p->callbacks) {
        s->listener.beside = ask_inside;
        s->listener.user = s;
        TRY(shadow_open(&s->listener, allocator_of(s), s->t.f.gpu));
    }
    if (p->pools) {
        NEED_OK(ductile_pool_retain(allocator_of(s), PAUSED_POOL));
        NEED_OK(ductile_pool_set_kind(allocator_of(s), PAUSED_POOL, DUCTILE_POOL_PLAIN));
    }
    return NULL;
}

static const char *free_all(stage *s) {
    for (size_t i = 0; i < N_SLOTS + N_HANDED_ON; i++) {
        held *h = atomic_exchange(i < N_SLOTS ? &s->slots[i] : &s->ending[i - N_SLOTS], NULL);
        TRY(h != NULL ? give(s, h) : NULL);
    }
    NEED(claims_count(s->claims) == 0, "bytes are claimed with no block alive");
    return NULL;
}

static const char *release_all(stage *s) {
    ductile_allocator *a = allocator_of(s);
    s->listener.beside = NULL; /* what it asks for inside a trim, that trim leaves */
    if (s->plan.pools) {
        NEED_OK(ductile_pool_release(a, PAUSED_POOL));
    }
    NEED_OK(set_limit(a, 0));
    NEED_OK(set_soft_limit(a, 0));
    NEED_OK(ductile_virtual_set_external_bytes(s->t.f.gpu, 0));
    TRY(audit_allocator(a, NULL));
    TRY(fixture_sync_all(&s->t.f));
    if (s->theirs != NULL) {
        NEED_OK(ductile_virtual_stream_sync(s->t.f.gpu, s->theirs));
        NEED_OK(ductile_stream_done(a, s->theirs));
        NEED_OK(ductile_virtual_stream_destroy(s->t.f.gpu, s->theirs));
    }
    NEED_OK(ductile_empty_cache(a));
    return NULL;
}

/* Nothing is left anywhere, and the whole device can be allocated. */
static const char *nothing_is_left(stage *s) {
    ductile_addr all = 0;
    ductile_stats stats = fixture_stats(allocator_of(s));
    NEED(stats.live_blocks == 0, "a block is live that no thread holds");
    NEED(stats.reserved_bytes == 0, "memory is held with no block alive");
    if (s->plan.share) {
        return NULL; /* the importer may still have some, until its end */
    }
    NEED(fixture_state(&s->t.f).used_bytes == 0, "memory is held for no block");
    NEED(fixture_state(&s->t.f).poisoned == 0, "the device is poisoned");
    NEED_OK(ductile_alloc(allocator_of(s), s->plan.capacity_mib * MIB, s->t.f.streams[0], &all));
    NEED_OK(ductile_free(allocator_of(s), all));
    return NULL;
}

static const char *close_stage(stage *s) {
    TRY(free_all(s));
    TRY(release_all(s));
    TRY(nothing_is_left(s));
    TRY(s->plan.share ? two_ends_close(&s->t) : fixture_close(&s->t.f));
    if (s->plan.callbacks) {
        NEED(s->listener.n_left > 100, "hardly anything moved");
        TRY(shadow_complaint(&s->listener));
        NEED(s->listener.n == 0, "%zu mappings were never said to leave", s->listener.n);
    }
    return NULL;
}

static void print_figures(const stage *s) {
    (void)printf(
        "seed %llu: %llu operations in %llu lives, %llu blocks, %llu refusals, %llu audits, %llu "
        "pauses and %llu refused, %llu graphs, %llu streams, %llu passed\n",
        (unsigned long long)s->plan.seed, (unsigned long long)s->n_ops,
        (unsigned long long)s->n_lives, (unsigned long long)s->n_blocks,
        (unsigned long long)s->n_refused, (unsigned long long)s->n_audits,
        (unsigned long long)s->n_pauses, (unsigned long long)s->n_refused_pauses,
        (unsigned long long)s->n_graphs, (unsigned long long)s->n_streams,
        (unsigned long long)s->n_passed);
}

static const char *one_round(const plan *p) {
    static stage s;
    memset(&s, 0, sizeof s);
    s.plan = *p;
    (void)pthread_mutex_init(&s.the_end.lock, NULL);
    (void)pthread_rwlock_init(&s.use, NULL);
    s.claims = claims_new();
    NEED(s.claims != NULL, "no host memory for the test");
    TRY(open_stage(&s));
    TRY(play(&s));
    TRY(close_stage(&s));
    claims_delete(s.claims);
    print_figures(&s);
    return has_played(&s);
}

static const char *play_rounds(plan *p) {
    static const char *const confs[] = {NULL, "soft_limit_bytes:24M", "reuse:never",
                                        "reuse:stream"};
    bool has_conf = p->conf != NULL;
    for (uint64_t end = p->seed + p->rounds; p->seed < end; p->seed++) {
        if (p->crunch) {
            p->schedule = (ductile_schedule)(p->seed / 4 % 4);
            p->conf = has_conf ? p->conf : confs[p->seed % 4];
        }
        const char *why = one_round(p);
        NEED(why == NULL, "seed %llu: %s", (unsigned long long)p->seed, why);
    }
    return NULL;
}

int main(int argc, char **argv) {
    plan p = {.seconds = 5,
              .rounds = 1,
              .threads = 4,
              .streams = 6,
              .seed = 1,
              .capacity_mib = 128,
              .devices = 1,
              .schedule = DUCTILE_SCHEDULE_RANDOM};
    const command_option options[] = {
        {"--pools", .flag = &p.pools},
        {"--crunch", .flag = &p.crunch},
        {"--callbacks", .flag = &p.callbacks},
        {"--share", .flag = &p.share},
        {"--seconds", .number = &p.seconds},
        {"--ops", .number = &p.ops},
        {"--rounds", .number = &p.rounds},
        {"--threads", .number = &p.threads},
        {"--streams", .number = &p.streams},
        {"--seed", .number = &p.seed},
        {"--capacity-mib", .number = &p.capacity_mib},
        {"--devices", .number = &p.devices},
        {"--schedule", .schedule = &p.schedule},
        {"--conf", .text = &p.conf, .placeholder = "OPTIONS"},
    };
    command_read("stress", options, sizeof options / sizeof *options, argc, argv);
    if (p.threads == 0 || p.threads > MOST_ACTORS || p.streams == 0 || p.streams > MOST_STREAMS) {
        command_refuse("too few or too many threads or streams");
    }
    if (p.share && p.devices < 2) {
        p.devices = 2;
    }
    return command_end(play_rounds(&p));
}
