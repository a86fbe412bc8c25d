/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does compute-sanitizer know blocks apart (option nvtx:memory)? Runs itself under it:
 *
 *     clean     blocks of many sizes, reused, recycled and trimmed      no report
 *     write     a kernel writes past the end of a block                 reported, with the block
 *     leak      a block is not freed before the context ends            reported, by its name
 *     untold    the same write without the option                       no report: it is the option
 *     early     blocks are freed while kernels still write to them      counted
 *     shapes    which registrations the tool takes, with and without the CUDA runtime: printed
 *
 *     sanitizer_blocks [--device N] [--sanitizer PATH] [--only NAME] [--verbose]
 *
 * Prints the whole report of a run that was not as it should be. Ends with 1 then; 77 without a
 * device, or without a compute-sanitizer that can watch it.
 */
#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/gpu_kernels.h"
#include "vmm/cuda/open.h"
#include "vmm/nvtx/attach.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPORT_ROOM = 1 << 20, PATH_ROOM = 4096, SECONDS_IN_ALL = 280 };

#define BLOCK_BYTES ((size_t)1000) /* not rounded: the bytes behind it are no caller's */
#define EXCESS_WORDS 4

typedef struct request {
    int device;
    const char *sanitizer;
    const char *only;
    const char *child;
    bool is_verbose;
} request;

/* ---- The child: one way to use memory -------------------------------------------------------- */

typedef struct child {
    dvmm_driver *driver;
    gpu_kernels *gpu;
    ductile_allocator *a;
} child;

static void print_log(void *user, ductile_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)printf("child: log: %s\n", line);
}

static const char *open_child(child *c, const request *r, ductile_nvtx nvtx) {
    static char reason[256];
    TRY(gpu_open(r->device, &c->gpu));
    NEED(dvmm_open_cuda(r->device, &c->driver, reason, sizeof reason) == DUCTILE_OK, "%s", reason);
    ductile_options o;
    ductile_options_init(&o);
    o.device = r->device;
    o.nvtx = nvtx;
    o.log = print_log;
    NEED_OK(ductile_create(&c->a, &o));
    return NULL;
}

static const char *close_child(child *c) {
    NEED_OK(ductile_destroy(c->a));
    dvmm_close(c->driver);
    gpu_close(c->gpu);
    return NULL;
}

static const char *write_words(const child *c, ductile_addr at, uint64_t n_words) {
    const gpu_launch fill = {
        .kernel = GPU_FILL_WORDS, .blocks = 1, .threads = 32, .arguments = {at, n_words, 1}};
    NEED(gpu_start(c->gpu, &fill) == 0, "a kernel was not launched");
    return NULL;
}

/* After a report the driver may say that the kernel failed, which is what was wanted. */
static void finish_work(const child *c) {
    ductile_status status = dvmm_context_sync(c->driver);
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
            NEED_OK(ductile_empty_cache(c->a));
        }
    }
    return NULL;
}

/* Blocks 1 and 3 are used well; block 2 is written past its end. */
static const char *write_past_the_end(const child *c) {
    ductile_addr blocks[3];
    for (size_t i = 0; i < 3; i++) {
        NEED_OK(ductile_alloc(c->a, BLOCK_BYTES, NULL, &blocks[i]));
    }
    (void)printf("child: planted 0x%llx\n", (unsigned long long)blocks[1]);
    (void)fflush(stdout);
    TRY(write_words(c, blocks[0], BLOCK_BYTES / sizeof(uint32_t)));
    TRY(write_words(c, blocks[1], BLOCK_BYTES / sizeof(uint32_t) + EXCESS_WORDS));
    finish_work(c);
    return NULL;
}

/* A function of the driver that Ductile has no use for. */
static void find_driver_function(const char *name, void *slot) {
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    memcpy(slot, &found, sizeof found);
}

