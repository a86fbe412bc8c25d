/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer in C++, whose functions may throw:
 *
 *   Refused                        the exception that says there is no memory
 *   kMostForced                    as peer_ops
 *   stream(number, index)          of the trace's stream with that number
 *   alloc(size, stream) -> block, free(block), use(block, stream)
 *   start_afresh(cap)              holds nothing from here on, and no more than cap; 0: any
 *   give_back()                    holds nothing until start_afresh
 *   stats(out), name()
 *
 * Calls go straight to it: what is measured costs as much as one of them.
 */
#ifndef DUCTILE_LAB_PEER_HPP
#define DUCTILE_LAB_PEER_HPP

#include "extras/lab/peers/peer.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <stdexcept>
#include <string>

inline void check(int code, const char *call) {
    if (code != 0) {
        throw std::runtime_error(std::string(call) + " returned " + std::to_string(code));
    }
}

template <typename Function> void load(void *library, const char *name, Function &out) {
    out = reinterpret_cast<Function>(dlsym(library, name));
    if (out == nullptr) {
        throw std::runtime_error(std::string("there is no ") + name);
    }
}

/* An exception's text may have lines of where it was thrown. */
inline std::string first_line(const std::exception &e) {
    std::string what = e.what();
    return what.substr(0, what.find('\n'));
}

template <typename Peer> class Serving {
  public:
    /* Serves, and returns the exit status. */
    static int serve(Peer &peer, const peer_options &options) {
        the_peer = &peer;
        peer_ops ops = {};
        ops.contender.name = peer.name();
        ops.contender.init = init;
        ops.contender.fini = [](void *) { (void)guarded([] { the_peer->give_back(); }); };
        ops.contender.alloc = alloc;
        ops.contender.free = free;
        ops.contender.record_stream = use;
        ops.contender.stats = stats;
        ops.most_forced = Peer::kMostForced;
        ops.find_streams = find_streams;
        ops.fault = [] { return the_fault.c_str(); };
        return peer_serve(&ops, &options);
    }

  private:
    static inline Peer *the_peer = nullptr;
    static inline std::string the_fault;

    /* C calls it: no exception may pass. */
    template <typename Action> static ductile_status guarded(Action action) {
        try {
            action();
            return DUCTILE_OK;
        } catch (const typename Peer::Refused &) {
            return DUCTILE_ERR_OUT_OF_MEMORY;
        } catch (const std::exception &e) {
            the_fault = first_line(e);
            return DUCTILE_ERR_DRIVER;
        }
    }

    static ductile_status init(const contender_env *env, void **self, char *message, size_t size) {
        *self = nullptr;
        the_fault.clear();
        ductile_status status = guarded([&] { the_peer->start_afresh(env->capacity_bytes); });
        (void)std::snprintf(message, size, "%s", the_fault.c_str());
        return status;
    }
    static ductile_status find_streams(const uint64_t *numbers, size_t n, ductile_stream *out) {
        return guarded([&] {
            for (size_t i = 0; i < n; i++) {
                out[i] = the_peer->stream(numbers[i], i);
            }
        });
    }
    static ductile_status alloc(void *, uint64_t size, ductile_stream stream, ductile_addr *out) {
        return guarded([&] {
            void *block = the_peer->alloc(static_cast<size_t>(size), stream);
            *out = reinterpret_cast<uintptr_t>(block);
        });
    }
    static ductile_status free(void *, ductile_addr block) {
        return guarded([&] { the_peer->free(reinterpret_cast<void *>(block)); });
    }
    static ductile_status use(void *, ductile_addr block, ductile_stream stream) {
        return guarded([&] { the_peer->use(reinterpret_cast<void *>(block), stream); });
    }
    static void stats(void *, contender_stats *out) {
        *out = {};
        (void)guarded([&] { the_peer->stats(*out); });
        out->driver_time_ns = out->driver_host_ns;
    }
};

/* main of a peer's program. run(options) may throw. */
template <int (*run)(const peer_options &)>
int peer_main_of(int argc, char **argv, const char *own) {
    return peer_main(argc, argv, own, [](const peer_options *options) {
        try {
            return run(*options);
        } catch (const std::exception &e) {
            std::fprintf(stderr, "%s\n", first_line(e).c_str());
            return 1;
        }
    });
}

#endif
