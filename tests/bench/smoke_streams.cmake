# SPDX-License-Identifier: Apache-2.0
# Programs that leave streams behind, silent or destroyed: they run under every contender of the
# virtual GPU, in a small form, and the traces that are kept in the tree are the ones they write.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

set(small_offload --layers 3 --hidden 128 --vocab 500 --steps 4 --streams 3)
set(small_oneshot --steps 20 --mib 2:16)
foreach(program IN ITEMS offload oneshot)
  bench(text generate ${program} ${small_${program}} --device virtual --json --min-capacity --lag 20
    --contender ductile,expandable,classic,cumemalloc --repeat 2)
  expect_lines("${text}" 4 ${replay_keys} min_capacity_bytes)
endforeach()
bench(text generate oneshot ${small_oneshot} --device virtual --json --contender ductile --end untold)
expect_lines("${text}" 1 ${replay_keys})

foreach(program IN ITEMS offload oneshot)
  bench(ignored generate ${program} --write-trace ${program}.trace)
  bench(ignored convert ${program}.trace new.trace)
  bench(ignored convert ${ROOT}/bench/traces/synthetic/${program}.trace.gz kept.trace)
  file(SHA256 ${SCRATCH}/new.trace new)
  file(SHA256 ${SCRATCH}/kept.trace kept)
  if(NOT new STREQUAL kept)
    message(SEND_ERROR "bench/traces/synthetic/${program}.trace.gz is not what generate ${program} writes")
  endif()
endforeach()
