/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block is freed while a stream that was not recorded still uses it; its own stream is ordered
 * behind that one later (docs/contract.md, "Free first, join later"). Does any call take the memory
 * away meanwhile? Each line is one case: the options, what is open besides, the call, whether it
 * was served at once, and whether the other stream had ended by then. A call that is refused has to
 * be served after the join. All blocks get patterns by their new owners, which are checked in the
 * end.
 *
 *     join_later [--virtual | --device N] [--limit BYTES] [--ms N] [--no-control]
 *
 * First the control: in a child, memory is unmapped by hand under such work. That has to be seen
 * (not with --no-control: a tool that watches would see the child's mistake).
 * Ends with 1 when anything is wrong, also when no call was served, or none refused, because then
 * nothing was tested; 77 without a device; 3 when it ran out of time.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/fixture_virtual.h"
#include "tests/support/program_blocks.h"
#include "tests/support/program_graphs.h"

#include <stdio.h>

enum {
    OWNER,    /* its block is freed                           */
    USER,     /* uses the block, for long, and is not recorded */
    TAKER,    /* wants the memory                             */
    CAPTURED, /* meanwhile, if a capture is under way         */
    N_STREAMS
};

/* Of patterns. */
enum { BY_OWNER = 1, BY_USER, BY_TAKER, BY_OWNER_AGAIN, BY_GRAPH };

enum { SCRATCH_BYTES = 1 << 20, SECONDS_IN_ALL = 240 };

static const ductile_pool_id sleeping_pool = {1, 0};
static const ductile_pool_id open_pool = {2, 0};

typedef struct program {
    program_device on;
    dvmm_event event;
    ductile_addr scratch; /* a graph's */
    uint64_t limit;       /* 0: 8 GiB; 512 MiB on the virtual GPU */
    uint64_t ms;          /* the user is at work for longer than that */
    bool has_no_control;

    /* of one case */
    ductile_allocator *allocator;
    pattern_block used;   /* by the user; 0 once it is freed */
    pattern_block wanted; /* by the call; 0 while it is refused */
    pattern_block again;  /* the owner's, after the join */
    bool is_ended;        /* the owner */
    bool has_broken;      /* memory was taken under the user's work */
    void *graph;

    uint64_t served, refused, wrong, mismatches;
} program;

/* ---- Blocks and work ------------------------------------------------------------------------ */

/* Its stream writes the pattern; refused: its address is 0. */
static const char *take(program *p, unsigned stream, pattern_block *c) {
    return program_take(&p->on, p->allocator, c, p->on.streams[stream]);
}

static const char *give(program *p, pattern_block *c) {
    return c->address != 0 ? program_give(&p->on, p->allocator, c) : NULL;
}

static const char *order(program *p, unsigned first, unsigned second) {
    NEED_OK(dvmm_event_record(p->on.driver, p->event, p->on.streams[first]));
    NEED_OK(dvmm_stream_wait_event(p->on.driver, p->on.streams[second], p->event));
    return NULL;
}

static const char *user_is_at_work(const program *p, bool *is_so) {
    ductile_status status = bench_stream_query(p->on.driver, p->on.streams[USER]);
    *is_so = status == DUCTILE_ERR_NOT_READY;
    NEED(*is_so || status == DUCTILE_OK, "the user's work failed: %s", ductile_status_name(status));
    return NULL;
}

/* It writes last, and late: the whole block, after the time is over. */
static const char *use_long(program *p, const pattern_block *c) {
    TRY(order(p, OWNER, USER));
    TRY(pattern_keep_busy(&p->on.tester, p->on.streams[USER], p->ms * 1000000));
    return pattern_write(&p->on.tester, c, p->on.streams[USER]);
}

/* ---- The calls ------------------------------------------------------------------------------ */

/* More than there is without the used block. */
static const char *ask(program *p, bool *is_served) {
    p->wanted = (pattern_block){.size = p->limit / 2, .id = BY_TAKER};
    TRY(take(p, TAKER, &p->wanted));
    *is_served = p->wanted.address != 0;
    return NULL;
}

/* What goes back first was the used block's. */
static const char *trim_and_ask(program *p, bool *is_served) {
    bool is_at_work = false;
    NEED_OK(ductile_trim(p->allocator, NULL, 0, NULL));
    uint64_t reserved = fixture_stats(p->allocator).reserved_bytes;
    TRY(user_is_at_work(p, &is_at_work));
    p->has_broken = p->has_broken || (is_at_work && reserved < p->used.size);
    return ask(p, is_served);
}

static const char *end_owner(program *p) {
    NEED_OK(ductile_stream_done(p->allocator, p->on.streams[OWNER]));
    p->is_ended = true;
    return NULL;
}

static const char *wake(program *p, bool *is_served) {
    ductile_status status = ductile_wake(p->allocator, sleeping_pool);
    *is_served = status == DUCTILE_OK;
    if (status == DUCTILE_ERR_OUT_OF_MEMORY) {
        return NULL;
    }
    NEED_OK(status);
    program_announce(&p->on, &p->wanted, true);
    return pattern_write(&p->on.tester, &p->wanted, p->on.streams[TAKER]);
}

/* Its contents stay: the user's, also when it had not written yet. */
static const char *sleep_pool(program *p, bool *is_served) {
    program_announce(&p->on, &p->used, false);
    ductile_status status = ductile_sleep(p->allocator, sleeping_pool, DUCTILE_CONTENTS_KEEP);
    *is_served = status == DUCTILE_OK;
    NEED(*is_served || status == DUCTILE_ERR_CAPTURING, "sleep: %s", ductile_status_name(status));
    if (*is_served) {
        NEED_OK(ductile_wake(p->allocator, sleeping_pool));
    }
    program_announce(&p->on, &p->used, true);
    return NULL;
}

/* ---- Before them ---------------------------------------------------------------------------- */

static const char *take_used(program *p) {
    p->used = (pattern_block){.size = p->limit / 8 * 5, .id = BY_OWNER};
    TRY(take(p, OWNER, &p->used));
    NEED(p->used.address != 0, "no memory for the first block");
    return NULL;
}

static const char *take_in_pool(program *p, unsigned stream, pattern_block *c) {
    NEED_OK(ductile_pool_retain(p->allocator, sleeping_pool));
    NEED_OK(ductile_pool_set_kind(p->allocator, sleeping_pool, DUCTILE_POOL_PLAIN));
    NEED_OK(ductile_pool_begin(p->allocator, sleeping_pool, NULL, NULL));
    TRY(take(p, stream, c));
    NEED(c->address != 0, "no memory for the pool");
    NEED_OK(ductile_pool_end(p->allocator, sleeping_pool));
    NEED_OK(ductile_pool_release(p->allocator, sleeping_pool)); /* of the begin */
    return NULL;
}

/* The used block has its memory meanwhile. */
static const char *take_used_beside_sleeping(program *p) {
    p->wanted = (pattern_block){.size = p->limit / 2, .id = BY_TAKER};
    TRY(take_in_pool(p, TAKER, &p->wanted));
    program_announce(&p->on, &p->wanted, false);
    NEED_OK(ductile_sleep(p->allocator, sleeping_pool, DUCTILE_CONTENTS_DROP));
    return take_used(p);
}

/* Small, since it is copied to page-locked memory. */
static const char *take_used_in_pool(program *p) {
    p->used = (pattern_block){.size = p->limit / 64, .id = BY_OWNER};
    return take_in_pool(p, OWNER, &p->used);
}

typedef struct action {
    const char *name;
    const char *(*prepare)(program *p);
    const char *(*lead_in)(program *p); /* once, under the user's work; may be NULL */
    const char *(*run)(program *p, bool *is_served);
    bool is_of_pool;   /* there is `sleeping_pool` */
    bool is_live_used; /* the used block stays live */
} action;

static const action actions[] = {
    {"request", take_used, NULL, ask, false, false},
    {"wake", take_used_beside_sleeping, NULL, wake, true, false},
    {"trim", take_used, NULL, trim_and_ask, false, false},
    {"end of stream, trim", take_used, end_owner, trim_and_ask, false, false},
    {"sleep", take_used_in_pool, NULL, sleep_pool, true, true},
};

/* ---- What is open besides ------------------------------------------------------------------- */

static int is_captured(void *user, ductile_stream stream) {
    const program *p = user;
    return stream == p->on.streams[CAPTURED];
}

static const char *open_nothing(program *p) {
    (void)p;
    return NULL;
}

static const char *open_capture_pool(program *p) {
    NEED_OK(ductile_pool_begin(p->allocator, open_pool, is_captured, p));
    return NULL;
}

static const char *open_plain_pool(program *p) {
    NEED_OK(ductile_pool_retain(p->allocator, open_pool));
    NEED_OK(ductile_pool_set_kind(p->allocator, open_pool, DUCTILE_POOL_PLAIN));
    TRY(open_capture_pool(p));
    NEED_OK(ductile_pool_release(p->allocator, open_pool)); /* one of two references */
    return NULL;
}

static const char *close_pool(program *p) {
    NEED_OK(ductile_pool_end(p->allocator, open_pool));
    NEED_OK(ductile_pool_release(p->allocator, open_pool));
    return NULL;
}

static const char *open_capture(program *p) {
    const pattern_block written = {.address = p->scratch, .size = SCRATCH_BYTES, .id = BY_GRAPH};
    ductile_capture_begin();
    NEED_OK(bench_capture_begin(p->on.driver, p->on.streams[CAPTURED], DVMM_CAPTURE_GLOBAL));
    return pattern_write(&p->on.tester, &written, p->on.streams[CAPTURED]);
}

static const char *close_capture(program *p) {
    TRY(program_graph(&p->on, p->on.streams[CAPTURED], &p->graph));
    ductile_capture_end();
    return program_drop_graph(&p->on, p->graph);
}

typedef struct setting {
    const char *name;
    const char *(*open)(program *p);
    const char *(*close)(program *p);
} setting;

static const setting settings[] = {
    {"alone", open_nothing, open_nothing},
    {"beside a plain pool", open_plain_pool, close_pool},
    {"beside a capture pool", open_capture_pool, close_pool},
    {"beside a capture", open_capture, close_capture},
};

/* ---- One case ------------------------------------------------------------------------------- */

/* Freed while the user is at work; the size stays known. */
static const char *free_under_work(program *p, const action *a) {
    pattern_block freed = p->used;
    p->used.id = BY_USER;
    TRY(use_long(p, &p->used));
    return a->is_live_used ? NULL : give(p, &freed);
}

static const char *run_under_work(program *p, const action *a, bool *is_served, bool *is_at_work) {
    TRY(free_under_work(p, a));
    TRY(user_is_at_work(p, is_at_work));
    NEED(*is_at_work, "the user's work ended too early: --ms is too small");
    if (a->lead_in != NULL) {
        TRY(a->lead_in(p));
    }
    TRY(a->run(p, is_served));
    TRY(user_is_at_work(p, is_at_work));
    p->has_broken = p->has_broken || (*is_served && *is_at_work);
    return NULL;
}

static const char *renew_owner(program *p) {
    NEED_OK(dvmm_stream_destroy(p->on.driver, p->on.streams[OWNER]));
    NEED_OK(dvmm_stream_create(p->on.driver, &p->on.streams[OWNER]));
    return NULL;
}

/* A stream that took the place of the owner has nothing to join. */
static const char *join_and_go_on(program *p) {
    TRY(p->is_ended ? renew_owner(p) : order(p, USER, OWNER));
    p->again = (pattern_block){.size = p->limit / 4, .id = BY_OWNER_AGAIN};
    TRY(take(p, OWNER, &p->again));
    NEED(p->again.address != 0, "the owner was refused after the join");
    return NULL;
}

static const char *check_all(program *p, const action *a) {
    uint64_t before = p->mismatches;
    TRY(pattern_check(&p->on.tester, &p->again, p->on.streams[OWNER]));
    if (a->is_live_used) {
        TRY(pattern_check(&p->on.tester, &p->used, p->on.streams[OWNER]));
    } else {
        TRY(pattern_check(&p->on.tester, &p->wanted, p->on.streams[TAKER]));
    }
    TRY(pattern_mismatches(&p->on.tester, &p->mismatches));
    p->has_broken = p->has_broken || p->mismatches != before;
    return NULL;
}

static const char *end_case(program *p, const action *a) {
    TRY(give(p, &p->again));
    TRY(a->is_live_used ? give(p, &p->used) : give(p, &p->wanted));
    if (a->is_of_pool) {
        NEED_OK(ductile_pool_release(p->allocator, sleeping_pool));
    }
    TRY(program_is_sound(p->allocator));
    NEED_OK(ductile_destroy(p->allocator));
    return NULL;
}

static const char *run_case(program *p, const char *conf, const setting *beside, const action *a) {
    bool is_served = false;
    bool is_at_work = false;
    p->is_ended = p->has_broken = false;
    NEED_OK(program_create(&p->on, p->limit, conf, &p->allocator));
    TRY(a->prepare(p));
    TRY(beside->open(p));
    TRY(run_under_work(p, a, &is_served, &is_at_work));
    TRY(beside->close(p));
    TRY(join_and_go_on(p));
    *(is_served ? &p->served : &p->refused) += 1;
    (void)printf("%s, the other stream %s, ", is_served ? "served" : "refused",
                 is_at_work ? "at work" : "done");
    if (!is_served) {
        TRY(a->run(p, &is_served));
        NEED(is_served, "refused after the join, too");
    }
    TRY(check_all(p, a));
    (void)printf("%s\n", p->has_broken ? "WRONG" : "contents fine");
    p->wrong += p->has_broken;
    return end_case(p, a);
}

static const char *run_cases(program *p) {
    static const char *const confs[] = {"captures:unannounced", "captures:pools",
                                        "captures:announced", "captures:pools,reuse:stream"};
    for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
        for (size_t j = 0; j < sizeof settings / sizeof *settings; j++) {
            for (size_t k = 0; k < sizeof actions / sizeof *actions; k++) {
                (void)printf("%s, %s, %s: ", confs[i], settings[j].name, actions[k].name);
                (void)fflush(stdout);
                TRY(run_case(p, confs[i], &settings[j], &actions[k]));
            }
        }
    }
    return NULL;
}

