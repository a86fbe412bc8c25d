# SPDX-License-Identifier: Apache-2.0
"""The hooks of all optimizers."""

before, behind = [], []
register_optimizer_step_pre_hook = before.append
register_optimizer_step_post_hook = behind.append
