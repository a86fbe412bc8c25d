/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for other processes and other devices.
 *
 * A block is shared by name: the bytes that PyTorch passes to the other process say where to ask
 * for it, an abstract UNIX socket of this process. A thread answers there, and passes the memory's
 * descriptors through the socket: that needs no right to trace this process, as fetching them would
 * (pidfd_getfd), which containers and default settings refuse.
 *
 *     producer                                consumer
 *     shareIpcHandle: export_block, handle -> getIpcDevPtr: connect, send the request
 *     thread: ductile_export(socket)       -> ductile_import(socket)
 *     delete_block: ductile_unexport          last use of the pointer: ductile_import_close
 */
#include "torch_allocator.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <thread>

namespace ductile_torch {

namespace {

/* ---- What is passed ------------------------------------------------------------------------- */

constexpr char kTag[4] = {'D', 'U', 'C', '1'};
constexpr size_t kNameBytes = 24;
constexpr time_t kPatience = 30; /* seconds, for either side */

struct Request {
    uint64_t serial; /* of the export; an address may be another block by now */
    uint64_t address;
    int32_t device;
    int32_t process; /* for the message when nobody answers */
};

struct Handle {
    char tag[sizeof kTag];
    char name[kNameBytes]; /* of the socket, without the leading zero */
    Request request;
};
static_assert(std::is_trivially_copyable_v<Handle>, "a handle is passed as bytes");

struct Socket {
    int fd = -1;
    explicit Socket(int given) : fd(given) {
    }
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;
    ~Socket() {
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    void limit_waiting() const {
        timeval patience = {kPatience, 0};
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    }
};

sockaddr_un abstract_address(const char *name) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name, kNameBytes);
    return address;
}

constexpr socklen_t kAddressBytes = offsetof(sockaddr_un, sun_path) + 1 + kNameBytes;

/* ---- The producer --------------------------------------------------------------------------- */

struct Export {
    uint64_t serial = 0;
    int taken = 0;             /* by importers: as often it is to be taken back */
    bool is_under_way = false; /* being passed: its block is not freed meanwhile */
};

/* Never destroyed: blocks are freed, and asked for, while and after static objects are. */
std::mutex exports_mutex;
auto &exports = *new std::map<void *, Export>();
auto &export_ended = *new std::condition_variable();
uint64_t last_serial = 0;
std::string socket_name;

/* Only processes of this user are served. */
bool is_own_user(int fd) {
    ucred peer = {};
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/* Marks the block as being passed. False: it is gone; the importer sees the end of the connection.
 */
bool begin_export(const Request &request) {
    const std::lock_guard<std::mutex> lock(exports_mutex);
    auto found = exports.find(to_pointer(request.address));
    if (found == exports.end() || found->second.serial != request.serial || request.device < 0 ||
        request.device >= n_devices) {
        return false;
    }
    found->second.is_under_way = true;
    return true;
}

void end_export(const Request &request, bool is_taken) {
    {
        const std::lock_guard<std::mutex> lock(exports_mutex);
        Export &entry = exports[to_pointer(request.address)];
        entry.taken += is_taken ? 1 : 0;
        entry.is_under_way = false;
    }
    export_ended.notify_all();
}

/* No mutex is held while the other process answers: only the block's own free waits for that. */
void answer(int fd) {
    Request request = {};
    if (!is_own_user(fd) ||
        recv(fd, &request, sizeof request, MSG_WAITALL) != static_cast<ssize_t>(sizeof request) ||
        !begin_export(request)) {
        return;
    }
    ductile_allocator *a = devices[request.device].allocator.load();
    end_export(request, ductile_export(a, request.address, fd) == DUCTILE_OK);
}

/* Descriptors or memory that are short now may be there again soon. */
bool is_passing(int error) {
    return error == EINTR || error == ECONNABORTED || error == EMFILE || error == ENFILE ||
           error == ENOBUFS || error == ENOMEM;
}

void serve(int listener) {
    for (;;) {
        Socket connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        if (connection.fd < 0) {
            if (!is_passing(errno)) {
                return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            continue;
        }
        connection.limit_waiting();
        answer(connection.fd);
    }
}

std::string random_name() {
    unsigned char bytes[kNameBytes / 2] = {};
    TORCH_CHECK(getrandom(bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes),
                "Ductile: the system gives no random bytes");
    static const char *digits = "0123456789abcdef";
    std::string name;
    for (unsigned char byte : bytes) {
        name += digits[byte >> 4];
        name += digits[byte & 15];
    }
    return name;
}

/* Starts the thread that answers, once. exports_mutex held. */
void listen_locked() {
    if (!socket_name.empty()) {
        return;
    }
    std::string name = random_name();
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = abstract_address(name.data());
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr *>(&address), kAddressBytes) != 0 ||
        listen(fd, 64) != 0) {
        int error = errno;
        Socket closed(fd);
        TORCH_CHECK(false, "Ductile: no socket to share memory by: ", std::strerror(error));
    }
    std::thread(serve, fd).detach();
    socket_name = name;
    special.fetch_or(kExported);
}

uint64_t export_block(void *ptr) {
    const std::lock_guard<std::mutex> lock(exports_mutex);
    listen_locked();
    Export &entry = exports[ptr];
    if (entry.serial == 0) {
        entry.serial = ++last_serial;
    }
    return entry.serial;
}

/* ---- The consumer --------------------------------------------------------------------------- */

std::mutex imports_mutex;
std::unordered_map<std::string, std::weak_ptr<void>> imports;

bool ask(int fd, const Handle &handle) {
    sockaddr_un address = abstract_address(handle.name);
    if (connect(fd, reinterpret_cast<sockaddr *>(&address), kAddressBytes) != 0) {
        return false;
    }
    return send(fd, &handle.request, sizeof handle.request, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(sizeof handle.request);
}

std::shared_ptr<void> import_block(const Handle &handle) {
    Device &device = device_at(current_device());
    Socket connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connection.limit_waiting();
    TORCH_CHECK(connection.fd >= 0 && ask(connection.fd, handle), "Ductile: process ",
                handle.request.process,
                ", which sent a CUDA tensor, does not answer any more: ", std::strerror(errno),
                ". It has to live until the tensor has been received");
    ductile_addr address = 0;
    uint64_t size = 0;
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device.index).stream();
    ductile_status status =
        ductile_import(device.open(), connection.fd, to_ductile(stream), &address, &size);
    TORCH_CHECK(status != DUCTILE_ERR_BAD_MESSAGE, "Ductile: process ", handle.request.process,
                " has freed the CUDA tensor it sent, or cannot share it");
    if (status != DUCTILE_OK) {
        raise_status(device, status, "receiving a CUDA tensor");
    }
    ductile_allocator *a = device.open();
    return std::shared_ptr<void>(
        to_pointer(address), [a](void *ptr) { (void)ductile_import_close(a, to_address(ptr)); });
}

} // namespace

