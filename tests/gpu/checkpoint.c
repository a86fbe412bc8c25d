/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a process with an allocator survive the driver's checkpoint and restore? A child takes
 * blocks, frees some, puts a tagged pool to sleep with its contents kept, and waits. The parent
 * locks it, checkpoints it, checks that the device has got the child's memory back, restores it and
 * unlocks it. Then the child checks every block, wakes the pool, checks that, allocates, frees,
 * trims and destroys. Once more with everything asleep before the checkpoint.
 *
 *     checkpoint [--device N] [--mib N]
 *
 * Prints one figure a line. Ends with 1 when anything is wrong; 77 without a device, or with a
 * driver that has no checkpoint (570 has it).
 */
#include "tests/support/cpu_time.h"
#include "tests/support/in_child.h"
#include "tests/support/program_blocks.h"
#include "vmm/base/align.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BLOCKS = 20 };

static const ductile_pool_id POOL = {1, 0};

typedef struct request {
    int device;
    uint64_t mib;
    const char *child; /* "some" or "all": what sleeps */
    uint64_t read_fd, write_fd;
} request;

/* ---- The child ----------------------------------------------------------------------------- */

typedef struct child {
    const request *request;
    program_device on;
    ductile_allocator *a;
    ductile_stream stream;
    pattern_block live[N_BLOCKS];
    pattern_block kept[N_BLOCKS]; /* in the pool that sleeps */
} child;

static const char *make_block(child *c, pattern_block *out, uint64_t id) {
    uint64_t size = dti_round_up(c->request->mib * DTI_MIB / (2 * N_BLOCKS) + id * 4096, 4);
    *out = (pattern_block){.size = size, .id = id};
    NEED_OK(ductile_alloc(c->a, size, c->stream, &out->address));
    return pattern_write(&c->on.tester, out, c->stream);
}

static const char *make_blocks(child *c) {
    ductile_addr freed[N_BLOCKS];
    for (uint64_t i = 0; i < N_BLOCKS; i++) {
        TRY(make_block(c, &c->live[i], 1 + i));
        NEED_OK(ductile_alloc(c->a, (1 + i) * DTI_MIB, c->stream, &freed[i]));
    }
    NEED_OK(ductile_pool_begin(c->a, POOL, NULL, NULL));
    for (uint64_t i = 0; i < N_BLOCKS; i++) {
        TRY(make_block(c, &c->kept[i], 100 + i));
    }
    NEED_OK(ductile_pool_end(c->a, POOL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        NEED_OK(ductile_free(c->a, freed[i]));
    }
    return NULL;
}

static const char *open_child(child *c) {
    c->on.device = c->request->device;
    TRY(program_open(&c->on, NULL, 1));
    c->stream = c->on.streams[0];
    TRY(program_allocator(&c->on, 0, &c->a));
    return make_blocks(c);
}

static const char *fall_asleep(child *c) {
    const ductile_sleep_request all = {
        .struct_size = sizeof all, .all = 1, .contents = DUCTILE_CONTENTS_KEEP};
    bool is_all = strcmp(c->request->child, "all") == 0;
    NEED_OK(is_all ? ductile_sleep_set(c->a, &all, NULL)
                   : ductile_sleep(c->a, POOL, DUCTILE_CONTENTS_KEEP));
    return NULL;
}

static const char *wait_for_parent(const child *c) {
    char byte = 'r';
    NEED(write((int)c->request->write_fd, &byte, 1) == 1, "the parent has gone");
    NEED(read((int)c->request->read_fd, &byte, 1) == 1, "the parent has gone");
    return NULL;
}

static const char *wake(child *c) {
    const ductile_sleep_request all = {.struct_size = sizeof all, .all = 1};
    NEED_OK(ductile_wake_set(c->a, &all, NULL));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        TRY(pattern_expect(&c->on.tester, &c->live[i], c->stream));
        TRY(pattern_expect(&c->on.tester, &c->kept[i], c->stream));
    }
    return NULL;
}

/* The allocator goes on as if nothing had happened. */
static const char *go_on(child *c) {
    pattern_block large = {.size = 900 * DTI_MIB, .id = 999};
    uint64_t released = 0;
    TRY(program_is_sound(c->a));
    TRY(program_take(&c->on, c->a, &large, c->stream));
    NEED(large.address != 0, "no new memory");
    TRY(pattern_check(&c->on.tester, &large, c->stream));
    TRY(pattern_all_hold(&c->on.tester));
    TRY(program_give(&c->on, c->a, &large));
    for (size_t i = 0; i < N_BLOCKS; i++) {
        NEED_OK(ductile_free(c->a, c->live[i].address));
        NEED_OK(ductile_free(c->a, c->kept[i].address));
    }
    NEED_OK(ductile_pool_release(c->a, POOL));
    NEED_OK(ductile_trim(c->a, NULL, 0, &released));
    NEED(released >= 900 * DTI_MIB, "a trim gave %llu bytes", (unsigned long long)released);
    NEED_OK(ductile_destroy(c->a));
    return NULL;
}

