/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/services/services.h"

#include "pool/base/allocator.h"
#include "pool/services/callbacks/map_callbacks.h"
#include "pool/services/fill/fill.h"

#include "vmm/base/try.h"

ductile_status dpool_services_begin(ductile_allocator *a) {
    DTI_TRY(dpool_map_callbacks_begin(a));
    return a->options.find == DUCTILE_FIND_STALE_WRITES ? dpool_fill_begin(a) : DUCTILE_OK;
}