/* The context ends with block 2 in use: that is when the tool looks for leaks. */
static const char *leak(const child *c, int device) {
    int (*reset)(int) = NULL;
    ductile_addr blocks[3];
    for (size_t i = 0; i < 3; i++) {
        TRY(take_and_fill(c, BLOCK_BYTES, &blocks[i]));
    }
    finish_work(c);
    NEED_OK(ductile_free(c->a, blocks[0]));
    NEED_OK(ductile_free(c->a, blocks[2]));
    (void)printf("child: planted 0x%llx\n", (unsigned long long)blocks[1]);
    (void)fflush(stdout);
    find_driver_function("cuDevicePrimaryCtxReset_v2", &reset);
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

/* ---- The child: what the tool takes ---------------------------------------------------------- */

static void try_heap(const nvtx_tool *t, const char *what, ductile_addr at, uint64_t size) {
    const nvtx_span span = {size, (const void *)(uintptr_t)at};
    const nvtx_heap_description heap = {.compat_id = NVTX_MEMORY_COMPAT,
                                        .struct_size = sizeof heap,
                                        .usage = NVTX_HEAP_SUB_ALLOCATOR,
                                        .type = NVTX_MEMORY_VIRTUAL_ADDRESS,
                                        .type_size = sizeof span,
                                        .type_description = &span};
    nvtx_heap got = t->heap_register(t->domain, &heap);
    (void)printf("child:     heap of %s, 0x%llx: handle %p\n", what, (unsigned long long)at,
                 (void *)got);
    if (got != NULL && got != NVTX_NO_HEAP) {
        t->heap_unregister(t->domain, got);
    }
}

/* Two handles beside each other in a range of three granules. */
static const char *try_mappings(const child *c, const nvtx_tool *t) {
    uint64_t granule = dvmm_get_caps(c->driver)->granule_bytes;
    const dvmm_phys_props props = {0};
    ductile_addr at = 0;
    dvmm_phys handles[2];
    NEED_OK(dvmm_address_reserve(c->driver, 3 * granule, &at));
    for (uint64_t i = 0; i < 2; i++) {
        NEED_OK(dvmm_phys_create(c->driver, granule, &props, &handles[i]));
        NEED_OK(dvmm_map(c->driver, at + i * granule, granule, handles[i]));
    }
    try_heap(t, "a mapping without access", at, granule);
    NEED_OK(dvmm_set_access(c->driver, at, 2 * granule, DVMM_ACCESS_RW));
    try_heap(t, "the first mapping", at, granule);
    try_heap(t, "the second mapping", at + granule, granule);
    try_heap(t, "both mappings", at, 2 * granule);
    try_heap(t, "the whole range", at, 3 * granule);
    try_heap(t, "addresses without memory", at + 2 * granule, granule);
    TRY(write_words(c, at, 1));
    finish_work(c);
    try_heap(t, "both mappings after a kernel", at, 2 * granule);
    for (uint64_t i = 0; i < 2; i++) {
        NEED_OK(dvmm_unmap(c->driver, at + i * granule, granule));
        NEED_OK(dvmm_phys_release(c->driver, handles[i]));
    }
    NEED_OK(dvmm_address_free(c->driver, at, 3 * granule));
    return NULL;
}

/* What every tool takes, if it takes anything: the control. */
static const char *try_plain_memory(const nvtx_tool *t) {
    enum { BYTES = 4 << 20 };
    int (*take)(ductile_addr *, size_t) = NULL;
    int (*give)(ductile_addr) = NULL;
    ductile_addr at = 0;
    find_driver_function("cuMemAlloc_v2", &take);
    find_driver_function("cuMemFree_v2", &give);
    NEED(take != NULL && give != NULL, "there is no cuMemAlloc");
    if (take(&at, BYTES) != 0) {
        (void)printf("child:     no plain memory: no context is current\n");
        return NULL;
    }
    try_heap(t, "plain memory", at, BYTES);
    NEED(give(at) == 0, "plain memory cannot be freed");
    return NULL;
}

static const char *try_memory(const child *c, const nvtx_tool *t, const char *when) {
    (void)printf("child: %s:\n", when);
    TRY(try_plain_memory(t));
    return try_mappings(c, t);
}

static const char *make_context_current(int device) {
    int (*retain)(void **, int) = NULL;
    int (*set)(void *) = NULL;
    void *context = NULL;
    find_driver_function("cuDevicePrimaryCtxRetain", &retain);
    find_driver_function("cuCtxSetCurrent", &set);
    NEED(retain != NULL && set != NULL, "the driver has no contexts");
    NEED(retain(&context, device) == 0 && set(context) == 0, "no context can be made current");
    return NULL;
}

static const char *try_shapes(const child *c, const request *r) {
    char message[512];
    const nvtx_tool *t = dvmm_nvtx_attach(true, message, sizeof message);
    (void)printf("child: tool %s, memory %s; %s\n", t != NULL ? "attached" : "missing",
                 t != NULL && t->has_memory ? "taken" : "not taken", message);
    NEED(t != NULL, "no tool");
    TRY(try_memory(c, t, "as the program begins"));
    TRY(make_context_current(r->device));
    return try_memory(c, t, "with a current context");
}

/* ---- The child ------------------------------------------------------------------------------- */

/* The tool's manual wants the runtime to be started before the first call of NVTX, as it is in
 * nearly all programs. "shapes" shows what is without. */
static bool start_runtime(void) {
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so"};
    int (*release)(void *) = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && release == NULL; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        void *found = library != NULL ? dlsym(library, "cudaFree") : NULL;
        memcpy(&release, &found, sizeof found);
    }
    return release != NULL && release(NULL) == 0;
}

