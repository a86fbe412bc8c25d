/* SPDX-License-Identifier: Apache-2.0 */
/* All of the adapter, compiled as one file: PyTorch's headers are read once. */
#include "hot_path.cpp"
#include "install.cpp"
#include "out_of_memory.cpp"
#include "sharing.cpp"
#include "sharing_socket.cpp"
#include "snapshot.cpp"
#include "statistics.cpp"
#include "torch_allocator.cpp"
#include "torch_device.cpp"
#include "torch_pools.cpp"
#include "torch_settings.cpp"
#include "torch_watch.cpp"
