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

enum { FIRST_CAPACITY = 1 << 20 };

/* Bytes being gathered. One byte more than INPUT_MAX_BYTES may be held: that is how too much
 * shows. */
typedef struct gathering {
    input bytes;
    size_t capacity;
    const char *reason; /* of the failure */
} gathering;

static bool fail(gathering *g, const char *reason) {
    g->reason = reason;
    return false;
}

/* Makes room behind what is gathered already. */
static bool grow(gathering *g) {
    if (g->bytes.size < g->capacity) {
        return true;
    }
    if (g->bytes.size > INPUT_MAX_BYTES) {
        return fail(g, "more than 4 GiB, which is more than is read");
    }
    size_t wanted = g->capacity == 0 ? FIRST_CAPACITY : 2 * g->capacity;
    if (wanted > INPUT_MAX_BYTES) {
        wanted = INPUT_MAX_BYTES + 1;
    }
    unsigned char *grown = realloc(g->bytes.data, wanted);
    if (grown == NULL) {
        return fail(g, "the host has no memory left");
    }
    g->bytes.data = grown;
    g->capacity = wanted;
    return true;
}

static bool read_descriptor(int descriptor, gathering *g) {
    for (;;) {
        if (!grow(g)) {
            return false;
        }
        ssize_t n = read(descriptor, g->bytes.data + g->bytes.size, g->capacity - g->bytes.size);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return fail(g, strerror(errno));
        }
        if (n == 0) {
            return true;
        }
        g->bytes.size += (size_t)n;
    }
}

static bool read_file(const char *path, gathering *g) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return fail(g, strerror(errno));
    }
    struct stat status;
    bool ok;
    if (fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode)) {
        ok = fail(g, "is a directory, not a trace");
    } else {
        ok = read_descriptor(descriptor, g);
    }
    (void)close(descriptor);
    return ok;
}

static bool is_gzip(const unsigned char *bytes, size_t size) {
    return size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

static unsigned at_most_uint(size_t n) {
    return n < UINT_MAX ? (unsigned)n : UINT_MAX;
}

/* One call of inflate, from *at of `packed` to the end of what is gathered. */
static int inflate_some(z_stream *z, const input *packed, size_t *at, gathering *g) {
    z->next_in = packed->data + *at;
    z->avail_in = at_most_uint(packed->size - *at);
    z->next_out = g->bytes.data + g->bytes.size;
    z->avail_out = at_most_uint(g->capacity - g->bytes.size);
    int code = inflate(z, Z_NO_FLUSH);
    *at = (size_t)(z->next_in - packed->data);
    g->bytes.size = (size_t)(z->next_out - g->bytes.data);
    return code;
}

/* Unpacks one member of a gzip file. */
static bool unpack_member(z_stream *z, const input *packed, size_t *at, gathering *g) {
    for (;;) {
        if (!grow(g)) {
            return false;
        }
        int code = inflate_some(z, packed, at, g);
        if (code == Z_STREAM_END) {
            return true;
        }
        if (code != Z_OK && code != Z_BUF_ERROR) {
            return fail(g, "the gzip data are damaged");
        }
        if (*at == packed->size && g->bytes.size < g->capacity) {
            return fail(g, "the gzip data are cut off");
        }
    }
}

/* Members may follow each other, as `cat a.gz b.gz` makes them; nothing else may. */
static bool unpack_members(z_stream *z, const input *packed, gathering *g) {
    size_t at = 0;
    do {
        if (!is_gzip(packed->data + at, packed->size - at)) {
            return fail(g, "other bytes follow the end of the gzip data");
        }
        if (!unpack_member(z, packed, &at, g)) {
            return false;
        }
        (void)inflateReset(z);
    } while (at < packed->size);
    return true;
}

static bool unpack(const input *packed, gathering *g) {
    enum { GZIP_ONLY = 16 + MAX_WBITS };
    z_stream z = {0};
    if (inflateInit2(&z, GZIP_ONLY) != Z_OK) {
        return fail(g, "the host has no memory left");
    }
    bool ok = unpack_members(&z, packed, g);
    (void)inflateEnd(&z);
    return ok;
}

static bool read_and_unpack(const char *path, gathering *g) {
    if (!read_file(path, g)) {
        return false;
    }
    if (!is_gzip(g->bytes.data, g->bytes.size)) {
        return true;
    }
    gathering unpacked = {0};
    bool ok = unpack(&g->bytes, &unpacked);
    free(g->bytes.data);
    *g = unpacked;
    return ok;
}

bool input_read(const char *path, input *out, char *reason, size_t reason_size) {
    gathering g = {0};
    bool ok = read_and_unpack(path, &g);
    if (!ok) {
        (void)snprintf(reason, reason_size, "%s", g.reason);
        input_drop(&g.bytes);
    }
    *out = g.bytes;
    return ok;
}

void input_drop(input *in) {
    free(in->data);
    *in = (input){0};
}
