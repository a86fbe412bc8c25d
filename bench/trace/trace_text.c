/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text format: one event a line, fields separated by blanks. Nothing is guessed: a
 * line that is not exactly an event is an error that names the line.
 */
#include "bench/trace/trace_text.h"

#include "bench/base/hash_map.h"

#include <stdio.h>
#include <string.h>

enum { LATEST_VERSION = 5, MAX_LINE_BYTES = 1 << 20 };

/* A packed file of a few bytes may hold lines for hours. Beyond these it has to hold events. */
enum { SPARE_BYTES = 64 << 20, BYTES_PER_EVENT = 256, SPARE_STEPS = 1 << 20 };

/* Where reading stands. [at, line_end) is what is left of the current line. */
typedef struct text_reader {
    input *in;
    const char *at;
    const char *line_end;
    uint64_t line;
    uint64_t first_id;
    bool is_counted; /* IDs count up from first_id, as recorders write them: no map is needed */
    hash_map blocks; /* otherwise: ID of the file to number of the builder + 1 */
    uint64_t version;
    trace_builder *builder;
    trace_error *error;
} text_reader;

/* A piece of a line. Empty at its end. */
typedef struct word {
    const char *text;
    size_t length;
} word;

#define REFUSE(r, ...) trace_refuse((r)->error, (r)->line, __VA_ARGS__)

/* For "%.*s" in messages: enough to recognise, little enough for a line. */
static int shown(word w) {
    return w.length < 32 ? (int)w.length : 32;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static word next_word(text_reader *r) {
    while (r->at < r->line_end && is_blank(*r->at)) {
        r->at++;
    }
    word w = {.text = r->at};
    while (r->at < r->line_end && !is_blank(*r->at)) {
        r->at++;
    }
    w.length = (size_t)(r->at - w.text);
    return w;
}

static bool parse_number(word w, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < w.length; i++) {
        unsigned digit = (unsigned)((unsigned char)w.text[i]) - '0';
        if (digit > 9 || __builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, digit, &value)) {
            return false;
        }
    }
    *out = value;
    return w.length > 0;
}

static bool read_number(text_reader *r, const char *field, uint64_t *out) {
    word w = next_word(r);
    if (w.length == 0) {
        return REFUSE(r, "%s is missing", field);
    }
    return parse_number(w, out) ||
           REFUSE(r, "%s is not a number of at most 64 bits: '%.*s'", field, shown(w), w.text);
}

static bool expect_line_end(text_reader *r) {
    word w = next_word(r);
    return w.length == 0 || REFUSE(r, "more text after the event: '%.*s'", shown(w), w.text);
}

/* ---- IDs ----------------------------------------------------------------------------------- */

static bool find_block(const text_reader *r, uint64_t id, uint32_t *block) {
    if (r->is_counted) {
        *block = (uint32_t)(id - r->first_id);
        return id - r->first_id < r->builder->n_blocks;
    }
    uintptr_t found = hash_map_find(&r->blocks, id);
    *block = (uint32_t)(found - 1);
    return found != 0;
}

/* From here on IDs are looked up. */
static bool stop_counting(text_reader *r) {
    r->is_counted = false;
    for (size_t i = 0; i < r->builder->n_blocks; i++) {
        if (!hash_map_put(&r->blocks, r->first_id + i, (uintptr_t)i + 1)) {
            return false;
        }
    }
    return true;
}

/* Before the block is built. */
static bool follow_ids(text_reader *r, uint64_t id) {
    size_t n = r->builder->n_blocks;
    if (n == 0) {
        r->first_id = id;
        r->is_counted = true;
    }
    return !r->is_counted || id - r->first_id == n || stop_counting(r);
}

static bool note_block(text_reader *r, uint64_t id, uint32_t block) {
    return r->is_counted || hash_map_put(&r->blocks, id, (uintptr_t)block + 1);
}

/* ---- Pools --------------------------------------------------------------------------------- */

/* "FIRST:SECOND". */
static bool parse_pool(word w, ductile_pool_id *out) {
    const char *colon = w.length > 0 ? memchr(w.text, ':', w.length) : NULL;
    if (colon == NULL) {
        return false;
    }
    word first = {.text = w.text, .length = (size_t)(colon - w.text)};
    word second = {.text = colon + 1, .length = w.length - first.length - 1};
    return parse_number(first, &out->first) && parse_number(second, &out->second) &&
           !trace_pool_is_none(*out);
}

static bool refuse_pool(text_reader *r, word w) {
    return REFUSE(r, "POOL is not two numbers such as 1:0: '%.*s'", shown(w), w.text);
}

/* The last field of a request; where it is missing, there is none. */
static bool read_pool_of_request(text_reader *r, ductile_pool_id *out) {
    *out = (ductile_pool_id){0};
    if (r->version < 5) {
        return expect_line_end(r);
    }
    word w = next_word(r);
    if (w.length > 0 && !parse_pool(w, out)) {
        return refuse_pool(r, w);
    }
    return expect_line_end(r);
}

