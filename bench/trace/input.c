/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/input.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { PACKED_BYTES = 1 << 16, WINDOW_BYTES = 1 << 18 };

typedef struct input_source {
    int file;
    bool is_gzip;
    bool has_ended;    /* the file */
    bool is_in_member; /* of a gzip file */
    unsigned char *window;
    size_t capacity;
    z_stream z; /* next_in, avail_in: what was read of a packed file and not unpacked */
    unsigned char packed[PACKED_BYTES];
} input_source;

static bool fail(input *in, const char *reason) {
    in->reason = reason;
    return false;
}

/* ---- Bytes of the file --------------------------------------------------------------------- */

/* How many came; 0 at the end and on failure. */
static size_t read_some(input *in, unsigned char *to, size_t room) {
    ssize_t n;
    do {
        n = read(in->source->file, to, room);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        (void)fail(in, strerror(errno));
        return 0;
    }
    in->source->has_ended = n == 0;
    return (size_t)n;
}

static void read_packed(input *in) {
    input_source *s = in->source;
    if (s->z.avail_in == 0 && !s->has_ended) {
        s->z.next_in = s->packed;
        s->z.avail_in = (unsigned)read_some(in, s->packed, sizeof s->packed);
    }
}

/* Members may follow each other, as `cat a.gz b.gz` makes them; nothing else may. */
static bool begin_member(input *in) {
    input_source *s = in->source;
    if (s->z.next_in[0] != 0x1f) {
        return fail(in, "other bytes follow the end of the gzip data");
    }
    s->is_in_member = true;
    return inflateReset(&s->z) == Z_OK || fail(in, "the gzip data are damaged");
}

/* One call of inflate. False at the end and on failure. */
static bool inflate_some(input *in, unsigned char *to, size_t room, size_t *n) {
    input_source *s = in->source;
    read_packed(in);
    if (in->reason != NULL) {
        return false;
    }
    if (s->z.avail_in == 0 && s->has_ended) {
        return s->is_in_member && fail(in, "the gzip data are cut off");
    }
    if (!s->is_in_member && !begin_member(in)) {
        return false;
    }
    s->z.next_out = to;
    s->z.avail_out = room < UINT_MAX ? (unsigned)room : UINT_MAX;
    int code = inflate(&s->z, Z_NO_FLUSH);
    *n = (size_t)(s->z.next_out - to);
    s->is_in_member = code != Z_STREAM_END;
    return code == Z_STREAM_END || code == Z_OK || code == Z_BUF_ERROR ||
           fail(in, "the gzip data are damaged");
}

static size_t unpack_some(input *in, unsigned char *to, size_t room) {
    size_t n = 0;
    while (n == 0 && inflate_some(in, to, room, &n)) {
    }
    return n;
}

/* ---- The window ---------------------------------------------------------------------------- */

/* Only what has come makes the window grow: a damaged file may announce any length. */
static bool grow_window(input *in) {
    input_source *s = in->source;
    unsigned char *grown = realloc(s->window, 2 * s->capacity);
    if (grown == NULL) {
        return fail(in, "the host has no memory left");
    }
    s->window = grown;
    s->capacity *= 2;
    in->at = s->window;
    in->end = s->window + s->capacity / 2;
    return true;
}

/* What was read already goes; what is left moves to the beginning. */
static bool make_room(input *in) {
    input_source *s = in->source;
    size_t left = input_left(in);
    if (left == s->capacity) {
        return grow_window(in);
    }
    if (in->at != s->window) {
        memmove(s->window, in->at, left);
        in->at = s->window;
        in->end = s->window + left;
    }
    return true;
}

bool input_fill(input *in, size_t n) {
    input_source *s = in->source;
    if (s == NULL || in->reason != NULL) {
        return false;
    }
    while (input_left(in) < n) {
        if (!make_room(in)) {
            return false;
        }
        unsigned char *to = s->window + input_left(in);
        size_t room = s->capacity - input_left(in);
        size_t more = s->is_gzip ? unpack_some(in, to, room) : read_some(in, to, room);
        in->end += more;
        in->n_bytes += more;
        if (in->n_bytes > INPUT_MAX_BYTES) {
            return fail(in, "more than 16 GiB, which is more than is read");
        }
        if (more == 0) {
            return false;
        }
    }
    return true;
}

/* ---- Opening ------------------------------------------------------------------------------- */

input input_of_memory(const void *bytes, size_t size) {
    return (input){.at = bytes, .end = (const unsigned char *)bytes + size, .n_bytes = size};
}

/* "-" is standard input. It stays open: what is closed later is a duplicate. */
static int open_path(const char *path) {
    return strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)
                                  : open(path, O_RDONLY | O_CLOEXEC);
}

static bool open_file(input *in, const char *path) {
    struct stat status;
    in->source->file = open_path(path);
    if (in->source->file < 0) {
        return fail(in, strerror(errno));
    }
    bool is_folder = fstat(in->source->file, &status) == 0 && S_ISDIR(status.st_mode);
    return !is_folder || fail(in, "is a directory, not a trace");
}

/* The first bytes tell. */
static bool recognise(input *in) {
    enum { GZIP_ONLY = 16 + MAX_WBITS };
    input_source *s = in->source;
    while (input_left(in) < 2 && !s->has_ended && in->reason == NULL) {
        in->end += read_some(in, s->window + input_left(in), PACKED_BYTES - input_left(in));
    }
    in->n_bytes = input_left(in);
    s->is_gzip = in->n_bytes >= 2 && s->window[0] == 0x1f && s->window[1] == 0x8b;
    if (!s->is_gzip) {
        return in->reason == NULL;
    }
    memcpy(s->packed, s->window, input_left(in));
    s->z.next_in = s->packed;
    s->z.avail_in = (unsigned)input_left(in);
    in->end = in->at;
    in->n_bytes = 0;
    return inflateInit2(&s->z, GZIP_ONLY) == Z_OK || fail(in, "the host has no memory left");
}

static bool make_source(input *in) {
    in->source = calloc(1, sizeof *in->source);
    if (in->source == NULL) {
        return fail(in, "the host has no memory left");
    }
    in->source->file = -1;
    in->source->window = malloc(WINDOW_BYTES);
    in->source->capacity = WINDOW_BYTES;
    in->at = in->source->window;
    in->end = in->source->window;
    return in->source->window != NULL || fail(in, "the host has no memory left");
}

bool input_open(input *in, const char *path, char *reason, size_t reason_size) {
    *in = (input){0};
    bool ok = make_source(in) && open_file(in, path) && recognise(in);
    if (!ok) {
        (void)snprintf(reason, reason_size, "%s", in->reason);
    }
    return ok;
}

void input_close(input *in) {
    input_source *s = in->source;
    if (s != NULL) {
        if (s->is_gzip) {
            (void)inflateEnd(&s->z);
        }
        if (s->file >= 0) {
            (void)close(s->file);
        }
        free(s->window);
        free(s);
    }
    *in = (input){0};
}
