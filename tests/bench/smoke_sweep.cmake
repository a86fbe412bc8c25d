# SPDX-License-Identifier: Apache-2.0
# The sweep: a line for each setting, spread and contender, tables for people, a picture where a
# Python has matplotlib.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

set(small_sweep generate vary ${small_loop} --contender ductile,classic,cumemallocasync)
bench(lines ${small_sweep} --sweep 2 --json)
string(REGEX MATCHALL "\"spread_percent\":" cells "${lines}")
list(LENGTH cells n_cells)
if(NOT n_cells EQUAL 60) # 4 settings, 5 spreads, 3 contenders
  message(SEND_ERROR "${n_cells} cells, not 60:\n${lines}")
endif()
string(FIND "${lines}" "\n" end)
string(SUBSTRING "${lines}" 0 ${end} first)
foreach(key live_peak_bytes reserved_peak_bytes held_over_used host_us_per_step driver_us_per_step
    stream_syncs min_capacity_bytes min_capacity_over_used tight_reserved_peak_bytes
    tight_host_us_per_step tight_driver_us_per_step tight_stream_syncs)
  string(JSON n LENGTH "${first}" ${key})
  string(JSON value GET "${first}" ${key} 1)
  if(NOT n EQUAL 2 OR NOT value MATCHES "^[0-9.]+$")
    message(SEND_ERROR "${key} has ${n} values, the second ${value}:\n${first}")
  endif()
endforeach()

bench(tables ${small_sweep} --sweep 1)
foreach(text "held / used without a cap" "smallest capacity / used" "recompute on, 3 streams"
    "cumemallocasync is absent")
  if(NOT tables MATCHES "${text}")
    message(SEND_ERROR "no '${text}' in\n${tables}")
  endif()
endforeach()

find_matplotlib(python)
if(python)
  # Half of the settings take half of the time.
  string(REGEX REPLACE "[^\n]*\"side_streams\":2[^\n]*\n" "" lines "${lines}")
  file(WRITE ${SCRATCH}/sweep.jsonl "${lines}")
  expect_picture(${python} plot sweep.jsonl sweep.svg
    Ductile "no recomputation," "one stream" "spread of batch and length, %")
endif()
