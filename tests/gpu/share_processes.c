/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a block that one process passes to another hold the same bytes in both, whichever writes,
 * and whichever ends first? Two processes, each with an allocator and a driver of its own, are
 * forked before anything is opened; the parent never touches the driver.
 *
 *     share_processes [--virtual] [--device N] [--import-device N] [--rounds N] [--deaths N]
 *
 * Rounds: one pair of processes passes so many blocks, of changing size. In turn the importer
 * closes first, or the exporter takes its export back, frees the block and gives its memory to the
 * driver first. In the end neither has a descriptor, an address or device memory more than before.
 * Deaths: so many exporters end without a word after the import, and one importer outlives them
 * all; then as many importers, and one exporter. In the end the device has the memory it had.
 * Ends with 1 when anything was not as it should be, 77 without the devices it needs.
 *
 * With another --import-device the importer works on that GPU, which has to reach the first one.
 * From the middle of the rounds on, the exporter's GPU is enabled there as well.
 *
 * "Memory it had" means within SLACK_BYTES: the driver keeps tables of its own, and every process
 * on the device counts, so no other process may use the device meanwhile.
 *
 * With --virtual each process has a virtual GPU of its own: then only what the two say to each
 * other is tested, and bytes are compared in the process that wrote them.
 */
#include "bench/driver/bench_calls.h"
#include "tests/support/in_child.h"
#include "tests/support/program_blocks.h"
#include "tests/support/two_ends.h"
#include "vmm/range.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

enum { SECONDS_PER_WORD = 60, SLACK_BYTES = 64 << 20, MOST_DEATHS = 256 };

typedef struct request {
    program_device on; /* the exporter's; not opened */
    int import_device; /* -1: the same */
    uint64_t rounds;
    uint64_t deaths;
} request;

/* One process: its allocator, and a driver for bytes. */
typedef struct side {
    const request *r;
    program_device on;
    int socket;         /* to the process it speaks with now */
    const int *sockets; /* to those that it outlives          */
    ductile_allocator *a;
    char *bytes;
} side;

enum { MOST_BYTES = 17 << 20 };

/* ---- A process ----------------------------------------------------------------------------- */

static const char *open_side(side *s) {
    TRY(program_open_driver(&s->on, NULL));
    s->bytes = malloc(MOST_BYTES);
    NEED(s->bytes != NULL, "no host memory");
    NEED_OK(program_create(&s->on, 0, "shareable:fd", &s->a));
    return NULL;
}

static const char *close_side(side *s) {
    NEED_OK(ductile_destroy(s->a));
    free(s->bytes);
    return program_close(&s->on);
}

static const char *write_bytes(side *s, ductile_addr addr, uint8_t value, uint64_t size) {
    NEED_OK(dvmm_fill(s->on.driver, addr, value, size, NULL));
    NEED_OK(dvmm_stream_sync(s->on.driver, NULL));
    return NULL;
}

static const char *expect_bytes(side *s, ductile_addr addr, uint8_t value, uint64_t size) {
    memset(s->bytes, ~value, size);
    NEED_OK(bench_read_back(s->on.driver, s->bytes, addr, size, NULL));
    if ((uint8_t)s->bytes[0] == value && memcmp(s->bytes, s->bytes + 1, size - 1) == 0) {
        return NULL;
    }
    uint64_t i = 0;
    while (i < size && (uint8_t)s->bytes[i] == value) {
        i++;
    }
    return complain("byte %llu of %llu is %02x, not %02x", (unsigned long long)i,
                    (unsigned long long)size, i < size ? (uint8_t)s->bytes[i] : 0, value);
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
    TRY(expect_bytes(s, addr, s->r->on.is_virtual ? value : (uint8_t)~value, size));
    NEED_OK(ductile_unexport(s->a, addr));
    NEED_OK(ductile_free(s->a, addr));
    NEED_OK(ductile_trim(s->a, NULL, 0, NULL));
    ductile_stats stats = fixture_stats(s->a);
    NEED(stats.reserved_bytes == 0 && stats.exported_bytes == 0, "memory is still held");
    TRY(say(s, 'u'));
    return hear(s, 'n');
}

