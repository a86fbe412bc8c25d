/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_device.h"

#include "torch_settings.h"

#include <ductile_process.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#pragma weak ductile_process_open

namespace ductile_torch {

std::atomic<unsigned> special{0};
Device *devices = nullptr;
std::atomic<int> n_devices{0};

namespace {

std::mutex opening;
std::atomic<int> n_no_spill{0}; /* told to forbid_spilling(), in all */

/* Which device an address lies on, by its 64 GiB. A guess: a wrong one costs a second look. */
constexpr unsigned kHomeShift = 36;
std::array<std::atomic<uint8_t>, 1024> homes{};

size_t home_slot(const void *ptr) {
    return (to_address(ptr) >> kHomeShift) % homes.size();
}

/* Beside native a request may be refused first and served then, once native has given its memory
 * back: an exception tells of the last refusal. */
bool may_be_served_yet(const char *text) {
    return is_native_in_use() && std::strncmp(text, "out of memory", 13) == 0;
}

/* Errors belong to a call, whose exception gets them; warnings to none, so that they are told now:
 * memory that the driver lost, memory that was written after its free. No lock is held. */
void keep_report(void *user, ductile_log_level level, const char *text) {
    auto *device = static_cast<Device *>(user);
    if (level == DUCTILE_LOG_WARNING && !may_be_served_yet(text)) {
        TORCH_WARN("ductile: ", text);
    }
    if (level == DUCTILE_LOG_ERROR) {
        const std::lock_guard<std::mutex> lock(device->log_mutex);
        device->last_report = text;
    }
}

/* That of all libraries, where one of the process serves them all; nullptr otherwise. */
ductile_allocator *open_of_process(const ductile_options &options) {
    const void *create = reinterpret_cast<const void *>(&ductile_create);
    return ductile_process_open != nullptr ? ductile_process_open(create, options.device, &options)
                                           : nullptr;
}

/* Memory that can be sent to other processes, as PyTorch's own can, unless the driver, or where it
 * runs, does not have that: the library proves it with a mapping. */
ductile_status create_shareable(ductile_allocator **out, ductile_options options) {
    ductile_options shareable = options;
    char message[128];
    if (ductile_options_set(&shareable, "shareable", "fd", message, sizeof message) == DUCTILE_OK &&
        ductile_create(out, &shareable) == DUCTILE_OK) {
        return DUCTILE_OK;
    }
    return ductile_create(out, &options);
}

Trial count_trial(ductile_allocator *a) {
    auto stats = sized<ductile_stats>();
    if (ductile_get_stats(a, nullptr, &stats) != DUCTILE_OK) {
        return {};
    }
    ductile_reset_peaks(a);
    return {stats.creates, stats.releases, stats.created_total_bytes - stats.reserved_bytes};
}

uint64_t share_of(double fraction, uint64_t bytes) {
    return static_cast<uint64_t>(fraction * static_cast<double>(bytes));
}

/* A limit of the library in bytes. */
uint64_t bytes_of(uint64_t limit, uint64_t device_bytes) {
    constexpr double whole = 1ull << 62;
    bool is_share = (limit & DUCTILE_SHARE_FLAG) != 0;
    return is_share
               ? share_of(static_cast<double>(limit & ~DUCTILE_SHARE_FLAG) / whole, device_bytes)
               : limit;
}

std::string take_report(Device &device) {
    const std::lock_guard<std::mutex> lock(device.log_mutex);
    return std::exchange(device.last_report, std::string());
}

} // namespace

std::string format_bytes(uint64_t bytes) {
    static constexpr std::array<const char *, 4> units = {"bytes", "KiB", "MiB", "GiB"};
    double value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value > 1024 && unit + 1 < units.size()) {
        value /= 1024;
        unit++;
    }
    char text[48];
    (void)std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return text;
}

void make_devices(int count) {
    const std::lock_guard<std::mutex> lock(opening);
    TORCH_CHECK(count <= C10_COMPILE_TIME_MAX_GPUS, "there are ", count, " devices; PyTorch has ",
                C10_COMPILE_TIME_MAX_GPUS, " at most");
    if (devices == nullptr) {
        /* Never freed: tensors may outlive every destructor of the process. */
        devices = new Device[C10_COMPILE_TIME_MAX_GPUS];
        for (int i = 0; i < C10_COMPILE_TIME_MAX_GPUS; i++) {
            devices[i].index = static_cast<DeviceIndex>(i);
        }
    }
    if (count > n_devices) {
        n_devices = count;
    }
}

Device &device_at(DeviceIndex index) {
    TORCH_CHECK(n_devices > 0, "Ductile is PyTorch's allocator, but CUDA is not initialised yet");
    TORCH_CHECK(index >= 0 && index < n_devices, "Invalid device argument ", int(index),
                ": did you call init?");
    return devices[index];
}

DeviceIndex current_device() {
    if (C10_LIKELY(n_devices == 1)) {
        return 0;
    }
    DeviceIndex device = -1;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
}

ductile_allocator *Device::create(const ductile_options &options) {
    ductile_allocator *a = nullptr;
    ductile_status status = create_shareable(&a, options);
    if (status != DUCTILE_OK) {
        (void)take_report(*this); /* the same line */
        TORCH_CHECK(false, "Ductile cannot open device ", int(index), ": ", ductile_create_error(),
                    " (", ductile_status_name(status), ")");
    }
    return a;
}

