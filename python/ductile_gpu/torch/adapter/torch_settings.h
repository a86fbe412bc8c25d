/* SPDX-License-Identifier: Apache-2.0 */
/* The options of PYTORCH_CUDA_ALLOC_CONF, as PyTorch itself has parsed them. */
#ifndef DUCTILE_TORCH_SETTINGS_H
#define DUCTILE_TORCH_SETTINGS_H

#include "torch_common.h"

namespace ductile_torch {

/* Options of the library, "key:value,...", for devices opened from now on. Throws. */
void set_options(const char *text);

/* Passes these on, and what of PyTorch's settings Ductile has an option for. */
void apply_settings(ductile_options &options);

/* That many more live blocks are larger than was asked for. */
void count_rounded(int change);

/* Reads again what may change at run time. A fraction that was named counts, although it is what
 * was named before: set_per_process_memory_fraction may have come in between. */
void refresh_settings(bool is_fraction_named);

/* From now on settings are read again whenever PyTorch's setAllocatorSettings has parsed them, from
 * Python or from C++ (2.10 and newer). Once in a process. */
void follow_settings();

/* throw_on_cudamalloc_oom: what would exceed the memory fraction is refused at once. */
bool rejects_early();

/* The size a request is rounded up to by roundup_power2_divisions; the size itself without. */
size_t round_request(size_t size);

caching::AllocatorConfigInfo describe_settings();

} // namespace ductile_torch

#endif
