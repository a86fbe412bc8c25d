# SPDX-License-Identifier: Apache-2.0
# A recorded run with three streams, twice through one allocator, with work that completes late;
# and the smallest capacity, which really is one: with it the run completes, with one granule
# less it does not.
cmake_minimum_required(VERSION 3.23)
include(${CMAKE_CURRENT_LIST_DIR}/smoke.cmake)

bench(text replay ${ROOT}/bench/traces/vit_multistream_record.trace.gz --json --device virtual
  --contender ductile,expandable --repeat 2 --lag 8)
expect_lines("${text}" 2 ${replay_keys})

bench(ignored generate vary ${small_loop} --write-trace ${SCRATCH}/small.trace)
bench(text replay small.trace --json --device virtual --contender ductile --min-capacity)
expect_lines("${text}" 1 ${replay_keys} min_capacity_bytes min_capacity_efficiency)
string(JSON smallest GET "${text}" min_capacity_bytes)
math(EXPR too_small "${smallest} - 2097152")

# Each call timed, in a replay of its own.
bench(text replay small.trace --json --device virtual --contender ductile,classic --repeat 2 --calls)
expect_lines("${text}" 2 ${replay_keys} cold_call_ns warm_call_ns)
bench(text replay small.trace --device virtual --contender ductile --repeat 2 --calls)
if(NOT text MATCHES "a call, cold: median .* a call, warm: median ")
  message(SEND_ERROR "no times of calls: ${text}")
endif()

# Another run in each pass: the same for the same seed, and in none of the passes what was recorded.
foreach(seed IN ITEMS 1 1 2)
  bench(text replay small.trace --json --device virtual --contender ductile,expandable --vary ${seed}
    --repeat 3)
  expect_lines("${text}" 2 ${replay_keys} vary_seed)
  string(REGEX MATCHALL "\"live_peak_bytes\":[0-9]+" peak "${text}")
  list(APPEND peaks "${peak}")
endforeach()
list(REMOVE_DUPLICATES peaks)
list(LENGTH peaks n_peaks)
if(NOT n_peaks EQUAL 2)
  message(SEND_ERROR "of two seeds there are ${n_peaks} peaks: ${peaks}")
endif()

# Near the smallest capacity: one line without a cap, one with it, and what each pass did.
bench(text replay small.trace --json --device virtual --contender ductile --tight 0 --repeat 2)
expect_lines("${text}" 2 ${replay_keys} first_pass last_pass all_passes min_capacity_bytes
  min_capacity_device)
string(FIND "${text}" "\n" end)
math(EXPR end "${end} + 1")
string(SUBSTRING "${text}" ${end} -1 tight)
string(JSON cap GET "${tight}" capacity_bytes)
string(JSON above GET "${tight}" above_min_percent)
string(JSON waits GET "${tight}" last_pass stream_syncs) # an error where it is missing
string(JSON least GET "${tight}" min_capacity_bytes)
foreach(pass IN ITEMS first_pass last_pass all_passes)
  string(JSON ops_of_${pass} GET "${tight}" ${pass} ops)
endforeach()
math(EXPR ops_of_both "${ops_of_first_pass} + ${ops_of_last_pass}")
if(NOT ops_of_all_passes EQUAL ops_of_both)
  message(SEND_ERROR "two passes are not all: ${tight}")
endif()
if(NOT cap EQUAL least OR NOT above EQUAL 0)
  message(SEND_ERROR "not at the smallest capacity, ${least}: ${tight}")
endif()
bench(text replay small.trace --device virtual --contender ductile --tight 2)
if(NOT text MATCHES "last waits.*ductile +uncapped.*ductile +[0-9.]+ ")
  message(SEND_ERROR "no two lines: ${text}")
endif()

bench(text replay small.trace --json --device virtual --contender ductile --capacity ${smallest})
expect_lines("${text}" 1 ${replay_keys})
bench(text replay small.trace --json --device virtual --contender ductile --capacity ${too_small})
string(JSON completed GET "${text}" completed)
if(completed)
  message(SEND_ERROR "completed with ${too_small} bytes, less than the smallest: ${smallest}")
endif()

# What it costs to be short of memory is said in the table, too: PyTorch's native allocator gives all back.
file(WRITE ${SCRATCH}/short.trace "a 1 31457280 0\nf 1\na 2 37748736 0\nf 2\n")
bench(text replay short.trace --device virtual --contender classic --capacity 41943040)
if(NOT text MATCHES "short of memory: the host waited 0 times, 30.0 MiB went back to the driver in 1\n")
  message(SEND_ERROR "nothing is said of what went back: ${text}")
endif()