void forget_export(ductile_allocator *a, void *ptr) {
    int taken = 0;
    {
        std::unique_lock<std::mutex> lock(exports_mutex);
        auto found = exports.find(ptr);
        while (found != exports.end() && found->second.is_under_way) {
            export_ended.wait(lock);
            found = exports.find(ptr);
        }
        if (found == exports.end()) {
            return;
        }
        taken = found->second.taken;
        exports.erase(found);
    }
    while (taken-- > 0) {
        (void)ductile_unexport(a, to_address(ptr));
    }
}

caching::ShareableHandle Allocator::shareIpcHandle(void *ptr) {
    ductile_block_info info;
    Device *device = find_block(ptr, info);
    if (device == nullptr) {
        TORCH_CHECK(is_native_in_use(), "invalid device pointer: ", ptr);
        return native_allocator()->shareIpcHandle(ptr);
    }
    ductile_options options;
    ductile_options_init(&options);
    ductile_get_options(device->open(), &options);
    TORCH_CHECK(options.shareable != 0,
                "Ductile: this device's memory cannot be sent to other processes: the driver "
                "refused handles that can be passed on (option shareable)");
    Handle handle = {};
    std::memcpy(handle.tag, kTag, sizeof kTag);
    handle.request.serial = export_block(to_pointer(info.address));
    handle.request.address = info.address;
    handle.request.device = device->index;
    handle.request.process = static_cast<int32_t>(getpid());
    std::memcpy(handle.name, socket_name.data(), kNameBytes);
    auto offset = static_cast<ptrdiff_t>(to_address(ptr) - info.address);
    return {offset, std::string(reinterpret_cast<const char *>(&handle), sizeof handle)};
}

/* One mapping for each block, however many tensors of it arrive. */
std::shared_ptr<void> Allocator::getIpcDevPtr(std::string bytes) {
    Handle handle;
    if (bytes.size() != sizeof handle || std::memcmp(bytes.data(), kTag, sizeof kTag) != 0) {
        return native_allocator()->getIpcDevPtr(std::move(bytes));
    }
    std::memcpy(&handle, bytes.data(), sizeof handle);
    const std::lock_guard<std::mutex> lock(imports_mutex);
    auto found = imports.find(bytes);
    std::shared_ptr<void> known = found != imports.end() ? found->second.lock() : nullptr;
    if (known == nullptr) {
        known = import_block(handle);
        imports[bytes] = known;
    }
    for (auto it = imports.begin(); it != imports.end();) {
        it = it->second.expired() ? imports.erase(it) : std::next(it);
    }
    return known;
}

/* ---- Other devices -------------------------------------------------------------------------- */

/* Memory from cudaMalloc is opened by the runtime's call, mapped memory by the library's. */
void Allocator::enablePeerAccess(DeviceIndex index, DeviceIndex peer) {
    {
        const c10::cuda::CUDAGuard guard(index);
        cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
        } else {
            C10_CUDA_CHECK(error);
        }
    }
    Device &device = device_at(peer);
    ductile_status status = ductile_enable_peer(device.open(), index);
    if (status != DUCTILE_OK) {
        raise_status(device, status, "opening memory to another GPU");
    }
}

} // namespace ductile_torch
