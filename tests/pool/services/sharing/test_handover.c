/* SPDX-License-Identifier: Apache-2.0 */
/* A tag that passes as one message: a large one, owners without a device, readers that write, and
 * messages that lie. What passes and how it ends is tests/scenarios/share.txt. */
#include "tests/support/one_pair.h"

#include "pool/services/sharing/tag_wire.h"

#include <ductile_handover.h>

#include <pthread.h>
#include <sys/socket.h>

#define GRANULE FIXTURE_GRANULE

enum { BYTES_1 = 3 << 20, BYTES_2 = 512, BYTES_3 = 5 << 20 };

static const ductile_pool_id weights = {7, 1};
static ductile_addr blocks[3];

static void open_ends(void) {
    const fixture_setup setup = {.capacity_bytes = 1 * GIB, .n_streams = 2, .n_devices = 2};
    assert_fine(two_ends_open(&t, &setup, SOCK_STREAM));
    assert_ok(ductile_pool_begin(t.f.allocator, weights, NULL, NULL));
    assert_ok(ductile_pool_set_tag(t.f.allocator, weights, "weights", DUCTILE_CONTENTS_DROP));
    blocks[0] = take(BYTES_1);
    blocks[1] = take(BYTES_2);
    blocks[2] = take(BYTES_3);
    assert_ok(ductile_pool_end(t.f.allocator, weights));
}

TestSuite(handover, .init = open_ends, .fini = close_ends);

/* ---- Passing a tag ------------------------------------------------------------------------- */

static passing pass(const ductile_tag_name *names, size_t n_names) {
    passing p = passing_of("weights", 0);
    p.names = names;
    p.n_names = n_names;
    pass_memory(&p);
    assert_ok(p.exported);
    assert_ok(p.imported);
    return p;
}

/* More than one batch of handles, more than one page of the table, on a socket that keeps messages
 * apart. */
Test(handover, a_large_tag_passes) {
    enum { N = 3000 };
    static ductile_tag_name names[N];
    assert_fine(two_ends_reconnect(&t, SOCK_SEQPACKET));
    assert_ok(ductile_pool_begin(t.f.allocator, weights, NULL, NULL));
    for (size_t i = 0; i < N; i++) {
        names[i] = (ductile_tag_name){take(i % 20 == 0 ? GRANULE : 512), 512, "one of many"};
    }
    assert_ok(ductile_pool_end(t.f.allocator, weights));
    traces before = traces_now();
    passing p = pass(names, N);
    assert_u64(p.arrived->n_blocks, N + 3);
    check_both();
    assert_ok(ductile_import_release(t.importer, p.arrived));
    assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
    assert_nothing_left(&before);
}

/* Two GPUs, as two processes have contexts of their own: the store ends that of the reader. */
Test(handover, a_store_of_a_kernel_ends_the_reader_and_nobody_else) {
    fixture reader;
    const fixture_setup setup = {.capacity_bytes = 1 * GIB, .conf = "shareable:fd"};
    assert_fine(fixture_open(&reader, &setup));
    passing p = passing_of("weights", 0);
    p.to = reader.allocator;
    p.stream = NULL;
    p.access = DUCTILE_IMPORT_READ;
    pass_memory(&p);
    assert_ok(p.imported);
    const ductile_virtual_use load = {p.arrived->address, 512, 0};
    assert_ok(ductile_virtual_launch(reader.gpu, reader.streams[0], &load, 1));
    assert_ok(ductile_virtual_stream_sync(reader.gpu, reader.streams[0]));
    const ductile_virtual_use store = {p.arrived->address, 512, 1};
    assert_status(ductile_virtual_launch(reader.gpu, reader.streams[0], &store, 1),
                  DUCTILE_ERR_DEVICE_LOST); /* it is run at once */
    assert_status(ductile_virtual_stream_sync(reader.gpu, reader.streams[0]),
                  DUCTILE_ERR_DEVICE_LOST);
    fill(blocks[0], 0x43, 512);
    cr_assert_eq(byte_at(blocks[0]), 0x43);
    assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
    check_both();
    assert_status(ductile_import_release(reader.allocator, p.arrived), DUCTILE_ERR_DEVICE_LOST);
    (void)ductile_destroy(reader.allocator);
    reader.allocator = NULL;
    fixture_abandon(&reader);
}

/* ---- An owner without a device ------------------------------------------------------------- */

/* A call of one end, on a thread. */
typedef struct call {
    ductile_held_tag *held;
    const ductile_tag_name *names;
    size_t n_names;
    ductile_status status;
} call;

static void *export_here(void *argument) {
    call *c = argument;
    uint64_t id = 0;
    c->status =
        ductile_export_tag(t.f.allocator, "weights", c->names, c->n_names, t.out, &id, NULL);
    return NULL;
}