static bool read_pool(text_reader *r, ductile_pool_id *out) {
    word w = next_word(r);
    if (!parse_pool(w, out)) {
        return w.length > 0 ? refuse_pool(r, w) : REFUSE(r, "POOL is missing");
    }
    return expect_line_end(r);
}

static bool read_kept(text_reader *r) {
    uint64_t size = 0;
    uint64_t stream = 0;
    ductile_pool_id pool;
    if (r->builder->n_events > 0) {
        return REFUSE(r, "what a pool held before stands after the first event");
    }
    if (!read_number(r, "SIZE", &size) || !read_number(r, "STREAM", &stream) ||
        !read_pool(r, &pool)) {
        return false;
    }
    const char *reason = trace_build_kept(r->builder, size, stream, pool);
    return reason == NULL || REFUSE(r, "%s", reason);
}

static bool read_pool_end(text_reader *r) {
    ductile_pool_id pool;
    if (!read_pool(r, &pool)) {
        return false;
    }
    const char *reason = trace_build_end_pool(r->builder, pool);
    return reason == NULL || REFUSE(r, "%s", reason);
}

/* ---- Events -------------------------------------------------------------------------------- */

/* What `a` and `r` have in common. */
typedef struct request {
    uint64_t id, size, stream;
} request;

static bool read_request(text_reader *r, request *out) {
    return read_number(r, "ID", &out->id) && read_number(r, "SIZE", &out->size) &&
           read_number(r, "STREAM", &out->stream);
}

static bool begin_block(text_reader *r, uint64_t id) {
    uint32_t block = 0;
    if (find_block(r, id, &block)) {
        return REFUSE(r, "ID %llu was allocated before", (unsigned long long)id);
    }
    return follow_ids(r, id) || REFUSE(r, "the host has no memory left");
}

/* reason: why there is no block; NULL: there is. */
static bool end_block(text_reader *r, uint64_t id, uint32_t block, ductile_pool_id pool,
                      const char *reason) {
    if (reason == NULL) {
        reason = trace_build_in_pool(r->builder, block, pool);
    }
    if (reason != NULL) {
        return REFUSE(r, "%s", reason);
    }
    return note_block(r, id, block) || REFUSE(r, "the host has no memory left");
}

static bool read_alloc(text_reader *r) {
    request q;
    ductile_pool_id pool;
    uint32_t block = 0;
    if (!read_request(r, &q) || !read_pool_of_request(r, &pool) || !begin_block(r, q.id)) {
        return false;
    }
    const char *reason = trace_build_alloc(r->builder, q.size, q.stream, &block);
    return end_block(r, q.id, block, pool, reason);
}

static bool read_refusal(text_reader *r) {
    request q;
    ductile_pool_id pool;
    trace_refusal of = {0};
    uint32_t block = 0;
    if (!read_request(r, &q) || !read_number(r, "HELD", &of.held_bytes) ||
        !read_number(r, "FREE", &of.device_free_bytes) || !read_pool_of_request(r, &pool) ||
        !begin_block(r, q.id)) {
        return false;
    }
    of.size = q.size;
    if (q.size > TRACE_MAX_SIZE) {
        return REFUSE(r, "SIZE is more than any device can address (256 TiB)");
    }
    const char *reason = trace_build_refusal(r->builder, &of, q.stream, &block);
    return end_block(r, q.id, block, pool, reason);
}

static bool look_up(text_reader *r, uint64_t id, uint32_t *block) {
    return find_block(r, id, block) ||
           REFUSE(r, "ID %llu was never allocated", (unsigned long long)id);
}

/* `f` and `c`. */
static bool read_end(text_reader *r, const char *(*add)(trace_builder *b, uint32_t block)) {
    uint64_t id = 0;
    uint32_t block = 0;
    if (!read_number(r, "ID", &id) || !expect_line_end(r) || !look_up(r, id, &block)) {
        return false;
    }
    const char *reason = add(r->builder, block);
    return reason == NULL || REFUSE(r, "ID %llu %s", (unsigned long long)id, reason);
}

static bool read_use(text_reader *r) {
    uint64_t id = 0;
    uint64_t stream = 0;
    uint32_t block = 0;
    if (!read_number(r, "ID", &id) || !read_number(r, "STREAM", &stream) || !expect_line_end(r) ||
        !look_up(r, id, &block)) {
        return false;
    }
    const char *reason = trace_build_use(r->builder, block, stream);
    return reason == NULL || REFUSE(r, "ID %llu %s", (unsigned long long)id, reason);
}

static bool read_step(text_reader *r) {
    if (!expect_line_end(r)) {
        return false;
    }
    const char *reason = trace_build_step(r->builder);
    return reason == NULL || REFUSE(r, "%s", reason);
}

/* `e` and `d`. */
static bool read_stream_end(text_reader *r, bool is_told) {
    uint64_t stream = 0;
    if (!read_number(r, "STREAM", &stream) || !expect_line_end(r)) {
        return false;
    }
    const char *reason = trace_build_end_stream(r->builder, stream, is_told);
    return reason == NULL || REFUSE(r, "%s", reason);
}

/* ---- The version --------------------------------------------------------------------------- */

