/* SPDX-License-Identifier: Apache-2.0 */
/* Rows about access of other devices, and about handles on their way to other processes. */
#include "tests/conformance/conformance_lab.h"

#include <fcntl.h>
#include <unistd.h>

#define ROWS share_rows
lab_rows share_rows;

/* ---- Other devices ------------------------------------------------------------------------- */

enum { NO_SUCH_DEVICE = 60 };

static void ask_peer(lab *l, int device) {
    int can = -1;
    if (say(l, CALL(l, can_access_peer, device, &can)) == DVMM_SUCCESS) {
        note(l, "can=%d", can);
    }
}

ROW_OF("peer.self", "can this device reach its own memory as a peer", ask_peer(l, 0))
ROW_OF("peer.next", "can device 1 reach this one's memory", ask_peer(l, 1))
ROW_OF("peer.absent", "can a device that does not exist", ask_peer(l, NO_SUCH_DEVICE))
ROW_OF("peer.negative", "can device -1", ask_peer(l, -1))

static void note_access_for(lab *l, const char *name, ductile_addr addr, int device) {
    dvmm_access access = DVMM_ACCESS_NONE;
    int code = CALL(l, get_access_for, addr, device, &access);
    if (code == DVMM_SUCCESS) {
        note(l, "%s=%d", name, (int)access);
    } else {
        note(l, "%s=!%d", name, code);
    }
}

ROW("peer.open_self", "open a mapping for this device by name") {
    ductile_addr addr = reserve(l, 1);
    map(l, addr, 1, create(l, 1));
    const int devices[] = {0};
    say(l, CALL(l, set_access_for, addr, l->granule, DVMM_ACCESS_RW, devices, 1));
    note_access(l, "access", addr);
    note_access_for(l, "asked", addr, 0);
}

/* Does an open for another device keep the owner's, and a later one for the owner the other's? */
ROW("peer.next_keeps", "open for device 1, narrow the owner, close for 1") {
    ductile_addr addr = mapped(l, 1, NULL);
    const int owner = 0;
    const int next = 1;
    say(l, CALL(l, set_access_for, addr, l->granule, DVMM_ACCESS_READ, &next, 1));
    note_access_for(l, "owner", addr, 0);
    note_access_for(l, "next", addr, 1);
    say(l, CALL(l, set_access_for, addr, l->granule, DVMM_ACCESS_READ, &owner, 1));
    note_access_for(l, "owner", addr, 0);
    note_access_for(l, "next", addr, 1);
    say(l, CALL(l, set_access_for, addr, l->granule, DVMM_ACCESS_NONE, &next, 1));
    note_access_for(l, "owner", addr, 0);
    note_access_for(l, "next", addr, 1);
}

ROW("peer.open_absent", "open for the owner and a device that is not there") {
    ductile_addr addr = mapped(l, 1, NULL);
    const int devices[] = {0, NO_SUCH_DEVICE};
    say(l, CALL(l, set_access_for, addr, l->granule, DVMM_ACCESS_READ, devices, 2));
    note_access(l, "owner", addr);
    note_access_for(l, "absent", addr, NO_SUCH_DEVICE);
}

ROW("peer.open_nobody", "set access for no device") {
    ductile_addr addr = mapped(l, 1, NULL);
    const int devices[] = {0};
    say(l, CALL(l, set_access_for, addr, l->granule, DVMM_ACCESS_READ, devices, 0));
    note_access(l, "owner", addr);
}

/* ---- Handles that travel ------------------------------------------------------------------- */

static dvmm_phys create_shared(lab *l, uint64_t n_granules) {
    const dvmm_phys_props props = {.handle_types = DVMM_SHARE_FD};
    dvmm_phys phys = 0;
    need(l, "create", CALL(l, phys_create, n_granules * l->granule, &props, &phys));
    return phys;
}

static int export_fd(lab *l, dvmm_phys phys) {
    dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = -1};
    need(l, "export", CALL(l, phys_export, phys, DVMM_SHARE_FD, &shared));
    return shared.fd;
}

static int import_fd(lab *l, int fd, dvmm_phys *out) {
    const dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = fd};
    return CALL(l, phys_import, &shared, out);
}

static ductile_addr map_open(lab *l, dvmm_phys phys) {
    ductile_addr addr = reserve(l, 1);
    map(l, addr, 1, phys);
    open_access(l, addr, 1);
    return addr;
}

