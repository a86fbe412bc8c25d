/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_PRELOAD_NEXT_H
#define DUCTILE_PRELOAD_NEXT_H

typedef void *(*dpre_dlsym_function)(void *handle, const char *symbol);

/* dlsym of the C library, or of the library that stands behind this one. */
dpre_dlsym_function dpre_dlsym(void);

#endif
