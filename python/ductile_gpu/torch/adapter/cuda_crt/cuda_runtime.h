/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands before CUDA's cuda_runtime.h where the folder crt/ is missing, on which that header leans
 * for C++ and device code. PyTorch's headers for hosts need the C interface only.
 */
#ifndef DUCTILE_TORCH_CUDA_RUNTIME_H
#define DUCTILE_TORCH_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <library_types.h>

#endif
