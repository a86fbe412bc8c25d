/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does compute-sanitizer find a program's mistakes with blocks, with the option find:overruns? Runs
 * itself under it:
 *
 *     clean     blocks of many sizes, reused, recycled and trimmed      no report
 *     early     blocks are freed while kernels still write to them      no report: that is allowed
 *     write     a kernel writes past the end of a block                 reported, beside the block
 *     stale     a kernel writes to a block that was freed               reported
 *     leak      a block is not freed before the context ends            it alone is reported
 *     untold    the write without the option                            no report: it is the option
 *
 *     sanitizer_blocks [--device N] [--sanitizer PATH] [--only NAME] [--verbose]
 *
 * Prints the whole report of a run that was not as it should be. Ends with 1 then; 77 without a
 * device, or without a compute-sanitizer that can watch it.
 */
#include "tests/support/program_device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_ROOM = 1 << 20, PATH_ROOM = 4096, SECONDS_IN_ALL = 280 };

#define GRANULE ((unsigned long long)2 << 20)
#define BLOCK_BYTES ((size_t)1000) /* not rounded: the bytes behind it are no caller's */
#define EXCESS_WORDS 16            /* blocks end at a multiple of 512 bytes */

typedef struct request {
    int device;
    const char *sanitizer;
    const char *only;
    const char *child;
    bool is_verbose;
} request;

/* ---- The child: one way to use memory -------------------------------------------------------- */

typedef struct child {
    program_device on;
    gpu_kernels *gpu;
    ductile_allocator *a;
} child;

static void print_log(void *user, ductile_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)printf("child: log: %s\n", line);
}

static const char *open_child(child *c, const request *r) {
    ductile_options o;
    c->on.device = r->device;
    TRY(gpu_open(r->device, &c->gpu));
    TRY(program_open_driver(&c->on, NULL));
    ductile_options_init(&o);
    o.device = r->device;
    o.log = print_log;
    NEED_OK(ductile_create(&c->a, &o));
    return NULL;
}

static const char *close_child(child *c) {
    NEED_OK(ductile_destroy(c->a));
    gpu_close(c->gpu);
    return program_close(&c->on);
}

static const char *write_words(const child *c, ductile_addr at, uint64_t n_words) {
    const gpu_launch fill = {
        .kernel = GPU_FILL_WORDS, .blocks = 1, .threads = 32, .arguments = {at, n_words, 1}};
    NEED(gpu_start(c->gpu, &fill) == 0, "a kernel was not launched");
    return NULL;
}

/* After a report the driver may say that the kernel failed, which is what was wanted. */
static void finish_work(const child *c) {
    ductile_status status = dvmm_context_sync(c->on.driver);
    (void)printf("child: all work is done: %s\n", ductile_status_name(status));
}

static const char *take_and_fill(const child *c, size_t bytes, ductile_addr *out) {
    NEED_OK(ductile_alloc(c->a, bytes, NULL, out));
    return write_words(c, *out, bytes / sizeof(uint32_t));
}

static const char *use_well(const child *c) {
    static const size_t sizes[] = {4, 1000, 70000, (size_t)3 << 20, (size_t)37 << 20};
    enum { N = sizeof sizes / sizeof sizes[0] };
    ductile_addr blocks[N] = {0};
    for (int round = 0; round < 6; round++) {
        for (size_t i = 0; i < N; i++) {
            TRY(take_and_fill(c, sizes[(i + (size_t)round) % N], &blocks[i]));
        }
        finish_work(c);
        for (size_t i = 0; i < N; i++) {
            NEED_OK(ductile_free(c->a, blocks[i]));
        }
        if (round % 2 == 1) {
            NEED_OK(ductile_trim(c->a, NULL, 0, NULL));
        }
    }
    return NULL;
}

static void say_planted(ductile_addr at) {
    (void)printf("child: planted 0x%llx\n", (unsigned long long)at);
    (void)fflush(stdout);
}

/* Blocks 1 and 3 are used well; block 2 is written past its end. */
static const char *write_past_the_end(const child *c) {
    ductile_addr blocks[3];
    for (size_t i = 0; i < 3; i++) {
        NEED_OK(ductile_alloc(c->a, BLOCK_BYTES, NULL, &blocks[i]));
    }
    say_planted(blocks[1]);
    TRY(write_words(c, blocks[0], BLOCK_BYTES / sizeof(uint32_t)));
    TRY(write_words(c, blocks[1], BLOCK_BYTES / sizeof(uint32_t) + EXCESS_WORDS));
    finish_work(c);
    return NULL;
}

