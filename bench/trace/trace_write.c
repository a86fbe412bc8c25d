/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/trace_write.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* ---- The text ------------------------------------------------------------------------------ */

/* In a builder without named uses, a completion means a use by the next stream by number. */
typedef struct writer {
    FILE *out;
    const trace_builder *from;
    size_t next_stream[TRACE_MAX_STREAMS]; /* by order of appearance */
    size_t next_refusal;
} writer;

static uint64_t number_of(const writer *w, size_t stream) {
    return w->from->streams[stream].number;
}

/* The stream with the next higher number; for the highest, the lowest. */
static size_t find_next_stream(const trace_builder *b, size_t stream) {
    size_t next = stream;
    size_t lowest = stream;
    uint64_t own = b->streams[stream].number;
    for (size_t i = 0; i < b->n_streams; i++) {
        uint64_t number = b->streams[i].number;
        if (number > own && (next == stream || number < b->streams[next].number)) {
            next = i;
        }
        lowest = number < b->streams[lowest].number ? i : lowest;
    }
    return next != stream ? next : lowest;
}

/* In a trace of one stream no other stream can have used the block: its free moves to the
 * completion. */
static bool completes_alone(const writer *w) {
    return !w->from->names_uses && w->from->n_streams == 1;
}

static void write_pool(const writer *w, uint16_t pool) {
    const ductile_pool_id *id = &w->from->pools.ids[pool - 1];
    (void)fprintf(w->out, " %" PRIu64 ":%" PRIu64, id->first, id->second);
}

/* Refusals come in the order of their blocks; one that is no block cannot be written. */
static const trace_refusal *refusal_of(writer *w, size_t block) {
    const trace_refusal *all = w->from->refusals;
    while (all[w->next_refusal].n_blocks < block || !all[w->next_refusal].is_replayed) {
        w->next_refusal++;
    }
    return &all[w->next_refusal];
}

static void write_alloc(writer *w, const trace_event *event) {
    bool is_refused = w->from->blocks[event->slot].is_refused;
    (void)fprintf(w->out, "%c %" PRIu32 " %" PRIu64 " %" PRIu64, is_refused ? 'r' : 'a',
                  event->slot, event->size, number_of(w, event->stream));
    if (is_refused) {
        const trace_refusal *refusal = refusal_of(w, event->slot);
        (void)fprintf(w->out, " %" PRIu64 " %" PRIu64, refusal->held_bytes,
                      refusal->device_free_bytes);
    }
    if (w->from->blocks[event->slot].pool != 0) {
        write_pool(w, w->from->blocks[event->slot].pool);
    }
    (void)putc('\n', w->out);
}

static void write_kept(const writer *w) {
    for (size_t i = 0; i < w->from->n_kept; i++) {
        const trace_kept *kept = &w->from->kept[i];
        (void)fprintf(w->out, "k %" PRIu64 " %" PRIu64, kept->size, number_of(w, kept->stream));
        write_pool(w, kept->pool);
        (void)putc('\n', w->out);
    }
}

static void write_pool_end(const writer *w, const trace_event *event) {
    (void)putc('p', w->out);
    write_pool(w, event->pool);
    (void)putc('\n', w->out);
}

static void write_free(const writer *w, const trace_event *event) {
    const build_block *block = &w->from->blocks[event->slot];
    if (block->is_refused) {
        return; /* its line says it */
    }
    bool is_late = block->state == BUILD_COMPLETED || block->state == BUILD_PENDING;
    if (is_late && completes_alone(w)) {
        return;
    }
    if (is_late && !w->from->names_uses) {
        (void)fprintf(w->out, "u %" PRIu32 " %" PRIu64 "\n", event->slot,
                      number_of(w, w->next_stream[block->stream]));
    }
    (void)fprintf(w->out, "f %" PRIu32 "\n", event->slot);
}

static int version_of(const trace_builder *b) {
    return b->uses_pools ? 5 : b->n_refused > 0 ? 4 : b->n_stream_ends > 0 ? 3 : 2;
}

static void write_event(writer *w, const trace_event *event) {
    switch ((trace_kind)event->kind) {
    case TRACE_ALLOC:
        write_alloc(w, event);
        break;
    case TRACE_USE:
        (void)fprintf(w->out, "u %" PRIu32 " %" PRIu64 "\n", event->slot,
                      number_of(w, event->stream));
        break;
    case TRACE_FREE:
        write_free(w, event);
        break;
    case TRACE_OPEN:
        (void)fprintf(w->out, completes_alone(w) ? "f %" PRIu32 "\n" : "c %" PRIu32 "\n",
                      event->slot);
        break;
    case TRACE_STEP:
        (void)fputs("s\n", w->out);
        break;
    case TRACE_STREAM_END:
        (void)fprintf(w->out, event->size != 0 ? "e %" PRIu64 "\n" : "d %" PRIu64 "\n",
                      number_of(w, event->stream));
        break;
    case TRACE_POOL_END:
        write_pool_end(w, event);
        break;
    case TRACE_FREE_GATED: /* never gathered */
        break;
    }
}

