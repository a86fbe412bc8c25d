/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory belongs to blocks, for a checker such as compute-sanitizer. It knows memory by the
 * mappings that the driver made: each is registered as a heap, of which nothing may be used but
 * regions. A block may span several mappings, and is registered as one region in each:
 *
 *     mappings   [ heap           ][ heap           ][ heap           ]
 *     blocks          [ block 1 ][ block 2             ]    [ block 3 ]
 *     regions         [         ][  ][              ][ ]    [         ]
 *
 * A region is registered exactly while its block is in use and its mapping is there: whichever of
 * the two comes later begins it, whichever goes first ends it. So a paused pool needs no special
 * care. Linear in the number of blocks in use. Safe from any thread; not under the index lock.
 * NULL, or a tool without memory: does nothing.
 */
#ifndef DUCTILE_VMM_NVTX_REGIONS_H
#define DUCTILE_VMM_NVTX_REGIONS_H

#include "vmm/nvtx/nvtx.h"

/* A mapping came, or is about to go. One that is not known may go, too. */
void dvmm_nvtx_heap_begin(dvmm_nvtx *n, ductile_addr addr, uint64_t size);
void dvmm_nvtx_heap_end(dvmm_nvtx *n, ductile_addr addr);

/* A block of so many bytes is about to be given to the program, or to be taken back. An address
 * that is no block's does nothing. Blocks are named "ductile block N of stream S", N from 1.
 * DUCTILE_OK; ERR_OUT_OF_HOST_MEMORY: then the program must not get the block, whose every use
 * would be reported. */
ductile_status dvmm_nvtx_block_begin(dvmm_nvtx *n, ductile_addr addr, uint64_t size,
                                     ductile_stream stream);
void dvmm_nvtx_block_end(dvmm_nvtx *n, ductile_addr addr);

/* Ends what is left: when an allocator goes and its memory has to stay, no block of it may be used.
 */
void dvmm_nvtx_end_all(dvmm_nvtx *n);

/* Mappings that could not be registered since the last call. Their blocks are not checked. */
uint64_t dvmm_nvtx_take_refusals(dvmm_nvtx *n);

#endif