static ductile_held_tag *hold(const ductile_tag_name *names, size_t n_names) {
    call c = {NULL, names, n_names, DUCTILE_ERR_BUSY};
    pthread_t thread = begin_thread(export_here, &c);
    assert_ok(ductile_hold_tag(t.in, 0, &c.held));
    end_thread(thread);
    assert_ok(c.status);
    return c.held;
}

static void *pass_held(void *argument) {
    call *c = argument;
    c->status = ductile_pass_held_tag(c->held, t.out);
    return NULL;
}

static ductile_imported_tag *fetch(ductile_held_tag *held) {
    call c = {.held = held, .status = DUCTILE_ERR_BUSY};
    ductile_imported_tag *tag = NULL;
    pthread_t thread = begin_thread(pass_held, &c);
    assert_ok(
        ductile_import_tag(t.importer, t.in, t.f.streams[0], DUCTILE_IMPORT_READ_WRITE, 0, &tag));
    end_thread(thread);
    assert_ok(c.status);
    return tag;
}

Test(handover, what_is_held_outlives_all_who_map_it) {
    size_t open = count_descriptors();
    fill(blocks[0], 0x71, BYTES_1);
    const ductile_tag_name name = {blocks[0], BYTES_1, "w"};
    ductile_held_tag *held = hold(&name, 1);
    ductile_held_info info = {.struct_size = sizeof info};
    assert_ok(ductile_held_describe(held, &info));
    assert_u64(info.n_blocks, 3);
    cr_assert_str_eq(info.tag, "weights");
    assert_ok(ductile_destroy(t.f.allocator));
    t.f.allocator = NULL;
    for (uint8_t value = 0x71; value < 0x74; value++) {
        ductile_imported_tag *tag = fetch(held);
        assert_u64(tag->layout, info.layout);
        cr_assert_eq(byte_at(tag->address + tag->names[0].offset), value);
        fill(tag->address + tag->names[0].offset, (uint8_t)(value + 1), BYTES_1);
        assert_ok(ductile_virtual_stream_sync(t.f.gpu, t.f.streams[0]));
        assert_ok(ductile_import_release(t.importer, tag));
    }
    ductile_drop_held_tag(held);
    assert_u64(fixture_state(&t.f).handles, 0);
    cr_assert_eq(count_descriptors(), open);
}

/* More than one batch of handles: each block is found in that of its own. */
Test(handover, what_is_held_of_a_large_tag_keeps_its_order) {
    enum { N = 150 };
    static ductile_tag_name names[N];
    assert_ok(ductile_pool_begin(t.f.allocator, weights, NULL, NULL));
    for (size_t i = 0; i < N; i++) {
        names[i] = (ductile_tag_name){take(GRANULE), GRANULE, "one of many"};
        fill(names[i].address, (uint8_t)(i + 1), 512);
    }
    assert_ok(ductile_pool_end(t.f.allocator, weights));
    ductile_held_tag *held = hold(names, N);
    ductile_held_info info = {.struct_size = sizeof info};
    assert_ok(ductile_held_describe(held, &info));
    cr_assert_gt(info.n_handles, 2 * DPOOL_WIRE_BATCH);
    ductile_imported_tag *tag = fetch(held);
    for (size_t i = 0; i < N; i++) {
        cr_assert_eq(byte_at(tag->address + tag->names[i].offset), (uint8_t)(i + 1), "block %zu",
                     i);
    }
    assert_ok(ductile_import_release(t.importer, tag));
    ductile_drop_held_tag(held);
}

/* ---- What is refused ----------------------------------------------------------------------- */

static ductile_status export_alone(const char *tag, const ductile_tag_name *names, size_t n) {
    uint64_t id = 1;
    ductile_status status = ductile_export_tag(t.f.allocator, tag, names, n, t.out, &id, NULL);
    assert_u64(id, 0);
    assert_u64(fixture_stats(t.f.allocator).exported_bytes, 0);
    return status;
}

