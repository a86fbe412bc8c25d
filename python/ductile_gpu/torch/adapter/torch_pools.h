/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private pools of one device: PyTorch's calls mapped to the library's. A pool that brings an
 * allocator of its own (torch.cuda.MemPool(allocator)) belongs to PyTorch's native allocator, and
 * so does one that native had before Ductile came, or while Ductile was off: requests for it are
 * forwarded there.
 */
#ifndef DUCTILE_TORCH_POOLS_H
#define DUCTILE_TORCH_POOLS_H

#include "native_side.h"

#include <exception>
#include <functional>
#include <map>
#include <thread>

namespace ductile_torch {

struct Device;

using StreamFilter = std::function<bool(cudaStream_t)>;

class Pools {
  public:
    explicit Pools(Device &device) : device_(device) {
    }
    void retain(const MempoolId_t &id, bool is_native);
    /* On an exception nothing is open, and no reference was added. */
    void begin(const MempoolId_t &id, StreamFilter filter);
    void end(const MempoolId_t &id);
    void release(const MempoolId_t &id);
    int use_count(const MempoolId_t &id);
    void set_use_on_oom(const MempoolId_t &id, bool on);

    bool is_native(const MempoolId_t &id);

    /* Likewise, or would it be if it was used now for the first time? */
    bool is_for_native(const MempoolId_t &id);

    bool is_open(const MempoolId_t &id);

    /* Does native serve the request: as one of an open pool of its own, or because new memory comes
     * from native? */
    bool goes_to_native(cudaStream_t stream);

    /* The open pool that a request belongs to; {0, 0}: none. */
    MempoolId_t pool_for(cudaStream_t stream);

    /* What each pool has held, as far as it was looked at: while it is open nothing of a graph's
     * pool goes back, so that a look when it closes misses no peak of it. */
    void look_at_held();
    std::map<MempoolId_t, Stat> held();
    void reset_peaks();
    void reset_accumulated();

    /* Pools that may serve when nothing else does. */
    std::vector<MempoolId_t> last_resorts();

  private:
    struct Pool {
        int references = 0;
        bool is_native = false;
        bool use_on_oom = false;
    };

    /* Announces a capture to the library from before it begins until after it has ended. */
    struct Announcement : Fixed {
        explicit Announcement(DeviceIndex device) : notice(device) {
            ductile_capture_begin();
        }
        ~Announcement() {
            ductile_capture_end();
        }
        NativeNotice notice;
    };

    struct Opening {
        MempoolId_t id;
        std::unique_ptr<Announcement> announcement; /* of a capture */
        bool is_native;
        std::shared_ptr<void> detour; /* where it is native: requests look whose they are */
        StreamFilter filter;
        std::thread::id thread;
        cudaStream_t stream; /* the current one of the caller */
    };

    std::optional<bool> is_known_native(const MempoolId_t &id);
    static int ask_filter(void *user, ductile_stream stream);
    std::shared_ptr<Opening> take_opening(const MempoolId_t &id);
    std::shared_ptr<Opening> opening_for(cudaStream_t stream);
    void open(Opening &opening);
    void drop_stale_announcements();
    void adopt_announcement(Opening &opening);
    void park_announcement(Opening &opening);
    void drop_reference(const MempoolId_t &id);

    Device &device_;
    std::mutex mutex_;
    std::map<MempoolId_t, Pool> pools_;
    std::map<MempoolId_t, Stat> held_;
    std::vector<std::shared_ptr<Opening>> open_;                  /* the latest last */
    std::map<MempoolId_t, std::unique_ptr<Announcement>> parked_; /* of captures under way */
};

inline ductile_pool_id to_pool_id(const MempoolId_t &id) {
    return {id.first, id.second};
}

inline MempoolId_t pool_of_block(const ductile_block_info &info) {
    return {info.pool.first, info.pool.second};
}

/* What a filter threw in the library's latest call of this thread, once; nullptr: nothing. */
std::exception_ptr take_thrown();

} // namespace ductile_torch

#endif
