/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a block that one process passes to another hold the same bytes in both, whoever writes, and
 * whoever goes first? Two processes, each with an allocator and a driver of its own, are forked
 * before anything is opened; the parent never touches the driver.
 *
 *     share_processes [--virtual] [--device N] [--rounds N] [--deaths N]
 *
 * Rounds: one pair of processes passes so many blocks, of changing size. In turn the importer
 * closes first, or the exporter takes its export back, frees the block and gives its memory to the
 * driver first. In the end neither has a descriptor, an address or device memory more than before.
 * Deaths: so many pairs in which the exporter ends without a word after the import, and as many in
 * which the importer does. Ends with 1 when anything was not as it should be, 77 without a device.
 *
 * With --virtual each process has a virtual GPU of its own: then only what the two say to each
 * other is tested, and bytes are compared in the process that wrote them.
 */
#include "tests/support/complain.h"
#include "tests/support/two_ends.h"
#include "vmm/driver.h"
#include "vmm/range.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_BROKEN = 1, EXIT_NO_DEVICE = 77, SECONDS_PER_WORD = 60 };

typedef struct request {
    bool is_virtual;
    int device;
    unsigned rounds;
    unsigned deaths;
} request;

/* One process: its allocator, and a driver for bytes. */
typedef struct side {
    const request *r;
    int socket;
    ductile_virtual_gpu *gpu; /* --virtual */
    ductile_allocator *a;
    dvmm_driver *driver;
    char *bytes;
} side;

enum { MOST_BYTES = 17 << 20 };

/* ---- A process ----------------------------------------------------------------------------- */

static const char *open_driver(side *s) {
    static char reason[512];
    ductile_status status = s->r->is_virtual
                                ? dvmm_open_virtual(s->gpu, &s->driver)
                                : dvmm_open_cuda(s->r->device, &s->driver, reason, sizeof reason);
    if (status != DUCTILE_OK) {
        (void)fprintf(stderr, "share_processes: skipped: %s\n", reason);
        exit(EXIT_NO_DEVICE);
    }
    return NULL;
}

static const char *open_side(side *s) {
    ductile_options options;
    ductile_options_init(&options);
    NEED_OK(ductile_options_parse(&options, "shareable:fd", NULL, 0));
    options.device = s->r->device;
    if (s->r->is_virtual) {
        NEED_OK(ductile_virtual_create(&s->gpu, NULL));
        options.driver = DUCTILE_DRIVER_VIRTUAL;
        options.virtual_gpu = s->gpu;
    }
    TRY(open_driver(s));
    s->bytes = malloc(MOST_BYTES);
    NEED(s->bytes != NULL, "no host memory");
    NEED_OK(ductile_create(&s->a, &options));
    return NULL;
}

static const char *close_side(side *s) {
    NEED_OK(ductile_destroy(s->a));
    dvmm_close(s->driver);
    ductile_virtual_destroy(s->gpu);
    free(s->bytes);
    return NULL;
}

static const char *write_bytes(side *s, ductile_addr addr, uint8_t value, uint64_t size) {
    NEED_OK(dvmm_fill(s->driver, addr, value, size, NULL));
    NEED_OK(dvmm_stream_sync(s->driver, NULL));
    return NULL;
}

static const char *expect_bytes(side *s, ductile_addr addr, uint8_t value, uint64_t size) {
    NEED_OK(dvmm_read_back(s->driver, s->bytes, addr, size, NULL));
    for (uint64_t i = 0; i < size; i++) {
        NEED((uint8_t)s->bytes[i] == value, "byte %llu of %llu is %02x, not %02x",
             (unsigned long long)i, (unsigned long long)size, (uint8_t)s->bytes[i], value);
    }
    return NULL;
}

/* A word between the two, so that each knows how far the other is. */
static const char *say(const side *s, char word) {
    NEED(send(s->socket, &word, 1, MSG_NOSIGNAL) == 1, "the other process is gone");
    return NULL;
}

static const char *hear(const side *s, char word) {
    char heard = 0;
    NEED(recv(s->socket, &heard, 1, 0) == 1 && heard == word, "expected '%c', not '%c'", word,
         heard);
    return NULL;
}

static const char *hear_the_end(const side *s) {
    char heard = 0;
    NEED(recv(s->socket, &heard, 1, 0) <= 0, "the other process should have ended");
    return NULL;
}

/* ---- Rounds -------------------------------------------------------------------------------- */

static uint64_t size_of(unsigned round) {
    static const uint64_t sizes[] = {4096, 2 << 20, (6 << 20) + 512, 16 << 20, 3 << 20};
    return sizes[round % 5];
}

