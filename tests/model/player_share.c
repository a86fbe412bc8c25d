/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of memory that passes to a second allocator, the importer. */
#include "tests/model/player.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_LABELS = 32 };

/* ---- Passing -------------------------------------------------------------------------------- */

/* Before "may_fail", where calls fail: that the importer cannot be made is of no interest. */
VERB(play_importer, "importer") {
    return make_importer(&p->s);
}

static const char *passing_to(player *p, const words *w, passing *out) {
    uint64_t slot = 0;
    TRY(make_importer(&p->s));
    TRY(w->n > 2 && script_number(w->at[2], &slot) && slot >= N_NAMED ? complain("no such stream")
                                                                      : NULL);
    *out = (passing){.from = p->s.f.allocator,
                     .to = p->s.ends.importer,
                     .out = p->s.ends.out,
                     .in = p->s.ends.in,
                     .stream = p->s.slots[slot].stream};
    return NULL;
}

static void keep_failure(player *p, ductile_status status) {
    p->told_by_importer = p->told_by_importer != DUCTILE_OK ? p->told_by_importer : status;
}

/* The status is the import's, or why there was nothing to import. After a failure there are new
 * sockets. */
static const char *pass_it(player *p, const words *w, passing *it) {
    pass_memory(it);
    p->n_passed++;
    keep_failure(p, it->imported);
    if (it->exported != DUCTILE_OK || it->imported != DUCTILE_OK) {
        (void)close(it->out);
        (void)close(it->in);
        TRY(connect_sockets(SOCK_STREAM, &p->s.ends.out, &p->s.ends.in));
    }
    bool is_refused = it->exported != DUCTILE_OK && it->imported == DUCTILE_ERR_BAD_MESSAGE;
    return answers(p, w, is_refused ? it->exported : it->imported);
}

/* "b = pass a", "b = pass a 1": imported for stream 0, or 1; b is its address there. */
VERB(play_pass, "pass") {
    passing it;
    subject *s = &p->s;
    TRY(passing_to(p, w, &it));
    uint64_t address = 0;
    if (names_value(&p->names, word_at(w, 1), &address) != NULL) {
        return p->how.is_lenient ? NULL : complain("no block has that name");
    }
    it.block = address;
    size_t i = model_find(&s->m, address);
    NEED(s->n_imports < MOST_IMPORTS && s->n_pins < MOST_PINS, "too many imports");
    TRY(pass_it(p, w, &it));
    NEED((it.addr != 0) == (it.imported == DUCTILE_OK), "an address with a failure");
    if (it.exported == DUCTILE_OK) {
        s->pins[s->n_pins++] = (pin_state){it.block, it.size, true};
    }
    if (it.imported != DUCTILE_OK) {
        return NULL;
    }
    s->imports[s->n_imports++] = it.addr;
    NEED(it.size >= s->m.blocks[i].size, "%llu bytes arrive", (unsigned long long)it.size);
    NEED((it.addr - it.block) % s->granule == 0, "the place in the granule is lost");
    TRY(is_seen_at(&p->s, &s->m.blocks[i], it.addr));
    return player_name(p, w->target, it.addr);
}

const char *play_pass_once_more(player *p) {
    passing it;
    words none = {.n = 0};
    TRY(p->s.m.n > 0 ? passing_to(p, &none, &it) : complain("no block is left to pass"));
    it.block = p->s.m.blocks[0].address;
    pass_memory(&it);
    NEED(it.exported == DUCTILE_OK && it.imported == DUCTILE_OK, "export: %s, import: %s",
         ductile_status_name(it.exported), ductile_status_name(it.imported));
    TRY(is_seen_at(&p->s, &p->s.m.blocks[0], it.addr));
    NEED_OK(ductile_import_close(p->s.ends.importer, it.addr));
    return ductile_unexport(p->s.f.allocator, it.block) == DUCTILE_OK ? NULL : "unexport";
}

/* "write_through b a": block a gets other contents by a write to b, its address at the importer. */
VERB(play_write_through, "write_through") {
    uint64_t there = 0;
    uint64_t here = 0;
    TRY(names_value(&p->names, word_at(w, 1), &there));
    TRY(names_value(&p->names, word_at(w, 2), &here));
    model_block *b = &p->s.m.blocks[model_find(&p->s.m, here)];
    b->pattern = ++p->s.next_pattern;
    return answers(
        p, w, ductile_virtual_fill(p->s.f.gpu, there, b->pattern, b->size, p->s.slots[0].stream));
}