static const char *judge(const program *p) {
    command_figure("served", p->served);
    command_figure("refused", p->refused);
    command_figure("mismatches", p->mismatches);
    NEED(p->wrong == 0, "in %llu cases memory was taken under work of a stream",
         (unsigned long long)p->wrong);
    NEED(p->served > 0 && p->refused > 0, "all calls were served, or none: nothing was tested");
    return NULL;
}

/* ---- Opening and closing -------------------------------------------------------------------- */

/* All kernels are loaded before a capture begins. */
static const char *try_kernels(program *p) {
    const pattern_block c = {.address = p->scratch, .size = SCRATCH_BYTES, .id = BY_GRAPH};
    TRY(pattern_keep_busy(&p->on.tester, p->on.streams[USER], 1));
    TRY(pattern_write(&p->on.tester, &c, p->on.streams[USER]));
    TRY(pattern_check(&p->on.tester, &c, p->on.streams[USER]));
    return pattern_mismatches(&p->on.tester, &p->mismatches);
}

/* Work ends only when a thread waits for it. The thread queries streams and makes memory beside a
 * capture, which its mode has to allow. */
static const char *open_all(program *p) {
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    ductile_virtual_options options =
        program_options((uint64_t)1 << 30, DUCTILE_SCHEDULE_LAZY, 0, 0);
    options.detect = 2; /* every work with a block is ordered here */
    TRY(program_open(&p->on, &options, N_STREAMS));
    NEED_OK(dvmm_capture_exchange_mode(p->on.driver, &mode));
    NEED_OK(dvmm_event_create(p->on.driver, &p->event));
    NEED_OK(bench_mem_alloc(p->on.driver, SCRATCH_BYTES, &p->scratch));
    return try_kernels(p);
}

