/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/size_class.h"

uint64_t dpool_round_power2(uint64_t size, uint32_t divisions) {
    if (divisions <= 1 || size <= DPOOL_UNIT * divisions) {
        return size;
    }
    uint64_t floor = (uint64_t)1 << (63u - (unsigned)__builtin_clzll(size));
    if (floor == size) {
        return size;
    }
    return dti_round_up(size, floor / divisions);
}
