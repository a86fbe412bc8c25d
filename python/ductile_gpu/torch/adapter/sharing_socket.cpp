/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing_socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace ductile_torch {

namespace {

constexpr const char *kFolder = "/dev/shm";
constexpr const char *kPrefix = "ductile-";
constexpr time_t kPatience = 30; /* seconds */
constexpr int kWaiting = 64;     /* connections that are not accepted yet */

struct Address {
    sockaddr_un where = {};
    socklen_t size = 0;

    const sockaddr *get() const {
        return reinterpret_cast<const sockaddr *>(&where);
    }
};

Address abstract_address(const char *name) {
    Address address;
    address.where.sun_family = AF_UNIX;
    std::memcpy(address.where.sun_path + 1, name, kNameBytes);
    address.size = offsetof(sockaddr_un, sun_path) + 1 + kNameBytes;
    return address;
}

Address file_address(const std::string &path) {
    Address address;
    address.where.sun_family = AF_UNIX;
    path.copy(address.where.sun_path, sizeof address.where.sun_path - 1);
    address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
    return address;
}

std::string path_of(const std::string &name) {
    return std::string(kFolder) + "/" + kPrefix + name;
}

bool connect_at(int fd, const Address &address) {
    return connect(fd, address.get(), address.size) == 0;
}

std::string random_name() {
    std::array<unsigned char, kNameBytes / 2> bytes{};
    fill_randomly(bytes);
    static const char *digits = "0123456789abcdef";
    std::string name;
    for (unsigned char byte : bytes) {
        name += digits[byte >> 4];
        name += digits[byte & 15];
    }
    return name;
}

/* ---- Files ---------------------------------------------------------------------------------- */

/* Of this process, and whose it is: a forked child removes nothing. Never destroyed. */
auto &own_file = *new std::string();
pid_t owner = 0;

void remove_own_file() {
    if (getpid() == owner) {
        (void)unlink(own_file.c_str());
    }
}

/* Such a file of this user that no process listens at. One that is being made has another name
 * until it is listened at. */
bool is_left_behind(const std::string &path) {
    struct statx found = {}; /* lstat would need glibc 2.33 where it is compiled with that */
    const int looked =
        statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_UID, &found);
    if (looked != 0 || !S_ISSOCK(found.stx_mode) || found.stx_uid != geteuid()) {
        return false;
    }
    const Socket probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return probe.fd >= 0 && !connect_at(probe.fd, file_address(path)) && errno == ECONNREFUSED;
}

void remove_left_behind() {
    DIR *folder = opendir(kFolder);
    if (folder == nullptr) {
        return;
    }
    while (const dirent *entry = readdir(folder)) {
        std::string path = std::string(kFolder) + "/" + entry->d_name;
        if (std::strncmp(entry->d_name, kPrefix, std::strlen(kPrefix)) == 0 &&
            is_left_behind(path)) {
            (void)unlink(path.c_str());
        }
    }
    (void)closedir(folder);
}

/* ---- Listening ------------------------------------------------------------------------------ */

std::array<std::atomic<int>, 2> listening = {-1, -1};

/* A child's copies would take calls for a parent that has died. */
void close_in_child() {
    for (std::atomic<int> &listener : listening) {
        int fd = listener.exchange(-1);
        if (fd >= 0) {
            (void)close(fd);
        }
    }
}

/* A socket, or -1 with errno. */
int listen_at(const Address &address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, address.get(), address.size) != 0 || listen(fd, kWaiting) != 0) {
        int error = errno;
        const Socket closed(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* A socket, or -1 where there is no folder to have it in: then the abstract one has to do. */
int listen_at_file(const std::string &name) {
    remove_left_behind();
    std::string path = path_of(name);
    std::string unfinished = std::string(kFolder) + "/." + kPrefix + name;
    int fd = listen_at(file_address(unfinished));
    if (fd < 0) {
        return -1;
    }
    if (chmod(unfinished.c_str(), S_IRUSR | S_IWUSR) != 0 ||
        std::rename(unfinished.c_str(), path.c_str()) != 0) {
        (void)unlink(unfinished.c_str());
        (void)close(fd);
        return -1;
    }
    own_file = path;
    owner = getpid();
    (void)std::atexit(remove_own_file);
    return fd;
}

} // namespace

Socket::~Socket() {
    if (fd >= 0) {
        (void)close(fd);
    }
}

void Socket::limit_waiting() const {
    timeval patience = {kPatience, 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

bool is_own_user(int fd) {
    ucred peer = {};
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

std::string start_listening(void (*serve)(int listener)) {
    std::string name = random_name();
    listening[0] = listen_at(abstract_address(name.data()));
    TORCH_CHECK(listening[0] >= 0, "Ductile: no socket to share memory by: ", std::strerror(errno));
    listening[1] = listen_at_file(name);
    (void)pthread_atfork(nullptr, nullptr, close_in_child);
    for (const std::atomic<int> &listener : listening) {
        if (listener >= 0) {
            std::thread(serve, listener.load()).detach();
        }
    }
    return name;
}

bool connect_to(int fd, const char *name) {
    if (connect_at(fd, abstract_address(name))) {
        return true;
    }
    int error = errno; /* what it says, the missing file does not */
    bool is_connected = connect_at(fd, file_address(path_of(std::string(name, kNameBytes))));
    errno = error;
    return is_connected;
}

} // namespace ductile_torch
