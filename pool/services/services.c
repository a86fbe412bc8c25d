/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/services.h"

#include "pool/base/allocator.h"
#include "pool/services/callbacks/map_callbacks.h"
#include "pool/services/fill/fill.h"

#include <stdio.h>

/* Callbacks may be added at any time. A build without them refuses those, and no allocator. */
static bool wants_callbacks(const ductile_options *o) {
    (void)o;
    return DUCTILE_WITH_CALLBACKS;
}

static bool wants_fill(const ductile_options *o) {
    return o->find == DUCTILE_FIND_STALE_WRITES;
}

/* Blocks and tags for other processes. The calls that pass them need no allocator's beginning. */
static bool wants_sharing(const ductile_options *o) {
    return o->shareable != 0;
}

typedef struct service {
    const char *option; /* that asks for it */
    const char *build;  /* the switch of the build */
    bool is_built;
    bool (*is_wanted)(const ductile_options *o);
    ductile_status (*begin)(ductile_allocator *a); /* NULL: it has no state */
} service;

static const service services[] = {
    {"a map callback", "DUCTILE_WITH_CALLBACKS", DUCTILE_WITH_CALLBACKS, wants_callbacks,
     DUCTILE_WITH_CALLBACKS ? dpool_map_callbacks_begin : NULL},
    {"find:stale_writes", "DUCTILE_WITH_FILL", DUCTILE_WITH_FILL, wants_fill,
     DUCTILE_WITH_FILL ? dpool_fill_begin : NULL},
    {"shareable:fd", "DUCTILE_WITH_SHARING", DUCTILE_WITH_SHARING, wants_sharing, NULL},
};

ductile_status dpool_services_begin(ductile_allocator *a, char *message, size_t size) {
    ductile_status status = DUCTILE_OK;
    for (size_t i = 0; i < sizeof services / sizeof services[0] && status == DUCTILE_OK; i++) {
        const service *s = &services[i];
        if (!s->is_wanted(&a->options)) {
            continue;
        }
        if (!s->is_built) {
            (void)snprintf(message, size, "%s needs a library that was built with %s", s->option,
                           s->build);
            return DUCTILE_ERR_UNSUPPORTED;
        }
        status = s->begin != NULL ? s->begin(a) : DUCTILE_OK;
    }
    return status;
}
