/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/replay/memory_map.h"

#include "bench/base/array.h"
#include "bench/base/hash_map.h"

#include "vmm/base/align.h"

#include <stdlib.h>
#include <string.h>

/* Addresses are laid out in pieces of this size. */
#define PIECE (2 * DTI_MIB)

/* ---- What the trace says of blocks --------------------------------------------------------- */

bool memory_map_init(memory_map *map, const trace *t) {
    *map = (memory_map){.trace = t};
    return trace_blocks_init(&map->blocks, t);
}

/* Below 1 MiB, 4, 16, 64, 256 MiB, 1, 4 GiB, and above. */
static unsigned size_class(uint64_t size) {
    unsigned class = 0;
    for (uint64_t bound = DTI_MIB; class < 7 && size >= bound; bound *= 4) {
        class ++;
    }
    return class;
}

/* Below 1/16 of a step, 1/4, 1, 4, 16, 64, 256 steps, and above. */
static unsigned age_class(const memory_map *map, uint64_t age) {
    uint64_t n_steps = map->trace->n_step_ends + 1;
    uint64_t step = map->trace->n_events / n_steps + 1;
    unsigned class = 0;
    for (uint64_t bound = step / 16 + 1; class < 7 && age >= bound; bound *= 4) {
        class ++;
    }
    return class;
}

static uint16_t live_cell(const memory_map *map, const trace_block *block, uint64_t now) {
    unsigned stream = block->stream < MEMORY_MAP_STREAMS ? block->stream : MEMORY_MAP_STREAMS - 1u;
    return (uint16_t)(MEMORY_MAP_FIRST_LIVE + (stream << 6 | size_class(block->size) << 3 |
                                               age_class(map, now - block->born)));
}

/* ---- A column ------------------------------------------------------------------------------ */

static void add_run(memory_map *map, memory_run run) {
    memory_column *column = &map->columns[map->n_columns];
    bool ok = array_add(&column->runs, sizeof run, &column->capacity, &column->n, &run);
    map->has_failed = map->has_failed || !ok;
}

/* Live memory the trace knows better. */
static void add_span(void *user, const contender_span *span) {
    if (span->state != SPAN_LIVE) {
        add_run(user, (memory_run){.address = span->address,
                                   .size = span->size,
                                   .cell = span->state == SPAN_FREE ? 1 : 2});
    }
}

static void add_live(memory_map *map, const replay_moment *now) {
    for (uint32_t slot = 0; slot < map->trace->n_slots; slot++) {
        const trace_block *block = &map->blocks.at[slot];
        if (block->size > 0 && now->addresses[slot] != 0) {
            add_run(map, (memory_run){.address = now->addresses[slot],
                                      .size = dti_round_up(block->size, 512),
                                      .cell = live_cell(map, block, now->event),
                                      .block = block->number});
        }
    }
}

/* Blocks of one kind side by side, as long as they are much smaller than a row of the picture will
 * be: of these the first is named. */
static bool are_one(const memory_run *last, const memory_run *run, uint64_t small) {
    bool is_apart = last->block != run->block && run->size > small;
    return last->cell == run->cell && last->address + last->size == run->address && !is_apart;
}

static uint64_t bytes_of(const memory_column *column) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < column->n; i++) {
        bytes += column->runs[i].size;
    }
    return bytes;
}

static void unite_runs(memory_column *column) {
    uint64_t small = bytes_of(column) / (MEMORY_MAP_ROWS * 8);
    size_t n = 0;
    for (size_t i = 0; i < column->n; i++) {
        memory_run *run = &column->runs[i];
        memory_run *last = &column->runs[n > 0 ? n - 1 : 0];
        if (n > 0 && are_one(last, run, small)) {
            last->size += run->size;
        } else {
            column->runs[n++] = *run;
        }
    }
    column->n = n;
}

void memory_map_add(memory_map *map, const contender_ops *ops, const replay_moment *now) {
    if (map->has_failed || map->n_columns == MEMORY_MAP_COLUMNS) {
        return;
    }
    memory_column *column = &map->columns[map->n_columns];
    trace_blocks_follow(&map->blocks, map->trace, now->event + 1);
    column->event = now->event;
    ops->walk(now->contender, add_span, map);
    add_live(map, now);
    if (column->n > 0) {
        qsort(column->runs, column->n, sizeof *column->runs, array_by_number);
    }
    unite_runs(column);
    map->n_columns++;
}

static uint16_t cell_of(const recorded_span *span) {
    switch (span->state) {
    case RECORDED_LIVE:
        return (uint16_t)(MEMORY_MAP_FIRST_LIVE + (size_class(span->size) << 3));
    case RECORDED_PENDING:
        return 2;
    case RECORDED_FREE:
        break;
    }
    return 1;
}

bool memory_map_of_recorded(memory_map *map, const trace *t, const recorded_layout *l,
                            uint64_t event) {
    *map = (memory_map){.trace = t};
    map->columns[0].event = event;
    for (size_t i = 0; l->is_known && i < l->n_spans; i++) {
        const recorded_span *span = &l->spans[i];
        add_run(map, (memory_run){.address = span->address,
                                  .size = span->size,
                                  .cell = cell_of(span),
                                  .block = span->state == RECORDED_LIVE ? span->block : 0});
    }
    map->n_columns = 1;
    if (map->columns[0].n == 0) {
        return false;
    }
    qsort(map->columns[0].runs, map->columns[0].n, sizeof(memory_run), array_by_number);
    return memory_map_draw(map);
}

/* ---- The picture --------------------------------------------------------------------------- */

