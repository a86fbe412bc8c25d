/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/contenders/contender.h"

#define POINT_TO(name, title) &contender_##name,

const contender_ops *const all_contenders[] = {DUCTILE_CONTENDERS_MAP(POINT_TO) NULL};
