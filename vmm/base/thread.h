/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_VMM_BASE_THREAD_H
#define DUCTILE_VMM_BASE_THREAD_H

#include <stdint.h>

/* A number that names the calling thread for the life of the process, from 1; never reused. */
uint64_t dti_thread_number(void);

#endif
