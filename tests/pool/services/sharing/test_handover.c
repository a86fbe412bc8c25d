/* SPDX-License-Identifier: Apache-2.0 */
/* The idea: a whole tag passes as one message, with every block at a known offset; a changed layout
 * is refused; what is read only cannot be written; the end that goes first leaves the other whole.
 */
#include "tests/support/one_pair.h"

#include "pool/services/sharing/tag_wire.h"
#include "vmm/driver/open_virtual.h"

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
TestSuite(handover_alone);

/* ---- Passing a tag ------------------------------------------------------------------------- */

typedef struct passage {
    const ductile_tag_name *names;
    size_t n_names;
    ductile_status exported;
    uint64_t id, layout;
} passage;

static void *send_tag(void *argument) {
    passage *p = argument;
    p->exported = ductile_export_tag(t.f.allocator, "weights", p->names, p->n_names, t.out, &p->id,
                                     &p->layout);
    if (p->exported != DUCTILE_OK) {
        (void)shutdown(t.out, SHUT_RDWR);
    }
    return NULL;
}

static ductile_status pass_to(passage *p, ductile_allocator *to, ductile_import_access access,
                              uint64_t layout, ductile_imported_tag **out) {
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, send_tag, p), 0);
    ductile_status imported =
        ductile_import_tag(to, t.in, to == t.importer ? t.f.streams[0] : NULL, access, layout, out);
    if (imported != DUCTILE_OK) {
        (void)shutdown(t.in, SHUT_RDWR);
    }
    cr_assert_eq(pthread_join(thread, NULL), 0);
    return imported;
}

static ductile_imported_tag *pass(ductile_import_access access, passage *p) {
    ductile_imported_tag *tag = NULL;
    assert_ok(pass_to(p, t.importer, access, 0, &tag));
    assert_ok(p->exported);
    return tag;
}

static void fill(ductile_addr addr, uint8_t value, uint64_t size) {
    assert_ok(ductile_virtual_fill(t.f.gpu, addr, value, size, t.f.streams[0]));
}

static ductile_status copy(ductile_addr to, ductile_addr from, uint64_t size) {
    dvmm_driver *d = NULL;
    assert_ok(dvmm_open_virtual(t.f.gpu, &d, NULL, 0));
    ductile_status status = dvmm_copy(d, to, from, size, t.f.streams[0]);
    dvmm_close(d);
    return status;
}

static uint64_t exported_bytes(void) {
    return fixture_stats(t.f.allocator).exported_bytes;
}

Test(handover, every_block_lies_at_its_offset) {
    for (int i = 0; i < 3; i++) {
        fill(blocks[i], (uint8_t)(0x10 + i), 512);
    }
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ_WRITE, &p);
    cr_assert_str_eq(tag->tag, "weights");
    assert_u64(tag->n_blocks, 3);
    assert_u64(tag->layout, p.layout);
    for (size_t i = 0; i < 3; i++) {
        bool is_found = false;
        for (size_t j = 0; j < 3; j++) {
            is_found |= byte_at(tag->address + tag->blocks[i].offset) == 0x10 + j;
        }
        cr_assert(is_found, "block %zu", i);
    }
    fill(tag->address + tag->blocks[0].offset, 0x66, 1);
    int n_changed = 0;
    for (int i = 0; i < 3; i++) {
        n_changed += byte_at(blocks[i]) == 0x66;
    }
    cr_assert_eq(n_changed, 1, "it is the same memory");
    check_both();
    assert_ok(ductile_import_release(t.importer, tag));
    assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
    assert_u64(exported_bytes(), 0);
    check_both();
}

Test(handover, names_say_where_tensors_lie) {
    const ductile_tag_name names[] = {{blocks[2] + 1024, 4096, "layer.1"},
                                      {blocks[0], BYTES_1, "layer.0"}};
    fill(blocks[2] + 1024, 0x31, 4096);
    fill(blocks[0], 0x30, BYTES_1);
    passage p = {.names = names, .n_names = 2};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    assert_u64(tag->n_names, 2);
    cr_assert_str_eq(tag->names[0].name, "layer.1");
    cr_assert_str_eq(tag->names[1].name, "layer.0");
    assert_u64(tag->names[0].size, 4096);
    cr_assert_eq(byte_at(tag->address + tag->names[0].offset), 0x31);
    cr_assert_eq(byte_at(tag->address + tag->names[1].offset + BYTES_1 - 1), 0x30);
    assert_ok(ductile_import_release(t.importer, tag));
}

