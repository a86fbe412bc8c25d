/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/trace/pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MARKS = 1024, NODES_PER_CHUNK = 512, TEXT_CHUNK_BYTES = 1 << 16 };

/* A growing array of values. */
typedef struct value_array {
    pickle_value *items;
    size_t count;
    size_t capacity;
} value_array;

/*
 * A container. A dict holds its keys and values in turn. A list of records that follow each other,
 * and of nothing else, has no items: only its first record and how many. Owned by the document.
 */
struct pickle_node {
    value_array of;
    pickle_node *next_free; /* among nodes that are not in use; what they have room for stays */
    uint64_t record; /* of a list without items: its first; of a dict that was taken: it, from 1 */
    bool has_items;  /* of a list that is not empty */
    bool is_named;   /* the memo, or a second place of the stack, has it too */
};

typedef struct node_chunk {
    struct node_chunk *next;
    size_t used;
    pickle_node nodes[NODES_PER_CHUNK];
} node_chunk;

/* Texts, copied out of the input. */
typedef struct text_chunk {
    struct text_chunk *next;
    size_t used, size;
    char text[];
} text_chunk;

struct pickle_document {
    node_chunk *chunks; /* the newest first; only it has unused nodes */
    pickle_node *free_nodes;
    text_chunk *texts; /* the newest first; only it has room */
    pickle_value root;
    uint64_t n_records;
};

/* One run over one input. Every handler returns false once `error` is filled. */
typedef struct machine {
    input *in;
    const pickle_taker *taker; /* NULL: dicts stay what they are */
    uint64_t at;               /* the next byte to read            */
    uint64_t operation;        /* where the current instruction is */
    uint64_t budget;           /* bytes of memory still allowed     */
    pickle_document *document;
    value_array stack;
    value_array memo;
    size_t marks[MAX_MARKS]; /* heights of the stack */
    size_t n_marks;
    bool stopped;
    pickle_error *error;
} machine;

__attribute__((format(printf, 2, 3))) static bool refuse(machine *m, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(m->error->reason, sizeof m->error->reason, format, arguments);
    va_end(arguments);
    m->error->offset = m->operation;
    return false;
}

/* ---- Memory -------------------------------------------------------------------------------- */

static bool charge(machine *m, uint64_t bytes) {
    if (bytes > m->budget) {
        return refuse(m, "the pickle needs more memory than is allowed for it");
    }
    m->budget -= bytes;
    return true;
}

static bool make_room(machine *m, value_array *array, size_t more) {
    if (more <= array->capacity - array->count) {
        return true;
    }
    size_t wanted = array->count + more; /* both bounded by the input's size */
    if (array->count > 0 && wanted < array->capacity * 2) {
        wanted = array->capacity * 2;
    }
    if (!charge(m, (wanted - array->capacity) * sizeof *array->items)) {
        return false;
    }
    pickle_value *grown = realloc(array->items, wanted * sizeof *grown);
    if (grown == NULL) {
        return refuse(m, "the host has no memory left");
    }
    array->items = grown;
    array->capacity = wanted;
    return true;
}

static bool append(machine *m, value_array *array, const pickle_value *values, size_t n) {
    if (n > 0 && !make_room(m, array, n)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        array->items[array->count++] = values[i];
    }
    return true;
}

/* Zeros; NULL: refused. */
static void *allocate(machine *m, size_t bytes) {
    void *memory = charge(m, bytes) ? calloc(1, bytes) : NULL;
    if (memory == NULL && m->error->reason[0] == '\0') {
        (void)refuse(m, "the host has no memory left");
    }
    return memory;
}

static pickle_node *new_node(machine *m) {
    pickle_node *known = m->document->free_nodes;
    if (known != NULL) {
        m->document->free_nodes = known->next_free;
        *known = (pickle_node){.of = {.items = known->of.items, .capacity = known->of.capacity}};
        return known;
    }
    node_chunk *chunk = m->document->chunks;
    if (chunk == NULL || chunk->used == NODES_PER_CHUNK) {
        chunk = allocate(m, sizeof *chunk);
        if (chunk == NULL) {
            return NULL;
        }
        chunk->next = m->document->chunks;
        m->document->chunks = chunk;
    }
    return &chunk->nodes[chunk->used++];
}