/* "same b a": what block a holds is seen at b. */
VERB(play_same, "same") {
    uint64_t there = 0;
    uint64_t here = 0;
    TRY(p->how.is_lenient ? NULL : names_value(&p->names, word_at(w, 1), &there));
    TRY(p->how.is_lenient ? NULL : names_value(&p->names, word_at(w, 2), &here));
    size_t i = model_find(&p->s.m, here);
    return i < p->s.m.n ? is_seen_at(&p->s, &p->s.m.blocks[i], there) : NULL;
}

/* "unexport a" */
VERB(play_unexport, "unexport") {
    uint64_t address = 0;
    TRY(p->how.is_lenient ? NULL : names_value(&p->names, word_at(w, 1), &address));
    for (size_t i = p->s.n_pins; i-- > 0;) {
        if (p->s.pins[i].is_export && (p->how.is_lenient || p->s.pins[i].address == address)) {
            address = p->s.pins[i].address;
            p->s.pins[i] = p->s.pins[--p->s.n_pins];
            break;
        }
    }
    return p->how.is_lenient && address == 0
               ? NULL
               : answers(p, w, ductile_unexport(p->s.f.allocator, address));
}

/* "close_import b", "close_import b free": by ductile_free. One that fails stays, to be closed at
 * the end. */
VERB(play_close_import, "close_import") {
    subject *s = &p->s;
    uint64_t address = 0;
    if (names_value(&p->names, word_at(w, 1), &address) != NULL) {
        return p->how.is_lenient ? NULL : complain("no import has that name");
    }
    ductile_status status = has_word(w, "free") ? ductile_free(s->ends.importer, address)
                                                : ductile_import_close(s->ends.importer, address);
    ductile_block_info left = {.struct_size = sizeof left};
    bool has_gone = ductile_query_block(s->ends.importer, address, &left) != DUCTILE_OK;
    keep_failure(p, status);
    for (size_t i = 0; i < s->n_imports && has_gone; i++) {
        if (s->imports[i] == address) {
            s->imports[i] = s->imports[--s->n_imports];
        }
    }
    return answers(p, w, status);
}

/* "importer_does trim", "importer_does done 1", "... peer on", "... end": the importer's call of
 * that name. */
VERB(play_importer_does, "importer_does") {
    ductile_allocator *a = p->s.ends.importer;
    const char *what = word_at(w, 1);
    uint64_t slot = 0;
    if (strcmp(what, "done") == 0) {
        TRY(number_at(w, 2, &slot));
        return answers(p, w, ductile_stream_done(a, p->s.slots[slot].stream));
    }
    if (strcmp(what, "peer") == 0) {
        return answers(p, w,
                       has_word(w, "on") ? ductile_enable_peer(a, 1) : ductile_disable_peer(a, 1));
    }
    if (strcmp(what, "end") == 0) {
        p->s.ends.importer = NULL;
        p->s.n_imports = 0;
        return answers(p, w, ductile_destroy(a));
    }
    NEED(strcmp(what, "trim") == 0, "the importer does no %s", what);
    return answers(p, w, ductile_trim(a, NULL, 0, NULL));
}

/* ---- Tags ----------------------------------------------------------------------------------- */

static bool has_tag(const player *p, const model_block *b, const char *tag) {
    ductile_pool_info info = {.struct_size = sizeof info};
    ductile_block_info block = {.struct_size = sizeof block};
    return ductile_query_block(p->s.f.allocator, b->address, &block) == DUCTILE_OK &&
           ductile_list_pools(p->s.f.allocator, &block.pool, &info, 1, NULL) == DUCTILE_OK &&
           strcmp(info.tag, tag) == 0;
}

/* A label for each of its blocks. */
static size_t label_all(const player *p, const char *tag, ductile_tag_name *labels) {
    size_t n = 0;
    for (size_t i = 0; i < p->s.m.n && n < MOST_LABELS; i++) {
        const model_block *b = &p->s.m.blocks[i];
        if (has_tag(p, b, tag)) {
            labels[n++] = (ductile_tag_name){b->address, b->requested, "a label"};
        }
    }
    return n;
}

/* Each block lies at its offset, under its label. */
static const char *tag_arrives(player *p, const passing *it) {
    const ductile_imported_tag *t = it->arrived;
    NEED(strcmp(t->tag, it->tag) == 0 && t->layout == it->layout, "another tag arrives");
    NEED(t->n_blocks == it->n_names && t->n_names == it->n_names, "%zu blocks arrive", t->n_blocks);
    for (size_t i = 0; i < t->n_names; i++) {
        size_t at = model_find(&p->s.m, it->names[i].address);
        NEED(t->names[i].size == it->names[i].size && strcmp(t->names[i].name, "a label") == 0,
             "label %zu is another one", i);
        TRY(is_seen_at(&p->s, &p->s.m.blocks[at], t->address + t->names[i].offset));
    }
    return NULL;
}