static const char *run_child(const request *r) {
    child c = {NULL, NULL, NULL};
    bool is_told = strcmp(r->child, "untold") != 0;
    bool has_runtime = strcmp(r->child, "shapes") != 0 && start_runtime();
    (void)printf("child: the runtime is %s\n", has_runtime ? "started" : "not started");
    TRY(open_child(&c, r, is_told ? DUCTILE_NVTX_MEMORY : DUCTILE_NVTX_OFF));
    if (strcmp(r->child, "leak") == 0) {
        return leak(&c, r->device);
    }
    if (strcmp(r->child, "write") == 0 || !is_told) {
        return write_past_the_end(&c);
    }
    if (strcmp(r->child, "early") == 0) {
        TRY(free_early(&c));
    } else {
        TRY(strncmp(r->child, "shapes", 6) == 0 ? try_shapes(&c, r) : use_well(&c));
    }
    return close_child(&c);
}

/* ---- The parent: what the tool says ---------------------------------------------------------- */

typedef struct report {
    char text[REPORT_ROOM];
    char command[2 * PATH_ROOM];
    int status;
} report;

static report the_report; /* large */

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

static const char *run_under_sanitizer(const request *r, const char *what, const char *options) {
    char self[PATH_ROOM] = "";
    NEED(readlink("/proc/self/exe", self, sizeof self - 1) > 0, "this program has no path");
    (void)snprintf(the_report.command, sizeof the_report.command,
                   "'%s' --tool memcheck --nvtx yes --leak-check full %s'%s' --device %d --child "
                   "%s 2>&1",
                   r->sanitizer, options, self, r->device, what);
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

/* "nearest allocation at 0x... of size 1000" with the address of the block that was planted. */
static const char *find_block(char *line, size_t size) {
    const char *planted = strstr(the_report.text, "child: planted 0x");
    NEED(planted != NULL, "the child planted nothing");
    unsigned long long at = strtoull(planted + strlen("child: planted "), NULL, 16);
    (void)snprintf(line, size, "nearest allocation at 0x%llx of size %zu", at, BLOCK_BYTES);
    return NULL;
}

static const char *check_clean(void) {
    NEED(says("child: passed"), "the child did not end well");
    NEED(!says("Invalid __global__"), "a use of a live block was reported");
    NEED(!says("ductile block"), "a freed block was reported as leaked");
    return NULL;
}

static const char *check_write(void) {
    char line[128];
    TRY(find_block(line, sizeof line));
    NEED(says("Invalid __global__ write"), "the write past the end was not reported");
    NEED(says(line), "the report does not say \"%s\"", line);
    return NULL;
}

static const char *check_leak(void) {
    NEED(says("child: planted 0x") && says("child: passed"), "the child did not plant its leak");
    NEED(says("ductile block 2 of stream"), "the leaked block was not reported by its name");
    NEED(!says("ductile block 1 of stream") && !says("ductile block 3 of stream"),
         "a freed block was reported as leaked");
    return NULL;
}

static const char *check_untold(void) {
    NEED(says("child: planted 0x"), "the child planted nothing");
    NEED(!says("Invalid __global__ write"), "the write was reported without the option, too");
    return NULL;
}

static const char *check_early(void) {
    NEED(says("child: all work is done"), "the child did not come to its end");
    command_figure("early_frees_reported", count_of("Invalid __global__"));
    return NULL;
}

static const char *check_shapes(void) {
    NEED(says("the first mapping"), "the child did not try");
    return NULL;
}

typedef struct way {
    const char *name;
    const char *child;
    const char *options;
    const char *(*check)(void);
    bool is_printed;
} way;

static const way ways[] = {
    {"shapes", "shapes", "", check_shapes, true},
    {"shapes-runtime", "shapes-runtime", "", check_shapes, true},
    {"clean", "clean", "", check_clean, false},
    {"write", "write", "", check_write, false},
    {"leak", "leak", "", check_leak, false},
    {"untold", "untold", "", check_untold, false},
    {"early", "early", "", check_early, false},
    {"early-blocking", "early", "--force-blocking-launches ", check_early, false},
};

/* A way that fails is run once more with all that the tool can say. */
static int run_way(const request *r, const way *w) {
    const char *why = run_under_sanitizer(r, w->child, w->options);
    if (why == NULL && cannot_watch()) {
        print_report(w->name);
        command_skip("compute-sanitizer cannot watch this device");
    }
    why = why == NULL ? w->check() : why;
    if (why != NULL || w->is_printed || r->is_verbose) {
        print_report(w->name);
    }
    (void)printf("%s: %s\n", w->name, why != NULL ? why : "as it should be");
    if (why == NULL) {
        return COMMAND_PASSED;
    }
    if (run_under_sanitizer(r, w->child, "--print-level info ") == NULL) {
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
    (void)unsetenv("DUCTILE_CONF");
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