/* A copy of a text that lasts as long as the document. NULL: refused. */
static const char *keep_text(machine *m, const unsigned char *bytes, size_t n) {
    text_chunk *chunk = m->document->texts;
    if (chunk == NULL || n > chunk->size - chunk->used) {
        size_t size = n > TEXT_CHUNK_BYTES ? n : TEXT_CHUNK_BYTES;
        chunk = allocate(m, sizeof *chunk + size);
        if (chunk == NULL) {
            return NULL;
        }
        *chunk = (text_chunk){.next = m->document->texts, .size = size};
        m->document->texts = chunk;
    }
    char *text = chunk->text + chunk->used;
    memcpy(text, bytes, n);
    chunk->used += n;
    return text;
}

/* ---- Records ------------------------------------------------------------------------------- */

/* The next dict is as large, most likely. */
static void release_node(machine *m, pickle_node *node) {
    node->of.count = 0;
    if (!node->is_named) {
        node->next_free = m->document->free_nodes;
        m->document->free_nodes = node;
        return;
    }
    m->budget += node->of.capacity * sizeof *node->of.items;
    free(node->of.items);
    node->of.items = NULL;
    node->of.capacity = 0;
}

/* A dict that was taken under another name is its record. */
static pickle_value resolve(pickle_value value) {
    bool is_taken = value.kind == PICKLE_DICT && value.as.node->record > 0;
    return is_taken ? (pickle_value){.kind = PICKLE_RECORD,
                                     .as.integer = (int64_t)value.as.node->record - 1}
                    : value;
}

/* A dict that the taker wants is its record from now on, wherever it is named. */
static bool take_record(machine *m, pickle_value *value) {
    *value = resolve(*value);
    if (m->taker == NULL || value->kind != PICKLE_DICT) {
        return true;
    }
    switch (m->taker->take(m->taker->user, value)) {
    case PICKLE_NOT_WANTED:
        return true;
    case PICKLE_NO_MEMORY:
        return refuse(m, "the host has no memory left");
    case PICKLE_TAKEN:
        break;
    }
    pickle_node *node = value->as.node;
    *value = (pickle_value){.kind = PICKLE_RECORD, .as.integer = (int64_t)m->document->n_records++};
    node->record = m->document->n_records;
    release_node(m, node);
    return true;
}

static bool continues(const pickle_node *node, const pickle_value *value) {
    return value->kind == PICKLE_RECORD && (node->of.count == 0 || !node->has_items) &&
           (node->of.count == 0 || (uint64_t)value->as.integer == node->record + node->of.count);
}

/* From here on the list has items. */
static bool unfold(machine *m, pickle_node *node) {
    size_t n = node->of.count;
    if (node->has_items || n == 0) {
        node->has_items = true;
        return true;
    }
    node->of.count = 0;
    node->has_items = true;
    for (size_t i = 0; i < n; i++) {
        pickle_value value = {.kind = PICKLE_RECORD, .as.integer = (int64_t)(node->record + i)};
        if (!append(m, &node->of, &value, 1)) {
            return false;
        }
    }
    return true;
}

static bool list_append(machine *m, pickle_node *node, pickle_value *values, size_t n) {
    size_t i = 0;
    for (size_t k = 0; k < n; k++) {
        if (!take_record(m, &values[k])) {
            return false;
        }
    }
    for (; i < n && continues(node, &values[i]); i++) {
        node->record = node->of.count == 0 ? (uint64_t)values[i].as.integer : node->record;
        node->of.count++;
    }
    return i == n || (unfold(m, node) && append(m, &node->of, values + i, n - i));
}

static bool node_append(machine *m, pickle_kind kind, pickle_node *node, pickle_value *values,
                        size_t n) {
    return kind == PICKLE_LIST ? list_append(m, node, values, n) : append(m, &node->of, values, n);
}

/* What is named twice stays when it is taken. */
static pickle_value name(pickle_value value) {
    if (value.kind == PICKLE_LIST || value.kind == PICKLE_TUPLE || value.kind == PICKLE_DICT) {
        value.as.node->is_named = true;
    }
    return value;
}

/* ---- Reading and the stack ----------------------------------------------------------------- */

/* The input fails, or is at its end. */
static bool refuse_end(machine *m, const char *reason) {
    return refuse(m, "%s", m->in->reason != NULL ? m->in->reason : reason);
}

/* Valid until the next call. */
static bool read_bytes(machine *m, size_t n, const unsigned char **out) {
    if (!input_has(m->in, n)) {
        return refuse_end(m, "the pickle ends in the middle of an instruction");
    }
    *out = m->in->at;
    m->in->at += n;
    m->at += n;
    return true;
}

