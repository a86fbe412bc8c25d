# SPDX-License-Identifier: Apache-2.0
"""Files that other programs wrote or will read."""
