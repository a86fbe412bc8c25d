/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of services that are not in this build: each is refused as unsupported. */
#include <ductile.h>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-parameter"
#endif

#define REFUSE(name, parameters)                                                                   \
    ductile_status name parameters {                                                               \
        return DUCTILE_ERR_UNSUPPORTED;                                                            \
    }

/* Of a call with an output. */
#define REFUSE_OUT(name, parameters, out)                                                          \
    ductile_status name parameters {                                                               \
        if ((out) != NULL) {                                                                       \
            *(out) = 0;                                                                            \
        }                                                                                          \
        return DUCTILE_ERR_UNSUPPORTED;                                                            \
    }

#if !DUCTILE_WITH_CALLBACKS
REFUSE_OUT(ductile_add_map_callback,
           (ductile_allocator * a, ductile_map_fn callback, void *user, int priority, uint64_t *id),
           id)
REFUSE(ductile_remove_map_callback, (ductile_allocator * a, uint64_t id))
#endif

#if !DUCTILE_WITH_SHARING
REFUSE(ductile_export, (ductile_allocator * a, ductile_addr address, int socket))
REFUSE(ductile_unexport, (ductile_allocator * a, ductile_addr address))
REFUSE_OUT(ductile_import,
           (ductile_allocator * a, int socket, ductile_stream stream, ductile_addr *address,
            uint64_t *size),
           address)
REFUSE(ductile_import_close, (ductile_allocator * a, ductile_addr address))
REFUSE_OUT(ductile_export_tag,
           (ductile_allocator * a, const char *tag, const ductile_tag_name *names, size_t n_names,
            int socket, uint64_t *id, uint64_t *layout),
           id)
REFUSE(ductile_unexport_tag, (ductile_allocator * a, uint64_t id))
REFUSE_OUT(ductile_import_tag,
           (ductile_allocator * a, int socket, ductile_stream stream, ductile_import_access access,
            uint64_t layout, ductile_imported_tag **out),
           out)
REFUSE(ductile_import_release, (ductile_allocator * a, ductile_imported_tag *tag))
REFUSE_OUT(ductile_hold_tag, (int socket, uint64_t layout, ductile_held_tag **out), out)
REFUSE(ductile_pass_held_tag, (const ductile_held_tag *held, int socket))
REFUSE(ductile_held_describe, (const ductile_held_tag *held, ductile_held_info *out))

void ductile_drop_held_tag(ductile_held_tag *held) {
}
#endif

#if !DUCTILE_WITH_SNAPSHOT
#include <stdio.h>

REFUSE(ductile_snapshot_json, (ductile_allocator * a, ductile_write_fn write, void *user))
REFUSE(ductile_plan_eviction, (ductile_allocator * a, size_t size, ductile_stream stream,
                               size_t n_candidates, const ductile_addr *addresses,
                               const uint64_t *costs, ductile_addr *chosen, ductile_eviction *out))

/* A size_t has no room for a status: the text says it. */
size_t ductile_oom_report_format(const ductile_oom_report *r, ductile_report_format format,
                                 char *buffer, size_t size) {
    static const char why[] = "reports need a library that was built with DUCTILE_WITH_SNAPSHOT";
    const char *around = format == DUCTILE_REPORT_JSON ? "{\"advice\":[\"%s\"]}" : "%s\n";
    int n = snprintf(buffer, size, around, why);
    return n > 0 ? (size_t)n : 0;
}
#endif