/* Of three blocks only the second stays; what the others had is given back. */
static const char *keep_the_second(const child *c, ductile_addr blocks[3]) {
    for (size_t i = 0; i < 3; i++) {
        TRY(take_and_fill(c, BLOCK_BYTES, &blocks[i]));
    }
    finish_work(c);
    NEED_OK(ductile_free(c->a, blocks[0]));
    NEED_OK(ductile_free(c->a, blocks[2]));
    NEED_OK(ductile_trim(c->a, NULL, 0, NULL));
    return NULL;
}

static const char *write_to_the_freed(const child *c) {
    ductile_addr blocks[3];
    TRY(keep_the_second(c, blocks));
    say_planted(blocks[2]);
    TRY(write_words(c, blocks[2], 1));
    finish_work(c);
    return NULL;
}

/* The context ends with block 2 in use: that is when the tool looks for leaks. */
static const char *leak(const child *c, int device) {
    int (*reset)(int) = NULL;
    ductile_addr blocks[3];
    TRY(keep_the_second(c, blocks));
    say_planted(blocks[1]);
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuDevicePrimaryCtxReset_v2");
    memcpy(&reset, &found, sizeof reset);
    NEED(reset != NULL && reset(device) == 0, "the context cannot be reset");
    return NULL;
}

static const char *free_early(const child *c) {
    for (int i = 0; i < 50; i++) {
        ductile_addr block = 0;
        TRY(take_and_fill(c, (size_t)8 << 20, &block));
        NEED_OK(ductile_free(c->a, block));
    }
    finish_work(c);
    return NULL;
}

static const char *run_child(const request *r) {
    child c = {.a = NULL};
    TRY(open_child(&c, r));
    if (strcmp(r->child, "leak") == 0) {
        return leak(&c, r->device);
    }
    if (strcmp(r->child, "write") == 0) {
        return write_past_the_end(&c);
    }
    if (strcmp(r->child, "stale") == 0) {
        return write_to_the_freed(&c);
    }
    TRY(strcmp(r->child, "early") == 0 ? free_early(&c) : use_well(&c));
    return close_child(&c);
}

/* ---- The parent: what the tool says ---------------------------------------------------------- */

typedef struct report {
    char text[REPORT_ROOM];
    char command[2 * PATH_ROOM];
    int status;
} report;

static report the_report; /* large */

typedef struct way {
    const char *name;
    const char *child;
    const char *conf;
    const char *(*check)(void);
} way;

/* Without the commas that group digits. */
static void drop_commas(char *text) {
    char *to = text;
    for (const char *from = text; *from != '\0'; from++) {
        if (*from != ',') {
            *to++ = *from;
        }
    }
    *to = '\0';
}

static const char *run_under_sanitizer(const request *r, const way *w, const char *options) {
    char self[PATH_ROOM] = "";
    NEED(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "this program has no path");
    (void)snprintf(the_report.command, sizeof the_report.command,
                   "DUCTILE_CONF=%s '%s' --tool memcheck --leak-check full %s'%s' --device %d "
                   "--child %s 2>&1",
                   w->conf, r->sanitizer, options, self, r->device, w->child);
    (void)fflush(stdout);
    FILE *pipe = popen(the_report.command, "r");
    NEED(pipe != NULL, "no pipe");
    size_t n = fread(the_report.text, 1, sizeof the_report.text - 1, pipe);
    the_report.text[n] = '\0';
    the_report.status = pclose(pipe);
    drop_commas(the_report.text);
    return NULL;
}

static void print_report(const char *what) {
    (void)printf("---- %s: %s\n%s---- %s ended with %d\n", what, the_report.command,
                 the_report.text, what, the_report.status);
}

static bool says(const char *words) {
    return strstr(the_report.text, words) != NULL;
}

static uint64_t count_of(const char *words) {
    uint64_t n = 0;
    for (const char *at = the_report.text; (at = strstr(at, words)) != NULL; at++) {
        n++;
    }
    return n;
}

/* What compute-sanitizer says on machines where it works on no program. */
static bool cannot_watch(void) {
    return says("Device not supported") || says("Unable to find injection library") ||
           says("Failed to initialize");
}

/* What it knows of memory is a mapping: "4 bytes after the nearest allocation at 0x... of size
 * 2097152". With the option a block ends where its mapping does. */
static const char *find_block(char *line, size_t size) {
    const char *planted = strstr(the_report.text, "child: planted 0x");
    NEED(planted != NULL, "the child planted nothing");
    unsigned long long at = strtoull(planted + strlen("child: planted "), NULL, 16);
    (void)snprintf(line, size, "0x%llx", at / GRANULE * GRANULE);
    return NULL;
}

