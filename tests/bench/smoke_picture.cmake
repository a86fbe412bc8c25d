# SPDX-License-Identifier: Apache-2.0
# The picture that bench/run ends with.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

bench(ignored generate vary ${small_loop} --write-trace ${SCRATCH}/small.trace)
bench(ignored replay small.trace --device virtual --timeline timeline.csv)
expect_picture(timeline.csv timeline.svg)