static bool importer_goes_first(unsigned round) {
    return round % 2 == 0;
}

static const char *export_round(side *s, unsigned round) {
    ductile_addr addr = 0;
    uint64_t size = size_of(round);
    uint8_t value = (uint8_t)(round * 7 + 1);
    NEED_OK(ductile_alloc(s->a, size, NULL, &addr));
    TRY(write_bytes(s, addr, value, size));
    NEED_OK(ductile_export(s->a, addr, s->socket));
    TRY(hear(s, 'w')); /* the importer has seen our bytes and written its own */
    TRY(expect_bytes(s, addr, s->r->is_virtual ? value : (uint8_t)~value, size));
    NEED_OK(ductile_unexport(s->a, addr));
    NEED_OK(ductile_free(s->a, addr));
    NEED_OK(ductile_empty_cache(s->a));
    ductile_stats stats = fixture_stats(s->a);
    NEED(stats.reserved_bytes == 0 && stats.exported_bytes == 0, "memory is still held");
    TRY(say(s, 'u'));
    return hear(s, 'n');
}

static const char *import_round(side *s, unsigned round) {
    ductile_addr addr = 0;
    uint64_t size = 0;
    uint8_t value = (uint8_t)(round * 7 + 1);
    NEED_OK(ductile_import(s->a, s->socket, NULL, &addr, &size));
    NEED(size == size_of(round), "%llu bytes arrived", (unsigned long long)size);
    if (!s->r->is_virtual) {
        TRY(expect_bytes(s, addr, value, size));
    }
    TRY(write_bytes(s, addr, (uint8_t)~value, size));
    if (importer_goes_first(round)) {
        NEED_OK(ductile_import_close(s->a, addr));
    }
    TRY(say(s, 'w'));
    TRY(hear(s, 'u')); /* the exporter's addresses and handles are gone */
    if (!importer_goes_first(round)) {
        TRY(expect_bytes(s, addr, (uint8_t)~value, size));
        NEED_OK(ductile_import_close(s->a, addr));
    }
    NEED(fixture_stats(s->a).imported_bytes == 0, "the import is still mapped");
    return say(s, 'n');
}

/* A virtual GPU keeps an end of every descriptor it made, until it looks whether that is closed. */
static size_t descriptors_now(const side *s) {
    ductile_virtual_state state = {.struct_size = sizeof state};
    if (s->gpu != NULL && ductile_virtual_get_state(s->gpu, &state) != DUCTILE_OK) {
        return SIZE_MAX;
    }
    return count_descriptors();
}

static const char *run_rounds(side *s, const char *(*round)(side *s, unsigned n)) {
    uint64_t free_before = 0;
    uint64_t free_after = 0;
    uint64_t total = 0;
    TRY(round(s, 0)); /* what is made once and kept is there now */
    size_t descriptors = descriptors_now(s);
    uint64_t addresses = dvmm_range_process_total();
    NEED_OK(dvmm_mem_info(s->driver, &free_before, &total));
    for (unsigned i = 1; i < s->r->rounds; i++) {
        const char *why = round(s, i);
        NEED(why == NULL, "round %u: %s", i, why);
    }
    NEED_OK(dvmm_mem_info(s->driver, &free_after, &total));
    size_t now = descriptors_now(s);
    NEED(now == descriptors, "%zu descriptors, %zu before", now, descriptors);
    NEED(dvmm_range_process_total() == addresses, "addresses are still reserved");
    NEED(free_after + (64 << 20) > free_before, "%llu bytes of the device are gone",
         (unsigned long long)(free_before - free_after));
    return NULL;
}

static const char *export_rounds(side *s) {
    return run_rounds(s, export_round);
}

static const char *import_rounds(side *s) {
    return run_rounds(s, import_round);
}

/* ---- Deaths -------------------------------------------------------------------------------- */

enum { DEATH_BYTES = (8 << 20) + 512 };

static const char *export_and_die(side *s) {
    ductile_addr addr = 0;
    NEED_OK(ductile_alloc(s->a, DEATH_BYTES, NULL, &addr));
    TRY(write_bytes(s, addr, 0x3E, DEATH_BYTES));
    NEED_OK(ductile_export(s->a, addr, s->socket));
    _exit(0);
}

