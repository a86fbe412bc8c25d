# SPDX-License-Identifier: Apache-2.0
"""The commands, and what they make: recordings, reports, exports."""
