/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of texts that the allocator writes, of mistakes of the program that it or
 * the device finds, and of copies of contents on the host. */
#include "tests/model/player.h"

#include <ductile_pressure.h>
#include <ductile_sleep.h>

#include <stdio.h>
#include <string.h>

/* ---- Texts ---------------------------------------------------------------------------------- */

void player_log(void *user, ductile_log_level level, const char *text) {
    player *p = user;
    size_t n = strlen(p->log);
    if (level == DUCTILE_LOG_INFO) {
        return;
    }
    p->n_logged++;
    (void)snprintf(p->log + n, sizeof p->log - n, "%s\n", text);
}

/* "log": since the latest note; "advice": the report of a refusal; "sleep": of the latest set;
 * "asleep": the tag that a request was refused for; "check": what is broken. */
static const char *text_of(player *p, const char *source) {
    static char text[16384];
    ductile_allocator *a = p->s.f.allocator;
    ductile_oom_report report = {.struct_size = sizeof report};
    ductile_refusal refusal = {.struct_size = sizeof refusal};
    text[0] = '\0';
    if (strcmp(source, "log") == 0) {
        return p->log;
    }
    if (strcmp(source, "sleep") == 0) {
        (void)snprintf(text, sizeof text, "%s: %s", p->report.tag, p->report.message);
    }
    if (strcmp(source, "asleep") == 0 && ductile_sleep_refusal(a, &refusal) == DUCTILE_OK) {
        (void)snprintf(text, sizeof text, "%s: %llu bytes of pool %llu", refusal.tag,
                       (unsigned long long)refusal.bytes, (unsigned long long)refusal.pool.first);
    }
    if (strcmp(source, "advice") == 0 && ductile_get_oom_report(a, &report) == DUCTILE_OK) {
        (void)ductile_oom_report_format(&report, DUCTILE_REPORT_TEXT, text, sizeof text);
    }
    return text;
}

static const char *look_for(player *p, const words *w, bool is_there) {
    char wanted[256] = "";
    const char *text = text_of(p, word_at(w, 1));
    for (size_t i = 2, n = 0; i < w->n; i++) {
        n += (size_t)snprintf(wanted + n, sizeof wanted - n, "%s%s", i > 2 ? " " : "", w->at[i]);
    }
    NEED(p->how.is_lenient || (strstr(text, wanted) != NULL) == is_there, "\"%s\" is %s\n%s",
         wanted, is_there ? "not in" : "in", text);
    return NULL;
}

/* "says advice raise limit_bytes" */
VERB(play_says, "says") {
    return look_for(p, w, true);
}

VERB(play_silent, "silent") {
    return look_for(p, w, false);
}

/* ---- Mistakes of the program ---------------------------------------------------------------- */

/* What the device sees of it is no finding. */
static const char *misuse(player *p, const words *w, bool is_kernel) {
    uint64_t address = 0;
    uint64_t bytes = 0;
    ductile_virtual_gpu *gpu = p->s.f.gpu;
    uint64_t slot = 0;
    TRY(names_value(&p->names, word_at(w, 1), &address));
    TRY(names_value(&p->names, word_at(w, 2), &bytes));
    TRY(w->n > 3 ? number_at(w, 3, &slot) : NULL);
    NEED(slot < N_NAMED, "no such stream");
    ductile_stream stream = p->s.slots[slot].stream;
    const ductile_virtual_use use = {.address = address, .size = bytes, .writes = 1};
    ductile_status status = is_kernel ? ductile_virtual_launch(gpu, stream, &use, 1)
                                      : ductile_virtual_fill(gpu, address, 0xAB, bytes, stream);
    p->s.is_misused = true;
    p->s.n_foreseen = fixture_state(&p->s.f).violations;
    return answers(p, w, status);
}

/* "store a+4M 512", "store a 512 1": a kernel of stream 0, or 1, writes there; "spoil a 3": a fill
 * does. */
VERB(play_store, "store") {
    return misuse(p, w, true);
}

VERB(play_spoil, "spoil") {
    return misuse(p, w, false);
}

/* ---- Contents on the host -------------------------------------------------------------------- */

/* The one that the address lies in. */
static model_block *block_of(player *p, uint64_t address) {
    for (size_t i = 0; i < p->s.m.n; i++) {
        model_block *b = &p->s.m.blocks[i];
        if (b->address <= address && address < b->address + b->size) {
            return b;
        }
    }
    return NULL;
}

/* "x = kept a": the block's bytes are in host memory, at an address that x names from here on;
 * "kept a new": they are written there. */
VERB(play_kept, "kept") {
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint8_t *host = NULL;
    TRY(names_value(&p->names, word_at(w, 1), &address));
    model_block *b = block_of(p, address);
    ductile_status status =
        ductile_kept_contents(p->s.f.allocator, address, (void **)&host, &bytes);
    NEED((host != NULL) == (status == DUCTILE_OK), "a host address with a failure");
    if (status != DUCTILE_OK || b == NULL) {
        return answers(p, w, status);
    }
    NEED(bytes == b->address + b->size - address, "%llu bytes", (unsigned long long)bytes);
    if (has_word(w, "new")) {
        b->pattern = ++p->s.next_pattern;
        memset(host, b->pattern, bytes);
    }
    NEED(host[0] == b->pattern && memcmp(host, host + 1, bytes - 1) == 0, "it begins with %02x",
         host[0]);
    TRY(answers(p, w, status));
    return player_name(p, w->target, (uintptr_t)host);
}

/* "upload a b": what is kept of a is copied to block b, as the driver takes it: from one
 * registration. */
VERB(play_upload, "upload") {
    uint64_t source = 0;
    uint64_t target = 0;
    uint64_t bytes = 0;
    void *host = NULL;
    TRY(names_value(&p->names, word_at(w, 1), &source));
    TRY(names_value(&p->names, word_at(w, 2), &target));
    const model_block *from = block_of(p, source);
    model_block *to = block_of(p, target);
    NEED(from != NULL && to != NULL, "two blocks are wanted");
    NEED_OK(ductile_kept_contents(p->s.f.allocator, from->address, &host, &bytes));
    to->pattern = from->pattern;
    return answers(p, w,
                   ductile_virtual_upload(p->s.f.gpu, to->address, host, bytes,
                                          p->s.slots[to->stream].stream));
}
