/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for other processes and other devices.
 *
 * A block is shared by name: the bytes that PyTorch passes to the other process say where to ask
 * for it, a UNIX socket of this process (sharing_socket.h). A thread answers there, and passes the
 * memory's descriptors through the socket: that needs no right to trace this process, as fetching
 * them would (pidfd_getfd), which containers and default settings refuse.
 *
 *     producer                                consumer
 *     shareIpcHandle: export_block, handle -> getIpcDevPtr: connect, send the request
 *     thread: send the answer              -> compare it with the handle's
 *     the same: ductile_export(socket)     -> ductile_import(socket)
 *     delete_block: ductile_unexport          last use of the pointer: ductile_import_close
 *
 * Names of sockets are public, and any process may take one whose owner has died. So each
 * export has two random numbers, which its handle carries: who asks must know the one, who answers
 * the other, and both must be of this user.
 */
#include "torch_allocator.h"

#include "sharing_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <thread>

namespace ductile_torch {

namespace {

/* ---- What is passed ------------------------------------------------------------------------- */

constexpr char kTag[4] = {'D', 'U', 'C', '2'};
constexpr int kMaxAnswers = 64; /* threads that answer at once */
/* For a consumer that has begun to take a block which is freed now. */
constexpr std::chrono::seconds kGrace{1};

using Token = std::array<uint64_t, 2>;

struct Request {
    Token question; /* of the export; an address may be another block by now */
    uint64_t address;
    int32_t device;
    int32_t process; /* for the message when no process answers */
};

struct Handle {
    char tag[sizeof kTag];
    char name[kNameBytes]; /* of the socket, without the leading zero */
    Request request;
    Token answer;
};
static_assert(std::is_trivially_copyable_v<Handle>, "a handle is passed as bytes");

/* ---- The producer --------------------------------------------------------------------------- */

struct Export {
    Token question{};
    Token answer{};
    int taken = 0;              /* by importers: as often it is to be taken back */
    std::vector<int> under_way; /* sockets it is being passed by: it is not freed meanwhile */
};

/* Never destroyed: blocks are freed, and asked for, while and after static objects are. */
std::mutex exports_mutex;
auto &exports = *new std::map<void *, Export>();
auto &export_ended = *new std::condition_variable();
auto &socket_name = *new std::string();
std::atomic<int> n_answers{0};

template <typename Value> void send_all(int fd, const Value &value) {
    TORCH_CHECK(send(fd, &value, sizeof value, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof value),
                "Ductile: a process that shares memory went away");
}

template <typename Value> bool receive_all(int fd, Value &value) {
    return recv(fd, &value, sizeof value, MSG_WAITALL) == static_cast<ssize_t>(sizeof value);
}

/* A block being passed; its free waits for the end of this. */
class Passing : Fixed {
  public:
    Passing(const Request &request, int fd) : ptr_(to_pointer(request.address)), fd_(fd) {
        const std::lock_guard<std::mutex> lock(exports_mutex);
        auto found = exports.find(ptr_);
        is_there_ = found != exports.end() && found->second.question == request.question &&
                    request.device >= 0 && request.device < n_devices;
        if (is_there_) {
            found->second.under_way.push_back(fd);
            answer_ = found->second.answer;
        }
    }
    ~Passing() {
        if (is_there_) {
            const std::lock_guard<std::mutex> lock(exports_mutex);
            Export &entry = exports.at(ptr_);
            entry.under_way.erase(std::find(entry.under_way.begin(), entry.under_way.end(), fd_));
            entry.taken += is_taken ? 1 : 0;
        }
        export_ended.notify_all();
    }
    /* False: the block is gone; the importer sees the end of the connection. */
    bool is_there() const {
        return is_there_;
    }
    const Token &answer() const {
        return answer_;
    }
    bool is_taken = false;

