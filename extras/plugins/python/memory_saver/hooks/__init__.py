# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's module of this name: `mode_preload` has `configure_subprocess`."""