static const char *close_all(program *p) {
    NEED_OK(bench_mem_free(p->on.driver, p->scratch));
    NEED_OK(dvmm_event_destroy(p->on.driver, p->event));
    return program_close(&p->on);
}

static const char *run(program *p) {
    TRY(open_all(p));
    program_print_head(&p->on, ", limit %llu", (unsigned long long)p->limit);
    TRY(run_cases(p));
    TRY(judge(p));
    return close_all(p);
}

/* ---- The control ---------------------------------------------------------------------------- */

static program the_program;

/* On the virtual GPU it is a violation. */
static const char *is_broken_now(const program *p, bool *is_so) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    *is_so = dvmm_context_sync(p->on.driver) != DUCTILE_OK;
    if (p->on.gpu != NULL) {
        NEED_OK(ductile_virtual_get_state(p->on.gpu, &state));
        *is_so = state.violations > 0;
    }
    return NULL;
}

static const char *take_by_hand(bool *is_seen) {
    program *p = &the_program;
    pattern_block c = {.size = p->limit / 16, .id = BY_USER};
    TRY(open_all(p));
    TRY(program_map(p->on.driver, c.size, &c.address));
    TRY(is_broken_now(p, is_seen));
    NEED(!*is_seen, "the control was broken before it began");
    TRY(use_long(p, &c));
    NEED_OK(dvmm_unmap(p->on.driver, c.address, c.size));
    return is_broken_now(p, is_seen);
}

/* ---- The program --------------------------------------------------------------------------- */

static void read_request(program *p, int argc, char **argv) {
    const command_option options[] = {
        PROGRAM_OPTIONS(&p->on),
        {"--limit", .number = &p->limit},
        {"--ms", .number = &p->ms},
        {"--no-control", .flag = &p->has_no_control},
    };
    command_read("join_later", options, sizeof options / sizeof *options, argc, argv);
    uint64_t usual = p->on.is_virtual ? (uint64_t)512 << 20 : (uint64_t)8 << 30;
    p->limit = p->limit != 0 ? p->limit : usual;
    if (p->limit < (uint64_t)256 << 20 || p->ms == 0) {
        command_refuse("the limit is at least 256 MiB, and the work takes some time");
    }
    p->limit = p->limit / ((uint64_t)256 << 20) * ((uint64_t)256 << 20);
}

int main(int argc, char **argv) {
    the_program.ms = 100;
    read_request(&the_program, argc, argv);
    command_end_after(SECONDS_IN_ALL);
    const char *why = the_program.has_no_control ? NULL : program_control(take_by_hand);
    return program_end(why == NULL ? run(&the_program) : why);
}
