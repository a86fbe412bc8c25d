/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of services that are not in this build: each is refused as unsupported. */
#include <ductile.h>

#if !DUCTILE_WITH_CALLBACKS
ductile_status ductile_add_map_callback(ductile_allocator *a, ductile_map_fn callback, void *user,
                                        int priority, uint64_t *id) {
    (void)a, (void)callback, (void)user, (void)priority;
    if (id != NULL) {
        *id = 0;
    }
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_remove_map_callback(ductile_allocator *a, uint64_t id) {
    (void)a, (void)id;
    return DUCTILE_ERR_UNSUPPORTED;
}
#endif

#if !DUCTILE_WITH_SHARING
ductile_status ductile_export(ductile_allocator *a, ductile_addr address, int socket) {
    (void)a, (void)address, (void)socket;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_unexport(ductile_allocator *a, ductile_addr address) {
    (void)a, (void)address;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_import(ductile_allocator *a, int socket, ductile_stream stream,
                              ductile_addr *address, uint64_t *size) {
    (void)a, (void)socket, (void)stream, (void)size;
    if (address != NULL) {
        *address = 0;
    }
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_import_close(ductile_allocator *a, ductile_addr address) {
    (void)a, (void)address;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_export_tag(ductile_allocator *a, const char *tag,
                                  const ductile_tag_name *names, size_t n_names, int socket,
                                  uint64_t *id, uint64_t *layout) {
    (void)a, (void)tag, (void)names, (void)n_names, (void)socket, (void)layout;
    if (id != NULL) {
        *id = 0;
    }
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_unexport_tag(ductile_allocator *a, uint64_t id) {
    (void)a, (void)id;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_import_tag(ductile_allocator *a, int socket, ductile_stream stream,
                                  ductile_import_access access, uint64_t layout,
                                  ductile_imported_tag **out) {
    (void)a, (void)socket, (void)stream, (void)access, (void)layout;
    if (out != NULL) {
        *out = NULL;
    }
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_import_release(ductile_allocator *a, ductile_imported_tag *tag) {
    (void)a, (void)tag;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_hold_tag(int socket, uint64_t layout, ductile_held_tag **out) {
    (void)socket, (void)layout;
    if (out != NULL) {
        *out = NULL;
    }
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_pass_held_tag(const ductile_held_tag *held, int socket) {
    (void)held, (void)socket;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_held_describe(const ductile_held_tag *held, ductile_held_info *out) {
    (void)held, (void)out;
    return DUCTILE_ERR_UNSUPPORTED;
}

void ductile_drop_held_tag(ductile_held_tag *held) {
    (void)held;
}
#endif

#if !DUCTILE_WITH_SNAPSHOT
#include <stdio.h>

ductile_status ductile_snapshot_json(ductile_allocator *a, ductile_write_fn write, void *user) {
    (void)a, (void)write, (void)user;
    return DUCTILE_ERR_UNSUPPORTED;
}

ductile_status ductile_plan_eviction(ductile_allocator *a, size_t size, ductile_stream stream,
                                     size_t n_candidates, const ductile_addr *addresses,
                                     const uint64_t *costs, ductile_addr *chosen,
                                     ductile_eviction *out) {
    (void)a, (void)size, (void)stream, (void)n_candidates, (void)addresses, (void)costs;
    (void)chosen, (void)out;
    return DUCTILE_ERR_UNSUPPORTED;
}

/* A size_t has no room for a status: the text says it. */
size_t ductile_oom_report_format(const ductile_oom_report *r, ductile_report_format format,
                                 char *buffer, size_t size) {
    static const char why[] = "reports need a library that was built with DUCTILE_WITH_SNAPSHOT";
    (void)r;
    const char *around = format == DUCTILE_REPORT_JSON ? "{\"advice\":[\"%s\"]}" : "%s\n";
    int n = snprintf(buffer, size, around, why);
    return n > 0 ? (size_t)n : 0;
}
#endif
