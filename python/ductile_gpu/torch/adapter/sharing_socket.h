/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sockets by which processes that share memory find each other, under one random name.
 *
 * An abstract UNIX socket belongs to a network namespace, a file in /dev/shm to what containers
 * share with --ipc: a process listens at both, so that either is enough. The file goes when the
 * process exits; what a killed process has left, the next one that listens removes.
 */
#ifndef DUCTILE_TORCH_SHARING_SOCKET_H
#define DUCTILE_TORCH_SHARING_SOCKET_H

#include "torch_common.h"

#include <sys/random.h>

#include <string>

namespace ductile_torch {

constexpr size_t kNameBytes = 24;

struct Socket : Fixed {
    int fd = -1;
    explicit Socket(int given) : fd(given) {
    }
    ~Socket();
    /* Half a minute, for either side. */
    void limit_waiting() const;
};

template <typename Value> void fill_randomly(Value &value) {
    TORCH_CHECK(getrandom(&value, sizeof value, 0) == static_cast<ssize_t>(sizeof value),
                "Ductile: the system gives no random bytes");
}

/* Is the other end a process of this user? */
bool is_own_user(int fd);

/* Starts threads that call `serve` with a socket to accept connections from. Returns the name to
 * ask for, of kNameBytes. Throws when there is no socket. */
std::string start_listening(void (*serve)(int listener));

/* False, with errno: no process listens under this name, of kNameBytes. */
bool connect_to(int fd, const char *name);

} // namespace ductile_torch

#endif
