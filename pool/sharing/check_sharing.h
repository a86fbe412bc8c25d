/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_POOL_SHARING_CHECK_SHARING_H
#define DUCTILE_POOL_SHARING_CHECK_SHARING_H

#include "pool/base/allocator.h"
#include "vmm/base/fault.h"

/* Recounts the records of pins, what they add to handles (P9), and imports (P11), and records the
 * first invariant that does not hold in *fault. Follows pointers: call it only while the fault is
 * empty. For a moment it changes the handles' counts, which the grow lock guards.
 * Both locks held. */
void dpool_sharing_check_locked(const ductile_allocator *a, dti_fault *fault);

#endif