Test(handover, memory_that_blocks_share_passes_once) {
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    assert_u64(tag->size, exported_bytes());
    assert_u64(tag->size, fixture_stats(t.importer).imported_bytes);
    cr_assert_lt(tag->size, BYTES_1 + BYTES_3 + 3 * GRANULE);
    assert_ok(ductile_import_release(t.importer, tag));
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
    passage p = {.names = names, .n_names = N};
    size_t open = count_descriptors();
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    assert_u64(tag->n_blocks, N + 3);
    (void)fixture_state(&t.f); /* the virtual GPU looks which descriptors are closed */
    cr_assert_eq(count_descriptors(), open);
    check_both();
    assert_ok(ductile_import_release(t.importer, tag));
    assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
}

/* ---- Layouts ------------------------------------------------------------------------------- */

Test(handover, a_layout_is_the_same_until_it_changes) {
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    uint64_t layout = tag->layout;
    assert_ok(ductile_import_release(t.importer, tag));
    fill(blocks[0], 0x11, 512); /* contents are not part of it */
    assert_ok(pass_to(&p, t.importer, DUCTILE_IMPORT_READ, layout, &tag));
    assert_ok(ductile_import_release(t.importer, tag));
    const ductile_tag_name name = {blocks[0], 512, "named"};
    passage named = {.names = &name, .n_names = 1};
    assert_status(pass_to(&named, t.importer, DUCTILE_IMPORT_READ, layout, &tag),
                  DUCTILE_ERR_LAYOUT);
    assert_status(named.exported, DUCTILE_ERR_LAYOUT);
    cr_assert_null(tag);
    cr_assert_neq(named.layout, layout);
    assert_u64(named.id, 0);
}

Test(handover, a_freed_block_changes_the_layout) {
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    uint64_t layout = tag->layout;
    assert_ok(ductile_import_release(t.importer, tag));
    assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
    assert_ok(ductile_free(t.f.allocator, blocks[1]));
    ductile_virtual_state before = fixture_state(&t.f);
    assert_status(pass_to(&p, t.importer, DUCTILE_IMPORT_READ, layout, &tag), DUCTILE_ERR_LAYOUT);
    assert_status(p.exported, DUCTILE_ERR_LAYOUT);
    assert_u64(exported_bytes(), 0);
    assert_u64(fixture_state(&t.f).reservations, before.reservations);
}

/* ---- Read only ----------------------------------------------------------------------------- */

Test(handover, a_copy_or_fill_into_read_only_memory_is_refused_and_nothing_else_happens) {
    fill(blocks[0], 0x40, BYTES_1);
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    ductile_addr there = tag->address + tag->blocks[0].offset;
    cr_assert_eq(ductile_virtual_access(t.f.gpu, there, 0), 1);
    uint8_t before = byte_at(there);
    cr_assert_neq(ductile_virtual_fill(t.f.gpu, there, 0x41, 512, t.f.streams[0]), DUCTILE_OK);
    assert_status(copy(there, blocks[2], 512), DUCTILE_ERR_DRIVER);
    cr_assert_eq(byte_at(there), before);
    assert_ok(copy(blocks[2], there, 512));
    fill(blocks[0], 0x42, 512);
    assert_ok(ductile_import_release(t.importer, tag));
}