static const char *run_child(const request *r) {
    child c = {.request = r};
    TRY(open_child(&c));
    TRY(fall_asleep(&c));
    NEED_OK(dvmm_context_sync(c.on.driver));
    TRY(wait_for_parent(&c));
    TRY(wake(&c));
    return go_on(&c);
}

/* ---- The parent ---------------------------------------------------------------------------- */

typedef int (*process_fn)(int pid, void *arguments);

typedef struct checkpoint_calls {
    process_fn lock, checkpoint, restore, unlock;
} checkpoint_calls;

static void find(void *library, const char *name, process_fn *out) {
    void *found = dlsym(library, name);
    memcpy(out, &found, sizeof found);
    if (found == NULL) {
        command_skip("the driver has no checkpoint of processes");
    }
}

/* Initialises the driver in this process: only once the children are separate programs. */
static const char *find_calls(checkpoint_calls *out) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        command_skip("no NVIDIA driver is installed");
    }
    int (*init)(unsigned) = NULL;
    void *found = dlsym(library, "cuInit");
    memcpy(&init, &found, sizeof found);
    NEED(init != NULL && init(0) == 0, "the driver does not start");
    find(library, "cuCheckpointProcessLock", &out->lock);
    find(library, "cuCheckpointProcessCheckpoint", &out->checkpoint);
    find(library, "cuCheckpointProcessRestore", &out->restore);
    find(library, "cuCheckpointProcessUnlock", &out->unlock);
    return NULL;
}

typedef struct kin {
    pid_t pid;
    int from, to;
} kin;

static _Noreturn void become_child(const request *r, const char *what, int from, int to) {
    char device[16];
    char mib[24];
    char fds[2][16];
    (void)snprintf(device, sizeof device, "%d", r->device);
    (void)snprintf(mib, sizeof mib, "%llu", (unsigned long long)r->mib);
    (void)snprintf(fds[0], sizeof fds[0], "%d", from);
    (void)snprintf(fds[1], sizeof fds[1], "%d", to);
    (void)execl("/proc/self/exe", "checkpoint", "--device", device, "--mib", mib, "--child", what,
                "--read-fd", fds[0], "--write-fd", fds[1], (char *)NULL);
    _exit(127);
}

static const char *start_child(const request *r, const char *what, kin *out) {
    int up[2];
    int down[2];
    NEED(pipe(up) == 0 && pipe(down) == 0, "no pipe");
    out->pid = fork();
    NEED(out->pid >= 0, "no child");
    if (out->pid == 0) {
        become_child(r, what, down[0], up[1]);
    }
    (void)close(up[1]);
    (void)close(down[0]);
    out->from = up[0];
    out->to = down[1];
    return NULL;
}

static const char *timed(process_fn call, int pid, const char *what, const char *name) {
    char line[96];
    uint64_t start = wall_ns();
    int code = call(pid, NULL);
    (void)snprintf(line, sizeof line, "%s asleep: %s, ms", what, name);
    command_figure(line, (wall_ns() - start) / 1000000);
    NEED(code == 0, "%s of a process with %s asleep: the driver says %d", name, what, code);
    return NULL;
}

static const char *checkpoint_child(const checkpoint_calls *calls, const kin *k, const char *what) {
    TRY(timed(calls->lock, k->pid, what, "lock"));
    TRY(timed(calls->checkpoint, k->pid, what, "checkpoint"));
    TRY(timed(calls->restore, k->pid, what, "restore"));
    return timed(calls->unlock, k->pid, what, "unlock");
}

static const char *end_child(const kin *k) {
    (void)close(k->to);
    (void)close(k->from);
    int status = exit_status_of(k->pid);
    if (status == COMMAND_SKIPPED) {
        command_skip("the child has no device");
    }
    NEED(status == 0, "the child ended with %d", status);
    return NULL;
}

static const char *run_one(const checkpoint_calls *calls, const kin *k, const char *what) {
    char byte = 0;
    if (read(k->from, &byte, 1) != 1) {
        return end_child(k);
    }
    TRY(checkpoint_child(calls, k, what));
    NEED(write(k->to, "g", 1) == 1, "the child has gone");
    return end_child(k);
}

static const char *run(const request *r) {
    static const char *const what[] = {"some", "all"};
    kin children[2];
    checkpoint_calls calls = {0};
    for (size_t i = 0; i < 2; i++) {
        TRY(start_child(r, what[i], &children[i]));
    }
    TRY(find_calls(&calls));
    for (size_t i = 0; i < 2; i++) {
        TRY(run_one(&calls, &children[i], what[i]));
    }
    return NULL;
}

int main(int argc, char **argv) {
    request r = {.mib = 2048};
    const command_option options[] = {{"--device", .device = &r.device},
                                      {"--mib", .number = &r.mib},
                                      {"--child", .text = &r.child, .placeholder = "WHAT"},
                                      {"--read-fd", .number = &r.read_fd},
                                      {"--write-fd", .number = &r.write_fd}};
    command_read("checkpoint", options, sizeof options / sizeof options[0], argc, argv);
    command_end_after(300);
    return command_end(r.child != NULL ? run_child(&r) : run(&r));
}