static bool take_version(text_reader *r, uint64_t version) {
    if (version == 0 || version > LATEST_VERSION) {
        return REFUSE(r, "format version %llu is not known (1 to %d are)",
                      (unsigned long long)version, LATEST_VERSION);
    }
    if (version != r->version && r->builder->n_events > 0) {
        return REFUSE(r, "the format's version stands after the first event");
    }
    r->version = version;
    r->builder->names_uses = version >= 2;
    return true;
}

/* `# version N` is the one comment that means something. */
static bool read_comment(text_reader *r) {
    r->at++;
    word key = next_word(r);
    if (key.length != strlen("version") || memcmp(key.text, "version", key.length) != 0) {
        return true;
    }
    word number = next_word(r);
    uint64_t version = 0;
    return !parse_number(number, &version) || take_version(r, version);
}

/* Of any version. */
static bool is_known(word event) {
    return event.length == 1 && strchr("aufcedsrpk", event.text[0]) != NULL;
}

/* A file whose first line is wrong is mostly something else. */
static bool refuse_event(text_reader *r, word event) {
    static const char *const known[LATEST_VERSION + 1] = {
        [1] = "a, f, c and s are known; u after '# version 2'",
        [2] = "a, u, f, c and s are known; e and d after '# version 3'",
        [3] = "a, u, f, c, e, d and s are known; r after '# version 4'",
        [4] = "a, u, f, c, e, d, r and s are known; k and p after '# version 5'",
        [5] = "a, u, f, c, e, d, r, k, p and s are known",
    };
    if (r->builder->n_events == 0 && !is_known(event)) {
        return REFUSE(r, "neither a trace nor a PyTorch snapshot: '%.*s' is no event", shown(event),
                      event.text);
    }
    return REFUSE(r, "unknown event '%.*s' (%s)", shown(event), event.text, known[r->version]);
}

static bool read_line(text_reader *r) {
    if (r->at < r->line_end && *r->at == '#') {
        return read_comment(r);
    }
    word event = next_word(r);
    if (event.length == 0) {
        return true;
    }
    switch (event.length == 1 ? event.text[0] : '\0') {
    case 'a':
        return read_alloc(r);
    case 'f':
        return read_end(r, trace_build_free);
    case 'c':
        return read_end(r, trace_build_complete);
    case 's':
        return read_step(r);
    case 'u':
        return r->version >= 2 ? read_use(r) : refuse_event(r, event);
    case 'e':
    case 'd':
        return r->version >= 3 ? read_stream_end(r, event.text[0] == 'e') : refuse_event(r, event);
    case 'r':
        return r->version >= 4 ? read_refusal(r) : refuse_event(r, event);
    case 'k':
        return r->version >= 5 ? read_kept(r) : refuse_event(r, event);
    case 'p':
        return r->version >= 5 ? read_pool_end(r) : refuse_event(r, event);
    default:
        return refuse_event(r, event);
    }
}

/* The line that begins where the input stands, without its end. False: there is none, or the
 * input fails, or it is too long. */
static bool find_line(text_reader *r, size_t *length) {
    size_t seen = 0;
    for (;;) {
        const unsigned char *begin = r->in->at;
        size_t left = input_left(r->in);
        const unsigned char *newline = left > seen ? memchr(begin + seen, '\n', left - seen) : NULL;
        if (newline != NULL) {
            *length = (size_t)(newline - begin);
            return true;
        }
        seen = left;
        if (seen > MAX_LINE_BYTES) {
            return REFUSE(r, "a line of more than 1 MiB");
        }
        if (!input_fill(r->in, seen + 1)) {
            *length = seen;
            return seen > 0 && r->in->reason == NULL;
        }
    }
}

static bool has_events_enough(text_reader *r) {
    uint64_t n_bytes = r->in->n_bytes - input_left(r->in);
    uint64_t n_steps = r->builder->n_steps;
    uint64_t n_events = r->builder->n_events - n_steps;
    if (n_bytes > SPARE_BYTES + BYTES_PER_EVENT * (n_events + n_steps)) {
        return REFUSE(r, "more than 64 MiB of lines without events");
    }
    return n_steps <= SPARE_STEPS + n_events ||
           REFUSE(r, "more than %d lines of steps without events", SPARE_STEPS);
}

static bool read_lines(text_reader *r) {
    size_t length = 0;
    for (r->line = 1; find_line(r, &length); r->line++) {
        r->at = (const char *)r->in->at;
        r->line_end = r->at + length;
        if (!read_line(r)) {
            return false;
        }
        size_t more = input_left(r->in) > length; /* the newline */
        r->in->at += length + more;
        if (!has_events_enough(r)) {
            return false;
        }
    }
    if (r->in->reason != NULL) {
        return trace_refuse(r->error, 0, "%s", r->in->reason);
    }
    return input_left(r->in) == 0; /* else the line was refused */
}

bool trace_read_text(input *in, trace_builder *b, trace_error *error) {
    text_reader r = {.in = in, .version = 1, .builder = b, .error = error};
    bool ok = read_lines(&r);
    hash_map_drop(&r.blocks);
    return ok;
}
