/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libductile_torch share. */
#ifndef DUCTILE_TORCH_PLAIN_H
#define DUCTILE_TORCH_PLAIN_H

#include <ductile.h>

#define MAX_DEVICES 64

#define TORCH_API __attribute__((visibility("default")))

/* The allocator of a device, made if need be; NULL when it cannot be. */
ductile_allocator *ductile_torch_allocator_of(int device);

/* Raises what PyTorch raises, where it can; otherwise returns. */
void ductile_torch_refuse(int device, size_t size, ductile_status status);

#endif
