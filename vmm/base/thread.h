/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DUCTILE_VMM_BASE_THREAD_H
#define DUCTILE_VMM_BASE_THREAD_H

#include <stdint.h>

/* The number of the calling thread, from 1. No other thread of the process ever gets it. */
uint64_t dti_thread_number(void);

#endif