static const char *check_clean(void) {
    NEED(says("child: passed"), "the child did not end well");
    NEED(!says("Invalid __global__"), "a use of a live block was reported");
    NEED(!says("Leaked"), "a freed block was reported as leaked");
    return NULL;
}

static const char *check_write(void) {
    char mapping[32];
    TRY(find_block(mapping, sizeof mapping));
    NEED(says("Invalid __global__ write"), "the write past the end was not reported");
    NEED(says("after the nearest allocation at ") && says(mapping),
         "the report does not name the memory at %s", mapping);
    return NULL;
}

static const char *check_stale(void) {
    NEED(says("child: planted 0x"), "the child planted nothing");
    NEED(says("Invalid __global__ write"), "the write to freed memory was not reported");
    return NULL;
}

static const char *check_leak(void) {
    char mapping[32];
    TRY(find_block(mapping, sizeof mapping));
    NEED(says("child: passed"), "the child did not end well");
    NEED(count_of("Leaked ") == 1, "%llu leaks were reported, of one",
         (unsigned long long)count_of("Leaked "));
    NEED(says(mapping), "the leak that was reported is not the memory at %s", mapping);
    return NULL;
}

static const char *check_untold(void) {
    NEED(says("child: planted 0x"), "the child planted nothing");
    NEED(!says("Invalid __global__ write"), "the write was reported without the option, too");
    return NULL;
}

static const way ways[] = {
    {"clean", "clean", "find:overruns", check_clean},
    {"early", "early", "find:overruns", check_clean},
    {"write", "write", "find:overruns", check_write},
    {"stale", "stale", "find:overruns", check_stale},
    {"leak", "leak", "find:overruns", check_leak},
    {"untold", "write", "find:none", check_untold},
};

/* A way that fails is run once more with all that the tool can say. */
static int run_way(const request *r, const way *w) {
    const char *why = run_under_sanitizer(r, w, "");
    if (why == NULL && cannot_watch()) {
        print_report(w->name);
        command_skip("compute-sanitizer cannot watch this device");
    }
    why = why == NULL ? w->check() : why;
    if (why != NULL || r->is_verbose) {
        print_report(w->name);
    }
    (void)printf("%s: %s\n", w->name, why != NULL ? why : "as it should be");
    if (why == NULL) {
        return COMMAND_PASSED;
    }
    if (run_under_sanitizer(r, w, "--print-level info ") == NULL) {
        print_report("once more, with --print-level info");
    }
    return COMMAND_BROKEN;
}

static int run_ways(const request *r) {
    int status = COMMAND_PASSED;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        if (r->only == NULL || strcmp(r->only, ways[i].name) == 0) {
            int ended = run_way(r, &ways[i]);
            status = status == COMMAND_PASSED ? ended : status;
        }
    }
    return status;
}

/* ---- The program ----------------------------------------------------------------------------- */

static const char *find_sanitizer(void) {
    static const char *const places[] = {"compute-sanitizer",
                                         "/usr/local/cuda/bin/compute-sanitizer",
                                         "/usr/local/cuda/compute-sanitizer/compute-sanitizer",
                                         "/opt/nvidia/compute-sanitizer/compute-sanitizer"};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char command[PATH_ROOM];
        (void)snprintf(command, sizeof command, "'%s' --version >/dev/null 2>&1", places[i]);
        if (system(command) == 0) {
            return places[i];
        }
    }
    return NULL;
}

static void need_device(const request *r) {
    gpu_kernels *gpu = NULL;
    const char *why = gpu_open(r->device, &gpu);
    if (why != NULL) {
        command_skip(why);
    }
    gpu_close(gpu);
}

int main(int argc, char **argv) {
    request r = {.device = 0};
    const command_option options[] = {
        {"--device", .device = &r.device},
        {"--sanitizer", .text = &r.sanitizer, .placeholder = "PATH"},
        {"--only", .text = &r.only, .placeholder = "NAME"},
        {"--verbose", .flag = &r.is_verbose},
        {"--child", .text = &r.child, .placeholder = "NAME"},
    };
    command_read("sanitizer_blocks", options, sizeof options / sizeof *options, argc, argv);
    if (r.child != NULL) {
        const char *why = run_child(&r);
        (void)printf("child: %s\n", why == NULL ? "passed" : why);
        return command_end(why);
    }
    command_end_after(SECONDS_IN_ALL);
    need_device(&r);
    r.sanitizer = r.sanitizer != NULL ? r.sanitizer : find_sanitizer();
    if (r.sanitizer == NULL) {
        command_skip("there is no compute-sanitizer on the PATH or in the CUDA toolkit");
    }
    return run_ways(&r);
}