static bool is_crossing(const request *r) {
    return !r->on.is_virtual && r->import_device >= 0 && r->import_device != r->on.device;
}

/* Memory that came from another GPU is opened to that one again. */
static const char *enable_exporter(side *s, unsigned round) {
    if (is_crossing(s->r) && round >= s->r->rounds / 2) {
        NEED_OK(ductile_enable_peer(s->a, s->r->on.device));
    }
    return NULL;
}

static const char *ask_access(side *s, ductile_addr addr, unsigned round) {
    dvmm_access own = DVMM_ACCESS_NONE;
    dvmm_access of_exporter = DVMM_ACCESS_NONE;
    if (!is_crossing(s->r)) {
        return NULL;
    }
    NEED_OK(bench_get_access_for(s->on.driver, addr, s->on.device, &own));
    NEED(own == DVMM_ACCESS_RW, "the importer's GPU has access %d", (int)own);
    if (round >= s->r->rounds / 2) {
        NEED_OK(bench_get_access_for(s->on.driver, addr, s->r->on.device, &of_exporter));
        NEED(of_exporter == DVMM_ACCESS_RW, "the enabled GPU has access %d", (int)of_exporter);
    }
    return NULL;
}

static const char *import_round(side *s, unsigned round) {
    ductile_addr addr = 0;
    uint64_t size = 0;
    uint8_t value = (uint8_t)(round * 7 + 1);
    TRY(enable_exporter(s, round));
    NEED_OK(ductile_import(s->a, s->socket, NULL, &addr, &size));
    NEED(size == size_of(round), "%llu bytes arrived", (unsigned long long)size);
    TRY(ask_access(s, addr, round));
    if (!s->r->on.is_virtual) {
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
    if (s->on.gpu != NULL && ductile_virtual_get_state(s->on.gpu, &state) != DUCTILE_OK) {
        return SIZE_MAX;
    }
    return count_descriptors();
}

/* The first one makes what is made once and kept; the others may leave nothing behind. */
static const char *repeat(side *s, uint64_t n, const char *(*once)(side *s, unsigned i)) {
    TRY(once(s, 0));
    size_t descriptors = descriptors_now(s);
    uint64_t addresses = dvmm_range_process_total();
    for (unsigned i = 1; i < n; i++) {
        const char *why = once(s, i);
        NEED(why == NULL, "number %u: %s", i, why);
    }
    size_t now = descriptors_now(s);
    NEED(now == descriptors, "%zu descriptors, %zu before", now, descriptors);
    NEED(dvmm_range_process_total() == addresses, "addresses are still reserved");
    return NULL;
}

static const char *expect_free(uint64_t now, uint64_t before) {
    NEED(now + SLACK_BYTES > before, "%llu bytes of the device are gone",
         (unsigned long long)(before - now));
    return NULL;
}

static const char *run_rounds(side *s, const char *(*round)(side *s, unsigned n)) {
    uint64_t free_before = 0;
    uint64_t free_after = 0;
    TRY(round(s, 0));
    TRY(program_free_bytes(s->on.driver, &free_before));
    TRY(repeat(s, s->r->rounds, round));
    TRY(program_free_bytes(s->on.driver, &free_after));
    return expect_free(free_after, free_before);
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

static const char *outlive_exporter(side *s, unsigned i) {
    ductile_addr addr = 0;
    s->socket = s->sockets[i];
    NEED_OK(ductile_import(s->a, s->socket, NULL, &addr, NULL));
    TRY(hear_the_end(s));
    if (!s->r->on.is_virtual) {
        TRY(expect_bytes(s, addr, 0x3E, DEATH_BYTES));
    }
    TRY(write_bytes(s, addr, 0x3F, DEATH_BYTES));
    TRY(expect_bytes(s, addr, 0x3F, DEATH_BYTES));
    NEED_OK(ductile_import_close(s->a, addr));
    NEED(fixture_stats(s->a).imported_bytes == 0, "the import is still mapped");
    return NULL;
}

static const char *outlive_exporters(side *s) {
    return repeat(s, s->r->deaths, outlive_exporter);
}

static const char *import_and_die(side *s) {
    ductile_addr addr = 0;
    NEED_OK(ductile_import(s->a, s->socket, NULL, &addr, NULL));
    TRY(write_bytes(s, addr, 0x50, DEATH_BYTES));
    _exit(0);
}

static const char *outlive_importer(side *s, unsigned i) {
    ductile_addr addr = 0;
    s->socket = s->sockets[i];
    NEED_OK(ductile_alloc(s->a, DEATH_BYTES, NULL, &addr));
    NEED_OK(ductile_export(s->a, addr, s->socket));
    TRY(hear_the_end(s));
    TRY(write_bytes(s, addr, 0x51, DEATH_BYTES));
    TRY(expect_bytes(s, addr, 0x51, DEATH_BYTES));
    NEED_OK(ductile_unexport(s->a, addr));
    NEED_OK(ductile_free(s->a, addr));
    NEED_OK(ductile_trim(s->a, NULL, 0, NULL));
    NEED(fixture_stats(s->a).reserved_bytes == 0, "memory is still held");
    return NULL;
}

static const char *outlive_importers(side *s) {
    return repeat(s, s->r->deaths, outlive_importer);
}

/* ---- Processes ------------------------------------------------------------------------------ */

typedef const char *(*part)(side *s);

typedef enum role { EXPORTER, IMPORTER } role;

static const char *name_of(role who) {
    return who == EXPORTER ? "exporter" : "importer";
}

static int device_of(const request *r, role who) {
    return who == IMPORTER && is_crossing(r) ? r->import_device : r->on.device;
}

static int run_side(side *s, role who, part what) {
    s->on.device = device_of(s->r, who);
    const char *why = open_side(s);
    why = why == NULL ? what(s) : why;
    why = why == NULL ? close_side(s) : why;
    if (why != NULL) {
        (void)fprintf(stderr, "share_processes: %s: %s\n", name_of(who), why);
        _exit(COMMAND_BROKEN); /* what is not given back is not the news */
    }
    return 0;
}

static void limit_waits(int socket) {
    const struct timeval limit = {.tv_sec = SECONDS_PER_WORD};
    (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

/* One pair of sockets after the other; the ends of one kind of process beside each other, so that
 * the survivor is given all of its own. Index 0: the exporter's or the survivor's. */
typedef struct lines {
    int ends[2][MOST_DEATHS];
    unsigned n;
} lines;

static void close_ends(const lines *l, int which) {
    for (unsigned i = 0; i < l->n; i++) {
        (void)close(l->ends[which][i]);
    }
}

static bool open_lines(lines *l, uint64_t n) {
    for (l->n = 0; l->n < n; l->n++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
            close_ends(l, 0);
            close_ends(l, 1);
            return false;
        }
        l->ends[0][l->n] = ends[0];
        l->ends[1][l->n] = ends[1];
        limit_waits(ends[0]);
        limit_waits(ends[1]);
    }
    return true;
}

/* A process that speaks by ends `which`, from number i on, and does not know the other ones. */
static pid_t start(const request *r, const lines *l, int which, unsigned i, role who, part what) {
    pid_t pid = fork();
    if (pid == 0) {
        side s = {.r = r, .on = r->on, .socket = l->ends[which][i], .sockets = l->ends[which]};
        close_ends(l, 1 - which);
        exit(run_side(&s, who, what));
    }
    return pid;
}

static int wait_for(pid_t pid) {
    int status = exit_status_of(pid);
    return status >= 0 ? status : COMMAND_BROKEN;
}

static int run_pair(const request *r) {
    static lines l;
    if (!open_lines(&l, 1)) {
        return COMMAND_BROKEN;
    }
    pid_t out = start(r, &l, 0, 0, EXPORTER, export_rounds);
    pid_t in = start(r, &l, 1, 0, IMPORTER, import_rounds);
    close_ends(&l, 0);
    close_ends(&l, 1);
    int first = wait_for(out);
    int second = wait_for(in);
    if (first == 0 && second == 0) {
        (void)printf("rounds | %llu | fine\n", (unsigned long long)r->rounds);
    }
    return first != 0 ? first : second;
}

/* One survivor, and one after the other whom it outlives. An end is closed here once its process
 * has it, so that its death is heard. */
static int run_deaths(const request *r, role who_dies, part die, part outlive) {
    static lines l;
    int code = 0;
    if (r->deaths == 0) {
        return 0;
    }
    if (!open_lines(&l, r->deaths)) {
        return COMMAND_BROKEN;
    }
    pid_t survivor = start(r, &l, 0, 0, who_dies == EXPORTER ? IMPORTER : EXPORTER, outlive);
    close_ends(&l, 0);
    l.n = 0; /* nothing of the survivor's is left here for the others to close */
    for (unsigned i = 0; i < r->deaths; i++) {
        pid_t mortal = code == 0 ? start(r, &l, 1, i, who_dies, die) : 0;
        (void)close(l.ends[1][i]);
        code = code == 0 ? wait_for(mortal) : code;
    }
    int survived = wait_for(survivor);
    code = code != 0 ? code : survived;
    if (code == 0) {
        (void)printf("%s dies first | %llu times | fine\n", name_of(who_dies),
                     (unsigned long long)r->deaths);
    }
    return code;
}

/* ---- The device beside them ---------------------------------------------------------------- */

/* Shared with the child that asks. */
typedef struct free_memory {
    const request *r;
    uint64_t free_bytes;
} free_memory;

static free_memory *seen;

static const char *need_reach(const request *r, dvmm_driver *exporter) {
    program_device importer = {.device = r->import_device};
    bool can = false;
    TRY(program_open_driver(&importer, NULL));
    if (dvmm_can_access_peer(exporter, r->import_device, &can) != DUCTILE_OK || !can) {
        command_skip("the importer's device cannot reach memory of the exporter's");
    }
    return program_close(&importer);
}

static const char *ask_devices(void) {
    program_device on = seen->r->on;
    TRY(program_open_driver(&on, NULL));
    TRY(is_crossing(seen->r) ? need_reach(seen->r, on.driver) : NULL);
    TRY(program_free_bytes(on.driver, &seen->free_bytes));
    return program_close(&on);
}

static int ask_in_child(void) {
    return ask_devices() == NULL ? COMMAND_PASSED : COMMAND_BROKEN;
}

/* What the exporter's device has free while none of the others is there. In a process of its own:
 * nothing of CUDA may be open where the others are made. */
static int ask_free(const request *r, uint64_t *out) {
    *out = 0;
    if (r->on.is_virtual) {
        return 0;
    }
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED) {
        return COMMAND_BROKEN;
    }
    seen->r = r;
    int code = in_child(ask_in_child);
    *out = seen->free_bytes;
    return code >= 0 ? code : COMMAND_BROKEN;
}

static int compare_free(const request *r, uint64_t before) {
    uint64_t after = 0;
    int code = ask_free(r, &after);
    const char *why = code == 0 ? expect_free(after, before) : "the device cannot be asked";
    if (why != NULL) {
        (void)fprintf(stderr, "share_processes: after all: %s\n", why);
        return COMMAND_BROKEN;
    }
    if (!r->on.is_virtual) {
        (void)printf("free on the device | %llu before | %llu after\n", (unsigned long long)before,
                     (unsigned long long)after);
    }
    return 0;
}

static int run_all(const request *r) {
    uint64_t before = 0;
    int code = ask_free(r, &before);
    code = code != 0 ? code : run_pair(r);
    code = code != 0 ? code : run_deaths(r, EXPORTER, export_and_die, outlive_exporters);
    code = code != 0 ? code : run_deaths(r, IMPORTER, import_and_die, outlive_importers);
    return code != 0 ? code : compare_free(r, before);
}

/* ---- The command line ---------------------------------------------------------------------- */

int main(int argc, char **argv) {
    request r = {.import_device = -1, .rounds = 1000, .deaths = 10};
    const command_option options[] = {
        PROGRAM_OPTIONS(&r.on),
        {"--import-device", .device = &r.import_device},
        {"--rounds", .number = &r.rounds},
        {"--deaths", .number = &r.deaths},
    };
    command_read("share_processes", options, sizeof options / sizeof *options, argc, argv);
    if (r.rounds == 0 || r.rounds > UINT32_MAX || r.deaths > MOST_DEATHS) {
        command_refuse("too few or too many rounds or deaths");
    }
    (void)setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    return run_all(&r);
}
