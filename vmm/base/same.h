/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares our own declarations with those of another project's header, at compile time: for files
 * that speak an interface in declarations of their own. A difference is an error that names its
 * line.
 */
#ifndef DUCTILE_VMM_BASE_SAME_H
#define DUCTILE_VMM_BASE_SAME_H

#include <stddef.h>

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, our_field, theirs, their_field)                                           \
    _Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) &&                   \
                       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field),       \
                   #ours "." #our_field)
#define SAME_VALUE(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)

#endif