  private:
    void *ptr_;
    int fd_;
    bool is_there_ = false;
    Token answer_{};
};

/* No mutex is held while the other process answers: only the block's own free waits for that. */
void pass_block(int fd) {
    Request request = {};
    if (!is_own_user(fd) || !receive_all(fd, request)) {
        return;
    }
    Passing passing(request, fd);
    if (passing.is_there()) {
        send_all(fd, passing.answer());
        ductile_allocator *a = devices[request.device].allocator.load();
        passing.is_taken = ductile_export(a, request.address, fd) == DUCTILE_OK;
    }
}

void answer(int fd) {
    const Socket connection(fd);
    connection.limit_waiting();
    try {
        pass_block(fd);
    } catch (const std::exception &) {
        /* the importer sees the end of the connection */
    }
    /* a child that was forked meanwhile has a copy, which would keep the importer waiting */
    (void)shutdown(fd, SHUT_RDWR);
    n_answers--;
}

/* One thread for each importer: one that stops keeps no other waiting. */
void answer_beside(int fd) {
    n_answers++;
    try {
        std::thread(answer, fd).detach();
    } catch (const std::system_error &) {
        answer(fd);
    }
}

void serve(int listener) {
    for (;;) {
        int fd = n_answers < kMaxAnswers ? accept4(listener, nullptr, nullptr, SOCK_CLOEXEC) : -1;
        if (fd >= 0) {
            answer_beside(fd);
        } else {
            /* threads, descriptors or memory that are short now may be there again soon */
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
}

/* Starts to answer, once. exports_mutex held. */
void listen_locked() {
    if (socket_name.empty()) {
        socket_name = start_listening(serve);
    }
}

/* Fills in what the other process needs to ask for the block. */
void export_block(Handle &handle) {
    const std::lock_guard<std::mutex> lock(exports_mutex);
    listen_locked();
    auto found = exports.try_emplace(to_pointer(handle.request.address));
    Export &entry = found.first->second;
    if (found.second) {
        fill_randomly(entry.question);
        fill_randomly(entry.answer);
    }
    special.fetch_or(kExported);
    handle.request.question = entry.question;
    handle.answer = entry.answer;
    std::memcpy(handle.name, socket_name.data(), kNameBytes);
}

/* ---- The consumer --------------------------------------------------------------------------- */

/* One block of another process. Its mutex is held while it is fetched: who wants it too waits. */
struct Import {
    std::mutex mutex;
    std::weak_ptr<void> memory;
};
std::mutex imports_mutex; /* of the map; not held while another process answers */
auto &imports = *new std::unordered_map<std::string, std::shared_ptr<Import>>();

/* False: no process answers, or another one than that which made the handle. */
bool ask(int fd, const Handle &handle) {
    if (!connect_to(fd, handle.name)) {
        return false;
    }
    errno = ECONNREFUSED; /* what the name's next owner amounts to */
    if (!is_own_user(fd)) {
        return false;
    }
    return send(fd, &handle.request, sizeof handle.request, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(sizeof handle.request);
}

/* False: the producer has ended the connection, because it has no such block any more. */
bool is_answered(int fd, const Handle &handle) {
    Token answer{};
    if (!receive_all(fd, answer)) {
        return false;
    }
    TORCH_CHECK(answer == handle.answer, "Ductile: another process answers in the place of ",
                handle.request.process, ", which sent a CUDA tensor");
    return true;
}

std::shared_ptr<void> import_block(const Handle &handle) {
    Device &device = device_at(current_device());
    Socket connection(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connection.limit_waiting();
    TORCH_CHECK(connection.fd >= 0 && ask(connection.fd, handle), "Ductile: process ",
                handle.request.process,
                ", which sent a CUDA tensor, does not answer any more: ", std::strerror(errno),
                ". It has to live until the tensor has been received");
    TORCH_CHECK(is_answered(connection.fd, handle), "Ductile: process ", handle.request.process,
                " has freed the CUDA tensor it sent, or does not answer any more");
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
        if (found == exports.end()) {
            return;
        }
        Export &entry = found->second;
        auto has_ended = [&] { return entry.under_way.empty(); };
        if (!export_ended.wait_for(lock, kGrace, has_ended)) {
            for (int fd : entry.under_way) { /* an importer that has stopped, say */
                (void)shutdown(fd, SHUT_RDWR);
            }
            export_ended.wait(lock, has_ended);
        }
        taken = entry.taken;
        exports.erase(found);
        set_special(kExported, !exports.empty());
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
    handle.request.address = info.address;
    handle.request.device = device->index;
    handle.request.process = static_cast<int32_t>(getpid());
    export_block(handle);
    auto offset = static_cast<ptrdiff_t>(to_address(ptr) - info.address);
    return {offset, std::string(reinterpret_cast<const char *>(&handle), sizeof handle)};
}

namespace {

/* The entry of this handle; those without a user are dropped. */
std::shared_ptr<Import> find_import(const std::string &bytes) {
    const std::lock_guard<std::mutex> lock(imports_mutex);
    for (auto it = imports.begin(); it != imports.end();) {
        bool is_unused = it->second.use_count() == 1 && it->second->memory.expired();
        it = is_unused ? imports.erase(it) : std::next(it);
    }
    std::shared_ptr<Import> &entry = imports[bytes];
    if (entry == nullptr) {
        entry = std::make_shared<Import>();
    }
    return entry;
}

} // namespace

/* One mapping for each block, however many tensors of it arrive. */
std::shared_ptr<void> Allocator::getIpcDevPtr(std::string bytes) {
    Handle handle;
    if (bytes.size() != sizeof handle || std::memcmp(bytes.data(), kTag, sizeof kTag) != 0) {
        return native_allocator()->getIpcDevPtr(std::move(bytes));
    }
    std::memcpy(&handle, bytes.data(), sizeof handle);
    std::shared_ptr<Import> entry = find_import(bytes);
    const std::lock_guard<std::mutex> lock(entry->mutex);
    std::shared_ptr<void> memory = entry->memory.lock();
    if (memory == nullptr) {
        memory = import_block(handle);
        entry->memory = memory;
    }
    return memory;
}

/* ---- Other devices -------------------------------------------------------------------------- */

static void open_to_peer(Device &device, DeviceIndex index) {
    ductile_status status = ductile_enable_peer(device.open(), index);
    if (status != DUCTILE_OK) {
        raise_status(device, status, "opening memory to another GPU");
    }
}

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
    /* for memory that it has mapped */
    tell_native([&](auto &native) { native.enablePeerAccess(index, peer); });
    open_to_peer(device_at(peer), index);
}

namespace {

/* Has the program opened the memory of `peer` to `index`? There is no call to ask. */
bool has_peer_access(DeviceIndex index, DeviceIndex peer) {
    const c10::cuda::CUDAGuard guard(index);
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaSuccess) {
        (void)cudaDeviceDisablePeerAccess(peer);
    } else {
        (void)cudaGetLastError();
    }
    return error == cudaErrorPeerAccessAlreadyEnabled;
}

} // namespace

void adopt_peers(Device &device) {
    for (const Device &other : AllDevices()) {
        if (other.index != device.index && c10::cuda::hasPrimaryContext(other.index) &&
            has_peer_access(other.index, device.index)) {
            open_to_peer(device, other.index);
        }
    }
}

} // namespace ductile_torch
