/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA's headers include crt/host_defines.h, which comes with the compiler's package and not with
 * the runtime's. What the runtime's headers take from it, for a host compiler: words that mark
 * device code and mean nothing here, and how to align and export. Used where CUDA's own is missing.
 */
#ifndef DUCTILE_TORCH_HOST_DEFINES_H
#define DUCTILE_TORCH_HOST_DEFINES_H

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __grid_constant__
#define __cluster_dims__(...)
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __inline_hint__
#define __align__(n) __attribute__((aligned(n)))
#define __thread__ __thread
#define __import__
#define __export__
#define __cdecl
#define __annotate__(a) __attribute__((a))
#define __location__(a) __annotate__(a)
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __builtin_align__(n) __align__(n)
#define _CRTIMP
#ifndef __specialization_static
#define __specialization_static
#endif

#endif
