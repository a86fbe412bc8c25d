/* SPDX-License-Identifier: Apache-2.0 */
/* Handing on a status, or a code of the driver: 0 is success. Their names are in status.c. */
#ifndef DUCTILE_VMM_BASE_STATUS_H
#define DUCTILE_VMM_BASE_STATUS_H

#include <ductile.h>

/* Ends the function with what the expression says unless it is success. For functions that have
 * nothing to undo by then. */
#define DTI_TRY(expression)                                                                        \
    do {                                                                                           \
        const __typeof__(expression) tried = (expression);                                         \
        if (tried != 0) {                                                                          \
            return tried;                                                                          \
        }                                                                                          \
    } while (0)

/* Of two calls that were both made. */
static inline ductile_status dti_first_error(ductile_status first, ductile_status then) {
    return first != DUCTILE_OK ? first : then;
}

#endif