ductile_allocator *Device::open() {
    ductile_allocator *a = opened();
    if (a != nullptr) {
        return a;
    }
    const std::lock_guard<std::mutex> lock(opening);
    a = opened();
    if (a != nullptr) {
        return a;
    }
    ductile_options options;
    ductile_options_init(&options);
    options.device = index;
    options.log = keep_report;
    options.log_user = this;
    apply_settings(options);
    a = open_of_process(options);
    bool is_own = a == nullptr;
    if (is_own) {
        a = create(options);
    }
    ductile_status status = limit(a);
    if (status != DUCTILE_OK && is_own) {
        (void)ductile_destroy(a);
    }
    TORCH_CHECK(status == DUCTILE_OK, "Ductile cannot open device ", int(index), ": ",
                ductile_status_string(status), " (", ductile_status_name(status), ") ",
                take_report(*this));
    trial = count_trial(a);
    allocator.store(a, std::memory_order_release);
    watch.listen_to(a); /* a tracker that comes meanwhile sees the allocator */
    ask_native_for_memory(*this, a);
    if (is_native_in_use()) {
        share_limit(*this);
        adopt_peers(*this);
    }
    return a;
}

/* What is to be refused at once is not served by the host, either. */
void Device::judge_spilling(ductile_allocator *a) {
    bool forbids = n_no_spill > 0 || (fraction < 1.0 && rejects_early());
    if (forbids != spilling_is_forbidden) {
        (void)(forbids ? ductile_spill_forbid(a) : ductile_spill_allow(a));
        spilling_is_forbidden = forbids;
    }
}

void Device::renew_spilling() {
    ductile_allocator *a = opened();
    if (a != nullptr) {
        const std::lock_guard<std::mutex> lock(limit_mutex);
        judge_spilling(a);
    }
}

/* A device that was being opened may have read the count before: it is open once the lock is had.
 */
void forbid_spilling(int more) {
    n_no_spill += more;
    const std::lock_guard<std::mutex> lock(opening);
    for (Device &device : AllDevices()) {
        device.renew_spilling();
    }
}

/* A limit that is not what was set here last was set beside the fraction. The library's 0 is none;
 * PyTorch's allows nothing. */
ductile_status Device::limit(ductile_allocator *a) {
    const std::lock_guard<std::mutex> lock(limit_mutex);
    ductile_options now;
    ductile_limits limits = {};
    ductile_options_init(&now);
    ductile_get_options(a, &now);
    limits.struct_size = sizeof limits;
    ductile_status status = ductile_get_limits(a, &limits);
    if (now.limit_bytes != applied_limit) {
        own_limit = now.limit_bytes;
    }
    applied_limit = own_limit;
    by_fraction = false;
    if (fraction < 1.0) {
        double left = std::max(fraction - native_share, 0.0); /* by PyTorch's own allocator */
        uint64_t cap = share_of(left, limits.device_bytes);
        uint64_t own = own_limit != 0 ? bytes_of(own_limit, limits.device_bytes) : cap;
        applied_limit = std::max<uint64_t>(std::min(cap, own), 1);
        by_fraction = cap <= own;
    }
    judge_spilling(a);
    limits.limit_bytes = applied_limit;
    limits.soft_limit_bytes = DUCTILE_LIMIT_KEEP;
    return status == DUCTILE_OK ? ductile_set_limits(a, &limits) : status;
}

void Device::apply_fraction() {
    ductile_status status = limit(open());
    if (status != DUCTILE_OK) {
        raise_status(*this, status, "set_per_process_memory_fraction");
    }
}

bool Device::is_fraction(uint64_t limit_bytes) {
    const std::lock_guard<std::mutex> lock(limit_mutex);
    return by_fraction && applied_limit == limit_bytes;
}

Device &guess_home(const void *ptr) {
    return devices[homes[home_slot(ptr)].load(std::memory_order_relaxed)];
}

void note_home(const void *ptr, const Device &device) {
    homes[home_slot(ptr)].store(static_cast<uint8_t>(device.index), std::memory_order_relaxed);
}

Device *find_home(const void *ptr) {
    for (Device &device : AllDevices()) {
        auto info = sized<ductile_block_info>();
        ductile_allocator *a = device.opened();
        if (a != nullptr && ductile_query_block(a, to_address(ptr), &info) == DUCTILE_OK) {
            return &device;
        }
    }
    return nullptr;
}

Device *find_block(const void *ptr, ductile_block_info &info) {
    info = sized<ductile_block_info>();
    for (Device &device : AllDevices()) {
        ductile_allocator *a = device.opened();
        if (a == nullptr) {
            continue;
        }
        ductile_status status = ductile_query_block(a, to_address(ptr), &info);
        if (status == DUCTILE_OK) {
            return &device;
        }
        if (status == DUCTILE_ERR_INTERIOR_POINTER) {
            info = {};
            walk_blocks(a, [&](const ductile_block_info &block) {
                bool is_live =
                    block.state == DUCTILE_BLOCK_LIVE || block.state == DUCTILE_BLOCK_ASLEEP;
                if (is_live && to_address(ptr) >= block.address &&
                    to_address(ptr) - block.address < block.size) {
                    info = block;
                }
            });
            return info.size != 0 ? &device : nullptr;
        }
    }
    return nullptr;
}

ductile_stats read_stats(const Device &device) {
    auto stats = sized<ductile_stats>();
    ductile_allocator *a = device.opened();
    if (a == nullptr || ductile_get_stats(a, nullptr, &stats) != DUCTILE_OK) {
        return {};
    }
    stats.creates -= device.trial.creates;
    stats.releases -= device.trial.releases;
    stats.created_total_bytes -= device.trial.created;
    return stats;
}

void raise_status(Device &device, ductile_status status, const char *call) {
    std::string report = take_report(device);
    TORCH_CHECK(false, "Ductile: ", call, ": ", ductile_status_string(status), " (",
                ductile_status_name(status), ")", report.empty() ? "" : ": ", report);
}

} // namespace ductile_torch