/* Two GPUs, as two processes have contexts of their own: the store ends that of the reader. */
Test(handover, a_store_of_a_kernel_ends_the_reader_and_nobody_else) {
    fixture reader;
    const fixture_setup setup = {.capacity_bytes = 1 * GIB, .conf = "shareable:fd"};
    assert_fine(fixture_open(&reader, &setup));
    passage p = {.names = NULL};
    ductile_imported_tag *tag = NULL;
    assert_ok(pass_to(&p, reader.allocator, DUCTILE_IMPORT_READ, 0, &tag));
    const ductile_virtual_use load = {tag->address, 512, 0};
    assert_ok(ductile_virtual_launch(reader.gpu, reader.streams[0], &load, 1));
    assert_ok(ductile_virtual_stream_sync(reader.gpu, reader.streams[0]));
    const ductile_virtual_use store = {tag->address, 512, 1};
    assert_status(ductile_virtual_launch(reader.gpu, reader.streams[0], &store, 1),
                  DUCTILE_ERR_DEVICE_LOST); /* it is run at once */
    assert_status(ductile_virtual_stream_sync(reader.gpu, reader.streams[0]),
                  DUCTILE_ERR_DEVICE_LOST);
    fill(blocks[0], 0x43, 512);
    cr_assert_eq(byte_at(blocks[0]), 0x43);
    assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
    check_both();
    assert_status(ductile_import_release(reader.allocator, tag), DUCTILE_ERR_DEVICE_LOST);
    (void)ductile_destroy(reader.allocator);
    reader.allocator = NULL;
    fixture_abandon(&reader);
}

Test(handover, another_gpu_gets_no_more_access_than_this_one) {
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    assert_ok(ductile_enable_peer(t.importer, 1));
    cr_assert_eq(ductile_virtual_access(t.f.gpu, tag->address, 1), 1);
    ductile_imported_tag *second = pass(DUCTILE_IMPORT_READ, &p);
    cr_assert_eq(ductile_virtual_access(t.f.gpu, second->address, 1), 1);
    assert_ok(ductile_import_release(t.importer, second));
    assert_ok(ductile_disable_peer(t.importer, 1));
    assert_ok(ductile_import_release(t.importer, tag));
}

/* ---- Life ---------------------------------------------------------------------------------- */

Test(handover, the_importer_outlives_the_exporter) {
    fill(blocks[0], 0x51, BYTES_1);
    const ductile_tag_name name = {blocks[0], BYTES_1, "w"};
    passage p = {.names = &name, .n_names = 1};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    assert_ok(ductile_destroy(t.f.allocator)); /* with its export open */
    t.f.allocator = NULL;
    cr_assert_eq(byte_at(tag->address + tag->names[0].offset), 0x51);
    assert_ok(ductile_import_release(t.importer, tag));
    assert_u64(fixture_state(&t.f).handles, 0);
}