/* Whether so many bytes may follow. Of a file, only reading tells. */
static bool may_follow(const machine *m, uint64_t n) {
    return n <= (m->in->source == NULL ? input_left(m->in) : INPUT_MAX_BYTES);
}

static bool skip_bytes(machine *m, uint64_t n) {
    const unsigned char *unused;
    for (; n > 1024; n -= 1024) {
        if (!read_bytes(m, 1024, &unused)) {
            return false;
        }
    }
    return read_bytes(m, (size_t)n, &unused);
}

static bool read_little_endian(machine *m, size_t n, uint64_t *out) {
    const unsigned char *bytes = NULL;
    if (!read_bytes(m, n, &bytes)) {
        return false;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    *out = value;
    return true;
}

static bool push(machine *m, pickle_value value) {
    return append(m, &m->stack, &value, 1);
}

static bool push_plain(machine *m, pickle_kind kind, int64_t integer) {
    return push(m, (pickle_value){.kind = kind, .as.integer = integer});
}

/* Values above the latest mark; below it nothing can be reached until the mark is taken. */
static size_t stack_reach(const machine *m) {
    return m->stack.count - (m->n_marks > 0 ? m->marks[m->n_marks - 1] : 0);
}

static bool need_values(machine *m, size_t n) {
    return n <= stack_reach(m) || refuse(m, "an instruction needs a value that is not there");
}

static pickle_value *top(machine *m) {
    return &m->stack.items[m->stack.count - 1];
}

/* Takes the latest mark: the values above it are stack.items[*base ...]. */
static bool take_mark(machine *m, size_t *base) {
    if (m->n_marks == 0) {
        return refuse(m, "an instruction needs a mark that is not there");
    }
    *base = m->marks[--m->n_marks];
    return true;
}

static bool push_container(machine *m, pickle_kind kind, pickle_value *values, size_t n) {
    pickle_node *node = new_node(m);
    if (node == NULL || !node_append(m, kind, node, values, n)) {
        return false;
    }
    return push(m, (pickle_value){.kind = kind, .as.node = node});
}

/* ---- Instructions -------------------------------------------------------------------------- */
/* Each gets the number that stands beside it in the table, so that families share one handler. */

static bool do_protocol(machine *m, unsigned unused) {
    (void)unused;
    uint64_t version = 0;
    if (!read_little_endian(m, 1, &version)) {
        return false;
    }
    if (m->operation != 0) {
        return refuse(m, "a second protocol header");
    }
    if (version < 2 || version > 5) {
        return refuse(m, "pickle protocol %u (2 to 5 are known)", (unsigned)version);
    }
    return true;
}

static bool do_frame(machine *m, unsigned unused) {
    (void)unused;
    uint64_t length = 0;
    if (!read_little_endian(m, 8, &length)) {
        return false;
    }
    return may_follow(m, length) || refuse(m, "a frame is longer than the rest of the file");
}

static bool do_stop(machine *m, unsigned unused) {
    (void)unused;
    if (m->n_marks != 0 || m->stack.count != 1) {
        return refuse(m, "the pickle does not end with one value");
    }
    m->document->root = *top(m);
    m->stopped = true;
    return true;
}

static bool do_none(machine *m, unsigned unused) {
    (void)unused;
    return push_plain(m, PICKLE_NONE, 0);
}

static bool do_bool(machine *m, unsigned truth) {
    return push_plain(m, PICKLE_BOOL, (int64_t)truth);
}

/* Only the four-byte form is signed. */
static bool do_int(machine *m, unsigned width) {
    uint64_t value = 0;
    if (!read_little_endian(m, width, &value)) {
        return false;
    }
    return push_plain(m, PICKLE_INT, width == 4 ? (int32_t)(uint32_t)value : (int64_t)value);
}

/* Two's complement, little endian, of any length. */
static bool do_long(machine *m, unsigned width) {
    uint64_t length = 0;
    const unsigned char *bytes = NULL;
    if (!read_little_endian(m, width, &length)) {
        return false;
    }
    if (width == 4 && length > INT32_MAX) {
        return refuse(m, "an int of negative length");
    }
    if (length > 8) {
        return skip_bytes(m, length) && push_plain(m, PICKLE_WIDE_INT, 0);
    }
    if (!read_bytes(m, (size_t)length, &bytes)) {
        return false;
    }
    bool is_negative = length > 0 && (bytes[length - 1] & 0x80) != 0;
    uint64_t value = is_negative ? UINT64_MAX : 0;
    for (size_t i = (size_t)length; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return push_plain(m, PICKLE_INT, (int64_t)value);
}

static bool do_float(machine *m, unsigned unused) {
    (void)unused;
    const unsigned char *bytes = NULL;
    if (!read_bytes(m, 8, &bytes)) {
        return false;
    }
    uint64_t bits = 0; /* big endian, unlike every other number in a pickle */
    for (size_t i = 0; i < 8; i++) {
        bits = bits << 8 | bytes[i];
    }
    pickle_value value = {.kind = PICKLE_FLOAT};
    memcpy(&value.as.real, &bits, sizeof bits);
    return push(m, value);
}

static bool push_text(machine *m, pickle_kind kind, unsigned width) {
    uint64_t length = 0;
    const unsigned char *bytes = NULL;
    if (!read_little_endian(m, width, &length)) {
        return false;
    }
    if (length > UINT32_MAX) {
        return refuse(m, "a text of more than 4 GiB");
    }
    if (!read_bytes(m, (size_t)length, &bytes)) {
        return false;
    }
    const char *text = keep_text(m, bytes, (size_t)length);
    if (text == NULL) {
        return false;
    }
    return push(m, (pickle_value){.kind = kind, .length = (uint32_t)length, .as.text = text});
}

static bool do_string(machine *m, unsigned width) {
    return push_text(m, PICKLE_STRING, width);
}

static bool do_bytes(machine *m, unsigned width) {
    return push_text(m, PICKLE_BYTES, width);
}

static bool do_empty(machine *m, unsigned kind) {
    return push_container(m, (pickle_kind)kind, NULL, 0);
}

/* LIST, TUPLE and DICT: a container of all that lies above the mark. */
static bool do_collect(machine *m, unsigned kind) {
    size_t base = 0;
    if (!take_mark(m, &base)) {
        return false;
    }
    size_t n = m->stack.count - base;
    if (kind == PICKLE_DICT && n % 2 != 0) {
        return refuse(m, "a key without a value");
    }
    m->stack.count = base;
    pickle_value *items = n > 0 ? m->stack.items + base : NULL; /* there may be no stack yet */
    return push_container(m, (pickle_kind)kind, items, n);
}

static bool do_short_tuple(machine *m, unsigned n) {
    if (!need_values(m, n)) {
        return false;
    }
    m->stack.count -= n;
    return push_container(m, PICKLE_TUPLE, m->stack.items + m->stack.count, n);
}

static bool do_mark(machine *m, unsigned unused) {
    (void)unused;
    if (m->n_marks == MAX_MARKS) {
        return refuse(m, "containers are nested more than %d deep", MAX_MARKS);
    }
    m->marks[m->n_marks++] = m->stack.count;
    return true;
}

/* Moves the top n values into the container of that kind just below them. */
static bool move_into(machine *m, pickle_kind kind, size_t n) {
    if (!need_values(m, n + 1)) {
        return false;
    }
    pickle_value *target = top(m) - n;
    if (target->kind != (uint32_t)kind) {
        return refuse(m, "an item is added to what is not a %s",
                      kind == PICKLE_LIST ? "list" : "dict");
    }
    if (kind == PICKLE_DICT && n % 2 != 0) {
        return refuse(m, "a key without a value");
    }
    m->stack.count -= n;
    return node_append(m, kind, target->as.node, target + 1, n);
}

static bool do_append(machine *m, unsigned unused) {
    (void)unused;
    return move_into(m, PICKLE_LIST, 1);
}

static bool do_set_item(machine *m, unsigned unused) {
    (void)unused;
    return move_into(m, PICKLE_DICT, 2);
}

/* APPENDS and SETITEMS. */
static bool do_extend(machine *m, unsigned kind) {
    size_t base = 0;
    return take_mark(m, &base) && move_into(m, (pickle_kind)kind, m->stack.count - base);
}

static bool do_pop(machine *m, unsigned unused) {
    (void)unused;
    if (!need_values(m, 1)) {
        return false;
    }
    m->stack.count--;
    return true;
}

static bool do_pop_mark(machine *m, unsigned unused) {
    (void)unused;
    return take_mark(m, &m->stack.count);
}

static bool do_duplicate(machine *m, unsigned unused) {
    (void)unused;
    return need_values(m, 1) && push(m, name(*top(m)));
}

/* Writers number the memo from 0 up. Another number would be a way to ask for memory. */
static bool do_put(machine *m, unsigned width) {
    uint64_t index = m->memo.count;
    if (!need_values(m, 1) || (width > 0 && !read_little_endian(m, width, &index))) {
        return false;
    }
    if (index < m->memo.count) {
        m->memo.items[index] = name(*top(m));
        return true;
    }
    if (index > m->memo.count) {
        return refuse(m, "memo entry %llu is written before entry %zu", (unsigned long long)index,
                      m->memo.count);
    }
    const pickle_value named = name(*top(m));
    return append(m, &m->memo, &named, 1);
}

static bool do_get(machine *m, unsigned width) {
    uint64_t index = 0;
    if (!read_little_endian(m, width, &index)) {
        return false;
    }
    if (index >= m->memo.count) {
        return refuse(m, "memo entry %llu is read but was never written",
                      (unsigned long long)index);
    }
    return push(m, resolve(m->memo.items[index]));
}

typedef struct instruction {
    bool (*run)(machine *m, unsigned detail);
    unsigned detail;
} instruction;

/* Absent: not known. What makes objects or runs code is listed in `refused` below instead. */
static const instruction instructions[256] = {
    [0x80] = {do_protocol, 0},
    [0x95] = {do_frame, 0},
    ['.'] = {do_stop, 0},
    ['N'] = {do_none, 0},
    [0x88] = {do_bool, 1},
    [0x89] = {do_bool, 0},
    ['K'] = {do_int, 1},
    ['M'] = {do_int, 2},
    ['J'] = {do_int, 4},
    [0x8a] = {do_long, 1},
    [0x8b] = {do_long, 4},
    ['G'] = {do_float, 0},
    [0x8c] = {do_string, 1},
    ['X'] = {do_string, 4},
    [0x8d] = {do_string, 8},
    ['C'] = {do_bytes, 1},
    ['B'] = {do_bytes, 4},
    [0x8e] = {do_bytes, 8},
    [0x96] = {do_bytes, 8},
    ['}'] = {do_empty, PICKLE_DICT},
    [']'] = {do_empty, PICKLE_LIST},
    [')'] = {do_empty, PICKLE_TUPLE},
    ['('] = {do_mark, 0},
    ['d'] = {do_collect, PICKLE_DICT},
    ['l'] = {do_collect, PICKLE_LIST},
    ['t'] = {do_collect, PICKLE_TUPLE},
    [0x85] = {do_short_tuple, 1},
    [0x86] = {do_short_tuple, 2},
    [0x87] = {do_short_tuple, 3},
    ['a'] = {do_append, 0},
    ['e'] = {do_extend, PICKLE_LIST},
    ['s'] = {do_set_item, 0},
    ['u'] = {do_extend, PICKLE_DICT},
    ['0'] = {do_pop, 0},
    ['1'] = {do_pop_mark, 0},
    ['2'] = {do_duplicate, 0},
    [0x94] = {do_put, 0},
    ['q'] = {do_put, 1},
    ['r'] = {do_put, 4},
    ['h'] = {do_get, 1},
    ['j'] = {do_get, 4},
};

static const char *const refused[256] = {
    ['c'] = "GLOBAL",     [0x93] = "STACK_GLOBAL", ['R'] = "REDUCE",
    ['b'] = "BUILD",      ['i'] = "INST",          ['o'] = "OBJ",
    [0x81] = "NEWOBJ",    [0x92] = "NEWOBJ_EX",    ['P'] = "PERSID",
    ['Q'] = "BINPERSID",  [0x82] = "EXT1",         [0x83] = "EXT2",
    [0x84] = "EXT4",      [0x97] = "NEXT_BUFFER",  [0x98] = "READONLY_BUFFER",
    [0x8f] = "EMPTY_SET", [0x90] = "ADDITEMS",     [0x91] = "FROZENSET",
};

static bool step(machine *m) {
    m->operation = m->at;
    if (!input_has(m->in, 1)) {
        return refuse_end(m, "the pickle is cut off");
    }
    unsigned char code = *m->in->at++;
    m->at++;
    const instruction *chosen = &instructions[code];
    if (chosen->run != NULL) {
        return chosen->run(m, chosen->detail);
    }
    if (refused[code] != NULL) {
        return refuse(m, "%s is not plain data; refused, nothing was run", refused[code]);
    }
    return refuse(m, "0x%02x is no instruction of a pickle", code);
}

static bool run(machine *m) {
    while (!m->stopped) {
        if (!step(m)) {
            return false;
        }
    }
    m->operation = m->at;
    if (input_has(m->in, 1)) {
        return refuse(m, "more bytes follow the end of the pickle");
    }
    return m->in->reason == NULL || refuse_end(m, "");
}

/* ---- The document -------------------------------------------------------------------------- */

bool pickle_recognise(const void *data, size_t size) {
    const unsigned char *bytes = data;
    return size >= 2 && bytes[0] == 0x80 && bytes[1] < 0x20;
}

pickle_document *pickle_open(input *in, const pickle_taker *taker, uint64_t limit_bytes,
                             pickle_error *error) {
    machine m = {.in = in, .taker = taker, .budget = limit_bytes, .error = error};
    *error = (pickle_error){0};
    m.document = calloc(1, sizeof *m.document);
    if (m.document == NULL) {
        (void)refuse(&m, "the host has no memory left");
        return NULL;
    }
    if (!run(&m)) {
        pickle_close(m.document);
        m.document = NULL;
    }
    free(m.stack.items);
    free(m.memo.items);
    return m.document;
}

void pickle_close(pickle_document *document) {
    if (document == NULL) {
        return;
    }
    node_chunk *next;
    for (node_chunk *chunk = document->chunks; chunk != NULL; chunk = next) {
        next = chunk->next;
        for (size_t i = 0; i < chunk->used; i++) {
            free(chunk->nodes[i].of.items);
        }
        free(chunk);
    }
    text_chunk *next_text;
    for (text_chunk *chunk = document->texts; chunk != NULL; chunk = next_text) {
        next_text = chunk->next;
        free(chunk);
    }
    free(document);
}

const pickle_value *pickle_root(const pickle_document *document) {
    return &document->root;
}

static bool is_sequence(const pickle_value *value) {
    return value != NULL && (value->kind == PICKLE_LIST || value->kind == PICKLE_TUPLE);
}

size_t pickle_count(const pickle_value *sequence) {
    return is_sequence(sequence) ? sequence->as.node->of.count : 0;
}

const pickle_value *pickle_item(const pickle_value *sequence, size_t index) {
    bool has_it = index < pickle_count(sequence) &&
                  (sequence->kind != PICKLE_LIST || sequence->as.node->has_items);
    return has_it ? &sequence->as.node->of.items[index] : NULL;
}

bool pickle_record(const pickle_value *sequence, size_t index, uint64_t *record) {
    const pickle_value *item = pickle_item(sequence, index);
    if (item != NULL && item->kind == PICKLE_RECORD) {
        *record = (uint64_t)item->as.integer;
        return true;
    }
    if (item != NULL || index >= pickle_count(sequence)) {
        return false;
    }
    *record = sequence->as.node->record + index;
    return true;
}

static bool is_text(const pickle_value *value, const char *text, size_t length) {
    return value->kind == PICKLE_STRING && value->length == length &&
           memcmp(value->as.text, text, length) == 0;
}

bool pickle_is_string(const pickle_value *value, const char *text) {
    return value != NULL && is_text(value, text, strlen(text));
}

const pickle_value *pickle_pairs(const pickle_value *dict, size_t *n) {
    bool is_dict = dict != NULL && dict->kind == PICKLE_DICT;
    *n = is_dict ? dict->as.node->of.count / 2 : 0;
    return is_dict ? dict->as.node->of.items : NULL;
}

/* From the end: where a key stands twice, the later one counts, as in Python. */
const pickle_value *pickle_find(const pickle_value *dict, const char *key) {
    if (dict == NULL || dict->kind != PICKLE_DICT ||
        dict->as.node->of.count > 2 * (size_t)PICKLE_MAX_SEARCH) {
        return NULL;
    }
    const pickle_node *node = dict->as.node;
    size_t length = strlen(key);
    for (size_t i = node->of.count; i >= 2; i -= 2) {
        if (is_text(&node->of.items[i - 2], key, length)) {
            return &node->of.items[i - 1];
        }
    }
    return NULL;
}

bool pickle_get_unsigned(const pickle_value *value, uint64_t *out) {
    if (value == NULL || value->kind != PICKLE_INT || value->as.integer < 0) {
        return false;
    }
    *out = (uint64_t)value->as.integer;
    return true;
}