static const char *import_and_live(side *s) {
    ductile_addr addr = 0;
    NEED_OK(ductile_import(s->a, s->socket, NULL, &addr, NULL));
    TRY(hear_the_end(s));
    if (!s->r->is_virtual) {
        TRY(expect_bytes(s, addr, 0x3E, DEATH_BYTES));
    }
    TRY(write_bytes(s, addr, 0x3F, DEATH_BYTES));
    TRY(expect_bytes(s, addr, 0x3F, DEATH_BYTES));
    NEED_OK(ductile_import_close(s->a, addr));
    return NULL;
}

static const char *export_and_live(side *s) {
    ductile_addr addr = 0;
    NEED_OK(ductile_alloc(s->a, DEATH_BYTES, NULL, &addr));
    NEED_OK(ductile_export(s->a, addr, s->socket));
    TRY(hear_the_end(s));
    TRY(write_bytes(s, addr, 0x51, DEATH_BYTES));
    TRY(expect_bytes(s, addr, 0x51, DEATH_BYTES));
    NEED_OK(ductile_unexport(s->a, addr));
    NEED_OK(ductile_free(s->a, addr));
    NEED_OK(ductile_empty_cache(s->a));
    NEED(fixture_stats(s->a).reserved_bytes == 0, "memory is still held");
    return NULL;
}

static const char *import_and_die(side *s) {
    ductile_addr addr = 0;
    NEED_OK(ductile_import(s->a, s->socket, NULL, &addr, NULL));
    TRY(write_bytes(s, addr, 0x50, DEATH_BYTES));
    _exit(0);
}

/* ---- Two processes ------------------------------------------------------------------------- */

typedef const char *(*part)(side *s);

static int play(const request *r, int socket, const char *name, part what) {
    side s = {.r = r, .socket = socket};
    const char *why = open_side(&s);
    why = why == NULL ? what(&s) : why;
    why = why == NULL ? close_side(&s) : why;
    if (why != NULL) {
        (void)fprintf(stderr, "share_processes: %s: %s\n", name, why);
        _exit(EXIT_BROKEN); /* what is not given back is not the news */
    }
    return 0;
}

static void limit_waits(int socket) {
    const struct timeval limit = {.tv_sec = SECONDS_PER_WORD};
    (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static pid_t start(const request *r, const int ends[2], int mine, const char *name, part what) {
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(ends[1 - mine]);
        limit_waits(ends[mine]);
        exit(play(r, ends[mine], name, what));
    }
    return pid;
}

static int wait_for(pid_t pid) {
    int status = 0;
    bool ended = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status);
    return ended ? WEXITSTATUS(status) : EXIT_BROKEN;
}

static int run_pair(const request *r, part exporter, part importer) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return EXIT_BROKEN;
    }
    pid_t out = start(r, ends, 0, "exporter", exporter);
    pid_t in = start(r, ends, 1, "importer", importer);
    (void)close(ends[0]);
    (void)close(ends[1]);
    int first = wait_for(out);
    int second = wait_for(in);
    return first != 0 ? first : second;
}

static int run_deaths(const request *r, const char *who, part exporter, part importer) {
    for (unsigned i = 0; i < r->deaths; i++) {
        int code = run_pair(r, exporter, importer);
        if (code != 0) {
            return code;
        }
    }
    (void)printf("%s dies first | %u times | fine\n", who, r->deaths);
    return 0;
}

static int run_all(const request *r) {
    int code = run_pair(r, export_rounds, import_rounds);
    if (code != 0) {
        return code;
    }
    (void)printf("rounds | %u | fine\n", r->rounds);
    code = run_deaths(r, "exporter", export_and_die, import_and_live);
    return code != 0 ? code : run_deaths(r, "importer", export_and_live, import_and_die);
}

/* ---- The command line ---------------------------------------------------------------------- */

static bool parse(request *r, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i];
        if (strcmp(name, "--virtual") == 0) {
            r->is_virtual = true;
            continue;
        }
        if (i + 1 == argc) {
            return false;
        }
        unsigned value = (unsigned)strtoul(argv[++i], NULL, 10);
        if (strcmp(name, "--device") == 0) {
            r->device = (int)value;
        } else if (strcmp(name, "--rounds") == 0) {
            r->rounds = value;
        } else if (strcmp(name, "--deaths") == 0) {
            r->deaths = value;
        } else {
            return false;
        }
    }
    return r->rounds > 0;
}

int main(int argc, char **argv) {
    request r = {.rounds = 1000, .deaths = 10};
    if (!parse(&r, argc, argv)) {
        (void)fprintf(stderr, "usage: share_processes [--virtual] [--device N] [--rounds N] "
                              "[--deaths N]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    return run_all(&r);
}