Test(handover, exports_are_taken_back_one_by_one) {
    passage first = {.names = NULL};
    passage second = {.names = NULL};
    ductile_imported_tag *a = pass(DUCTILE_IMPORT_READ, &first);
    ductile_imported_tag *b = pass(DUCTILE_IMPORT_READ_WRITE, &second);
    assert_ok(ductile_import_release(t.importer, a));
    assert_ok(ductile_import_release(t.importer, b));
    assert_ok(ductile_unexport_tag(t.f.allocator, first.id));
    cr_assert_gt(exported_bytes(), 0);
    assert_status(ductile_unexport_tag(t.f.allocator, first.id), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_ok(ductile_free(t.f.allocator, blocks[0])); /* a freed block ends with the export, too */
    assert_ok(ductile_unexport_tag(t.f.allocator, second.id));
    assert_u64(exported_bytes(), 0);
}

Test(handover, an_exported_tag_stays_mapped_while_it_sleeps) {
    fill(blocks[0], 0x61, BYTES_1);
    const ductile_tag_name name = {blocks[0], BYTES_1, "w"};
    passage p = {.names = &name, .n_names = 1};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    const ductile_sleep_tag which = {"weights", DUCTILE_CONTENTS_DROP};
    const ductile_sleep_request set = {.struct_size = sizeof set, .tags = &which, .n_tags = 1};
    ductile_sleep_report report = {.struct_size = sizeof report};
    assert_ok(ductile_pause_set(t.f.allocator, &set, &report));
    assert_u64(report.stayed_bytes, tag->size);
    cr_assert_eq(byte_at(tag->address + tag->names[0].offset), 0x61);
    assert_status(pass_to(&(passage){.names = NULL}, t.importer, DUCTILE_IMPORT_READ, 0,
                          &(ductile_imported_tag *){NULL}),
                  DUCTILE_ERR_BAD_MESSAGE);
    assert_ok(ductile_resume_set(t.f.allocator, &set, NULL));
    cr_assert_eq(byte_at(blocks[0]), 0x61, "what stayed keeps its contents");
    assert_ok(ductile_import_release(t.importer, tag));
}

/* ---- An owner without a device ------------------------------------------------------------- */

static ductile_held_tag *hold(passage *p) {
    pthread_t thread;
    ductile_held_tag *held = NULL;
    cr_assert_eq(pthread_create(&thread, NULL, send_tag, p), 0);
    assert_ok(ductile_hold_tag(t.in, 0, &held));
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(p->exported);
    return held;
}

typedef struct passing {
    const ductile_held_tag *held;
    ductile_status status;
} passing;

static void *pass_held(void *argument) {
    passing *p = argument;
    p->status = ductile_pass_held_tag(p->held, t.out);
    return NULL;
}

static ductile_imported_tag *fetch(const ductile_held_tag *held) {
    pthread_t thread;
    passing p = {held, DUCTILE_ERR_BUSY};
    ductile_imported_tag *tag = NULL;
    cr_assert_eq(pthread_create(&thread, NULL, pass_held, &p), 0);
    assert_ok(
        ductile_import_tag(t.importer, t.in, t.f.streams[0], DUCTILE_IMPORT_READ_WRITE, 0, &tag));
    cr_assert_eq(pthread_join(thread, NULL), 0);
    assert_ok(p.status);
    return tag;
}

Test(handover, what_is_held_outlives_all_who_map_it) {
    fill(blocks[0], 0x71, BYTES_1);
    const ductile_tag_name name = {blocks[0], BYTES_1, "w"};
    passage p = {.names = &name, .n_names = 1};
    size_t open = count_descriptors();
    ductile_held_tag *held = hold(&p);
    ductile_held_info info = {.struct_size = sizeof info};
    assert_ok(ductile_held_describe(held, &info));
    assert_u64(info.layout, p.layout);
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

/* ---- What is refused ----------------------------------------------------------------------- */

static ductile_status export_alone(const char *tag, const ductile_tag_name *names, size_t n) {
    uint64_t id = 1;
    ductile_status status = ductile_export_tag(t.f.allocator, tag, names, n, t.out, &id, NULL);
    assert_u64(id, 0);
    assert_u64(exported_bytes(), 0);
    return status;
}

Test(handover, bad_exports_are_refused_before_anything_is_sent) {
    const ductile_tag_name past_end = {blocks[1], BYTES_2 + 1, "too long"};
    const ductile_tag_name nothing = {blocks[0], 0, "empty"};
    const ductile_tag_name elsewhere = {take(512), 512, "of no tag"};
    const ductile_tag_name unnamed = {blocks[0], 512, NULL};
    assert_status(export_alone("weights", &past_end, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone("weights", &nothing, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone("weights", &elsewhere, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone("weights", &unnamed, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone("weights", NULL, 1), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone("no such tag", NULL, 0), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone("", NULL, 0), DUCTILE_ERR_INVALID_ARGUMENT);
    assert_status(export_alone(NULL, NULL, 0), DUCTILE_ERR_INVALID_ARGUMENT);
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
    pthread_t thread;
    assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
    cr_assert_eq(pthread_create(&thread, NULL, listener, &heard), 0);
    ductile_status sent = dpool_wire_send_bytes(t.out, head, sizeof *head);
    sent = sent == DUCTILE_OK ? dpool_wire_receive_ack(t.out) : sent;
    if (sent == DUCTILE_OK) {
        (void)dpool_wire_send_bytes(t.out, table->bytes, table->size);
    }
    (void)shutdown(t.out, SHUT_WR);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    return heard;
}

static void expect_nothing_left(size_t open, const ductile_virtual_state *before) {
    ductile_virtual_state after = fixture_state(&t.f); /* looks which descriptors are closed */
    cr_assert_eq(count_descriptors(), open);
    assert_u64(after.reservations, before->reservations);
    assert_u64(after.mappings, before->mappings);
}

Test(handover, no_falsified_byte_leaves_anything_behind) {
    dpool_tag_table table;
    const dpool_tag_head head = true_head(&table);
    size_t open = count_descriptors();
    ductile_virtual_state before = fixture_state(&t.f);
    for (size_t i = 0; i < sizeof head + table.size; i++) {
        dpool_tag_head bad_head = head;
        unsigned char *bad =
            i < sizeof head ? (unsigned char *)&bad_head + i : table.bytes + (i - sizeof head);
        *bad ^= 0x81;
        cr_assert_neq(say(&bad_head, &table, import_alone), DUCTILE_OK, "byte %zu", i);
        cr_assert_neq(say(&bad_head, &table, hold_alone), DUCTILE_OK, "byte %zu", i);
        *bad ^= 0x81;
    }
    expect_nothing_left(open, &before);
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

/* ---- Faults -------------------------------------------------------------------------------- */

/* Each driver call of a passage fails once; afterwards the next passage succeeds. effect: 1: after
 * it did what it was asked. */
static void fail_each(const char *call, int effect) {
    for (uint64_t nth = 1, fired = 1; fired; nth++) {
        const ductile_virtual_fault fault = {
            .struct_size = sizeof fault, .call = call, .nth = nth, .code = 2, .effect = effect};
        passage p = {.names = NULL};
        ductile_imported_tag *tag = NULL;
        size_t open = count_descriptors();
        ductile_virtual_state before = fixture_state(&t.f);
        assert_ok(ductile_virtual_inject(t.f.gpu, &fault));
        ductile_status imported = pass_to(&p, t.importer, DUCTILE_IMPORT_READ, 0, &tag);
        fired = ductile_virtual_faults_fired(t.f.gpu);
        assert_ok(ductile_virtual_inject(t.f.gpu, NULL));
        cr_assert_eq(imported == DUCTILE_OK, !fired, "%s, call %d", call, (int)nth);
        cr_assert_eq(p.exported == DUCTILE_OK, !fired, "%s, call %d", call, (int)nth);
        if (!fired) {
            assert_ok(ductile_import_release(t.importer, tag));
            assert_ok(ductile_unexport_tag(t.f.allocator, p.id));
        }
        assert_u64(exported_bytes(), 0);
        check_both();
        expect_nothing_left(open, &before);
        assert_fine(two_ends_reconnect(&t, SOCK_STREAM));
    }
}

Test(handover, each_call_of_a_passage_may_fail) {
    static const char *const calls[] = {"address_reserve", "phys_import", "map", "set_access",
                                        "phys_export"};
    for (size_t c = 0; c < sizeof calls / sizeof calls[0]; c++) {
        fail_each(calls[c], 0);
    }
}

Test(handover, a_map_that_fails_may_have_mapped) {
    fail_each("map", 1);
    fail_each("set_access", 1);
}

static void fail_release(const char *call, ductile_imported_tag *tag) {
    const ductile_virtual_fault fault = {
        .struct_size = sizeof fault, .call = call, .nth = 1, .code = DVMM_UNKNOWN};
    assert_ok(ductile_virtual_inject(t.f.gpu, &fault));
    assert_status(ductile_import_release(t.importer, tag), DUCTILE_ERR_DRIVER);
    assert_u64(ductile_virtual_faults_fired(t.f.gpu), 1);
    assert_ok(ductile_virtual_inject(t.f.gpu, NULL));
}

Test(handover, a_release_that_could_not_begin_is_made_again) {
    passage p = {.names = NULL};
    ductile_virtual_state before = fixture_state(&t.f);
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    fail_release("event_record", tag);
    cr_assert_gt(fixture_stats(t.importer).imported_bytes, 0);
    cr_assert_str_eq(tag->tag, "weights");
    assert_ok(ductile_import_release(t.importer, tag));
    assert_u64(fixture_stats(t.importer).imported_bytes, 0);
    assert_u64(fixture_state(&t.f).reservations, before.reservations);
}

Test(handover_alone, a_release_whose_unmap_failed_leaves_the_struct_to_the_next_call) {
    open_ends();
    passage p = {.names = NULL};
    ductile_imported_tag *tag = pass(DUCTILE_IMPORT_READ, &p);
    fail_release("unmap", tag);
    assert_u64(fixture_stats(t.importer).imported_bytes, 0);
    assert_ok(ductile_import_release(t.importer, tag));
    two_ends_abandon(&t);
}
