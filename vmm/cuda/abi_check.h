/* SPDX-License-Identifier: Apache-2.0 */
/* What comparing our declarations with cuda.h needs, where there is one. */
#ifndef DUCTILE_VMM_CUDA_ABI_CHECK_H
#define DUCTILE_VMM_CUDA_ABI_CHECK_H

#include "vmm/cuda/abi.h"

#include <stddef.h>

#ifdef __has_include
#if __has_include(<cudaTypedefs.h>)
#define FOUND_CUDA_HEADERS 1
#endif
#endif

#ifdef FOUND_CUDA_HEADERS
#include <cuda.h>
#include <cudaTypedefs.h>

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, our_field, theirs, their_field)                                           \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                   \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),       \
                   #ours "." #our_field)
#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
#define SAME_CONSTANT(ours, theirs, value) SAME_VALUE(ours, theirs);

/* Behind abi_theirs.h. */
#define SAME_FUNCTION(name, exported, version, parameters)                                         \
    _Static_assert(_Generic((PFN_##name##_v##version)0, cu_result(*) parameters : 1, default : 0), \
                   #name);

#endif
#endif
