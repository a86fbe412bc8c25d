# SPDX-License-Identifier: Apache-2.0
"""What a process has once: the shared allocators, who looks at them, and what its children inherit.

Knows `_binding` alone.
"""