/* Uses that outlive the trace end with it. */
static void write_open_ends(const writer *w) {
    for (size_t i = 0; i < w->from->n_blocks; i++) {
        if (w->from->blocks[i].state == BUILD_PENDING && !completes_alone(w)) {
            (void)fprintf(w->out, "c %zu\n", i);
        }
    }
}

bool trace_write(const trace_builder *b, FILE *out) {
    writer w = {.out = out, .from = b};
    for (size_t i = 0; i < b->n_streams; i++) {
        w.next_stream[i] = find_next_stream(b, i);
    }
    (void)fprintf(out, "# version %d\n", version_of(b));
    write_kept(&w);
    for (size_t i = 0; i < b->n_events; i++) {
        write_event(&w, &b->events[i]);
        trace_build_pass(b, i);
    }
    write_open_ends(&w);
    return ferror(out) == 0;
}

/* ---- The file ------------------------------------------------------------------------------ */

static bool fail(char *reason, size_t reason_size, const char *text) {
    (void)snprintf(reason, reason_size, "%s", text);
    return false;
}

static bool is_gzip_name(const char *path) {
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

/* One gzip member without name and time, so that equal text gives equal bytes. */
static bool pack(z_stream *z, const char *text, size_t size, unsigned char **out, size_t *n) {
    size_t bound = deflateBound(z, (uLong)size);
    *out = malloc(bound);
    if (*out == NULL || size > UINT_MAX || bound > UINT_MAX) {
        return false;
    }
    z->next_in = (unsigned char *)(uintptr_t)text;
    z->avail_in = (unsigned)size;
    z->next_out = *out;
    z->avail_out = (unsigned)bound;
    bool ok = deflate(z, Z_FINISH) == Z_STREAM_END;
    *n = z->total_out;
    return ok;
}

static bool compress_text(const char *text, size_t size, unsigned char **out, size_t *n) {
    enum { GZIP = 16 + MAX_WBITS, MEMORY_LEVEL = 9 };
    z_stream z = {0};
    *out = NULL;
    if (deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, GZIP, MEMORY_LEVEL, Z_DEFAULT_STRATEGY) !=
        Z_OK) {
        return false;
    }
    bool ok = pack(&z, text, size, out, n);
    (void)deflateEnd(&z);
    return ok;
}

static bool write_all(int descriptor, const void *bytes, size_t size) {
    const char *at = bytes;
    while (size > 0) {
        ssize_t n = write(descriptor, at, size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static bool write_descriptor(int descriptor, const void *bytes, size_t size) {
    bool ok = write_all(descriptor, bytes, size);
    return close(descriptor) == 0 && ok;
}

/* Writes another file first and renames it,
 * so that readers see the old file or all of the new one. */
static bool replace_file(const char *path, const void *bytes, size_t size, char *reason,
                         size_t reason_size) {
    char beside[PATH_MAX];
    int length = snprintf(beside, sizeof beside, "%s.part", path);
    if (length < 0 || (size_t)length >= sizeof beside) {
        return fail(reason, reason_size, "the name is too long");
    }
    int descriptor = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor < 0) {
        return fail(reason, reason_size, strerror(errno));
    }
    if (!write_descriptor(descriptor, bytes, size) || rename(beside, path) != 0) {
        (void)fail(reason, reason_size, strerror(errno));
        (void)unlink(beside);
        return false;
    }
    return true;
}

/* A pipe or a device is written to as it is. */
static bool is_special(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

static bool write_special(const char *path, const void *bytes, size_t size, char *reason,
                          size_t reason_size) {
    int descriptor = open(path, O_WRONLY | O_CLOEXEC);
    return (descriptor >= 0 && write_descriptor(descriptor, bytes, size)) ||
           fail(reason, reason_size, strerror(errno));
}

static bool write_bytes(const char *path, const void *bytes, size_t size, char *reason,
                        size_t reason_size) {
    return is_special(path) ? write_special(path, bytes, size, reason, reason_size)
                            : replace_file(path, bytes, size, reason, reason_size);
}

/* A file that was there is replaced, or left as it was on failure. */
static bool write_file(const char *path, const char *text, size_t size, char *reason,
                       size_t reason_size) {
    if (strcmp(path, "-") == 0) {
        (void)fwrite(text, 1, size, stdout); /* main reports a failure */
        return true;
    }
    if (!is_gzip_name(path)) {
        return write_bytes(path, text, size, reason, reason_size);
    }
    unsigned char *packed = NULL;
    size_t packed_size = 0;
    bool ok = compress_text(text, size, &packed, &packed_size)
                  ? write_bytes(path, packed, packed_size, reason, reason_size)
                  : fail(reason, reason_size, "it cannot be compressed");
    free(packed);
    return ok;
}

bool trace_save(const trace_builder *b, const char *heading, const char *path, char *reason,
                size_t reason_size) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    bool ok = memory != NULL && fputs(heading, memory) >= 0 && trace_write(b, memory);
    ok = memory != NULL && fclose(memory) == 0 && ok;
    (void)snprintf(reason, reason_size, "the host has no memory left");
    ok = ok && write_file(path, text, size, reason, reason_size);
    free(text);
    return ok;
}
