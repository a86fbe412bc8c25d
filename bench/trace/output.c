/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

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

bool output_write(const char *path, const char *text, size_t size, char *reason,
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
