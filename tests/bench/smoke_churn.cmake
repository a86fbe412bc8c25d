# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

bench(text generate churn --live 10,1000 --ops 5000 --json --device virtual --contender ductile,expandable)
expect_lines("${text}" 4 live ops ns_per_op wall_ns_per_op reserved_peak_bytes)
