/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/contender.h"

const contender_ops *const all_contenders[] = {
    &contender_ductile,    &contender_expandable,      &contender_classic,
    &contender_cumemalloc, &contender_cumemallocasync, NULL,
};