/* The pieces of the address space that ever have memory, in order. */
typedef struct layout {
    hash_map ranks; /* from a piece's number to its place + 1 */
    uint64_t *pieces;
    size_t n;
} layout;

static bool note_run(layout *l, const memory_run *run) {
    uint64_t last = (run->address + run->size - 1) / PIECE;
    for (uint64_t piece = run->address / PIECE; piece <= last; piece++) {
        if (hash_map_find(&l->ranks, piece) == 0 && !hash_map_put(&l->ranks, piece, 1)) {
            return false;
        }
    }
    return true;
}

static bool note_runs(layout *l, const memory_map *map) {
    for (size_t i = 0; i < map->n_columns; i++) {
        const memory_column *column = &map->columns[i];
        for (size_t k = 0; k < column->n; k++) {
            if (!note_run(l, &column->runs[k])) {
                return false;
            }
        }
    }
    return true;
}

static bool rank_pieces(layout *l) {
    l->pieces = calloc(l->ranks.n_used + 1, sizeof *l->pieces);
    if (l->pieces == NULL) {
        return false;
    }
    for (size_t i = 0; i < l->ranks.n_slots; i++) {
        if (l->ranks.slots[i].value != 0) {
            l->pieces[l->n++] = l->ranks.slots[i].key;
        }
    }
    qsort(l->pieces, l->n, sizeof *l->pieces, array_by_number);
    for (size_t i = 0; i < l->n; i++) {
        hash_map_set(&l->ranks, l->pieces[i], i + 1);
    }
    return true;
}

/* What lies in one row at one time. */
typedef struct row {
    uint64_t bytes[MEMORY_MAP_FIRST_LIVE + 1]; /* by state; the last is live */
    uint64_t largest;                          /* of the live runs */
    uint16_t cell;                             /* of that one */
    uint32_t block;
} row;

/* A part of a run that lies in one piece, and so side by side in the layout. */
static void add_part(const memory_map *map, row *rows, uint64_t from, uint64_t to,
                     const memory_run *run) {
    uint16_t cell = run->cell;
    while (from < to) {
        uint64_t index = from / map->row_bytes;
        uint64_t end = (index + 1) * map->row_bytes < to ? (index + 1) * map->row_bytes : to;
        row *in = &rows[index];
        unsigned state = cell < MEMORY_MAP_FIRST_LIVE ? cell : MEMORY_MAP_FIRST_LIVE;
        in->bytes[state] += end - from;
        if (state == MEMORY_MAP_FIRST_LIVE && end - from > in->largest) {
            in->largest = end - from;
            in->cell = cell;
            in->block = run->block;
        }
        from = end;
    }
}

static void add_to_rows(const memory_map *map, const layout *l, row *rows, const memory_run *run) {
    uint64_t end = run->address + run->size;
    for (uint64_t at = run->address; at < end;) {
        uint64_t piece_end = (at / PIECE + 1) * PIECE;
        uint64_t part_end = piece_end < end ? piece_end : end;
        uint64_t base = (hash_map_find(&l->ranks, at / PIECE) - 1) * PIECE + at % PIECE;
        add_part(map, rows, base, base + (part_end - at), run);
        at = part_end;
    }
}

static uint16_t choose_cell(const memory_map *map, const row *of) {
    uint64_t mapped = of->bytes[1] + of->bytes[2] + of->bytes[MEMORY_MAP_FIRST_LIVE];
    uint64_t most = map->row_bytes > mapped ? map->row_bytes - mapped : 0;
    uint16_t cell = 0;
    for (uint16_t state = 1; state <= MEMORY_MAP_FIRST_LIVE; state++) {
        if (of->bytes[state] > most) {
            most = of->bytes[state];
            cell = state == MEMORY_MAP_FIRST_LIVE ? of->cell : state;
        }
    }
    return cell;
}

static void draw_column(memory_map *map, const layout *l, size_t index) {
    row rows[MEMORY_MAP_ROWS + 1] = {0};
    const memory_column *column = &map->columns[index];
    for (size_t i = 0; i < column->n; i++) {
        add_to_rows(map, l, rows, &column->runs[i]);
    }
    for (size_t i = 0; i < MEMORY_MAP_ROWS; i++) {
        uint16_t cell = choose_cell(map, &rows[i]);
        map->cells[index * MEMORY_MAP_ROWS + i] = cell;
        map->blocks_shown[index * MEMORY_MAP_ROWS + i] =
            cell >= MEMORY_MAP_FIRST_LIVE ? rows[i].block : 0;
    }
}

bool memory_map_draw(memory_map *map) {
    layout l = {0};
    map->cells = calloc(map->n_columns * MEMORY_MAP_ROWS + 1, sizeof *map->cells);
    map->blocks_shown = calloc(map->n_columns * MEMORY_MAP_ROWS + 1, sizeof *map->blocks_shown);
    bool ok = !map->has_failed && map->cells != NULL && map->blocks_shown != NULL &&
              note_runs(&l, map) && rank_pieces(&l);
    if (ok) {
        map->row_bytes = dti_round_up(l.n * PIECE / MEMORY_MAP_ROWS + 1, 512);
        for (size_t i = 0; i < map->n_columns; i++) {
            draw_column(map, &l, i);
        }
    }
    hash_map_drop(&l.ranks);
    free(l.pieces);
    return ok;
}

void memory_map_fini(memory_map *map) {
    for (size_t i = 0; i < MEMORY_MAP_COLUMNS; i++) {
        free(map->columns[i].runs);
    }
    free(map->blocks.at);
    free(map->cells);
    free(map->blocks_shown);
    *map = (memory_map){0};
}
