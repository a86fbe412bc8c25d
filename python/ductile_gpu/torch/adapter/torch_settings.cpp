/* SPDX-License-Identifier: Apache-2.0 */
#include "torch_settings.h"

#include "torch_device.h"

#include <c10/cuda/CUDAAllocatorConfig.h>

namespace ductile_torch {

using Config = caching::CUDAAllocatorConfig;
#if DUCTILE_TORCH_MINOR >= 10
using Common = c10::CachingAllocator::AcceleratorAllocatorConfig;
#else
using Common = Config;
#endif

namespace {

constexpr size_t kStep = DUCTILE_ALIGNMENT;

bool wants_rounding() {
    for (size_t divisions : Common::roundup_power2_divisions()) {
        if (divisions > 1) {
            return true;
        }
    }
    return false;
}

size_t power2_at_most(size_t size) {
    return size_t{1} << (63 - __builtin_clzll(static_cast<unsigned long long>(size)));
}

std::mutex given_mutex;
auto &given_options = *new std::string();

void parse_into(ductile_options &options, const std::string &text) {
    char message[256] = "";
    ductile_status status = ductile_options_parse(&options, text.c_str(), message, sizeof message);
    TORCH_CHECK_VALUE(status == DUCTILE_OK, message);
}

double wanted_fraction() {
#if DUCTILE_TORCH_MINOR >= 10
    return Config::per_process_memory_fraction();
#else
    return 1.0;
#endif
}

} // namespace

void set_options(const char *text) {
    ductile_options probe;
    ductile_options_init(&probe);
    parse_into(probe, text);
    const std::lock_guard<std::mutex> lock(given_mutex);
    given_options = text;
}

/* The adapter announces PyTorch's captures (torch_pools.cpp). Those of other libraries it does not
 * know of: then captures:unannounced is to be set. */
void apply_settings(ductile_options &options) {
    options.captures = DUCTILE_CAPTURES_ANNOUNCED;
    {
        const std::lock_guard<std::mutex> lock(given_mutex);
        parse_into(options, given_options);
    }
    double threshold = Common::garbage_collection_threshold();
    if (options.soft_limit_bytes == 0 && threshold > 0) {
        options.soft_limit_bytes = DUCTILE_SHARE(threshold);
    }
}

void count_rounded(int change) {
    static std::mutex mutex;
    static int64_t n_rounded = 0;
    const std::lock_guard<std::mutex> lock(mutex);
    n_rounded += change;
    set_special(kRounding, n_rounded != 0 || wants_rounding());
}

void refresh_settings(bool is_fraction_named) {
    count_rounded(0);
    if (n_devices == 0) {
        return; /* `init`, which makes them, asks again */
    }
    static std::mutex mutex;
    static double applied = 1.0;
    static bool rejected = false;
    const std::lock_guard<std::mutex> lock(mutex);
    double fraction = wanted_fraction();
    bool rejects = rejects_early();
    if (fraction == applied && !is_fraction_named && rejects == rejected) {
        return;
    }
    applied = fraction;
    rejected = rejects;
    for (Device &device : AllDevices()) {
        device.fraction = fraction;
        if (device.opened() != nullptr) {
            device.apply_fraction();
        }
        follow_fraction(device);
    }
}

/* PyTorch calls one hook after its own part of the settings was parsed: CUDA's. */
void follow_settings() {
#if DUCTILE_TORCH_MINOR >= 10
    std::function<void(const std::string &)> cudas;
#if DUCTILE_TORCH_MINOR >= 11
    cudas = Common::getConfigParserHook();
#endif
    auto hook = [cudas](const std::string &text) {
        cudas ? cudas(text) : Config::instance().parseArgs(text);
        refresh_settings(text.find("per_process_memory_fraction") != std::string::npos);
    };
    Common::registerDeviceConfigParserHook(hook, {});
#endif
}

bool rejects_early() {
#if DUCTILE_TORCH_MINOR >= 12
    return Config::throw_on_cudamalloc_oom();
#else
    return false;
#endif
}

size_t round_request(size_t size) {
    size_t divisions = Common::roundup_power2_divisions(size);
    if (divisions <= 1 || size <= kStep * divisions) {
        return size;
    }
    size_t power = power2_at_most(size);
    size_t step = power / divisions;
    return (size + step - 1) / step * step;
}

caching::AllocatorConfigInfo describe_settings() {
    caching::AllocatorConfigInfo info{};
    info.garbage_collection_threshold = Common::garbage_collection_threshold();
    info.max_split_size = Common::max_split_size();
    info.pinned_num_register_threads = Config::pinned_num_register_threads();
    info.expandable_segments = Config::expandable_segments();
    info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
    info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
#if DUCTILE_TORCH_MINOR >= 9
    set_graph_capture_record_stream_reuse(info, Config::graph_capture_record_stream_reuse(), 0);
#endif
    info.last_allocator_settings =
#if DUCTILE_TORCH_MINOR >= 10
        c10::CachingAllocator::getAllocatorSettings();
#else
        Config::last_allocator_settings();
#endif
    info.roundup_power2_divisions = Common::roundup_power2_divisions();
#if DUCTILE_TORCH_MINOR >= 13
    info.max_round_threshold = Common::pinned_max_round_threshold();
    info.max_cached_size = Common::pinned_max_cached_size();
#endif
    return info;
}

} // namespace ductile_torch
