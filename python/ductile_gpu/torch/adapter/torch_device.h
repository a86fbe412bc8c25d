/* SPDX-License-Identifier: Apache-2.0 */
/* One device: its Ductile allocator, made when first needed, and what the adapter adds to it. */
#ifndef DUCTILE_TORCH_DEVICE_H
#define DUCTILE_TORCH_DEVICE_H

#include "torch_pools.h"
#include "torch_watch.h"

namespace ductile_torch {

/*
 * Why a call may not take the quick path. One word for the process, so that a quick call tests one
 * word: what is watched on one device makes the others slower too.
 */
enum Special : unsigned {
    kWatched = 1,    /* history is recorded, or a tracker listens           */
    kRounding = 2,   /* roundup_power2_divisions is on, or was and blocks are left */
    kUncached = 4,   /* caching is switched off, or was and memory is left   */
    kRouted = 8,     /* a pool with an allocator of its own is open          */
    kExported = 16,  /* memory is shared with other processes              */
    kThrown = 32,    /* a pool's filter has thrown: look whether in this call */
    kNative = 64,    /* new memory comes from PyTorch's own allocator: see native_side.h */
    kSettling = 128, /* Ductile has only just taken its place                */
};
constexpr unsigned kElsewhere = kRouted | kNative | kSettling; /* native may have to serve */
extern std::atomic<unsigned> special;

inline void set_special(unsigned flags, bool on) {
    on ? special.fetch_or(flags) : special.fetch_and(~flags);
}

/* Counts since the process began; what was asked to be forgotten is subtracted when read. */
struct Failures {
    std::atomic<int64_t> retries{0};
    std::atomic<int64_t> ooms{0};
    std::atomic<int64_t> rejections{0}; /* by throw_on_cudamalloc_oom */
};

/* What the library did to try itself out, before the first request. */
struct Trial {
    uint64_t creates = 0;
    uint64_t releases = 0;
    uint64_t created = 0;
};

struct Device {
    DeviceIndex index = 0;
    std::atomic<ductile_allocator *> allocator{nullptr};
    Trial trial;             /* written before `allocator` */
    std::string last_report; /* the library's latest line about an error; guarded by log_mutex */
    std::mutex log_mutex;
    std::recursive_mutex mutex;        /* watched calls, one at a time; guards the fields below */
    std::atomic<double> fraction{1.0}; /* of the device, for Ductile and native together */
    std::atomic<double> native_share{0.0}; /* of it, what native held when last looked at */
    std::mutex limit_mutex;                /* guards the three below */
    uint64_t own_limit =
        0; /* the library's option limit_bytes, as it was set beside the fraction */
    uint64_t applied_limit = 0;        /* what it was set to here */
    bool by_fraction = false;          /* by the fraction, which is the smaller one */
    std::atomic<int> captures{0};      /* under way, as PyTorch says since 2.13 */
    std::atomic<int> captures_told{0}; /* of them, those that native was told of */
    Failures failures;
    DeviceStats baseline; /* what the accumulated statistics are counted from */
    Watch watch{*this};
    Pools pools{*this};
    std::unordered_map<void *, size_t> asked; /* while rounding: what was asked for */
    uint64_t rounded_up = 0;                  /* by how much, of all requests ever */

    /* nullptr: it has served nothing yet. */
    ductile_allocator *opened() const {
        return allocator.load(std::memory_order_acquire);
    }

    /* The allocator, created on the first call. Throws when it cannot be. */
    ductile_allocator *open();
    void apply_fraction();                  /* beside the library's own limit: the smaller holds */
    bool is_fraction(uint64_t limit_bytes); /* the library's limit, which is that of the fraction */
    void renew_spilling();                  /* after forbid_spilling() */

  private:
    ductile_allocator *create(const ductile_options &options); /* throws */
    ductile_status limit(ductile_allocator *a);
    void judge_spilling(ductile_allocator *a);
    bool spilling_is_forbidden = false; /* under limit_mutex */
};

/* While the sum of what it was told is positive no device spills, nor one that is opened later. */
void forbid_spilling(int more);

/* 0 before init(). An array for as many as PyTorch can have, made once: a device stays where it is,
 * also when init() is told of more. */
extern Device *devices;
extern std::atomic<int> n_devices; /* says that `devices` may be read */

/* Those that PyTorch has told of. */
struct AllDevices {
    const int n = n_devices; /* first */
    Device *begin() const {
        return n > 0 ? devices : nullptr;
    }
    Device *end() const {
        return n > 0 ? devices + n : nullptr;
    }
};

/* Opens its memory to the GPUs that the program gave access before Ductile came. */
void adopt_peers(Device &device);

void make_devices(int count);
Device &device_at(DeviceIndex index);
DeviceIndex current_device();

/* The device whose allocator holds the live block at ptr, or nullptr. */
Device *find_home(const void *ptr);

/* The live block that ptr lies in, and its device; nullptr when there is none. */
Device *find_block(const void *ptr, ductile_block_info &info);

/* The device that most likely holds ptr: right but for the first pointer of each 64 GiB. */
Device &guess_home(const void *ptr);
void note_home(const void *ptr, const Device &device);

/* What PyTorch calls reserved: what is spilled is allocated, too. */
inline uint64_t held_of(const ductile_stats &s) {
    return s.reserved_bytes + s.spilled_bytes;
}

/* Since the first request. */
ductile_stats read_stats(const Device &device);

[[noreturn]] void raise_status(Device &device, ductile_status status, const char *call);

} // namespace ductile_torch

#endif
