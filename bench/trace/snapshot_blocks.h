/* SPDX-License-Identifier: Apache-2.0 */
/* What a PyTorch snapshot says of one of its segments, or of a block in it, whatever its version.
 */
#ifndef DUCTILE_BENCH_TRACE_SNAPSHOT_BLOCKS_H
#define DUCTILE_BENCH_TRACE_SNAPSHOT_BLOCKS_H

#include "bench/trace/pickle.h"

/* Live, or freed and still in use. */
bool snapshot_block_is_active(const pickle_value *block);
/* The requested size is what the history has, too; old versions did not write it. */
bool snapshot_block_size(const pickle_value *block, uint64_t *out);
/* Old versions kept the stack with the block's history, the latest allocation first. NULL: it is
 * not there. */
const pickle_value *snapshot_block_frames(const pickle_value *block);
bool snapshot_is_expandable(const pickle_value *segment);

#endif