/* "t = pass_tag weights", "... write": not only to be read; "... as 1": with the layout that the
 * first passage had. */
VERB(play_pass_tag, "pass_tag") {
    ductile_tag_name labels[MOST_LABELS];
    char tag[WORD_BYTES];
    passing it;
    NEED(p->n_tags < MOST_TAGS, "too many tags");
    TRY(passing_to(p, w, &it));
    (void)snprintf(tag, sizeof tag, "%s", word_at(w, 1));
    it.tag = tag;
    it.names = labels;
    it.n_names = label_all(p, tag, labels);
    it.access = has_word(w, "write") ? DUCTILE_IMPORT_READ_WRITE : DUCTILE_IMPORT_READ;
    it.wanted_layout = has_word(w, "as") ? p->tags[0].layout : 0;
    TRY(pass_it(p, w, &it));
    TRY(it.arrived != NULL ? tag_arrives(p, &it) : NULL);
    NEED((it.id != 0) == (it.exported == DUCTILE_OK), "a number with a failure");
    if (it.id != 0 || it.arrived != NULL) {
        p->tags[p->n_tags++] = it;
    }
    return it.arrived != NULL ? player_name(p, w->target, it.arrived->address) : NULL;
}

static ductile_status release_tag(player *p, passing *it) {
    ductile_status status =
        it->arrived != NULL ? ductile_import_release(p->s.ends.importer, it->arrived) : DUCTILE_OK;
    keep_failure(p, status);
    it->arrived = status == DUCTILE_OK || status == DUCTILE_ERR_DEVICE_LOST ? NULL : it->arrived;
    return status;
}

static ductile_status unexport_tag(player *p, passing *it) {
    uint64_t id = it->id;
    it->id = 0;
    return id != 0 ? ductile_unexport_tag(p->s.f.allocator, id) : DUCTILE_OK;
}

/* "release_tag 1": the import of the first passage; "unexport_tag 1": its export. */
static const char *end_tag(player *p, const words *w, ductile_status (*end)(player *, passing *)) {
    uint64_t i = 0;
    TRY(number_at(w, 1, &i));
    bool is_there = i > 0 && i <= p->n_tags;
    NEED(is_there || p->how.is_lenient, "there was no such passage");
    return is_there ? answers(p, w, end(p, &p->tags[i - 1])) : NULL;
}

VERB(play_release_tag, "release_tag") {
    return end_tag(p, w, release_tag);
}

VERB(play_unexport_tag, "unexport_tag") {
    return end_tag(p, w, unexport_tag);
}

/* ---- The end -------------------------------------------------------------------------------- */

ductile_status play_end_sharing(player *p) {
    for (size_t i = 0; i < p->n_tags; i++) {
        (void)release_tag(p, &p->tags[i]);
        (void)release_tag(p, &p->tags[i]); /* where the first could not begin */
        keep_failure(p, unexport_tag(p, &p->tags[i]));
    }
    p->n_tags = 0;
    if (p->s.ends.importer != NULL) {
        (void)end_sharing(&p->s);
        keep_failure(p, p->s.status);
    }
    return p->told_by_importer;
}

/* "exported:a"; "access:b", of the device itself, and "peer_access:b"; 99: nothing is mapped;
 * "descriptors", more than at the latest note. */
bool figure_of_sharing(const player *p, const char *name, uint64_t *out) {
    ductile_block_info info = {.struct_size = sizeof info};
    const char *of = strchr(name, ':');
    uint64_t address = 0;
    if (strcmp(name, "descriptors") == 0) {
        (void)fixture_state(&p->s.f); /* the virtual GPU looks which are closed */
        *out = count_descriptors() - p->noted_descriptors;
        return true;
    }
    if (of == NULL || names_value(&p->names, of + 1, &address) != NULL) {
        return false;
    }
    if (strncmp(name, "exported:", 9) == 0) {
        bool is_live = ductile_query_block(p->s.f.allocator, address, &info) == DUCTILE_OK;
        *out = (info.flags & DUCTILE_BLOCK_EXPORTED) != 0;
        return is_live;
    }
    bool is_peers = strncmp(name, "peer_access:", 12) == 0;
    int access = ductile_virtual_access(p->s.f.gpu, address, is_peers);
    *out = access < 0 ? 99 : (uint64_t)access;
    return is_peers || strncmp(name, "access:", 7) == 0;
}
