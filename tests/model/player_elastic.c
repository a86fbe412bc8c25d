/* SPDX-License-Identifier: Apache-2.0 */
/* What a scenario may say of elastic ranges, which have numbers. */
#include "tests/model/player.h"

#include <ductile_elastic.h>

#define RANGE(variable)                                                                            \
    uint64_t number_ = 0;                                                                          \
    TRY(number_at(w, 1, &number_));                                                                \
    NEED(number_ < N_RANGES, "there is no range %s", word_at(w, 1));                               \
    range_state *variable = &p->s.ranges[number_]

/* What could not be opened is left out where that is no finding. */
#define OPEN_RANGE(variable)                                                                       \
    RANGE(variable);                                                                               \
    if (variable->range == NULL) {                                                                 \
        return p->how.is_lenient ? NULL : complain("there is no such range");                      \
    }

/* "range 0 64M 4M 1": of that size, in units of 4M, of stream 1. */
VERB(open_it, "range") {
    RANGE(of);
    uint64_t bytes = 0;
    uint64_t unit = 0;
    uint64_t slot = 0;
    TRY(number_at(w, 2, &bytes));
    TRY(number_at(w, 3, &unit));
    TRY(number_at(w, 4, &slot));
    NEED(slot < N_NAMED && of->range == NULL, "a stream, and a number that is new");
    ductile_elastic_options options = {.struct_size = sizeof options, .unit_bytes = unit};
    ductile_elastic *range = NULL;
    ductile_status status =
        ductile_elastic_open(p->s.f.allocator, bytes, p->s.slots[slot].stream, &options, &range);
    if (status == DUCTILE_OK) {
        unsigned pool = pool_for(&p->s, slot);
        *of = (range_state){range, slot, pool, p->s.pools[pool].id, unit, bytes / unit};
    }
    return answers(p, w, status);
}

static const char *read_part(const words *w, uint64_t *offset, uint64_t *bytes) {
    TRY(number_at(w, 2, offset));
    return number_at(w, 3, bytes);
}

/* "commit 0 8M 16M": 16M from 8M on; "commit 0 8M 16M blank": not written. */
VERB(commit, "commit") {
    OPEN_RANGE(of);
    uint64_t offset = 0;
    uint64_t bytes = 0;
    TRY(read_part(w, &offset, &bytes));
    ductile_status status = ductile_elastic_commit(of->range, offset, bytes);
    TRY(answers(p, w, status));
    return status == DUCTILE_OK ? admit_range(&p->s, of, offset, bytes, has_word(w, "blank"))
                                : NULL;
}

/* "decommit 0 8M 16M"; "decommit 0 8M 16M by 1": stream 1 used it last. */
VERB(decommit, "decommit") {
    OPEN_RANGE(of);
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t slot = 0;
    TRY(read_part(w, &offset, &bytes));
    bool is_named = has_word(w, "by");
    TRY(is_named ? number_at(w, 5, &slot) : NULL);
    TRY(withdraw_range(&p->s, of, offset, bytes));
    ductile_stream stream = p->s.slots[slot].stream;
    return answers(p, w, ductile_elastic_decommit(of->range, offset, bytes, &stream, is_named));
}

VERB(end_it, "end_range") {
    OPEN_RANGE(of);
    TRY(end_range(&p->s, of));
    return answers(p, w, DUCTILE_OK);
}

/* "a = unit 0 8M": the block there. */
VERB(unit, "unit") {
    OPEN_RANGE(of);
    uint64_t offset = 0;
    TRY(number_at(w, 2, &offset));
    return player_name(p, w->target, ductile_elastic_address(of->range) + offset);
}
