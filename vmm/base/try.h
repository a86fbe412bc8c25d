/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_VMM_BASE_TRY_H
#define DUCTILE_VMM_BASE_TRY_H

/* Ends the function with the status, or the driver's code, of the expression unless it is 0:
 * success. For functions that have nothing to undo by then. */
#define DTI_TRY(expression)                                                                        \
    do {                                                                                           \
        const int tried = (int)(expression);                                                       \
        if (tried != 0) {                                                                          \
            return tried;                                                                          \
        }                                                                                          \
    } while (0)

#endif
