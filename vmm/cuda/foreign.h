/* SPDX-License-Identifier: Apache-2.0 */
/* Events behind work of another GPU's streams. */
#ifndef DUCTILE_VMM_CUDA_FOREIGN_H
#define DUCTILE_VMM_CUDA_FOREIGN_H

#include "vmm/cuda/cuda_state.h"

/* Records the event behind the work of a stream of another context. DVMM_INVALID_HANDLE when the
 * stream belongs to no other context, or the driver cannot tell. Pre: our context is current. */
int dvmm_cuda_record_foreign(cuda_backend *b, dvmm_event event, ductile_stream stream);
void dvmm_cuda_drop_joining(cuda_backend *b);

#endif
