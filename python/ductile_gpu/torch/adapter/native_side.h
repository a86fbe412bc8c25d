/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's own allocator ("native") beside Ductile: who serves new memory, which pools are whose,
 * and what each may hold. What native has served stays with it until it is freed, whenever Ductile
 * came; each call on memory or a pool goes to the allocator that has it.
 */
#ifndef DUCTILE_TORCH_NATIVE_SIDE_H
#define DUCTILE_TORCH_NATIVE_SIDE_H

#include "torch_common.h"

namespace ductile_torch {

struct Device;

/* ---- The other allocator -------------------------------------------------------------------- */

/* Once in a process, before any of the others. */
void remember_native(caching::CUDAAllocator *allocator);

/* Has it served, or is it about to? */
bool is_native_in_use();

/* Initialised where it is not yet. */
caching::CUDAAllocator *native_allocator();

/* Has it do what was done here, where it is in use. */
template <typename Action> void tell_native(Action action) {
    if (is_native_in_use()) {
        action(*native_allocator());
    }
}

/* How many devices it was told of; 0: it is not initialised. */
int count_native_devices(caching::CUDAAllocator *allocator);

/* ---- Who serves ----------------------------------------------------------------------------- */

/* Before Ductile takes native's place: new memory goes on coming from native. */
void stay_with_native();

/* From now on new memory comes from Ductile, but what belongs to pools that native opened before
 * Ductile took its place. Pre: Ductile has taken it, after stay_with_native or serve_by_native. */
void serve_by_ductile();

/* From now on new memory comes from native, but what belongs to open pools of Ductile. */
void serve_by_native();

/* Has new memory been given back to native? */
bool is_off();

/* Whose is a request that belongs to no pool that Ductile has seen being opened? Native's while
 * Ductile is off, or while a pool is open that Ductile has not seen being opened: which requests
 * belong to that, only native knows. */
bool newcomers_go_to_native(cudaStream_t stream);

/* How many pools are open that Ductile has not seen being opened. */
size_t count_inherited();

/* Memory from native. Where it has none, Ductile gives back what is free, and it is asked again. */
void *take_native(Device &device, size_t size, cudaStream_t stream);

/* Is native asked for the first time, so that observers are not told of its refusal? */
bool is_first_try();

bool is_captured(cudaStream_t stream);

/* ---- Pools and captures --------------------------------------------------------------------- */

/* Has native such a pool, with references left? */
bool native_holds_pool(DeviceIndex device, const MempoolId_t &pool);

void retain_native_pool(DeviceIndex device, const MempoolId_t &pool);

/* Throws where the pool is open already. */
void begin_native_pool(DeviceIndex device, const MempoolId_t &pool,
                       std::function<bool(cudaStream_t)> filter);

/* Closes it, also one that Ductile has not seen being opened. Throws where it is not open. */
void end_native_pool(DeviceIndex device, const MempoolId_t &pool);

/* Tells native of a capture whose memory is Ductile's, by an open pool that nothing belongs to: it
 * queries no event and frees nothing meanwhile. */
class NativeNotice : Fixed {
  public:
    explicit NativeNotice(DeviceIndex device);
    ~NativeNotice();

  private:
    DeviceIndex device_;
    MempoolId_t pool_{0, 0}; /* {0, 0}: native is not in use */
};

/* ---- One limit ------------------------------------------------------------------------------ */

/* What native holds from the driver; 0 while it is not in use. */
uint64_t native_reserved(DeviceIndex device);

/* Looks again what each side holds: of a memory fraction each may have what the other leaves. */
void share_limit(Device &device);

void share_limits(); /* of all devices */

/* The memory fraction has changed, and Ductile's own cap with it. */
void follow_fraction(Device &device);

/* Has native give its free memory back, unless a capture is under way that forbids it. */
void empty_native();

/* Has native give back what is free, and Ductile take the share that is left. Returns by how many
 * bytes it has more room. */
uint64_t reclaim_from_native(Device &device);

/* From now on the library does that before it refuses a request. */
void ask_native_for_memory(Device &device, ductile_allocator *allocator);

} // namespace ductile_torch

#endif
