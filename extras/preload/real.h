/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's own functions, behind the ones that are interposed. */
#ifndef DUCTILE_PRELOAD_REAL_H
#define DUCTILE_PRELOAD_REAL_H

#include "abi.h"

/* A function that the driver lacks is NULL. Constant once found. */
typedef struct dpre_driver {
#define REAL_FIELD(exported, name, version, variant, parameters) cu_result(*exported) parameters;
    PRELOADED_FUNCTIONS(REAL_FIELD)
    CALLED_FUNCTIONS(REAL_FIELD)
#undef REAL_FIELD
} dpre_driver;

/* The driver, or NULL where libcuda.so.1 is not loaded; it is never loaded here. */
const dpre_driver *dpre_real(void);

/* Calls the driver's own function, where there is one. */
#define REAL(function, ...)                                                                        \
    (dpre_real() != NULL && dpre_real()->function != NULL ? dpre_real()->function(__VA_ARGS__)     \
                                                          : CU_NOT_INITIALIZED)

/* Waits of ours beside captures that programs have begun: in relaxed mode a wait breaks none, of
 * this thread or another, unless it is for what is being captured. The context is the current one.
 */
cu_result dpre_sync_stream(ductile_stream stream);
cu_result dpre_sync_context(void);

/* What stands in for a function that the driver's search or dlsym found under a name: `found`
 * itself where that is no function of the table, NULL where it is ours and the driver has none. */
void *dpre_replace(const char *symbol, void *found);
void *dpre_replace_searched(const char *name, void *found);

/* Is the name one that dlsym may replace? No lock. */
int dpre_is_interposed(const char *symbol);

#endif
