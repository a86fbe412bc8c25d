/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/streams/per_stream.h"

dpool_per_stream *dpool_find_stream(dpool_stream_list *l, const dpool_use *use) {
    uint32_t i = 0;
    while (i < l->n && !dpool_is_use_of(&l->all[i], use)) {
        i++;
    }
    if (i == DPOOL_MOST_STREAMS) {
        return NULL;
    }
    if (i == l->n) {
        l->all[l->n++] = dpool_stream_of_use(use);
    }
    return &l->all[i];
}

void dpool_hold_markers_locked(const ductile_allocator *a, const dpool_stream_list *l) {
    DTI_ASSERT_HELD(&a->index_lock);
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->all[i].latest != NULL) {
            dvmm_marker_hold(l->all[i].latest);
        }
    }
}