Test(handover, bad_exports_are_refused_before_anything_is_sent) {
    const ductile_tag_name bad[] = {{blocks[1], BYTES_2 + 1, "too long"},
                                    {blocks[0], 0, "empty"},
                                    {take(512), 512, "of no tag"},
                                    {blocks[0], 512, NULL}};
    static const char *const no_tags[] = {"no such tag", "", NULL};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_status(export_alone("weights", &bad[i], 1), DUCTILE_ERR_INVALID_ARGUMENT);
    }
    assert_status(export_alone("weights", NULL, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    for (size_t i = 0; i < sizeof no_tags / sizeof *no_tags; i++) {
        assert_status(export_alone(no_tags[i], NULL, 0), DUCTILE_ERR_INVALID_ARGUMENT);
    }
    for (int i = 0; i < 3; i++) {
        assert_ok(ductile_free(t.f.allocator, blocks[i]));
    }
    assert_status(export_alone("weights", NULL, 0), DUCTILE_ERR_NOT_LIVE);
    char byte;
    cr_assert_lt(recv(t.in, &byte, 1, MSG_DONTWAIT), 0);
}

/* ---- Falsified messages -------------------------------------------------------------------- */

static void *import_alone(void *argument) {
    ductile_imported_tag *tag = NULL;
    *(ductile_status *)argument =
        ductile_import_tag(t.importer, t.in, NULL, DUCTILE_IMPORT_READ, 0, &tag);
    (void)shutdown(t.in, SHUT_RDWR);
    return NULL;
}

static void *hold_alone(void *argument) {
    ductile_held_tag *tag = NULL;
    *(ductile_status *)argument = ductile_hold_tag(t.in, 0, &tag);
    (void)shutdown(t.in, SHUT_RDWR);
    return NULL;
}

static dpool_tag_head true_head(dpool_tag_table *table) {
    dpool_tag_head head = dpool_tag_new_head("weights", 2, 1, 2);
    head.handles = dpool_wire_new_head();
    head.handles.type = DVMM_SHARE_FD;
    head.handles.granule_bytes = GRANULE;
    head.handles.total_bytes = head.handles.size = 4 * GRANULE;
    head.handles.n_handles = 2;
    assert_ok(dpool_tag_table_make(&head, table));
    table->blocks[0] = (dpool_tag_span){0, 512};
    table->blocks[1] = (dpool_tag_span){GRANULE, GRANULE};
    table->labels[0] = (dpool_tag_label){{0, 512}, 0};
    table->texts[0] = 'w';
    head.layout = dpool_tag_layout(&head, table);
    return head;
}

/* What the importer says to head and table; then the other side is gone. */
static ductile_status say(const dpool_tag_head *head, const dpool_tag_table *table,
                          void *(*listener)(void *)) {
    ductile_status heard = DUCTILE_OK;
    assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
    pthread_t thread = begin_thread(listener, &heard);
    ductile_status sent = dpool_wire_send_bytes(t.out, head, sizeof *head);
    sent = sent == DUCTILE_OK ? dpool_wire_receive_ack(t.out) : sent;
    if (sent == DUCTILE_OK) {
        (void)dpool_wire_send_bytes(t.out, table->bytes, table->size);
    }
    (void)shutdown(t.out, SHUT_WR);
    end_thread(thread);
    return heard;
}

Test(handover, no_falsified_byte_leaves_anything_behind) {
    dpool_tag_table table;
    const dpool_tag_head head = true_head(&table);
    traces before = traces_now();
    for (size_t i = 0; i < sizeof head + table.size; i++) {
        dpool_tag_head bad_head = head;
        unsigned char *bad =
            i < sizeof head ? (unsigned char *)&bad_head + i : table.bytes + (i - sizeof head);
        *bad ^= 0x81;
        cr_assert_neq(say(&bad_head, &table, import_alone), DUCTILE_OK, "byte %zu", i);
        cr_assert_neq(say(&bad_head, &table, hold_alone), DUCTILE_OK, "byte %zu", i);
        *bad ^= 0x81;
    }
    assert_nothing_left(&before);
    dpool_tag_table_free(&table);
}

Test(handover, a_table_that_says_nonsense_with_a_true_hash_is_refused) {
    dpool_tag_table table;
    dpool_tag_head head = true_head(&table);
    const dpool_tag_span wrong[] = {
        {4 * GRANULE, 512}, {0, 0}, {UINT64_MAX, 2}, {0, 5 * GRANULE}, {0, UINT64_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        for (int is_label = 0; is_label < 2; is_label++) {
            dpool_tag_span *place = is_label ? &table.labels[0].span : &table.blocks[1];
            dpool_tag_span before = *place;
            *place = wrong[i];
            head.layout = dpool_tag_layout(&head, &table);
            assert_status(say(&head, &table, import_alone), DUCTILE_ERR_BAD_MESSAGE);
            *place = before;
        }
    }
    table.labels[0].text = 2; /* behind the texts */
    head.layout = dpool_tag_layout(&head, &table);
    assert_status(say(&head, &table, hold_alone), DUCTILE_ERR_BAD_MESSAGE);
    table.labels[0].text = 0;
    table.texts[1] = 'x'; /* without an end */
    head.layout = dpool_tag_layout(&head, &table);
    assert_status(say(&head, &table, hold_alone), DUCTILE_ERR_BAD_MESSAGE);
    dpool_tag_table_free(&table);
}