static void note_byte(lab *l, const char *name, ductile_addr addr) {
    uint8_t byte = 0;
    need(l, "read", CALL(l, read_back, &byte, addr + 4097, 1, new_stream(l)));
    note(l, "%s=%02x", name, byte);
}

static void write_byte(lab *l, ductile_addr addr, uint8_t byte) {
    ductile_stream stream = new_stream(l);
    need(l, "fill", CALL(l, fill, addr, byte, l->granule, stream));
    need(l, "sync", CALL(l, stream_sync, stream));
}

/* Export, import here, map: both addresses show the same bytes. */
ROW("share.fd", "export, import here, write by one address, read by the other") {
    dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = -1};
    dvmm_phys phys = create_shared(l, 1);
    dvmm_phys again = 0;
    say(l, CALL(l, phys_export, phys, DVMM_SHARE_FD, &shared));
    say(l, import_fd(l, shared.fd, &again));
    (void)close(shared.fd);
    ductile_addr first = map_open(l, phys);
    ductile_addr second = map_open(l, again);
    write_byte(l, first, 0x5A);
    note_byte(l, "second", second);
    say(l, CALL(l, phys_release, again));
    say(l, CALL(l, phys_release, phys));
}

/* The exporter lets everything go before the importer comes. */
ROW("share.outlives", "export, unmap and release, import, read") {
    dvmm_phys phys = create_shared(l, 1);
    ductile_addr first = map_open(l, phys);
    write_byte(l, first, 0xA5);
    int fd = export_fd(l, phys);
    need(l, "unmap", CALL(l, unmap, first, l->granule));
    need(l, "release", CALL(l, phys_release, phys));
    dvmm_phys again = 0;
    say(l, import_fd(l, fd, &again));
    (void)close(fd);
    note_byte(l, "byte", map_open(l, again));
    say(l, CALL(l, phys_release, again));
}

/* The importer closes the descriptor before it maps. */
ROW("share.close_first", "import, close the descriptor, map") {
    dvmm_phys phys = create_shared(l, 1);
    int fd = export_fd(l, phys);
    dvmm_phys again = 0;
    say(l, import_fd(l, fd, &again));
    (void)close(fd);
    need(l, "release", CALL(l, phys_release, phys));
    note_access(l, "access", map_open(l, again));
    say(l, CALL(l, phys_release, again));
}

ROW("share.twice", "import one descriptor twice") {
    dvmm_phys phys = create_shared(l, 1);
    int fd = export_fd(l, phys);
    dvmm_phys first = 0;
    dvmm_phys second = 0;
    say(l, import_fd(l, fd, &first));
    say(l, import_fd(l, fd, &second));
    (void)close(fd);
    say(l, CALL(l, phys_release, first));
    say(l, CALL(l, phys_release, second));
    say(l, CALL(l, phys_release, phys));
}

ROW("share.wrong_size", "map an import with less and with more than its size") {
    dvmm_phys phys = create_shared(l, 2);
    int fd = export_fd(l, phys);
    dvmm_phys again = 0;
    need(l, "import", import_fd(l, fd, &again));
    (void)close(fd);
    ductile_addr addr = reserve(l, 4);
    say(l, CALL(l, map, addr, l->granule, 0, again));
    say(l, CALL(l, map, addr, 4 * l->granule, 0, again));
    need(l, "release", CALL(l, phys_release, again));
    need(l, "release", CALL(l, phys_release, phys));
}

/* A handle that was not created to be shared. */
ROW("share.plain", "export a handle not made for it") {
    dvmm_shared shared = {.type = DVMM_SHARE_FD, .fd = -1};
    say(l, CALL(l, phys_export, create(l, 1), DVMM_SHARE_FD, &shared));
    note(l, "fd=%s", shared.fd < 0 ? "none" : "some");
}

ROW("share.none", "export as no type at all") {
    dvmm_shared shared = {.type = DVMM_SHARE_NONE, .fd = -1};
    dvmm_phys phys = create_shared(l, 1);
    say(l, CALL(l, phys_export, phys, DVMM_SHARE_NONE, &shared));
    need(l, "release", CALL(l, phys_release, phys));
}

ROW_IN_OWN_PROCESS("share.import_not_ours", "import a descriptor of something else") {
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dvmm_phys phys = 0;
    say(l, import_fd(l, fd, &phys));
    (void)close(fd);
}

ROW_IN_OWN_PROCESS("share.import_closed", "import a descriptor that is not open") {
    dvmm_phys phys = 0;
    say(l, import_fd(l, 1000000, &phys));
    say(l, import_fd(l, -1, &phys));
}
